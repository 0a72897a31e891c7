"""A session: one conversation, one turn at a time (S6), whole turns only (S7)."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from msgspec import UNSET

from mead.core.conversation import encode
from mead.core.messages import Message, ToolResultBlock, blocks_of
from mead.core.options import NO_OPTIONS, BusyPolicy, Options
from mead.core.reasons import SessionBusy, TurnReason
from mead.core.repair import repair
from mead.core.result import Err, Ok
from mead.core.turns import Handler, Turn, TurnResult
from mead.sessions.approvals import Grant
from mead.sessions.journal import Unended
from mead.sessions.run import EndCause, TurnRun, tell_turn
from mead.storage.protocol import SessionKind

_ReasonT = TypeVar("_ReasonT", bound=TurnReason)

MAX_WAITING = 1_000
"""How many turns may wait in a session; the next one is refused."""


class Session:
    """The history and the waiting turns of one conversation. An idle one holds no task and no timer.

    `version` is the store's count of its changes; `load` reads it anew. `unended` is a turn whose
    end the store could not take. One of the `kind` `requests` keeps no turns and no state:
    requests that bring their own history run in it. `is_stored` says whether the store has it already.
    """

    __slots__ = (
        "_grants",
        "_load",
        "_queue",
        "_replacing",
        "_running",
        "busy",
        "handler",
        "is_stored",
        "kind",
        "last_number",
        "options",
        "owner",
        "session_id",
        "state",
        "tags",
        "turn_timeout_s",
        "turns",
        "unended",
        "version",
    )

    def __init__(
        self,
        session_id: str,
        owner: str,
        handler: Handler,
        *,
        turn_timeout_s: float,
        busy: BusyPolicy = "queue",
        options: Options = NO_OPTIONS,
        state: object = None,
        turns: Sequence[Turn] = (),
        tags: tuple[str, ...] = (),
        version: int = 0,
        kind: SessionKind = "conversation",
        load: Callable[[], Awaitable[tuple[list[Turn], object, int]]] | None = None,
    ) -> None:
        self.session_id = session_id
        self.owner = owner
        self.handler = handler
        self.turn_timeout_s = turn_timeout_s
        self.busy: BusyPolicy = busy
        self.options = options
        self.state = state
        self.turns = list(turns)
        self.tags = tags
        self.last_number = max([turn.number for turn in self.turns], default=0)
        self.version = version
        self.kind: SessionKind = kind
        self.is_stored = False
        self.unended: Unended | None = None
        self._load = load
        self._running: TurnRun | None = None
        self._queue: deque[TurnRun] | None = None
        self._replacing: TurnRun | None = None
        self._grants: list[Grant] | None = None

    @property
    def grants(self) -> list[Grant]:
        """What a person has said of tool calls, for as long as the session lasts."""
        if self._grants is None:
            self._grants = []
        return self._grants

    def keyed(self, key: str) -> TurnRun | None:
        """The turn under an idempotency key that runs or waits here, if there is one."""
        runs = [*([self._running] if self._running else []), *(self._queue or ())]
        return next((run for run in runs if run.options.idempotency_key == key), None)

    @property
    def is_idle(self) -> bool:
        """Whether no turn runs."""
        return self._running is None

    def next_number(self) -> int:
        """The number of a turn that is about to be submitted."""
        self.last_number += 1
        return self.last_number

    def refusal(self, busy: BusyPolicy) -> SessionBusy | None:
        """Why a turn cannot be submitted now; `None` if it can (S6)."""
        if self._running is None:
            return None
        if busy == "reject":
            return SessionBusy(detail="another turn of the session is running")
        if busy == "queue" and self._queue is not None and len(self._queue) >= MAX_WAITING:
            return SessionBusy(detail=f"{MAX_WAITING:,} turns of the session are waiting already")
        return None

    def refuse(self, reason: _ReasonT) -> Err[_ReasonT]:
        """Tells of a turn that is not taken: it has an event (T2), and no number."""
        tell_turn(self, None, reason)
        return Err(reason)

    def submit(self, run: TurnRun, busy: BusyPolicy, queue_timeout_s: float) -> None:
        """Starts the turn, or has it wait its turn, or puts it in place of the running one (S6)."""
        if self._running is None:
            self._start(run)
            return
        if self._queue is None:
            self._queue = deque()
        run.wait_in_queue(queue_timeout_s)
        if busy == "interrupt":
            if self._replacing is not None and self._replacing in self._queue:
                self._replacing.end("interrupted")  # it has waited for the same place
            self._replacing = run
            self._queue.appendleft(run)
            self._running.end("interrupted")
        else:
            self._queue.append(run)

    def end_running(self, cause: EndCause) -> bool:
        """Ends the turn that is running, if one is."""
        if self._running is None:
            return False
        self._running.end(cause)
        return True

    def end_all(self, cause: EndCause) -> list[TurnRun]:
        """Ends the running turn and all that wait; they are given back."""
        runs = self.runs
        for run in (*runs[1:], *runs[:1]):  # those that wait first: none of them is to begin
            run.end(cause)
        return runs

    @property
    def runs(self) -> list[TurnRun]:
        """The turn that runs, then those that wait."""
        return [*([self._running] if self._running else []), *(self._queue or ())]

    def on_end(self, run: TurnRun, result: TurnResult) -> None:
        """Commits a turn that succeeded, and starts the next one."""
        turn = run.turn_of(result)
        if isinstance(result, Ok) and turn is not None and self.kind == "conversation":
            self.turns.append(turn)
            self.last_number = max(self.last_number, turn.number)
            if result.value.state is not UNSET:
                self.state = result.value.state
        if run is self._running:
            self._running = None
            if self._queue:
                self._start(self._queue.popleft())
        elif self._queue and run in self._queue:
            self._queue.remove(run)

    def _start(self, run: TurnRun) -> None:
        self._running = run
        if run is self._replacing:
            self._replacing = None
        run.start(self.handler)

    async def reload(self) -> None:
        """Takes over what another process has made of the session in the store."""
        assert self._load is not None  # only a stored session changes elsewhere
        self.turns, self.state, self.version = await self._load()


def new_session_id() -> str:
    """An id for a session. It never begins with a dash: a command line would take it for an option."""
    while (made := secrets.token_urlsafe(12)).startswith("-"):
        pass
    return made


def imported(messages: Sequence[Message], *, owner: str) -> list[Turn]:
    """A history that came from elsewhere, as turns. Nobody knows where it has been: it is `local_only`."""
    turns: list[Turn] = []
    pending: list[Message] = []
    for message in repair(messages):
        begins = message.role == "user" and not any(
            isinstance(block, ToolResultBlock) for block in blocks_of(message)
        )
        if begins and pending:
            turns.append(_imported_turn(pending, len(turns) + 1, owner))
            pending = []
        pending.append(message)
    if pending:
        turns.append(_imported_turn(pending, len(turns) + 1, owner))
    return turns


def _imported_turn(messages: list[Message], number: int, owner: str) -> Turn:
    return Turn(messages=encode(messages), number=number, label="local_only", owner=owner)
