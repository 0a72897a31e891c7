"""The OpenAI-compatible door: chat completions, plain and streamed, embeddings, and the list of models."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mead.serve._openai_reply import stream, whole
from mead.serve._openai_request import ChatRequest, read_request
from mead.serve.chat import answer_to, mead_headers, opened
from mead.serve.embeddings import embeddings
from mead.serve.endpoint import Call, Endpoint, Handle, Server, endpoint
from mead.serve.errors import openai_shape
from mead.serve.streams import SseResponse, begun, until_gone


def routes(server: Server) -> Sequence[BaseRoute]:
    """The routes of this door."""
    return (
        Route("/v1/chat/completions", _endpoint(_completions), methods=["POST"]),
        Route("/v1/embeddings", _endpoint(embeddings), methods=["POST"]),
    )


def _endpoint(handle: Handle) -> Endpoint:
    return endpoint(handle, scope="chat", shape=openai_shape)


async def _completions(call: Call) -> Response:
    request = await call.json(ChatRequest)
    asked = await read_request(call, request)
    if not request.stream:
        answer, session_id = await until_gone(call.request, answer_to(call, asked.chat))
        body = whole(answer, request.model, session_id, asked.notes)
        return Response(body, headers=mead_headers(answer, session_id), media_type="application/json")
    chat = await opened(call, asked.chat)
    wanted = request.stream_options
    include_usage = wanted is not None and bool(wanted.include_usage)
    events = stream(call, chat, asked.notes, include_usage=include_usage)
    headers = {} if chat.session is None else {"x-mead-session": chat.session}
    return SseResponse(await until_gone(call.request, begun(events)), headers)
