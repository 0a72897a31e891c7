"""mead's events as OpenTelemetry spans: a turn, with its provider calls and tool calls under it.

An event comes when something has ended and says how long it took. The calls of a turn end before the turn
does, so they are kept until it has: then its span is made first and theirs under it, with the times at which
they really began and ended.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from mead.telemetry import _semconv as semconv
from mead.telemetry._turns import Kept, TurnEvents, TurnKey, key_of
from mead.telemetry.events import PROVIDER_CALL, ROUTE, TOOL_CALL, TURN, Event

NAMES = (ROUTE, TURN, PROVIDER_CALL, TOOL_CALL)
"""The events that spans are made of."""
_ENDED_KEPT = 1_000
_ROUTED = ("route", "route_source", "provider", "causes", "withheld", "withheld_results", "left_out")
_NS = 1_000_000_000
_Said = Mapping[str, AttributeValue | None]


class Spans:
    """Makes spans of what it hears. `owners` says whether they name the owner. `handle` is for `attach`."""

    def __init__(self, tracer: trace.Tracer, *, owners: bool = False) -> None:
        self._tracer = tracer
        self._owners = owners
        self._turns = TurnEvents(on_given_up=self._without_turn)
        # A task that was abandoned may report a call after its turn has ended.
        self._ended: OrderedDict[TurnKey, SpanContext] = OrderedDict()
        self._lock = threading.Lock()

    def handle(self, event: Event) -> None:
        """Takes an event."""
        key = key_of(event)
        if event.name == TURN:
            self._turn(event, key)
        elif key is None:
            self._calls([Kept(event, time.perf_counter_ns())], otel_context.get_current())
        elif (ended := self._ended_turn(key)) is None:
            self._turns.keep(key, event)
        else:
            turn = trace.set_span_in_context(NonRecordingSpan(ended))
            self._calls([Kept(event, time.perf_counter_ns())], turn)

    def close(self) -> None:
        """Makes spans of what was kept for turns that have not ended."""
        self._without_turn(self._turns.take_all())

    def _turn(self, event: Event, key: TurnKey | None) -> None:
        kept = () if key is None else self._turns.take(key)
        routed = next((each.event for each in kept if each.event.name == ROUTE), None)
        ended_ns = time.time_ns()
        started_ns = ended_ns - _length_ns(event)
        said = {**_turn_said(event), **({} if routed is None else _route_said(routed))}
        span = self._tracer.start_span(
            "turn", attributes=self._attributes(event, said), start_time=started_ns, kind=SpanKind.INTERNAL
        )
        _set_status(span, event)
        # The repeat of an earlier turn has no calls, and its number may be given to the next one.
        if key is not None and (kept or error_type(event) is not None):
            self._note_ended(key, span.get_span_context())
        self._calls(kept, trace.set_span_in_context(span), not_before_ns=started_ns)
        span.end(ended_ns)

    def _calls(self, kept: Sequence[Kept], context: Context, *, not_before_ns: int = 0) -> None:
        for each in kept:
            if each.event.name != ROUTE:
                self._call(each, context, not_before_ns=not_before_ns)

    def _call(self, kept: Kept, context: Context, *, not_before_ns: int) -> None:
        """Makes the span of a provider call or a tool call."""
        event = kept.event
        is_tool = event.name == TOOL_CALL
        said = _tool_said(event) if is_tool else _provider_said(event)
        ended_ns = max(time.time_ns() - (time.perf_counter_ns() - kept.at_ns), not_before_ns)
        span = self._tracer.start_span(
            _name(said[semconv.OPERATION_NAME], event.metadata.get("tool" if is_tool else "model")),
            context,
            attributes=self._attributes(event, said),
            start_time=max(ended_ns - _length_ns(event), not_before_ns),
            kind=SpanKind.INTERNAL if is_tool else SpanKind.CLIENT,
        )
        _set_status(span, event)
        span.end(ended_ns)

    def _without_turn(self, kept: Sequence[Kept]) -> None:
        self._calls(kept, Context())

    def _attributes(self, event: Event, said: _Said) -> dict[str, AttributeValue]:
        metadata = event.metadata
        shared: dict[str, AttributeValue | None] = {
            semconv.CONVERSATION_ID: metadata.get("session_id"),
            "mead.turn": metadata.get("turn"),
            "mead.owner": metadata.get("owner") if self._owners else None,
            semconv.ERROR_TYPE: error_type(event),
        }
        return {name: value for name, value in {**said, **shared}.items() if value is not None}

    def _note_ended(self, key: TurnKey, context: SpanContext) -> None:
        with self._lock:
            self._ended[key] = context
            if len(self._ended) > _ENDED_KEPT:
                self._ended.popitem(last=False)

    def _ended_turn(self, key: TurnKey) -> SpanContext | None:
        with self._lock:
            return self._ended.get(key)


def error_type(event: Event) -> str | None:
    """The tag of a failure, or how a tool call ended; `None` if all was well."""
    metadata = event.metadata
    if metadata.get("status") == "ok":
        return None
    return str(metadata.get("kind") if event.name == TOOL_CALL else metadata.get("reason"))


def _turn_said(event: Event) -> _Said:
    return {
        semconv.OPERATION_NAME: semconv.INVOKE_AGENT,
        "mead.turn.queued": event.measurements.get("queued"),
    }


def _route_said(event: Event) -> _Said:
    """What the turn's span tells of its routing, and its sums."""
    sums = event.measurements
    return {
        **{f"mead.{name}": event.metadata.get(name) for name in _ROUTED},
        "mead.tool_calls": sums.get("tool_calls"),
        semconv.USAGE_INPUT: sums.get("input_tokens"),
        semconv.USAGE_OUTPUT: sums.get("output_tokens"),
        "mead.tokens_unknown": event.metadata.get("tokens_unknown"),
    }


def _provider_said(event: Event) -> _Said:
    metadata, measured = event.metadata, event.measurements
    stop_reason = metadata.get("stop_reason")
    return {
        semconv.OPERATION_NAME: metadata.get("operation"),
        semconv.PROVIDER_NAME: metadata.get("provider"),
        semconv.REQUEST_MODEL: metadata.get("model"),
        semconv.REQUEST_STREAM: metadata.get("streamed") or None,
        semconv.FINISH_REASONS: None if stop_reason is None else (semconv.FINISHED[str(stop_reason)],),
        semconv.TIME_TO_FIRST_CHUNK: measured.get("first_delta"),
        semconv.USAGE_INPUT: measured.get("input_tokens"),
        semconv.USAGE_OUTPUT: measured.get("output_tokens"),
        semconv.USAGE_CACHE_READ: measured.get("cached_tokens"),
        semconv.USAGE_CACHE_CREATION: measured.get("cache_write_tokens"),
        semconv.USAGE_REASONING: measured.get("reasoning_tokens"),
        "mead.call": metadata.get("call"),
        "mead.cost_usd": measured.get("cost_usd"),
        "mead.route": metadata.get("route"),
    }


def _tool_said(event: Event) -> _Said:
    metadata = event.metadata
    return {
        semconv.OPERATION_NAME: semconv.EXECUTE_TOOL,
        semconv.TOOL_NAME: metadata.get("tool"),
        semconv.TOOL_TYPE: "function" if metadata.get("server") is None else "extension",
        "mead.tool.effect": metadata.get("effect"),
        "mead.tool.kind": metadata.get("kind"),
        "mead.tool.server": metadata.get("server"),
    }


def _name(operation: object, of: object) -> str:
    return f"{operation} {of}" if of is not None else str(operation)


def _length_ns(event: Event) -> int:
    return round((event.measurements.get("duration") or 0) * _NS)


def _set_status(span: trace.Span, event: Event) -> None:
    if error_type(event) is not None:
        span.set_status(Status(StatusCode.ERROR))
