"""Fingerprints of private text: functions of a connection, each run within a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from mead.storage.protocol import TurnMarks, UnmarkedTurn
from mead.storage.sqlite import rows

PAGE = 1000
"""How many turns' fingerprints are read at once."""

_UNMARKED = "label = 'local_only' AND messages IS NOT NULL AND fingerprinted IS NULL"


def since(db: sqlite3.Connection, owner: str, cursor: int) -> tuple[bytes, int]:
    """See `Store.fingerprints_since`."""
    found = db.execute(
        "SELECT number, data FROM fingerprints WHERE owner = ? AND number > ? ORDER BY number LIMIT ?",
        (owner, cursor, PAGE),
    ).fetchall()
    return b"".join([data for _, data in found]), found[-1][0] if found else cursor


def unmarked(db: sqlite3.Connection, owner: str, limit: int) -> tuple[UnmarkedTurn, ...]:
    """See `Store.unmarked_turns`."""
    found = db.execute(
        f"SELECT {rows.TURN} FROM turns WHERE {_UNMARKED} AND "
        "(SELECT owner FROM sessions WHERE sessions.session_id = turns.session_id) = ? LIMIT ?",
        (owner, limit),
    )
    return tuple([UnmarkedTurn(owner=owner, session_id=row[0], turn=rows.turn_of(row)) for row in found])


def mark(db: sqlite3.Connection, marks: Sequence[TurnMarks]) -> None:
    """See `Store.mark_turns`."""
    for each in marks:
        marked = db.execute(
            f"UPDATE turns SET fingerprinted = 1 WHERE session_id = ? AND number = ? AND {_UNMARKED}",
            (each.session_id, each.number),
        )
        if marked.rowcount:
            (owner,) = db.execute(
                "SELECT owner FROM sessions WHERE session_id = ?", (each.session_id,)
            ).fetchone()
            add(db, owner, each.session_id, each.number, each.at, each.fingerprints)


def add(db: sqlite3.Connection, owner: str, session_id: str, turn: int, at: float, data: bytes) -> None:
    """Keeps a turn's fingerprints, if there are any."""
    if data:
        values = (owner, session_id, turn, at, data)
        rows.insert(db, "fingerprints", "owner, session_id, turn, at, data", values)


def delete(db: sqlite3.Connection, session_id: str, *, after: int = 0) -> None:
    """Deletes a session's, or those of its turns after a number."""
    db.execute("DELETE FROM fingerprints WHERE session_id = ? AND turn > ?", (session_id, after))


def delete_older(db: sqlite3.Connection, before: float) -> None:
    """Deletes those of requests that are older: those of a conversation go with it."""
    db.execute(
        "DELETE FROM fingerprints WHERE at < ? AND NOT EXISTS (SELECT 1 FROM sessions "
        "WHERE sessions.session_id = fingerprints.session_id AND kind = 'conversation')",
        (before,),
    )
