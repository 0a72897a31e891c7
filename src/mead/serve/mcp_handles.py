"""Turns that MCP clients have asked for: waited for, left running under a handle, cancelled, forgotten."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import TypeAlias

from mead.core.messages import clean_text
from mead.core.reasons import Cancelled, Crashed, InvalidOptions, TurnReason
from mead.core.result import Err
from mead.core.turns import TurnResult
from mead.serve.errors import Problem
from mead.sessions.events import Delta, Finished, ToolCalled, ToolReturned, TurnEvent

KEPT_S = 600.0
"""How long the result of a turn is kept after its end, in seconds."""
MAX_KEPT = 100
"""How many results are kept for one caller; the oldest go first."""
MAX_RUNNING = 100
"""How many turns one caller may have on their way."""
END_S = 2.0
"""How long the end of a cancelled turn is waited for, in seconds."""
PROGRESS_S = 0.5
"""How often a waiting client is told of progress at most, in seconds."""
_log = logging.getLogger("mead.serve")

Tell: TypeAlias = Callable[[int, str], Awaitable[None]]
"""Is told how many things have happened in a turn, and what it is doing."""


class Asked:
    """A turn on its way, or one that ended not long ago. `asker` is who may ask for it; `session_id` is
    `None` where nothing is kept. `result` is what it came to, `None` while it runs."""

    def __init__(self, asker: str, session_id: str | None, events: AsyncGenerator[TurnEvent, None]) -> None:
        self.handle = secrets.token_urlsafe(16)
        self.asker = asker
        self.session_id = session_id
        self.result: TurnResult | None = None
        self.steps = 0
        """How many events there have been."""
        self.doing = "waiting for the model"
        self._characters = 0
        self._task = asyncio.get_running_loop().create_task(self._read(events))
        self._task.add_done_callback(self._over)

    def when_over(self, call: Callable[[Asked], None]) -> None:
        """Calls back when it is over."""
        self._task.add_done_callback(lambda _: call(self))

    async def wait(self, limit_s: float, tell: Tell) -> None:
        """Returns when it is over, or after so many seconds. `tell` hears of what happens meanwhile."""
        loop = asyncio.get_running_loop()
        until, told = loop.time() + limit_s, 0
        while not self._task.done() and loop.time() < until:
            await asyncio.wait((self._task,), timeout=min(PROGRESS_S, until - loop.time()))
            if not self._task.done() and self.steps > told:
                told = self.steps
                with suppress(TimeoutError):  # a client that reads slowly does not make the wait longer
                    async with asyncio.timeout_at(until):
                        await tell(told, self.doing)

    def cancel(self) -> None:
        """Cancels it, without waiting for its end."""
        self._task.cancel()

    async def end(self) -> bool:
        """Cancels it, and waits for its end for a moment. False if it was over."""
        if self.result is not None:
            return False
        self._task.cancel()
        await asyncio.wait((self._task,), timeout=END_S)
        return True

    async def _read(self, events: AsyncGenerator[TurnEvent, None]) -> None:
        async with aclosing(events):
            async for event in events:
                self._take(event)

    def _take(self, event: TurnEvent) -> None:
        self.steps += 1
        match event:
            case Delta(text=text):
                self._characters += len(text)
                self.doing = f"answering: {self._characters:,} characters so far"
            case ToolCalled(name=name):
                self.doing = f"calling the tool {name}"
            case ToolReturned(name=name, is_error=is_error):
                self.doing = f"the tool {name} {'failed' if is_error else 'is done'}"
            case Finished(result=result):
                self.result = result

    def _over(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if self.result is None:
            self.result = Err(_reason_of(error))


def _reason_of(error: BaseException | None) -> TurnReason:
    """The reason of a turn that ended without a result."""
    if error is None:
        return Cancelled()
    if isinstance(error, ValueError):  # what the runtime takes no turn for
        return InvalidOptions(detail=clean_text(str(error)))
    # The exception's message is left out: it may quote the conversation (T3).
    _log.error("a turn raised %s before it began", type(error).__name__)
    return Crashed(error=type(error).__name__)


class Handles:
    """The turns of one server, each of one caller."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}
        self._running: Counter[str] = Counter()
        self._ended: dict[str, deque[Asked]] = {}

    def begin(self, asker: str, session_id: str | None, events: AsyncGenerator[TurnEvent, None]) -> Asked:
        """Begins a turn. Raises `Problem` where its caller has too many on their way."""
        self.check_room(asker)
        asked = Asked(asker, session_id, events)
        self._asked[asked.handle] = asked
        self._running[asker] += 1
        asked.when_over(self._over)
        return asked

    def check_room(self, asker: str) -> None:
        """Raises `Problem` where the caller has too many turns on their way."""
        if self._running[asker] >= MAX_RUNNING:
            raise Problem(429, "too_many_turns", f"{MAX_RUNNING} turns are on their way", retry_after_s=5)

    def find(self, asker: str, handle: str) -> Asked:
        """The caller's turn of this handle. Raises `Problem` if there is none."""
        asked = self._asked.get(handle)
        if asked is None or asked.asker != asker:
            raise Problem(404, "no_such_turn", "there is no such handle, or its turn ended some time ago")
        return asked

    def forget(self, asked: Asked) -> None:
        """Keeps a turn no longer: its result was given."""
        self._asked.pop(asked.handle, None)
        ended = self._ended.get(asked.asker)
        if ended is not None:
            with suppress(ValueError):
                ended.remove(asked)
            if not ended:
                del self._ended[asked.asker]

    async def aclose(self) -> None:
        """Cancels every turn that still runs."""
        running = [asked for asked in self._asked.values() if asked.result is None]
        for asked in running:
            asked.cancel()
        for asked in running:
            await asked.end()
        self._asked.clear()
        self._ended.clear()

    def _over(self, asked: Asked) -> None:
        self._running[asked.asker] -= 1
        if not self._running[asked.asker]:
            del self._running[asked.asker]
        if asked.handle not in self._asked:
            return
        ended = self._ended.setdefault(asked.asker, deque())
        ended.append(asked)
        if len(ended) > MAX_KEPT:
            self.forget(ended[0])
        asyncio.get_running_loop().call_later(KEPT_S, self.forget, asked)
