"""The JSON that the native API is asked with: the bodies of its requests.

The server decodes these types, its OpenAPI document is made of them, and the client writes them, so that none
of the three can say something else. Times are in seconds; instants are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from mead.core.conversation import encode
from mead.core.messages import DocumentBlock, ImageBlock, Message, Tool
from mead.core.options import BusyPolicy, Options, ResponseFormat, Route, RouteChoice
from mead.core.turns import Label, Turn
from mead.core.usage import UsageTotal

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
