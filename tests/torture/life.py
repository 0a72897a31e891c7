"""The life of a process that is going to be killed: turns in several sessions at once, until then."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Sequence
from pathlib import Path

import mead
from mead.core.reasons import Interrupted, SessionBusy
from mead.core.result import Ok
from torture.world import Line, World, read_world, runtime, take_turn

BUSY_PAUSE_S = 0.002
"""How long a turn waits that found its session busy in another process."""


async def live(
    url: str, path: Path, name: str, session_ids: Sequence[str], *, progress: int, seed: str
) -> None:
    """Takes turns in these sessions for ever. `name` is the process's own in each of its lives: it goes on
    with new markers, after it has repeated the turns that were cut off and had a key."""
    past = [line for line in read_world(path) if line.process == name]
    world = World(path, name, progress=progress)
    chance = random.Random(seed)
    async with runtime(url, world, chance) as running:
        await asyncio.gather(
            *[
                _live_in(running, world, session_id, f"{name}{place}", past, chance)
                for place, session_id in enumerate(session_ids)
            ]
        )


async def _live_in(
    running: mead.Runtime,
    world: World,
    session_id: str,
    stem: str,
    past: Sequence[Line],
    chance: random.Random,
) -> None:
    mine = [line for line in past if line.session_id == session_id]
    submitted = [line for line in mine if line.deed == "submit"]
    if submitted and submitted[-1].detail != "-" and not _has_ended(submitted[-1], mine):
        await hand_in(running, world, session_id, submitted[-1].marker, submitted[-1].detail, repeats=True)
    for number in itertools.count(len(submitted) + 1):
        marker = f"{stem}.{number}"
        key = f"key-{marker}" if chance.random() < 0.5 else "-"
        await hand_in(running, world, session_id, marker, key)


def _has_ended(submitted: Line, lines: Sequence[Line]) -> bool:
    return any(line.marker == submitted.marker and line.deed in ("ack", "cut", "fail") for line in lines)


async def hand_in(
    running: mead.Runtime, world: World, session_id: str, marker: str, key: str, *, repeats: bool = False
) -> None:
    """Takes a turn, again and again while another process is busy in the session, and writes its end down. A
    `key` of `-` is none."""
    world.write("repeat" if repeats else "submit", session_id, marker, key)
    while True:
        result = await take_turn(running, session_id, marker, key=None if key == "-" else key)
        if isinstance(result, Ok):
            world.write("ack", session_id, marker)
            return
        if not isinstance(result.reason, SessionBusy):
            was_cut = repeats and isinstance(result.reason, Interrupted)
            world.write("cut" if was_cut else "fail", session_id, marker, result.reason.tag)
            return
        await asyncio.sleep(BUSY_PAUSE_S)
