"""What becomes of a call, as the model is told of it."""

from __future__ import annotations

import logging
from typing import Literal, TypeAlias

from msgspec import Struct

CARRIED_OUT = "The call may have been carried out: check before you repeat it."

_CONNECTION_CLOSED = -32000  # the SDK's code for a request whose connection went away
_log = logging.getLogger("mead.mcp")

Kind: TypeAlias = Literal[
    "ok",
    "bad_input",
    "tool_error",
    "protocol_error",
    "too_large",
    "server_down",
    "timeout",
    "lost",
    "asks_for_input",
]


class CallResult(Struct, frozen=True):
    """What became of a call: the text for the model, and the kind of its end."""

    text: str
    is_error: bool
    kind: Kind


def failed_call(tool: str, error: BaseException, *, connection_closed: bool) -> CallResult | None:
    """The result for an exception of the SDK; `None` where it means that the connection was lost."""
    from mead.mcp.transports import TOO_LARGE

    code = getattr(getattr(error, "error", None), "code", None)
    if code == TOO_LARGE:
        return CallResult(f"{tool} was carried out, but {error}", is_error=True, kind="too_large")
    if connection_closed or code == _CONNECTION_CLOSED or isinstance(error, ConnectionError):
        return None
    if type(error).__name__ in ("ClosedResourceError", "BrokenResourceError", "EndOfStream"):
        return None
    if code is None:
        _log.warning("a call of %s raised %s", tool, type(error).__name__)
    # JSON-RPC's own codes, -32768 to -32100, say that the request was not understood, so nothing was run.
    run = code is None or code >= -32099
    said = f"{tool} failed: {str(error)[:1500]} {CARRIED_OUT if run else ''}".rstrip()
    return CallResult(said, is_error=True, kind="protocol_error")
