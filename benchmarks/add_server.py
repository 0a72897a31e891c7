"""A stdio MCP server with one tool, `add`, on the official SDK: the other end of the tool benchmark."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer

server = MCPServer("bench")


@server.tool()
def add(a: int, b: int) -> int:
    "Adds two integers."
    return a + b


server.run(transport="stdio")
