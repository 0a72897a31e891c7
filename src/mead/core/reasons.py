"""Every way an operation can fail, as values. A reason's `tag` is spelled the same wherever it appears:
in results, events, logs, exit messages and HTTP bodies.

`detail` is a sentence for a person (often the server's own words). It never holds a key, nor text of the
conversation: adapters clean it with `mead.providers._errors`.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from msgspec import Struct


def _tag(class_name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", class_name).lower()


class Reason(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="tag", tag=_tag):
    """The base of every reason."""

    detail: str | None = None

    @property
    def tag(self) -> str:
        """The stable name, for example `http_status`."""
        return str(self.__struct_config__.tag)

    def __str__(self) -> str:
        return f"{self.tag}: {self.detail}" if self.detail else self.tag


# Providers (P4)


class MissingApiKey(Reason, frozen=True):
    """The provider needs a key and none (or an empty one) is set. Nothing was sent."""


class Timeout(Reason, frozen=True):
    """A limit ran out. `limit` says which: the turn's `deadline`, the `idle` gap between two pieces of a
    stream, the `connect` phase, or the wait in the session's `queue`."""

    limit: Literal["deadline", "idle", "connect", "queue"] = "deadline"


class MalformedResponse(Reason, frozen=True):
    """The server answered with something that is not an answer of its wire format."""


class InvalidOptions(Reason, frozen=True):
    """The request cannot be served as it is: an option, a name or a size that the provider does not take.
    `code` is the server's own word for it, if it has one."""

    code: str | None = None


class ToolsUnsupported(Reason, frozen=True):
    """The model cannot use tools, and at least one was visible to the turn."""


class HttpStatus(Reason, frozen=True):
    """The service refused. `retry_after_s` is its own hint in seconds, if it sent one; `code` its own
    word."""

    status: int
    retry_after_s: float | None = None
    code: str | None = None


class Transport(Reason, frozen=True):
    """The connection failed. `cause` is a short word: `refused`, `dns`, `tls`, `reset`, `cut` (the answer
    ended before its end), `not_local` (the egress gate did not allow the address), or `engine` (the embedded
    model's process cannot run)."""

    cause: str


ProviderReason: TypeAlias = (
    MissingApiKey | Timeout | MalformedResponse | InvalidOptions | ToolsUnsupported | HttpStatus | Transport
)


# Router


class LocalUnavailable(Reason, frozen=True):
    """The turn is for the local model and the local slot is empty. Nothing was sent anywhere."""


class CloudUnavailable(Reason, frozen=True):
    """The turn is for the cloud model and the cloud slot is empty. Nothing was sent anywhere."""


class ToolLoopLimit(Reason, frozen=True):
    """The model still asked for tools in the last provider call that a turn may make."""


class PrivateContent(Reason, frozen=True):
    """A turn forced to the cloud holds private content. `kinds` names what was found, never its text."""

    kinds: tuple[str, ...] = ()


class ContextOverflow(Reason, frozen=True):
    """The newest turn alone does not fit the model's context."""


class SlotBusy(Reason, frozen=True):
    """The slot's queue is full."""

    retry_after_s: float | None = None


RouteReason: TypeAlias = (
    LocalUnavailable | CloudUnavailable | ToolLoopLimit | PrivateContent | ContextOverflow | SlotBusy
)


# Ledger


class BudgetExceeded(Reason, frozen=True):
    """A budget does not cover the call. Nothing was sent."""


LedgerReason: TypeAlias = BudgetExceeded


# Sessions


class NoSuchSession(Reason, frozen=True):
    """No session of this owner has that id."""


class SessionBusy(Reason, frozen=True):
    """Another turn runs and the caller asked not to wait, or too many wait already."""


class IdempotencyConflict(Reason, frozen=True):
    """The idempotency key was used before with another request."""


class Interrupted(Reason, frozen=True):
    """Replaced by a newer turn, or its process died."""


class Cancelled(Reason, frozen=True):
    """A caller cancelled the turn."""


class Crashed(Reason, frozen=True):
    """The handler, a provider or a tool raised. `error` is the exception's class name; the log has the
    stack. The exception's message is left out: it may quote the conversation."""

    error: str


SessionReason: TypeAlias = (
    NoSuchSession | SessionBusy | IdempotencyConflict | Interrupted | Cancelled | Crashed
)


# Runtime


class ShuttingDown(Reason, frozen=True):
    """The runtime is closing and takes no new turns."""


TurnReason: TypeAlias = ProviderReason | RouteReason | LedgerReason | SessionReason | ShuttingDown
"""Everything that `submit_turn` can fail with."""
