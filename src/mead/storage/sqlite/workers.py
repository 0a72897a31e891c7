"""A thread with a SQLite connection of its own, and what it is given to do.

An operation is a function of the connection. It runs to its end whether or not somebody still waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from mead.storage.errors import StoreError
from mead.storage.sqlite.faults import store_error

T = TypeVar("T")

BATCH = 256
"""How many operations are committed together at most."""

_log = logging.getLogger("mead.storage")


class Op(Generic[T]):
    """Something to be done on the connection's thread. `value` is what came of it; it is taken back when the
    transaction fails. `scrubs` says that it has deleted what no file may hold any more."""

    __slots__ = ("error", "future", "loop", "run", "scrubs", "value")

    def __init__(self, run: Callable[[sqlite3.Connection], T], *, waits: bool, scrubs: bool = False) -> None:
        self.run = run
        self.scrubs = scrubs
        self.value: T | None = None
        self.error: Exception | None = None
        self.loop = asyncio.get_running_loop() if waits else None
        self.future: asyncio.Future[T] | None = self.loop.create_future() if self.loop else None

    @property
    def answer(self) -> asyncio.Future[T]:
        """What to wait for."""
        assert self.future is not None
        return self.future

    def fail(self, error: Exception) -> None:
        """Takes the value back."""
        self.value, self.error = None, error

    def resolve(self) -> None:
        """Answers who waits, on their loop."""
        if self.answer.done():
            return
        if self.error is not None:
            self.answer.set_exception(self.error)
        else:
            self.answer.set_result(self.value)  # type: ignore[arg-type]  # T may itself be None


class Worker:
    """A thread with a connection of its own, which takes operations in the order they were posted."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self._queue: queue.SimpleQueue[Op[object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._begun: Op[None] | None = None
        self._ended: Op[None] | None = None
        self.db: sqlite3.Connection

    async def start(self) -> None:
        """Starts the thread. Raises what opening the connection raises; the thread is over then."""
        self._begun = Op(lambda _: None, waits=True)
        self._thread.start()
        await asyncio.shield(self._begun.answer)

    def join(self) -> None:
        """Waits for the end of the thread, on another one."""
        if self._thread.is_alive():
            self._thread.join()

    def post(self, op: Op[T]) -> None:
        """Has it done."""
        self._queue.put(op)  # type: ignore[arg-type]  # an Op of anything

    async def stop(self) -> None:
        """Ends the thread, and waits for it."""
        self._ended = Op(lambda _: None, waits=True)
        self.end()
        await asyncio.shield(self._ended.answer)
        self._thread.join()

    def end(self) -> None:
        """Has the thread do what was posted, close the connection, and end."""
        self._queue.put(None)

    def _main(self) -> None:
        assert self._begun is not None
        try:
            self.open()
        except (sqlite3.Error, OSError) as error:
            self._begun.fail(store_error(error, self.path))
        except Exception as error:
            self._begun.fail(error)
        failed = self._begun.error is not None
        _answer([self._begun])
        if failed:
            return
        try:
            while (batch := self._take()) is not None:
                self.handle(batch)
                _answer(batch)
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self.close()
        except (sqlite3.Error, OSError, StoreError) as error:
            _log.error("closing the store failed: %s", error)
        late = list(self._left())
        for op in late:
            op.fail(StoreError("closed", "The store is closed."))
        _answer(late)
        if self._ended is not None:
            _answer([self._ended])

    def _left(self) -> Iterator[Op[object]]:
        """What other threads posted while the store was being closed."""
        with contextlib.suppress(queue.Empty):
            while True:
                if (op := self._queue.get_nowait()) is not None:
                    yield op

    def _take(self) -> list[Op[object]] | None:
        """The operations that wait, at least one; `None` when there will be no more."""
        first = self._first()
        if first is None:
            return None
        batch = [first]
        while len(batch) < BATCH:
            try:
                op = self._queue.get_nowait()
            except queue.Empty:
                break
            if op is None:
                self._queue.put(None)
                break
            batch.append(op)
        return batch

    def _first(self) -> Op[object] | None:
        return self._queue.get()

    def open(self) -> None:
        """Opens the connection."""

    def handle(self, batch: list[Op[object]]) -> None:
        """Does some operations. Raises nothing: what fails goes into the operation."""

    def close(self) -> None:
        """Closes the connection."""


def connect(path: Path, *, timeout_s: float) -> sqlite3.Connection:
    """A connection without Python's own transactions. `timeout_s` is the wait for other programs' locks."""
    db = sqlite3.connect(path, timeout=timeout_s, isolation_level=None)
    db.execute("PRAGMA temp_store=MEMORY")  # no text in temporary files
    db.execute("PRAGMA mmap_size=0")
    return db


def _answer(batch: Iterable[Op[object]] | list[Op[None]]) -> None:
    """Answers those who wait, each on their own loop; one call wakes all of a loop."""
    waiting: dict[asyncio.AbstractEventLoop, list[Op[object]]] = {}
    for op in batch:
        if op.loop is not None:
            waiting.setdefault(op.loop, []).append(op)  # type: ignore[arg-type]  # of anything
    for loop, ops in waiting.items():
        with contextlib.suppress(RuntimeError):  # a loop that is closed: nobody waits any more
            loop.call_soon_threadsafe(_resolve, ops)


def _resolve(ops: list[Op[object]]) -> None:
    for op in ops:
        op.resolve()
