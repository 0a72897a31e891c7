"""mead's hub as the client of the official conformance suite: `client.py URL`, told what to do by variables.

The suite starts a server, runs this program, and judges from the server's side. Whatever a scenario needs
goes through the hub and `login`, as a user's does, so that mead's own transport, guard and tokens are tested.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mead.core.options import TurnOptions
from mead.mcp.hub import McpHub
from mead.mcp.oauth import LoginError, login
from mead.settings import McpServerSettings
from mead.settings.values import Secret

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
VERSION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
CONTEXT: Mapping[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
NAME = "conf"
EVERYTHING = TurnOptions(tools="effect")
CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"
LOGINS = 3
"""How often a person would log in before giving up."""


def settings(url: str) -> McpServerSettings:
    """The server of a scenario."""
    secret = CONTEXT.get("client_secret")
    with_login = SCENARIO.startswith("auth/")
    return McpServerSettings(
        name=NAME,
        url=url,
        trusted=True,
        mode="legacy" if VERSION and VERSION <= "2025-11-25" else "auto",
        auth="oauth" if with_login else None,
        client_id=CONTEXT.get("client_id") or (CLIENT_DOCUMENT if with_login else None),
        client_secret=Secret(secret) if secret else None,
        connect_timeout_s=25.0,
        call_timeout_s=25.0,
    )


async def main(url: str) -> int:
    """Does what the scenario asks for, and logs in when it is told to; 0 if all of it was answered."""
    server = settings(url)
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(LOGINS):
            said = await use(server, Path(folder))
            if not said:
                return 0
            print(*said, sep="\n", file=sys.stderr)
            if server.auth is None:
                return 1
            try:
                await login(server, Path(folder), open_url=visit, timeout_s=25.0)
            except LoginError as error:
                print(error, file=sys.stderr)
                return 1
        return int(bool(await use(server, Path(folder))))


def visit(url: str) -> None:
    """What a person's browser does at a server that asks nothing: goes where it is sent."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as page:
        page.read()


async def use(server: McpServerSettings, folder: Path) -> list[str]:
    """Lists the tools and makes the calls of the scenario; what went wrong."""
    async with McpHub([server], folder=folder) as hub:
        hub.start()
        await hub.connection(NAME).settled()
        if hub.connection(NAME).state != "ready":
            return [str(hub.connection(NAME).error)]
        said = []
        for tool, arguments in calls(hub):
            output = await hub.call_tool(await shown_name(hub, tool), arguments, EVERYTHING)
            said += [f"{tool}: {output.content}"] if output.is_error else []
        return said


def calls(hub: McpHub) -> list[tuple[str, dict[str, Any]]]:
    """The calls of the scenario; where it names none, one of each tool."""
    schemas = {one.name: one.input_schema for one in hub.connection(NAME).definitions}
    if SCENARIO == "json-schema-2020-12-preservation":
        return [("json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})]
    if "toolCalls" in CONTEXT:
        return [(one["name"], one.get("arguments", {})) for one in CONTEXT["toolCalls"]]
    return [(name, sample(schema)) for name, schema in schemas.items()]


def sample(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit a schema of the suite's simple kinds."""
    values = {"number": 5, "integer": 5, "string": "text", "boolean": True}
    properties = schema.get("properties", {})
    return {name: values[properties[name].get("type", "string")] for name in schema.get("required", ())}


async def shown_name(hub: McpHub, tool: str) -> str:
    """The name by which a model is shown a tool."""
    prefix = f"{NAME}__{tool}"
    return next((t.name for t in await hub.tools_for(EVERYTHING) if t.name.startswith(prefix)), tool)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
