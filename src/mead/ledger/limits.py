"""Limits how many calls of a slot run at the same time, and how many begin in a minute.

Calls wait in the order in which they came; where several owners wait, each gets its turn. So nobody waits for
more than one call of every other owner, however many calls those have. The limits are those of one process.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict, deque
from types import TracebackType
from typing import Self

from mead.core.reasons import SlotBusy, Timeout
from mead.core.result import Err, Ok, Result
from mead.settings import SlotSettings

_MINUTE_S = 60.0
_SMOOTHING = 0.2  # how much the newest call counts in the mean duration


class Permit:
    """Leave to make one call. Give it back with `leave` when the call is over, or use it in a `with`."""

    __slots__ = ("_limiter",)

    def __init__(self, limiter: SlotLimiter) -> None:
        self._limiter = limiter

    def leave(self) -> None:
        """The call is over. May be called twice."""
        self._limiter._over(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()


class _Waiting:
    """A call that waits. `place` is resolved with its permit."""

    __slots__ = ("owner", "place")

    def __init__(self, owner: str, place: asyncio.Future[Permit]) -> None:
        self.owner = owner
        self.place = place


class SlotLimiter:
    """The limits of one slot; without any it lets everything through at once.

    `concurrency` is how many calls run at the same time, `requests_per_minute` how many begin within any 60
    seconds, `queue` how many calls of one owner may wait. It belongs to the event loop that it is used on.
    """

    def __init__(
        self,
        *,
        concurrency: int | None = None,
        queue: int | None = None,
        requests_per_minute: int | None = None,
    ) -> None:
        self._concurrency = math.inf if concurrency is None else concurrency
        self._queue = math.inf if queue is None else queue
        self._per_minute = requests_per_minute
        # When the newest calls began: as many as may begin in a minute.
        self._begun: deque[float] = deque(maxlen=requests_per_minute or 0)
        self._waiting: OrderedDict[str, deque[_Waiting]] = OrderedDict()  # the owner whose turn is next first
        self._running: dict[Permit, float] = {}  # since when, the oldest first
        self._mean_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def of(cls, slot: SlotSettings | None) -> Self:
        """The limits that a slot's settings say."""
        if slot is None:
            return cls()
        return cls(
            concurrency=slot.concurrency, queue=slot.queue, requests_per_minute=slot.requests_per_minute
        )

    @property
    def running(self) -> int:
        """How many calls run now."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many calls wait now."""
        return sum([len(calls) for calls in self._waiting.values()])

    async def enter(
        self, *, owner: str = "local", deadline: float | None = None
    ) -> Result[Permit, SlotBusy | Timeout]:
        """Waits until a call may be made. `deadline` is the turn's, on the event loop's clock.

        Fails at once with `SlotBusy` if the owner has as many calls waiting as may wait, and with `Timeout`
        when the deadline comes first. A caller that is cancelled gives its place to the next one.
        """
        loop = asyncio.get_running_loop()
        now = loop.time()
        if not self._waiting and self._is_free(now):
            return Ok(self._admit(now))
        queued = len(self._waiting.get(owner, ()))
        if queued >= self._queue:
            return Err(self._busy(owner, now))
        waiting = _Waiting(owner, loop.create_future())
        self._waiting.setdefault(owner, deque()).append(waiting)
        self._serve()
        return await self._wait(waiting, deadline)

    async def _wait(self, waiting: _Waiting, deadline: float | None) -> Result[Permit, Timeout]:
        try:
            async with asyncio.timeout_at(deadline):
                return Ok(await waiting.place)
        except TimeoutError:
            self._forget(waiting)
            return Err(Timeout(detail="the call waited for its slot until the turn's deadline"))
        except BaseException:
            self._forget(waiting)
            raise

    def _forget(self, waiting: _Waiting) -> None:
        """Takes a call that is not waited for any more out of the queue, or its permit back."""
        if waiting.place.done() and not waiting.place.cancelled():
            waiting.place.result().leave()
            return
        calls = self._waiting.get(waiting.owner)
        if calls is not None and waiting in calls:
            calls.remove(waiting)
            if not calls:
                del self._waiting[waiting.owner]
        self._serve()

    def _is_free(self, now: float) -> bool:
        return len(self._running) < self._concurrency and self._next_begin(now) <= now

    def _next_begin(self, now: float) -> float:
        """When the next call may begin by the limit per minute."""
        if self._per_minute is None or len(self._begun) < self._per_minute:
            return now
        return self._begun[0] + _MINUTE_S

    def _admit(self, now: float) -> Permit:
        permit = Permit(self)
        self._running[permit] = now
        self._begun.append(now)
        return permit

    def _over(self, permit: Permit) -> None:
        if permit not in self._running:
            return
        took_s = asyncio.get_running_loop().time() - self._running.pop(permit)
        self._mean_s = took_s if self._mean_s is None else self._mean_s + _SMOOTHING * (took_s - self._mean_s)
        self._serve()

    def _serve(self) -> None:
        """Lets in whom there is room for, one owner after the other, and comes back when there is more."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._waiting and self._is_free(now):
            owner, calls = next(iter(self._waiting.items()))
            waiting = calls.popleft()
            if not calls:
                del self._waiting[owner]
            if waiting.place.done():
                continue  # its caller was cancelled a moment ago
            if calls:
                self._waiting.move_to_end(owner)
            waiting.place.set_result(self._admit(now))
        if self._waiting and len(self._running) < self._concurrency and self._timer is None:
            self._timer = loop.call_at(self._next_begin(now), self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        self._serve()

    def _busy(self, owner: str, now: float) -> SlotBusy:
        wait_s = self._expected_wait_s(owner, now)
        queued = len(self._waiting.get(owner, ()))
        said = f"the slot's queue is full ({queued} waiting); a place would take about {math.ceil(wait_s)} s"
        return SlotBusy(detail=said, retry_after_s=wait_s)

    def _expected_wait_s(self, owner: str, now: float) -> float:
        """How long one more call of an owner would wait, in seconds, by the calls so far."""
        mine = len(self._waiting.get(owner, ()))
        # It is let in after those of its own, and as many of every other owner as come between.
        others = [min(len(calls), mine + 1) for other, calls in self._waiting.items() if other != owner]
        ahead = mine + sum(others)
        by_rate_s = self._wait_for_rate_s(ahead, now)
        if self._concurrency == math.inf:
            return by_rate_s
        call_s = self._mean_s
        if call_s is None:  # none has ended yet: the oldest tells how long one takes at least
            call_s = max(1.0, now - next(iter(self._running.values()), now))
        return max(by_rate_s, math.ceil((ahead + 1) / self._concurrency) * call_s)

    def _wait_for_rate_s(self, ahead: int, now: float) -> float:
        """When the call after `ahead` others may begin by the limit per minute, in seconds from now."""
        if self._per_minute is None:
            return 0.0
        # Beginnings repeat the pattern of the last minute: each frees its place 60 seconds later.
        free = self._per_minute - len(self._begun)
        if ahead < free:
            return 0.0
        minutes, place = divmod(ahead - free, self._per_minute)
        begun = [*self._begun, *[now] * free]
        return max(0.0, begun[place] + (minutes + 1) * _MINUTE_S - now)
