"""Events as Prometheus metrics: what is counted, by which labels, and no content."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from decimal import Decimal

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

import mead
from mead import telemetry
from mead.core.options import Options
from mead.core.reasons import HttpStatus
from mead.core.usage import Usage
from mead.providers.protocol import Completion
from mead.settings.values import PriceSettings
from mead.telemetry.prometheus import MAX_VALUES, BudgetLeft, Metrics, Readings
from mead.testing import ProviderRequest, ScriptedProvider, calls
from mead.testing.canaries import Canaries, find
from support import runtime, slots

OWNER = "ada-lovelace"
OF = {"route": "local", "provider": "mine", "model": "none"}


class Counted:
    """What a scrape says: the value of each metric by its labels."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in parse(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float | None:
        return self.samples.get((name, frozenset(labels.items())))

    def labels(self, name: str) -> list[Mapping[str, str]]:
        return [dict(labels) for known, labels in self.samples if known == name]


async def scraped(metrics: Metrics) -> Counted:
    body, _ = await metrics.scrape()
    return Counted(body.decode())


@pytest.fixture
async def metrics() -> AsyncIterator[Metrics]:
    made = Metrics()
    detach = made.attach()
    yield made
    detach()


@mead.tool(effect=False)
def clock() -> str:
    """The time."""
    return "noon"


async def test_turns_are_counted_by_route_status_and_reason(metrics: Metrics) -> None:
    local = ScriptedProvider("one", "two", HttpStatus(status=500), ZeroDivisionError(), name="mine")
    async with runtime(local) as opened:
        session_id = await opened.start_session()
        for text in ("a", "b", "c", "d", " "):
            await opened.submit_turn(session_id, text, route="local")
        await opened.submit_turn(session_id, "e", route="cloud")
    counted = await scraped(metrics)

    turns = {
        tuple(labels[name] for name in ("route", "status", "reason")): counted.value(
            "mead_turns_total", **labels
        )
        for labels in counted.labels("mead_turns_total")
    }
    assert turns == {
        ("local", "ok", "none"): 2,
        ("local", "error", "http_status"): 1,
        ("none", "error", "crashed"): 1,
        ("none", "error", "invalid_options"): 1,
        ("cloud", "error", "cloud_unavailable"): 1,
    }
    assert counted.value("mead_turn_duration_seconds_count", route="local", status="ok") == 2
    assert counted.value("mead_turn_queued_seconds_count") == 5  # a refused turn has not waited
    assert counted.value("mead_build_info", version=mead.__version__) == 1


async def test_calls_tokens_and_cost_are_counted_and_what_is_unknown_is_counted_as_such(
    metrics: Metrics,
) -> None:
    usage = Usage(input_tokens=1_000, output_tokens=200, cached_tokens=600)
    cloud = ScriptedProvider(
        Completion(text="a", usage=usage), Completion(text="b"), name="theirs", tools=False
    )
    price = PriceSettings(model="big", input=Decimal(3), output=Decimal(15), cached=Decimal("0.3"))
    settings = mead.Settings(prices=(price,))
    filled = slots(cloud=cloud, options=Options(model="big"))
    async with mead.Runtime(settings, slots=filled) as opened:
        session_id = await opened.start_session()
        for _ in range(2):
            (await opened.submit_turn(session_id, "hello", route="cloud")).unwrap()
    counted = await scraped(metrics)

    of = {"route": "cloud", "provider": "theirs", "model": "big"}
    assert counted.value("mead_provider_calls_total", **of, status="ok", reason="none") == 2
    assert counted.value("mead_tokens_total", **of, direction="input") == 1_000
    assert counted.value("mead_tokens_total", **of, direction="output") == 200
    assert counted.value("mead_cached_tokens_total", **of) == 600
    assert counted.value("mead_uncounted_calls_total", **of) == 1
    assert counted.value("mead_unpriced_calls_total", **of) == 1
    assert counted.value("mead_cost_usd_total", **of) == pytest.approx((400 * 3 + 600 * 0.3 + 200 * 15) / 1e6)
    assert counted.value("mead_provider_call_duration_seconds_count", **of) == 2


async def test_only_a_streamed_answer_has_a_time_to_its_first_token(metrics: Metrics) -> None:
    async with runtime(ScriptedProvider("a", ["b", "c"], name="mine")) as opened:
        session_id = await opened.start_session()
        await opened.submit_turn(session_id, "hello", route="local")
        before = await scraped(metrics)
        async for _ in opened.stream_turn(session_id, "hello", route="local"):
            pass
    counted = await scraped(metrics)

    assert before.value("mead_time_to_first_token_seconds_count", **OF) is None
    assert counted.value("mead_time_to_first_token_seconds_count", **OF) == 1


async def test_tool_calls_are_counted_by_tool_and_status(metrics: Metrics) -> None:
    @mead.tool(effect=False)
    def broken() -> str:
        """Fails."""
        raise ValueError

    provider = ScriptedProvider(calls("clock"), calls("broken"), calls("invented_by_the_model"), "noon")
    async with runtime(provider, tools=[clock, broken]) as opened:
        (await opened.submit_turn(await opened.start_session(), "hello", route="local")).unwrap()
    counted = await scraped(metrics)

    assert counted.value("mead_tool_calls_total", tool="clock", server="none", status="ok", kind="ok") == 1
    failed = {"tool": "broken", "server": "none", "status": "error", "kind": "tool_error"}
    assert counted.value("mead_tool_calls_total", **failed) == 1
    assert len(counted.labels("mead_tool_calls_total")) == 2
    assert counted.value("mead_tool_call_duration_seconds_count", server="none") == 2


async def test_running_and_waiting_turns_are_known_at_every_moment(metrics: Metrics) -> None:
    asked, may_go = asyncio.Event(), asyncio.Event()

    async def wait(request: ProviderRequest) -> str:
        asked.set()
        await may_go.wait()
        return "done"

    async def now() -> tuple[float | None, float | None]:
        counted = await scraped(metrics)
        return counted.value("mead_turns_running"), counted.value("mead_turns_waiting")

    async with runtime(ScriptedProvider(wait, otherwise="done")) as opened:
        session_id, other = await opened.start_session(), await opened.start_session()
        seen = [await now()]
        turns = [asyncio.create_task(opened.submit_turn(session_id, text, route="local")) for text in "abc"]
        await asked.wait()
        seen.append(await now())
        turns[2].cancel()  # it ends while it waits
        await asyncio.gather(turns[2], return_exceptions=True)
        seen.append(await now())
        await opened.submit_turn(other, " ")  # refused: it has neither waited nor run
        may_go.set()
        await asyncio.gather(*turns[:2])
        seen.append(await now())

    assert seen == [(0, 0), (1, 2), (1, 1), (0, 0)]


async def test_budgets_and_servers_are_read_at_each_scrape_and_forgotten_when_they_are_gone() -> None:
    left = BudgetLeft(name="monthly", unit="usd", left=4.5, limit=20)
    script = [
        Readings(budgets=[left], servers={"git": "ready"}),
        Readings(servers={"git": "down"}),
    ]

    async def read() -> Readings:
        return script.pop(0)

    metrics = Metrics(read=read)
    first, second = await scraped(metrics), await scraped(metrics)

    assert first.value("mead_budget_left", budget="monthly", unit="usd") == 4.5
    assert first.value("mead_budget_limit", budget="monthly", unit="usd") == 20
    assert first.value("mead_mcp_server_state", server="git", state="ready") == 1
    assert second.labels("mead_budget_left") == []
    assert second.value("mead_mcp_server_state", server="git", state="ready") == 0
    assert second.value("mead_mcp_server_state", server="git", state="down") == 1


async def test_a_servers_states_and_restarts_are_heard_of(metrics: Metrics) -> None:
    for restarts, state in ((0, "connecting"), (0, "ready"), (1, "down"), (2, "ready")):
        telemetry.emit(telemetry.SERVER, {"restarts": restarts}, {"server": "git", "state": state})
    counted = await scraped(metrics)

    states = {
        labels["state"]: counted.value("mead_mcp_server_state", **labels)
        for labels in counted.labels("mead_mcp_server_state")
    }
    assert states == {"connecting": 0, "ready": 1, "down": 0}
    assert counted.value("mead_mcp_server_restarts_total", server="git") == 2


async def test_a_label_takes_so_many_values_and_no_more(metrics: Metrics) -> None:
    for number in range(MAX_VALUES + 50):
        tool = {"tool": f"tool_{number}", "server": "bad", "status": "ok", "kind": "ok"}
        telemetry.emit(telemetry.TOOL_CALL, {"duration": 0.1}, tool)
    telemetry.emit(telemetry.TOOL_CALL, {"duration": 0.1}, {**tool, "tool": "x" * 10_000})
    counted = await scraped(metrics)

    assert len(counted.labels("mead_tool_calls_total")) == MAX_VALUES + 1
    assert counted.value("mead_tool_calls_total", **{**tool, "tool": "other"}) == 51


@pytest.mark.parametrize("owners", [False, True])
async def test_an_owner_is_a_label_only_where_that_is_wanted(owners: bool) -> None:
    metrics = Metrics(owners=owners)
    detach = metrics.attach()
    async with runtime(ScriptedProvider("hello", name="mine")) as opened:
        ada = opened.for_owner(OWNER)
        session_id = await ada.start_session()
        await ada.submit_turn(session_id, "hi", route="local")
    detach()
    counted = await scraped(metrics)

    for name in ("mead_turns_total", "mead_tokens_total", "mead_cost_usd_total"):
        assert {labels.get("owner") for labels in counted.labels(name)} == {OWNER if owners else None}
    assert (OWNER in counted.text) is owners
    assert session_id not in counted.text


async def test_the_format_is_the_one_that_is_asked_for(metrics: Metrics) -> None:
    plain, plain_type = await metrics.scrape("text/plain")
    modern, modern_type = await metrics.scrape("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")

    assert plain_type.startswith("text/plain; version=0.0.4")
    assert modern_type.startswith("application/openmetrics-text")
    assert modern.endswith(b"# EOF\n")
    assert {family.name for family in parse_openmetrics(modern.decode())} >= {"mead_turns", "mead_tokens"}
    assert not plain.endswith(b"# EOF\n")


async def test_nothing_is_counted_any_more_once_it_is_detached(metrics: Metrics) -> None:
    other = Metrics()
    detach = other.attach()
    detach()
    detach()
    async with runtime(ScriptedProvider("hello")) as opened:
        await opened.submit_turn(await opened.start_session(), "hi", route="local")

    assert (await scraped(other)).labels("mead_turns_total") == []
    assert len((await scraped(metrics)).labels("mead_turns_total")) == 1


async def test_t3_nothing_of_what_is_said_is_in_the_metrics(metrics: Metrics) -> None:
    canaries = Canaries(seed=3)
    question, answer, argument, result, invented = [
        canaries.make(kind) for kind in ("question", "answer", "argument", "result", "tool name")
    ]

    @mead.tool(effect=False)
    def look(where: str) -> str:
        """Looks."""
        return str(result)

    provider = ScriptedProvider(
        calls("look", where=str(argument)),
        calls(str(invented)),
        str(answer),
        HttpStatus(status=400, detail=str(answer)),
        ValueError(str(question)),
    )
    async with runtime(provider, tools=[look]) as opened:
        session_id = await opened.start_session(system=str(question), tags=("work",))
        for _ in range(3):
            await opened.submit_turn(session_id, str(question), route="local")
    body, _ = await metrics.scrape()

    assert b'tool="look"' in body
    assert find(body, canaries.made) == []
