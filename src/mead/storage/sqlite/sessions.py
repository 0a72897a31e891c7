"""What is done to sessions: functions of a connection, each run within a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from mead.storage._records import changed, forked, new_session, taken
from mead.storage.protocol import AlreadyRunning, SessionChange, SessionRecord, StoredTurn
from mead.storage.sqlite import fingerprints, leases, rows, scrub
from mead.storage.sqlite.files import Life

_PARTS = ("turns", "tools", "sessions")
"""The tables whose rows go with their session."""


def create(db: sqlite3.Connection, session: SessionRecord, turns: Sequence[StoredTurn]) -> SessionRecord:
    """See `Store.create_session`."""
    used = _value(db, "SELECT max(turn) FROM calls WHERE session_id = ?", session.session_id)
    session = new_session(session, turns, used=used or 0)
    try:
        rows.insert(db, "sessions", f"{rows.SESSION}, epoch", (*rows.of_session(session), 0))
    except sqlite3.IntegrityError as error:
        raise taken(session.session_id) from error
    for turn in turns:
        rows.insert(db, "turns", rows.TURN, rows.of_turn(session.session_id, turn))
    return session


def get(db: sqlite3.Connection, owner: str, session_id: str) -> SessionRecord | None:
    """See `Store.get_session`."""
    row = db.execute(
        f"SELECT {rows.SESSION} FROM sessions WHERE session_id = ? AND owner = ? AND kind = 'conversation'",
        (session_id, owner),
    ).fetchone()
    return None if row is None else rows.session_of(row)


def listed(
    db: sqlite3.Connection, owner: str, limit: int, before: tuple[float, str] | None
) -> tuple[SessionRecord, ...]:
    """See `Store.list_sessions`."""
    older = "" if before is None else "AND (updated_at, session_id) < (?, ?)"
    found = db.execute(
        f"SELECT {rows.SESSION_WITHOUT_STATE} FROM sessions "
        f"WHERE owner = ? AND kind = 'conversation' {older} "
        "ORDER BY updated_at DESC, session_id DESC LIMIT ?",
        (owner, *(before or ()), limit),
    )
    return tuple([rows.session_of(row) for row in found])


def update(db: sqlite3.Connection, owner: str, session_id: str, change: SessionChange) -> bool:
    """See `Store.update_session`."""
    session = get(db, owner, session_id)
    if session is None:
        return False
    put(db, changed(session, change))
    return True


def put(db: sqlite3.Connection, session: SessionRecord) -> None:
    """Writes a session that is there as it is now; its lease stays."""
    marks = ", ".join("?" * len(rows.of_session(session)))
    db.execute(
        f"UPDATE sessions SET ({rows.SESSION}) = ({marks}) WHERE session_id = ?",
        (*rows.of_session(session), session.session_id),
    )


def delete(db: sqlite3.Connection, owner: str, session_id: str) -> bool:
    """See `Store.delete_session`. What was deleted is still to be scrubbed."""
    if get(db, owner, session_id) is None:
        return False
    _delete_all(db, [(session_id, "conversation")])
    return True


def delete_owner(db: sqlite3.Connection, owner: str) -> int:
    """See `Store.delete_owner`."""
    scrub.note(db)
    owned = db.execute("SELECT session_id, kind FROM sessions WHERE owner = ?", (owner,)).fetchall()
    _delete_all(db, owned)
    for table in ("calls", "egress", "budgets", "reservations", "fingerprints"):
        db.execute(f"DELETE FROM {table} WHERE owner = ?", (owner,))
    return _conversations(owned)


def delete_older_than(db: sqlite3.Connection, before: float) -> int:
    """See `Store.delete_older_than`."""
    old = db.execute(
        "SELECT session_id, kind FROM sessions WHERE updated_at < ? AND running IS NULL", (before,)
    ).fetchall()
    _delete_all(db, old)
    fingerprints.delete_older(db, before)
    db.execute("DELETE FROM egress WHERE at < ?", (before,))
    db.execute("DELETE FROM budgets WHERE window_start < ?", (before,))
    return _conversations(old)


_OLD_REQUESTS = "kind = 'requests' AND updated_at < ? AND running IS NULL"


def has_old_requests(db: sqlite3.Connection, before: float) -> bool:
    """Whether `prune_requests` has anything to do."""
    return (
        db.execute(f"SELECT 1 FROM sessions WHERE {_OLD_REQUESTS} LIMIT 1", (before,)).fetchone() is not None
    )


def prune_requests(db: sqlite3.Connection, before: float) -> int:
    """See `Store.prune_requests`. What was deleted is still to be scrubbed, where it had any text."""
    found = db.execute(
        "SELECT session_id, EXISTS (SELECT 1 FROM turns WHERE turns.session_id = sessions.session_id "
        f"AND answer IS NOT NULL) FROM sessions WHERE {_OLD_REQUESTS}",
        (before,),
    ).fetchall()
    if any(has_text for _, has_text in found):
        scrub.note(db)
    for session_id, _ in found:
        _delete_parts(db, session_id)
    return len(found)


def turns_of(db: sqlite3.Connection, session_id: str) -> tuple[StoredTurn, ...]:
    """See `Store.turns_of`."""
    found = db.execute(
        f"SELECT {rows.TURN} FROM turns WHERE session_id = ? AND status = 'done' AND messages IS NOT NULL "
        "ORDER BY number",
        (session_id,),
    )
    return tuple([rows.turn_of(row) for row in found])


def fork(
    db: sqlite3.Connection, owner: str, session_id: str, new_id: str, at: float, up_to: int | None
) -> SessionRecord | None:
    """See `Store.fork`."""
    session = get(db, owner, session_id)
    if session is None:
        return None
    return create(db, *forked(session, turns_of(db, session_id), new_id=new_id, at=at, up_to=up_to))


def rewind(
    db: sqlite3.Connection, life: Life, owner: str, session_id: str, to: int, at: float
) -> SessionRecord | AlreadyRunning | None:
    """See `Store.rewind`."""
    leases.recover_session(db, life, session_id)
    session = get(db, owner, session_id)
    if session is None:
        return None
    if session.running is not None:
        return AlreadyRunning(number=session.running)
    dropped = _value(
        db,
        "SELECT count(*) FROM turns WHERE session_id = ? AND number > ? AND status = 'done'",
        session_id,
        to,
    )
    db.execute("DELETE FROM turns WHERE session_id = ? AND number > ?", (session_id, to))
    db.execute("UPDATE tools SET told = NULL WHERE session_id = ? AND told > ?", (session_id, to))
    fingerprints.delete(db, session_id, after=to)
    state = None if dropped else session.state
    change = SessionChange(updated_at=at, state=state)
    put(db, changed(session, change))
    return get(db, owner, session_id)


def _delete_all(db: sqlite3.Connection, found: Sequence[tuple[str, str]]) -> None:
    """Deletes sessions, given as id and kind. The fingerprints of requests do not go with these."""
    if found:
        scrub.note(db)
    for session_id, kind in found:
        _delete_parts(db, session_id)
        if kind == "conversation":
            fingerprints.delete(db, session_id)


def _delete_parts(db: sqlite3.Connection, session_id: str) -> None:
    for table in _PARTS:
        db.execute(f"DELETE FROM {table} WHERE session_id = ?", (session_id,))


def _conversations(found: Sequence[tuple[str, str]]) -> int:
    return sum([kind == "conversation" for _, kind in found])


def _value(db: sqlite3.Connection, query: str, *values: object) -> int | None:
    row = db.execute(query, values).fetchone()
    value: int | None = row[0]
    return value
