"""The module-level functions for async code: `await mead.aio.submit_turn(…)`.

They run on the default runtime's own loop (`mead.sessions.default`), so sessions are shared with the blocking
functions and outlive any `asyncio.run`. A program with an event loop of its own is better off with a
`Runtime`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar, Unpack

from mead.core.messages import Message
from mead.core.reasons import NoSuchSession, TurnReason
from mead.core.result import Result
from mead.core.turns import Answer, Decision, Turn
from mead.router.decide import Refused
from mead.sessions.default import default_runtime
from mead.sessions.events import TurnEvent
from mead.sessions.keywords import SessionKeywords, TurnKeywords
from mead.sessions.runtime import Runtime

_T = TypeVar("_T")


async def start_session(**session: Unpack[SessionKeywords]) -> str:
    """Starts a session; see `Runtime.start_session`."""
    return await _on_default(lambda runtime: runtime.start_session(**session))


async def submit_turn(session_id: str, text: str, **turn: Unpack[TurnKeywords]) -> Result[Answer, TurnReason]:
    """Submits a turn and waits for its answer; see `Runtime.submit_turn`."""
    return await _on_default(lambda runtime: runtime.submit_turn(session_id, text, **turn))


async def stream_turn(session_id: str, text: str, **turn: Unpack[TurnKeywords]) -> AsyncIterator[TurnEvent]:
    """Submits a turn and yields its events; see `Runtime.stream_turn`."""
    async with contextlib.aclosing(
        _events(lambda runtime: runtime.stream_turn(session_id, text, **turn))
    ) as events:
        async for event in events:
            yield event


async def submit_request(
    messages: Sequence[Message], **turn: Unpack[TurnKeywords]
) -> Result[Answer, TurnReason]:
    """Answers a conversation that is brought along; see `Runtime.submit_request`."""
    return await _on_default(lambda runtime: runtime.submit_request(messages, **turn))


async def stream_request(
    messages: Sequence[Message], **turn: Unpack[TurnKeywords]
) -> AsyncIterator[TurnEvent]:
    """The same, and yields its events; see `Runtime.stream_request`."""
    async with contextlib.aclosing(
        _events(lambda runtime: runtime.stream_request(messages, **turn))
    ) as events:
        async for event in events:
            yield event


async def _events(
    stream: Callable[[Runtime], AsyncGenerator[TurnEvent, None]],
) -> AsyncGenerator[TurnEvent, None]:
    here = asyncio.get_running_loop()
    queue: asyncio.Queue[TurnEvent | None] = asyncio.Queue()

    async def pump(runtime: Runtime) -> None:
        async with contextlib.aclosing(stream(runtime)) as events:
            async for event in events:
                here.call_soon_threadsafe(queue.put_nowait, event)

    pumping = asyncio.ensure_future(_on_default(pump))
    pumping.add_done_callback(lambda _: queue.put_nowait(None))  # also where the default runtime is closed
    try:
        while (event := await queue.get()) is not None:
            yield event
        await pumping
    finally:
        pumping.cancel()


async def cancel_turn(session_id: str) -> bool:
    """Cancels the running turn; see `Runtime.cancel_turn`."""
    return await _on_default(lambda runtime: runtime.cancel_turn(session_id))


async def stop_session(session_id: str) -> bool:
    """Ends a session; see `Runtime.stop_session`."""
    return await _on_default(lambda runtime: runtime.stop_session(session_id))


async def history(session_id: str) -> Result[tuple[Turn, ...], NoSuchSession]:
    """The session's turns; see `Runtime.history`."""
    return await _on_default(lambda runtime: runtime.history(session_id))


async def explain(
    text: str, *, session_id: str | None = None, **turn: Unpack[TurnKeywords]
) -> Result[Decision | Refused, TurnReason]:
    """What would be decided of a turn; see `Runtime.explain`."""
    return await _on_default(lambda runtime: runtime.explain(text, session_id=session_id, **turn))


async def explain_request(
    messages: Sequence[Message], **turn: Unpack[TurnKeywords]
) -> Result[Decision | Refused, TurnReason]:
    """What would be decided of a request; see `Runtime.explain_request`."""
    return await _on_default(lambda runtime: runtime.explain_request(messages, **turn))


async def _on_default(call: Callable[[Runtime], Coroutine[Any, Any, _T]]) -> _T:
    runtime = await asyncio.to_thread(default_runtime)
    return await asyncio.wrap_future(runtime.submit(call))
