"""One turn on its way through a session: its task, its clock, its end.

A run ends exactly once. Whatever its task does afterwards counts for nothing: it is *fenced*.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from msgspec import Struct

from mead import telemetry
from mead.core.options import TurnOptions
from mead.core.reasons import Cancelled, Crashed, Interrupted, ShuttingDown, Timeout, TurnReason
from mead.core.result import Err, Ok
from mead.core.scope import Approval, ApprovalRequest, CallRecord, EgressRecord
from mead.core.turns import Handler, Turn, TurnResult
from mead.core.usage import Usage
from mead.sessions._results import HandlerError, checked_result
from mead.sessions.approvals import Approver, Question, grant_of, standing_answer
from mead.sessions.events import ApprovalNeeded, Delta, ToolCalled, ToolReturned, TurnEvent
from mead.sessions.journal import Begin, TurnJournal
from mead.storage import Fenced, StoreError
from mead.telemetry.context import CURRENT_TURN, CurrentTurn

if TYPE_CHECKING:
    from mead.core.conversation import EncodedMessages
    from mead.sessions.session import Session
    from mead.sessions.turn_texts import TurnTexts

EndCause: TypeAlias = Literal["timeout", "cancelled", "interrupted", "shutting_down", "queue_timeout"]
Stage: TypeAlias = Literal["waiting", "running"]

ABANDON_AFTER_S = 1.0
"""How long a cancelled task may take to end before it is left to itself (S3)."""

_log = logging.getLogger("mead.sessions")


class SentRecord(Struct, frozen=True, kw_only=True, gc=False):
    """An egress record with the turn it belongs to."""

    session_id: str
    turn: int
    owner: str
    record: EgressRecord


_CONCLUDING: set[asyncio.Task[None]] = set()
"""Ends of abandoned turns that are being written down: the loop itself keeps no task alive."""


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
    `on_sent` gets what leaves this machine for it; `asks` says who approves its tool calls,
    `journal` makes what it is written down with, `texts` says what is kept of its private text.
    """

    __slots__ = (
        "_abandon_timer",
        "_asking",
        "_asks",
        "_cause",
        "_context",
        "_current",
        "_has_begun",
        "_journal",
        "_keeps",
        "_loop",
        "_on_event",
        "_on_sent",
        "_queued_at",
        "_session",
        "_started_at",
        "_stopped_by",
        "_task",
        "_texts",
        "_timer",
        "deadline",
        "fenced",
        "newest",
        "number",
        "options",
        "result",
        "timeout_s",
        "waiting",
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
        journal: Callable[[TurnOptions], TurnJournal] | None = None,
        texts: TurnTexts | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._session = session
        self._on_sent = on_sent
        self._on_event = on_event
        self._asks = asks
        self._asking: asyncio.Lock | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False
        self._cause: EndCause | None = None
        self._queued_at = time.perf_counter()
        self._started_at: float | None = None
        # The turn runs where it was submitted, as far as context variables go, also if another turn's end
        # starts it; and its log lines say whose they are.
        self._current = CurrentTurn(session.session_id, number)
        self._context = contextvars.copy_context()
        self._context.run(CURRENT_TURN.set, self._current)
        self._timer: asyncio.TimerHandle | None = None
        self._abandon_timer: asyncio.TimerHandle | None = None
        self.newest = newest
        self.options = msgspec.structs.replace(
            options,
            options=options.options.over(session.options),
            session_id=session.session_id,
            owner=session.owner,
            turn=number,
            tags=tuple(dict.fromkeys([*session.tags, *options.tags])),
            scope=self,
        )
        self.number = number
        self._keeps = True
        self._stopped_by: TurnReason | None = None
        self._journal = None if journal is None else journal(self.options)
        self._texts = texts
        self.timeout_s = timeout_s
        self.result: asyncio.Future[TurnResult] = self._loop.create_future()
        self.deadline: float | None = None
        self.fenced = False
        self.waiting = 0

    # Its life

    def wait_in_queue(self, limit_s: float) -> None:
        """Starts the clock of the wait before the turn, which is not the turn's own (S3)."""
        self._timer = self._loop.call_later(limit_s, self.end, "queue_timeout")
        self._tell_stage("waiting")

    def start(self, handler: Handler) -> None:
        """Begins the turn: its clock runs from now."""
        waited = self._timer is not None
        if self._timer is not None:
            self._timer.cancel()
        self._started_at = time.perf_counter()
        self.deadline = self._loop.time() + self.timeout_s
        self._timer = self._loop.call_at(self.deadline, self.end, "timeout")
        self._task = self._loop.create_task(self._run(handler), context=self._context)
        self._tell_stage("running", waited=waited)

    def end(self, cause: EndCause) -> None:
        """Ends the turn from outside. Its task gets a second to clean up; then it is abandoned. A turn whose
        end is being written down is not touched any more."""
        if self.fenced or self._cause is not None:
            return
        self._cause = cause
        if self._task is not None:
            self._task.cancel(cause)
        if not self._has_begun:  # it waits, or its task is cancelled before its first step, and takes none
            self._fence()
            self._settle(Err(_REASONS[cause]))
            return
        self._abandon_timer = self._loop.call_later(ABANDON_AFTER_S, self._abandon)

    async def _run(self, handler: Handler) -> None:
        self._has_begun = True
        result: TurnResult
        try:
            result = await self._answer(handler)
        except asyncio.CancelledError as error:
            result = Err(self._stopped_by or Crashed(error="CancelledError"), cause=error)
        except StoreError as error:
            result = Err(Crashed(error="StoreError", detail=str(error)), cause=error)
        except HandlerError as error:
            result = Err(Crashed(error="TypeError", detail=str(error)), cause=error)
        except KeyboardInterrupt as error:
            await self._finish(Err(Crashed(error="KeyboardInterrupt"), cause=error))
            raise
        except GeneratorExit:  # the task itself is thrown away: nothing can be awaited any more
            if self._fence() and not self._loop.is_closed():
                self._settle(Err(Crashed(error="GeneratorExit")))
            raise
        except BaseException as error:  # SystemExit too: a turn may not end the program it runs in
            _log_crash(self._session.session_id, self.number, error)
            result = Err(Crashed(error=type(error).__name__), cause=error)
        await self._finish(result)

    async def _finish(self, result: TurnResult) -> None:
        """The end of the task, where the turn was not abandoned before."""
        if self._cause is not None:  # a handler that finished all the same came too late
            result = Err(_REASONS[self._cause])
        if self._fence():
            await self._conclude(result)

    async def _answer(self, handler: Handler) -> TurnResult:
        """Claims the session, where there is a store, and lets the handler answer."""
        session = self._session
        if self._journal is not None:
            begun = await self._journal.begin(self.number)
            if not isinstance(begun, Begin):
                self._keeps = False  # an earlier turn's result, or none at all
                return begun
            self.number = self._current.turn = begun.number
            if begun.reload:
                await session.reload()
            self.options = msgspec.structs.replace(self.options, turn=self.number, note=begun.note)
        if self._texts is not None:
            known = await self._texts.known_private(self.options)
            self.options = msgspec.structs.replace(self.options, known_private=known)
        newest = Turn(messages=self.newest, number=self.number, label="shareable", owner=session.owner)
        return checked_result(
            await handler.handle_turn([*session.turns, newest], session.state, self.options)
        )

    def _abandon(self) -> None:
        session_id = self._session.session_id
        _log.warning("turn %s/%d ignores its cancellation and is abandoned", session_id, self.number)
        assert self._cause is not None
        if self._fence():
            ending = self._conclude(Err(_REASONS[self._cause]))
            concluding = self._loop.create_task(ending, context=self._context.copy())
            _CONCLUDING.add(concluding)
            concluding.add_done_callback(_CONCLUDING.discard)

    def _fence(self) -> bool:
        """Nothing that the turn's task does from now on counts. False if that was so already."""
        if self.fenced:
            return False
        self.fenced = True
        for timer in (self._timer, self._abandon_timer):
            if timer is not None:
                timer.cancel()
        return True

    async def _conclude(self, result: TurnResult) -> None:
        """Writes the end down, where there is a store, and tells it."""
        written: TurnResult = Err(Crashed(error="CancelledError"))  # unless the write comes to its end
        try:
            result, fingerprints = await self._fingerprinted(result)
            if self._journal is not None and self._journal.has_begun:
                told = isinstance(result, Ok) and result.value.told_note
                turn = self.turn_of(result)
                written = await self._journal.end(result, turn, told=told, fingerprints=fingerprints)
            else:
                written = result
        except Exception as error:
            _log_crash(self._session.session_id, self.number, error)
            written = Err(Crashed(error=type(error).__name__), cause=error)
        finally:
            self._settle(written)

    async def _fingerprinted(self, result: TurnResult) -> tuple[TurnResult, bytes | None]:
        """The result, and what is to be kept of the turn's private text. Where that cannot be made the turn
        has failed: nothing private is answered that would not be known again."""
        if self._texts is None or not self._keeps:
            return result, None
        try:
            return result, await self._texts.at_end(result, self.options)
        except asyncio.CancelledError as error:  # the loop is being closed: the end is still to be written
            return Err(Crashed(error="CancelledError"), cause=error), None
        except Exception as error:
            _log_crash(self._session.session_id, self.number, error)
            return Err(Crashed(error=type(error).__name__), cause=error), None

    def turn_of(self, result: TurnResult) -> Turn | None:
        """What of the turn enters the history; `None` for one that failed, was answered before, or is not
        whole, since its caller is to run tools for it."""
        if not (isinstance(result, Ok) and self._keeps) or result.value.client_calls:
            return None
        answer = result.value
        return Turn(
            messages=answer.messages,
            number=self.number,
            route=answer.route,
            label=answer.label,
            owner=self._session.owner,
            usage=answer.usage,
        )

    def _settle(self, result: TurnResult) -> None:
        self._current.is_over = True
        try:
            self._session.on_end(self, result)
            self._tell(result)
        finally:  # whatever happens, nobody waits for ever
            if not self.result.done():
                self.result.set_result(result)

    def _tell(self, result: TurnResult) -> None:
        if not telemetry.listened(telemetry.TURN):
            return
        now = time.perf_counter()
        started = now if self._started_at is None else self._started_at
        self._context.copy().run(  # whoever listens is told where the turn was submitted
            tell_turn,
            self._session,
            self.number,
            None if isinstance(result, Ok) else result.reason,
            duration_s=now - started,
            queued_s=started - self._queued_at,
            stage="waiting" if self._started_at is None else "running",
        )

    def _tell_stage(self, stage: Stage, *, waited: bool = False) -> None:
        if not telemetry.listened(telemetry.STAGE):
            return
        started = self._queued_at if self._started_at is None else self._started_at
        telemetry.emit(
            telemetry.STAGE,
            {"queued": started - self._queued_at},
            {
                "session_id": self._session.session_id,
                "owner": self._session.owner,
                "stage": stage,
                "waited": waited,
            },
        )

    # Its scope

    @property
    def wants_deltas(self) -> bool:
        return self._on_event is not None

    def delta(self, text: str) -> None:
        if self._on_event is not None and not self.fenced:
            if self._texts is not None:
                self._texts.delta(text)
            self._on_event(Delta(text))

    def sent(self, record: EgressRecord) -> None:
        session = self._session
        if self._journal is not None:
            self._journal.sent(record)
        self._on_sent(
            SentRecord(session_id=session.session_id, turn=self.number, owner=session.owner, record=record)
        )

    async def call_opened(self, call: CallRecord) -> None:
        self._check_fence()
        if self._texts is not None:
            self._texts.called(call.route)
        if call.private and call.number == 1:
            await self._audited("declassification", self._session.session_id, {"allowed": "allow_private"})
        if self._journal is not None:
            await self._written(self._journal.open_call(call))
            self._check_fence()

    async def call_closed(self, call: CallRecord, usage: Usage | None, status: str) -> None:
        if self._journal is not None:
            await self._written(self._journal.close_call(call, usage, status))

    async def tool_started(self, call_id: str, name: str, *, effect: bool) -> None:
        self._check_fence()
        if self._journal is not None:
            await self._written(self._journal.start_tool(call_id, name, effect=effect))
            self._check_fence()
        if self._on_event is not None:
            self._on_event(ToolCalled(name, effect))

    async def tool_finished(self, call_id: str, name: str, *, is_error: bool, unknown: bool = False) -> None:
        if self._journal is not None:
            await self._written(self._journal.finish_tool(call_id, is_error=is_error, unknown=unknown))
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
                await self._audited("approval", request.tool, {"decision": approval.decision})
        self._check_fence()
        return answered

    async def _audited(self, action: str, subject: str, details: Mapping[str, str]) -> None:
        if self._journal is not None and self._journal.has_begun:
            await self._written(self._journal.audit(action, subject, details))

    async def _ask(self, request: ApprovalRequest) -> Approval:
        """Asks whoever there is, while the turn's clock stands still. No answer in time is a no."""
        if not self.can_ask:
            return _NO
        left_s = self._stop_clock()
        try:
            async with asyncio.timeout(self._asks.timeout_s):
                if self._asks.approver is not None:
                    return _checked_approval(await self._asks.approver(request))
                question = Question()
                assert self._on_event is not None  # only a streamed turn has a reader
                self._on_event(ApprovalNeeded(request, question.answer))
                return _checked_approval(await question.wait())
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

    async def _written(self, work: Awaitable[None]) -> None:
        """Waits for a write of the journal. A turn that cannot be written down, or whose session somebody
        else has taken over, stops where it is: nothing in it may take that for a failure of its own."""
        try:
            await work
        except Fenced:
            self._stopped_by = Interrupted(detail="the session was taken over, or deleted")
        except StoreError as error:
            self._stopped_by = Crashed(error="StoreError", detail=str(error))
        else:
            return
        raise asyncio.CancelledError("the turn cannot be written down")

    def _check_fence(self) -> None:
        """Stops a task whose turn is ending, or was abandoned, before it does anything more."""
        if self.fenced or self._cause is not None:
            raise asyncio.CancelledError("the turn is over")


_REASONS: dict[EndCause, TurnReason] = {
    "timeout": Timeout(),
    "cancelled": Cancelled(),
    "interrupted": Interrupted(detail="a newer turn replaced it"),
    "shutting_down": ShuttingDown(),
    "queue_timeout": Timeout(limit="queue", detail="the turns before it took too long"),
}


def tell_turn(
    session: Session,
    number: int | None,
    reason: TurnReason | None,
    *,
    duration_s: float = 0.0,
    queued_s: float = 0.0,
    stage: Stage | None = None,
) -> None:
    """Emits the event of a turn that ended (T2). `number` and `stage` are `None` for one that was refused."""
    if not telemetry.listened(telemetry.TURN):
        return
    telemetry.emit(
        telemetry.TURN,
        {"duration": duration_s, "queued": queued_s},
        {
            "session_id": session.session_id,
            "owner": session.owner,
            "turn": number,
            "status": "ok" if reason is None else "error",
            "reason": None if reason is None else reason.tag,
            "stage": stage,
        },
    )


def _checked_approval(approval: object) -> Approval:
    """What a person's side returned; a `True`, say, is no approval."""
    if not isinstance(approval, Approval):
        raise TypeError("an approver must return an Approval")
    return approval


def _log_crash(session_id: str, number: int, error: BaseException) -> None:
    """Logs where it crashed. The exception's message is left out: it may quote the conversation (T3)."""
    stack = "".join(traceback.format_tb(error.__traceback__))
    _log.error("turn %s/%d crashed with %s\n%s", session_id, number, type(error).__name__, stack)
