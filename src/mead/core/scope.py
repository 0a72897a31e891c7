"""How a turn tells its session what happens in it.

The session hands the router a `Scope`; the router hands it on to providers and hub in their options. So they
report calls, traffic and text without knowing of sessions or storage. The default does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from mead.core.options import Route
    from mead.core.usage import Usage


class EgressRecord(Struct, frozen=True, kw_only=True, gc=False):
    """One request that left for a model or an MCP server: where to, for which route, how much, why it might.

    `host` is `name:port`; `bytes_sent` counts the request body; `allowed_because` is the gate's rule.
    `at` is in seconds since the epoch.
    """

    at: float
    destination: Literal["provider", "mcp"]
    slot: str
    route: str | None
    host: str
    path: str
    bytes_sent: int
    allowed_because: str


class CallRecord(Struct, frozen=True, kw_only=True):
    """One provider call: `number` counts from 1 within the turn. `private` says that it takes private content
    to the cloud model, by the turn's explicit word."""

    number: int
    route: Route
    provider: str
    model: str | None
    private: bool = False


class ApprovalRequest(Struct, frozen=True, kw_only=True):
    """A question for a person: may this tool be called with these very arguments?

    `tool` is the name that the model uses, `server` where it comes from (`None` for a Python function),
    `because` why it is asked, in a sentence. Everything in it but that comes from a model: show it as text.
    """

    tool: str
    server: str | None
    arguments: Mapping[str, object]
    because: str = ""


class Approval(Struct, frozen=True, kw_only=True):
    """A person's answer to an `ApprovalRequest`.

    `once` holds for this call, `session` for every call of the tool in the session with the very same
    arguments, or, where `only` names some of them, with arguments that are equal in those; an `only` that
    names others counts as `once`. `no` holds for this call, `never` for every call of the tool in the
    session.
    """

    decision: Literal["once", "session", "no", "never"]
    only: tuple[str, ...] | None = None


class Taint:
    """What a turn has seen that nobody vouches for: the names of servers that are not trusted."""

    __slots__ = ("servers",)

    def __init__(self) -> None:
        self.servers: set[str] = set()


class Scope(Protocol):
    """What a turn reports while it runs. Coroutines return when the report is safe (stored, where there is a
    store): a call is opened before it is sent, a tool started before it is run."""

    @property
    def deadline(self) -> float | None:
        """When the turn must be over, on the event loop's clock; it moves while a person is asked."""

    @property
    def wants_deltas(self) -> bool:
        """Whether somebody listens to the text as it arrives."""

    @property
    def can_ask(self) -> bool:
        """Whether there is a person to ask for approvals."""

    def delta(self, text: str) -> None:
        """A fragment of answer text: a preview."""

    def sent(self, record: EgressRecord) -> None:
        """A request is about to leave."""

    async def call_opened(self, call: CallRecord) -> None:
        """A provider call is about to be made."""

    async def call_closed(self, call: CallRecord, usage: Usage | None, status: str) -> None:
        """A provider call is over. `usage` is `None` when the provider did not get to say; `status` is `ok`
        or the reason's tag."""

    async def tool_started(self, call_id: str, name: str, *, effect: bool) -> None:
        """A tool call is about to be made."""

    async def tool_finished(self, call_id: str, name: str, *, is_error: bool, unknown: bool = False) -> None:
        """A tool call is over. `unknown` says that nobody knows whether it was carried out."""

    async def ask_approval(self, request: ApprovalRequest) -> bool:
        """Asks a person; the turn's clock stands still meanwhile. `False` where there is nobody to ask."""


class NullScope:
    """Reports to nobody."""

    deadline: float | None = None
    wants_deltas: bool = False
    can_ask: bool = False

    def delta(self, text: str) -> None: ...

    def sent(self, record: EgressRecord) -> None: ...

    async def call_opened(self, call: CallRecord) -> None: ...

    async def call_closed(self, call: CallRecord, usage: Usage | None, status: str) -> None: ...

    async def tool_started(self, call_id: str, name: str, *, effect: bool) -> None: ...

    async def tool_finished(
        self, call_id: str, name: str, *, is_error: bool, unknown: bool = False
    ) -> None: ...

    async def ask_approval(self, request: ApprovalRequest) -> bool:
        return False


NULL_SCOPE: Scope = NullScope()
