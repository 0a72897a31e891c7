"""A server on the official SDK, for what only the 2026 era does: `sdk_server.py [NAME]`."""

from __future__ import annotations

import sys

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer(sys.argv[1] if len(sys.argv) > 1 else "changer")


@server.tool()
async def change(ctx: Context) -> str:  # type: ignore[type-arg]  # the SDK's own default
    "Adds a tool."
    server.add_tool(after, name="after")
    await ctx.notify_tools_changed()
    return "changed"


@server.tool()
def add(a: int, b: int) -> int:
    "Adds."
    return a + b


def after() -> str:
    "New."
    return "after"


server.run(transport="stdio")
