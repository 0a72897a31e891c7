"""How whoever submitted a turn waits for it: for its result, or for its events as they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from mead.core.turns import TurnResult
from mead.sessions.events import Finished, TurnEvent
from mead.sessions.run import TurnRun


class Stream:
    """The events of a streamed turn between the turn's task and the reader. The reader takes what is there in
    one go and waits only when there is nothing."""

    __slots__ = ("_waiter", "events")

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: TurnEvent) -> None:
        self.events.append(event)
        self.wake()

    def wake(self, _: object = None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def take(self) -> list[TurnEvent]:
        events, self.events = self.events, []
        return events

    async def wait(self) -> None:
        if not self.events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


async def wait_for(run: TurnRun) -> TurnResult:
    """The turn's result. Cancelling the last one who waits for it cancels the turn."""
    run.waiting += 1
    try:
        return await asyncio.shield(run.result)
    except asyncio.CancelledError:
        run.waiting -= 1
        if run.waiting == 0:  # whoever repeats a turn under its key may still wait for it
            run.end("cancelled")
        raise


async def read_events(run: TurnRun, stream: Stream) -> AsyncGenerator[TurnEvent, None]:
    """The turn's events, last of all `Finished`. Leaving the loop early cancels the turn, unless somebody
    else waits for it too."""
    run.waiting += 1
    run.result.add_done_callback(stream.wake)
    try:
        while not run.result.done() or stream.events:
            for event in stream.take():
                yield event
            if not run.result.done():
                await stream.wait()
        yield Finished(run.result.result())
    finally:
        run.waiting -= 1
        if run.waiting == 0:
            run.end("cancelled")
