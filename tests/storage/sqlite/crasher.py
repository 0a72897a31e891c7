"""A program for the failpoint test: takes the same turn again and again, and dies one step later each time.

Prints, for each death, the folder of the database and what had been acknowledged or done by then.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from mead.storage.protocol import Reservation, Settlement
from mead.storage.sqlite import SqliteStore
from mead.testing.stores import begun, call, closed, done, session, tool


def die_at(step: int) -> Callable[[str], object]:
    """Kills the process at its step number `step`."""
    steps = iter(range(1, step))

    def count(_: str) -> None:
        if next(steps, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    return count


async def take_a_turn(path: Path, step: int, world: int) -> None:
    """A session, a turn with a call and a tool, and a word to the world after each thing that is done."""

    def tell(what: str) -> None:
        os.write(world, f"{what}\n".encode())

    store = SqliteStore(path, on_step=die_at(step))
    await store.open()
    await store.create_session(session())
    tell("session")
    turn = await begun(store)
    tell("begun")
    budget = Reservation(reservation_id="r", scope="day", window_start=0.0, amount=9, limit=10)
    await store.reserve([budget])
    await store.open_call(call(), epoch=turn.epoch)
    tell("called")
    await store.close_call(closed(call(), input_tokens=5), [Settlement(reservation_id="r", spent=7)])
    tell("counted")
    await store.start_tool(tool(), epoch=turn.epoch)
    tell("ran")
    await store.finish_tool(replace(tool(), status="done"))
    await store.end_turn(done(1, state=b"2"), epoch=turn.epoch)
    tell("done")
    os._exit(0)


def main(folder: Path) -> None:
    deaths: list[tuple[str, list[str]]] = []
    ended = False
    while not ended:
        path = folder / str(len(deaths)) / "mead.db"
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            asyncio.run(take_a_turn(path, len(deaths) + 1, writing))
        os.close(writing)
        with open(reading, encoding="utf-8") as pipe:
            said = pipe.read().split()
        _, status = os.waitpid(child, 0)
        ended = not os.WIFSIGNALED(status)
        deaths.append((str(path), said))
    sys.stdout.write(json.dumps(deaths))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
