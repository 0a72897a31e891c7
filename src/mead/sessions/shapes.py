"""The JSON of the native API: what its requests and answers look like, and mead's values made of them again.

The server decodes and encodes these types, its OpenAPI document is made of them, and the client speaks them,
so that none of the three can say something else. Times are in seconds; instants are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from mead.core.conversation import EncodedMessages, encode, encode_open
from mead.core.messages import DocumentBlock, ImageBlock, Message, StopReason, Tool, ToolUseBlock
from mead.core.options import BusyPolicy, Options, ResponseFormat, Route, RouteChoice
from mead.core.reasons import TurnReason
from mead.core.result import Err, Ok
from mead.core.scope import ApprovalRequest, EgressRecord
from mead.core.turns import Answer, Decision, Label, Turn, TurnResult
from mead.core.usage import UsageTotal
from mead.router.decide import Refused
from mead.sessions.run import SentRecord
from mead.storage.protocol import SessionRecord, StoredTurn

MAX_TURN_S = 3_600.0
"""The longest deadline that a turn may ask for, in seconds."""
_INT32 = 2**31 - 1

Count: TypeAlias = Annotated[int, Meta(ge=1, le=_INT32)]
Number: TypeAlias = Annotated[int, Meta(ge=0, le=_INT32)]
Seed: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Seconds: TypeAlias = Annotated[float, Meta(gt=0, le=MAX_TURN_S)]
Tag: TypeAlias = Annotated[str, Meta(min_length=1, max_length=200)]
Tags: TypeAlias = Annotated[tuple[Tag, ...], Meta(max_length=50)]
HubTools: TypeAlias = Literal["read", "effect", "none"]
"""Which tools of the hub a turn sees: those that only read, also those with side effects, or none."""

# Asking


class OptionsShape(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Generation options; see `mead.Options`. What is not set is left to the session, the slot and the
    runtime."""

    model: str | None = None
    system: str | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Share | None = None
    top_k: Number | None = None
    seed: Seed | None = None
    stop: tuple[str, ...] | None = None
    response_format: ResponseFormat | None = None
    tool_choice: str | None = None
    parallel_tools: bool | None = None
    thinking: bool | Literal["low", "medium", "high"] | None = None
    extra: Mapping[str, object] | None = None
    idle_timeout_s: Seconds | None = None

    def options(self) -> Options:
        """The options."""
        return Options(**{name: getattr(self, name) for name in self.__struct_fields__})

    @classmethod
    def of(cls, options: Options) -> OptionsShape:
        """The shape of options; what belongs to a single call is left out."""
        return cls(**{name: getattr(options, name) for name in cls.__struct_fields__})


NO_OPTIONS = OptionsShape()


class TurnShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A turn of a history. `number` counts from 1; `label` says who may see it."""

    messages: tuple[Message, ...]
    number: Number = 0
    route: Route | None = None
    label: Label = "local_only"
    owner: str = "local"
    usage: UsageTotal | None = None
    finished_at: float | None = None

    def turn(self, owner: str | None = None) -> Turn:
        """The turn, which may be given another owner."""
        return Turn(
            messages=encode(self.messages),
            number=self.number,
            route=self.route,
            label=self.label,
            owner=self.owner if owner is None else owner,
            usage=self.usage,
        )

    @classmethod
    def of(cls, turn: Turn, *, finished_at: float | None = None) -> TurnShape:
        """The shape of a turn."""
        return cls(
            messages=tuple(turn.decode()),
            number=turn.number,
            route=turn.route,
            label=turn.label,
            owner=turn.owner,
            usage=turn.usage,
            finished_at=finished_at,
        )


class StartBody(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A session to start. What went before are `turns`, which keep their labels, or `messages`, which become
    `local_only`; not both. `state` is handed to the handler."""

    system: str | None = None
    options: OptionsShape = NO_OPTIONS
    turn_timeout_s: Seconds | None = None
    busy: BusyPolicy | None = None
    turns: tuple[TurnShape, ...] = ()
    messages: tuple[Message, ...] = ()
    state: object = None
    tags: Tags = ()
    title: str | None = None


class _Asked(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a turn may say of itself. `asks` promises that somebody answers its approvals."""

    route: RouteChoice = "auto"
    tools: HubTools = "read"
    options: OptionsShape = NO_OPTIONS
    attachments: tuple[ImageBlock | DocumentBlock, ...] = ()
    allow_private: bool = False
    turn_timeout_s: Seconds | None = None
    busy: BusyPolicy | None = None
    tags: Tags = ()
    asks: bool = False
    client_tools: tuple[Tool, ...] = ()


class TurnBody(_Asked, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A session's next turn. In the `background` the answer is its id, at once."""

    text: str
    background: bool = False


class RequestBody(_Asked, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A conversation that is brought along; nothing of it is kept."""

    messages: tuple[Message, ...]
    background: bool = False


class ExplainBody(_Asked, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A turn that is not to be made: a session's next one, one without a session, or one that brings its
    `messages`; `text` or `messages`, not both."""

    text: str | None = None
    messages: tuple[Message, ...] = ()
    session_id: str | None = None


class CompactBody(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the turn that makes the summary is made. Without a `route`, mead chooses."""

    route: RouteChoice | None = None
    options: OptionsShape = NO_OPTIONS
    allow_private: bool = False
    turn_timeout_s: Seconds | None = None
    tags: Tags = ()


class ChangeBody(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is to be changed of a session; what is not said stays."""

    title: str | UnsetType | None = UNSET
    tags: Tags | UnsetType = UNSET


class ForkBody(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The number of the last turn that is taken along; all without it, none for 0."""

    turn: Number | None = None


class RewindBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of the last turn that stays; 0 takes all away."""

    turn: Number


class DeclassifyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The numbers of the turns that a cloud model may see from now on."""

    turns: Annotated[tuple[Number, ...], Meta(min_length=1)]


class ApprovalBody(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A person's answer; see `mead.Approval`."""

    decision: Literal["once", "session", "no", "never"]
    only: tuple[str, ...] | None = None


# Answers


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
