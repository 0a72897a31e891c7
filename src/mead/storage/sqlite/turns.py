"""What a turn writes while it runs: functions of a connection, each run within a transaction."""

from __future__ import annotations

import sqlite3

import msgspec

from mead.storage._records import used_number
from mead.storage.protocol import (
    AlreadyRunning,
    BeginOutcome,
    Begun,
    CallRow,
    InterruptedTurn,
    Joined,
    KeyConflict,
    NoSession,
    Replayed,
    ToolRow,
    TurnEnd,
    TurnStart,
)
from mead.storage.sqlite import fingerprints, leases, rows
from mead.storage.sqlite.files import Life

_UNTOLD = "session_id = ? AND effect AND told IS NULL"


def begin(db: sqlite3.Connection, life: Life, start: TurnStart) -> BeginOutcome:
    """See `Store.begin_turn`."""
    leases.recover_session(db, life, start.session_id)
    session = db.execute(
        "SELECT version, last_number, epoch, running FROM sessions WHERE session_id = ? AND owner = ?",
        (start.session_id, start.owner),
    ).fetchone()
    if session is None:
        return NoSession()
    version, last_number, epoch, running = session
    if (known := _known(db, start)) is not None:
        return known
    if running is not None:
        return AlreadyRunning(number=running)
    number = max(start.number, last_number + 1)
    rows.insert(
        db,
        "turns",
        "session_id, number, owner, status, started_at, question, tags, key, request_hash",
        (
            start.session_id,
            number,
            start.owner,
            "running",
            start.started_at,
            start.question,
            rows.encoded(start.tags),
            start.idempotency_key,
            start.request_hash,
        ),
    )
    db.execute(
        "UPDATE sessions SET running = ?, last_number = ?, epoch = ?, holder = ? WHERE session_id = ?",
        (number, number, epoch + 1, life.name, start.session_id),
    )
    if start.call is not None:
        open_call(db, msgspec.structs.replace(start.call, turn=number), epoch + 1)
    return Begun(epoch=epoch + 1, number=number, version=version, untold=untold(db, start.session_id))


def _known(db: sqlite3.Connection, start: TurnStart) -> Joined | Replayed | KeyConflict | None:
    """What the turn's idempotency key says."""
    if start.idempotency_key is None:
        return None
    row = db.execute(
        "SELECT number, status, request_hash, answer FROM turns WHERE session_id = ? AND key = ?",
        (start.session_id, start.idempotency_key),
    ).fetchone()
    if row is None:
        return None
    number, status, request_hash, answer = row
    if request_hash != start.request_hash:
        return KeyConflict()
    return Joined(number=number) if status == "running" else Replayed(number=number, answer=answer)


def unbegin(db: sqlite3.Connection, session_id: str, begun: Begun) -> None:
    """Takes back a turn whose caller has gone before it could run."""
    freed = db.execute(
        "UPDATE sessions SET running = NULL, holder = NULL "
        "WHERE session_id = ? AND running = ? AND epoch = ?",
        (session_id, begun.number, begun.epoch),
    )
    if freed.rowcount:
        db.execute("DELETE FROM turns WHERE session_id = ? AND number = ?", (session_id, begun.number))
        db.execute("DELETE FROM calls WHERE session_id = ? AND turn = ?", (session_id, begun.number))


def open_call(db: sqlite3.Connection, call: CallRow, epoch: int) -> None:
    """See `Store.open_call`."""
    leases.check_fence(db, call.session_id, call.turn, epoch)
    try:
        rows.insert(db, "calls", rows.CALL, rows.of_call(call))
    except sqlite3.IntegrityError as error:
        raise used_number("call", call.number) from error


def close_call(db: sqlite3.Connection, call: CallRow) -> None:
    """See `Store.close_call`."""
    values = rows.of_call(call)
    marks = ", ".join("?" * len(values))
    db.execute(
        f"UPDATE calls SET ({rows.CALL}) = ({marks}) WHERE session_id = ? AND turn = ? AND number = ?",
        (*values, call.session_id, call.turn, call.number),
    )


def start_tool(db: sqlite3.Connection, tool: ToolRow, epoch: int) -> None:
    """See `Store.start_tool`."""
    leases.check_fence(db, tool.session_id, tool.turn, epoch)
    try:
        rows.insert(db, "tools", rows.TOOL, rows.of_tool(tool))
    except sqlite3.IntegrityError as error:
        raise used_number("tool call", tool.index) from error


def finish_tool(db: sqlite3.Connection, tool: ToolRow) -> None:
    """See `Store.finish_tool`."""
    values = rows.of_tool(tool)
    marks = ", ".join("?" * len(values))
    db.execute(
        f"UPDATE tools SET ({rows.TOOL}) = ({marks}) WHERE session_id = ? AND turn = ? AND idx = ?",
        (*values, tool.session_id, tool.turn, tool.index),
    )


def end(db: sqlite3.Connection, turn_end: TurnEnd, epoch: int) -> None:
    """See `Store.end_turn`."""
    session_id, number = turn_end.session_id, turn_end.number
    leases.check_fence(db, session_id, number, epoch)
    for call in turn_end.closed:
        close_call(db, call)
    leases.leave_open(db, session_id, number)
    if turn_end.told_effects:
        acknowledge(db, session_id, number)
    owner = _end_row(db, turn_end)
    if turn_end.fingerprints:
        at = turn_end.finished_at
        fingerprints.add(db, owner, session_id, number, at, turn_end.fingerprints)
    db.execute(
        "UPDATE sessions SET running = NULL, holder = NULL, updated_at = ?, state = ifnull(?, state), "
        "version = version + ? WHERE session_id = ?",
        (turn_end.finished_at, turn_end.state, turn_end.turn is not None, session_id),
    )


def _end_row(db: sqlite3.Connection, turn_end: TurnEnd) -> str:
    """A turn that is done becomes history; gives its owner. Of any other no text is kept, and nothing at all
    if there is no key under which its result is replayed."""
    session_id, number = turn_end.session_id, turn_end.number
    (owner,) = db.execute(
        "SELECT owner FROM turns WHERE session_id = ? AND number = ?", (session_id, number)
    ).fetchone()
    if turn_end.turn is not None:
        values = rows.of_turn(session_id, turn_end.turn)
        marks = ", ".join("?" * len(values))
        db.execute(
            f"UPDATE turns SET ({rows.TURN}) = ({marks}), question = NULL, fingerprinted = ?, "
            "answer = CASE WHEN key IS NULL THEN NULL ELSE ? END WHERE session_id = ? AND number = ?",
            (
                *values,
                None if turn_end.fingerprints is None else 1,
                turn_end.answer,
                session_id,
                number,
            ),
        )
        db.execute(
            "UPDATE tools SET told = turn WHERE session_id = ? AND turn = ? AND status <> 'unknown'",
            (session_id, number),
        )
        return str(owner)
    keyed = db.execute(
        "UPDATE turns SET status = ?, finished_at = ?, reason = ?, question = NULL, answer = ? "
        "WHERE session_id = ? AND number = ? AND key IS NOT NULL AND ? IS NOT NULL",
        (
            turn_end.status,
            turn_end.finished_at,
            turn_end.reason,
            turn_end.answer,
            session_id,
            number,
            turn_end.answer,
        ),
    )
    if not keyed.rowcount:
        db.execute("DELETE FROM turns WHERE session_id = ? AND number = ?", (session_id, number))
    return str(owner)


def interrupted(db: sqlite3.Connection, session_id: str) -> tuple[InterruptedTurn, ...]:
    """See `Store.interrupted_turns`."""
    found = db.execute(
        "SELECT number, question, started_at FROM turns "
        "WHERE session_id = ? AND status <> 'done' AND status = 'interrupted' ORDER BY number",
        (session_id,),
    )
    return tuple(
        [InterruptedTurn(number=number, question=question, started_at=at) for number, question, at in found]
    )


def untold(db: sqlite3.Connection, session_id: str) -> tuple[ToolRow, ...]:
    """See `Store.untold_effects`."""
    found = db.execute(
        f"SELECT {rows.TOOL} FROM tools WHERE {_UNTOLD} AND turn IS NOT "
        "(SELECT running FROM sessions WHERE sessions.session_id = tools.session_id) ORDER BY turn, idx",
        (session_id,),
    )
    return tuple([rows.tool_of(row) for row in found])


def acknowledge(db: sqlite3.Connection, session_id: str, before: int) -> None:
    """See `Store.acknowledge_effects`. Remembers in which turn it was told, for a rewind."""
    db.execute(f"UPDATE tools SET told = ? WHERE {_UNTOLD} AND turn < ?", (before, session_id, before))


def tools_of(db: sqlite3.Connection, session_id: str, turn: int | None) -> tuple[ToolRow, ...]:
    """See `Store.tools_of`."""
    found = db.execute(
        f"SELECT {rows.TOOL} FROM tools WHERE session_id = ? AND turn = ifnull(?, turn) ORDER BY turn, idx",
        (session_id, turn),
    )
    return tuple([rows.tool_of(row) for row in found])
