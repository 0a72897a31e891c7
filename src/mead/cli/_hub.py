"""Opens the hub for the commands that look at tools and servers."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from mead.cli._terminal import fail_usage, say
from mead.mcp.hub import McpHub
from mead.settings import ConfigError, Settings, load
from mead.settings.foreign import ignored_approvals

_T = TypeVar("_T")
NO_SDK = "MCP servers need the extra mcp: pip install 'mead-runtime[mcp]'"


def hub_settings(config: Path | None) -> Settings:
    """The settings of a command about tools. Ends the program with a sentence where they are wrong."""
    try:
        settings = load(config)
    except ConfigError as error:
        fail_usage(str(error))
    for warning in settings.warnings:
        say(f"warning: {warning}")
    if settings.mcp.config is not None:
        for key in ignored_approvals(settings.mcp.config):
            say(f"note: {key} in {settings.mcp.config} is not taken over: mead has a policy of its own")
    if settings.mcp.servers and importlib.util.find_spec("mcp") is None:
        fail_usage(NO_SDK)
    return settings


def with_hub(settings: Settings, work: Callable[[McpHub], Awaitable[_T]]) -> _T:
    """Runs `work` with a hub over the configured servers, which end with it."""

    async def run() -> _T:
        folder = settings.data_folder / "mcp"
        async with McpHub(settings.mcp.servers, settings=settings.mcp, folder=folder) as hub:
            return await work(hub)

    return asyncio.run(run())


async def start_all(hub: McpHub) -> None:
    """Starts every server and waits until each is ready or has said why not."""
    hub.start()
    await asyncio.gather(*[hub.connection(health.name).settled() for health in hub.health()])


def check_name(settings: Settings, name: str) -> None:
    """Ends the program with a sentence if no server has that name."""
    names = [server.name for server in settings.mcp.servers]
    if name not in names:
        known = f"the servers are {', '.join(names)}" if names else "none is configured"
        fail_usage(f"there is no MCP server named {name!r}; {known}")
