"""`mead mcp`: the MCP servers, how they are, and a person's word about them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from mead.cli._hub import check_name, hub_settings, start_all, with_hub
from mead.cli._json import write_json
from mead.cli._terminal import TURN_FAILED, fail_usage, is_terminal, safe, say, write
from mead.mcp.connection import Connection, Health
from mead.mcp.hub import McpHub


@click.group("mcp")
def command() -> None:
    """Look at the MCP servers, approve their changes, log in to them."""


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def list_command(config: Path | None, /, as_json: bool) -> None:
    """Start every server and say how it is."""
    settings = hub_settings(config)

    async def look(hub: McpHub) -> tuple[Health, ...]:
        await start_all(hub)
        return hub.health()

    servers = with_hub(settings, look)
    all_well = all(server.state in ("ready", "disabled") for server in servers)
    if as_json:
        write_json({"ok": all_well, "servers": servers})
    elif servers:
        write(safe("\n".join([_line_of(server) for server in servers])))
    else:
        say("No MCP server is configured (docs/tools.md).")
    sys.exit(0 if all_well else TURN_FAILED)


def _line_of(server: Health) -> str:
    said = server.why
    if server.state == "ready":
        said = f"{server.tools} tools, protocol {server.protocol}"
    return f"{server.name:<24} {server.state:<14} {said}".rstrip()


@command.command("approve")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask: for scripts that have looked already.")
@click.pass_obj
def approve_command(config: Path | None, /, name: str, yes: bool) -> None:
    """Show what has changed on a server since it was approved, and take it as right."""
    settings = hub_settings(config)
    check_name(settings, name)

    async def approve(hub: McpHub) -> bool:
        connection = hub.connection(name)
        lines = hub.pins.start_lines(connection.server)
        if connection.state == "changed" and not _approve_start(connection, lines, yes=yes):
            return False
        connection.start()
        await connection.settled()
        if connection.state != "ready":
            fail_usage(f"{name} cannot be looked at: {connection.state}: {connection.health().why}")
        if not connection.changes:
            say(f"{name} is as it was approved: {len(connection.definitions)} tools.")
            return True
        for change in connection.changes:
            for line in change.lines():
                say(line)
        if not yes and not _confirm(f"Take these {len(connection.changes)} changes as right?"):
            return False
        connection.approve()
        say(f"{name} is approved as it is now.")
        return True

    if not with_hub(settings, approve):
        say("Nothing was approved.")
        sys.exit(TURN_FAILED)


def _approve_start(connection: Connection, lines: Sequence[str], *, yes: bool) -> bool:
    """Asks about what starts a server, before anything is started: `lines` compare it with what it was."""
    say(f"{connection.name} would now be started as:")
    for line in lines:
        say("\n".join([f"  {part}" for part in line.splitlines()]))
    if not yes and not _confirm("Is that right?"):
        return False
    connection.approve()
    return True


def _confirm(question: str) -> bool:
    if not is_terminal(sys.stdin):
        fail_usage("this needs a person's word: run it at a terminal, or with --yes once you have looked")
    return click.confirm(safe(question), err=True)


@command.command("login")
@click.argument("name")
@click.pass_obj
def login_command(config: Path | None, /, name: str) -> None:
    """Log in to a server that asks for it, in the browser."""
    settings = hub_settings(config)
    check_name(settings, name)
    server = next(server for server in settings.mcp.servers if server.name == name)
    if server.url is None or server.auth != "oauth":
        fail_usage(f'{name} needs no login: only a server with a url and auth = "oauth" does')
    from mead.mcp.oauth import LoginError, login

    try:
        asyncio.run(login(server, settings.data_folder / "mcp", open_url=_open_browser))
    except LoginError as error:
        say(f"mead: {error}")
        sys.exit(TURN_FAILED)
    except KeyboardInterrupt:
        say("mead: broken off; nothing was kept")
        sys.exit(TURN_FAILED)
    say(f"Logged in to {name}.")


def _open_browser(url: str) -> None:
    say(f"Opening the browser. If nothing opens, go to:\n{url}")
    click.launch(url)
