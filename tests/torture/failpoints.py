"""A store that fails at one of the writes of a turn, and processes that die there.

    python -m torture.failpoints FOLDER

leaves a store and a world in `FOLDER/N-before` and `FOLDER/N-after` for each write N of a turn with a tool.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

from mead.storage import Store, open_store
from torture.life import hand_in
from torture.world import World, runtime

WRITES = (
    "begin_turn",
    "open_call",
    "close_call",
    "start_tool",
    "finish_tool",
    "open_call",
    "end_turn",  # with the end of the last call
)
"""What a turn with one tool call writes, in its order; the first write is number 1."""
When: TypeAlias = Literal["before", "after"]
MARKER, KEY = "turn", "key"
_DIED = 86


class FailingStore:
    """The store, but at its write number `at` (of those in `WRITES`) `fail` is called, before or after it.
    `written` names the writes so far."""

    def __init__(self, store: Store, at: int, when: When, fail: Callable[[], object]) -> None:
        self.written: list[str] = []
        self._store = store
        self._at = at
        self._when = when
        self._fail = fail

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        return self._counted(name, method) if name in WRITES else method

    def _counted(self, name: str, method: Callable[..., Awaitable[object]]) -> Callable[..., Any]:
        async def write(*arguments: Any, **keywords: Any) -> object:
            self.written.append(name)
            fails = len(self.written) == self._at
            if fails and self._when == "before":
                self._fail()
            result = await method(*arguments, **keywords)
            if fails and self._when == "after":
                self._fail()
            return result

        return write


def place(folder: Path, at: int, when: When) -> tuple[str, Path]:
    """The store's URL and the world of a process that died at a write."""
    own = folder / f"{at}-{when}"
    own.mkdir(exist_ok=True)
    return f"sqlite:///{own / 'mead.db'}", own / "world"


async def _die(folder: Path, at: int, when: When) -> None:
    url, path = place(folder, at, when)
    world = World(path, "dying")
    store: Any = FailingStore(open_store(url), at, when, lambda: os._exit(_DIED))
    async with runtime(url, world, random.Random(at), store=store) as running:
        await hand_in(running, world, await running.start_session(), MARKER, KEY)


def main(folder: Path) -> None:
    whens: tuple[When, When] = ("before", "after")
    for at in range(1, len(WRITES) + 1):
        for when in whens:
            child = os.fork()
            if child == 0:
                try:
                    asyncio.run(_die(folder, at, when))
                finally:
                    os._exit(1)  # it was to die before
            _, status = os.waitpid(child, 0)
            if os.waitstatus_to_exitcode(status) != _DIED:
                raise SystemExit(f"the process did not die {when} write {at}, but ended with {status}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
