"""mead: a runtime for LLM-backed assistants.

    import mead

    session_id = mead.start_session()
    result = mead.submit_turn(session_id, "hello", route="local")

The functions here use a default runtime and block; `mead.aio` has the same to await. A program of any size
opens a `Runtime` (async) or a `SyncRuntime` of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mead import aio, settings, telemetry
from mead.core.messages import (
    Block,
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    VendorBlock,
)
from mead.core.options import NO_OPTIONS, Options, ResponseFormat, ToolChoice, TurnOptions
from mead.core.reasons import (
    BudgetExceeded,
    Cancelled,
    CloudUnavailable,
    ContextOverflow,
    Crashed,
    HttpStatus,
    IdempotencyConflict,
    Interrupted,
    InvalidOptions,
    LocalUnavailable,
    MalformedResponse,
    MissingApiKey,
    NoSuchSession,
    PrivateContent,
    ProviderReason,
    Reason,
    SessionBusy,
    ShuttingDown,
    SlotBusy,
    Timeout,
    ToolLoopLimit,
    ToolsUnsupported,
    Transport,
    TurnReason,
)
from mead.core.result import Err, MeadError, Ok, Result
from mead.core.scope import Approval, ApprovalRequest
from mead.core.turns import (
    Answer,
    Cause,
    Contribution,
    Decision,
    Finding,
    Handler,
    Hub,
    NoHub,
    ToolOutput,
    Turn,
    Verdict,
    turn,
)
from mead.core.usage import Usage, UsageTotal
from mead.mcp.functions import tool
from mead.mcp.hub import McpHub, ToolHub
from mead.mcp.policy import Policy
from mead.providers.protocol import Completion, Provider, Reply
from mead.router import AutoClassifier, Backend, Refused, Router, Slot, Slots, route
from mead.sessions.default import (
    cancel_turn,
    configure,
    explain,
    explain_request,
    history,
    start_session,
    stop_session,
    stream_request,
    stream_turn,
    submit_request,
    submit_turn,
)
from mead.sessions.events import ApprovalNeeded, Delta, Finished, ToolCalled, ToolReturned, TurnEvent
from mead.sessions.handlers import EchoHandler
from mead.sessions.runtime import Runtime
from mead.sessions.sync import SyncRuntime
from mead.settings import ConfigError, Settings

if TYPE_CHECKING:
    from mead.client import RemoteRuntime, connect, connect_sync

__version__ = "0.1.0"

__all__ = [
    "NO_OPTIONS",
    "Answer",
    "Approval",
    "ApprovalNeeded",
    "ApprovalRequest",
    "AutoClassifier",
    "Backend",
    "Block",
    "BudgetExceeded",
    "Cancelled",
    "Cause",
    "CloudUnavailable",
    "Completion",
    "ConfigError",
    "ContextOverflow",
    "Contribution",
    "Crashed",
    "Decision",
    "Delta",
    "DocumentBlock",
    "EchoHandler",
    "Err",
    "Finding",
    "Finished",
    "Handler",
    "HttpStatus",
    "Hub",
    "IdempotencyConflict",
    "ImageBlock",
    "Interrupted",
    "InvalidOptions",
    "LocalUnavailable",
    "MalformedResponse",
    "McpHub",
    "MeadError",
    "Message",
    "MissingApiKey",
    "NoHub",
    "NoSuchSession",
    "Ok",
    "Options",
    "Policy",
    "PrivateContent",
    "Provider",
    "ProviderReason",
    "Reason",
    "Refused",
    "RemoteRuntime",
    "Reply",
    "ResponseFormat",
    "Result",
    "Router",
    "Runtime",
    "SessionBusy",
    "Settings",
    "ShuttingDown",
    "Slot",
    "SlotBusy",
    "Slots",
    "SyncRuntime",
    "TextBlock",
    "Timeout",
    "Tool",
    "ToolCalled",
    "ToolChoice",
    "ToolHub",
    "ToolLoopLimit",
    "ToolOutput",
    "ToolResultBlock",
    "ToolReturned",
    "ToolUseBlock",
    "ToolsUnsupported",
    "Transport",
    "Turn",
    "TurnEvent",
    "TurnOptions",
    "TurnReason",
    "Usage",
    "UsageTotal",
    "VendorBlock",
    "Verdict",
    "aio",
    "cancel_turn",
    "configure",
    "connect",
    "connect_sync",
    "explain",
    "explain_request",
    "history",
    "route",
    "settings",
    "start_session",
    "stop_session",
    "stream_request",
    "stream_turn",
    "submit_request",
    "submit_turn",
    "telemetry",
    "tool",
    "turn",
]


def __getattr__(name: str) -> object:
    """The client of a server is loaded on first use."""
    if name in ("RemoteRuntime", "connect", "connect_sync"):
        from mead import client

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
