"""What keeping sessions in a file costs: turns a second with the SQLite store beside the one in memory, and
how long a store with many sessions takes to open.

    scripts/bench-stores [--json] [--sessions 200] [--turns 10] [--kept 100000]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

from bench import TEXT, opened_server
from mock_server import text_of

import mead
from mead.core.conversation import encode_exchange, encode_user
from mead.core.turns import Turn
from mead.providers.http import HttpClient
from mead.providers.openai_chat import OpenAIChat
from mead.storage import open_store
from mead.storage.protocol import SessionRecord, StoredTurn

LATENCY_MS = 200
"""How long the backend takes to answer: a fast model."""
ROUNDS = 3


async def _turns_a_second(
    base_url: str, store_url: str, sessions: int, turns: int, latency_ms: int = LATENCY_MS
) -> float:
    provider = OpenAIChat(HttpClient(f"{base_url}/l{latency_ms}-n1/v1", slot="local"))
    slot = mead.Slot(provider, mead.Options(model="mock"))
    async with mead.Runtime(slots=mead.Slots(local=slot), store=open_store(store_url)) as runtime:

        async def one(count: int) -> None:
            session_id = await runtime.start_session()
            for index in range(count):
                result = await runtime.submit_turn(session_id, TEXT.format(index), route="local")
                assert result.unwrap().text == text_of(1)

        await asyncio.gather(*[one(1) for _ in range(sessions)])
        started = time.perf_counter()
        await asyncio.gather(*[one(turns) for _ in range(sessions)])
        return sessions * turns / (time.perf_counter() - started)


async def _fill(url: str, kept: int) -> None:
    store = open_store(url)
    await store.open()
    turn = StoredTurn.of(
        Turn(messages=encode_exchange(encode_user("hello"), "good day"), number=1, label="local_only"),
        finished_at=0.0,
    )
    for begin in range(0, kept, 1000):
        records = [
            SessionRecord(session_id=f"s{n}", owner="local", created_at=n, updated_at=n, turn_timeout_s=30.0)
            for n in range(begin, min(kept, begin + 1000))
        ]
        await asyncio.gather(*[store.create_session(record, [turn]) for record in records])
    await store.aclose()


async def _open_ms(url: str) -> tuple[float, int]:
    """How long opening takes, in milliseconds, and by how many KiB the process grew."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    store = open_store(url)
    await store.open()
    took_ms = (time.perf_counter() - started) * 1e3
    await store.aclose()
    return took_ms, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before


def _measure(folder: Path, sessions: int, turns: int, kept: int) -> dict[str, float]:
    ratios, rates = [], []
    with opened_server() as base_url:
        for number in range(ROUNDS):
            memory = asyncio.run(_turns_a_second(base_url, "memory://", sessions, turns))
            url = f"sqlite:///{folder}/{number}.db"
            rates.append(asyncio.run(_turns_a_second(base_url, url, sessions, turns)))
            ratios.append(rates[-1] / memory)
    many = f"sqlite:///{folder}/many.db"
    asyncio.run(_fill(many, kept))
    took_ms, grew_kib = asyncio.run(_open_ms(many))
    return {
        "sqlite_turns_a_second": round(statistics.median(rates), 1),
        "ratio_to_memory": round(statistics.median(ratios), 2),
        "open_ms": round(took_ms, 1),
        "open_grew_kib": grew_kib,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--kept", type=int, default=100_000)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = _measure(Path(folder), wanted.sessions, wanted.turns, wanted.kept)
    if wanted.json:
        print(json.dumps(found))
        return
    rate, ratio = found["sqlite_turns_a_second"], found["ratio_to_memory"]
    print(f"{rate} turns a second with SQLite, {ratio} of memory's")
    print(f"{wanted.kept:,} sessions open in {found['open_ms']} ms and {found['open_grew_kib']} KiB")


if __name__ == "__main__":
    main()
