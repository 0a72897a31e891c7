"""The JSON that the native API answers with, and mead's values made of it again.

The server encodes these types, its OpenAPI document is made of them, and the client decodes them; `bodies` is
what is asked. Times are in seconds; instants are seconds since the epoch.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from mead.core.conversation import EncodedMessages, encode, encode_open
from mead.core.messages import Message, StopReason, ToolUseBlock
from mead.core.options import BusyPolicy, Route
from mead.core.reasons import TurnReason
from mead.core.result import Err, Ok
from mead.core.scope import ApprovalRequest, EgressRecord
from mead.core.turns import Answer, Decision, Label, TurnResult
from mead.core.usage import UsageTotal
from mead.router.decide import Refused
from mead.sessions.bodies import OptionsShape, TurnShape
from mead.sessions.run import SentRecord
from mead.storage.protocol import SessionRecord, StoredTurn


class AnswerShape(Struct, frozen=True, kw_only=True):
    """A turn that was answered. `messages` is the whole exchange, the person's message included."""

    ok: bool = True
    text: str
    route: Route | None
    stop_reason: StopReason
    label: Label
    usage: UsageTotal
    tool_calls: int
    left_out: int
    warnings: tuple[str, ...]
    decision: Decision | None
    session_id: str | None
    messages: tuple[Message, ...]
    client_calls: tuple[ToolUseBlock, ...] = ()
    handed_over: tuple[Message, ...] | None = None
    told_note: bool = False

    @classmethod
    def of(cls, answer: Answer, session_id: str | None) -> AnswerShape:
        """The shape of an answer. The handler's state stays where it is."""
        return cls(
            text=answer.text,
            route=answer.route,
            stop_reason=answer.stop_reason,
            label=answer.label,
            usage=answer.usage,
            tool_calls=answer.tool_calls,
            left_out=answer.left_out,
            warnings=answer.warnings,
            decision=answer.decision,
            session_id=session_id,
            messages=tuple(answer.messages.decode()),
            client_calls=answer.client_calls,
            handed_over=None if answer.handed_over is None else tuple(answer.handed_over.decode()),
            told_note=answer.told_note,
        )

    def answer(self) -> Answer:
        """The answer again."""
        return Answer(
            text=self.text,
            messages=_encoded(self.messages),
            stop_reason=self.stop_reason,
            label=self.label,
            decision=self.decision,
            usage=self.usage,
            tool_calls=self.tool_calls,
            client_calls=self.client_calls,
            handed_over=None if self.handed_over is None else encode_open(self.handed_over),
            left_out=self.left_out,
            warnings=self.warnings,
            told_note=self.told_note,
        )


def _encoded(messages: tuple[Message, ...]) -> EncodedMessages:
    """The exchange of an answer. One that ends with calls of the client's is open, and stays so."""
    ends_open = messages and not isinstance(messages[-1].content, str) and messages[-1].role == "assistant"
    if ends_open and any(isinstance(block, ToolUseBlock) for block in messages[-1].content):
        return encode_open(messages)
    return encode(messages)


class OutcomeShape(Struct, frozen=True, kw_only=True):
    """What a turn came to: an answer, or the reason why there is none. The data of the event `finished`."""

    answer: AnswerShape | None = None
    error: TurnReason | None = None

    @classmethod
    def of(cls, result: TurnResult, session_id: str | None) -> OutcomeShape:
        """The shape of a result."""
        if isinstance(result, Err):
            return cls(error=result.reason)
        return cls(answer=AnswerShape.of(result.value, session_id))

    def result(self) -> TurnResult:
        """The result again. Raises `ValueError` for an outcome that is none."""
        if self.error is not None:
            return Err(self.error)
        if self.answer is None:
            raise ValueError("an outcome has an answer or an error")
        return Ok(self.answer.answer())


class RunningShape(Struct, frozen=True, kw_only=True):
    """A turn by its id. `session_id` is `None` for a request."""

    turn_id: str
    session_id: str | None
    status: Literal["running", "done", "failed"]
    answer: AnswerShape | None = None
    error: TurnReason | None = None


class StartedEvent(Struct, frozen=True, kw_only=True):
    """The data of the event `started`, a stream's first."""

    turn_id: str
    session_id: str | None


class DeltaEvent(Struct, frozen=True, kw_only=True):
    """The data of the event `delta`."""

    text: str


class ToolCalledEvent(Struct, frozen=True, kw_only=True):
    """The data of the event `tool_called`."""

    name: str
    effect: bool


class ToolReturnedEvent(Struct, frozen=True, kw_only=True):
    """The data of the event `tool_returned`."""

    name: str
    is_error: bool


class ApprovalShape(Struct, frozen=True, kw_only=True):
    """A tool call that waits for a person's word. The data of the event `approval_needed`."""

    approval_id: str
    turn_id: str
    session_id: str | None
    request: ApprovalRequest


class ExplanationShape(Struct, frozen=True, kw_only=True):
    """Where a turn would go. `refused` is the reason if it would be refused there."""

    ok: bool = True
    decision: Decision
    refused: TurnReason | None = None

    @classmethod
    def of(cls, explained: Decision | Refused) -> ExplanationShape:
        """The shape of an explanation."""
        if isinstance(explained, Refused):
            return cls(decision=explained.decision, refused=explained.reason)
        return cls(decision=explained)

    def explanation(self) -> Decision | Refused:
        """The explanation again."""
        return self.decision if self.refused is None else Refused(self.decision, self.refused)


class SessionShape(Struct, frozen=True, kw_only=True):
    """A session without its turns. `running` is the number of the turn that runs."""

    session_id: str
    title: str | None
    tags: tuple[str, ...]
    created_at: float
    updated_at: float
    parent: str | None
    busy: BusyPolicy
    turn_timeout_s: float
    options: OptionsShape
    running: int | None

    @classmethod
    def of(cls, record: SessionRecord) -> SessionShape:
        """The shape of a session in a store."""
        return cls(
            session_id=record.session_id,
            title=record.title,
            tags=record.tags,
            created_at=record.created_at,
            updated_at=record.updated_at,
            parent=record.parent,
            busy=record.busy,
            turn_timeout_s=record.turn_timeout_s,
            options=OptionsShape.of(record.options),
            running=record.running,
        )


class SessionPage(Struct, frozen=True, kw_only=True):
    """Sessions, the last used first. `next` is the cursor of the page that follows, if there is one."""

    sessions: tuple[SessionShape, ...]
    next: str | None


class MadeShape(Struct, frozen=True, kw_only=True):
    """A session that was made."""

    session_id: str


class ImportedShape(Struct, frozen=True, kw_only=True):
    """A session that was brought in. `lowered` counts the turns that said `shareable` and are now
    `local_only`."""

    session_id: str
    title: str | None
    turns: int
    lowered: int


class ImportPage(Struct, frozen=True, kw_only=True):
    """The sessions that were brought in, in the order of the file."""

    sessions: tuple[ImportedShape, ...]


class EffectShape(Struct, frozen=True, kw_only=True):
    """A tool that was run, and that the history does not tell of."""

    turn: int
    name: str
    status: str


class HistoryShape(Struct, frozen=True, kw_only=True):
    """A session's turns, the oldest first; the numbers of those that a crash cut off; and what they did."""

    turns: tuple[TurnShape, ...]
    interrupted: tuple[int, ...] = ()
    untold_effects: tuple[EffectShape, ...] = ()


class CancelledShape(Struct, frozen=True, kw_only=True):
    """Whether a turn was running, and was cancelled."""

    cancelled: bool


class SentShape(Struct, frozen=True, kw_only=True):
    """What left for one turn. `left` is false where it stayed on the server's machine."""

    at: float
    owner: str
    session_id: str
    turn: int
    destination: Literal["provider", "mcp"]
    slot: str
    route: str | None
    host: str
    path: str
    bytes_sent: int
    allowed_because: str
    left: bool

    def record(self) -> SentRecord:
        """The record again."""
        fields = {name: getattr(self, name) for name in EgressRecord.__struct_fields__}
        return SentRecord(
            session_id=self.session_id, turn=self.turn, owner=self.owner, record=EgressRecord(**fields)
        )


def turn_shapes(turns: tuple[StoredTurn, ...]) -> tuple[TurnShape, ...]:
    """The shapes of a stored history. A turn that cannot be read is left out, as it is by sessions."""
    shapes: list[TurnShape] = []
    for stored in turns:
        try:
            shapes.append(TurnShape.of(stored.turn(), finished_at=stored.finished_at))
        except (msgspec.MsgspecError, ValueError):
            continue
    return tuple(shapes)
