"""An answer as Anthropic's clients read it, whole and as a stream of events.

Format: the Anthropic API reference, "Streaming": `message_start`; for each block `content_block_start`,
deltas, `content_block_stop`; `message_delta` with the end's reason and the usage; `message_stop`. Or `error`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback
from collections.abc import AsyncIterator, Sequence

import msgspec

from mead.core.messages import ToolUseBlock, clean_text
from mead.core.result import Err
from mead.core.turns import Answer
from mead.serve import streams
from mead.serve.chat import Chat, events_of, mead_fields
from mead.serve.endpoint import Call
from mead.serve.errors import Problem, anthropic_shape, problem_of
from mead.serve.streams import sse
from mead.sessions.events import Delta, Finished, ToolCalled, TurnEvent

_encode = msgspec.json.encode
_log = logging.getLogger("mead.serve")
_PING = sse(b'{"type":"ping"}', event="ping")
_NO_USAGE = {
    "input_tokens": 0,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
    "output_tokens": 0,
}


def whole(answer: Answer, model: str, session_id: str | None, warnings: Sequence[str]) -> dict[str, object]:
    """An answer as one message. Raises `Problem` for a call whose arguments nobody can read."""
    calls = _readable(answer.client_calls)
    content: list[object] = [{"type": "text", "text": clean_text(answer.text)}] if answer.text else []
    content += [{"type": "tool_use", "id": call.id, "name": call.name, "input": call.input} for call in calls]
    return {
        **_message(model),
        "content": content,
        "stop_reason": answer.stop_reason,
        "usage": _usage(answer),
        "mead": _mead(answer, session_id, warnings),
    }


async def stream(call: Call, chat: Chat, warnings: Sequence[str]) -> AsyncIterator[bytes]:
    """The events of an answer. What is wrong before the answer begins is raised as `Problem`, unless the
    model takes its time: then the stream begins without it."""
    events = events_of(call, chat)
    waiting = asyncio.ensure_future(_next(events))
    writer = _Writer(chat.model)
    try:
        await asyncio.wait((waiting,), timeout=streams.PING_S)
        if not waiting.done():
            yield writer.start()
        event = await waiting
        if isinstance(event, Finished) and isinstance(event.result, Err):
            raise problem_of(event.result.reason)
        if not writer.has_begun:
            yield writer.start()
        while not isinstance(event, Finished):
            if data := writer.take(event):
                yield data
            event = await _next(events)
        if isinstance(event.result, Err):
            raise problem_of(event.result.reason)
        yield writer.end(event.result.value, chat.session, warnings)
    except Exception as error:
        if not writer.has_begun:
            raise
        yield _error(error)
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait((waiting,))
        await events.aclose()


async def _next(events: AsyncIterator[TurnEvent]) -> TurnEvent:
    event = await anext(events, None)
    if event is None:
        raise Problem(499, "cancelled", "the turn was cancelled")
    return event


def _error(error: Exception) -> bytes:
    if not isinstance(error, Problem):
        # The exception's message is left out: it may quote the conversation (T3).
        stack = "".join(traceback.format_tb(error.__traceback__))
        _log.error("a stream raised %s\n%s", type(error).__name__, stack)
        error = Problem(500, "crashed", "the server made a mistake; its log says where")
    return sse(_encode(anthropic_shape(error)), event="error")


class _Writer:
    """Writes the events of one message. A text block holds the text of one reply of the model: where tools of
    the hub were run in between, there are several."""

    def __init__(self, model: str) -> None:
        self.has_begun = False
        self._model = model
        self._index = -1
        self._is_open = False
        self._said: list[str] = []

    def start(self) -> bytes:
        """The beginning. What the prompt took is not known yet: the end tells."""
        self.has_begun = True
        message = {**_message(self._model), "content": [], "stop_reason": None, "usage": _NO_USAGE}
        return _event("message_start", message=message)

    def take(self, event: TurnEvent) -> bytes:
        """What an event adds."""
        if isinstance(event, Delta) and event.text:
            return self._text(event.text)
        return self._close() if isinstance(event, ToolCalled) else b""

    def end(self, answer: Answer, session_id: str | None, warnings: Sequence[str]) -> bytes:
        """What is left of the answer, and the end. Raises `Problem` as `whole` does."""
        calls = _readable(answer.client_calls)
        parts = [self._rest(answer.text), self._close(), *map(self._call, calls)]
        parts.append(
            _event(
                "message_delta",
                delta={"stop_reason": answer.stop_reason, "stop_sequence": None},
                usage=_usage(answer),
                mead=_mead(answer, session_id, warnings),
            )
        )
        return b"".join([*parts, _event("message_stop")])

    def _rest(self, text: str) -> bytes:
        """What of the answer's text was not streamed."""
        said = "".join(self._said)
        if text == said:
            return b""
        if self._is_open and text.startswith(said):
            return self._text(text[len(said) :])
        return self._close() + (self._text(text) if text else b"")

    def _text(self, text: str) -> bytes:
        start = b""
        if not self._is_open:
            start = self._open({"type": "text", "text": ""})
            self._said, self._is_open = [], True
        self._said.append(text)
        return start + self._delta({"type": "text_delta", "text": clean_text(text)})

    def _call(self, call: ToolUseBlock) -> bytes:
        start = self._open({"type": "tool_use", "id": call.id, "name": call.name, "input": {}})
        arguments = _encode(call.input).decode()
        delta = self._delta({"type": "input_json_delta", "partial_json": arguments})
        return start + delta + _event("content_block_stop", index=self._index)

    def _open(self, block: dict[str, object]) -> bytes:
        self._index += 1
        start = _event("content_block_start", index=self._index, content_block=block)
        return start if self._index else start + _PING

    def _delta(self, delta: dict[str, str]) -> bytes:
        return _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        return _event("content_block_stop", index=self._index)


def _event(kind: str, **fields: object) -> bytes:
    return sse(_encode({"type": kind, **fields}), event=kind)


def _message(model: str) -> dict[str, object]:
    return {
        "id": f"msg_{secrets.token_hex(12)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "stop_sequence": None,
    }


def _readable(calls: Sequence[ToolUseBlock]) -> Sequence[ToolUseBlock]:
    if any(call.malformed is not None for call in calls):
        raise Problem(
            502, "malformed_response", "the model asked for a tool with arguments that are no object"
        )
    return calls


def _usage(answer: Answer) -> dict[str, int]:
    """The tokens as Anthropic counts them: what was read from a cache, or written to one, stands apart."""
    usage = answer.usage
    apart = usage.cached_tokens + usage.cache_write_tokens
    return {
        "input_tokens": max(0, usage.input_tokens - apart),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
    }


def _mead(answer: Answer, session_id: str | None, warnings: Sequence[str]) -> dict[str, object]:
    return {**mead_fields(answer, session_id), "warnings": (*answer.warnings, *warnings)}
