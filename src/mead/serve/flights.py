"""Turns on their way whose listeners may go and come back: events are kept until some time after the end.

A client that lost its connection asks again and is told everything from the event on that it has not seen;
one that repeats its request joins the first one. Nothing runs twice.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from typing import Generic, TypeVar

_EventT = TypeVar("_EventT")

KEPT_S = 300.0
"""How long the events of a flight are kept after its end, in seconds."""
MAX_ENDED = 1_000
"""How many ended flights are kept, more or less; the oldest go first."""
_SWEEP_S = 1.0


class Flight(Generic[_EventT]):
    """A stream of events that is read into memory by a task of its own."""

    def __init__(self, source: AsyncGenerator[_EventT, None]) -> None:
        self.events: list[_EventT] = []
        self.is_over = False
        self.ended_at: float | None = None
        """When it was over, on the event loop's clock."""
        self._error: Exception | None = None
        self._listeners = 0
        self._changed = asyncio.Event()
        self._grace: asyncio.TimerHandle | None = None
        self._task = asyncio.get_running_loop().create_task(self._read(source))
        self._task.add_done_callback(lambda _: self._end())  # also one that was cancelled before it began

    async def follow(self, after: int = 0, *, grace_s: float | None = None) -> AsyncGenerator[_EventT, None]:
        """The events from number `after` on (from 0), as they come, up to the last one.

        With `grace_s`, a flight that nobody follows any more is cancelled after so many seconds; without it
        goes on. Raises what the source has raised.
        """
        self._listeners += 1
        if self._grace is not None:
            self._grace.cancel()
        try:
            while True:
                while after < len(self.events):
                    yield self.events[after]
                    after += 1
                if self.is_over:
                    if self._error is not None:
                        raise self._error
                    return
                await self._changed.wait()
        finally:
            self._listeners -= 1
            if grace_s is not None and not self._listeners and not self.is_over:
                self._grace = asyncio.get_running_loop().call_later(grace_s, self._task.cancel)

    @property
    def is_shared(self) -> bool:
        """Whether more than one follows it now."""
        return self._listeners > 1

    def cancel(self) -> None:
        """Ends the flight."""
        self._task.cancel()

    async def wait(self) -> None:
        """Returns when the flight is over."""
        await asyncio.wait([self._task])

    async def _read(self, source: AsyncGenerator[_EventT, None]) -> None:
        try:
            async for event in source:
                self.events.append(event)
                self._wake()
        except Exception as error:
            self._error = error  # for those who follow
        finally:
            self._end()
            await source.aclose()

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.ended_at = asyncio.get_running_loop().time()
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Flights(Generic[_EventT]):
    """Flights by a key."""

    def __init__(self) -> None:
        self._flights: OrderedDict[str, Flight[_EventT]] = OrderedDict()
        self._next_sweep = 0.0

    def find(self, key: str) -> Flight[_EventT] | None:
        """The flight of this key that runs, or ended not long ago."""
        self._sweep()
        return self._flights.get(key)

    def add(self, key: str, flight: Flight[_EventT]) -> None:
        """Keeps a flight, in place of one that had the key."""
        self._sweep()
        self._flights[key] = flight
        self._flights.move_to_end(key)

    def _sweep(self) -> None:
        """Forgets what is old. All of them are looked at, so not at every call."""
        now = asyncio.get_running_loop().time()
        if now < self._next_sweep and len(self._flights) <= 2 * MAX_ENDED:
            return
        self._next_sweep = now + _SWEEP_S
        ended = [(key, flight.ended_at) for key, flight in self._flights.items() if flight.is_over]
        for place, (key, ended_at) in enumerate(ended):
            if len(ended) - place > MAX_ENDED or (ended_at is not None and ended_at < now - KEPT_S):
                del self._flights[key]
