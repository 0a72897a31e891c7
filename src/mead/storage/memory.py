"""The store that forgets: everything is in this process, and gone when it ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from mead.core.scope import EgressRecord
from mead.storage._audit import chained, verified
from mead.storage._fingerprints import FingerprintLog
from mead.storage._records import (
    changed,
    ended,
    fenced,
    forked,
    new_session,
    taken,
    used_number,
    used_reservation,
)
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
    Joined,
    KeyConflict,
    NoSession,
    OverBudget,
    Replayed,
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

EGRESS_KEPT = 10_000
"""How many egress records are kept, the newest."""


class _Keyed:
    """A turn that was begun under an idempotency key. `ended` is false while it runs."""

    __slots__ = ("answer", "ended", "number", "request_hash")

    def __init__(self, number: int, request_hash: str | None) -> None:
        self.number = number
        self.request_hash = request_hash
        self.answer: bytes | None = None
        self.ended = False


class _Kept:
    """A session and what belongs to it. `tools` is by turn, then by index; `told` says in which turn's
    messages a tool is told of: its own, or those of a later one."""

    __slots__ = ("epoch", "keys", "record", "told", "tools", "turns")

    def __init__(self, record: SessionRecord, turns: Iterable[StoredTurn]) -> None:
        self.record = record
        self.epoch = 0
        self.turns = list(turns)
        self.keys: dict[str, _Keyed] = {}
        self.tools: dict[int, dict[int, ToolRow]] = {}
        self.told: dict[tuple[int, int], int] = {}

    def journal(self) -> list[ToolRow]:
        """The tool rows, in order."""
        return [tool for _, tools in sorted(self.tools.items()) for _, tool in sorted(tools.items())]

    def untold(self) -> list[ToolRow]:
        """See `Store.untold_effects`."""
        return [
            tool
            for tool in self.journal()
            if tool.effect and tool.turn != self.record.running and (tool.turn, tool.index) not in self.told
        ]

    def acknowledge(self, before: int) -> None:
        """See `Store.acknowledge_effects`."""
        for tool in self.untold():
            if tool.turn < before:
                self.told[tool.turn, tool.index] = before

    def end_key(self, end: TurnEnd) -> None:
        """Keeps the turn's answer under its key, or gives the key free."""
        for key, keyed in self.keys.items():
            if keyed.number == end.number:
                if end.status == "failed" and end.answer is None:
                    del self.keys[key]
                else:
                    keyed.ended, keyed.answer = True, end.answer
                return


class MemoryStore:
    """A store without a file. It can be used without being opened."""

    def __init__(self) -> None:
        self._closed = False
        self._sessions: dict[str, _Kept] = {}
        self._calls: dict[tuple[str, int], dict[int, CallRow]] = {}
        self._called: dict[str, int] = {}  # the last turn of each session that made a call
        self._spent: dict[tuple[str, float, str], int] = {}
        self._reserved: dict[str, Reservation] = {}
        self._egress: deque[EgressRow] = deque(maxlen=EGRESS_KEPT)
        self._audit: list[AuditRow] = []
        self._fingerprints = FingerprintLog()

    async def open(self) -> None:
        self._check_open()

    async def aclose(self) -> None:
        self._closed = True
        self._sessions.clear()

    # Sessions

    async def create_session(self, session: SessionRecord, turns: Sequence[StoredTurn] = ()) -> None:
        self._check_open()
        self._add(session, turns)

    async def get_session(self, owner: str, session_id: str) -> SessionRecord | None:
        self._check_open()
        kept = self._find(owner, session_id)
        return None if kept is None else kept.record

    async def list_sessions(
        self, owner: str, *, limit: int = 50, before: tuple[float, str] | None = None
    ) -> tuple[SessionRecord, ...]:
        self._check_open()
        records = [kept.record for kept in self._sessions.values() if _is_listed(kept.record, owner)]
        records.sort(key=_age, reverse=True)
        older = [record for record in records if before is None or _age(record) < before]
        return tuple([replace(record, state=None) for record in older[:limit]])

    async def update_session(self, owner: str, session_id: str, change: SessionChange) -> bool:
        self._check_open()
        kept = self._find(owner, session_id)
        if kept is None:
            return False
        kept.record = changed(kept.record, change)
        return True

    async def delete_session(self, owner: str, session_id: str) -> bool:
        self._check_open()
        if self._find(owner, session_id) is None:
            return False
        self._delete([session_id])
        return True

    async def turns_of(self, session_id: str) -> tuple[StoredTurn, ...]:
        self._check_open()
        kept = self._sessions.get(session_id)
        return () if kept is None else tuple(kept.turns)

    async def fork(
        self, owner: str, session_id: str, *, new_id: str, at: float, up_to: int | None = None
    ) -> SessionRecord | None:
        self._check_open()
        kept = self._find(owner, session_id)
        if kept is None:
            return None
        return self._add(*forked(kept.record, kept.turns, new_id=new_id, at=at, up_to=up_to))

    async def rewind(
        self, owner: str, session_id: str, *, to: int, at: float
    ) -> SessionRecord | AlreadyRunning | None:
        self._check_open()
        kept = self._find(owner, session_id)
        if kept is None:
            return None
        record = kept.record
        if record.running is not None:
            return AlreadyRunning(number=record.running)
        left = [turn for turn in kept.turns if turn.number <= to]
        state = record.state if len(left) == len(kept.turns) else None
        kept.turns = left
        self._fingerprints.forget(session_id, after=to)
        kept.keys = {key: keyed for key, keyed in kept.keys.items() if keyed.number <= to}
        kept.told = {tool: told for tool, told in kept.told.items() if told <= to}
        kept.record = replace(record, state=state, updated_at=at, version=record.version + 1)
        return kept.record

    # Turns

    async def begin_turn(self, start: TurnStart) -> BeginOutcome:
        self._check_open()
        kept = self._sessions.get(start.session_id)
        if kept is None or kept.record.owner != start.owner:
            return NoSession()
        key = start.idempotency_key
        if key is not None and (keyed := kept.keys.get(key)) is not None:
            if keyed.request_hash != start.request_hash:
                return KeyConflict()
            if not keyed.ended:
                return Joined(number=keyed.number)
            return Replayed(number=keyed.number, answer=keyed.answer)
        record = kept.record
        if record.running is not None:
            return AlreadyRunning(number=record.running)
        number = max(start.number, record.last_number + 1)
        kept.epoch += 1
        kept.record = replace(record, running=number, last_number=number)
        if key is not None:
            kept.keys[key] = _Keyed(number, start.request_hash)
        untold = tuple(kept.untold())
        if start.call is not None:
            await self.open_call(replace(start.call, turn=number), epoch=kept.epoch)
        return Begun(epoch=kept.epoch, number=number, version=record.version, untold=untold)

    async def open_call(self, call: CallRow, *, epoch: int) -> None:
        self._check_open()
        self._running(call.session_id, call.turn, epoch)
        calls = self._calls.setdefault((call.session_id, call.turn), {})
        if call.number in calls:
            raise used_number("call", call.number)
        calls[call.number] = call
        self._called[call.session_id] = max(call.turn, self._called.get(call.session_id, 0))

    async def close_call(self, call: CallRow, settle: Sequence[Settlement] = ()) -> None:
        self._check_open()
        self._close(call)
        self._settle(settle)

    def _close(self, call: CallRow) -> None:
        calls = self._calls.get((call.session_id, call.turn), {})
        if call.number in calls:
            calls[call.number] = call

    async def start_tool(self, tool: ToolRow, *, epoch: int) -> None:
        self._check_open()
        kept = self._running(tool.session_id, tool.turn, epoch)
        tools = kept.tools.setdefault(tool.turn, {})
        if tool.index in tools:
            raise used_number("tool call", tool.index)
        tools[tool.index] = tool

    async def finish_tool(self, tool: ToolRow) -> None:
        self._check_open()
        kept = self._sessions.get(tool.session_id)
        tools = {} if kept is None else kept.tools.get(tool.turn, {})
        if tool.index in tools:
            tools[tool.index] = tool

    async def end_turn(self, end: TurnEnd, *, epoch: int) -> None:
        self._check_open()
        kept = self._running(end.session_id, end.number, epoch)
        for call in end.closed:
            self._close(call)
        calls = self._calls.get((end.session_id, end.number), {})
        for number, call in calls.items():
            if call.status == "open":
                calls[number] = replace(call, status="unknown")
        tools = kept.tools.get(end.number, {})
        for index, tool in tools.items():
            if tool.status == "started":
                tools[index] = replace(tool, status="unknown")
        if end.told_effects:
            kept.acknowledge(end.number)
        owner = kept.record.owner
        if end.fingerprints is not None:
            self._fingerprints.add(owner, end.session_id, end.number, end.finished_at, end.fingerprints)
        elif end.turn is not None:
            self._fingerprints.note_unmarked(owner, end.session_id, end.turn)
        if end.turn is not None:
            kept.turns.append(end.turn)
            told = [index for index, tool in tools.items() if tool.status != "unknown"]
            kept.told.update({(end.number, index): end.number for index in told})
        kept.end_key(end)
        kept.record = ended(kept.record, end)

    async def interrupted_turns(self, session_id: str) -> tuple[InterruptedTurn, ...]:
        self._check_open()
        return ()  # what could be cut off is gone with its process

    async def untold_effects(self, session_id: str) -> tuple[ToolRow, ...]:
        self._check_open()
        kept = self._sessions.get(session_id)
        return () if kept is None else tuple(kept.untold())

    async def acknowledge_effects(self, session_id: str, *, before: int) -> None:
        self._check_open()
        if (kept := self._sessions.get(session_id)) is not None:
            kept.acknowledge(before)

    async def tools_of(self, session_id: str, turn: int | None = None) -> tuple[ToolRow, ...]:
        self._check_open()
        kept = self._sessions.get(session_id)
        rows = () if kept is None else kept.journal()
        return tuple([tool for tool in rows if turn in (None, tool.turn)])

    # Fingerprints

    async def fingerprints_since(self, owner: str, cursor: int = 0) -> tuple[bytes, int]:
        self._check_open()
        return await self._fingerprints.fingerprints_since(owner, cursor)

    async def unmarked_turns(self, owner: str, *, limit: int = 50) -> tuple[UnmarkedTurn, ...]:
        self._check_open()
        return await self._fingerprints.unmarked_turns(owner, limit=limit)

    async def mark_turns(self, marks: Sequence[TurnMarks]) -> None:
        self._check_open()
        await self._fingerprints.mark_turns(marks)

    # Ledger and budgets

    async def usage_rows(self, which: UsageFilter = ALL_USAGE, *, limit: int = 1000) -> tuple[CallRow, ...]:
        self._check_open()
        rows = self._usage(which)
        rows.sort(key=lambda call: (call.opened_at, call.session_id, call.turn, call.number), reverse=True)
        return tuple(rows[:limit])

    async def usage_sums(
        self, by: UsageGroup, which: UsageFilter = ALL_USAGE, *, utc_offset_s: int = 0
    ) -> tuple[UsageSum, ...]:
        self._check_open()
        groups: dict[str, list[CallRow]] = {}
        for call in self._usage(which):
            for key in _keys(call, by, utc_offset_s):
                groups.setdefault(key, []).append(call)
        return tuple([_sum(key, calls) for key, calls in sorted(groups.items())])

    async def reserve(self, wanted: Sequence[Reservation]) -> Reserved | OverBudget:
        self._check_open()
        before = dict(self._reserved)
        for want in wanted:
            if want.reservation_id in self._reserved:
                self._reserved = before
                raise used_reservation(want)
            spent, reserved = self._budget(want.scope, want.window_start)
            if spent + reserved + want.amount > want.limit:
                self._reserved = before
                spent, reserved = self._budget(want.scope, want.window_start)
                return OverBudget(scope=want.scope, limit=want.limit, spent=spent, reserved=reserved)
            self._reserved[want.reservation_id] = want
        return Reserved()

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        self._check_open()
        self._settle(settlements)

    async def release(self, reservation_ids: Sequence[str]) -> None:
        self._check_open()
        for reservation_id in reservation_ids:
            self._reserved.pop(reservation_id, None)

    async def spent(self, scope: str, window_start: float) -> tuple[int, int]:
        self._check_open()
        return self._budget(scope, window_start)

    # Egress and audit

    def add_egress(self, row: EgressRow) -> None:
        if not self._closed:
            self._egress.append(row)

    async def egress(
        self,
        owner: str | None,
        *,
        session_id: str | None = None,
        since: float | None = None,
        limit: int = 1000,
    ) -> tuple[EgressRow, ...]:
        self._check_open()
        found = self._sent(owner, session_id, since)
        return tuple(found[max(0, len(found) - limit) :])

    async def egress_sums(
        self, owner: str | None, *, session_id: str | None = None, since: float | None = None
    ) -> tuple[EgressSum, ...]:
        self._check_open()
        groups: dict[tuple[str, str, str, str], list[EgressRecord]] = {}
        for row in self._sent(owner, session_id, since):
            record = row.record
            key = (record.host, record.destination, record.slot, record.allowed_because)
            groups.setdefault(key, []).append(record)
        sums = [_egress_sum(key, records) for key, records in groups.items()]
        sums.sort(key=lambda each: (-each.bytes_sent, each.host, each.slot, each.allowed_because))
        return tuple(sums)

    async def append_audit(self, entry: AuditEntry) -> AuditRow:
        self._check_open()
        previous = self._audit[-1].hash if self._audit else ""
        row = chained(entry, number=len(self._audit) + 1, previous=previous)
        self._audit.append(row)
        return row

    async def audit_rows(
        self, *, owner: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[AuditRow, ...]:
        self._check_open()
        rows = [row for row in self._audit[after:] if owner in (None, row.entry.owner)]
        return tuple(rows[:limit])

    async def last_audit(self, action: str, subject: str) -> AuditRow | None:
        self._check_open()
        wanted = (action, subject)
        return next(
            (row for row in reversed(self._audit) if (row.entry.action, row.entry.subject) == wanted), None
        )

    async def verify_audit(self) -> AuditCheck:
        self._check_open()
        return verified(self._audit)

    # Retention

    async def delete_owner(self, owner: str) -> int:
        self._check_open()
        owned = {name: kept.record for name, kept in self._sessions.items() if kept.record.owner == owner}
        self._delete(owned)
        self._fingerprints.forget_owner(owner)
        for turn, calls in list(self._calls.items()):
            self._calls[turn] = {n: call for n, call in calls.items() if call.owner != owner}
            if not self._calls[turn]:
                del self._calls[turn]
        self._called = {}
        for session_id, number in self._calls:
            self._called[session_id] = max(number, self._called.get(session_id, 0))
        self._spent = {key: spent for key, spent in self._spent.items() if key[2] != owner}
        self._reserved = {key: held for key, held in self._reserved.items() if held.owner != owner}
        self._egress = deque([row for row in self._egress if row.owner != owner], EGRESS_KEPT)
        return _conversations(owned.values())

    async def delete_older_than(self, before: float) -> int:
        self._check_open()
        old = {
            session_id: kept.record
            for session_id, kept in self._sessions.items()
            if kept.record.updated_at < before and kept.record.running is None
        }
        self._delete(old)
        self._fingerprints.forget_older(before, but=self._is_conversation)
        self._spent = {key: spent for key, spent in self._spent.items() if key[1] >= before}
        self._egress = deque([row for row in self._egress if row.record.at >= before], EGRESS_KEPT)
        return _conversations(old.values())

    async def prune_requests(self, before: float) -> int:
        self._check_open()
        old = [
            session_id
            for session_id, kept in self._sessions.items()
            if kept.record.kind == "requests"
            and kept.record.updated_at < before
            and kept.record.running is None
        ]
        for session_id in old:
            del self._sessions[session_id]
        return len(old)

    async def check(self) -> tuple[str, ...]:
        self._check_open()
        return ()

    # Its insides

    def _check_open(self) -> None:
        if self._closed:
            raise StoreError("closed", "The store is closed.")

    def _find(self, owner: str, session_id: str) -> _Kept | None:
        kept = self._sessions.get(session_id)
        return kept if kept is not None and _is_listed(kept.record, owner) else None

    def _is_conversation(self, session_id: str) -> bool:
        kept = self._sessions.get(session_id)
        return kept is not None and kept.record.kind == "conversation"

    def _running(self, session_id: str, turn: int, epoch: int) -> _Kept:
        """The session, if this turn of it still runs."""
        kept = self._sessions.get(session_id)
        if kept is None or kept.record.running != turn or kept.epoch != epoch:
            raise fenced(turn)
        return kept

    def _add(self, record: SessionRecord, turns: Sequence[StoredTurn]) -> SessionRecord:
        if record.session_id in self._sessions:
            raise taken(record.session_id)
        record = new_session(record, turns, used=self._called.get(record.session_id, 0))
        self._sessions[record.session_id] = _Kept(record, turns)
        for turn in turns:
            self._fingerprints.note_unmarked(record.owner, record.session_id, turn)
        return record

    def _delete(self, session_ids: Iterable[str]) -> None:
        for session_id in session_ids:
            if self._is_conversation(session_id):
                self._fingerprints.forget(session_id)
            del self._sessions[session_id]

    def _sent(self, owner: str | None, session_id: str | None, since: float | None) -> list[EgressRow]:
        return [
            row
            for row in self._egress
            if owner in (None, row.owner)
            and session_id in (None, row.session_id)
            and (since is None or row.record.at >= since)
        ]

    def _usage(self, which: UsageFilter) -> list[CallRow]:
        return [call for calls in self._calls.values() for call in calls.values() if _fits(call, which)]

    def _budget(self, scope: str, window_start: float) -> tuple[int, int]:
        """What is spent and what is reserved."""
        spent = sum([n for key, n in self._spent.items() if key[:2] == (scope, window_start)])
        held = [
            h.amount for h in self._reserved.values() if (h.scope, h.window_start) == (scope, window_start)
        ]
        return spent, sum(held)

    def _settle(self, settlements: Sequence[Settlement]) -> None:
        for settlement in settlements:
            held = self._reserved.pop(settlement.reservation_id, None)
            if held is not None:
                key = (held.scope, held.window_start, held.owner)
                self._spent[key] = self._spent.get(key, 0) + settlement.spent


def _is_listed(session: SessionRecord, owner: str) -> bool:
    """Whether there is such a session for the owner."""
    return session.owner == owner and session.kind == "conversation"


def _conversations(sessions: Iterable[SessionRecord]) -> int:
    return sum([session.kind == "conversation" for session in sessions])


def _egress_sum(key: tuple[str, str, str, str], records: list[EgressRecord]) -> EgressSum:
    host, destination, slot, allowed_because = key
    times = [record.at for record in records]
    return EgressSum(
        host=host,
        destination=destination,
        slot=slot,
        allowed_because=allowed_because,
        requests=len(records),
        bytes_sent=sum([record.bytes_sent for record in records]),
        first_at=min(times),
        last_at=max(times),
    )


def _age(session: SessionRecord) -> tuple[float, str]:
    return session.updated_at, session.session_id


def _fits(call: CallRow, which: UsageFilter) -> bool:
    return (
        which.owner in (None, call.owner)
        and which.session_id in (None, call.session_id)
        and (which.since is None or which.since <= call.opened_at)
        and (which.until is None or call.opened_at < which.until)
    )


def _keys(call: CallRow, by: UsageGroup, utc_offset_s: int) -> tuple[str, ...]:
    """The groups that a call counts in."""
    match by:
        case "day":
            return (datetime.fromtimestamp(call.opened_at + utc_offset_s, UTC).strftime("%Y-%m-%d"),)
        case "session":
            return (call.session_id,)
        case "route":
            return (call.route,)
        case "model":
            return (call.model or "",)
        case "tag":
            return tuple(set(call.tags)) or ("",)


def _sum(key: str, calls: list[CallRow]) -> UsageSum:
    usages = [call.usage for call in calls]
    return UsageSum(
        key=key,
        calls=len(calls),
        unknown_calls=sum([None in (usage.input_tokens, usage.output_tokens) for usage in usages]),
        input_tokens=sum([usage.input_tokens or 0 for usage in usages]),
        output_tokens=sum([usage.output_tokens or 0 for usage in usages]),
        cached_tokens=sum([usage.cached_tokens or 0 for usage in usages]),
        cache_write_tokens=sum([usage.cache_write_tokens or 0 for usage in usages]),
        reasoning_tokens=sum([usage.reasoning_tokens or 0 for usage in usages]),
        cost_usd=sum([call.cost_usd or 0.0 for call in calls]),
        unpriced_calls=sum([call.cost_usd is None for call in calls]),
    )
