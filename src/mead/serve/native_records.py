"""What the native API tells of the server: usage, what left, models, tools, servers, the audit chain; and the
approvals that wait."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from mead.core.options import TurnOptions
from mead.core.scope import Approval
from mead.mcp.connection import Health
from mead.mcp.hub import McpHub, ToolHub
from mead.serve._json import (
    ApprovalsShape,
    AuditCheckShape,
    AuditQuery,
    AuditRowShape,
    AuditShape,
    EgressQuery,
    ModelShape,
    ModelsShape,
    ServerShape,
    ServersShape,
    ToolShape,
    ToolsQuery,
    ToolsShape,
    UsageQuery,
    owner_of,
    query,
    reply,
    store_of,
)
from mead.serve.chat import model_names, route_of
from mead.serve.endpoint import Call
from mead.serve.errors import Problem, invalid
from mead.serve.native_turns import Turns
from mead.sessions.bodies import ApprovalBody
from mead.sessions.sent import EgressReport, egress_report, egress_shape
from mead.sessions.usage import begin_of, usage_rows, usage_shape
from mead.storage.protocol import AuditRow, EgressRow


async def usage(call: Call) -> Response:
    """The ledger, added up."""
    wanted = query(call, UsageQuery)
    if wanted.since is not None and wanted.until is not None and wanted.since > wanted.until:
        raise invalid("since is later than until", param="since")
    report = await usage_rows(
        store_of(call),
        wanted.by,
        since=wanted.since,
        until=wanted.until,
        owner=owner_of(call, wanted.owner),
        session_id=wanted.session_id,
    )
    return reply(usage_shape(report, wanted.since, wanted.until))


async def egress(call: Call) -> Response:
    """What left, and where it went."""
    wanted = query(call, EgressQuery)
    owner, store = owner_of(call, wanted.owner), call.server.runtime.store
    if store is None:
        report = await _remembered(call, wanted)
    else:
        report = await egress_report(
            store,
            owner,
            session_id=wanted.session_id,
            since=None if wanted.since is None else begin_of(wanted.since),
            limit=wanted.limit,
            with_stayed=wanted.all,
        )
    return reply(egress_shape(report, wanted.since))


async def _remembered(call: Call, wanted: EgressQuery) -> EgressReport:
    """What a server without a store remembers of the caller's own turns."""
    sent = await call.runtime.egress(wanted.session_id)
    rows = [
        EgressRow(session_id=each.session_id, turn=each.turn, owner=each.owner, record=each.record)
        for each in sent[-wanted.limit :]
    ]
    return EgressReport(session_id=wanted.session_id, rows=tuple(rows), hosts=())


async def models(call: Call) -> Response:
    """The models that the caller may ask for."""
    found = [(name, *route_of(call, name)) for name in model_names(call)]
    shapes = [ModelShape(name=name, route=route, model=model) for name, route, model in found]
    return reply(ModelsShape(models=tuple(shapes)))


async def tools(call: Call) -> Response:
    """The tools that a turn of the caller would be shown now."""
    wanted = query(call, ToolsQuery)
    if wanted.tools == "effect":
        call.demand("tools:effect")
    options = TurnOptions(tools="effect" if wanted.tools == "effect" else None, owner=call.principal.owner)
    known = call.server.runtime.hub.known_tools(options)
    shapes = [
        ToolShape(name=tool.name, description=tool.description, input_schema=tool.input_schema)
        for tool in known or ()
    ]
    return reply(ToolsShape(known=known is not None, tools=tuple(shapes)))


async def servers(call: Call) -> Response:
    """The MCP servers and their health, and every tool with its class."""
    hub = call.server.runtime.hub
    health = hub.health() if isinstance(hub, McpHub) else ()
    options = TurnOptions(tools="effect", owner=call.principal.owner)
    listed = hub.listing(options) if isinstance(hub, ToolHub) else ()
    return reply(ServersShape(servers=tuple([_server(each) for each in health]), tools=listed))


def _server(health: Health) -> ServerShape:
    # What a server wrote last may quote what it was sent: it is for the person at the machine.
    return ServerShape(
        name=health.name,
        state=health.state,
        since_s=health.since_s,
        error=health.error,
        tools=health.tools,
        restarts=health.restarts,
        notes=health.notes,
    )


async def audit(call: Call) -> Response:
    """Rows of the audit chain."""
    wanted = query(call, AuditQuery)
    rows = await store_of(call).audit_rows(owner=wanted.owner, after=wanted.after, limit=wanted.limit)
    return reply(AuditShape(rows=tuple([_row(row) for row in rows])))


def _row(row: AuditRow) -> AuditRowShape:
    entry = row.entry
    return AuditRowShape(
        number=row.number,
        at=entry.at,
        owner=entry.owner,
        action=entry.action,
        subject=entry.subject,
        details=entry.details,
        hash=row.hash,
    )


async def verify_audit(call: Call) -> Response:
    """Whether the audit chain is as it was written."""
    check = await store_of(call).verify_audit()
    shape = AuditCheckShape(ok=check.broken is None, rows=check.rows, head=check.head, broken=check.broken)
    return reply(shape)


class Approvals:
    """The endpoints about tool calls that wait for a person."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def list_all(self, call: Call) -> Response:
        """The calls that wait."""
        return reply(ApprovalsShape(approvals=self._turns.running.approvals(call.principal.owner)))

    async def answer(self, call: Call) -> Response:
        """Gives a person's word."""
        body = await call.json(ApprovalBody)
        approval = Approval(**msgspec.structs.asdict(body))
        approval_id = call.request.path_params["approval_id"]
        if not self._turns.running.answer(call.principal.owner, approval_id, approval):
            raise Problem(404, "no_such_approval", "nothing of this id waits for an answer (any more)")
        return Response(status_code=204)
