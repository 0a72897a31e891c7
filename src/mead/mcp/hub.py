"""The hub: one place that says which tools a turn sees, and runs them (H1).

`ToolHub` holds Python functions. `McpHub` holds MCP servers too, each behind a `Connection`.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from mead import telemetry
from mead.core.messages import Tool
from mead.core.options import TurnOptions
from mead.core.scope import ApprovalRequest, EgressRecord
from mead.core.turns import ToolOutput
from mead.mcp.calls import CallResult
from mead.mcp.connection import Connection, Health
from mead.mcp.entries import Entry, FunctionEntry, ServerEntry, ToolListing, visible_to
from mead.mcp.functions import function_tool
from mead.mcp.names import unknown_tool
from mead.mcp.pins import Pins
from mead.mcp.policy import Policy, Verdict
from mead.settings import McpServerSettings, McpSettings

if TYPE_CHECKING:
    import httpx2
    from mcp.client import Transport

    from mead.mcp.transports import Wire

TOOLS_WAIT_S = 2.0
"""The longest that `tools_for` waits for servers that have never been seen before."""
NEW_FOR_S = 10.0
"""How long after its beginning a server's first try is waited for; after that it counts as one that hangs."""
_log = logging.getLogger("mead.mcp")


class ToolHub:
    """Tools made of Python functions, under one policy. Each call is checked again when it is made.

    `settings` has the limits, and says what a person is asked about.
    """

    def __init__(
        self,
        functions: Sequence[Callable[..., object]] = (),
        *,
        policy: Policy | None = None,
        settings: McpSettings | None = None,
    ) -> None:
        self.settings = settings or McpSettings()
        self._policy = policy or Policy(allow=self.settings.allow, deny=self.settings.deny)
        self._functions: dict[str, FunctionEntry] = {}
        self._running = asyncio.Semaphore(self.settings.parallel)
        # What a turn sees depends on its choice and owner alone, so each list is made once; an adapter then
        # knows an unchanged list by its identity and does not encode it again.
        # Owners without a server of their own share one, so that there are only so many.
        self._visible: dict[tuple[str | None, str | None], tuple[Tool, ...]] = {}
        self._owners: frozenset[str | None] = frozenset()
        self._by_name: dict[str, Entry] | None = None
        for function in functions:
            self.add(function)

    def add(self, function: Callable[..., object]) -> None:
        """Offers a function marked with `@mead.tool`. Raises `ValueError` for a name that is taken."""
        marked = function_tool(function)
        if marked.tool.name in self._functions:
            raise ValueError(f"there is a tool named {marked.tool.name!r} already")
        self._functions[marked.tool.name] = FunctionEntry(
            marked, policy=Policy(), result_chars=self.settings.result_chars
        )
        self._changed()

    async def aclose(self) -> None:
        """Ends what the hub has started."""

    async def tools_for(self, options: TurnOptions) -> Sequence[Tool]:
        """The tools that the turn may see, in a stable order."""
        return self._visible_tools(options)

    def known_tools(self, options: TurnOptions) -> Sequence[Tool] | None:
        """The same, contacting nothing."""
        return self._visible_tools(options)

    def listing(self, options: TurnOptions) -> tuple[ToolListing, ...]:
        """Every tool, with its class and whether the turn sees it, and why."""
        shown = {tool.name for tool in self._visible_tools(options)}
        listed = []
        for entry in self._entries().values():
            verdict = self._judge(entry, options)
            if verdict.allowed and entry.name not in shown:
                verdict = Verdict(False, f"over the limit of {self.settings.max_tools} tools a turn")
            listed.append(
                ToolListing(
                    name=entry.name,
                    server=entry.server,
                    own_name=entry.own_name,
                    description=entry.tool.description,
                    effect=entry.effect.effect,
                    effect_reason=entry.effect.reason,
                    visible=verdict.allowed,
                    reason=verdict.reason,
                )
            )
        return tuple(listed)

    async def call_tool(self, name: str, input: dict[str, object], options: TurnOptions) -> ToolOutput:
        """Runs one tool, once. A refusal, bad arguments and a tool that raises are outputs for the model."""
        entry = self._entries().get(name)
        if entry is None or not visible_to(entry, options):
            return ToolOutput(unknown_tool(name, self._visible_tools(options)), is_error=True)
        arguments = copy.deepcopy(
            input
        )  # what is judged and approved is what is run, whatever happens to input
        verdict = self._judge(entry, options)
        problem = None
        if verdict.allowed:
            arguments, problem = entry.prepare(arguments)
            verdict = entry.policy.judge_arguments(entry.own_name, arguments)
        _log.debug("%s: %s", name, verdict.reason)
        if not verdict.allowed:
            return ToolOutput(f"{name} may not be called: {verdict.reason}.", is_error=True)
        if problem is not None:
            said = f"The arguments do not fit, so the tool was not run: {problem}"
            return ToolOutput(said, is_error=True)
        refusal = await self._ask_person(entry, arguments, options)
        if refusal is not None:
            return ToolOutput(refusal, is_error=True)
        async with self._running:
            result = await self._run(entry, arguments, options)
        if not entry.trusted and options.taint is not None:
            options.taint.servers.add(entry.server or entry.name)
        return ToolOutput(result.text, result.is_error)

    async def _run(self, entry: Entry, arguments: dict[str, object], options: TurnOptions) -> CallResult:
        """The call between its two entries in the journal."""
        scope, effect = options.scope, entry.effect.effect
        call_id = f"{options.session_id}/{options.turn}/{entry.name}"
        await scope.tool_started(call_id, entry.name, effect=effect)
        if entry.server is not None:
            scope.sent(_egress(entry, arguments, options))
        started = time.perf_counter()
        result = CallResult("The call was broken off.", is_error=True, kind="lost")
        try:
            result = await entry.run(arguments, _time_left_s(options))
        finally:
            if telemetry.listened(telemetry.TOOL_CALL):
                _tell(entry, result, options, time.perf_counter() - started)
            await scope.tool_finished(
                call_id, entry.name, is_error=result.is_error, unknown=result.kind in ("lost", "timeout")
            )
        return result

    async def _ask_person(
        self, entry: Entry, arguments: dict[str, object], options: TurnOptions
    ) -> str | None:
        """Asks for an approval where one is needed; why the call is not made, or `None`."""
        because = self._needs_approval(entry, options)
        if because is None:
            return None
        if self.settings.local_only_calls == "deny" and options.private and not entry.stays_here:
            return f"{entry.name} may not be called: {because}."
        request = ApprovalRequest(
            tool=entry.name, server=entry.server, arguments=copy.deepcopy(arguments), because=because
        )
        if await options.scope.ask_approval(request):
            return None
        return f"{entry.name} was not run: {because}, and no person approved it."

    def _needs_approval(self, entry: Entry, options: TurnOptions) -> str | None:
        """Why a person must approve the call, or `None`."""
        if options.private and not entry.stays_here and self.settings.local_only_calls != "allow":
            return "the turn is local_only and the tool's server may reach the network"
        if not entry.effect.effect:
            return None
        approve = self.settings.approve or ("effect" if options.scope.can_ask else "off")
        if approve == "effect":
            return "it has side effects"
        if self.settings.taint == "approve" and options.taint is not None and options.taint.servers:
            names = ", ".join(sorted(options.taint.servers))
            return f"the turn has seen what {names} said, which is not trusted"
        return None

    def _judge(self, entry: Entry, options: TurnOptions) -> Verdict:
        """May this turn see and call the tool?"""
        if not visible_to(entry, options):
            return Verdict(False, "its server belongs to another owner")
        if entry.held_back:
            return Verdict(False, f"it has changed since it was approved: mead mcp approve {entry.server}")
        verdict = self._policy.names(entry.name)
        if not verdict.allowed:
            return verdict
        return entry.policy.judge(entry.own_name, effect=entry.effect.effect, options=options)

    def _entries(self) -> dict[str, Entry]:
        """Every tool by the name that models use, whoever may see it."""
        if self._by_name is None:
            self._by_name = {entry.name: entry for entry in self._all_entries()}
            self._owners = frozenset([entry.owner for entry in self._by_name.values()])
        return self._by_name

    def _all_entries(self) -> list[Entry]:
        return [*self._functions.values()]

    def _visible_tools(self, options: TurnOptions) -> tuple[Tool, ...]:
        entries = self._entries()
        key = (options.tools, options.owner if options.owner in self._owners else None)
        visible = self._visible.get(key)
        if visible is None:
            allowed = [e.tool for e in entries.values() if self._judge(e, options).allowed]
            visible = tuple(allowed[: self.settings.max_tools])
            if len(visible) < len(allowed):
                _log.warning(
                    "%d tools are over the limit of %d a turn", len(allowed) - len(visible), len(visible)
                )
            self._visible[key] = visible
        return visible

    def _changed(self) -> None:
        self._visible.clear()
        self._by_name = None


class McpHub(ToolHub):
    """MCP servers and Python functions, as one set of tools. Use as `async with`, or call `aclose`.

    `folder` is where pins and tokens are kept; without one they are kept in memory. A server that has been
    seen before is started by the first call of one of its tools; one that is new, by the first turn. `auth`
    replaces the tokens that `mead mcp login` has left.
    """

    def __init__(
        self,
        servers: Sequence[McpServerSettings],
        functions: Sequence[Callable[..., object]] = (),
        *,
        policy: Policy | None = None,
        settings: McpSettings | None = None,
        folder: Path | None = None,
        auth: Callable[[McpServerSettings], httpx2.Auth] | None = None,
    ) -> None:
        super().__init__(functions, policy=policy, settings=settings)
        self._auth = auth
        self.pins = Pins(folder)
        self._folder = folder
        self._connections = {
            server.name: Connection(
                server,
                pins=self.pins,
                open_transport=self._open_transport,
                on_change=self._changed,
                result_chars=self.settings.result_chars,
            )
            for server in servers
        }

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def connection(self, name: str) -> Connection:
        """The connection to a server. Raises `KeyError` for a name that is not configured."""
        return self._connections[name]

    def start(self) -> None:
        """Starts every server that can be started, side by side; does not wait."""
        for connection in self._connections.values():
            connection.start()

    async def aclose(self) -> None:
        """Ends every server, side by side."""
        await asyncio.gather(*[connection.stop() for connection in self._connections.values()])

    async def tools_for(self, options: TurnOptions) -> Sequence[Tool]:
        """The tools that the turn may see. Waits at most two seconds, for the first try of servers that are
        new and that its owner sees; one that is down or hangs costs its own tools and nothing else."""
        if options.tools != "none":
            await self._get_to_know(self._servers_of(options))
        return self._visible_tools(options)

    def known_tools(self, options: TurnOptions) -> Sequence[Tool] | None:
        """The same from memory; `None` while a server's tools are not known yet."""
        if options.tools != "none" and any(not c.is_settled for c in self._servers_of(options)):
            return None
        return self._visible_tools(options)

    def health(self) -> tuple[Health, ...]:
        """How each server is, in the order of the settings."""
        return tuple([connection.health() for connection in self._connections.values()])

    def _servers_of(self, options: TurnOptions) -> list[Connection]:
        return [c for c in self._connections.values() if c.server.owner in (None, options.owner)]

    async def _get_to_know(self, connections: Sequence[Connection]) -> None:
        new = [c for c in connections if not c.is_settled]
        for connection in connections:
            if connection in new or connection.state == "needs_auth":
                connection.start()
        # A server that hangs is not waited for by every turn that comes meanwhile.
        new = [c for c in new if c.begun_s < NEW_FOR_S]
        if not new:
            return
        waits = [asyncio.ensure_future(connection.settled()) for connection in new]
        try:
            await asyncio.wait(waits, timeout=TOOLS_WAIT_S)
        finally:
            for wait in waits:
                wait.cancel()

    def _all_entries(self) -> list[Entry]:
        entries: list[Entry] = super()._all_entries()
        for connection in self._connections.values():
            if connection.state in ("disabled", "misconfigured", "changed", "stopped"):
                continue
            entries += [ServerEntry(connection, definition) for definition in connection.definitions]
        return entries

    def _open_transport(self, server: McpServerSettings, wire: Wire) -> Transport:
        if server.command is not None:
            from mead.mcp.transports.stdio import stdio_transport

            return stdio_transport(server.command, server.args, env=server.env, cwd=server.cwd, wire=wire)
        from mead.mcp.transports.http import http_transport

        assert server.url is not None  # the settings demand one or the other
        auth = None
        if server.auth == "oauth":
            from mead.mcp.oauth import stored_auth

            auth = self._auth(server) if self._auth is not None else stored_auth(server, self._folder)
        return http_transport(server.url, headers=server.headers, auth=auth, wire=wire)


def _time_left_s(options: TurnOptions) -> float | None:
    deadline = options.scope.deadline
    return None if deadline is None else max(0.0, deadline - asyncio.get_running_loop().time())


def _tell(entry: Entry, result: CallResult, options: TurnOptions, duration_s: float) -> None:
    telemetry.emit(
        telemetry.TOOL_CALL,
        {"duration": duration_s},
        {
            "tool": entry.name,
            "server": entry.server,
            "effect": entry.effect.effect,
            "status": "error" if result.is_error else "ok",
            "kind": result.kind,
            "session_id": options.session_id,
            "turn": options.turn or None,
            "owner": options.owner,
        },
    )


def _egress(entry: Entry, arguments: dict[str, object], options: TurnOptions) -> EgressRecord:
    return EgressRecord(
        at=time.time(),
        destination="mcp",
        slot=entry.server or "",
        route=options.route,
        host=entry.where,
        path=entry.own_name,
        bytes_sent=len(msgspec.json.encode(arguments)),
        allowed_because="stays on this machine" if entry.stays_here else "the settings allow it",
    )
