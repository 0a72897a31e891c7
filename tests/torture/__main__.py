"""Kills processes that take turns, at random moments, and says whether anything was lost or done twice.

scripts/torture [--kills N] [--store URL] [--second] [--seed N] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from mead.storage import open_store
from torture.judge import FAULTS, HAPPENED, Verdict, faults_of, judge
from torture.life import live
from torture.world import World, runtime

SESSIONS = 6
SHARES = {"a": (0, 1, 2, 3), "b": (2, 3, 4, 5)}
"""Which sessions a process takes turns in: two of them belong to both."""
MOST_LINES = 60
"""How much may happen at most between two kills."""
SILENCE_S = 30.0
"""After so long without a deed the processes hang."""


class Torture:
    """The processes, and the pipe that tells when they do something."""

    def __init__(self, url: str, path: Path, session_ids: Sequence[str], seed: int) -> None:
        self._url = url
        self._path = path
        self._session_ids = session_ids
        self._seed = seed
        self._chance = random.Random(seed)
        self._alive: dict[str, int] = {}
        self._lives = 0
        self._reading, self._writing = os.pipe()

    def run(self, kills: int, names: Sequence[str]) -> None:
        """Starts a process for each name, and kills one after the other, which begin anew."""
        try:
            for kill in range(kills):
                for name in names:
                    if name not in self._alive:
                        self._start(name)
                self._wait()
                self._kill(self._chance.choice(names))
                if sys.stderr.isatty():
                    sys.stderr.write(f"\r{kill + 1} of {kills} killed ")
        finally:
            for name in list(self._alive):
                self._kill(name)

    def _start(self, name: str) -> None:
        self._lives += 1
        child = os.fork()
        if child:
            self._alive[name] = child
            return
        try:
            mine = [self._session_ids[place] for place in SHARES[name]]
            seed = f"{self._seed} {name} {self._lives}"
            asyncio.run(live(self._url, self._path, name, mine, progress=self._writing, seed=seed))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)  # it does not end by itself

    def _wait(self) -> None:
        """Until some lines were written and a little longer, so that a kill falls between any two steps; at
        times only that little, so that it falls into the opening of the store."""
        lines = 0 if self._chance.random() < 0.1 else self._chance.randint(1, MOST_LINES)
        while lines > 0:
            if not select.select([self._reading], [], [], SILENCE_S)[0]:
                raise SystemExit(f"nothing has happened for {SILENCE_S:.0f} seconds (seed {self._seed})")
            lines -= len(os.read(self._reading, lines))
        time.sleep(self._chance.random() * 0.005)

    def _kill(self, name: str) -> None:
        child = self._alive.pop(name)
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"a process ended by itself, with status {status} (seed {self._seed})")
        while select.select([self._reading], [], [], 0)[0]:
            os.read(self._reading, 65536)  # what happened before the kill is no progress after it


async def _prepare(url: str) -> list[str]:
    world = World(Path(os.devnull), "parent")
    try:
        async with runtime(url, world, random.Random(0)) as running:
            return [await running.start_session() for _ in range(SESSIONS)]
    finally:
        world.close()


def torture(url: str, path: Path, *, kills: int, seed: int, second: bool = False) -> Verdict:
    """Kills this many processes, two at a time alive if `second`, and judges what is left."""
    path.touch()
    session_ids = asyncio.run(_prepare(url))
    Torture(url, path, session_ids, seed).run(kills, ("a", "b") if second else ("a",))
    return asyncio.run(judge(url, path, session_ids))


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/torture", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kills", type=int, default=100, metavar="N", help="how many processes to kill (100)"
    )
    parser.add_argument(
        "--store", metavar="URL", help="sqlite:////folder/mead.db (a new one that is removed)"
    )
    parser.add_argument("--second", action="store_true", help="two processes take turns on the same store")
    parser.add_argument("--seed", type=int, help="repeats the choices of an earlier run")
    parser.add_argument(
        "--json", action="store_true", help="the figures and all that was wrong, for a program"
    )
    given = parser.parse_args()
    if given.store is not None:
        try:
            open_store(given.store)
        except ValueError as error:
            parser.error(str(error))
        if given.store == "memory://":
            parser.error("memory:// ends with its process; name a store that outlives it")
    seed = random.SystemRandom().randrange(1_000_000) if given.seed is None else given.seed
    with tempfile.TemporaryDirectory() as folder:
        url = given.store or f"sqlite:///{Path(folder) / 'mead.db'}"
        started = time.monotonic()
        verdict = torture(url, Path(folder) / "world", kills=given.kills, seed=seed, second=given.second)
    _show(verdict, given.kills, seed, time.monotonic() - started, as_json=given.json)
    return 1 if faults_of(verdict) else 0


def _show(verdict: Verdict, kills: int, seed: int, took_s: float, *, as_json: bool) -> None:
    figures = {"seed": seed, "kills": kills, "took_s": round(took_s, 1)}
    figures |= {name: getattr(verdict, name) for name in HAPPENED}
    counts = {name: len(getattr(verdict, name)) for name in FAULTS}
    if as_json:
        found = {name: list(faults) for name, faults in faults_of(verdict).items()}
        sys.stdout.write(json.dumps({**figures, **counts, "found": found}) + "\n")
        return
    for name, count in (figures | counts).items():
        sys.stdout.write(f"{name.replace('_', ' '):<28} {count}\n")
    for name, faults in faults_of(verdict).items():
        sys.stdout.write(f"\n{name.replace('_', ' ')}:\n")
        sys.stdout.writelines([f"  {fault}\n" for fault in faults[:20]])


if __name__ == "__main__":
    sys.exit(main())
