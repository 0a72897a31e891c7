"""What the table [telemetry] sets up: log lines, and spans and metrics over OTLP."""

from __future__ import annotations

import asyncio
import gzip
import logging
import sys
from collections.abc import Iterator

import pytest

from mead import telemetry
from mead.settings import Settings, TelemetrySettings, parse
from mead.telemetry.logs import JsonFormatter, TextFormatter
from mead.telemetry.setup import install_from_settings
from mead.testing import Answer, FakeServer, Received, ScriptedProvider
from support import runtime


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leaves no handler and no level behind, and begins without OpenTelemetry's variables."""
    for name in ("TRACES_EXPORTER", "METRICS_EXPORTER", "EXPORTER_OTLP_ENDPOINT", "SERVICE_NAME"):
        monkeypatch.delenv(f"OTEL_{name}", raising=False)
    root, own = logging.getLogger(), logging.getLogger("mead")
    before = list(root.handlers), list(own.handlers), own.level
    yield
    root.handlers[:], own.handlers[:] = before[0], before[1]
    own.setLevel(before[2])


def formatter() -> object:
    return logging.getLogger().handlers[-1].formatter


def test_the_table_is_read() -> None:
    text = '[telemetry]\notel = true\nlog_format = "json"\nowners = true\n'

    assert parse(text, environ={}).telemetry == TelemetrySettings(otel=True, log_format="json", owners=True)
    assert parse("", environ={}).telemetry == TelemetrySettings(otel=False, log_format="text", owners=False)


def test_without_otel_only_the_lines_are_set_up() -> None:
    end = install_from_settings(Settings())
    assert isinstance(formatter(), TextFormatter)
    assert not telemetry.listened(telemetry.TURN)
    end()

    install_from_settings(Settings(telemetry=TelemetrySettings(log_format="json")))()
    assert isinstance(formatter(), JsonFormatter)


async def test_with_otel_spans_and_metrics_are_sent_to_where_the_variables_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeServer(Answer()) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        end = install_from_settings(Settings(telemetry=TelemetrySettings(otel=True)))
        async with runtime(ScriptedProvider("the answer")) as opened:
            session_id = await opened.start_session()
            await opened.submit_turn(session_id, "the question", route="local")
        await asyncio.to_thread(end)
        await asyncio.to_thread(end)

    sent = {request.path: body_of(request) for request in collector.requests}
    assert set(sent) == {"/v1/traces", "/v1/metrics"}
    assert b"execute" not in sent["/v1/traces"]
    for expected in (b"invoke_agent", session_id.encode(), b"service.name", b"mead", b"service.version"):
        assert expected in sent["/v1/traces"]
    assert b"gen_ai.client.operation.duration" in sent["/v1/metrics"]
    assert not [body for body in sent.values() if b"the question" in body or b"the answer" in body]
    assert not telemetry.listened(telemetry.TURN)


async def test_a_signal_can_be_left_out_and_the_service_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async with FakeServer(Answer()) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "our-assistant")
        end = install_from_settings(Settings(telemetry=TelemetrySettings(otel=True)))
        async with runtime(ScriptedProvider("hello")) as opened:
            await opened.submit_turn(await opened.start_session(), "hi", route="local")
        await asyncio.to_thread(end)

    assert [request.path for request in collector.requests] == ["/v1/traces"]
    assert b"our-assistant" in body_of(collector.requests[0])


def test_another_exporter_is_a_mistake_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")

    with pytest.raises(ValueError, match="OTEL_TRACES_EXPORTER must be otlp or none"):
        install_from_settings(Settings(telemetry=TelemetrySettings(otel=True)))
    assert not telemetry.listened(telemetry.TURN)


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter"])
def test_without_the_extra_the_mistake_names_it(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [name for name in sys.modules if name == missing or name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delitem(sys.modules, "mead.telemetry.otel", raising=False)
    monkeypatch.delattr(telemetry, "otel", raising=False)

    with pytest.raises(ValueError, match=r"pip install 'mead-runtime\[otel\]'"):
        install_from_settings(Settings(telemetry=TelemetrySettings(otel=True)))
    assert not telemetry.listened(telemetry.TURN)


def body_of(request: Received) -> bytes:
    packed = request.headers.get("content-encoding") == "gzip"
    return gzip.decompress(request.body) if packed else request.body
