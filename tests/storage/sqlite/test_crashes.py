"""A process that stops before or after any write leaves a store that is whole."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from msgspec.structs import replace

from mead.storage.protocol import Begun, NoSession
from mead.storage.sqlite import SqliteStore
from mead.testing.stores import call, closed, exchange, start, tool


async def test_a_process_that_stops_at_any_step_leaves_whole_turns_only(tmp_path: Path) -> None:
    crasher = Path(__file__).with_name("crasher.py")
    command = [sys.executable, str(crasher), str(tmp_path)]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True, text=True)
    deaths = json.loads(ran.stdout)

    assert len(deaths) > 3 * 8  # before and after each of eight writes, and after its commit
    assert deaths[-1][1][-1] == "done"
    for path, said in deaths:
        await check(SqliteStore(path), said)


async def check(store: SqliteStore, said: list[str]) -> None:
    """Holds the store against what its process had said by the time it died."""
    await store.open()
    try:
        assert await store.check() == ()
        record = await store.get_session("local", "s1")
        if record is None:
            assert said == []
            assert await store.begin_turn(start()) == NoSession()
            return
        turns, calls, tools = await store.turns_of("s1"), await store.usage_rows(), await store.tools_of("s1")
        ended = turns == (exchange(1),)
        if "done" in said:
            assert ended
        assert (turns, record.state) in [((), None), ((exchange(1),), b"2")]
        counted = closed(call(), input_tokens=5)
        if "counted" in said:
            assert calls == (counted,)
            assert await store.spent("day", 0.0) == (7, 0)
        if "called" in said:
            assert calls in ((counted,), (replace(call(), status="unknown"),))
        if "ran" in said:
            assert tools in ((replace(tool(), status="done"),), (replace(tool(), status="unknown"),))
            assert (await store.untold_effects("s1") == ()) == ended
        if "begun" in said and not ended:
            assert [turn.number for turn in await store.interrupted_turns("s1")] == [1]
        assert (await store.spent("day", 0.0))[1] == 0
        assert isinstance(await store.begin_turn(start()), Begun)
    finally:
        await store.aclose()
