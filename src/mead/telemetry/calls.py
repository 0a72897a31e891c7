"""Tells of provider calls: one place that makes their event, whoever has made the call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mead.core.usage import Usage
from mead.telemetry import PROVIDER_CALL, emit

if TYPE_CHECKING:
    from mead.core.options import TurnOptions

_UNKNOWN = Usage()


def tell_call(
    *,
    operation: Literal["chat", "embeddings"],
    route: str,
    provider: str,
    model: str | None,
    usage: Usage | None,
    status: str,
    duration_s: float,
    options: TurnOptions,
    call: int | None = None,
    stop_reason: str | None = None,
    streamed: bool = False,
    first_delta_s: float | None = None,
    cost_usd: float | None = None,
) -> None:
    """Emits the event of a provider call that ended with `status`, `ok` or a reason's tag. `options` are
    those of its turn. Ask `telemetry.listened` first: what nobody hears need not be worked out."""
    counts = usage or _UNKNOWN
    emit(
        PROVIDER_CALL,
        {
            "duration": duration_s,
            "input_tokens": counts.input_tokens,
            "output_tokens": counts.output_tokens,
            "cached_tokens": counts.cached_tokens,
            "cache_write_tokens": counts.cache_write_tokens,
            "reasoning_tokens": counts.reasoning_tokens,
            "first_delta": first_delta_s,
            "cost_usd": cost_usd,
        },
        {
            "operation": operation,
            "route": route,
            "provider": provider,
            "model": model,
            "status": "ok" if status == "ok" else "error",
            "reason": None if status == "ok" else status,
            "stop_reason": stop_reason,
            "streamed": streamed,
            "call": call,
            "session_id": options.session_id,
            "turn": options.turn or None,
            "owner": options.owner,
        },
    )
