"""A session: one conversation, one turn at a time (S6), whole turns only (S7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec import UNSET

from mead.core.conversation import encode
from mead.core.messages import Message, ToolResultBlock, blocks_of
from mead.core.options import NO_OPTIONS, BusyPolicy, Options, Route
from mead.core.reasons import SessionBusy
from mead.core.repair import repair
from mead.core.result import Err, Ok
from mead.core.turns import Handler, Turn
from mead.sessions.approvals import Grant
from mead.sessions.run import EndCause, TurnResult, TurnRun


class Session:
    """The history and the waiting turns of one conversation. An idle one holds no task and no timer."""

    __slots__ = (
        "_grants",
        "_queue",
        "_running",
        "busy",
        "handler",
        "last_number",
        "options",
        "owner",
        "session_id",
        "state",
        "tags",
        "turn_timeout_s",
        "turns",
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
        self.last_number = len(self.turns)
        self._running: TurnRun | None = None
        self._queue: deque[TurnRun] | None = None
        self._grants: list[Grant] | None = None

    @property
    def grants(self) -> list[Grant]:
        """What a person has said of tool calls, for as long as the session lasts."""
        if self._grants is None:
            self._grants = []
        return self._grants

    @property
    def is_idle(self) -> bool:
        """Whether no turn runs or waits."""
        return self._running is None and not self._queue

    def next_number(self) -> int:
        """The number of a turn that is about to be submitted."""
        self.last_number += 1
        return self.last_number

    def submit(self, run: TurnRun, busy: BusyPolicy, queue_timeout_s: float) -> Err[SessionBusy] | None:
        """Starts the turn, or has it wait its turn, or refuses it; see S6."""
        if self._running is None:
            self._start(run)
            return None
        if busy == "reject":
            return Err(SessionBusy(detail="another turn of the session is running"))
        if self._queue is None:
            self._queue = deque()
        run.wait_in_queue(queue_timeout_s)
        if busy == "interrupt":
            self._queue.appendleft(run)
            self._running.end("interrupted")
        else:
            self._queue.append(run)
        return None

    def end_running(self, cause: EndCause) -> bool:
        """Ends the turn that is running, if one is."""
        if self._running is None:
            return False
        self._running.end(cause)
        return True

    def end_all(self, cause: EndCause) -> list[TurnRun]:
        """Ends the running turn and all that wait; they are given back."""
        waiting = list(self._queue or ())
        running = [self._running] if self._running else []
        for run in (*waiting, *running):
            run.end(cause)
        return running + waiting

    def on_end(self, run: TurnRun, result: TurnResult) -> None:
        """Commits a turn that succeeded, and starts the next one."""
        if isinstance(result, Ok):
            answer = result.value
            self.turns.append(
                Turn(
                    messages=answer.messages,
                    number=run.number,
                    route=answer.route,
                    label=answer.label,
                    owner=self.owner,
                    usage=answer.usage,
                )
            )
            if answer.state is not UNSET:
                self.state = answer.state
        if run is self._running:
            self._running = None
            if self._queue:
                self._start(self._queue.popleft())
        elif self._queue and run in self._queue:
            self._queue.remove(run)

    def _start(self, run: TurnRun) -> None:
        self._running = run
        newest = Turn(messages=run.newest, number=run.number, label="shareable", owner=self.owner)
        run.start(self.handler, [*self.turns, newest], self.state)


def imported(messages: Sequence[Message], *, owner: str, route: Route | None = None) -> list[Turn]:
    """A history that came from elsewhere, as turns. Nobody knows where it has been: it is `local_only`."""
    turns: list[Turn] = []
    pending: list[Message] = []
    for message in repair(messages):
        begins = message.role == "user" and not any(
            isinstance(block, ToolResultBlock) for block in blocks_of(message)
        )
        if begins and pending:
            turns.append(_imported_turn(pending, len(turns) + 1, owner, route))
            pending = []
        pending.append(message)
    if pending:
        turns.append(_imported_turn(pending, len(turns) + 1, owner, route))
    return turns


def _imported_turn(messages: list[Message], number: int, owner: str, route: Route | None) -> Turn:
    return Turn(messages=encode(messages), number=number, route=route, label="local_only", owner=owner)
