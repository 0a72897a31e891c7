"""mead's events as OpenTelemetry spans and metrics, by its conventions for generative AI.

    uninstall = mead.telemetry.otel.install()

Needs the extra `otel`. No span and no metric holds text of a conversation, arguments, results or a secret
(T3): only ids, names, counts and tags.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from opentelemetry import metrics, trace
from opentelemetry.environment_variables import OTEL_METRICS_EXPORTER, OTEL_TRACES_EXPORTER
from opentelemetry.metrics import Meter, MeterProvider
from opentelemetry.trace import TracerProvider
from opentelemetry.util.types import AttributeValue

from mead import telemetry
from mead.telemetry import _semconv as semconv
from mead.telemetry import _spans
from mead.telemetry._turns import TurnEvents, key_of
from mead.telemetry._version import VERSION
from mead.telemetry.events import PROVIDER_CALL, ROUTE, TURN, Event

_SCOPE = "mead"
TURN_DURATION = "mead.turn.duration"


def install(
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    *,
    owners: bool = False,
) -> Callable[[], None]:
    """Turns the events of every runtime in this process into spans and metrics, from now on.

    The providers are OpenTelemetry's global ones unless given. `owners` says whether spans name whose turn it
    is; metrics never do. Returns what ends it, which may be called twice: it makes the spans of calls whose
    turn has not ended, and leaves the providers as they are.
    """
    tracers = tracer_provider or trace.get_tracer_provider()
    meters = meter_provider or metrics.get_meter_provider()
    spans = _spans.Spans(tracers.get_tracer(_SCOPE, VERSION), owners=owners)
    histograms = _Histograms(meters.get_meter(_SCOPE, VERSION))
    detach_spans = telemetry.attach(spans.handle, *_spans.NAMES)
    detach_histograms = telemetry.attach(histograms.handle, ROUTE, TURN, PROVIDER_CALL)

    def uninstall() -> None:
        detach_spans()
        detach_histograms()
        spans.close()

    return uninstall


def install_exporters(*, owners: bool = False) -> Callable[[], None]:
    """`install`, with providers that send everything by OTLP over HTTP.

    OpenTelemetry's own variables say where to and how (`OTEL_EXPORTER_OTLP_ENDPOINT`,
    `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`, `OTEL_SDK_DISABLED` …); with
    `OTEL_TRACES_EXPORTER=none` no spans are sent, with `OTEL_METRICS_EXPORTER=none` no metrics. Returns what
    sends the rest and ends it; that may take some seconds, so call it on a thread. Raises `ValueError` for
    another exporter.
    """
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider as SdkTracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    wants_spans, wants_metrics = _wants(OTEL_TRACES_EXPORTER), _wants(OTEL_METRICS_EXPORTER)
    own = Resource({SERVICE_NAME: _SCOPE, SERVICE_VERSION: VERSION})
    resource = Resource.create().merge(own).merge(OTELResourceDetector().detect())
    tracers = SdkTracerProvider(resource=resource, shutdown_on_exit=False)
    if wants_spans:
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if wants_metrics else []
    meters = SdkMeterProvider(readers, resource=resource, shutdown_on_exit=False)
    uninstall = install(tracers, meters, owners=owners)
    is_over = False

    def end() -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            uninstall()
            tracers.shutdown()
            meters.shutdown()

    return end


def _wants(variable: str) -> bool:
    """Whether a signal is to be sent. These variables are OpenTelemetry's, not settings of mead's: the SDK
    reads the others itself."""
    chosen = os.environ.get(variable, "").strip() or "otlp"
    if chosen not in ("otlp", "none"):
        raise ValueError(f"{variable} must be otlp or none: mead brings no other exporter")
    return chosen == "otlp"


class _Histograms:
    """The metrics. Their attributes are few and bounded: no ids."""

    def __init__(self, meter: Meter) -> None:
        def seconds(name: str, description: str) -> metrics.Histogram:
            return meter.create_histogram(
                name, "s", description, explicit_bucket_boundaries_advisory=semconv.SECONDS
            )

        self._routes = TurnEvents(max_turns=1_000)
        self._turn = seconds(TURN_DURATION, "How long turns took, without the wait before them.")
        self._operation = seconds(semconv.OPERATION_DURATION, "GenAI operation duration.")
        self._first_chunk = seconds(
            semconv.OPERATION_TIME_TO_FIRST_CHUNK, "How long it took until the first text of a stream."
        )
        self._tokens = meter.create_histogram(
            semconv.TOKEN_USAGE,
            "{token}",
            "Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=semconv.TOKENS,
        )

    def handle(self, event: Event) -> None:
        """Takes an event."""
        if event.name == PROVIDER_CALL:
            self._call(event)
        elif (key := key_of(event)) is not None:
            if event.name == ROUTE:
                self._routes.keep(key, event)
                return
            routes = [kept.event.metadata["route"] for kept in self._routes.take(key)]
            if event.metadata["stage"] != "running":
                return  # it ended while it waited
            said = {
                semconv.ERROR_TYPE: _spans.error_type(event),
                "mead.route": routes[0] if routes else None,
            }
            self._turn.record(event.measurements["duration"] or 0, _known(said))

    def _call(self, event: Event) -> None:
        metadata, measured = event.metadata, event.measurements
        said = _known(
            {
                semconv.OPERATION_NAME: metadata["operation"],
                semconv.PROVIDER_NAME: metadata["provider"],
                semconv.REQUEST_MODEL: metadata["model"],
            }
        )
        failed = _known({semconv.ERROR_TYPE: _spans.error_type(event)})
        self._operation.record(measured["duration"] or 0, {**said, **failed})
        if (first := measured["first_delta"]) is not None:
            self._first_chunk.record(first, said)
        for kind in ("input", "output"):
            if (count := measured[f"{kind}_tokens"]) is not None:
                self._tokens.record(count, {**said, semconv.TOKEN_TYPE: kind})


def _known(said: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {name: value for name, value in said.items() if value is not None}
