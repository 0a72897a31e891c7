"""What the tools that mead offers to MCP clients take and give; their JSON schemas are made of it."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from mead.core.options import Route, RouteChoice
from mead.core.turns import Label
from mead.core.usage import UsageTotal
from mead.sessions.bodies import Count, HubTools, Seconds
from mead.storage.protocol import UsageGroup

WAIT_S = 25.0
"""How long a call waits for an answer if it does not say, in seconds: some clients give up after 30."""
MAX_WAIT_S = 600.0

Id: TypeAlias = Annotated[str, Meta(max_length=200)]
SessionId: TypeAlias = Annotated[Id, Meta(description="The id of a session.")]
Handle: TypeAlias = Annotated[Id, Meta(description="The handle that `ask` gave.")]
Wait: TypeAlias = Annotated[
    float,
    Meta(ge=0, le=MAX_WAIT_S, description="How long to wait for the answer, in seconds."),
]

# What the tools take


class _Input(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class AskInput(_Input, frozen=True, kw_only=True):
    """The input of `ask`."""

    text: Annotated[str, Meta(min_length=1, description="What to ask.")]
    session_id: Annotated[
        Id | None, Meta(description="The session to go on with. Without it a new one is started.")
    ] = None
    route: Annotated[
        RouteChoice,
        Meta(
            description="Which model answers: `local`, which keeps the text from every cloud model, "
            "`cloud`, or `auto`, which lets mead choose by privacy and difficulty."
        ),
    ] = "auto"
    tools: Annotated[
        HubTools,
        Meta(
            description="Which tools the answering model may use: those that only read, also those with side "
            "effects (`effect` needs the scope tools:effect), or none."
        ),
    ] = "read"
    model: Annotated[str | None, Meta(description="One of the models of the route's slot.")] = None
    system: Annotated[str | None, Meta(description="A system prompt for this turn.")] = None
    allow_private: Annotated[
        bool,
        Meta(description="Let private content go to the cloud model. Needs the scope private:send."),
    ] = False
    timeout_s: Annotated[Seconds | None, Meta(description="The turn's deadline, in seconds.")] = None
    wait_s: Wait = WAIT_S


class ResultInput(_Input, frozen=True, kw_only=True):
    """The input of `result`."""

    handle: Handle
    wait_s: Wait = WAIT_S


class CancelInput(_Input, frozen=True, kw_only=True):
    """The input of `cancel`."""

    handle: Handle


class SessionsInput(_Input, frozen=True, kw_only=True):
    """The input of `sessions`."""

    limit: Annotated[int, Meta(ge=1, le=200, description="How many sessions.")] = 20
    cursor: Annotated[str | None, Meta(description="The `next` of the page before.")] = None


class HistoryInput(_Input, frozen=True, kw_only=True):
    """The input of `history`."""

    session_id: SessionId
    limit: Annotated[int, Meta(ge=1, le=200, description="How many turns, the newest ones.")] = 20
    before: Annotated[Count | None, Meta(description="Only turns before the one of this number.")] = None


class UsageInput(_Input, frozen=True, kw_only=True):
    """The input of `usage`."""

    by: Annotated[UsageGroup, Meta(description="What the calls are added up by.")] = "day"
    since: Annotated[datetime.date | None, Meta(description="The first day (UTC) that counts.")] = None
    until: Annotated[datetime.date | None, Meta(description="The last day (UTC) that counts.")] = None
    session_id: Annotated[Id | None, Meta(description="Only the calls of a session.")] = None


class StopInput(_Input, frozen=True, kw_only=True):
    """The input of `stop`."""

    session_id: SessionId


# What they give


class AskOutput(Struct, frozen=True, kw_only=True):
    """What `ask` and `result` give: the answer, or while the turn is `running` the handle to ask with again.
    `session_id` is null where nothing is kept; `withheld` counts earlier turns that the model did not see."""

    status: Literal["done", "running"]
    session_id: str | None
    handle: str | None = None
    text: str | None = None
    route: Route | None = None
    provider: str | None = None
    model: str | None = None
    label: Label | None = None
    stop_reason: str | None = None
    withheld: int = 0
    tool_calls: int = 0
    warnings: tuple[str, ...] = ()
    usage: UsageTotal | None = None


class CancelOutput(Struct, frozen=True, kw_only=True):
    """Whether a turn was running, and was cancelled."""

    cancelled: bool


class StopOutput(Struct, frozen=True, kw_only=True):
    """The session that was deleted."""

    session_id: str
    stopped: bool


def schema_of(kind: type[Struct]) -> dict[str, Any]:
    """The JSON Schema of a type, with an object at its root, as the protocol wants it."""
    (root,), parts = msgspec.json.schema_components((kind,), ref_template="#/$defs/{name}")
    name = root["$ref"].rpartition("/")[2]
    schema = {key: value for key, value in parts.pop(name).items() if key not in ("title", "description")}
    return {**schema, "$defs": parts} if parts else schema
