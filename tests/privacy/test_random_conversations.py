"""Nothing private reaches the cloud, or anything else, in random conversations (R4, R10, R16, T3).

`scripts/proof` runs many more of them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mead.testing.recording import Recorder
from privacy.batch import converse, converse_all
from privacy.mutations import MUTATIONS, the_view_shows_nothing
from privacy.plan import make_plan

TESTS = Path(__file__).parent.parent
FIXED = 20_000
COUNT = 150


async def test_r16_nothing_private_comes_out_of_random_conversations(tmp_path: Path) -> None:
    outcome = await converse_all(range(FIXED, FIXED + COUNT), tmp_path)

    assert outcome.faults == {}
    assert outcome.conversations == COUNT
    assert outcome.controls_reached > COUNT, "what may reach the cloud does, or this proves nothing"
    assert outcome.private_shown > 5 * COUNT, "what is private was there to leak"
    assert {"compact", "fork", "rewind", "carry", "bring", "restart", "explain"} <= set(outcome.steps)
    ends = {end.partition(": ")[2] for end in outcome.turns}
    failed = {"http_status", "transport", "malformed_response", "timeout", "cancelled", "interrupted"}
    assert failed | {"ok", "private_content"} <= ends


async def test_r16_nothing_private_comes_out_of_conversations_that_nobody_ran_before(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000_000)
    outcome = await converse_all(range(seed, seed + 30), tmp_path)

    assert outcome.faults == {}, f"scripts/proof 30 --seed {seed} runs them again"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
async def test_the_proof_finds_a_rule_that_is_broken(
    mutation: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation(monkeypatch)
    elsewhere = Recorder("elsewhere")

    for seed in range(FIXED, FIXED + 300):
        outcome = await converse(make_plan(seed), tmp_path, elsewhere)
        if outcome.leaks:
            return
    pytest.fail("300 conversations did not show it")


async def test_the_proof_notices_when_there_is_nothing_to_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_view_shows_nothing(monkeypatch)

    outcome = await converse_all(range(FIXED, FIXED + 20), tmp_path)

    assert outcome.leaks == []
    assert outcome.controls_missing != []


def test_a_plan_follows_from_its_seed() -> None:
    assert make_plan(5) == make_plan(5)
    assert make_plan(5) != make_plan(6)


def test_the_script_tells_its_figures() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
    command = [sys.executable, "-m", "privacy", "10", "--seed", str(FIXED), "--processes", "1", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)

    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["conversations"] == 10
    assert told["leaks"] == 0
    assert told["controls that reached the cloud"] > 0
