"""Events as OpenTelemetry spans and metrics: the tree, the names of the conventions, and no content."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Histogram, InMemoryMetricReader, Metric
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.trace import SpanKind, StatusCode

import mead
from mead import telemetry
from mead.core.options import Options, TurnOptions
from mead.core.reasons import HttpStatus
from mead.core.turns import turn as newest
from mead.mcp.hub import ToolHub
from mead.router import route
from mead.sessions import run as run_module
from mead.telemetry import _semconv
from mead.telemetry.otel import TURN_DURATION, install
from mead.testing import ProviderRequest, ScriptedProvider, calls
from mead.testing.canaries import Canaries, find
from support import runtime, slots


class Seen:
    """What was exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        """The spans that have ended, by the time at which they began."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def points(self, name: str) -> list[tuple[Mapping[str, object], int, float]]:
        """The points of a histogram: attributes, count and sum."""
        found = []
        for metric in self._metrics():
            if metric.name == name:
                assert isinstance(metric.data, Histogram)
                found += [(dict(p.attributes or {}), p.count, p.sum) for p in metric.data.data_points]
        return found

    def _metrics(self) -> list[Metric]:
        data = self._reader.get_metrics_data()
        resources = data.resource_metrics if data is not None else ()
        return [metric for one in resources for scope in one.scope_metrics for metric in scope.metrics]

    def shape(self, name: str) -> tuple[str | None, Sequence[float]]:
        """The unit of a histogram, and the boundaries of its first point."""
        (metric,) = [metric for metric in self._metrics() if metric.name == name]
        assert isinstance(metric.data, Histogram)
        return metric.unit, tuple(metric.data.data_points[0].explicit_bounds)

    def everything(self) -> str:
        """All that was exported, as text."""
        data = self._reader.get_metrics_data()
        return "\n".join([span.to_json() for span in self.spans] + ([data.to_json()] if data else []))


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    uninstall = install(seen.tracers, seen.meters)
    yield seen
    uninstall()
    seen.tracers.shutdown()
    seen.meters.shutdown()


@mead.tool(effect=False)
def clock(zone: str = "UTC") -> str:
    """The time."""
    return "noon"


@mead.tool(effect=False)
def broken() -> str:
    """Fails."""
    raise ValueError("it broke")


def said(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


def parent_id(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def test_a_turn_has_a_span_with_its_calls_under_it(seen: Seen) -> None:
    provider = ScriptedProvider(calls("clock"), "It is noon.", name="mine")
    async with runtime(provider, tools=[clock]) as opened:
        session_id = await opened.start_session()
        (await opened.submit_turn(session_id, "What time is it?", route="local")).unwrap()

    turn, *children = seen.spans
    assert [span.name for span in seen.spans] == ["turn", "chat", "execute_tool clock", "chat"]
    assert [span.kind for span in seen.spans] == [
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
        SpanKind.INTERNAL,
        SpanKind.CLIENT,
    ]
    assert turn.parent is None
    assert {parent_id(span) for span in children} == {turn.context.span_id}
    assert {span.context.trace_id for span in seen.spans} == {turn.context.trace_id}
    assert turn.start_time is not None
    assert turn.end_time is not None
    for span in children:
        assert turn.start_time <= (span.start_time or 0) <= (span.end_time or 0) <= turn.end_time
    assert said(turn) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": session_id,
        "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.output_tokens": 2,
        "mead.turn": 1,
        "mead.turn.queued": said(turn)["mead.turn.queued"],
        "mead.route": "local",
        "mead.route_source": "forced",
        "mead.provider": "mine",
        "mead.causes": "forced",
        "mead.withheld": 0,
        "mead.withheld_results": 0,
        "mead.left_out": 0,
        "mead.tool_calls": 1,
        "mead.tokens_unknown": False,
    }
    assert said(children[1]) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "clock",
        "gen_ai.tool.type": "function",
        "gen_ai.conversation.id": session_id,
        "mead.turn": 1,
        "mead.tool.effect": False,
        "mead.tool.kind": "ok",
    }
    assert said(children[2]) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "mine",
        "gen_ai.conversation.id": session_id,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 1,
        "gen_ai.usage.output_tokens": 1,
        "mead.call": 2,
        "mead.cost_usd": 0.0,
        "mead.route": "local",
        "mead.turn": 1,
    }


async def test_a_streamed_call_says_so_and_when_its_first_text_came(seen: Seen) -> None:
    async with runtime(ScriptedProvider(["It ", "is."], name="anthropic")) as opened:
        session_id = await opened.start_session()
        async for _ in opened.stream_turn(session_id, "Is it?", route="local"):
            pass

    chat = seen.named("chat")
    first_s = said(chat)["gen_ai.response.time_to_first_chunk"]
    assert said(chat)["gen_ai.request.stream"] is True
    assert isinstance(first_s, float)
    assert 0 < first_s * 1e9 <= (chat.end_time or 0) - (chat.start_time or 0)
    ((attributes, count, total_s),) = seen.points("gen_ai.client.operation.time_to_first_chunk")
    assert attributes == {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "anthropic"}
    assert (count, total_s) == (1, first_s)


async def test_a_call_that_is_not_streamed_has_no_time_to_the_first_text(seen: Seen) -> None:
    async with runtime(ScriptedProvider("It is.")) as opened:
        await opened.submit_turn(await opened.start_session(), "Is it?", route="local")

    assert "gen_ai.response.time_to_first_chunk" not in said(seen.named("chat"))
    assert seen.points("gen_ai.client.operation.time_to_first_chunk") == []


async def test_the_metrics_have_the_names_units_and_boundaries_of_the_conventions(seen: Seen) -> None:
    provider = ScriptedProvider("Fine.", HttpStatus(status=500), name="openai")
    settings = Options(model="gpt-5.1")
    async with mead.Runtime(slots=slots(provider, options=settings)) as opened:
        session_id = await opened.start_session()
        for text in ("one", "two"):
            await opened.submit_turn(session_id, text, route="local")

    shared = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5.1",
    }
    assert [span.name for span in seen.spans].count("chat gpt-5.1") == 2
    durations = [
        (attributes, count) for attributes, count, _ in seen.points("gen_ai.client.operation.duration")
    ]
    assert durations == [(shared, 1), ({**shared, "error.type": "http_status"}, 1)]
    assert seen.points("gen_ai.client.token.usage") == [
        ({**shared, "gen_ai.token.type": "input"}, 1, 1),
        ({**shared, "gen_ai.token.type": "output"}, 1, 1),
    ]
    turns = [point[:2] for point in seen.points(TURN_DURATION)]
    assert turns == [({"mead.route": "local"}, 1), ({"mead.route": "local", "error.type": "http_status"}, 1)]
    assert seen.shape("gen_ai.client.operation.duration") == ("s", _semconv.SECONDS)
    assert seen.shape("gen_ai.client.token.usage") == ("{token}", _semconv.TOKENS)


async def test_a_failure_is_an_error_with_its_tag_on_the_call_and_on_the_turn(seen: Seen) -> None:
    async with runtime(ScriptedProvider(HttpStatus(status=500, detail="their words"))) as opened:
        await opened.submit_turn(await opened.start_session(), "hello", route="local")

    assert [span.name for span in seen.spans] == ["turn", "chat"]
    for span in seen.spans:
        assert span.status.status_code is StatusCode.ERROR
        assert span.status.description is None
        assert said(span)["error.type"] == "http_status"
        assert span.events == ()


async def test_a_tool_that_fails_is_an_error_of_its_own_and_not_of_the_turn(seen: Seen) -> None:
    async with runtime(ScriptedProvider(calls("broken"), "It failed."), tools=[broken]) as opened:
        await opened.submit_turn(await opened.start_session(), "hello", route="local")

    tool, turn = seen.named("execute_tool broken"), seen.named("turn")
    assert (tool.status.status_code, said(tool)["error.type"]) == (StatusCode.ERROR, "tool_error")
    assert (turn.status.status_code, "error.type" in said(turn)) == (StatusCode.UNSET, False)


async def test_r14_a_provider_that_raises_is_a_crashed_call_in_a_crashed_turn(seen: Seen) -> None:
    async with runtime(ScriptedProvider(ZeroDivisionError())) as opened:
        await opened.submit_turn(await opened.start_session(), "hello", route="local")

    assert [said(span)["error.type"] for span in seen.spans] == ["crashed", "crashed"]
    assert parent_id(seen.spans[1]) == seen.spans[0].context.span_id


async def test_a_cancelled_turn_has_its_spans_too(seen: Seen) -> None:
    asked = asyncio.Event()

    async def wait_for_ever(request: ProviderRequest) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with runtime(ScriptedProvider(wait_for_ever)) as opened:
        session_id = await opened.start_session()
        task = asyncio.create_task(opened.submit_turn(session_id, "hello", route="local"))
        await asked.wait()
        await opened.cancel_turn(session_id)
        await task

    assert [span.name for span in seen.spans] == ["turn", "chat"]
    assert [said(span)["error.type"] for span in seen.spans] == ["cancelled", "cancelled"]
    assert said(seen.spans[0])["mead.route"] == "local"


async def test_a_turn_that_is_refused_has_a_span_without_calls(seen: Seen) -> None:
    async with runtime(ScriptedProvider()) as opened:
        await opened.submit_turn(await opened.start_session(), " ", route="local")

    (span,) = seen.spans
    assert (span.name, said(span)["error.type"]) == ("turn", "invalid_options")
    assert "mead.turn" not in said(span)


async def test_turns_at_the_same_time_do_not_mix(seen: Seen) -> None:
    both = asyncio.Barrier(2)

    async def meet(request: ProviderRequest) -> Any:
        await both.wait()
        return calls("clock")

    provider = ScriptedProvider(meet, meet, otherwise="noon")
    async with runtime(provider, tools=[clock]) as opened:
        sessions = [await opened.start_session() for _ in range(2)]
        await asyncio.gather(
            *[opened.submit_turn(one, "What time is it?", route="local") for one in sessions]
        )

    turns = [span for span in seen.spans if span.name == "turn"]
    assert {said(turn)["gen_ai.conversation.id"] for turn in turns} == set(sessions)
    assert len({turn.context.trace_id for turn in turns}) == 2
    for turn in turns:
        below = [span for span in seen.spans if parent_id(span) == turn.context.span_id]
        assert [span.name for span in below] == ["chat", "execute_tool clock", "chat"]
        for span in below:
            assert said(span)["gen_ai.conversation.id"] == said(turn)["gen_ai.conversation.id"]


async def test_a_turn_is_under_the_span_that_it_was_submitted_in_also_when_it_has_waited(
    seen: Seen,
) -> None:
    tracer = seen.tracers.get_tracer("program")
    asked, may_go = asyncio.Event(), asyncio.Event()

    async def wait(request: ProviderRequest) -> str:
        asked.set()
        await may_go.wait()
        return "first"

    async with runtime(ScriptedProvider(wait, "second")) as opened:
        session_id = await opened.start_session()

        async def submit(name: str) -> None:
            with tracer.start_as_current_span(name):
                (await opened.submit_turn(session_id, name, route="local")).unwrap()

        first = asyncio.create_task(submit("request one"))
        await asked.wait()
        second = asyncio.create_task(submit("request two"))
        await asyncio.sleep(0)
        may_go.set()
        await asyncio.gather(first, second)

    by_number = {said(span)["mead.turn"]: span for span in seen.spans if span.name == "turn"}
    assert parent_id(by_number[1]) == seen.named("request one").context.span_id
    assert parent_id(by_number[2]) == seen.named("request two").context.span_id


async def test_a_call_that_ends_after_its_abandoned_turn_is_still_under_it(
    seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "ABANDON_AFTER_S", 0)
    asked, may_go, is_over = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def stubborn(request: ProviderRequest) -> str:
        asked.set()
        while not may_go.is_set():
            try:
                await may_go.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    detach = telemetry.attach(lambda event: is_over.set(), telemetry.PROVIDER_CALL)
    async with runtime(ScriptedProvider(stubborn)) as opened:
        session_id = await opened.start_session()
        turn = asyncio.create_task(opened.submit_turn(session_id, "hello", route="local"))
        await asked.wait()
        await opened.cancel_turn(session_id)
        await turn
        before = [span.name for span in seen.spans]
        may_go.set()
        await is_over.wait()
    detach()

    assert before == ["turn"]
    assert parent_id(seen.named("chat")) == seen.named("turn").context.span_id


async def test_outside_a_session_each_call_is_a_span_of_its_own(seen: Seen) -> None:
    provider = ScriptedProvider(calls("clock"), "noon")
    await route([newest("hi")], None, TurnOptions(route="local"), slots(provider), ToolHub([clock]))

    assert [(span.name, span.parent) for span in seen.spans] == [
        ("chat", None),
        ("execute_tool clock", None),
        ("chat", None),
    ]
    assert not [span for span in seen.spans if "gen_ai.conversation.id" in said(span)]


async def test_calls_whose_turn_never_ends_get_their_spans_when_all_is_over() -> None:
    seen = Seen()
    uninstall = install(seen.tracers, seen.meters)
    options = TurnOptions(route="local", session_id="s1", turn=3)
    await route([newest("hi")], None, options, slots(ScriptedProvider("hello")), ToolHub())
    before = list(seen.spans)
    uninstall()
    uninstall()

    assert before == []
    assert said(seen.named("chat"))["mead.turn"] == 3
    assert not telemetry.listened(telemetry.PROVIDER_CALL)


@pytest.mark.parametrize("owners", [False, True])
async def test_the_owner_is_named_only_where_that_is_wanted(owners: bool) -> None:
    seen = Seen()
    uninstall = install(seen.tracers, seen.meters, owners=owners)
    async with runtime(ScriptedProvider("hello")) as opened:
        ada = opened.for_owner("ada-lovelace")
        await ada.submit_turn(await ada.start_session(), "hi", route="local")
    uninstall()

    assert [said(span).get("mead.owner") for span in seen.spans] == ["ada-lovelace" if owners else None] * 2
    assert ("ada-lovelace" in seen.everything()) is owners


async def test_a_span_that_is_not_sampled_takes_its_calls_with_it() -> None:
    exporter = InMemorySpanExporter()
    tracers = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    uninstall = install(tracers, MeterProvider(shutdown_on_exit=False))
    async with runtime(ScriptedProvider("hello")) as opened:
        await opened.submit_turn(await opened.start_session(), "hi", route="local")
    uninstall()

    assert exporter.get_finished_spans() == ()


async def test_t3_nothing_of_what_is_said_is_in_any_span_or_metric(seen: Seen) -> None:
    canaries = Canaries(seed=7)
    planted = {kind: canaries.make(kind) for kind in ("question", "answer", "argument", "result", "raised")}

    @mead.tool(effect=False)
    def look(where: str) -> str:
        """Looks."""
        if where == "nowhere":
            raise ValueError(str(planted["raised"]))
        return f"there is {planted['result']}"

    provider = ScriptedProvider(
        calls("look", where=str(planted["argument"])),
        calls("look", "again", where="nowhere"),
        f"It is {planted['answer']}.",
        HttpStatus(status=400, detail=str(planted["raised"])),
        ValueError(str(planted["raised"])),
    )
    async with runtime(provider, tools=[look]) as opened:
        session_id = await opened.start_session(system=f"You know {planted['question']}.")
        first = await opened.submit_turn(session_id, f"Where is {planted['question']}?", route="local")
        for _ in range(2):
            await opened.submit_turn(session_id, str(planted["question"]), route="local")

    exported = seen.everything()
    assert str(planted["answer"]) in first.unwrap().text
    assert exported.count('"name": "execute_tool look"') == 2
    assert find(exported, canaries.made) == []


def test_the_names_are_those_of_the_conventions() -> None:
    attributes = [value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")]
    instruments = [value for name, value in vars(gen_ai_metrics).items() if name.startswith("GEN_AI_")]
    ours = {
        value for value in vars(_semconv).values() if isinstance(value, str) and value.startswith("gen_ai.")
    }

    assert len(ours) == 18
    assert ours <= {*attributes, *instruments}
    assert error_attributes.ERROR_TYPE == _semconv.ERROR_TYPE


def test_without_providers_the_global_ones_are_used() -> None:
    uninstall = install()

    assert telemetry.listened(telemetry.TURN)
    uninstall()
    assert not telemetry.listened(telemetry.TURN)
