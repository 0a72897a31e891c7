"""Turns, decisions and answers: what goes through the router and into a session's history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import UNSET, Struct

from mead.core.conversation import Conversation, EncodedMessages, encode_user
from mead.core.messages import Message, StopReason, Tool, ToolUseBlock
from mead.core.options import Route, TurnOptions
from mead.core.reasons import TurnReason
from mead.core.result import Result
from mead.core.usage import UsageTotal

Label: TypeAlias = Literal["shareable", "local_only"]
"""A turn's provenance (R16): `local_only` if no cloud model may ever see anything of it."""


class Turn(Struct, frozen=True, kw_only=True, gc=False):
    """One exchange of a session: the person's message, the tool traffic, the answer.

    The newest turn, which is yet to be answered, holds the person's message only, and its `route` is `None`.
    `route` is also `None` for an imported turn: nobody knows which model made it. `number` counts the
    session's turns from 1.
    """

    messages: EncodedMessages
    number: int = 0
    route: Route | None = None
    label: Label = "local_only"
    owner: str = "local"
    usage: UsageTotal | None = None

    def decode(self) -> list[Message]:
        """The turn's messages."""
        return self.messages.decode()


def turn(text: str) -> Turn:
    """A newest turn that holds `text`."""
    return Turn(messages=encode_user(text))


class Cause(Struct, frozen=True, gc=False):
    """Why a turn goes where it goes: a stable `code`, and a sentence that quotes nothing of the turn."""

    code: str
    text: str


class Finding(Struct, frozen=True, gc=False):
    """Something private: its kind, where it stands (character offsets), and the value masked."""

    kind: str
    start: int
    end: int
    masked: str


class Contribution(Struct, frozen=True, gc=False):
    """How much one feature of a turn, or a group of them, moves its score; a `value` over 0 speaks for the
    cloud model. The name quotes nothing of the turn."""

    name: str
    value: float


class Verdict(Struct, frozen=True, kw_only=True):
    """What a classifier says of the newest turn. `private` decides alone.

    `score` is the difficulty: the share of ordinary turns that are easier, from 0 to 1; `None` where it was
    not asked for. From `threshold` on a turn is for the cloud model. `version` names the weights.
    """

    route: Route
    private: bool
    causes: tuple[Cause, ...]
    score: float | None = None
    findings: tuple[Finding, ...] = ()
    threshold: float | None = None
    contributions: tuple[Contribution, ...] = ()
    version: str | None = None


class Decision(Struct, frozen=True, kw_only=True):
    """Where a turn goes and why (R18).

    `withheld` counts the earlier turns that the model will not see. `tools` names the tools that it will be
    shown; `None` means that this is not known yet. `emulates_tools` is true of a model that was not trained
    to use any and is led to it by a grammar. `provider` and `model` are `None` for an empty slot. `score`,
    `threshold`, `contributions` and `version` are the classifier's, where it was asked. `may_escalate` says
    that the cloud model is asked too if the local answer turns out to be no good. `not_known` is what an
    explanation could not take into account, since nobody has asked for it yet: the turn may go elsewhere.
    """

    route: Route
    source: Literal["classified", "forced"]
    provider: str | None
    model: str | None
    causes: tuple[Cause, ...]
    label: Label
    withheld: int = 0
    tools: tuple[str, ...] | None = None
    emulates_tools: bool = False
    private: bool = False
    findings: tuple[Finding, ...] = ()
    score: float | None = None
    threshold: float | None = None
    contributions: tuple[Contribution, ...] = ()
    version: str | None = None
    may_escalate: bool = False
    not_known: tuple[Cause, ...] = ()


class Answer(Struct, frozen=True, kw_only=True):
    """A turn's answer, and all that the session must keep of it.

    `messages` is the whole exchange, the person's message included. `stop_reason` is `max_tokens` when the
    limit cut the text off, and `tool_use` when the model asks for tools of the caller's own, which are
    `client_calls`; the next request is to bring their results, after `handed_over`, which is what model and
    hub have said since the question. `left_out` counts the oldest turns that did not fit the model's context.
    `state`, where set, becomes the session's handler state; `told_note` says that the model was told the
    options' `note`.
    """

    text: str
    messages: EncodedMessages
    stop_reason: StopReason = "end_turn"
    label: Label = "local_only"
    decision: Decision | None = None
    usage: UsageTotal = UsageTotal()
    tool_calls: int = 0
    client_calls: tuple[ToolUseBlock, ...] = ()
    handed_over: EncodedMessages | None = None
    left_out: int = 0
    warnings: tuple[str, ...] = ()
    state: object = UNSET
    told_note: bool = False

    @property
    def route(self) -> Route | None:
        """The route that the turn took; `None` if its handler has none."""
        return self.decision.route if self.decision else None


TurnResult: TypeAlias = Result[Answer, TurnReason]
"""What a turn comes to."""


class Handler(Protocol):
    """Anything that answers turns (S5)."""

    async def handle_turn(
        self, turns: Sequence[Turn], state: object, options: TurnOptions
    ) -> Result[Answer, TurnReason]:
        """Answers the newest of `turns`, the last one. The earlier ones are the session's history."""


class ToolOutput(Struct, frozen=True):
    """What a tool call came to, as text for the model."""

    content: str
    is_error: bool = False


class Hub(Protocol):
    """Where tools come from (H1)."""

    async def tools_for(self, options: TurnOptions) -> Sequence[Tool]:
        """The tools that the turn may see, in a stable order. Never fails a turn."""

    def known_tools(self, options: TurnOptions) -> Sequence[Tool] | None:
        """The same from memory, contacting nothing; `None` if it is not known yet."""

    async def call_tool(self, name: str, input: dict[str, object], options: TurnOptions) -> ToolOutput:
        """Runs one tool, at most once. Whatever goes wrong is an output with `is_error`."""


class NoHub:
    """A hub without tools."""

    async def tools_for(self, options: TurnOptions) -> Sequence[Tool]:
        return ()

    def known_tools(self, options: TurnOptions) -> Sequence[Tool] | None:
        return ()

    async def call_tool(self, name: str, input: dict[str, object], options: TurnOptions) -> ToolOutput:
        return ToolOutput(f"There is no tool named {name!r}.", is_error=True)


def conversation(turns: Sequence[Turn]) -> Conversation:
    """The messages of some turns in a row."""
    return Conversation([turn.messages for turn in turns])
