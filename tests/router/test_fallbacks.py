"""A slot with several providers: the next is asked before the first delta only, and never across slots."""

from __future__ import annotations

import asyncio

import pytest

from mead.core.options import Options, TurnOptions
from mead.core.reasons import (
    HttpStatus,
    InvalidOptions,
    MalformedResponse,
    MissingApiKey,
    Reason,
    Timeout,
    Transport,
)
from mead.core.result import Err, Ok
from mead.core.turns import Answer, NoHub
from mead.mcp.functions import tool
from mead.mcp.hub import ToolHub
from mead.providers.protocol import Reply
from mead.router import Backend, Slot, Slots, explain, route
from mead.router.health import FIRST_COOLDOWN_S, LONGEST_COOLDOWN_S, Health, is_passing
from mead.testing import ScriptedProvider, calls
from support import Deltas, newest

TURNS = [newest("what time is it?")]
CLOUD = TurnOptions(route="cloud")
DOWN = Transport(cause="refused")


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def slot(*providers: ScriptedProvider, clock: Clock | None = None) -> Slot:
    """A slot whose providers each have one model, named after them."""
    first, *others = [
        Backend(provider, Options(model=f"{provider.name}-model"), (), place)
        for place, provider in enumerate(providers)
    ]
    return Slot(first.provider, first.options, fallbacks=tuple(others), health=Health(clock=clock or Clock()))


async def asked(slots: Slots, options: TurnOptions = CLOUD, hub: object = NoHub()) -> object:
    result = await route(TURNS, None, options, slots, hub)  # type: ignore[arg-type]  # a hub
    return result.value if isinstance(result, Ok) else result.reason


PASSING: list[Reason] = [
    DOWN,
    Transport(cause="cut"),
    Timeout(limit="connect"),
    HttpStatus(status=429),
    HttpStatus(status=500),
    HttpStatus(status=529),
]
FINAL: list[Reason] = [
    Transport(cause="not_local"),
    Timeout(),
    Timeout(limit="idle"),
    HttpStatus(status=401),
    MissingApiKey(),
    MalformedResponse(),
    InvalidOptions(),
]


@pytest.mark.parametrize("reason", PASSING, ids=str)
async def test_the_next_provider_is_asked_where_a_service_fails(reason: Reason) -> None:
    first, second = ScriptedProvider(reason, name="first"), ScriptedProvider("noon", name="second")

    answer = await asked(Slots(cloud=slot(first, second)))

    assert isinstance(answer, Answer)
    assert answer.text == "noon"
    assert answer.decision is not None
    assert (answer.decision.provider, answer.decision.model) == ("second", "second-model")
    assert answer.warnings == (f"first failed ({reason.tag}); second was asked",)
    assert second.requests[0].options.model == "second-model"


@pytest.mark.parametrize("reason", FINAL, ids=str)
async def test_every_other_failure_is_final(reason: Reason) -> None:
    first, second = ScriptedProvider(reason, name="first"), ScriptedProvider(name="second")

    assert await asked(Slots(cloud=slot(first, second))) == reason
    assert second.requests == []


async def test_the_last_failure_is_told_where_all_fail() -> None:
    first, second = ScriptedProvider(DOWN), ScriptedProvider(HttpStatus(status=503))

    assert await asked(Slots(cloud=slot(first, second))) == HttpStatus(status=503)


async def test_r04_a_local_turn_falls_back_within_its_slot_only() -> None:
    local, other, cloud = ScriptedProvider(DOWN), ScriptedProvider(DOWN), ScriptedProvider("noon")

    reason = await asked(Slots(local=slot(local, other), cloud=slot(cloud)), TurnOptions(route="local"))

    assert reason == DOWN
    assert len(other.requests) == 1
    assert cloud.requests == []


class BreaksOff(ScriptedProvider):
    """Streams a little, then loses its connection."""

    async def converse_stream(self, messages, tools, options, on_delta):  # type: ignore[no-untyped-def]
        on_delta("It is")
        return Err(Transport(cause="cut"))


async def test_a_provider_that_has_begun_to_answer_is_not_replaced() -> None:
    first, second = BreaksOff(name="first"), ScriptedProvider(name="second")
    scope = Deltas()
    options = TurnOptions(route="cloud", stream=True, scope=scope)

    assert await asked(Slots(cloud=slot(first, second)), options) == Transport(cause="cut")
    assert scope.heard == ["It is"]
    assert second.requests == []


async def test_l1_each_provider_that_is_asked_has_a_call_of_its_own() -> None:
    first, second = ScriptedProvider(DOWN, name="first"), ScriptedProvider("noon", name="second")
    scope = Deltas()

    await asked(Slots(cloud=slot(first, second)), TurnOptions(route="cloud", scope=scope))

    assert scope.calls == [("first", "first-model", "transport"), ("second", "second-model", "ok")]


@tool(effect=False)
def clock_tool() -> str:
    "Tells the time."
    return "noon"


async def test_the_provider_that_answers_is_asked_first_for_the_rest_of_the_turn() -> None:
    first = ScriptedProvider(DOWN, name="first")
    second = ScriptedProvider(calls("clock_tool"), "noon", name="second")

    answer = await asked(Slots(cloud=slot(first, second)), hub=ToolHub([clock_tool]))

    assert isinstance(answer, Answer)
    assert (len(first.requests), len(second.requests)) == (1, 2)


async def test_with_tools_only_providers_that_can_use_them_are_asked() -> None:
    first, second = ScriptedProvider(DOWN, name="first"), ScriptedProvider(tools=False, name="second")

    assert await asked(Slots(cloud=slot(first, second)), hub=ToolHub([clock_tool])) == DOWN
    assert second.requests == []


async def test_a_provider_that_failed_rests_and_is_asked_again_after_that() -> None:
    clock = Clock()
    first = ScriptedProvider(DOWN, "from first", name="first")
    second = ScriptedProvider(otherwise="from second", name="second")
    slots = Slots(cloud=slot(first, second, clock=clock))

    texts = []
    for _ in range(2):
        answer = await asked(slots)
        assert isinstance(answer, Answer)
        texts.append(answer.text)
    clock.now += FIRST_COOLDOWN_S
    answer = await asked(slots)

    assert isinstance(answer, Answer)
    assert [*texts, answer.text] == ["from second", "from second", "from first"]
    assert len(first.requests) == 2


def test_a_rest_doubles_up_to_a_limit_and_honours_what_the_server_asks_for() -> None:
    health = Health(clock=Clock())
    rests = []
    for _ in range(8):
        health.failed(0, DOWN)
        rests.append(health.rests_s(0))
    health.failed(1, HttpStatus(status=429, retry_after_s=30.0))

    assert rests[:3] == [5.0, 10.0, 20.0]
    assert rests[-1] == LONGEST_COOLDOWN_S
    assert health.rests_s(1) == 30.0
    assert health.order([0, 1, 2]) == [2, 1, 0]
    health.worked(0)
    assert health.order([0, 1, 2]) == [0, 2, 1]


def test_r18_an_explanation_names_the_provider_that_would_be_asked() -> None:
    first, second = ScriptedProvider(name="first"), ScriptedProvider(name="second")
    both = slot(first, second)
    assert both.health is not None
    both.health.failed(0, DOWN)

    decision = explain(TURNS, CLOUD, Slots(cloud=both), NoHub())

    assert decision.provider == "second"  # type: ignore[union-attr]  # it is not refused
    assert first.requests == second.requests == []


async def test_s09_a_model_that_is_named_goes_to_the_providers_that_list_it() -> None:
    first, second = ScriptedProvider(name="first"), ScriptedProvider("noon", name="second")
    options = TurnOptions(route="cloud", options=Options(model="second-model"))

    answer = await asked(Slots(cloud=slot(first, second)), options)

    assert isinstance(answer, Answer)
    assert first.requests == []


async def test_a_cancelled_call_is_no_failure_of_the_provider() -> None:
    async def cancelled(request: object) -> Reply:
        raise asyncio.CancelledError

    first, second = ScriptedProvider(cancelled, name="first"), ScriptedProvider(name="second")
    both = slot(first, second)

    with pytest.raises(asyncio.CancelledError):
        await asked(Slots(cloud=both))
    assert both.health is not None
    assert both.health.rests_s(0) == 0
    assert second.requests == []


@pytest.mark.parametrize("reason", PASSING, ids=str)
def test_what_passes_is_a_failure_of_the_service(reason: Reason) -> None:
    assert is_passing(reason)  # type: ignore[arg-type]  # each is a turn's reason
