"""Whatever is done to them in whatever order, the two stores give the same answers."""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mead.core.turns import Label
from mead.core.usage import Usage
from mead.storage import Fenced, Store, StoreError
from mead.storage.memory import MemoryStore
from mead.storage.protocol import (
    Begun,
    Reservation,
    SessionChange,
    Settlement,
    ToolRow,
    TurnMarks,
    UsageGroup,
)
from mead.storage.sqlite import SqliteStore
from mead.testing.stores import answered, call, done, egress, exchange, failed, session, start, tool, want

OFTEN = ["create", "begin", "open a call", "close a call", "start a tool", "finish a tool", "end", "fail"] * 8

Step: TypeAlias = Callable[[Store, dict[str, Begun]], Awaitable[object]]
"""Something done to a store, which knows the turn that was last begun in each session."""


def step_of(seed: int) -> tuple[str, Step]:
    """One step, and its name."""
    pick = random.Random(seed).choice
    name, owner, key = pick("aaabc"), pick(["local"] * 6 + ["other"]), pick([None, None, "k1", "k2"])
    n, index, at, flag = pick([1, 2, 3, 4]), pick([1, 2]), float(pick([1, 2, 3, 4])), pick([True, False])
    data, outcome = pick([None, b"1", b"22"]), pick(["done", "error", "unknown"])
    count, tags = pick([None, 0, 3]), pick([(), ("x",), ("x", "y", "x")])
    row = replace(call(index, session_id=name), owner=owner, tags=tags, opened_at=at)
    label: Label = pick(["shareable", "local_only"])
    prints = pick([None, b"", b"%07d-" % n])
    usage = Usage(input_tokens=count, output_tokens=n)
    used = replace(row, status="closed", usage=usage, cost_usd=None if count is None else n / 4)

    async def begin(store: Store, turns: dict[str, Begun]) -> object:
        outcome = await store.begin_turn(start(name, number=n, key=key, request=str(flag), owner=owner))
        if isinstance(outcome, Begun):
            turns[name] = outcome
        return outcome

    async def end(store: Store, turns: dict[str, Begun]) -> object:
        number = of(turns).number
        ends = done(number, name, state=data, answer=b"answer", told_effects=flag, fingerprints=prints)
        ends = replace(ends, turn=exchange(number, label=label))
        return await store.end_turn(ends, epoch=of(turns).epoch)

    def of(turns: dict[str, Begun]) -> Begun:
        return turns.get(name, Begun(epoch=n, number=n, version=0))

    def a_tool(turns: dict[str, Begun]) -> ToolRow:
        return tool(index, turn=of(turns).number, effect=flag, session_id=name)

    todo: dict[str, Step] = {
        "create": lambda store, _: store.create_session(
            replace(session(name, owner=owner, updated_at=at), state=data),
            [exchange(n, label=label)] if flag else [],
        ),
        "create requests": lambda store, _: store.create_session(
            replace(session(name, owner=owner, updated_at=at), kind="requests")
        ),
        "answer": lambda store, turns: store.end_turn(
            answered(of(turns).number, name, answer=data, fingerprints=b"%07d " % n), epoch=of(turns).epoch
        ),
        "mark": lambda store, _: store.mark_turns(
            [TurnMarks(session_id=name, number=n, fingerprints=b"%07d+" % n, at=at)]
        ),
        "prune": lambda store, _: store.prune_requests(at),
        "get": lambda store, _: store.get_session(owner, name),
        "list": lambda store, _: store.list_sessions(owner, limit=n, before=(at, name) if flag else None),
        "update": lambda store, _: store.update_session(
            owner, name, SessionChange(updated_at=at, title=key, state=data)
        ),
        "delete": lambda store, _: store.delete_session(owner, name),
        "fork": lambda store, _: store.fork(owner, name, new_id=key or "c", at=at, up_to=n if flag else None),
        "rewind": lambda store, _: store.rewind(owner, name, to=n, at=at),
        "begin": begin,
        "open a call": lambda store, turns: store.open_call(
            replace(row, turn=of(turns).number), epoch=of(turns).epoch
        ),
        "close a call": lambda store, turns: store.close_call(
            replace(used, turn=of(turns).number), [Settlement(reservation_id=name, spent=n)]
        ),
        "start a tool": lambda store, turns: store.start_tool(a_tool(turns), epoch=of(turns).epoch),
        "finish a tool": lambda store, turns: store.finish_tool(replace(a_tool(turns), status=outcome)),
        "end": end,
        "fail": lambda store, turns: store.end_turn(
            failed(of(turns).number, name, answer=data), epoch=of(turns).epoch
        ),
        "acknowledge": lambda store, _: store.acknowledge_effects(name, before=n),
        "reserve": lambda store, _: store.reserve([want(name, n, limit=5), want(f"{name}2", n, limit=4)]),
        "release": lambda store, _: store.release([name]),
        "delete the old": lambda store, _: store.delete_older_than(at),
        "delete the owner": lambda store, _: store.delete_owner(owner),
    }
    chosen = pick([*sorted(todo), *OFTEN])
    return f"{chosen} {name}", todo[chosen]


async def told(work: Awaitable[object]) -> object:
    """What came of it: a value, or the kind of exception."""
    try:
        return await work
    except (ValueError, Fenced, StoreError) as error:
        return type(error)


async def everything(store: Store) -> list[object]:
    """All that can be read of a store."""
    groups: tuple[UsageGroup, ...] = ("day", "session", "route", "model", "tag")
    found: list[object] = [await store.usage_rows(), await store.spent("day", 0.0)]
    for owner in ("local", "other"):
        found += [await store.list_sessions(owner), await store.egress(owner)]
        found += [(await store.fingerprints_since(owner))[0], await store.egress_sums(owner)]
        unmarked = await store.unmarked_turns(owner, limit=1000)
        found.append(sorted(unmarked, key=lambda each: (each.session_id, each.turn.number)))
    for name in ("a", "b", "c", "k1", "k2"):
        found += [await store.get_session(owner, name) for owner in ("local", "other")]
        found += [await store.turns_of(name), await store.tools_of(name), await store.untold_effects(name)]
    return [*found, *[await store.usage_sums(group) for group in groups]]


async def compare(sequence: list[tuple[str, Step]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory, sqlite = MemoryStore(), SqliteStore(Path(folder) / "mead.db")
        await sqlite.open()
        try:
            turns: list[dict[str, Begun]] = [{}, {}]
            for name, step in sequence:
                assert await told(step(memory, turns[0])) == await told(step(sqlite, turns[1])), name
            assert await everything(memory) == await everything(sqlite)
            assert await sqlite.check() == ()
        finally:
            await sqlite.aclose()


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(st.lists(st.integers(min_value=0, max_value=2**32), min_size=20, max_size=80))
def test_the_stores_give_the_same_answers(seeds: list[int]) -> None:
    made = ("create a", _create_a)
    asyncio.run(compare([made, *map(step_of, seeds)]))


async def _create_a(store: Store, turns: dict[str, Begun]) -> object:
    store.add_egress(egress(3.0, "a"))
    await store.reserve([Reservation(reservation_id="r", scope="day", window_start=0.0, amount=1, limit=9)])
    await store.create_session(session("a"), [exchange(1)])
    return None
