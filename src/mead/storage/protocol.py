"""What a store is, and the records that go in and out of it.

Times are in seconds since the epoch and come from the caller: a store has no clock. Every method returns when
what it did is durable (as far as the store is), and raises `StoreError` when it cannot be. Cancelling the
caller never leaves half a write: the operation happens whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from mead.core.conversation import EncodedMessages
from mead.core.options import NO_OPTIONS, BusyPolicy, Options, Route
from mead.core.scope import EgressRecord
from mead.core.turns import Label, Turn
from mead.core.usage import Usage, UsageTotal

# Sessions and turns

SessionKind: TypeAlias = Literal["conversation", "requests"]


class SessionRecord(Struct, frozen=True, kw_only=True):
    """A session without its turns. `options` carry neither scope nor deadline nor route; `state` is the
    handler's, encoded. `parent` is the session that it was forked from.

    A session of the `kind` `requests` is what requests that bring their own history are written down in. It
    has no history. It can be created, and turns can be begun in it; to everything else there is no such
    session, until `prune_requests` deletes it.

    The lower fields are the store's own and are ignored when a session is created. `version` counts the
    changes to history, state and settings: a turn that is done adds one, and so does everything else that
    changes them (a rewind, an update, a recovery). Whoever keeps a session in memory compares it with
    `Begun.version`. `last_number` is the highest turn number ever used. `running` is the number of the turn
    that runs.
    """

    session_id: str
    owner: str = "local"
    created_at: float
    updated_at: float
    title: str | None = None
    tags: tuple[str, ...] = ()
    options: Options = NO_OPTIONS
    turn_timeout_s: float
    busy: BusyPolicy = "queue"
    state: bytes | None = None
    parent: str | None = None
    kind: SessionKind = "conversation"

    version: int = 0
    last_number: int = 0
    running: int | None = None


class SessionChange(Struct, frozen=True, kw_only=True):
    """What is to be changed of a session; a field that is `UNSET` stays."""

    updated_at: float
    title: str | UnsetType | None = UNSET
    tags: tuple[str, ...] | UnsetType = UNSET
    options: Options | UnsetType = UNSET
    turn_timeout_s: float | UnsetType = UNSET
    busy: BusyPolicy | UnsetType = UNSET
    state: bytes | UnsetType | None = UNSET


class StoredTurn(Struct, frozen=True, kw_only=True):
    """A turn of the history. `messages`, `plain` and `closed` are those of `EncodedMessages`."""

    number: int
    messages: bytes
    plain: bool
    closed: bool
    route: Route | None = None
    label: Label = "local_only"
    owner: str = "local"
    usage: UsageTotal | None = None
    finished_at: float
    tags: tuple[str, ...] = ()

    @classmethod
    def of(cls, turn: Turn, *, finished_at: float, tags: tuple[str, ...] = ()) -> StoredTurn:
        """The record of a turn."""
        return cls(
            number=turn.number,
            messages=turn.messages.data,
            plain=turn.messages.plain,
            closed=turn.messages.closed,
            route=turn.route,
            label=turn.label,
            owner=turn.owner,
            usage=turn.usage,
            finished_at=finished_at,
            tags=tags,
        )

    def turn(self) -> Turn:
        """The turn again; its messages are not decoded."""
        return Turn(
            messages=EncodedMessages(self.messages, plain=self.plain, closed=self.closed),
            number=self.number,
            route=self.route,
            label=self.label,
            owner=self.owner,
            usage=self.usage,
        )


class InterruptedTurn(Struct, frozen=True, kw_only=True):
    """A turn whose process died in it: to be shown to the person. `question` is the encoded user message."""

    number: int
    question: bytes
    started_at: float


class TurnStart(Struct, frozen=True, kw_only=True):
    """A turn that is about to run. `question` is the person's message, encoded.

    `number` is the number that the caller has in mind; the store takes the next free one where that is used
    already, see `Begun`. `request_hash` stands for the whole request: a repeat under the same
    `idempotency_key` must have the same one. `call` is the turn's first provider call, which is opened in the
    same step; its `turn` becomes the number that the turn is given.
    """

    session_id: str
    number: int
    owner: str = "local"
    tags: tuple[str, ...] = ()
    question: bytes
    started_at: float
    idempotency_key: str | None = None
    request_hash: str | None = None
    call: CallRow | None = None


class TurnEnd(Struct, frozen=True, kw_only=True):
    """How a turn ended. A turn that is `done` brings `turn`, unless it is of a session without a history, and
    one that `failed` its `reason`'s tag.

    `answer` is the encoded result that is replayed under the turn's idempotency key, of a failure too. A
    failed turn without one gives its key free. `state` becomes the session's; `None` leaves that as it is.
    `told_effects` says that the model was told of all `untold_effects`, so that they are acknowledged.
    `closed` are calls of the turn whose end was not written yet, as `close_call` takes them.
    `fingerprints` are those of the turn's private text, 8 bytes each; `None` says that they were not made.
    """

    session_id: str
    number: int
    status: Literal["done", "failed"]
    finished_at: float
    reason: str | None = None
    turn: StoredTurn | None = None
    answer: bytes | None = None
    state: bytes | None = None
    told_effects: bool = False
    closed: tuple[CallRow, ...] = ()
    fingerprints: bytes | None = None

    def __post_init__(self) -> None:
        if self.status != "done" and self.turn is not None:
            raise ValueError("only a turn that is done brings its record")
        if self.turn is not None and self.turn.number != self.number:
            raise ValueError(f"the record is of turn {self.turn.number}, not {self.number}")


class UnmarkedTurn(Struct, frozen=True, kw_only=True):
    """A `local_only` turn of the history whose fingerprints are still to be made: an imported one, say."""

    owner: str
    session_id: str
    turn: StoredTurn


class TurnMarks(Struct, frozen=True, kw_only=True):
    """The fingerprints of a turn that had none, 8 bytes each; there may be none to keep."""

    session_id: str
    number: int
    fingerprints: bytes
    at: float


# What may become of `begin_turn`


class Begun(Struct, frozen=True, kw_only=True):
    """The turn runs, under this `number`. Each of its writes carries `epoch`. `version` is the session's:
    where it is not the one that the caller knows, somebody else has changed the session, and history and
    state must be loaded anew. `untold` is what `untold_effects` gives."""

    epoch: int
    number: int
    version: int
    untold: tuple[ToolRow, ...] = ()


class AlreadyRunning(Struct, frozen=True, kw_only=True):
    """Another turn of the session runs: here, or in another process that is alive."""

    number: int


class Joined(Struct, frozen=True, kw_only=True):
    """The same request under the same key is running, as turn `number`: here, or in another process. Asking
    again, later, gives `Replayed`."""

    number: int


class Replayed(Struct, frozen=True, kw_only=True):
    """The same request under the same key has ended, as turn `number`. `answer` is what its `TurnEnd`
    brought; `None` means that there was none, for its process died in it: its result is `interrupted`."""

    number: int
    answer: bytes | None


class KeyConflict(Struct, frozen=True):
    """The key was used in this session with another request."""


class NoSession(Struct, frozen=True):
    """The owner has no such session."""


BeginOutcome: TypeAlias = Begun | AlreadyRunning | Joined | Replayed | KeyConflict | NoSession

# Journal and ledger


class CallRow(Struct, frozen=True, kw_only=True):
    """A provider call in the ledger. A count or cost that is `None` is unknown, and never zero.

    `number` counts from 1 within the turn. `status` is `open` while the call is on its way, `closed` when
    its end was seen, `unknown` when it was not. `outcome` is `ok` or a reason's tag. `price_date` says of
    when the price is that `cost_usd` was made with.
    """

    session_id: str
    turn: int
    number: int
    owner: str = "local"
    tags: tuple[str, ...] = ()
    route: str
    provider: str
    model: str | None = None
    opened_at: float
    closed_at: float | None = None
    status: Literal["open", "closed", "unknown"] = "open"
    outcome: str | None = None
    usage: Usage = Usage()
    cost_usd: float | None = None
    price_date: str | None = None


class ToolRow(Struct, frozen=True, kw_only=True):
    """A tool call in the journal; never its arguments or its result. `index` counts from 1 within the turn.
    `unknown` is a call whose end nobody saw: it may have had its effect or not."""

    session_id: str
    turn: int
    index: int
    name: str
    effect: bool
    server: str | None = None
    status: Literal["started", "done", "error", "unknown"] = "started"


class EgressRow(Struct, frozen=True, kw_only=True):
    """What left this machine, for which turn."""

    session_id: str
    turn: int
    owner: str = "local"
    record: EgressRecord


class EgressSum(Struct, frozen=True, kw_only=True):
    """What went to one host, added up. `first_at` and `last_at` are in seconds since the epoch. Records whose
    `destination`, `slot` or `allowed_because` differ are added up apart."""

    host: str
    destination: str
    slot: str
    allowed_because: str
    requests: int
    bytes_sent: int
    first_at: float
    last_at: float


class UsageFilter(Struct, frozen=True, kw_only=True):
    """Which rows of the ledger: `since` ≤ opened < `until`. `None` is no limit."""

    owner: str | None = None
    session_id: str | None = None
    since: float | None = None
    until: float | None = None


ALL_USAGE = UsageFilter()
UsageGroup: TypeAlias = Literal["day", "session", "route", "model", "tag"]


class UsageSum(Struct, frozen=True, kw_only=True):
    """The calls of one group, added up. `key` is the day as `2026-12-31`, the session's id, the route, the
    model (empty if unknown) or the tag (empty for calls without one; a call with two counts in both).

    `unknown_calls` did not say their input or output tokens, `unpriced_calls` have no known cost: where there
    are any, the sums are lower bounds.
    """

    key: str
    calls: int
    unknown_calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_usd: float
    unpriced_calls: int


# Budgets


class Reservation(Struct, frozen=True, kw_only=True):
    """Some of a budget, set aside for a call. `scope` names the budget, `window_start` the day, month … that
    it is counted in. `amount` and `limit` are whole numbers of the budget's unit: tokens, or billionths of a
    US dollar. `reservation_id` is the caller's, and unique."""

    reservation_id: str
    scope: str
    window_start: float
    amount: int
    limit: int
    owner: str = "local"


class Settlement(Struct, frozen=True, kw_only=True):
    """What a reservation came to: `spent`, which may be more or less than was reserved."""

    reservation_id: str
    spent: int


class Reserved(Struct, frozen=True):
    """All of it is set aside."""


class OverBudget(Struct, frozen=True, kw_only=True):
    """Nothing is set aside: `scope` has only `limit - spent - reserved` left in this window."""

    scope: str
    limit: int
    spent: int
    reserved: int


# Audit


class AuditEntry(Struct, frozen=True, kw_only=True):
    """Something worth remembering: who did what to what. Never any content of a conversation."""

    at: float
    owner: str
    action: str
    subject: str
    details: Mapping[str, str] = {}


class AuditRow(Struct, frozen=True, kw_only=True):
    """An entry in the chain. `number` counts from 1. `hash` is the SHA-256 of the row and `previous`, in
    hexadecimal digits; the first row's `previous` is empty."""

    number: int
    entry: AuditEntry
    previous: str
    hash: str


class AuditCheck(Struct, frozen=True, kw_only=True):
    """The chain, verified: `rows` were read. `broken` is the number of the first row that is not as it was
    written, `None` if there is none. `head` is the last hash: kept elsewhere, it shows that rows were cut off
    the end."""

    rows: int
    head: str
    broken: int | None


class Store(Protocol):
    """Keeps sessions, journal and ledger. It may be shared by threads and event loops; each call belongs to
    the loop that made it."""

    async def open(self) -> None:
        """Makes the store ready, and recovers what dead processes left: their turns become `interrupted`,
        their started tools and open calls `unknown`, their reservations count as spent, their sessions are
        free. A store is opened once."""

    async def aclose(self) -> None:
        """Finishes what was asked before, and closes. Turns that still run become `interrupted`. May be
        called twice; every other method raises `StoreError` (`closed`) from then on."""

    # Sessions

    async def create_session(self, session: SessionRecord, turns: Sequence[StoredTurn] = ()) -> None:
        """Keeps a new session, with the history that it begins with. Raises `ValueError` for an id that is
        taken."""

    async def get_session(self, owner: str, session_id: str) -> SessionRecord | None:
        """The owner's session; `None` if there is none."""

    async def list_sessions(
        self, owner: str, *, limit: int = 50, before: tuple[float, str] | None = None
    ) -> tuple[SessionRecord, ...]:
        """The owner's sessions, the last updated first, without their `state`. To go on, `before` is
        `(updated_at, session_id)` of the last one that was given."""

    async def update_session(self, owner: str, session_id: str, change: SessionChange) -> bool:
        """Changes a session, also while a turn runs. False if there is none."""

    async def delete_session(self, owner: str, session_id: str) -> bool:
        """Deletes a session, its turns, its journal and its fingerprints, so that no file of the store holds
        its text any more. A turn that runs is fenced. The ledger and the egress log keep their figures. False
        if there is none.

        Where another process is in the middle of reading, its end is awaited for some seconds; what could not
        be scrubbed then is tried again until it is done, and a warning is logged."""

    async def turns_of(self, session_id: str) -> tuple[StoredTurn, ...]:
        """The session's history, the oldest turn first; empty for a session that is not there."""

    async def fork(
        self, owner: str, session_id: str, *, new_id: str, at: float, up_to: int | None = None
    ) -> SessionRecord | None:
        """A new session with the settings and the turns up to number `up_to`, or all. The handler's state
        goes along only with all; the journal stays behind. `None` if there is no such session; raises
        `ValueError` if `new_id` is taken."""

    async def rewind(
        self, owner: str, session_id: str, *, to: int, at: float
    ) -> SessionRecord | AlreadyRunning | None:
        """Takes the turns after number `to` from the history, with their fingerprints, and the handler's
        state if there were any. The journal keeps the tools that ran. What files may still hold of their text
        goes with the next deletion of a session. `None` if there is no such session."""

    # Turns

    async def begin_turn(self, start: TurnStart) -> BeginOutcome:
        """Claims the session for a turn. A caller that is cancelled meanwhile has begun nothing.

        The key is looked at first. A session whose process is dead is recovered on the way.
        """

    async def open_call(self, call: CallRow, *, epoch: int) -> None:
        """Writes that a provider call is about to be made. Raises `Fenced`, or `ValueError` for a number that
        the turn has used."""

    async def close_call(self, call: CallRow, settle: Sequence[Settlement] = ()) -> None:
        """Writes how a call ended, and settles what was reserved for it, in one step. It is a fact, so it is
        taken of a turn that is over, too, and needs no epoch. `call` is the whole row."""

    async def start_tool(self, tool: ToolRow, *, epoch: int) -> None:
        """Writes that a tool is about to be run; only who has returned from this may run it. Raises `Fenced`,
        or `ValueError` for an index that the turn has used."""

    async def finish_tool(self, tool: ToolRow) -> None:
        """Writes how a tool call ended. It is a fact, as in `close_call`."""

    async def end_turn(self, end: TurnEnd, *, epoch: int) -> None:
        """Ends a turn in one step: its messages enter the history (if it is `done`), the state changes, the
        session is free, its fingerprints are kept. Calls still `open` and tools still `started` become
        `unknown`. Raises `Fenced`.

        A turn that enters the history adds one to the session's `version`: who had `Begun.version` knows the
        next."""

    async def interrupted_turns(self, session_id: str) -> tuple[InterruptedTurn, ...]:
        """The turns that a crash cut off, the oldest first."""

    async def untold_effects(self, session_id: str) -> tuple[ToolRow, ...]:
        """The tools with an effect that the history does not tell of, in the order of their calls: those of
        turns that did not enter it or were rewound, and those of unknown outcome when their turn ended;
        without the acknowledged ones and those of the turn that runs."""

    async def acknowledge_effects(self, session_id: str, *, before: int) -> None:
        """The model, or the person, was told of the effects of the turns before number `before`."""

    async def tools_of(self, session_id: str, turn: int | None = None) -> tuple[ToolRow, ...]:
        """The journal of a session, or of one of its turns."""

    # Fingerprints of private text

    async def fingerprints_since(self, owner: str, cursor: int = 0) -> tuple[bytes, int]:
        """The fingerprints that were kept of an owner's turns after those that `cursor` stands for, 8 bytes
        each, and the new cursor. 0 is the beginning. One answer need not hold them all: it is the last one
        when the cursor stays as it is. What was deleted is not given any more."""

    async def unmarked_turns(self, owner: str, *, limit: int = 50) -> tuple[UnmarkedTurn, ...]:
        """Turns of the owner's histories that are `local_only` and have never got fingerprints."""

    async def mark_turns(self, marks: Sequence[TurnMarks]) -> None:
        """Gives such turns their fingerprints. One that has them already, or is not there, is left alone."""

    # Ledger and budgets

    async def usage_rows(self, which: UsageFilter = ALL_USAGE, *, limit: int = 1000) -> tuple[CallRow, ...]:
        """Rows of the ledger, the newest first."""

    async def usage_sums(
        self, by: UsageGroup, which: UsageFilter = ALL_USAGE, *, utc_offset_s: int = 0
    ) -> tuple[UsageSum, ...]:
        """Sums of the ledger, sorted by key. A day begins `utc_offset_s` seconds before that of UTC."""

    async def reserve(self, wanted: Sequence[Reservation]) -> Reserved | OverBudget:
        """Sets all of it aside, or nothing, for all processes in one step. A caller that is cancelled
        meanwhile has reserved nothing. Raises `ValueError` for an id that is taken."""

    async def settle(self, settlements: Sequence[Settlement]) -> None:
        """Turns reservations into what was spent. One that is not there (any more) is left alone."""

    async def release(self, reservation_ids: Sequence[str]) -> None:
        """Gives reservations back. One that is not there (any more) is left alone."""

    async def spent(self, scope: str, window_start: float) -> tuple[int, int]:
        """What is spent of a budget, and what is reserved."""

    # Egress and audit

    def add_egress(self, row: EgressRow) -> None:
        """Writes down what left, soon and in order; does not wait. A failure is logged."""

    async def egress(
        self,
        owner: str | None,
        *,
        session_id: str | None = None,
        since: float | None = None,
        limit: int = 1000,
    ) -> tuple[EgressRow, ...]:
        """The newest records of what left, of one session or of all of the owner's, the oldest first; `since`
        is the earliest time, and `None` for the owner means every owner."""

    async def egress_sums(
        self, owner: str | None, *, session_id: str | None = None, since: float | None = None
    ) -> tuple[EgressSum, ...]:
        """Sums of all those records, the largest first."""

    async def append_audit(self, entry: AuditEntry) -> AuditRow:
        """Adds an entry to the audit chain."""

    async def audit_rows(
        self, *, owner: str | None = None, after: int = 0, limit: int = 1000
    ) -> tuple[AuditRow, ...]:
        """The rows after number `after`, the oldest first."""

    async def last_audit(self, action: str, subject: str) -> AuditRow | None:
        """The newest row about `subject` with this `action`; `None` if there is none."""

    async def verify_audit(self) -> AuditCheck:
        """Reads the whole chain and checks every hash."""

    # Retention

    async def delete_owner(self, owner: str) -> int:
        """Deletes everything of an owner as `delete_session` does, ledger, egress, budgets and every
        fingerprint too. The audit chain stays: it holds no content. Gives the number of conversations."""

    async def delete_older_than(self, before: float) -> int:
        """Deletes the sessions that were last updated before, as `delete_session` does, and egress records,
        budget windows and fingerprints of requests as old. Sessions with a running turn, and the ledger,
        stay. Gives the number of conversations."""

    async def prune_requests(self, before: float) -> int:
        """Deletes the sessions of the kind `requests` that were last used before, as `delete_session` does,
        but for their fingerprints. Those with a running turn stay. Gives the number of sessions."""

    async def check(self) -> tuple[str, ...]:
        """Reads everything and gives the faults that were found, a sentence each."""
