"""What the local model lacks is a reason for the cloud model, known without asking anybody."""

from __future__ import annotations

import pytest

from mead.core.messages import Tool
from mead.core.options import Options, TurnOptions
from mead.core.result import Ok
from mead.core.turns import Cause, Finding, NoHub, Turn, Verdict
from mead.mcp.functions import tool
from mead.mcp.hub import ToolHub
from mead.providers.protocol import Known, known_of
from mead.router import Refused, Slot, explain, route
from mead.router.capability import local_lacks
from mead.router.classifier import ClassifierInput
from mead.testing import ScriptedProvider
from support import newest, past, slots

AUTO = TurnOptions()
LONG = "word " * 4_000
TOOLS = (Tool("clock", "Tells the time.", {"type": "object"}),)


def lacks(provider: ScriptedProvider, turns: list[Turn], tools: tuple[Tool, ...] = ()) -> str | None:
    found = local_lacks(Slot(provider), turns, AUTO, tools)
    return None if found is None else found.code


def test_a_conversation_that_does_not_fit_is_a_reason() -> None:
    small = ScriptedProvider(context_tokens=2_048)

    assert lacks(small, [newest(LONG)]) == "local_context"
    assert lacks(small, [past(LONG, "yes"), newest("go on")]) == "local_context"
    assert lacks(small, [newest("go on")]) is None
    assert lacks(ScriptedProvider(context_tokens=32_768), [newest(LONG)]) is None
    assert lacks(ScriptedProvider(), [newest(LONG)]) is None, "not known yet"


def test_r16_what_the_cloud_model_would_not_be_shown_is_no_reason_for_it() -> None:
    small = ScriptedProvider(context_tokens=2_048)

    assert lacks(small, [past(LONG, "yes", label="local_only"), newest("go on")]) is None


def test_tools_that_the_local_model_cannot_use_are_a_reason() -> None:
    assert lacks(ScriptedProvider(tools=False), [newest("what time is it?")], TOOLS) == "local_tools"
    assert lacks(ScriptedProvider(tools=False), [newest("what time is it?")]) is None
    assert lacks(ScriptedProvider(), [newest("what time is it?")], TOOLS) is None


def test_an_empty_slot_lacks_nothing() -> None:
    assert local_lacks(None, [newest(LONG)], AUTO, TOOLS) is None


def test_r18_what_is_known_of_a_model_is_known_without_asking() -> None:
    class Bare:
        async def complete(self, messages: object, options: object) -> None: ...

    assert known_of(Bare(), Options()) == Known(tools=False)
    assert known_of(ScriptedProvider(), Options()) == Known()
    assert known_of(ScriptedProvider(context_tokens=8), Options()) == Known(context_tokens=8)


class ByWhatLacks:
    """Goes by what the local model lacks, else stays."""

    def classify(self, turn: ClassifierInput) -> Verdict:
        cause = turn.lacks or Cause("easy", "It is easy.")
        return Verdict(route="local" if turn.lacks is None else "cloud", private=False, causes=(cause,))

    def scan(self, text: str) -> tuple[Finding, ...]:
        return ()


@tool(effect=False)
def clock() -> str:
    "Tells the time."
    return "noon"


async def test_r11_a_turn_with_tools_is_not_sent_to_a_model_that_cannot_use_them() -> None:
    local, cloud = ScriptedProvider(tools=False), ScriptedProvider("noon")

    result = await route(
        [newest("what time is it?")],
        None,
        AUTO,
        slots(local, cloud),
        ToolHub([clock]),
        classifier=ByWhatLacks(),
    )

    assert isinstance(result, Ok)
    assert result.value.decision is not None
    assert result.value.decision.causes[0].code == "local_tools"
    assert local.requests == []


class Shy(ScriptedProvider):
    """Knows its context only once it was asked."""

    asked = False

    async def context_tokens(self, options: Options, prompt_bytes: int) -> int | None:
        self.asked = True
        return 2_048

    def known(self, options: Options) -> Known:
        return Known(context_tokens=2_048 if self.asked else None)


async def test_r18_only_a_turn_that_is_routed_asks_for_what_nobody_knows() -> None:
    local, cloud = Shy(otherwise="from local"), ScriptedProvider(otherwise="from cloud")
    turns, both = [newest(LONG)], slots(local, cloud)

    before = explain(turns, AUTO, both, NoHub(), classifier=ByWhatLacks())
    assert not local.asked
    result = await route(turns, None, AUTO, both, NoHub(), classifier=ByWhatLacks())
    after = explain(turns, AUTO, both, NoHub(), classifier=ByWhatLacks())

    assert not isinstance(before, Refused)
    assert not isinstance(after, Refused)
    assert isinstance(result, Ok)
    assert (before.route, result.value.route, after.route) == ("local", "cloud", "cloud")


@pytest.mark.parametrize("choice", ["local", "cloud"])
async def test_a_forced_turn_asks_for_nothing_beforehand(choice: str) -> None:
    local, cloud = Shy(otherwise="from local"), ScriptedProvider(otherwise="from cloud")
    options = TurnOptions(route=choice)  # type: ignore[arg-type]  # one of the two words

    await route([newest("hello")], None, options, slots(local, cloud), NoHub(), classifier=ByWhatLacks())

    assert local.asked == (choice == "local"), "the local call itself fits its conversation"
