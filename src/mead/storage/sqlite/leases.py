"""Who runs what, and how it is set free when its process is dead. Everything here runs in a transaction."""

from __future__ import annotations

import sqlite3

from mead.storage._records import fenced
from mead.storage.sqlite.files import Life


def check_fence(db: sqlite3.Connection, session_id: str, turn: int, epoch: int) -> None:
    """Raises `Fenced` if this turn is not the session's running one any more."""
    found = db.execute(
        "SELECT 1 FROM sessions WHERE session_id = ? AND running = ? AND epoch = ?", (session_id, turn, epoch)
    ).fetchone()
    if found is None:
        raise fenced(turn)


def recover_dead(db: sqlite3.Connection, life: Life) -> None:
    """Recovers what every dead process has left."""
    holders = db.execute(
        "SELECT DISTINCT holder FROM sessions WHERE running IS NOT NULL "
        "UNION SELECT DISTINCT holder FROM reservations"
    ).fetchall()
    for (holder,) in holders:
        if not life.is_alive(holder):
            recover(db, holder)


def recover_session(db: sqlite3.Connection, life: Life, session_id: str) -> None:
    """Recovers everything of the process that runs the session, if one does that is dead."""
    row = db.execute(
        "SELECT holder FROM sessions WHERE session_id = ? AND running IS NOT NULL", (session_id,)
    ).fetchone()
    if row is not None and not life.is_alive(row[0]):
        recover(db, row[0])


def recover(db: sqlite3.Connection, holder: str) -> None:
    """Ends the turns of a process. What it had reserved counts as spent: its calls may have been made."""
    held = db.execute(
        "SELECT session_id, running FROM sessions WHERE holder = ? AND running IS NOT NULL", (holder,)
    ).fetchall()
    for session_id, turn in held:
        db.execute(
            "UPDATE turns SET status = 'interrupted' WHERE session_id = ? AND number = ?", (session_id, turn)
        )
        leave_open(db, session_id, turn)
        db.execute(
            "UPDATE sessions SET running = NULL, holder = NULL, epoch = epoch + 1, version = version + 1 "
            "WHERE session_id = ?",
            (session_id,),
        )
    db.execute(
        "INSERT INTO budgets (scope, window_start, owner, spent) "
        "SELECT scope, window_start, owner, sum(amount) FROM reservations WHERE holder = ? "
        "GROUP BY scope, window_start, owner "
        "ON CONFLICT (scope, window_start, owner) DO UPDATE SET spent = spent + excluded.spent",
        (holder,),
    )
    db.execute("DELETE FROM reservations WHERE holder = ?", (holder,))


def leave_open(db: sqlite3.Connection, session_id: str, turn: int) -> None:
    """Marks what a turn had begun and nobody saw the end of."""
    db.execute(
        "UPDATE tools SET status = 'unknown' WHERE session_id = ? AND turn = ? AND status = 'started'",
        (session_id, turn),
    )
    db.execute(
        "UPDATE calls SET status = 'unknown' WHERE session_id = ? AND turn = ? AND status = 'open'",
        (session_id, turn),
    )
