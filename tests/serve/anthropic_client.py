"""Anthropic's own Python library, pointed at a server over a runtime; and what its requests are made of."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import anthropic
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import mead
from mead.serve import anthropic as door
from mead.serve.endpoint import Call, Server, endpoint
from mead.serve.errors import anthropic_shape
from mead.serve.tokens import Tokens
from serve.served import Serving


class Clients:
    """Makes clients, and closes them at the end. They repeat nothing unless they are told to."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._open = ExitStack()

    def __call__(
        self, runtime: mead.Runtime, tokens: Tokens | None = None, **options: Any
    ) -> anthropic.Anthropic:
        url = self._serving(runtime, tokens, doors=(door.routes, _models))
        wanted = {"api_key": "any", "max_retries": 0, **options}
        return self._open.enter_context(anthropic.Anthropic(base_url=url, **wanted))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.close()


def user(content: object) -> Any:
    return {"role": "user", "content": content}


def said(content: object) -> Any:
    return {"role": "assistant", "content": content}


def text(words: str) -> Any:
    return {"type": "text", "text": words}


def result(call_id: str, content: object, **fields: object) -> Any:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


def picture(media_type: str = "image/png", data: str = "aGk=") -> Any:
    """An image block of two bytes, `hi`."""
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def document(words: str, **fields: object) -> Any:
    source = {"type": "text", "media_type": "text/plain", "data": words}
    return {"type": "document", "source": source, **fields}


def _models(server: Server) -> Sequence[BaseRoute]:
    """The routes that this door shares with the OpenAI door's."""

    async def one(call: Call) -> Response:
        return await door.model_as_anthropic(call, call.request.path_params["name"])

    return (
        Route("/v1/models", endpoint(door.models_as_anthropic, scope="chat", shape=anthropic_shape)),
        Route("/v1/models/{name:path}", endpoint(one, scope="chat", shape=anthropic_shape)),
    )
