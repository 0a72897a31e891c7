"""Usage, budgets, egress and audit: functions of a connection, each run within a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from mead.storage._audit import chained, verified
from mead.storage._records import used_reservation
from mead.storage.protocol import (
    AuditCheck,
    AuditEntry,
    AuditRow,
    CallRow,
    EgressRow,
    EgressSum,
    OverBudget,
    Reservation,
    Reserved,
    Settlement,
    UsageFilter,
    UsageGroup,
    UsageSum,
)
from mead.storage.sqlite import rows

_KEYS: dict[UsageGroup, str] = {
    "day": "date(CAST(opened_at + :offset AS INTEGER), 'unixepoch')",
    "session": "session_id",
    "route": "route",
    "model": "ifnull(model, '')",
    "tag": "tag.value",
}
_BY_TAG = "calls, json_each(CASE tags WHEN '[]' THEN '[\"\"]' ELSE tags END) AS tag"
_ONCE = "tag.key = ifnull((SELECT min(key) FROM json_each(tags) WHERE value = tag.value), 0)"
"""A tag that a call has twice counts once."""


def usage_rows(db: sqlite3.Connection, which: UsageFilter, limit: int) -> tuple[CallRow, ...]:
    """See `Store.usage_rows`."""
    where, values = _where(which)
    found = db.execute(
        f"SELECT {rows.CALL} FROM calls WHERE {where} "
        "ORDER BY opened_at DESC, session_id DESC, turn DESC, number DESC LIMIT :limit",
        {**values, "limit": limit},
    )
    return tuple([rows.call_of(row) for row in found])


def usage_sums(
    db: sqlite3.Connection, by: UsageGroup, which: UsageFilter, utc_offset_s: int
) -> tuple[UsageSum, ...]:
    """See `Store.usage_sums`."""
    where, values = _where(which)
    source = "calls"
    if by == "tag":
        source, where = _BY_TAG, f"{where} AND {_ONCE}"
    found = db.execute(
        f"SELECT {_KEYS[by]}, count(*), sum(input_tokens IS NULL OR output_tokens IS NULL), "
        "ifnull(sum(input_tokens), 0), ifnull(sum(output_tokens), 0), ifnull(sum(cached_tokens), 0), "
        "ifnull(sum(cache_write_tokens), 0), ifnull(sum(reasoning_tokens), 0), total(cost_usd), "
        f"sum(cost_usd IS NULL) FROM {source} WHERE {where} GROUP BY 1 ORDER BY 1",
        {**values, "offset": utc_offset_s},
    )
    return tuple([UsageSum(**dict(zip(UsageSum.__struct_fields__, row, strict=True))) for row in found])


def _where(which: UsageFilter) -> tuple[str, dict[str, object]]:
    values: dict[str, object] = {
        "owner": which.owner,
        "session_id": which.session_id,
        "since": which.since,
        "until": which.until,
    }
    tests = {
        "owner": "owner = :owner",
        "session_id": "session_id = :session_id",
        "since": "opened_at >= :since",
        "until": "opened_at < :until",
    }
    wanted = [test for name, test in tests.items() if values[name] is not None]
    return " AND ".join(["1", *wanted]), values


def reserve(db: sqlite3.Connection, holder: str, wanted: Sequence[Reservation]) -> Reserved | OverBudget:
    """See `Store.reserve`."""
    over = _reserve(db, holder, wanted)
    if over is None:
        return Reserved()
    spent, reserved = budget(db, over.scope, over.window_start)
    return OverBudget(scope=over.scope, limit=over.limit, spent=spent, reserved=reserved)


def _reserve(db: sqlite3.Connection, holder: str, wanted: Sequence[Reservation]) -> Reservation | None:
    """Sets all of it aside, or nothing; then it gives the first that does not fit."""
    db.execute("SAVEPOINT reserve")
    over = _reserve_each(db, holder, wanted)
    if over is not None:
        db.execute("ROLLBACK TO reserve")
    db.execute("RELEASE reserve")
    return over


def _reserve_each(db: sqlite3.Connection, holder: str, wanted: Sequence[Reservation]) -> Reservation | None:
    columns = "reservation_id, scope, window_start, amount, owner, holder"
    for want in wanted:
        try:
            values = (want.reservation_id, want.scope, want.window_start, want.amount, want.owner, holder)
            rows.insert(db, "reservations", columns, values)
        except sqlite3.IntegrityError as error:
            raise used_reservation(want) from error
        spent, reserved = budget(db, want.scope, want.window_start)
        if spent + reserved > want.limit:
            return want
    return None


def budget(db: sqlite3.Connection, scope: str, window_start: float) -> tuple[int, int]:
    """See `Store.spent`."""
    at = (scope, window_start)
    spent = db.execute(
        "SELECT ifnull(sum(spent), 0) FROM budgets WHERE scope = ? AND window_start = ?", at
    ).fetchone()
    reserved = db.execute(
        "SELECT ifnull(sum(amount), 0) FROM reservations WHERE scope = ? AND window_start = ?", at
    ).fetchone()
    return spent[0], reserved[0]


def settle(db: sqlite3.Connection, settlements: Sequence[Settlement]) -> None:
    """See `Store.settle`."""
    for settlement in settlements:
        db.execute(
            "INSERT INTO budgets (scope, window_start, owner, spent) "
            "SELECT scope, window_start, owner, ? FROM reservations WHERE reservation_id = ? "
            "ON CONFLICT (scope, window_start, owner) DO UPDATE SET spent = spent + excluded.spent",
            (settlement.spent, settlement.reservation_id),
        )
    release(db, [settlement.reservation_id for settlement in settlements])


def release(db: sqlite3.Connection, reservation_ids: Sequence[str]) -> None:
    """See `Store.release`."""
    for reservation_id in reservation_ids:
        db.execute("DELETE FROM reservations WHERE reservation_id = ?", (reservation_id,))


def add_egress(db: sqlite3.Connection, row: EgressRow) -> None:
    """See `Store.add_egress`."""
    rows.insert(db, "egress", rows.EGRESS, rows.of_egress(row))


def egress(
    db: sqlite3.Connection, owner: str | None, session_id: str | None, since: float | None, limit: int
) -> tuple[EgressRow, ...]:
    """See `Store.egress`."""
    where, values = _sent(owner, session_id, since)
    found = db.execute(
        f"SELECT {rows.EGRESS} FROM egress WHERE {where} ORDER BY number DESC LIMIT :limit",
        {**values, "limit": limit},
    ).fetchall()
    return tuple([rows.egress_of(row) for row in reversed(found)])


def egress_sums(
    db: sqlite3.Connection, owner: str | None, session_id: str | None, since: float | None
) -> tuple[EgressSum, ...]:
    """See `Store.egress_sums`."""
    where, values = _sent(owner, session_id, since)
    found = db.execute(
        "SELECT host, destination, slot, allowed_because, count(*), sum(bytes_sent), min(at), max(at) "
        f"FROM egress WHERE {where} GROUP BY 1, 2, 3, 4 ORDER BY 6 DESC, 1, 3, 4",
        values,
    )
    return tuple([EgressSum(**dict(zip(EgressSum.__struct_fields__, row, strict=True))) for row in found])


def _sent(owner: str | None, session_id: str | None, since: float | None) -> tuple[str, dict[str, object]]:
    values: dict[str, object] = {"owner": owner, "session_id": session_id, "since": since}
    tests = {"owner": "owner = :owner", "session_id": "session_id = :session_id", "since": "at >= :since"}
    wanted = [test for name, test in tests.items() if values[name] is not None]
    return " AND ".join(["1", *wanted]), values


def append_audit(db: sqlite3.Connection, entry: AuditEntry) -> AuditRow:
    """See `Store.append_audit`."""
    last = db.execute("SELECT number, hash FROM audit ORDER BY number DESC LIMIT 1").fetchone()
    number, previous = last or (0, "")
    row = chained(entry, number=number + 1, previous=previous)
    rows.insert(db, "audit", rows.AUDIT, rows.of_audit(row))
    return row


def audit_rows(db: sqlite3.Connection, owner: str | None, after: int, limit: int) -> tuple[AuditRow, ...]:
    """See `Store.audit_rows`."""
    found = db.execute(
        f"SELECT {rows.AUDIT} FROM audit WHERE number > ? AND owner = ifnull(?, owner) "
        "ORDER BY number LIMIT ?",
        (after, owner, limit),
    )
    return tuple([rows.audit_of(row) for row in found])


def last_audit(db: sqlite3.Connection, action: str, subject: str) -> AuditRow | None:
    """See `Store.last_audit`."""
    found = db.execute(
        f"SELECT {rows.AUDIT} FROM audit WHERE action = ? AND subject = ? ORDER BY number DESC LIMIT 1",
        (action, subject),
    ).fetchone()
    return None if found is None else rows.audit_of(found)


def verify_audit(db: sqlite3.Connection) -> AuditCheck:
    """See `Store.verify_audit`."""
    return verified(map(rows.audit_of, db.execute(f"SELECT {rows.AUDIT} FROM audit ORDER BY number")))


def check(db: sqlite3.Connection) -> tuple[str, ...]:
    """See `Store.check`."""
    found = [row[0] for row in db.execute("PRAGMA integrity_check")]
    faults = [] if found == ["ok"] else [f"The file is damaged: {fault}" for fault in found]
    unheld = db.execute("SELECT session_id FROM sessions WHERE (running IS NULL) <> (holder IS NULL)")
    faults += [f"Session {session_id} runs a turn that nobody holds." for (session_id,) in unheld]
    lost = db.execute(
        "SELECT session_id, number FROM turns WHERE status = 'running' AND number IS NOT "
        "(SELECT running FROM sessions WHERE sessions.session_id = turns.session_id)"
    )
    faults += [
        f"Turn {number} of session {session_id} runs outside its session." for session_id, number in lost
    ]
    return tuple(faults)
