"""What a turn writes down while it runs, so that nothing acknowledged is lost and no effect happens twice.

Each intent is stored before it is carried out: a call before it is sent, a tool before it is run. The end of
a turn is one step, in which it enters the history whole, or not at all.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from msgspec import UNSET

from mead.core.conversation import EncodedMessages, encode_open
from mead.core.options import TurnOptions
from mead.core.reasons import (
    Crashed,
    IdempotencyConflict,
    Interrupted,
    NoSuchSession,
    SessionBusy,
    TurnReason,
)
from mead.core.result import Err, Ok
from mead.core.scope import CallRecord, EgressRecord
from mead.core.turns import Answer, Turn, TurnResult
from mead.core.unbroken import unbroken
from mead.core.usage import Usage
from mead.sessions.stored import create_stored
from mead.storage import Fenced, Store, StoreError
from mead.storage.protocol import (
    AlreadyRunning,
    AuditEntry,
    BeginOutcome,
    Begun,
    CallRow,
    EgressRow,
    Joined,
    KeyConflict,
    NoSession,
    Replayed,
    StoredTurn,
    ToolRow,
    TurnEnd,
    TurnStart,
)

if TYPE_CHECKING:
    from mead.sessions.session import Session

Cost: TypeAlias = Callable[[CallRecord, Usage | None], "tuple[float | None, str | None]"]
"""What a call cost in US dollars, and of when the price is."""

_log = logging.getLogger("mead.sessions")


class Begin(msgspec.Struct, frozen=True):
    """A turn that may run. `reload` says that the session was changed elsewhere since it was loaded; `note`
    tells of effects of earlier turns that the history does not show."""

    number: int
    reload: bool = False
    note: str | None = None


class Unended(msgspec.Struct, frozen=True):
    """A turn whose end the store could not take, and what is to be kept of its private text."""

    number: int
    epoch: int
    fingerprints: bytes | None = None


class TurnJournal:
    """The journal of one turn, in a store."""

    def __init__(
        self, store: Store, session: Session, options: TurnOptions, question: EncodedMessages, cost: Cost
    ) -> None:
        self._store = store
        self._session = session
        self._options = options
        self._question = question
        self._is_request = session.kind == "requests"
        self._cost = cost
        self._number = 0
        self._epoch: int | None = None
        self._is_waiting = False
        self._version = 0
        self._calls: dict[int, CallRow] = {}
        self._closed: list[CallRow] = []
        self._tools: dict[str, list[ToolRow]] = {}
        self._tools_started = 0
        self._had_effects = False

    @property
    def has_begun(self) -> bool:
        """Whether the session is claimed, so that the turn has an end to be written."""
        return self._epoch is not None or self._is_waiting

    async def begin(self, number: int) -> Begin | TurnResult:
        """Claims the session; a result where the turn is not to be run at all."""
        await self._free()
        if self._is_request and self._options.idempotency_key is None:
            # Nobody else has its session: the claim is written with the first call.
            self._number, self._is_waiting = number, True
            return Begin(number)
        match await self._begin(number):
            case Begun(epoch=epoch, number=given, version=version, untold=untold):
                self._epoch, self._number, self._version = epoch, given, version
                if self._is_request:  # what went before was another conversation
                    return Begin(given)
                return Begin(given, reload=version != self._session.version, note=note_of(untold))
            case AlreadyRunning():
                return Err(SessionBusy(detail="another process is answering a turn of the session"))
            case Joined():
                return Err(SessionBusy(detail="the same request is being answered by another process"))
            case Replayed(answer=None):
                return Err(Interrupted(detail="the process that ran this turn died in it"))
            case Replayed(answer=answer):
                return decode_result(answer or b"", brought=self._brought)
            case KeyConflict():
                return Err(
                    IdempotencyConflict(detail="the idempotency key was used before, with another request")
                )
            case NoSession():
                return Err(NoSuchSession(detail="the session was deleted"))

    async def _claimed(self, call: CallRow | None = None) -> int:
        """The epoch of the claim. One that was put off is written now, with a first `call`. Raises `Fenced`
        where it is lost, or not to be had."""
        if self._is_waiting:
            self._is_waiting = False
            outcome = await self._begin(self._number, call)
            if isinstance(outcome, Begun):
                self._epoch, self._number, self._version = outcome.epoch, outcome.number, outcome.version
        elif call is not None and self._epoch is not None:
            await self._store.open_call(call, epoch=self._epoch)
        if self._epoch is None:
            raise Fenced
        return self._epoch

    @property
    def _brought(self) -> EncodedMessages | None:
        """What a client has brought: it is not kept, for who repeats the request brings it again."""
        return self._question if self._is_request else None

    async def _begin(self, number: int, call: CallRow | None = None) -> BeginOutcome:
        session, options = self._session, self._options
        start = TurnStart(
            session_id=session.session_id,
            number=number,
            owner=session.owner,
            tags=options.tags,
            question=b"" if self._is_request else self._question.data,
            started_at=time.time(),
            idempotency_key=options.idempotency_key,
            request_hash=request_hash(self._question, options) if options.idempotency_key else None,
            call=call,
        )
        if self._is_request and not session.is_stored:
            await self._create()
        outcome = await self._store.begin_turn(start)
        if self._is_request and isinstance(outcome, NoSession):  # it was not used for long, and deleted
            await self._create()
            outcome = await self._store.begin_turn(start)
        return outcome

    async def _create(self) -> None:
        """Keeps the session of a request; for one with a key another process may have done so."""
        with contextlib.suppress(ValueError):
            await create_stored(self._store, self._session)
        self._session.is_stored = True

    async def _free(self) -> None:
        """Ends an earlier turn whose end could not be written down: the store still takes it for running."""
        if self._session.unended is None:
            return
        unended = self._session.unended
        end = TurnEnd(
            session_id=self._session.session_id,
            number=unended.number,
            status="failed",
            finished_at=time.time(),
            reason="crashed",
            fingerprints=unended.fingerprints,
        )
        with contextlib.suppress(Fenced):
            await self._store.end_turn(end, epoch=unended.epoch)
        self._session.unended = None

    async def open_call(self, call: CallRecord) -> None:
        """Before a provider call is sent."""
        await self._tell_closed()
        row = CallRow(
            session_id=self._session.session_id,
            turn=self._number,
            number=call.number,
            owner=self._session.owner,
            tags=self._options.tags,
            route=call.route,
            provider=call.provider,
            model=call.model,
            opened_at=time.time(),
        )
        await self._claimed(row)
        self._calls[call.number] = msgspec.structs.replace(row, turn=self._number)

    async def close_call(self, call: CallRecord, usage: Usage | None, status: str) -> None:
        """After it, however it ended. It is written with what comes next, which is mostly the turn's end."""
        row = self._calls.pop(call.number, None)
        if row is None:
            return
        cost, price_date = self._cost(call, usage)
        closed = msgspec.structs.replace(
            row,
            closed_at=time.time(),
            status="closed" if usage is not None else "unknown",
            outcome=status,
            usage=usage or Usage(),
            cost_usd=cost,
            price_date=price_date,
        )
        self._closed.append(closed)
        if not self.has_begun:  # the turn is over: nothing comes any more
            await self._tell_closed()

    async def _tell_closed(self) -> None:
        """Writes how calls ended that are not written yet."""
        closed, self._closed = self._closed, []
        for row in closed:
            await unbroken(self._store.close_call(row))

    async def _tell_anyway(self, closed: Sequence[CallRow]) -> None:
        """Writes how calls ended where the end of their turn cannot be written: they are facts."""
        self._closed = list(closed)
        with contextlib.suppress(StoreError):
            await self._tell_closed()

    async def start_tool(self, call_id: str, name: str, *, effect: bool) -> None:
        """Before a tool is run."""
        await self._tell_closed()
        epoch = await self._claimed()
        self._tools_started += 1
        self._had_effects |= effect
        row = ToolRow(
            session_id=self._session.session_id,
            turn=self._number,
            index=self._tools_started,
            name=name,
            effect=effect,
        )
        await self._store.start_tool(row, epoch=epoch)
        self._tools.setdefault(call_id, []).append(row)

    async def finish_tool(self, call_id: str, *, is_error: bool, unknown: bool = False) -> None:
        """After it. The outcome of one that was broken off is unknown."""
        rows = self._tools.get(call_id)
        if not rows:
            return
        status: Literal["unknown", "error", "done"] = (
            "unknown" if unknown else "error" if is_error else "done"
        )
        await unbroken(self._store.finish_tool(msgspec.structs.replace(rows.pop(0), status=status)))

    async def audit(self, action: str, subject: str, details: Mapping[str, str]) -> None:
        """Adds to the audit chain: who did what to what, and nothing of what was said."""
        session_id = self._session.session_id
        told = {"session": session_id, "turn": str(self._number), **details}
        entry = AuditEntry(
            at=time.time(), owner=self._session.owner, action=action, subject=subject, details=told
        )
        await self._store.append_audit(entry)

    def sent(self, record: EgressRecord) -> None:
        """Something leaves this machine."""
        session = self._session
        row = EgressRow(session_id=session.session_id, turn=self._number, owner=session.owner, record=record)
        self._store.add_egress(row)

    async def end(
        self, result: TurnResult, turn: Turn | None, *, told: bool, fingerprints: bytes | None = None
    ) -> TurnResult:
        """Writes the turn's end, in one step; what then counts as its result. Not broken off by a cancel."""
        if not self.has_begun:
            return result
        try:
            epoch = await self._claimed()
        except Fenced:
            return Err(Interrupted(detail="another process has taken the session over"))
        except StoreError as error:
            return Err(Crashed(error="StoreError", detail=str(error)))
        now, closed = time.time(), tuple(self._closed)
        self._closed = []
        state = None
        if self._is_request:  # there is no history that could tell of it
            turn, told = None, True
        elif isinstance(result, Ok) and result.value.state is not UNSET:
            state = _encoded_state(result.value.state)
        # A failed turn may be repeated under its key, unless something was done in it: that is done once.
        replays = isinstance(result, Ok) or self._had_effects
        keyed = self._options.idempotency_key is not None and replays
        end = TurnEnd(
            session_id=self._session.session_id,
            number=self._number,
            status="done" if isinstance(result, Ok) else "failed",
            finished_at=now,
            reason=None if isinstance(result, Ok) else result.reason.tag,
            turn=None if turn is None else StoredTurn.of(turn, finished_at=now, tags=self._options.tags),
            answer=encode_result(result, brought=self._brought) if keyed else None,
            state=state,
            told_effects=told,
            fingerprints=fingerprints,
            closed=closed,
        )
        self._epoch = None
        try:
            await unbroken(self._store.end_turn(end, epoch=epoch))
        except Fenced:
            await self._tell_anyway(closed)
            return Err(Interrupted(detail="another process has taken the session over"))
        except StoreError as error:
            await self._tell_anyway(closed)
            self._session.unended = Unended(self._number, epoch, fingerprints)
            _log.error("the end of turn %s/%d was not stored: %s", end.session_id, end.number, error)
            return Err(Crashed(error="StoreError", detail=str(error)))
        if turn is not None:
            self._session.version = self._version + 1
        return result


_OUTCOMES = {
    "started": "its outcome is unknown: it may have been carried out or not",
    "unknown": "its outcome is unknown: it may have been carried out or not",
    "done": "carried out",
    "error": "failed; part of it may have been carried out",
}


def note_of(untold: Sequence[ToolRow]) -> str | None:
    """What the model is told of effects that the history does not show."""
    if not untold:
        return None
    said = ", ".join([f"{row.name} ({_OUTCOMES[row.status]})" for row in untold])
    return (
        "Earlier turns that this conversation does not show called tools with side effects: "
        f"{said}. Do not call them again without checking what is so."
    )


def request_hash(question: EncodedMessages, options: TurnOptions) -> str:
    """Stands for all that a request asks for."""
    chosen = msgspec.structs.replace(options.options, scope=None, deadline=None)
    parts = [
        options.route,
        options.tools,
        options.allow_private,
        msgspec.to_builtins(chosen),
        options.client_tools,
    ]
    return hashlib.sha256(question.data + b"\0" + msgspec.json.encode(parts)).hexdigest()


# Results and handlers' state as bytes


def encode_result(result: TurnResult, *, brought: EncodedMessages | None = None) -> bytes:
    """A turn's result, to be given again under its idempotency key, without the messages that were `brought`
    for it."""
    if isinstance(result, Err):
        return msgspec.json.encode({"reason": result.reason})
    answer = result.value
    fields = {name: getattr(answer, name) for name in Answer.__struct_fields__}
    data = answer.messages.data
    if brought is not None:  # by their number: results of tools may have been cut to the model's context
        data = encode_open(answer.messages.decode()[len(brought.decode()) :]).data
    fields["messages"] = {
        "data": data,
        "brought": brought is not None,
        "plain": answer.messages.plain,
        "closed": answer.messages.closed,
    }
    handed = answer.handed_over
    fields["handed_over"] = None if handed is None else handed.data
    fields.pop("state")
    return msgspec.json.encode(fields)


def decode_result(data: bytes, *, brought: EncodedMessages | None = None) -> TurnResult:
    """The result again, without the handler's state. `brought` is what it was encoded with."""
    found = msgspec.json.decode(data)
    if "reason" in found:
        return Err(msgspec.convert(found["reason"], type=TurnReason))
    messages = found.pop("messages")
    parts = [base64.b64decode(messages["data"])]
    if brought is not None and messages.get("brought"):
        parts.insert(0, brought.data)
    encoded = EncodedMessages(
        b",".join(filter(None, parts)), plain=messages["plain"], closed=messages["closed"]
    )
    fields = {
        name: msgspec.convert(value, type=_ANSWER_TYPES[name])
        for name, value in found.items()
        if name in _ANSWER_TYPES
    }
    if (handed := found.get("handed_over")) is not None:
        fields["handed_over"] = EncodedMessages(base64.b64decode(handed), plain=False, closed=False)
    return Ok(Answer(messages=encoded, **fields))


_ANSWER_TYPES = {
    field.name: field.type
    for field in msgspec.structs.fields(Answer)
    if field.name not in ("messages", "state", "handed_over")
}


def _encoded_state(state: object) -> bytes | None:
    """The handler's state as JSON; one that is none is kept in this process only."""
    try:
        return msgspec.json.encode(state)
    except (TypeError, ValueError):
        _log.warning("the handler's state of type %s cannot be stored", type(state).__name__)
        return None
