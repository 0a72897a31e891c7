"""Records as rows of the tables, and back."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from mead.core.options import Options
from mead.core.scope import EgressRecord
from mead.core.usage import Usage, UsageTotal
from mead.storage.protocol import (
    AuditEntry,
    AuditRow,
    CallRow,
    EgressRow,
    SessionRecord,
    StoredTurn,
    ToolRow,
)

Values: TypeAlias = tuple[object, ...]

_tags = msgspec.json.Decoder(tuple[str, ...]).decode
_options = msgspec.json.Decoder(Options).decode
_usage = msgspec.json.Decoder(UsageTotal).decode
_details = msgspec.json.Decoder(dict[str, str]).decode

SESSION = (
    "session_id, owner, created_at, updated_at, title, tags, options, turn_timeout_s, busy, state, parent, "
    "kind, version, last_number, running"
)
SESSION_WITHOUT_STATE = SESSION.replace("state", "NULL")
TURN = "session_id, number, owner, status, finished_at, messages, plain, closed, route, label, usage, tags"
CALL = (
    "session_id, turn, number, owner, tags, route, provider, model, opened_at, closed_at, status, outcome, "
    "input_tokens, output_tokens, cached_tokens, cache_write_tokens, reasoning_tokens, cost_usd, price_date"
)
TOOL = "session_id, turn, idx, name, effect, server, status"
EGRESS = "session_id, turn, owner, at, destination, slot, route, host, path, bytes_sent, allowed_because"
AUDIT = "number, at, owner, action, subject, details, previous, hash"


def insert(db: sqlite3.Connection, table: str, columns: str, values: Values) -> None:
    """Inserts one row. Raises `sqlite3.IntegrityError` for a key that is taken."""
    marks = ", ".join("?" * len(values))
    db.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", values)


def of_session(session: SessionRecord) -> Values:
    """The values of `SESSION`."""
    return (
        session.session_id,
        session.owner,
        session.created_at,
        session.updated_at,
        session.title,
        encoded(session.tags),
        encoded(session.options),
        session.turn_timeout_s,
        session.busy,
        session.state,
        session.parent,
        session.kind,
        session.version,
        session.last_number,
        session.running,
    )


def session_of(row: Any) -> SessionRecord:
    """A row of `SESSION`."""
    return SessionRecord(
        session_id=row[0],
        owner=row[1],
        created_at=row[2],
        updated_at=row[3],
        title=row[4],
        tags=_tags(row[5]),
        options=_options(row[6]),
        turn_timeout_s=row[7],
        busy=row[8],
        state=row[9],
        parent=row[10],
        kind=row[11],
        version=row[12],
        last_number=row[13],
        running=row[14],
    )


def of_turn(session_id: str, turn: StoredTurn) -> Values:
    """The values of `TURN`, for a turn that is done."""
    return (
        session_id,
        turn.number,
        turn.owner,
        "done",
        turn.finished_at,
        turn.messages,
        turn.plain,
        turn.closed,
        turn.route,
        turn.label,
        None if turn.usage is None else encoded(turn.usage),
        encoded(turn.tags),
    )


def turn_of(row: Any) -> StoredTurn:
    """A row of `TURN`."""
    return StoredTurn(
        number=row[1],
        owner=row[2],
        finished_at=row[4],
        messages=row[5],
        plain=bool(row[6]),
        closed=bool(row[7]),
        route=row[8],
        label=row[9],
        usage=None if row[10] is None else _usage(row[10]),
        tags=_tags(row[11]),
    )


def of_call(call: CallRow) -> Values:
    """The values of `CALL`."""
    usage = call.usage
    return (
        call.session_id,
        call.turn,
        call.number,
        call.owner,
        encoded(call.tags),
        call.route,
        call.provider,
        call.model,
        call.opened_at,
        call.closed_at,
        call.status,
        call.outcome,
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
        call.cost_usd,
        call.price_date,
    )


def call_of(row: Any) -> CallRow:
    """A row of `CALL`."""
    return CallRow(
        session_id=row[0],
        turn=row[1],
        number=row[2],
        owner=row[3],
        tags=_tags(row[4]),
        route=row[5],
        provider=row[6],
        model=row[7],
        opened_at=row[8],
        closed_at=row[9],
        status=row[10],
        outcome=row[11],
        usage=Usage(
            input_tokens=row[12],
            output_tokens=row[13],
            cached_tokens=row[14],
            cache_write_tokens=row[15],
            reasoning_tokens=row[16],
        ),
        cost_usd=row[17],
        price_date=row[18],
    )


def of_tool(tool: ToolRow) -> Values:
    """The values of `TOOL`."""
    return (tool.session_id, tool.turn, tool.index, tool.name, tool.effect, tool.server, tool.status)


def tool_of(row: Any) -> ToolRow:
    """A row of `TOOL`."""
    return ToolRow(
        session_id=row[0],
        turn=row[1],
        index=row[2],
        name=row[3],
        effect=bool(row[4]),
        server=row[5],
        status=row[6],
    )


def of_egress(row: EgressRow) -> Values:
    """The values of `EGRESS`."""
    record = row.record
    return (
        row.session_id,
        row.turn,
        row.owner,
        record.at,
        record.destination,
        record.slot,
        record.route,
        record.host,
        record.path,
        record.bytes_sent,
        record.allowed_because,
    )


def egress_of(row: Any) -> EgressRow:
    """A row of `EGRESS`."""
    record = EgressRecord(
        at=row[3],
        destination=row[4],
        slot=row[5],
        route=row[6],
        host=row[7],
        path=row[8],
        bytes_sent=row[9],
        allowed_because=row[10],
    )
    return EgressRow(session_id=row[0], turn=row[1], owner=row[2], record=record)


def of_audit(row: AuditRow) -> Values:
    """The values of `AUDIT`."""
    entry = row.entry
    details = encoded(dict(entry.details))
    return row.number, entry.at, entry.owner, entry.action, entry.subject, details, row.previous, row.hash


def audit_of(row: Any) -> AuditRow:
    """A row of `AUDIT`."""
    details: Mapping[str, str] = _details(row[5])
    entry = AuditEntry(at=row[1], owner=row[2], action=row[3], subject=row[4], details=details)
    return AuditRow(number=row[0], entry=entry, previous=row[6], hash=row[7])


def encoded(value: object) -> str:
    """The value as JSON text."""
    return msgspec.json.encode(value).decode()
