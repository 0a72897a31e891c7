"""One turn on its way through a session: its task, its clock, its end.

A run ends exactly once. Whatever its task does afterwards counts for nothing: it is *fenced*.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from msgspec import Struct

from mead import telemetry
from mead.core.options import TurnOptions
from mead.core.reasons import Cancelled, Crashed, Interrupted, ShuttingDown, Timeout, TurnReason
from mead.core.result import Err, Ok, Result
from mead.core.scope import Approval, ApprovalRequest, CallRecord, EgressRecord
from mead.core.turns import Answer, Handler, Turn
from mead.core.usage import Usage
from mead.sessions.approvals import Approver, Question, grant_of, standing_answer
from mead.sessions.events import ApprovalNeeded, Delta, ToolCalled, ToolReturned, TurnEvent

if TYPE_CHECKING:
    from mead.core.conversation import EncodedMessages
    from mead.sessions.session import Session

EndCause: TypeAlias = Literal["timeout", "cancelled", "interrupted", "shutting_down", "queue_timeout"]
TurnResult: TypeAlias = Result[Answer, TurnReason]

ABANDON_AFTER_S = 1.0
"""How long a cancelled task may take to end before it is left to itself (S3)."""

_log = logging.getLogger("mead.sessions")


class SentRecord(Struct, frozen=True, kw_only=True, gc=False):
    """An egress record with the turn it belongs to."""

    session_id: str
    turn: int
    owner: str
    record: EgressRecord


class Asks(Struct, frozen=True, kw_only=True):
    """Who is asked for approvals: a callback, or whoever reads the turn's stream; and how long they have."""

    approver: Approver | None = None
    reader: bool = False
    timeout_s: float = 300.0


NOBODY = Asks()
_NO = Approval(decision="no")


class TurnRun:
    """A submitted turn. It is also the turn's `Scope`: what the router reports comes here.

    `result` resolves to the turn's result. `on_event`, where given, gets the previews of a streamed turn;
    `on_sent` gets what leaves this machine for it; `asks` says who approves its tool calls.
    """

    __slots__ = (
        "_abandon_timer",
        "_asking",
        "_asks",
        "_cause",
        "_loop",
        "_on_event",
        "_on_sent",
        "_queued_at",
        "_session",
        "_started_at",
        "_task",
        "_timer",
        "deadline",
        "fenced",
        "newest",
        "number",
        "options",
        "result",
        "timeout_s",
    )

    def __init__(
        self,
        newest: EncodedMessages,
        options: TurnOptions,
        *,
        session: Session,
        number: int,
        timeout_s: float,
        on_sent: Callable[[SentRecord], None],
        on_event: Callable[[TurnEvent], None] | None = None,
        asks: Asks = NOBODY,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._session = session
        self._on_sent = on_sent
        self._on_event = on_event
        self._asks = asks
        self._asking: asyncio.Lock | None = None
        self._task: asyncio.Task[None] | None = None
        self._cause: EndCause | None = None
        self._queued_at = time.perf_counter()
        self._started_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._abandon_timer: asyncio.TimerHandle | None = None
        self.newest = newest
        self.options = msgspec.structs.replace(
            options,
            options=options.options.over(session.options),
            session_id=session.session_id,
            owner=session.owner,
            turn=number,
            scope=self,
        )
        self.number = number
        self.timeout_s = timeout_s
        self.result: asyncio.Future[TurnResult] = self._loop.create_future()
        self.deadline: float | None = None
        self.fenced = False

    # Its life

    def wait_in_queue(self, limit_s: float) -> None:
        """Starts the clock of the wait before the turn, which is not the turn's own (S3)."""
        self._timer = self._loop.call_later(limit_s, self.end, "queue_timeout")

    def start(self, handler: Handler, turns: Sequence[Turn], state: object) -> None:
        """Begins the turn: its clock runs from now."""
        if self._timer is not None:
            self._timer.cancel()
        self._started_at = time.perf_counter()
        self.deadline = self._loop.time() + self.timeout_s
        self._timer = self._loop.call_at(self.deadline, self.end, "timeout")
        self._task = self._loop.create_task(self._run(handler, turns, state))

    def end(self, cause: EndCause) -> None:
        """Ends the turn from outside. Its task gets a second to clean up; then it is abandoned."""
        if self.fenced or self._cause is not None:
            return
        self._cause = cause
        if self._task is None:
            self._finish(Err(_REASONS[cause]))
            return
        self._task.cancel(cause)
        self._abandon_timer = self._loop.call_later(ABANDON_AFTER_S, self._abandon)

    async def _run(self, handler: Handler, turns: Sequence[Turn], state: object) -> None:
        result: TurnResult
        try:
            result = _checked(await handler.handle_turn(turns, state, self.options))
        except asyncio.CancelledError as error:
            result = Err(Crashed(error="CancelledError"), cause=error)
        except Exception as error:
            _log_crash(self._session.session_id, self.number, error)
            result = Err(Crashed(error=type(error).__name__), cause=error)
        if self._cause is not None:  # a handler that finished all the same came too late
            result = Err(_REASONS[self._cause])
        self._finish(result)

    def _abandon(self) -> None:
        session_id = self._session.session_id
        _log.warning("turn %s/%d ignores its cancellation and is abandoned", session_id, self.number)
        assert self._cause is not None
        self._finish(Err(_REASONS[self._cause]))

    def _finish(self, result: TurnResult) -> None:
        if self.fenced:
            return
        self.fenced = True
        for timer in (self._timer, self._abandon_timer):
            if timer is not None:
                timer.cancel()
        self._session.on_end(self, result)
        self._tell(result)
        if not self.result.done():
            self.result.set_result(result)

    def _tell(self, result: TurnResult) -> None:
        if not telemetry.listened(telemetry.TURN):
            return
        now = time.perf_counter()
        started = now if self._started_at is None else self._started_at
        telemetry.emit(
            telemetry.TURN,
            {"duration": now - started, "queued": started - self._queued_at},
            {
                "session_id": self._session.session_id,
                "owner": self._session.owner,
                "turn": self.number,
                "status": "ok" if isinstance(result, Ok) else "error",
                "reason": None if isinstance(result, Ok) else result.reason.tag,
            },
        )

    # Its scope

    @property
    def wants_deltas(self) -> bool:
        return self._on_event is not None

    def delta(self, text: str) -> None:
        if self._on_event is not None and not self.fenced:
            self._on_event(Delta(text))

    def sent(self, record: EgressRecord) -> None:
        session = self._session
        self._on_sent(
            SentRecord(session_id=session.session_id, turn=self.number, owner=session.owner, record=record)
        )

    async def call_opened(self, call: CallRecord) -> None:
        self._check_fence()

    async def call_closed(self, call: CallRecord, usage: Usage | None, status: str) -> None: ...

    async def tool_started(self, call_id: str, name: str, *, effect: bool) -> None:
        self._check_fence()
        if self._on_event is not None:
            self._on_event(ToolCalled(name, effect))

    async def tool_finished(self, call_id: str, name: str, *, is_error: bool) -> None:
        if self._on_event is not None and not self.fenced:
            self._on_event(ToolReturned(name, is_error))

    @property
    def can_ask(self) -> bool:
        return self._asks.approver is not None or self._asks.reader

    async def ask_approval(self, request: ApprovalRequest) -> bool:
        if self._asking is None:
            self._asking = asyncio.Lock()
        async with self._asking:  # one question at a time
            answered = standing_answer(self._session.grants, request)
            if answered is None:
                approval = await self._ask(request)
                if (grant := grant_of(request, approval)) is not None:
                    self._session.grants.append(grant)
                answered = approval.decision in ("once", "session")
        self._check_fence()
        return answered

    async def _ask(self, request: ApprovalRequest) -> Approval:
        """Asks whoever there is, while the turn's clock stands still. No answer in time is a no."""
        if not self.can_ask:
            return _NO
        left_s = self._stop_clock()
        try:
            async with asyncio.timeout(self._asks.timeout_s):
                if self._asks.approver is not None:
                    return await self._asks.approver(request)
                question = Question()
                assert self._on_event is not None  # only a streamed turn has a reader
                self._on_event(ApprovalNeeded(request, question.answer))
                return await question.wait()
        except TimeoutError:
            return _NO
        except Exception as error:
            _log.error("the approver raised %s; the call is not approved", type(error).__name__)
            return _NO
        finally:
            self._start_clock(left_s)

    def _stop_clock(self) -> float:
        """Stops the turn's clock; gives what is left on it, in seconds."""
        assert self.deadline is not None
        assert self._timer is not None
        self._timer.cancel()
        left_s = max(0.0, self.deadline - self._loop.time())
        self.deadline = self._loop.time() + self._asks.timeout_s + left_s
        return left_s

    def _start_clock(self, left_s: float) -> None:
        self.deadline = self._loop.time() + left_s
        if self._cause is None and not self.fenced:
            self._timer = self._loop.call_at(self.deadline, self.end, "timeout")

    def _check_fence(self) -> None:
        """Stops an abandoned task before it does anything more."""
        if self.fenced:
            raise asyncio.CancelledError("the turn is over")


_REASONS: dict[EndCause, TurnReason] = {
    "timeout": Timeout(),
    "cancelled": Cancelled(),
    "interrupted": Interrupted(detail="a newer turn replaced it"),
    "shutting_down": ShuttingDown(),
    "queue_timeout": Timeout(limit="queue", detail="the turns before it took too long"),
}


def _checked(result: object) -> TurnResult:
    """What a handler returned. Raises `TypeError` for what is no result: handlers are other people's code."""
    if isinstance(result, Err) or (isinstance(result, Ok) and isinstance(result.value, Answer)):
        return result  # an Err of anything: its reason is the handler's own
    raise TypeError(f"handle_turn() must return Ok(Answer) or Err, not {type(result).__name__}")


def _log_crash(session_id: str, number: int, error: Exception) -> None:
    """Logs where it crashed. The exception's message is left out: it may quote the conversation (T3)."""
    stack = "".join(traceback.format_tb(error.__traceback__))
    _log.error("turn %s/%d crashed with %s\n%s", session_id, number, type(error).__name__, stack)
