"""The Anthropic-compatible door: `/v1/messages`, plain and streamed, and an estimate of a prompt's tokens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mead.core.conversation import encode
from mead.router.window import BYTES_PER_TOKEN, prompt_bytes
from mead.serve._anthropic_request import Asked, CountRequest, MessagesRequest, read
from mead.serve._anthropic_stream import stream, whole
from mead.serve.chat import Chat, answer_to, mead_headers, model_names, opened, route_of
from mead.serve.endpoint import Call, Server, endpoint, small_number
from mead.serve.errors import Problem, anthropic_shape, invalid
from mead.serve.streams import SseResponse, begun, until_gone

_NO_DATE = "1970-01-01T00:00:00Z"
"""What the format says of a model of which no date is known."""
_MAX_MODELS = 1000


def routes(server: Server) -> Sequence[BaseRoute]:
    """The routes of this door."""
    return (
        Route("/v1/messages", endpoint(_messages, scope="chat", shape=anthropic_shape), methods=["POST"]),
        Route(
            "/v1/messages/count_tokens",
            endpoint(_count_tokens, scope="chat", shape=anthropic_shape),
            methods=["POST"],
        ),
    )


async def _messages(call: Call) -> Response:
    request = await call.json(MessagesRequest)
    asked = read(request)
    chat = await _chat(call, request.model, asked)
    if request.stream:
        chat = await opened(call, chat)
        events = await until_gone(call.request, begun(stream(call, chat, asked.warnings)))
        return SseResponse(events, {"x-mead-session": chat.session} if chat.session else None)
    answer, session_id = await until_gone(call.request, answer_to(call, chat))
    body = whole(answer, request.model, session_id, asked.warnings)
    return _json(body, mead_headers(answer, session_id))


async def _count_tokens(call: Call) -> Response:
    """How many tokens a prompt takes, by the figures with which mead fits a conversation into a context: an
    estimate, which is rarely too low. Nobody is asked."""
    request = await call.json(CountRequest)
    asked = read(request)
    route_of(call, request.model)
    extra_bytes = len((asked.options.system or "").encode(errors="replace"))
    extra_bytes += len(msgspec.json.encode(asked.tools)) if asked.tools else 0
    size = prompt_bytes((), encode(asked.messages), extra_bytes)
    return _json({"input_tokens": -(-size // BYTES_PER_TOKEN)})


async def models_as_anthropic(call: Call) -> Response:
    """The models that the caller may ask for, as Anthropic lists them; `limit`, `after_id` and `before_id`
    page."""
    names, query = list(model_names(call)), call.request.query_params
    count = small_number(query.get("limit", "20")) or 0
    if not 1 <= count <= _MAX_MODELS:
        raise invalid(f"must be a number from 1 to {_MAX_MODELS}", param="limit")
    after, before = query.get("after_id"), query.get("before_id")
    if after is not None:
        names = names[_place(names, after, "after_id") + 1 :]
    if before is not None:
        names = names[: _place(names, before, "before_id")]
    # A page before a model ends right before it.
    page = names[-count:] if before is not None and after is None else names[:count]
    return _json(
        {
            "data": [_model(name) for name in page],
            "first_id": page[0] if page else None,
            "last_id": page[-1] if page else None,
            "has_more": len(page) < len(names),
        }
    )


async def model_as_anthropic(call: Call, name: str) -> Response:
    """One model, as Anthropic describes it. Raises `Problem` if there is none that the caller may ask for."""
    if name not in model_names(call):
        raise Problem(404, "model_not_found", "there is no such model")
    return _json(_model(name))


def _place(names: Sequence[str], name: str, param: str) -> int:
    if name not in names:
        raise invalid("is the id of no model", param=param)
    return names.index(name)


def _model(name: str) -> dict[str, str]:
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": _NO_DATE,
        "lifecycle": "active",
    }


async def _chat(call: Call, model: str, asked: Asked) -> Chat:
    return Chat.of(
        call.request.headers,
        await call.request.body(),
        model=model,
        messages=asked.messages,
        options=asked.options,
        client_tools=asked.tools,
        wishes=asked.wishes,
    )


def _json(body: object, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), headers=headers, media_type="application/json")
