"""What a session and a turn may say of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from mead.core.messages import DocumentBlock, ImageBlock, Message, Tool
from mead.core.options import BusyPolicy, Options, RouteChoice, ToolChoice
from mead.core.turns import Handler, Turn


class SessionKeywords(TypedDict, total=False):
    """What a session may say when it is started.

    `system` and `options` hold for each of its turns (S9). `turn_timeout_s` is a turn's deadline in seconds,
    `busy` what a turn does while another runs (S6). `history` is what went before: turns keep their labels,
    bare messages become `local_only`. `state` is handed to the handler; `handler` replaces the runtime's.
    `title` is for people, in a store. A repeat under the same `idempotency_key` gives the session that the
    first one has started, as long as it is there; the rest of what it says is not looked at then.
    """

    system: str | None
    options: Options
    turn_timeout_s: float | None
    busy: BusyPolicy | None
    history: Sequence[Message] | Sequence[Turn]
    state: object
    handler: Handler | None
    tags: Sequence[str]
    title: str | None
    idempotency_key: str | None


class TurnKeywords(TypedDict, total=False):
    """What a turn may say.

    `route` forces a slot (R1); `tools` widens (`"effect"`) or hides (`"none"`) what the model is shown (R8);
    `options` are the nearest layer of generation options (S9); `allow_private` lets a turn that is forced to
    the cloud carry private content; `busy` and `turn_timeout_s` override the session's; `asks` promises that
    whoever reads the turn's stream answers `ApprovalNeeded`. A repeat of a turn under the same
    `idempotency_key` gives the first one's result, and runs nothing; it needs a store. `client_tools` are the
    caller's own tools: calls of them end the turn, as `Answer.client_calls`; a request may bring the results.
    `from_client` says that a program sends the text, which may be of earlier `local_only` turns: it is looked
    for as in a request (R16). Without it that holds for what goes with the text only, a system prompt say.
    """

    route: RouteChoice
    tools: ToolChoice
    options: Options
    attachments: Sequence[ImageBlock | DocumentBlock]
    allow_private: bool
    busy: BusyPolicy | None
    turn_timeout_s: float | None
    tags: Sequence[str]
    asks: bool
    client_tools: Sequence[Tool]
    idempotency_key: str | None
    from_client: bool
