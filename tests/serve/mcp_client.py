"""mead's MCP server and the official client, for the tests of one with the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, TextContent

import mead
from mead.serve.endpoint import Server
from mead.serve.mcp_protocol import lowlevel_server
from mead.serve.mcp_tools import McpTools
from mead.serve.tokens import Principal, Scope
from mead.settings import Settings
from mead.storage import open_store
from mead.testing import ProviderRequest, ScriptedProvider
from support import slots, two_models

Era = Literal["legacy", "auto"]
ERAS: tuple[Era, ...] = ("legacy", "auto")
"""The client's mode for 2025-11-25, and for 2026-07-28."""
PATIENCE_S = 20.0


def principal(*scopes: Scope, owner: str = "local", token: str = "a1", **fields: Any) -> Principal:
    """Who may chat, and whatever else is named."""
    return Principal(owner=owner, scopes=frozenset({"chat", *scopes}), token_id=token, **fields)


def kept(
    local: ScriptedProvider | None = None,
    cloud: ScriptedProvider | None = None,
    *,
    tools: Sequence[Callable[..., object]] = (),
    **settings: Any,
) -> mead.Runtime:
    """A runtime with a store."""
    models = slots(*two_models(local, cloud))
    return mead.Runtime(Settings(**settings), slots=models, tools=tools, store=open_store("memory://"))


class Door:
    """The server in this process. Use as `async with door.client(…)`, as often as need be."""

    def __init__(self, runtime: mead.Runtime) -> None:
        self.runtime = runtime
        self.tools = McpTools()
        self.server = Server(runtime, None)

    @asynccontextmanager
    async def client(self, who: Principal | None = None, *, era: Era = "auto") -> AsyncIterator[Client]:
        made = lowlevel_server(self.server, self.tools, who or principal())
        async with Client(made, mode=era, read_timeout_seconds=PATIENCE_S) as client:
            yield client


@asynccontextmanager
async def opened(runtime: mead.Runtime) -> AsyncIterator[Door]:
    """The door of a runtime, which is open meanwhile."""
    async with runtime:
        door = Door(runtime)
        yield door
        await door.tools.aclose()


@asynccontextmanager
async def over_http(url: str, token: str | None = None, *, era: Era = "auto") -> AsyncIterator[Client]:
    """The official client at a server's address."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE_S, trust_env=False) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        async with Client(transport, mode=era, read_timeout_seconds=PATIENCE_S) as client:
            yield client


class Held:
    """A step of a model's script that waits until it is let go; it knows whether it was cancelled."""

    def __init__(self, said: str = "at last") -> None:
        self.begun, self.let_go, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._said = said

    async def __call__(self, request: ProviderRequest) -> str:
        self.begun.set()
        try:
            await self.let_go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self._said


async def soon(event: asyncio.Event) -> None:
    """Waits for an event that is to come."""
    async with asyncio.timeout(PATIENCE_S):
        await event.wait()


def text_of(result: CallToolResult) -> str:
    """The first text of a result."""
    first = result.content[0]
    assert isinstance(first, TextContent)
    return first.text


def data_of(result: CallToolResult) -> dict[str, Any]:
    """The structured output of a result that is no error."""
    assert not result.is_error, text_of(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content


def error_of(result: CallToolResult) -> str:
    """The tag of a result that is an error."""
    assert result.is_error
    assert result.structured_content is None
    assert result.meta is not None
    tag = str(result.meta["mead/error"]["tag"])
    assert text_of(result).startswith(f"{tag}: ")
    return tag
