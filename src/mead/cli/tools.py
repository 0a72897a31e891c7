"""`mead tools`: what a turn would be shown, and why."""

from __future__ import annotations

from pathlib import Path

import click

from mead.cli._hub import hub_settings, start_all, with_hub
from mead.cli._json import write_json
from mead.cli._terminal import safe, say, write
from mead.core.options import TurnOptions
from mead.mcp.connection import Health
from mead.mcp.entries import ToolListing
from mead.mcp.hub import McpHub


@click.command("tools")
@click.option("--all", "show_all", is_flag=True, help="Also the tools that a turn does not see, and why not.")
@click.option(
    "--tools",
    type=click.Choice(["read", "effect"]),
    default="read",
    show_default=True,
    help="For a turn that shows only tools that read, or also those with side effects.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def command(config: Path | None, /, show_all: bool, tools: str, as_json: bool) -> None:
    """List the tools of the MCP servers, their class, and whether a turn sees them."""
    settings = hub_settings(config)
    options = TurnOptions(tools="effect" if tools == "effect" else None)

    async def look(hub: McpHub) -> tuple[tuple[ToolListing, ...], tuple[Health, ...]]:
        await start_all(hub)
        return hub.listing(options), hub.health()

    listed, servers = with_hub(settings, look)
    if as_json:
        shown = [tool for tool in listed if tool.visible or show_all]
        write_json({"ok": True, "tools": shown, "servers": servers})
        return
    for health in servers:
        if health.state != "ready":
            say(f"{health.name}: {health.state}" + (f": {health.why}" if health.why else ""))
        for note in health.notes:
            say(f"{health.name}: {note}")
    for tool in listed:
        if tool.visible or show_all:
            write("\n".join(_lines_of(tool, show_all=show_all)))
    if not listed:
        say("There are no tools: no MCP server is configured, or none has any (docs/tools.md).")
    elif not show_all and (hidden := sum(not tool.visible for tool in listed)):
        say(f"{hidden} more are not shown to such a turn; --all lists them, with the reason.")


def _lines_of(tool: ToolListing, *, show_all: bool) -> list[str]:
    kind = "effect" if tool.effect else "read"
    mark = "✓" if tool.visible else "–"
    described = (tool.description or "").partition("\n")[0]
    lines = [safe(f"{mark} {tool.name:<40} {kind:<7} {described[:100]}")]
    if show_all:
        why = [tool.effect_reason] if tool.visible else [tool.effect_reason, f"hidden: {tool.reason}"]
        lines.append(safe(f"    {'; '.join(why)}"))
    return lines
