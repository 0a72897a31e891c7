"""Hubs over faulty servers, and waiting for what they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from mead import telemetry
from mead.core.options import TurnOptions
from mead.core.turns import ToolOutput
from mead.mcp.connection import State
from mead.mcp.hub import McpHub
from mead.settings import McpServerSettings, McpSettings
from mead.testing.mcp import FaultyServer

EFFECT = TurnOptions(tools="effect")


def faulty(mode: str, argument: str | int | float | None = None, **settings: object) -> McpServerSettings:
    """The settings of a stdio server with one fault, by default named `bad`."""
    server = FaultyServer(mode, argument)
    chosen: dict[str, object] = {"name": "bad", "trusted": True, "connect_timeout_s": 5.0, **settings}
    return McpServerSettings(command=server.command, args=tuple(server.args), **chosen)  # type: ignore[arg-type]  # by name


def plain(name: str = "good", **settings: object) -> McpServerSettings:
    """A server without a fault."""
    return faulty("plain", name=name, **settings)


@asynccontextmanager
async def hub_of(
    *servers: McpServerSettings, folder: Path | None = None, **settings: object
) -> AsyncIterator[McpHub]:
    """A hub whose servers are started and settled; bounded, so that a hang fails a test and not the run."""
    async with asyncio.timeout(60):
        async with McpHub(servers, settings=McpSettings(**settings), folder=folder) as hub:  # type: ignore[arg-type]  # by name
            hub.start()
            await asyncio.gather(*[hub.connection(server.name).settled() for server in servers])
            yield hub


async def call(hub: McpHub, name: str, options: TurnOptions = EFFECT, **arguments: object) -> ToolOutput:
    """A call in a turn that opts in to effects."""
    async with asyncio.timeout(30):
        return await hub.call_tool(name, arguments, options)


async def names(hub: McpHub, options: TurnOptions = EFFECT) -> list[str]:
    """What a turn is shown."""
    return [tool.name for tool in await hub.tools_for(options)]


@contextmanager
def watching() -> Iterator[Callable[[str, State], asyncio.Event]]:
    """Gives a function that makes an event, which is set when a server next enters a state."""
    waiting: list[tuple[str, State, asyncio.Event]] = []

    def hear(event: telemetry.Event) -> None:
        for server, state, reached in waiting:
            if (event.metadata["server"], event.metadata["state"]) == (server, state):
                reached.set()

    def watch(server: str, state: State) -> asyncio.Event:
        reached = asyncio.Event()
        waiting.append((server, state, reached))
        return reached

    detach = telemetry.attach(hear, telemetry.SERVER)
    try:
        yield watch
    finally:
        detach()


async def changed(hub: McpHub, is_so: Callable[[], bool]) -> None:
    """Returns when a change of the hub's servers makes something so."""
    happened = asyncio.Event()
    for health in hub.health():
        connection = hub.connection(health.name)
        before = connection._on_change

        def hear(before: Callable[[], object] = before) -> None:
            before()
            happened.set()

        connection._on_change = hear
    async with asyncio.timeout(20):
        while not is_so():
            happened.clear()
            await happened.wait()
