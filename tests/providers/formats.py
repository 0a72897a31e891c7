"""The three wire formats as the tests' servers speak them: answers, streams and errors for any case."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from mead.core.messages import ToolUseBlock
from mead.core.options import Options, Route
from mead.core.reasons import ProviderReason
from mead.core.result import Err, Ok, Result
from mead.providers._adapter import HttpAdapter
from mead.providers.anthropic import Anthropic
from mead.providers.http import HttpClient, HttpReply, OnChunk
from mead.providers.ollama import Ollama
from mead.providers.openai_chat import OpenAIChat
from mead.testing import Answer, FakeServer, Received, ndjson, sse
from mead.testing.providers import (
    Answers,
    BreaksOff,
    Case,
    GoesSilent,
    LacksTheKey,
    Refuses,
    RefusesTools,
    TalksNonsense,
)
from mead.testing.server import Answering
from mead.testing.wire import check_anthropic, check_ollama, check_openai

OPTIONS = Options(model="test-model")
ASK = "Say it."


def json_answer(body: object, *, status: int = 200, **headers: str) -> Answer:
    """An unstreamed JSON answer; a header is written with _ for -."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(
        status=status,
        body=msgspec.json.encode(body),
        headers={"content-type": "application/json", **named},
        chunked=False,
    )


def reason(result: Result[object, ProviderReason]) -> ProviderReason:
    """The reason of a failure."""
    assert isinstance(result, Err), f"a failure was expected, not {result!r}"
    return result.reason


class WireFormat(ABC):
    """How one format's server answers. `checks` is its checker of requests."""

    name: str
    path: str
    content_type = "text/event-stream"
    needs_key_option = True
    routes: dict[str, Answering] = {}  # noqa: RUF012  # nobody changes it
    checks: Callable[[object], None]

    @abstractmethod
    def adapter(self, client: HttpClient, **keywords: Any) -> HttpAdapter:
        """The adapter under test."""

    @abstractmethod
    def whole(self, case: Answers) -> dict[str, Any]:
        """The body of an unstreamed answer."""

    @abstractmethod
    def text_events(self, pieces: Sequence[str]) -> list[bytes]:
        """The beginning of a stream that brings text."""

    @abstractmethod
    def stream(self, case: Answers) -> list[bytes]:
        """A whole stream, event by event."""

    @abstractmethod
    def error(self, message: str, status: int) -> dict[str, Any]:
        """The body of an error answer."""

    no_tools = "test-model does not support tools"

    def client(self, url: str, *, slot: Route = "local") -> HttpClient:
        return HttpClient(url, slot=slot)

    def make(self, url: str, *, slot: Route = "local", **keywords: Any) -> HttpAdapter:
        """The adapter for a server at `url`."""
        return self.adapter(self.client(url, slot=slot), **keywords)

    @asynccontextmanager
    async def provider(self, server: FakeServer, **keywords: Any) -> AsyncIterator[HttpAdapter]:
        """The adapter for a running server, closed at the end."""
        made = self.make(server.url, **keywords)
        try:
            yield made
        finally:
            await made.aclose()

    def server(self, *answers: Answering) -> FakeServer:
        """A server that gives these answers to the requests that ask the model."""
        return FakeServer(*answers, routes=self.routes)

    def streaming(self, *pieces: bytes, **keywords: Any) -> Answer:
        """A streamed answer of these bytes."""
        return Answer(body=list(pieces), headers={"content-type": self.content_type}, **keywords)

    def answer(self, case: Case) -> Answering:
        """What the server does in a case, whether it is asked for a stream or not."""
        match case:
            case Answers():
                return lambda request: (
                    self.streaming(*self.stream(case))
                    if self.is_streamed(request)
                    else json_answer(self.whole(case))
                )
            case Refuses():
                hint = {} if case.retry_after_s is None else {"retry_after": str(case.retry_after_s)}
                return json_answer(self.error(case.message, case.status), status=case.status, **hint)
            case RefusesTools():
                return json_answer(self.error(self.no_tools, 400), status=400)
            case BreaksOff():
                return lambda request: self._unfinished(request, case.pieces, "cut")
            case GoesSilent():
                return lambda request: self._unfinished(request, case.pieces, "hang")
            case TalksNonsense():
                return json_answer({"hello": "world"})
            case _:
                return Answer()

    def _unfinished(self, request: Received, pieces: Sequence[str], end: Any) -> Answer:
        if self.is_streamed(request):
            return self.streaming(*self.text_events(pieces), end=end)
        body = msgspec.json.encode(self.whole(Answers(pieces=tuple(pieces))))
        return Answer(body=body[: len(body) // 2], chunked=False, end=end)

    @staticmethod
    def is_streamed(request: Received) -> bool:
        return request.json().get("stream", False) is True

    @asynccontextmanager
    async def serving(self, *cases: Case) -> AsyncIterator[HttpAdapter]:
        """The adapter in front of a server that meets the cases in order."""
        async with self.server(*map(self.answer, cases)) as server:
            keywords = {"needs_key": True} if any(isinstance(case, LacksTheKey) for case in cases) else {}
            async with self.provider(server, **keywords) as made:
                yield made


class OpenAIFormat(WireFormat):
    name = "openai"
    path = "/v1/chat/completions"
    routes = {"/props": Answer(status=404)}  # noqa: RUF012  # nobody changes it
    checks = staticmethod(check_openai)

    def client(self, url: str, *, slot: Route = "local") -> HttpClient:
        return HttpClient(url + "/v1", slot=slot)

    def adapter(self, client: HttpClient, **keywords: Any) -> HttpAdapter:
        return OpenAIChat(client, **keywords)

    def whole(self, case: Answers) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(case.pieces) or None}
        if case.calls:
            message["tool_calls"] = [self.call(call) for call in case.calls]
        choice = {"index": 0, "message": message, "finish_reason": self.finish(case)}
        return {"id": "1", "object": "chat.completion", "choices": [choice], "usage": self.usage(case)}

    def text_events(self, pieces: Sequence[str]) -> list[bytes]:
        return [sse(self.chunk(role="assistant", content=None))] + [
            sse(self.chunk(content=piece)) for piece in pieces
        ]

    def stream(self, case: Answers) -> list[bytes]:
        events = self.text_events(case.pieces)
        for index, call in enumerate(case.calls):
            whole = self.call(call)
            arguments = whole["function"].pop("arguments")
            events.append(sse(self.chunk(tool_calls=[{"index": index, **whole}])))
            events += [
                sse(self.chunk(tool_calls=[{"index": index, "function": {"arguments": part}}]))
                for part in (arguments[:3], arguments[3:])
            ]
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": self.finish(case)}]}
        return [*events, sse(last), sse({"choices": [], "usage": self.usage(case)}), sse("[DONE]")]

    def error(self, message: str, status: int) -> dict[str, Any]:
        return {"error": {"message": message, "type": "some_error", "param": None, "code": None}}

    @staticmethod
    def chunk(**delta: Any) -> dict[str, Any]:
        return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    @staticmethod
    def call(call: ToolUseBlock) -> dict[str, Any]:
        arguments = msgspec.json.encode(call.input).decode()
        return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}

    @staticmethod
    def finish(case: Answers) -> str:
        if case.cut_by_limit:
            return "length"
        return "tool_calls" if case.calls else "stop"

    @staticmethod
    def usage(case: Answers) -> dict[str, Any]:
        used = case.usage
        counts: dict[str, Any] = {"prompt_tokens": used.input_tokens, "completion_tokens": used.output_tokens}
        return {**counts, "total_tokens": (used.input_tokens or 0) + (used.output_tokens or 0)}


class AnthropicFormat(WireFormat):
    name = "anthropic"
    path = "/v1/messages"
    checks = staticmethod(check_anthropic)

    def adapter(self, client: HttpClient, **keywords: Any) -> HttpAdapter:
        return Anthropic(client, **keywords)

    def whole(self, case: Answers) -> dict[str, Any]:
        content: list[dict[str, Any]] = []
        if case.pieces:
            content.append({"type": "text", "text": "".join(case.pieces)})
        content += [self.call(call) for call in case.calls]
        usage = {"input_tokens": case.usage.input_tokens, "output_tokens": case.usage.output_tokens}
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "test-model",
            "content": content,
            "stop_reason": self.finish(case),
            "stop_sequence": None,
            "usage": usage,
        }

    def text_events(self, pieces: Sequence[str]) -> list[bytes]:
        return self.begin(Answers()) + self.block(
            {"type": "text", "text": ""}, *[{"type": "text_delta", "text": piece} for piece in pieces]
        )

    def stream(self, case: Answers) -> list[bytes]:
        events = self.begin(case)
        index = 0
        if case.pieces:
            texts = [{"type": "text_delta", "text": piece} for piece in case.pieces]
            events += self.block({"type": "text", "text": ""}, *texts, stop=True)
            index = 1
        for call in case.calls:
            arguments = msgspec.json.encode(call.input).decode()
            parts = [
                {"type": "input_json_delta", "partial_json": part}
                for part in ("", arguments[:3], arguments[3:])
            ]
            events += self.block({**self.call(call), "input": {}}, *parts, index=index, stop=True)
            index += 1
        delta = {"stop_reason": self.finish(case), "stop_sequence": None}
        usage = {"output_tokens": case.usage.output_tokens}
        return [
            *events,
            self.event({"type": "message_delta", "delta": delta, "usage": usage}),
            self.event({"type": "message_stop"}),
        ]

    def error(self, message: str, status: int) -> dict[str, Any]:
        error = {"type": "some_error", "message": message}
        return {"type": "error", "error": error, "request_id": "req_1"}

    @staticmethod
    def event(event: dict[str, Any]) -> bytes:
        return b"event: %s\n" % event["type"].encode() + sse(event)

    def begin(self, case: Answers) -> list[bytes]:
        usage = {"input_tokens": case.usage.input_tokens, "output_tokens": 1}
        message = {**self.whole(Answers()), "stop_reason": None, "usage": usage}
        return [self.event({"type": "message_start", "message": message}), self.event({"type": "ping"})]

    def block(
        self, start: dict[str, Any], *deltas: dict[str, Any], index: int = 0, stop: bool = False
    ) -> list[bytes]:
        events = [self.event({"type": "content_block_start", "index": index, "content_block": start})]
        events += [self.event({"type": "content_block_delta", "index": index, "delta": d}) for d in deltas]
        return [*events, self.event({"type": "content_block_stop", "index": index})] if stop else events

    @staticmethod
    def call(call: ToolUseBlock) -> dict[str, Any]:
        return {"type": "tool_use", "id": call.id, "name": call.name, "input": call.input}

    @staticmethod
    def finish(case: Answers) -> str:
        if case.cut_by_limit:
            return "max_tokens"
        return "tool_use" if case.calls else "end_turn"


class OllamaFormat(WireFormat):
    name = "ollama"
    path = "/api/chat"
    content_type = "application/x-ndjson"
    needs_key_option = False
    routes = {"/api/show": json_answer({"capabilities": ["completion", "tools"]})}  # noqa: RUF012  # as above
    checks = staticmethod(check_ollama)

    def adapter(self, client: HttpClient, **keywords: Any) -> HttpAdapter:
        return Ollama(client, **keywords)

    def whole(self, case: Answers) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": "".join(case.pieces)}
        if case.calls:
            message["tool_calls"] = [self.call(call) for call in case.calls]
        return {"model": "test-model", "message": message, **self.last(case)}

    def text_events(self, pieces: Sequence[str]) -> list[bytes]:
        return [ndjson(self.line(content=piece)) for piece in pieces]

    def stream(self, case: Answers) -> list[bytes]:
        events = self.text_events(case.pieces)
        if case.calls:
            events.append(ndjson(self.line(content="", tool_calls=[self.call(call) for call in case.calls])))
        empty = {"role": "assistant", "content": ""}
        return [*events, ndjson({"model": "test-model", "message": empty, **self.last(case)})]

    def error(self, message: str, status: int) -> dict[str, Any]:
        return {"error": message}

    @staticmethod
    def line(**message: Any) -> dict[str, Any]:
        return {"model": "test-model", "message": {"role": "assistant", **message}, "done": False}

    @staticmethod
    def call(call: ToolUseBlock) -> dict[str, Any]:
        return {"id": call.id, "function": {"index": 0, "name": call.name, "arguments": call.input}}

    @staticmethod
    def last(case: Answers) -> dict[str, Any]:
        return {
            "done": True,
            "done_reason": "length" if case.cut_by_limit else "stop",
            "total_duration": 5,
            "prompt_eval_count": case.usage.input_tokens,
            "eval_count": case.usage.output_tokens,
        }


OPENAI, ANTHROPIC, OLLAMA = OpenAIFormat(), AnthropicFormat(), OllamaFormat()
FORMATS: tuple[WireFormat, ...] = (OPENAI, ANTHROPIC, OLLAMA)


class Replay:
    """Stands in for the gated connections: answers with given bytes, and keeps the requests' bodies.

    A stream that ends early ends cleanly, which is the case that a client has to notice by itself.
    """

    slot = "cloud"
    allow_remote = False
    host = "replay:443"
    prefix = ""

    def __init__(self, status: int = 200, *pieces: bytes) -> None:
        self._status = status
        self._pieces = pieces
        self.bodies: list[Any] = []

    async def send(
        self,
        method: str,
        path: str,
        options: Options,
        *,
        body: bytes = b"",
        on_chunk: OnChunk | None = None,
        **_: object,
    ) -> Result[HttpReply, Any]:
        if path == "/api/show":
            return Ok(HttpReply(status=404, body=b""))
        self.bodies.append(msgspec.json.decode(body))
        if on_chunk is None or self._status != 200:
            return Ok(HttpReply(status=self._status, body=b"".join(self._pieces)))
        any(map(on_chunk, self._pieces))  # stops where the end was seen, as the connection does
        return Ok(HttpReply(status=200, body=b""))


def adapter(wire: WireFormat, replay: Replay) -> HttpAdapter:
    return wire.adapter(replay)  # type: ignore[arg-type]  # it has all that an adapter uses
