"""A caller's own tools: a call of one ends the turn, and is handed over beside the hub's, never mixed up."""

from __future__ import annotations

from pathlib import Path

import pytest

import mead
from mead.core.messages import Message, Tool, ToolResultBlock, ToolUseBlock
from mead.core.options import Options, TurnOptions
from mead.core.reasons import ToolsUnsupported
from mead.core.result import Err, Ok
from mead.core.turns import Answer
from mead.mcp.functions import tool
from mead.mcp.hub import ToolHub
from mead.providers.protocol import Reply
from mead.router import route
from mead.storage import open_store
from mead.testing import ScriptedProvider, calls
from support import newest, slots

WEATHER = Tool("weather", "Tells the weather.", {"type": "object"})
RUNS: list[str] = []


@tool(effect=False)
def clock() -> str:
    "Tells the time."
    RUNS.append("clock")
    return "noon"


def both(*names: str) -> Reply:
    blocks = tuple([ToolUseBlock(f"call_{name}", name, {}) for name in names])
    return Reply(content=blocks, stop_reason="tool_use")


async def ask(provider: ScriptedProvider, **options: object) -> Answer:
    turn = TurnOptions(route="local", client_tools=(WEATHER,), **options)  # type: ignore[arg-type]  # by name
    result = await route([newest("how is it?")], None, turn, slots(provider), ToolHub([clock]))
    assert isinstance(result, Ok), result
    return result.value


async def test_a_call_of_the_callers_tool_ends_the_turn() -> None:
    provider = ScriptedProvider(calls("weather", city="Oslo"))

    answer = await ask(provider)

    assert answer.stop_reason == "tool_use"
    assert [(call.name, call.input) for call in answer.client_calls] == [("weather", {"city": "Oslo"})]
    assert {shown.name for shown in provider.requests[0].tools} == {"clock", "weather"}


async def test_calls_of_both_kinds_are_not_mixed_up() -> None:
    RUNS.clear()
    provider = ScriptedProvider(both("clock", "weather"))

    answer = await ask(provider)

    assert RUNS == ["clock"]
    assert [call.name for call in answer.client_calls] == ["weather"]
    assert answer.handed_over is not None
    asked, results = answer.handed_over.decode()
    assert [block.name for block in asked.content if isinstance(block, ToolUseBlock)] == ["clock", "weather"]
    assert results == Message("user", (ToolResultBlock("call_clock", "noon"),))
    assert answer.label == "local_only", "a tool has told the local model something"


async def test_r10_a_turn_whose_local_model_asks_the_caller_is_local_only() -> None:
    turn = TurnOptions(client_tools=(WEATHER,))
    local = ScriptedProvider(calls("weather"))

    result = await route([newest("how are you?")], None, turn, slots(local), ToolHub([]))

    assert isinstance(result, Ok)
    assert result.value.decision is not None
    assert (result.value.decision.label, result.value.label) == ("shareable", "local_only")


async def test_what_the_hub_did_before_is_handed_over_too() -> None:
    provider = ScriptedProvider(calls("clock"), calls("weather"))

    answer = await ask(provider)

    assert answer.handed_over is not None
    assert len(answer.handed_over.decode()) == 3


async def test_r08_the_hubs_tools_can_be_hidden_without_the_callers() -> None:
    provider = ScriptedProvider("fine")

    await ask(provider, tools="none")

    assert [shown.name for shown in provider.requests[0].tools] == ["weather"]


async def test_the_callers_tool_hides_one_of_the_hub_with_its_name() -> None:
    RUNS.clear()
    provider = ScriptedProvider(calls("clock"))
    turn = TurnOptions(route="local", client_tools=(Tool("clock", None, {"type": "object"}),))

    result = await route([newest("what time?")], None, turn, slots(provider), ToolHub([clock]))

    assert isinstance(result, Ok)
    assert [call.name for call in result.value.client_calls] == ["clock"]
    assert RUNS == []


async def test_a_call_that_cannot_be_read_is_not_handed_over_nor_is_what_stands_beside_it() -> None:
    broken = ToolUseBlock("1", "weather", {}, malformed='{"city": ')
    whole = ToolUseBlock("2", "weather", {"city": "Oslo"})
    provider = ScriptedProvider(Reply(content=(broken, whole), stop_reason="tool_use"), "sorry")

    answer = await ask(provider)

    assert answer.text == "sorry"
    assert answer.client_calls == ()
    told = [b for m in provider.requests[1].messages for b in m.content if isinstance(b, ToolResultBlock)]
    assert [result.is_error for result in told] == [True, True]


async def test_r11_a_model_that_cannot_use_tools_refuses_the_callers() -> None:
    turn = TurnOptions(route="local", client_tools=(WEATHER,))

    result = await route([newest("hi")], None, turn, slots(ScriptedProvider(tools=False)), ToolHub([]))

    assert isinstance(result, Err)
    assert isinstance(result.reason, ToolsUnsupported)


async def test_a_tool_is_demanded_of_the_first_reply_only() -> None:
    provider = ScriptedProvider(calls("clock"), "noon")

    await ask(provider, options=Options(tool_choice="required"))

    assert [request.options.tool_choice for request in provider.requests] == ["required", None]


async def test_s07_a_turn_that_is_not_whole_does_not_enter_the_history(tmp_path: Path) -> None:
    provider = ScriptedProvider(calls("weather"), "hello")
    store = open_store(f"sqlite:///{tmp_path / 'mead.db'}")
    async with mead.Runtime(slots=slots(provider), store=store) as runtime:
        session_id = await runtime.start_session()
        handed = await runtime.submit_turn(session_id, "how is it?", route="local", client_tools=[WEATHER])
        answered = await runtime.submit_turn(session_id, "hi", route="local")
        history = (await runtime.history(session_id)).unwrap()

    assert isinstance(handed, Ok)
    assert handed.value.client_calls
    assert isinstance(answered, Ok)
    assert len(history) == 1
    assert "how is it" not in provider.requests[1].text


async def test_a_request_goes_on_with_the_results_that_it_brings(tmp_path: Path) -> None:
    provider = ScriptedProvider(both("clock", "weather"), "sunny at noon")
    async with mead.Runtime(slots=slots(provider), tools=[clock]) as runtime:
        question = Message("user", "how is it?")
        first = (await runtime.submit_request([question], route="local", client_tools=[WEATHER])).unwrap()
        assert first.handed_over is not None
        brought = [
            question,
            *first.handed_over.decode(),
            Message("user", (ToolResultBlock("call_weather", "sun"),)),
        ]
        second = (await runtime.submit_request(brought, route="local", client_tools=[WEATHER])).unwrap()

    assert second.text == "sunny at noon"
    results = [b for m in provider.requests[1].messages for b in m.content if isinstance(b, ToolResultBlock)]
    assert results == [ToolResultBlock("call_clock", "noon"), ToolResultBlock("call_weather", "sun")]


async def test_a_repeat_under_a_key_gives_the_same_calls(tmp_path: Path) -> None:
    provider = ScriptedProvider(both("clock", "weather"))
    store = open_store(f"sqlite:///{tmp_path / 'mead.db'}")
    async with mead.Runtime(slots=slots(provider), tools=[clock], store=store) as runtime:
        asked = [Message("user", "how is it?")]
        keywords = {"route": "local", "client_tools": [WEATHER], "idempotency_key": "k"}
        first = await runtime.submit_request(asked, **keywords)  # type: ignore[arg-type]  # by name
        again = await runtime.submit_request(asked, **keywords)  # type: ignore[arg-type]  # by name

    assert first.unwrap().client_calls == again.unwrap().client_calls
    assert first.unwrap().handed_over == again.unwrap().handed_over
    assert len(provider.requests) == 1


@pytest.mark.parametrize("choice", ["required", "weather"])
def test_s09_a_choice_of_tools_is_an_option_of_the_call(choice: str) -> None:
    assert Options(tool_choice=choice).over(Options(tool_choice="other")).tool_choice == choice
