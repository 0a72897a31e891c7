"""The list of models, for OpenAI's clients and Anthropic's: both ask the same path."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mead.serve.anthropic import model_as_anthropic, models_as_anthropic
from mead.serve.chat import model_names
from mead.serve.endpoint import Call, Endpoint, Server, endpoint
from mead.serve.errors import Problem, anthropic_shape, openai_shape


def routes(server: Server) -> Sequence[BaseRoute]:
    """The routes of the models."""
    listing = _for_both(
        endpoint(models, scope="chat", shape=openai_shape),
        endpoint(models_as_anthropic, scope="chat", shape=anthropic_shape),
    )
    one = _for_both(
        endpoint(_model, scope="chat", shape=openai_shape),
        endpoint(_model_as_anthropic, scope="chat", shape=anthropic_shape),
    )
    return (
        Route("/v1/models", listing, methods=["GET"]),
        Route("/v1/models/{name:path}", one, methods=["GET"]),
    )


def _for_both(openai: Endpoint, anthropic: Endpoint) -> Endpoint:
    """Anthropic's clients always say which version of its API they speak."""

    async def respond(request: Request) -> Response:
        return await (anthropic if "anthropic-version" in request.headers else openai)(request)

    return respond


async def models(call: Call) -> Response:
    """The models that the caller may ask for, as OpenAI lists them."""
    listed = [_described(name) for name in model_names(call)]
    return _json({"object": "list", "data": listed})


async def _model(call: Call) -> Response:
    name = call.request.path_params["name"]
    if name not in model_names(call):
        raise Problem(404, "model_not_found", "there is no such model", param="model")
    return _json(_described(name))


async def _model_as_anthropic(call: Call) -> Response:
    return await model_as_anthropic(call, call.request.path_params["name"])


def _described(name: str) -> dict[str, object]:
    # Nobody knows when a model was made.
    return {"id": name, "object": "model", "created": 0, "owned_by": "mead"}


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
