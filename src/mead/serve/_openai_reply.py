"""An answer as OpenAI's clients read it, whole and as a stream of chunks.

A stream is: the chunk with the role, the text as it comes, the calls of the client's tools, the chunk with
the finish reason, the usage if it was asked for, `[DONE]`. One that fails midway ends with an `error`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
import traceback
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import Struct

from mead.core.messages import StopReason, ToolUseBlock, clean_text
from mead.core.result import Err
from mead.core.turns import Answer
from mead.core.usage import UsageTotal
from mead.serve import streams
from mead.serve.chat import Chat, events_of, mead_fields
from mead.serve.endpoint import Call
from mead.serve.errors import Problem, openai_shape, problem_of
from mead.serve.streams import sse
from mead.sessions.events import Delta, Finished, TurnEvent

_encode = msgspec.json.encode
_log = logging.getLogger("mead.serve")
_FINISH: dict[StopReason, str] = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls"}
_DONE = sse(b"[DONE]")


class _PromptDetails(Struct, frozen=True):
    cached_tokens: int


class _CompletionDetails(Struct, frozen=True):
    reasoning_tokens: int


class _Usage(Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _PromptDetails
    completion_tokens_details: _CompletionDetails


class _Called(Struct, frozen=True):
    name: str
    arguments: str


class _ToolCall(Struct, frozen=True):
    id: str
    type: str
    function: _Called


class _Message(Struct, frozen=True, omit_defaults=True):
    role: str
    content: str | None
    refusal: None
    tool_calls: list[_ToolCall] | None = None


class _Choice(Struct, frozen=True):
    index: int
    message: _Message
    logprobs: None
    finish_reason: str


class _Completion(Struct, frozen=True):
    id: str
    object: str
    created: int
    model: str
    choices: tuple[_Choice, ...]
    usage: _Usage | None
    mead: Any


def whole(answer: Answer, model: str, session_id: str | None, notes: Sequence[str]) -> bytes:
    """The answer as one completion."""
    calls = [_tool_call(call) for call in answer.client_calls] or None
    text = clean_text(answer.text)
    message = _Message("assistant", text if text or calls is None else None, None, calls)
    return _encode(
        _Completion(
            _new_id(),
            "chat.completion",
            int(time.time()),
            model,
            (_Choice(0, message, None, _FINISH[answer.stop_reason]),),
            _usage(answer.usage),
            _mead(answer, session_id, notes),
        )
    )


async def stream(
    call: Call, chat: Chat, notes: Sequence[str], *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The answer in chunks, as server-sent events. What is wrong before the answer begins is raised as
    `Problem`, unless the model takes its time: then the stream begins without it."""
    writer = _Writer(chat.model, include_usage=include_usage)
    async with aclosing(events_of(call, chat)) as events:
        waiting = asyncio.ensure_future(_next(events))
        try:
            await asyncio.wait((waiting,), timeout=streams.PING_S)
            if not waiting.done():
                yield writer.start()
            event = await waiting
            while not isinstance(event, Finished):
                if data := writer.take(event):
                    yield data
                event = await _next(events)
            if isinstance(event.result, Err):
                raise problem_of(event.result.reason)
            yield writer.end(event.result.value, chat.session, notes)
        except Exception as error:
            if not writer.has_begun:
                raise
            yield _error(error)
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait((waiting,))


async def _next(events: AsyncGenerator[TurnEvent, None]) -> TurnEvent:
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
    return sse(_encode(openai_shape(error)))


class _Writer:
    """Writes the chunks of one completion. Every chunk has the same head, which is written once."""

    def __init__(self, model: str, *, include_usage: bool) -> None:
        self.has_begun = False
        self._has_text = False
        self._include_usage = include_usage
        head = {
            "id": _new_id(),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }
        self._head = b"data: " + _encode(head)[:-1]
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def start(self) -> bytes:
        """The beginning."""
        self.has_begun = True
        return self._chunk(b'{"role":"assistant","content":"","refusal":null}')

    def take(self, event: TurnEvent) -> bytes:
        """What an event adds."""
        begins = b"" if self.has_begun else self.start()
        if not isinstance(event, Delta) or not event.text:
            return begins
        self._has_text = True
        return begins + self._text(event.text)

    def end(self, answer: Answer, session_id: str | None, notes: Sequence[str]) -> bytes:
        """What is left of the answer, and the end."""
        parts = [] if self.has_begun else [self.start()]
        if answer.text and not self._has_text:
            parts.append(self._text(answer.text))
        for index, call in enumerate(answer.client_calls):
            delta = {"tool_calls": [{"index": index, **msgspec.to_builtins(_tool_call(call))}]}
            parts.append(self._chunk(_encode(delta)))
        mead = b',"mead":' + _encode(_mead(answer, session_id, notes))
        finish = _encode(_FINISH[answer.stop_reason])
        parts.append(self._chunk(b"{}", finish=finish, more=mead))
        if self._include_usage:
            usage = _encode(_usage(answer.usage))
            parts.append(self._head + b',"choices":[],"usage":' + usage + b"}\n\n")
        return b"".join([*parts, _DONE])

    def _text(self, text: str) -> bytes:
        return self._chunk(b'{"content":' + _encode(clean_text(text)) + b"}")

    def _chunk(self, delta: bytes, *, finish: bytes = b"null", more: bytes = b"") -> bytes:
        return b"".join(
            (
                self._head,
                b',"choices":[{"index":0,"delta":',
                delta,
                b',"logprobs":null,"finish_reason":',
                finish,
                b"}]",
                more,
                self._tail,
            )
        )


def _new_id() -> str:
    return f"chatcmpl-{secrets.token_hex(12)}"


def _tool_call(call: ToolUseBlock) -> _ToolCall:
    """A call for the client. The router hands over none that nobody can read; a handler of one's own may, and
    then its arguments go out as the model wrote them."""
    arguments = _encode(call.input).decode() if call.malformed is None else clean_text(call.malformed)
    return _ToolCall(call.id, "function", _Called(call.name, arguments))


def _usage(usage: UsageTotal) -> _Usage | None:
    """The tokens as OpenAI counts them; nothing where no call said any."""
    if usage.unknown and not (usage.input_tokens or usage.output_tokens):
        return None
    return _Usage(
        usage.input_tokens,
        usage.output_tokens,
        usage.input_tokens + usage.output_tokens,
        _PromptDetails(usage.cached_tokens),
        _CompletionDetails(usage.reasoning_tokens),
    )


def _mead(answer: Answer, session_id: str | None, notes: Sequence[str]) -> dict[str, object]:
    fields = mead_fields(answer, session_id)
    if notes:
        fields["warnings"] = (*answer.warnings, *notes)
    return fields
