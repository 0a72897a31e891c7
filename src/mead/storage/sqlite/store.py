"""The store itself: what is asked goes to the writer or the reader, and comes back when it is durable."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from mead.storage.errors import StoreError
from mead.storage.protocol import (
    ALL_USAGE,
    AlreadyRunning,
    AuditCheck,
    AuditEntry,
    AuditRow,
    BeginOutcome,
    Begun,
    CallRow,
    EgressRow,
    EgressSum,
    InterruptedTurn,
    OverBudget,
    Reservation,
    Reserved,
    SessionChange,
    SessionRecord,
    Settlement,
    StoredTurn,
    ToolRow,
    TurnEnd,
    TurnMarks,
    TurnStart,
    UnmarkedTurn,
    UsageFilter,
    UsageGroup,
    UsageSum,
)
from mead.storage.sqlite import fingerprints, ledger, sessions, turns
from mead.storage.sqlite.reader import Reader
from mead.storage.sqlite.workers import Op
from mead.storage.sqlite.writer import OnStep, Writer

LOCK_TIMEOUT_S = 10.0
"""How long a write waits for other programs before it gives up."""

T = TypeVar("T")


class SqliteStore:
    """A store in the file at `path`, with SQLite's two files and `-lock` and `-live` beside it.

    The file is made if it is missing, for this user alone (mode 0600, in a 0700 folder). On a network share
    the locks of several machines do not meet: keep it on a local disk. A store can be opened once. `on_step`
    is for tests, see `Writer`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        lock_timeout_s: float = LOCK_TIMEOUT_S,
        on_step: OnStep | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self._reader = Reader(self.path)
        self._writer = Writer(
            self.path, lock_timeout_s=lock_timeout_s, on_step=on_step, before_close=self._reader.join
        )
        self._open = False

    async def open(self) -> None:
        try:
            await self._writer.start()
            await self._reader.start()
        except BaseException:
            self._reader.end()
            self._writer.end()
            raise
        self._open = True

    async def aclose(self) -> None:
        if self._open:
            self._open = False
            self._reader.end()
            await self._writer.stop()

    # Sessions

    async def create_session(self, session: SessionRecord, turns: Sequence[StoredTurn] = ()) -> None:
        await self._write(partial(sessions.create, session=session, turns=turns))

    async def get_session(self, owner: str, session_id: str) -> SessionRecord | None:
        return await self._read(partial(sessions.get, owner=owner, session_id=session_id))

    async def list_sessions(
        self, owner: str, *, limit: int = 50, before: tuple[float, str] | None = None
    ) -> tuple[SessionRecord, ...]:
        return await self._read(partial(sessions.listed, owner=owner, limit=limit, before=before))

    async def update_session(self, owner: str, session_id: str, change: SessionChange) -> bool:
        return await self._write(partial(sessions.update, owner=owner, session_id=session_id, change=change))

    async def delete_session(self, owner: str, session_id: str) -> bool:
        return await self._write(partial(sessions.delete, owner=owner, session_id=session_id), scrubs=True)

    async def turns_of(self, session_id: str) -> tuple[StoredTurn, ...]:
        return await self._read(partial(sessions.turns_of, session_id=session_id))

    async def fork(
        self, owner: str, session_id: str, *, new_id: str, at: float, up_to: int | None = None
    ) -> SessionRecord | None:
        return await self._write(
            partial(sessions.fork, owner=owner, session_id=session_id, new_id=new_id, at=at, up_to=up_to)
        )

    async def rewind(
        self, owner: str, session_id: str, *, to: int, at: float
    ) -> SessionRecord | AlreadyRunning | None:
        run = partial(
            sessions.rewind, life=self._writer.life, owner=owner, session_id=session_id, to=to, at=at
        )
        return await self._write(run)

    # Turns

    async def begin_turn(self, start: TurnStart) -> BeginOutcome:
        self._check_open()
        op: Op[BeginOutcome] = Op(partial(turns.begin, life=self._writer.life, start=start), waits=True)

        def undo(db: sqlite3.Connection) -> None:
            if isinstance(op.value, Begun):
                turns.unbegin(db, start.session_id, op.value)

        return await self._write_or_undo(op, undo)

    async def open_call(self, call: CallRow, *, epoch: int) -> None:
        await self._write(partial(turns.open_call, call=call, epoch=epoch))

    async def close_call(self, call: CallRow, settle: Sequence[Settlement] = ()) -> None:
        def run(db: sqlite3.Connection) -> None:
            turns.close_call(db, call)
            ledger.settle(db, settle)

        await self._write(run)

    async def start_tool(self, tool: ToolRow, *, epoch: int) -> None:
        await self._write(partial(turns.start_tool, tool=tool, epoch=epoch))

    async def finish_tool(self, tool: ToolRow) -> None:
        await self._write(partial(turns.finish_tool, tool=tool))

    async def end_turn(self, end: TurnEnd, *, epoch: int) -> None:
        await self._write(partial(turns.end, turn_end=end, epoch=epoch))

    async def interrupted_turns(self, session_id: str) -> tuple[InterruptedTurn, ...]:
        return await self._read(partial(turns.interrupted, session_id=session_id))

    async def untold_effects(self, session_id: str) -> tuple[ToolRow, ...]:
        return await self._read(partial(turns.untold, session_id=session_id))

    async def acknowledge_effects(self, session_id: str, *, before: int) -> None:
        await self._write(partial(turns.acknowledge, session_id=session_id, before=before))

    async def tools_of(self, session_id: str, turn: int | None = None) -> tuple[ToolRow, ...]:
        return await self._read(partial(turns.tools_of, session_id=session_id, turn=turn))

    # Fingerprints

    async def fingerprints_since(self, owner: str, cursor: int = 0) -> tuple[bytes, int]:
        return await self._read(partial(fingerprints.since, owner=owner, cursor=cursor))

    async def unmarked_turns(self, owner: str, *, limit: int = 50) -> tuple[UnmarkedTurn, ...]:
        return await self._read(partial(fingerprints.unmarked, owner=owner, limit=limit))

    async def mark_turns(self, marks: Sequence[TurnMarks]) -> None:
        await self._write(partial(fingerprints.mark, marks=marks))

    # Ledger and budgets

    async def usage_rows(self, which: UsageFilter = ALL_USAGE, *, limit: int = 1000) -> tuple[CallRow, ...]:
        return await self._read(partial(ledger.usage_rows, which=which, limit=limit))

    async def usage_sums(
        self, by: UsageGroup, which: UsageFilter = ALL_USAGE, *, utc_offset_s: int = 0
    ) -> tuple[UsageSum, ...]:
        return await self._read(partial(ledger.usage_sums, by=by, which=which, utc_offset_s=utc_offset_s))

    async def reserve(self, wanted: Sequence[Reservation]) -> Reserved | OverBudget:
        self._check_open()
        op: Op[Reserved | OverBudget] = Op(
            partial(ledger.reserve, holder=self._writer.life.name, wanted=wanted), waits=True
        )

        def undo(db: sqlite3.Connection) -> None:
            if isinstance(op.value, Reserved):
                ledger.release(db, [want.reservation_id for want in wanted])

        return await self._write_or_undo(op, undo)

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        await self._write(partial(ledger.settle, settlements=settlements))

    async def release(self, reservation_ids: Sequence[str]) -> None:
        await self._write(partial(ledger.release, reservation_ids=reservation_ids))

    async def spent(self, scope: str, window_start: float) -> tuple[int, int]:
        return await self._read(partial(ledger.budget, scope=scope, window_start=window_start))

    # Egress and audit

    def add_egress(self, row: EgressRow) -> None:
        if self._open:
            self._writer.post(Op(partial(ledger.add_egress, row=row), waits=False))

    async def egress(
        self,
        owner: str | None,
        *,
        session_id: str | None = None,
        since: float | None = None,
        limit: int = 1000,
    ) -> tuple[EgressRow, ...]:
        await self._write(lambda _: None)  # what was added before is written then
        return await self._read(
            partial(ledger.egress, owner=owner, session_id=session_id, since=since, limit=limit)
        )

    async def egress_sums(
        self, owner: str | None, *, session_id: str | None = None, since: float | None = None
    ) -> tuple[EgressSum, ...]:
        await self._write(lambda _: None)
        return await self._read(partial(ledger.egress_sums, owner=owner, session_id=session_id, since=since))

    async def append_audit(self, entry: AuditEntry) -> AuditRow:
        return await self._write(partial(ledger.append_audit, entry=entry))

    async def audit_rows(
        self, *, owner: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[AuditRow, ...]:
        return await self._read(partial(ledger.audit_rows, owner=owner, after=after, limit=limit))

    async def last_audit(self, action: str, subject: str) -> AuditRow | None:
        return await self._read(partial(ledger.last_audit, action=action, subject=subject))

    async def verify_audit(self) -> AuditCheck:
        return await self._read(ledger.verify_audit)

    # Retention

    async def delete_owner(self, owner: str) -> int:
        return await self._write(partial(sessions.delete_owner, owner=owner), scrubs=True)

    async def delete_older_than(self, before: float) -> int:
        return await self._write(partial(sessions.delete_older_than, before=before), scrubs=True)

    async def prune_requests(self, before: float) -> int:
        if not await self._read(partial(sessions.has_old_requests, before=before)):
            return 0
        return await self._write(partial(sessions.prune_requests, before=before), scrubs=True)

    async def check(self) -> tuple[str, ...]:
        return await self._read(ledger.check)

    # Its insides

    def _check_open(self) -> None:
        if not self._open:
            raise StoreError("closed", "The store is closed: open it first.")

    async def _read(self, run: Callable[[sqlite3.Connection], T]) -> T:
        self._check_open()
        op = Op(run, waits=True)
        self._reader.post(op)
        return await op.answer

    async def _write(self, run: Callable[[sqlite3.Connection], T], *, scrubs: bool = False) -> T:
        self._check_open()
        op = Op(run, waits=True, scrubs=scrubs)
        self._writer.post(op)
        return await op.answer

    async def _write_or_undo(self, op: Op[T], undo: Callable[[sqlite3.Connection], None]) -> T:
        """Writes something that only makes sense with its caller: if that is cancelled, it is taken back."""
        self._writer.post(op)
        try:
            return await op.answer
        except asyncio.CancelledError:
            self._writer.post(Op(undo, waits=False))
            raise
