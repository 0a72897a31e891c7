"""Servers with a fault, and clients that are connected to them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from mcp import Client
from mcp.types import CallToolResult

from mead.mcp.guard import guarded
from mead.mcp.transports import TransportStreams, Wire
from mead.mcp.transports.stdio import stdio_transport
from mead.testing.mcp import FaultyServer

Streams: TypeAlias = AbstractAsyncContextManager[TransportStreams]


@pytest.fixture
def wire() -> Wire:
    """The facts of the connection under test."""
    return Wire()


@pytest.fixture
def faulty(wire: Wire) -> Callable[..., Streams]:
    """Makes mead's transport to a faulty server: `faulty("plain")`."""

    def make(mode: str, argument: int | str | None = None, **keywords: Any) -> Streams:
        server = FaultyServer(mode, argument)
        keywords = {"env": {}, "cwd": None, "wire": wire, **keywords}
        return stdio_transport(server.command, server.args, **keywords)

    return make


@pytest.fixture
def connect(wire: Wire) -> Callable[..., AbstractAsyncContextManager[Client]]:
    """Connects the SDK's client through the guard: `async with connect(transport) as client`."""

    @asynccontextmanager
    async def connected(
        transport: Streams, *, mode: str = "legacy", **keywords: Any
    ) -> AsyncIterator[Client]:
        async with Client(guarded(transport, wire), mode=mode, cache=None, **keywords) as client:
            yield client

    return connected


@pytest.fixture
def text() -> Callable[[CallToolResult], str]:
    """The one text of a result."""

    def of(result: CallToolResult) -> str:
        [block] = result.content
        return str(block.text)  # type: ignore[union-attr]  # another block fails the test

    return of


@pytest.fixture
def is_alive() -> Callable[[int], bool]:
    """Whether a process runs; one that waits to be reaped by init does not."""

    def alive(pid: int) -> bool:
        try:
            os.kill(pid, 0)
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except (ProcessLookupError, FileNotFoundError):
            return False

    return alive
