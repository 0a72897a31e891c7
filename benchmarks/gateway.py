"""What `mead serve` costs as a gateway: in front of a model server that answers at once.

    scripts/bench-gateway [--json]

Prints requests a second of 32 connections, and the time that one request takes longer than without a gateway,
beside a gateway of the usual make: Starlette on uvicorn with httpx behind it, which passes bytes on and does
nothing else. mead is measured with its sessions in memory, and in a SQLite file as `mead serve` keeps them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
from bench import opened_server

SECONDS, ROUNDS, CONNECTIONS = 2.0, 3, 32
MESSAGES = [
    {"role": role, "content": f"{said} {number} " + said[0] * 120}
    for number in range(4)
    for role, said in (("user", "question"), ("assistant", "answer"))
]
BODY = {"model": "mead-cloud", "messages": [*MESSAGES, {"role": "user", "content": "and now? " + "q" * 120}]}
PATH = "/v1/chat/completions"
FLOOR = """
import sys, httpx, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
client = httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=None))
async def chat(request):
    answer = await client.post(sys.argv[1], content=await request.body())
    return Response(answer.content, answer.status_code, media_type="application/json")
app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[2]), log_level="error", access_log=False)
"""
SETTINGS = """
[router.slots.cloud]
provider = "openai"
model = "mock"
base_url = "{url}"
[storage]
url = "{store}"
"""


@contextmanager
def started(command: Sequence[str], port: int, environ: dict[str, str] | None = None) -> Iterator[str]:
    """A server's process, from its first answer on."""
    process = subprocess.Popen(command, env={**os.environ, **(environ or {})}, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        asyncio.run(_until_up(url, process))
        yield url
    finally:
        process.terminate()
        process.wait(30)


async def _until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    async with aiohttp.ClientSession() as client:
        while process.poll() is None:
            try:
                async with client.post(url + PATH, json=BODY) as answer:
                    if answer.status == 200:
                        return
                    raise SystemExit(f"the gateway answers {answer.status}: {await answer.text()}")
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.05)
    raise SystemExit("the gateway does not start")


async def requests_a_second(url: str) -> float:
    """How many requests a second `CONNECTIONS` connections get answered."""
    count, until = 0, time.perf_counter() + SECONDS

    async def one(client: aiohttp.ClientSession) -> None:
        nonlocal count
        while time.perf_counter() < until:
            await _ask(client, url)
            count += 1

    started_at = time.perf_counter()
    async with _client() as client:
        await asyncio.gather(*[one(client) for _ in range(CONNECTIONS)])
    return count / (time.perf_counter() - started_at)


async def median_ms(url: str) -> float:
    """The median time of a request, one after another, in milliseconds."""
    times = []
    async with _client() as client:
        for _ in range(300):
            begun = time.perf_counter()
            await _ask(client, url)
            times.append(time.perf_counter() - begun)
    return statistics.median(times[50:]) * 1e3


def _client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


async def _ask(client: aiohttp.ClientSession, url: str) -> None:
    async with client.post(url, json=BODY) as answer:
        body = await answer.read()
        assert answer.status == 200, body


def measured(url: str, direct_ms: float) -> dict[str, float]:
    """A gateway's figures: the medians of some rounds."""
    rates = [asyncio.run(requests_a_second(url + PATH)) for _ in range(ROUNDS)]
    added = [asyncio.run(median_ms(url + PATH)) - direct_ms for _ in range(ROUNDS)]
    return {"requests_per_s": statistics.median(rates), "added_ms": statistics.median(added)}


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object, gateway → figures")
    as_json = parser.parse_args().json
    found: dict[str, dict[str, float]] = {}
    with opened_server() as mock, tempfile.TemporaryDirectory() as folder:
        upstream = f"{mock}/l0-n1/v1"
        direct_ms = asyncio.run(median_ms(f"{upstream}/chat/completions"))
        floor = [sys.executable, "-c", FLOOR, f"{upstream}/chat/completions", "4391"]
        with started(floor, 4391) as url:
            found["starlette + httpx"] = measured(url, direct_ms)
        for name, store, port in (
            ("mead, memory", "memory://", 4392),
            ("mead, SQLite", f"sqlite:///{folder}/mead.db", 4393),
        ):
            file = Path(folder) / f"{port}.toml"
            file.write_text(SETTINGS.format(url=upstream, store=store))
            command = [sys.executable, "-m", "mead", "--config", str(file), "serve", "--no-auth"]
            environ = {"MEAD_DATA_FOLDER": str(Path(folder) / str(port))}
            with started([*command, "--port", str(port)], port, environ) as url:
                found[name] = measured(url, direct_ms)
    _print(found, as_json)


def _print(found: dict[str, dict[str, Any]], as_json: bool) -> None:
    floor = found["starlette + httpx"]
    for figures in found.values():
        figures["rate_ratio"] = figures["requests_per_s"] / floor["requests_per_s"]
        figures["added_ratio"] = figures["added_ms"] / floor["added_ms"]
    if as_json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(
            f"{name:<18} {figures['requests_per_s']:7.0f} requests/s ({figures['rate_ratio']:.2f} x), "
            f"{figures['added_ms']:.2f} ms added ({figures['added_ratio']:.2f} x)"
        )


if __name__ == "__main__":
    main()
