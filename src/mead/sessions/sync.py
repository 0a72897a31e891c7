"""The runtime for code that is not async: the same methods, each waiting for its result.

The runtime itself lives on an event loop of its own, on a thread of its own. So it works from plain scripts,
from threads, and from inside a running event loop (a notebook), and sessions outlive any `asyncio.run`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from mead.core.messages import Message
from mead.core.reasons import NoSuchSession, TurnReason
from mead.core.result import Result
from mead.core.turns import Answer, Decision, Turn
from mead.router.decide import Refused
from mead.sessions.events import TurnEvent
from mead.sessions.keywords import SessionKeywords, TurnKeywords
from mead.sessions.run import SentRecord
from mead.sessions.runtime import Runtime
from mead.settings import load

_T = TypeVar("_T")
_CLOSE_TIMEOUT_S = 10.0
_CANCEL_TIMEOUT_S = 1.0
_CLOSED = "the runtime is closed"
_log = logging.getLogger("mead.sessions")


class BackgroundLoop:
    """An event loop that runs on a daemon thread until it is closed. Whoever waits for it gets an answer: the
    result, or `RuntimeError` when the loop ends before there is one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._outstanding: set[Future[Any]] = set()
        self._closing = False
        self._ended = False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mead", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            while not self._runs_to_its_end():
                pass
        finally:
            self._abandon()

    def _runs_to_its_end(self) -> bool:
        """Runs the loop until it is stopped. False if something in it has called `sys.exit`, which is meant
        for a program and breaks the loop off; `KeyboardInterrupt` ends the thread."""
        try:
            self.loop.run_forever()
        except SystemExit:
            _log.error("something on the loop raised SystemExit; the loop goes on")
            return False
        return True

    def _abandon(self) -> None:
        """Fails whatever is outstanding: nothing runs any more."""
        with self._lock:
            self._ended = True
            outstanding = list(self._outstanding)
        for future in outstanding:
            with contextlib.suppress(InvalidStateError):  # it got its result after all
                future.set_exception(RuntimeError(_CLOSED))

    def submit(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Begins a coroutine on the loop. Raises `RuntimeError` after closing."""
        return self._submit(work)

    def _submit(self, work: Coroutine[Any, Any, _T], *, last: bool = False) -> Future[_T]:
        with self._lock:
            # A forked process has the loop, and not its thread.
            if self._ended or (self._closing and not last) or not self._thread.is_alive():
                work.close()
                raise RuntimeError(_CLOSED)
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
            self._outstanding.add(future)
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._outstanding.discard(future)

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Runs a coroutine on the loop and waits for it. Ctrl-C in the waiting thread cancels it.

        Raises `RuntimeError` after closing, when the loop ends meanwhile, and from the loop's own
        thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("SyncRuntime cannot be called from its own loop; use Runtime there")
        running = Running(self, work)
        try:
            return self.result(running.begin())
        except BaseException:
            running.cancel()
            raise

    def result(self, future: Future[_T]) -> _T:
        """What the coroutine came to, when it has. A cancel that the closing brought is a `RuntimeError`."""
        try:
            return future.result()
        except CancelledError:
            if self._closing:
                raise RuntimeError(_CLOSED) from None
            raise

    def close(self, last: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Runs `last`, cancels what still runs and ends the thread. May be called twice, and from several
        threads: all return when it is closed. Raises `RuntimeError` from the loop's own thread."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("SyncRuntime cannot be closed from its own loop")
        with self._lock:
            first, self._closing = not self._closing, True
        if not first:
            self._closed.wait()
            return
        try:
            if self._thread.is_alive() and last is not None:
                self._submit(last(), last=True).result()
            if self._thread.is_alive():
                self._submit(_cancel_others(), last=True).result(_CLOSE_TIMEOUT_S)
        finally:
            self._end()

    def _end(self) -> None:
        try:
            if self._thread.is_alive():
                self.loop.call_soon_threadsafe(self.loop.stop)
                self._thread.join(_CLOSE_TIMEOUT_S)
            if not self._thread.is_alive() and self._ended:  # a forked process leaves it to its parent
                self.loop.close()
            self._abandon()
        finally:
            self._closed.set()


class Running(Generic[_T]):
    """A coroutine on its way on a background loop. It is made before it begins, so that Ctrl-C, which may
    come between any two steps, always finds something to cancel."""

    def __init__(self, background: BackgroundLoop, work: Coroutine[Any, Any, _T]) -> None:
        self._background = background
        self._work = work
        self._task: asyncio.Task[Any] | None = None
        self._cancelled = False

    def begin(self) -> Future[_T]:
        """Begins it. Raises `RuntimeError` after the loop was closed."""
        try:
            return self._background.submit(self._run())
        except RuntimeError:
            self._work.close()
            raise

    def cancel(self) -> None:
        """Cancels it, from any thread, whether it has begun or not."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing runs any more
            self._background.loop.call_soon_threadsafe(self._cancel)

    async def _run(self) -> _T:
        self._task = asyncio.current_task()
        if self._cancelled:
            self._work.close()
            raise asyncio.CancelledError
        return await self._work

    def _cancel(self) -> None:
        self._cancelled = True
        if self._task is not None:
            self._task.cancel()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_CANCEL_TIMEOUT_S)
    loop = asyncio.get_running_loop()
    await loop.shutdown_asyncgens()


class SyncRuntime:
    """A `Runtime` that waits: see there for what each method does and returns.

    with SyncRuntime.open("mead.toml") as runtime:
        print(runtime.submit_turn(runtime.start_session(), "hello").unwrap().text)
    """

    def __init__(self, make: Callable[[], Runtime] = Runtime) -> None:
        """`make` is called on the background loop: `SyncRuntime(lambda: Runtime(slots=…))`."""
        self._background = BackgroundLoop()
        try:
            self._runtime = self._background.call(_enter(make))
        except BaseException:
            self._background.close()
            raise

    @classmethod
    def open(cls, config: str | Path | None = None) -> Self:
        """A runtime for a configuration file; see `Runtime.open`."""
        settings = load(Path(config) if config is not None else None)
        return cls(lambda: Runtime(settings))

    @property
    def runtime(self) -> Runtime:
        """The runtime behind it; its coroutines run on the background loop only."""
        return self._runtime

    def submit(self, call: Callable[[Runtime], Coroutine[Any, Any, _T]]) -> Future[_T]:
        """Begins a coroutine of the runtime's, without waiting for it."""
        return self._background.submit(call(self._runtime))

    def for_owner(self, owner: str) -> Self:
        """The same runtime as another owner sees it."""
        view = object.__new__(type(self))
        view._background = self._background
        view._runtime = self._runtime.for_owner(owner)
        return view

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every turn, closes the connections, and ends the thread. May be called twice, and while other
        threads wait for turns: these end with `shutting_down`; any other call raises `RuntimeError`."""
        self._background.close(self._runtime.aclose)

    def start_session(self, **session: Unpack[SessionKeywords]) -> str:
        return self._background.call(self._runtime.start_session(**session))

    def submit_turn(
        self, session_id: str, text: str, **turn: Unpack[TurnKeywords]
    ) -> Result[Answer, TurnReason]:
        return self._background.call(self._runtime.submit_turn(session_id, text, **turn))

    def stream_turn(
        self, session_id: str, text: str, **turn: Unpack[TurnKeywords]
    ) -> Generator[TurnEvent, None, None]:
        """Yields the turn's events; leaving the loop early cancels the turn."""
        return self._events(lambda: self._runtime.stream_turn(session_id, text, **turn))

    def submit_request(
        self, messages: Sequence[Message], **turn: Unpack[TurnKeywords]
    ) -> Result[Answer, TurnReason]:
        return self._background.call(self._runtime.submit_request(messages, **turn))

    def stream_request(
        self, messages: Sequence[Message], **turn: Unpack[TurnKeywords]
    ) -> Generator[TurnEvent, None, None]:
        """Yields the request's events; leaving the loop early cancels the request."""
        return self._events(lambda: self._runtime.stream_request(messages, **turn))

    def _events(
        self, stream: Callable[[], AsyncGenerator[TurnEvent, None]]
    ) -> Generator[TurnEvent, None, None]:
        queue: SimpleQueue[TurnEvent | Future[None]] = SimpleQueue()

        async def pump() -> None:
            async with contextlib.aclosing(stream()) as events:
                async for event in events:
                    queue.put(event)

        pumping = Running(self._background, pump())
        try:
            pumping.begin().add_done_callback(queue.put)  # also where the loop dies: nobody waits for ever
            while not isinstance(event := queue.get(), Future):
                yield event
            self._background.result(event)
        finally:
            pumping.cancel()

    def cancel_turn(self, session_id: str) -> bool:
        return self._background.call(self._runtime.cancel_turn(session_id))

    def stop_session(self, session_id: str) -> bool:
        return self._background.call(self._runtime.stop_session(session_id))

    def delete_owner(self) -> int:
        return self._background.call(self._runtime.delete_owner())

    def compact(self, session_id: str, **turn: Unpack[TurnKeywords]) -> Result[str, TurnReason]:
        return self._background.call(self._runtime.compact(session_id, **turn))

    def history(self, session_id: str) -> Result[tuple[Turn, ...], NoSuchSession]:
        return self._background.call(self._runtime.history(session_id))

    def sessions(self) -> tuple[str, ...]:
        return self._background.call(self._runtime.sessions())

    def egress(self, session_id: str | None = None) -> tuple[SentRecord, ...]:
        return self._background.call(self._runtime.egress(session_id))

    def explain(
        self, text: str, *, session_id: str | None = None, **turn: Unpack[TurnKeywords]
    ) -> Result[Decision | Refused, TurnReason]:
        return self._background.call(self._runtime.explain(text, session_id=session_id, **turn))

    def explain_request(
        self, messages: Sequence[Message], **turn: Unpack[TurnKeywords]
    ) -> Result[Decision | Refused, TurnReason]:
        return self._background.call(self._runtime.explain_request(messages, **turn))


async def _enter(make: Callable[[], Runtime]) -> Runtime:
    return await make().__aenter__()
