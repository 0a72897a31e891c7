"""What a turn costs in mead beside a bare aiohttp client, as ratios: both run in turn in the same process
against the same mock server, so that a busy machine slows both.

    scripts/bench [--json] [--rounds N] [--only W1,W3]

CPU is the client process's own, in microseconds. `benchmarks/README.md` says what each workload is.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mock_server import text_of
from sides import SIDES, Side

HERE = Path(__file__).parent
TEXT = "What is the weather like in the town at the end of the line today, and should I take a coat? ({})"
DELTAS = 200


def _check(answer: str, deltas: int) -> None:
    if answer != text_of(deltas):
        raise AssertionError(f"a wrong answer: {answer[:80]!r}")


@contextmanager
def opened_server() -> Iterator[str]:
    server = subprocess.Popen(
        [sys.executable, str(HERE / "mock_server.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.communicate()


async def w1(side: Side, turns: int = 400) -> float:
    """Plain turns one after another, a new session every ten."""

    async def run(count: int) -> None:
        session = None
        for index in range(count):
            if index % 10 == 0:
                session = await side.session()
            _check(await side.turn(session, TEXT.format(index)), 1)

    await run(50)
    return await _cpu_us(run, turns)


async def w1h(side: Side, turns: int = 100) -> float:
    """One turn each on sessions that hold 200 messages."""
    pairs = [(TEXT.format(index), f"answer {index} " + "a" * 90) for index in range(100)]
    sessions = [await side.session(pairs) for _ in range(turns + 10)]

    async def run(count: int) -> None:
        for _ in range(count):
            _check(await side.turn(sessions.pop(), TEXT.format(0)), 1)

    await run(10)
    return await _cpu_us(run, turns)


async def w2(side: Side, sessions: int = 1000, turns: int = 5) -> float:
    """1,000 sessions at once, five turns each, a backend that answers after 50 ms."""

    async def one(count: int) -> None:
        session = await side.session()
        for index in range(count):
            _check(await side.turn(session, TEXT.format(index)), 1)

    async def run(count: int) -> None:
        await asyncio.gather(*[one(turns) for _ in range(count // turns)])

    await run(20 * turns)
    return await _cpu_us(run, sessions * turns)


async def w3(side: Side, streams: int = 30) -> float:
    """Streams of 200 deltas; CPU a delta."""

    async def run(count: int) -> None:
        for _ in range(count // DELTAS):
            session = await side.session()
            _check("".join([delta async for delta in side.stream(session, TEXT.format(0))]), DELTAS)

    await run(3 * DELTAS)
    return await _cpu_us(run, streams * DELTAS)


async def w4(side: Side, turns: int = 200) -> float:
    """The model asks for a tool, a stdio MCP server answers, the model answers; wall time a turn."""

    async def run(count: int) -> None:
        for index in range(count):
            _check(await side.tool_turn(TEXT.format(index)), 1)

    await run(20)
    started = time.perf_counter()
    await run(turns)
    return (time.perf_counter() - started) / turns * 1e6


async def _cpu_us(run: Callable[[int], Awaitable[None]], units: int) -> float:
    gc.collect()
    started = time.process_time()
    await run(units)
    return (time.process_time() - started) / units * 1e6


WORKLOADS: dict[str, tuple[Callable[[Side], Awaitable[float]], str, str]] = {
    "W1": (w1, "l0-n1", "µs CPU a turn"),
    "W1h": (w1h, "l0-n1", "µs CPU a turn"),
    "W2": (w2, "l50-n1", "µs CPU a turn"),
    "W3": (w3, f"l0-n{DELTAS}", "µs CPU a delta"),
    "W4": (w4, "l0-n1", "µs a turn with a tool call"),
}


async def _measure(name: str, base_url: str, rounds: int) -> dict[str, Any]:
    """Runs both sides in turn; the ratio is the median of the rounds' ratios."""
    work, path, unit = WORKLOADS[name]
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    for number in range(rounds):
        # Who goes first changes, so that neither always finds the caches warm.
        for label in list(SIDES) if number % 2 else reversed(list(SIDES)):
            side = SIDES[label]()
            with_tools = name == "W4"
            await (side.open_tools if with_tools else side.open)(f"{base_url}/{path}")
            found[label].append(await work(side))
            await (side.close_tools if with_tools else side.close)()
    ratios = [ours / theirs for ours, theirs in zip(found["mead"], found["floor"], strict=True)]
    return {
        "mead": round(statistics.median(found["mead"]), 1),
        "floor": round(statistics.median(found["floor"]), 1),
        "ratio": round(statistics.median(ratios), 2),
        "unit": unit,
    }


def _measure_memory() -> dict[str, Any]:
    """W5: resident bytes a session of 20 messages, 10,000 of them, each side in a process of its own."""
    found = {}
    for label in SIDES:
        command = [sys.executable, __file__, "--memory-of", label]
        found[label] = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {
        "mead": round(found["mead"]),
        "floor": round(found["floor"]),
        "ratio": round(found["mead"] / found["floor"], 2),
        "unit": "bytes a session of 20 messages",
    }


async def _bytes_a_session(side: Side, sessions: int = 10_000) -> float:
    def pairs(number: int) -> list[tuple[str, str]]:
        return [
            (f"user {number:06d}/{k:02d} " + "u" * 84, f"model {number:06d}/{k:02d} " + "a" * 83)
            for k in range(10)
        ]

    await side.open("http://127.0.0.1:9")
    kept = [await side.session(pairs(sessions + index)) for index in range(20)]
    gc.collect()
    before = _resident_bytes()
    kept += [await side.session(pairs(index)) for index in range(sessions)]
    gc.collect()
    used = (_resident_bytes() - before) / sessions
    await side.close()
    return used


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object, workload → figures")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="W1,W1h,W2,W3,W4,W5", help="the workloads, separated by commas")
    parser.add_argument("--memory-of", choices=list(SIDES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory_of:
        print(asyncio.run(_bytes_a_session(SIDES[arguments.memory_of]())))
        return
    figures: dict[str, dict[str, Any]] = {}
    with opened_server() as base_url:
        for name in arguments.only.split(","):
            if name == "W5":
                figures[name] = _measure_memory()
            else:
                figures[name] = asyncio.run(_measure(name, base_url, arguments.rounds))
            if not arguments.json:
                found = figures[name]
                beside = f"(mead {found['mead']:,}, floor {found['floor']:,} {found['unit']})"
                print(f"{name:<4} {found['ratio']:>5.2f} × floor   {beside}")
    if arguments.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
