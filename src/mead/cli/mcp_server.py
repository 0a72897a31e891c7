"""`mead mcp-server`: mead as an MCP server on standard input and output."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from mead.cli._open import command_settings
from mead.cli._store import OWNER, saying_faults, store_url
from mead.cli._terminal import fail_usage, is_terminal, say
from mead.sessions.runtime import Runtime
from mead.settings import ConfigError, Settings
from mead.storage import StoreError, open_store

if TYPE_CHECKING:
    from mead.serve.tokens import Principal, Scope

_SCOPES = ("tools:effect", "private:send", "admin")
_CLIENT = re.compile(r"[A-Za-z0-9._-]{1,50}")


@click.command("mcp-server")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(_SCOPES),
    multiple=True,
    help="What the client may do besides asking; several times if need be.",
)
@click.option(
    "--client",
    default="stdio",
    metavar="NAME",
    help="Who the client is: local_only turns that it asked for are shown to a client of this name alone.",
)
@click.pass_obj
def command(config: Path | None, /, scopes: tuple[str, ...], client: str) -> None:
    """Offer sessions to an MCP client that starts this command."""
    if importlib.util.find_spec("mcp") is None:
        fail_usage("the MCP server needs its extra: pip install 'mead-runtime[mcp]'")
    if _CLIENT.fullmatch(client) is None:
        fail_usage("--client takes letters, digits, '.', '_' and '-', 50 of them at most")
    settings = command_settings(config)
    if is_terminal(sys.stdin):
        say("mead speaks MCP here, to a program; a person wants mead chat. Ctrl-D ends it.")
    with saying_faults():
        asyncio.run(_serve(settings, _principal(cast("Sequence[Scope]", scopes), client)))


def _principal(scopes: Sequence[Scope], client: str) -> Principal:
    from mead.serve.tokens import Principal

    # No token has an id like this one: they are hexadecimal.
    return Principal(owner=OWNER, scopes=frozenset({"chat", *scopes}), token_id=f"client:{client}")


async def _serve(settings: Settings, principal: Principal) -> None:
    from mead.serve.mcp_server import serve_stdio

    try:
        runtime = Runtime(settings, store=open_store(store_url(settings)))
    except (ConfigError, StoreError) as error:
        fail_usage(str(error))
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with runtime:
        serving = asyncio.create_task(serve_stdio(runtime, principal))
        stopping = asyncio.create_task(stopped.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            # A thread is in the middle of reading standard input, and would be waited for.
            await runtime.aclose()
            os._exit(0)
        stopping.cancel()
        await serving
