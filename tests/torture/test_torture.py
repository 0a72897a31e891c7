"""Processes that are killed in the middle of their turns lose nothing, and do nothing twice."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mead
from mead.core.reasons import Crashed
from mead.core.result import Err, Ok
from mead.storage import StoreError, open_store
from torture.failpoints import KEY, MARKER, WRITES, FailingStore, When, place
from torture.judge import FAULTS, faults_of, judge
from torture.life import hand_in
from torture.world import World, read_world, runtime, take_turn

TESTS = Path(__file__).parent.parent


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a module of this folder in a process of its own, which forks others: pytest's has threads."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


@pytest.mark.parametrize("others", [(), ("--second",)], ids=["alone", "with a second process"])
def test_s7_20_kills_lose_nothing_and_run_nothing_twice(others: tuple[str, ...], tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mead.db'}"

    ended = run_module("torture", "--kills", "20", "--store", url, "--json", *others)

    assert ended.returncode in (0, 1), ended.stderr
    told = json.loads(ended.stdout)
    assert told["found"] == {}, told
    assert {told[fault] for fault in FAULTS} == {0}
    assert ended.returncode == 0
    assert told["turns_acknowledged"] > 0
    assert told["tools_run"] > 0


async def test_the_judge_finds_what_is_not_so(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path / 'mead.db'}", tmp_path / "world"
    world = World(path, "liar")
    async with runtime(url, world, random.Random(0)) as running:
        session_id = await running.start_session()
        await hand_in(running, world, session_id, "real", "-")
        other = await running.start_session()
        await running.stop_session(other)
    world.write("tool", session_id, "real")
    world.write("call", session_id, "real", "3")
    world.write("ack", session_id, "dreamt")
    world.write("fail", session_id, "poor", "crashed")
    verdict = await judge(url, path, [session_id, other])
    world.close()

    found = faults_of(verdict)
    stuck = found.pop("stuck_sessions")
    assert [fault.split(":")[0] for fault in stuck] == [other]
    assert found == {
        "tools_run_twice": ("real",),
        "calls_not_in_the_ledger": ("real call 3",),
        "turns_lost": ("dreamt",),
        "answers_without_their_tool": ("dreamt",),
        "turns_failed": ("poor: crashed",),
    }


# Each write of a turn

POINTS = list(enumerate(WRITES, start=1))


@pytest.fixture(scope="module")
def dead(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stores of processes that died at a write of their turn, each."""
    folder = tmp_path_factory.mktemp("dead")
    ended = run_module("torture.failpoints", str(folder))
    assert ended.returncode == 0, ended.stderr
    return folder


async def test_a_turn_with_a_tool_makes_these_writes(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'mead.db'}"
    world = World(tmp_path / "world", "whole")
    store: Any = FailingStore(open_store(url), 0, "before", lambda: None)
    async with runtime(url, world, random.Random(0), store=store) as running:
        await hand_in(running, world, await running.start_session(), MARKER, KEY)
    world.close()

    assert tuple(store.written) == WRITES


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("at, write", POINTS)
async def test_s7_a_process_may_die_at_any_write_of_a_turn(
    at: int, write: str, when: When, dead: Path
) -> None:
    url, path = place(dead, at, when)
    session_id = read_world(path)[0].session_id
    world = World(path, "next")
    async with runtime(url, world, random.Random(at)) as running:
        await hand_in(running, world, session_id, MARKER, KEY, repeats=True)
    world.close()
    verdict = await judge(url, path, [session_id])

    never_begun, is_stored = (at, when) == (1, "before"), (at, when) == (len(WRITES), "after")
    ran = never_begun or at > WRITES.index("start_tool") + 1
    assert faults_of(verdict) == {}
    assert verdict.turns_repeated == 1
    assert verdict.turns_acknowledged == (1 if never_begun or is_stored else 0), "else it was interrupted"
    assert verdict.tools_run == (1 if ran else 0)


@pytest.mark.parametrize("at, write", POINTS)
async def test_s7_a_session_goes_on_after_any_write_that_failed(at: int, write: str, tmp_path: Path) -> None:
    def fail() -> None:
        raise StoreError("disk_full", "the disk is full")

    url, path = f"sqlite:///{tmp_path / 'mead.db'}", tmp_path / "world"
    world = World(path, "failing")
    store: Any = FailingStore(open_store(url), at, "before", fail)
    async with runtime(url, world, random.Random(at), store=store) as running:
        session_id = await running.start_session()
        failed = await take_turn(running, session_id, MARKER)
        history = await running.history(session_id)
        after = await take_turn(running, session_id, "after")
    world.close()
    verdict = await judge(url, path, [session_id])

    assert failed == Err(Crashed(error="StoreError", detail="the disk is full"))
    assert history == Ok(())
    assert isinstance(after, mead.Ok)
    assert faults_of(verdict) == {}
    assert verdict.tools_run == (2 if at > WRITES.index("start_tool") + 1 else 1)
