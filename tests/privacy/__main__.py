"""Runs random conversations and says whether anything private reached the cloud, or anything else.

scripts/proof [N] [--seed FIRST] [--processes N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import msgspec

from privacy.batch import run_batch
from privacy.knowledge import FAULTS, Outcome
from privacy.plan import make_plan

BATCH = 25
_SHOWN = 20


def prove(first: int, count: int, processes: int) -> Outcome:
    """The conversations of `count` seeds from `first` on."""
    batches = [
        range(start, min(start + BATCH, first + count)) for start in range(first, first + count, BATCH)
    ]
    outcome = Outcome()
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for done in as_completed([pool.submit(run_batch, batch) for batch in batches]):
            outcome.add(done.result())
            if sys.stderr.isatty():
                sys.stderr.write(f"\r{outcome.conversations} of {count} ")
    return outcome


def figures(outcome: Outcome) -> Iterator[tuple[str, int]]:
    """What there is to say in numbers."""
    yield "conversations", outcome.conversations
    yield "turns", outcome.steps["turn"]
    for step in ("compact", "fork", "rewind", "carry", "bring", "restart", "explain"):
        yield f"steps: {step}", outcome.steps[step]
    for end, count in sorted(outcome.turns.items()):
        yield f"turns: {end}", count
    yield "requests to the local model", outcome.local_requests
    yield "requests to the cloud model", outcome.cloud_requests
    yield "canaries planted", outcome.canaries
    yield "canaries that are private", outcome.private
    yield "private ones that the local model was shown", outcome.private_shown
    yield "turns that went on to the cloud model", outcome.escalated
    yield "controls that reached the cloud", outcome.controls_reached
    for name in FAULTS:
        yield name.replace("_", " "), len(getattr(outcome, name))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/proof", description=__doc__.splitlines()[0])
    parser.add_argument("count", nargs="?", type=int, default=2000, metavar="N", help="conversations (2000)")
    parser.add_argument("--seed", type=int, metavar="FIRST", help="the first one's seed, to repeat a run")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--show", action="store_true", help="the plans of the conversations, without a run")
    parser.add_argument(
        "--json", action="store_true", help="the figures and all that was wrong, for a program"
    )
    given = parser.parse_args()
    first = random.SystemRandom().randrange(1_000_000_000) if given.seed is None else given.seed
    if given.show:
        for seed in range(first, first + given.count):
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(make_plan(seed))).decode() + "\n")
        return 0
    started = time.monotonic()
    outcome = prove(first, given.count, given.processes)
    told = {"first seed": first, "took s": round(time.monotonic() - started, 1), **dict(figures(outcome))}
    if given.json:
        sys.stdout.write(json.dumps({**told, "found": outcome.faults}) + "\n")
    else:
        _show(told, outcome)
    return 1 if outcome.faults or not outcome.controls_reached else 0


def _show(told: dict[str, float], outcome: Outcome) -> None:
    for name, figure in told.items():
        sys.stdout.write(f"{name:<44} {figure}\n")
    for name, faults in outcome.faults.items():
        sys.stdout.write(f"\n{name.replace('_', ' ')}:\n")
        sys.stdout.writelines([f"  {fault}\n" for fault in faults[:_SHOWN]])


if __name__ == "__main__":
    sys.exit(main())
