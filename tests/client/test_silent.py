"""A server that goes silent is not waited for for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import mead
from mead.client import remote
from mead.core.reasons import Timeout
from mead.core.result import Err


@pytest.fixture
async def silent() -> AsyncIterator[str]:
    """The address of a server that reads, and never answers."""
    ended = asyncio.Event()

    async def read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await ended.wait()
        writer.close()

    server = await asyncio.start_server(read, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    ended.set()
    server.close()
    await server.wait_closed()


async def test_a_server_that_goes_silent_is_a_timeout(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MARGIN_S", 0.05)
    async with mead.connect(silent, "x") as runtime:
        results = (
            await runtime.submit_turn("s", "hi", turn_timeout_s=0.05, busy="reject"),
            await runtime.submit_request([mead.Message("user", "hi")], turn_timeout_s=0.05),
            await runtime.compact("s", turn_timeout_s=0.05),
        )

    for result in results:
        assert isinstance(result, Err)
        assert isinstance(result.reason, Timeout)


def test_a_turn_has_its_time_and_that_of_the_questions_in_it() -> None:
    own = remote._limit_s({"turn_timeout_s": 5.0})
    assert own == 5.0 + remote.MARGIN_S
    assert remote._limit_s({"turn_timeout_s": 5.0, "asks": True}) >= own + 300
    assert remote._limit_s({}) > 600
