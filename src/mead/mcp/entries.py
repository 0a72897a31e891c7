"""What the hub can call: one entry a tool, whether it is a Python function or belongs to an MCP server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from mead.core.messages import Tool
from mead.core.options import TurnOptions
from mead.mcp.arguments import ArgumentCheck
from mead.mcp.calls import CallResult
from mead.mcp.connection import Connection
from mead.mcp.functions import FunctionTool
from mead.mcp.names import public_name
from mead.mcp.pins import Definition
from mead.mcp.policy import EffectClass, Policy
from mead.mcp.results import cut

_log = logging.getLogger("mead.mcp")
_BROKEN_OFF = "The call may have been carried out."


class Entry(Protocol):
    """A tool that can be judged and called."""

    name: str
    """What models call it."""
    own_name: str
    """What its server calls it: the policy's rules go by this."""
    tool: Tool
    effect: EffectClass
    policy: Policy
    server: str | None
    trusted: bool
    stays_here: bool
    """Whether a call keeps to this machine."""
    owner: str | None
    held_back: bool
    """Whether it has changed and waits for a person."""

    where: str
    """Where a call goes, for the egress record."""

    def prepare(self, arguments: dict[str, object]) -> tuple[dict[str, object], str | None]:
        """The arguments as they would be sent, and what is wrong with them, if anything is."""

    async def run(self, arguments: Mapping[str, object], timeout_s: float | None) -> CallResult:
        """Calls it with prepared arguments, once. Whatever goes wrong is a result."""


class FunctionEntry:
    """A Python function."""

    def __init__(self, function: FunctionTool, *, policy: Policy, result_chars: int) -> None:
        self.name = self.own_name = function.tool.name
        self.tool = function.tool
        self.policy = policy
        self.effect = EffectClass(function.effect, "declared with @mead.tool")
        self.server: str | None = None
        self.trusted = True
        self.stays_here = True
        self.owner: str | None = None
        self.held_back = False
        self.where = "this process"
        self._function = function
        self._result_chars = result_chars

    def prepare(self, arguments: dict[str, object]) -> tuple[dict[str, object], str | None]:
        try:
            self._function.check(arguments)
        except ValueError as error:
            return arguments, str(error)
        return arguments, None

    async def run(self, arguments: Mapping[str, object], timeout_s: float | None) -> CallResult:
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            text = await self._function.call(arguments)
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # `sys.exit()` in a tool must not end the loop of everybody's turns
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling() > cancels):
                raise
            # Its message is for the model, which sent the arguments; the log holds none of it.
            _log.warning("the tool %s raised %s", self.name, type(error).__name__)
            said = f"The tool failed ({type(error).__name__}: {error}). {_BROKEN_OFF}"
            return CallResult(cut(said, self._result_chars), is_error=True, kind="tool_error")
        return CallResult(cut(text, self._result_chars), is_error=False, kind="ok")


class ServerEntry:
    """A tool of an MCP server."""

    def __init__(self, connection: Connection, definition: Definition) -> None:
        server = connection.server
        self.name = public_name(server.name, definition.name)
        self.own_name = definition.name
        self.server: str | None = server.name
        self.policy = connection.policy
        self.effect = self.policy.classify(definition.name, read_only_hint=definition.read_only)
        self.trusted = server.trusted
        self.stays_here = server.reach == "machine"
        self.owner = server.owner
        self.held_back = definition.name in connection.held_back
        self.where = _host_of(server.url) if server.url is not None else f"stdio:{server.name}"
        described = definition.description or definition.title or ""
        self.tool = Tool(self.name, f"[{server.name}] {described}".rstrip(), definition.input_schema)
        self._connection = connection
        self._check: ArgumentCheck | None = None

    def prepare(self, arguments: dict[str, object]) -> tuple[dict[str, object], str | None]:
        if self._check is None:
            self._check = ArgumentCheck(self.tool.input_schema)
        problem = self._check.problem(arguments)
        if problem is None:
            return arguments, None
        # Models write null for what they leave out.
        given = {name: value for name, value in arguments.items() if value is not None}
        if len(given) < len(arguments) and self._check.problem(given) is None:
            return given, None
        return arguments, problem

    async def run(self, arguments: Mapping[str, object], timeout_s: float | None) -> CallResult:
        limit_s = self._connection.server.call_timeout_s
        if timeout_s is not None:
            limit_s = min(limit_s, timeout_s)
        return await self._connection.call(self.own_name, arguments, timeout_s=limit_s)


class ToolListing(Struct, frozen=True, kw_only=True):
    """A tool as `mead tools` shows it: its class and why, whether a turn sees it and why."""

    name: str
    server: str | None
    own_name: str
    description: str | None
    effect: bool
    effect_reason: str
    visible: bool
    reason: str


def _host_of(url: str) -> str:
    """Host and port of an address; the rest of it may hold a key."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def visible_to(entry: Entry, options: TurnOptions) -> bool:
    """Whether the entry is for this owner at all."""
    return entry.owner is None or entry.owner == options.owner
