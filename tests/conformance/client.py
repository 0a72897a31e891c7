"""mead's hub as the client of the official conformance suite: `client.py URL`, told what to do by variables.

The suite starts a server, runs this program, and judges from the server's side. Whatever a scenario needs
goes through the hub, so that its own transport, guard and login are what is tested.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from mead.core.options import TurnOptions
from mead.mcp.hub import McpHub
from mead.mcp.oauth import interactive_auth
from mead.settings import McpServerSettings
from mead.settings.values import Secret

SCENARIO = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
VERSION = os.environ.get("MCP_CONFORMANCE_PROTOCOL_VERSION", "")
CONTEXT: Mapping[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
NAME = "conf"
EVERYTHING = TurnOptions(tools="effect")
CLIENT_DOCUMENT = "https://conformance-test.local/client-metadata.json"


class NoRedirect(urllib.request.HTTPRedirectHandler):
    """Lets a redirect be looked at instead of followed."""

    def redirect_request(self, *_: Any) -> None:
        return None


def visit(url: str) -> None:
    """What a person's browser does at a server that asks nothing: goes where it is sent."""
    opener = urllib.request.build_opener(NoRedirect, urllib.request.ProxyHandler({}))
    try:
        opener.open(url, timeout=10)
    except urllib.error.HTTPError as error:
        location = error.headers.get("location")
        if location is None:
            raise
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(location, timeout=10).read()


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
    """Does what the scenario asks for; 0 if the client did its part."""
    server = settings(url)
    async with AsyncExitStack() as stack:
        auth = None
        if server.auth is not None:
            interactive = await stack.enter_async_context(interactive_auth(server, None, open_url=visit))
            auth = lambda _: interactive  # noqa: E731 - one server, one login
        hub = await stack.enter_async_context(McpHub([server], auth=auth))
        hub.start()
        await hub.connection(NAME).settled()
        if hub.connection(NAME).state != "ready":
            print(hub.connection(NAME).error, file=sys.stderr)
            return 1
        return await act(hub)


async def act(hub: McpHub) -> int:
    """The calls of the scenario."""
    definitions = hub.connection(NAME).definitions
    if SCENARIO == "json-schema-2020-12-preservation":
        schema = next(d.input_schema for d in definitions if d.name == "json_schema_2020_12_tool")
        return await call(hub, "json_schema_echo", {"schema": schema})
    if CONTEXT.get("toolCalls"):
        outcomes = [await call(hub, one["name"], one.get("arguments", {})) for one in CONTEXT["toolCalls"]]
        return max(outcomes)
    for definition in definitions:
        await call(hub, definition.name, sample(definition.input_schema))
    return 0


def sample(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments that fit a schema of the suite's simple kinds."""
    values = {"number": 5, "integer": 5, "string": "text", "boolean": True}
    properties = schema.get("properties", {})
    return {name: values[properties[name].get("type", "string")] for name in schema.get("required", ())}


async def call(hub: McpHub, tool: str, arguments: dict[str, Any]) -> int:
    """Calls a tool by its own name; 0 if it answered."""
    name = next(
        (t.name for t in await hub.tools_for(EVERYTHING) if t.name.startswith(f"{NAME}__{tool}")), tool
    )
    output = await hub.call_tool(name, arguments, EVERYTHING)
    if output.is_error:
        print(f"{tool}: {output.content}", file=sys.stderr)
    return int(output.is_error)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
