"""Holds a store against the world: was anything lost, done twice, or left out of the books?"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

import mead
from mead.core.conversation import encode_user
from mead.core.messages import Tool
from mead.core.options import TurnOptions
from mead.core.result import Ok
from mead.core.turns import Turn, conversation
from mead.mcp.hub import ToolHub
from mead.providers.protocol import can_converse
from mead.storage import Store
from mead.storage.protocol import CallRow, StoredTurn, ToolRow, UsageFilter
from mead.testing.providers import Answers
from providers.formats import FORMATS, OPTIONS, Replay, adapter
from torture.world import Line, World, answer, read_world, runtime, take_turn

LAST_TURN_S = 20.0
"""How long the turn may take that shows that a session is not stuck."""
_EVERYTHING = 10_000_000


class Verdict(Struct, frozen=True, kw_only=True):
    """What happened, and what was wrong with it: all but the upper part should be empty. Turns are named by
    their markers."""

    turns_submitted: int
    turns_repeated: int
    turns_acknowledged: int
    provider_calls: int
    tools_run: int
    tools_of_unknown_outcome: int

    tools_run_twice: tuple[str, ...] = ()
    tools_not_in_the_journal: tuple[str, ...] = ()
    calls_not_in_the_ledger: tuple[str, ...] = ()
    rows_left_open: tuple[str, ...] = ()
    turns_lost: tuple[str, ...] = ()
    turns_in_the_history_twice: tuple[str, ...] = ()
    answers_without_their_tool: tuple[str, ...] = ()
    turns_failed: tuple[str, ...] = ()
    effects_untold: tuple[str, ...] = ()
    stuck_sessions: tuple[str, ...] = ()
    malformed_histories: tuple[str, ...] = ()
    faults_of_the_store: tuple[str, ...] = ()


HAPPENED = Verdict.__struct_fields__[:6]
FAULTS = Verdict.__struct_fields__[6:]


def faults_of(verdict: Verdict) -> dict[str, tuple[str, ...]]:
    """What was wrong, by its kind; empty if nothing was."""
    return {name: found for name in FAULTS if (found := getattr(verdict, name))}


async def judge(url: str, path: Path, session_ids: Sequence[str]) -> Verdict:
    """Opens the store, has every session take one more turn, and compares."""
    lines = read_world(path)
    aside = path.with_name(path.name + "-judge")
    world = World(aside, "judge")
    try:
        async with runtime(url, world, random.Random(0)) as running:
            assert running.store is not None
            stuck = [
                f"{session_id}: {why}"
                for session_id in session_ids
                if (why := await _why_stuck(running, session_id)) is not None
            ]
            books = await _read_books(running.store, session_ids)
            return msgspec.structs.replace(
                compare(lines, books),
                stuck_sessions=tuple(stuck),
                malformed_histories=await _malformed(books),
            )
    finally:
        world.close()
        aside.unlink()


async def _why_stuck(running: mead.Runtime, session_id: str) -> str | None:
    """Takes a turn in the session; why it could not, or `None`."""
    try:
        async with asyncio.timeout(LAST_TURN_S):
            result = await take_turn(running, session_id, "last")
    except TimeoutError:
        return "no answer"
    return None if isinstance(result, Ok) else str(result.reason)


class Books(Struct, frozen=True, kw_only=True):
    """What the store says of some sessions."""

    calls: list[CallRow]
    tools: list[ToolRow]
    untold: list[ToolRow]
    histories: dict[str, tuple[StoredTurn, ...]]
    faults: tuple[str, ...]


async def _read_books(store: Store, session_ids: Sequence[str]) -> Books:
    return Books(
        calls=[
            row
            for session_id in session_ids
            for row in await store.usage_rows(UsageFilter(session_id=session_id), limit=_EVERYTHING)
        ],
        tools=[row for session_id in session_ids for row in await store.tools_of(session_id)],
        untold=[row for session_id in session_ids for row in await store.untold_effects(session_id)],
        histories={session_id: await store.turns_of(session_id) for session_id in session_ids},
        faults=await store.check(),
    )


def compare(world: Sequence[Line], books: Books) -> Verdict:
    """The verdict, as far as it follows from what was written down."""
    submitted, repeated, made, run, acknowledged, failed = [
        [line for line in world if line.deed == deed]
        for deed in ("submit", "repeat", "call", "tool", "ack", "fail")
    ]
    entered = {(row.session_id, tag, str(row.number)) for row in books.calls for tag in row.tags}
    runs = Counter([line.marker for line in run])
    answered = _answered(books)
    return Verdict(
        turns_submitted=len(submitted),
        turns_repeated=len(repeated),
        turns_acknowledged=len(acknowledged),
        provider_calls=len(made),
        tools_run=len(run),
        tools_of_unknown_outcome=sum([row.status == "unknown" for row in books.tools]),
        tools_run_twice=tuple([marker for marker, times in runs.items() if times > 1]),
        tools_not_in_the_journal=_not_in_the_journal(run, books),
        calls_not_in_the_ledger=tuple(
            [
                f"{line.marker} call {line.detail}"
                for line in made
                if (line.session_id, line.marker, line.detail) not in entered
            ]
        ),
        rows_left_open=_left_open(books),
        turns_lost=_markers([line for line in acknowledged if answered[line.session_id, line.marker] == 0]),
        turns_in_the_history_twice=tuple([marker for (_, marker), times in answered.items() if times > 1]),
        answers_without_their_tool=_markers([line for line in acknowledged if line.marker not in runs]),
        turns_failed=tuple([f"{line.marker}: {line.detail}" for line in failed]),
        effects_untold=tuple([f"{row.session_id}/{row.turn}" for row in books.untold]),
        faults_of_the_store=books.faults,
    )


def _markers(lines: Sequence[Line]) -> tuple[str, ...]:
    return tuple([line.marker for line in lines])


def _answered(books: Books) -> Counter[tuple[str, str]]:
    """How often a session's history has the answer to a marker."""
    return Counter(
        [
            (session_id, marker)
            for session_id, turns in books.histories.items()
            for turn in turns
            for marker in turn.tags
            if answer(marker).encode() in turn.messages
        ]
    )


def _not_in_the_journal(run: Sequence[Line], books: Books) -> tuple[str, ...]:
    """The journal does not know markers; the ledger says which turn is whose."""
    turn_of = {(row.session_id, tag): row.turn for row in books.calls for tag in row.tags}
    journal = {(row.session_id, row.turn) for row in books.tools}
    return _markers(
        [
            line
            for line in run
            if (line.session_id, turn_of.get((line.session_id, line.marker))) not in journal
        ]
    )


def _left_open(books: Books) -> tuple[str, ...]:
    calls = [f"call {row.session_id}/{row.turn}" for row in books.calls if row.status == "open"]
    return (
        *calls,
        *[f"tool {row.session_id}/{row.turn}" for row in books.tools if row.status == "started"],
    )


async def _malformed(books: Books) -> tuple[str, ...]:
    return tuple(
        [
            f"{session_id}: {fault}"
            for session_id, turns in books.histories.items()
            for fault in await faults_on_the_wire([turn.turn() for turn in turns])
        ]
    )


class _Recorder(Replay):
    """Keeps the requests' bodies; at no address."""

    prefix = ""


async def faults_on_the_wire(turns: Sequence[Turn]) -> list[str]:
    """What a server of each wire format would object to, if it were asked something after these turns."""
    found = []
    asked = conversation([*turns, Turn(messages=encode_user("And now?"), label="shareable")])
    for wire in FORMATS:
        replay = _Recorder(200, msgspec.json.encode(wire.whole(Answers(pieces=("ok",)))))
        made = adapter(wire, replay)
        assert can_converse(made)
        (await made.converse(asked, _TOOLS, OPTIONS)).unwrap()
        try:
            wire.checks(replay.bodies[-1])
        except AssertionError as fault:
            found.append(f"{wire.name}: {fault}")
    return found


@mead.tool(effect=True)
async def ring(session_id: str, marker: str) -> str:
    "Rings the bell."
    raise AssertionError("it is only shown")


_TOOLS: Sequence[Tool] = asyncio.run(ToolHub([ring]).tools_for(TurnOptions(tools="effect")))
