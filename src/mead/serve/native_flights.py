"""The turns of the native API that run in this server, their events as they are sent, and their approvals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import Counter, deque
from collections.abc import AsyncGenerator

import msgspec
from msgspec import Struct

from mead.core.messages import clean_text
from mead.core.reasons import Cancelled, Crashed, InvalidOptions
from mead.core.result import Err
from mead.core.scope import Approval
from mead.core.turns import TurnResult
from mead.serve.errors import Problem
from mead.serve.flights import KEPT_S, MAX_ENDED, Flight
from mead.sessions.events import (
    ApprovalNeeded,
    Delta,
    Finished,
    ToolCalled,
    ToolReturned,
    TurnEvent,
)
from mead.sessions.shapes import (
    ApprovalShape,
    DeltaEvent,
    OutcomeShape,
    StartedEvent,
    ToolCalledEvent,
    ToolReturnedEvent,
)

GRACE_S = 60.0
"""How long a turn goes on whose client has gone, in seconds: so long it may come back."""
END_S = 2.0
"""How long the end of a cancelled turn is waited for, in seconds."""
MAX_RUNNING = 1_000
"""How many turns an owner may have on their way."""
_log = logging.getLogger("mead.serve")


class Happening(Struct, frozen=True):
    """An event as it is sent: its name and its data, and the result that the last one tells of."""

    name: str
    data: bytes
    result: TurnResult | None = None


class Running:
    """A turn on its way, or one that ended not long ago. `runs_alone` says that it goes on without anybody
    who follows it; `fingerprint` stands for what was asked."""

    def __init__(
        self, turn_id: str, owner: str, session_id: str | None, key: str | None, fingerprint: bytes
    ) -> None:
        self.turn_id = turn_id
        self.owner = owner
        self.session_id = session_id
        self.key = key
        self.fingerprint = fingerprint
        self.runs_alone = False
        self.flight: Flight[Happening]

    @property
    def result(self) -> TurnResult | None:
        """What it came to; `None` while it runs."""
        events = self.flight.events
        return events[-1].result if events else None

    async def outcome(self) -> TurnResult:
        """What it comes to. Who stops waiting leaves it to itself, for a while."""
        events = self.flight.follow(grace_s=None if self.runs_alone else GRACE_S)
        try:
            async for event in events:
                if event.result is not None:
                    return event.result
        finally:
            await events.aclose()
        return Err(Cancelled())

    async def wait(self, limit_s: float) -> None:
        """Returns when it is over, or after so many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.flight.wait()

    async def end(self) -> bool:
        """Cancels it. False if it was over."""
        if self.result is not None:
            return False
        self.flight.cancel()
        await self.wait(END_S)
        return True


class _Asked(Struct, frozen=True):
    """An approval that is waited for."""

    owner: str
    shape: ApprovalShape
    event: ApprovalNeeded


class RunningTurns:
    """The turns of one server. What they tell is kept for some minutes after their end."""

    def __init__(self) -> None:
        self._turns: dict[str, Running] = {}
        self._ended: deque[tuple[float, Running]] = deque()
        self._counts: Counter[str] = Counter()
        self._by_key: dict[tuple[str, str | None, str], str] = {}
        self._approvals: dict[str, _Asked] = {}

    def begin(
        self,
        events: AsyncGenerator[TurnEvent, None],
        *,
        owner: str,
        session_id: str | None,
        key: str | None,
        fingerprint: bytes,
    ) -> Running:
        """Begins a turn. Raises `Problem` where its owner has too many on their way."""
        self._sweep()
        if self._counts[owner] >= MAX_RUNNING:
            raise Problem(429, "too_many_turns", f"{MAX_RUNNING:,} turns are on their way", retry_after_s=5)
        running = Running(secrets.token_urlsafe(16), owner, session_id, key, fingerprint)
        running.flight = Flight(self._read(running, events))
        self._counts[owner] += 1
        self._turns[running.turn_id] = running
        if key is not None:
            self._by_key[owner, session_id, key] = running.turn_id
        return running

    def find(self, owner: str, turn_id: str) -> Running | None:
        """The owner's turn of this id."""
        self._sweep()
        running = self._turns.get(turn_id)
        return running if running is not None and running.owner == owner else None

    def keyed(self, owner: str, session_id: str | None, key: str) -> Running | None:
        """The turn under an idempotency key. One that has failed is none: it may be tried again."""
        turn_id = self._by_key.get((owner, session_id, key))
        running = None if turn_id is None else self.find(owner, turn_id)
        return None if running is None or isinstance(running.result, Err) else running

    def approvals(self, owner: str) -> tuple[ApprovalShape, ...]:
        """The owner's tool calls that wait for a person's word, the oldest first."""
        return tuple([asked.shape for asked in self._approvals.values() if asked.owner == owner])

    def answer(self, owner: str, approval_id: str, approval: Approval) -> bool:
        """Gives a person's word. False if nothing of this id waits for it."""
        asked = self._approvals.get(approval_id)
        if asked is None or asked.owner != owner:
            return False
        del self._approvals[approval_id]
        asked.event.answer(approval)
        return True

    async def _read(
        self, running: Running, events: AsyncGenerator[TurnEvent, None]
    ) -> AsyncGenerator[Happening, None]:
        """What is told of a turn, its end in any case."""
        started = StartedEvent(turn_id=running.turn_id, session_id=running.session_id)
        yield Happening("started", msgspec.json.encode(started))
        result: TurnResult | None = None
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    if isinstance(event, Finished):
                        result = event.result
                        break
                    yield self._told(running, event)
        except asyncio.CancelledError:
            result = Err(Cancelled())
        except ValueError as error:  # what the runtime takes no turn for
            result = Err(InvalidOptions(detail=clean_text(str(error))))
        except Exception as error:
            _log.error("a turn raised %s before it began", type(error).__name__)
            result = Err(Crashed(error=type(error).__name__))
        finally:
            self._over(running)
        result = result or Err(Cancelled())
        outcome = OutcomeShape.of(result, running.session_id)
        yield Happening("finished", msgspec.json.encode(outcome), result)

    def _told(self, running: Running, event: TurnEvent) -> Happening:
        match event:
            case Delta(text=text):
                return Happening("delta", msgspec.json.encode(DeltaEvent(text=text)))
            case ToolCalled(name=name, effect=effect):
                called = ToolCalledEvent(name=name, effect=effect)
                return Happening("tool_called", msgspec.json.encode(called))
            case ToolReturned(name=name, is_error=is_error):
                returned = ToolReturnedEvent(name=name, is_error=is_error)
                return Happening("tool_returned", msgspec.json.encode(returned))
            case ApprovalNeeded():
                return Happening("approval_needed", msgspec.json.encode(self._asked(running, event)))
            case Finished(result=result):  # the caller has taken it
                return Happening("finished", b"{}", result)

    def _asked(self, running: Running, event: ApprovalNeeded) -> ApprovalShape:
        shape = ApprovalShape(
            approval_id=secrets.token_urlsafe(16),
            turn_id=running.turn_id,
            session_id=running.session_id,
            request=event.request,
        )
        self._approvals[shape.approval_id] = _Asked(running.owner, shape, event)
        return shape

    def _over(self, running: Running) -> None:
        """From now on the turn is kept for a while."""
        self._counts[running.owner] -= 1
        if not self._counts[running.owner]:
            del self._counts[running.owner]
        if running.turn_id in self._turns:
            self._ended.append((asyncio.get_running_loop().time(), running))
        for approval_id, asked in list(self._approvals.items()):
            if asked.shape.turn_id == running.turn_id:
                del self._approvals[approval_id]

    def _sweep(self) -> None:
        """Forgets the turns that ended some time ago, and the oldest of too many."""
        now = asyncio.get_running_loop().time()
        while self._ended and (len(self._ended) > MAX_ENDED or self._ended[0][0] < now - KEPT_S):
            self._drop(self._ended.popleft()[1])

    def forget(self, owner: str, session_id: str) -> None:
        """Forgets the turns of a session: it was deleted."""
        for running in list(self._turns.values()):
            if running.owner == owner and running.session_id == session_id:
                self._drop(running)
        self._ended = deque([each for each in self._ended if each[1].turn_id in self._turns])

    def _drop(self, running: Running) -> None:
        self._turns.pop(running.turn_id, None)
        if running.key is not None:
            name = (running.owner, running.session_id, running.key)
            if self._by_key.get(name) == running.turn_id:
                del self._by_key[name]
