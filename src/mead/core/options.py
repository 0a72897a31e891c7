"""What may be asked of a model and of a turn. Every field that is `None` is *not set*."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec
from msgspec import Struct

from mead.core.scope import NULL_SCOPE, Scope, Taint

if TYPE_CHECKING:
    from mead.core.messages import DocumentBlock, ImageBlock, Tool
    from mead.core.turns import Finding

Route: TypeAlias = Literal["local", "cloud"]
RouteChoice: TypeAlias = Literal["auto", "local", "cloud"]
ToolChoice: TypeAlias = Literal["effect", "none"] | None
BusyPolicy: TypeAlias = Literal["queue", "reject", "interrupt"]


class ResponseFormat(Struct, frozen=True, omit_defaults=True):
    """The shape of the answer: any JSON object, or (with `schema`) JSON that fits a JSON Schema."""

    schema: Mapping[str, object] | None = None
    name: str = "answer"


class Options(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Options of a provider call.

    The upper part is what a person sets, for the runtime, a slot, a session or a turn; the nearest wins
    (S9). The lower part is filled in for each call by whoever makes it.
    """

    model: str | None = None
    system: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    response_format: ResponseFormat | None = None
    tool_choice: str | None = None
    """Which tool the first reply of a turn must call: the name of one, or `"required"` for any."""
    parallel_tools: bool | None = None
    """Whether a reply may ask for several tools at once; `None` leaves it to the model."""
    thinking: bool | Literal["low", "medium", "high"] | None = None
    extra: Mapping[str, object] | None = None
    """Fields for the request body that mead has no word for, passed on as they are."""

    idle_timeout_s: float | None = None
    """The longest silence between two pieces of a stream, in seconds. Any byte counts as life."""
    deadline: float | None = None
    """When the call must be over, on the event loop's clock (monotonic seconds)."""
    route: Route | None = None
    """The route of the turn that the call belongs to; `None` for a call outside a turn."""
    private: bool = False
    """Whether the call takes private content to the cloud model, because the turn says `allow_private`."""
    scope: Scope = NULL_SCOPE

    def over(self, base: Options) -> Options:
        """These options where they are set, `base` where they are not; the lower part stays as it is."""
        filled = {
            name: value
            for name in _LAYERED
            if getattr(self, name) is None and (value := getattr(base, name)) is not None
        }
        return msgspec.structs.replace(self, **filled) if filled else self


_FILLED_IN = ("deadline", "route", "private", "scope")
_LAYERED = tuple(name for name in Options.__struct_fields__ if name not in _FILLED_IN)
NO_OPTIONS = Options()


class TurnOptions(Struct, frozen=True, kw_only=True):
    """What one turn asks for. `session_id` is `None` outside a session.

    `tools`: `None` shows the tools that only read, `"effect"` also those with side effects, `"none"` no tool
    of the hub. `client_tools` are the caller's own: a call of one ends the turn, and its result begins the
    next. `allow_private` lets a turn that is forced to the cloud carry private content. The router fills in
    `taint` and `private` (whether the turn is `local_only`) for the hub. `note` is something that the local
    model is told besides; a repeat of a turn under its `idempotency_key` gives the first one's result.
    `known_private` is what a session knows to be private in the newest turn: text of `local_only` turns that
    a client has brought along.
    """

    route: RouteChoice = "auto"
    tools: ToolChoice = None
    options: Options = NO_OPTIONS
    stream: bool = False
    allow_private: bool = False
    attachments: tuple[ImageBlock | DocumentBlock, ...] = ()
    session_id: str | None = None
    turn: int = 0
    owner: str = "local"
    tags: tuple[str, ...] = ()
    scope: Scope = NULL_SCOPE
    client_tools: tuple[Tool, ...] = ()
    taint: Taint | None = None
    private: bool = False
    note: str | None = None
    idempotency_key: str | None = None
    known_private: tuple[Finding, ...] = ()
