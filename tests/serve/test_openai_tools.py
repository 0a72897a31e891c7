"""Tools of the hub beside those of the client, over real HTTP: never mixed up, never run twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

import mead
from mead.core.messages import Message, TextBlock, ToolResultBlock, ToolUseBlock
from mead.mcp.functions import tool
from mead.providers.protocol import Reply
from mead.serve import models as listing
from mead.serve import openai as door
from mead.storage import open_store
from mead.testing import ProviderRequest, ScriptedProvider, calls
from serve.served import Serving, client_at
from support import runtime, slots

ASK: list[Any] = [{"role": "user", "content": "how is it?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
RUNS: list[str] = []


@pytest.fixture(autouse=True)
def nothing_was_run() -> None:
    RUNS.clear()


@tool(effect=False)
def clock() -> str:
    "Tells the time."
    RUNS.append("clock")
    return "noon"


@tool(effect=False)
def calendar() -> str:
    "Tells the day."
    RUNS.append("calendar")
    return "Monday"


@tool(effect=True)
def ring() -> str:
    "Rings the bell."
    RUNS.append("ring")
    return "rung"


def client_of(serving: Serving, *models: ScriptedProvider, **more: Any) -> openai.OpenAI:
    url = serving(
        runtime(*models, tools=[clock, calendar, ring], **more), doors=[door.routes, listing.routes]
    )
    return client_at(url)


def asking(*names: str, text: str = "") -> Reply:
    """A reply that asks for these tools at once."""
    blocks = [ToolUseBlock(f"call_{name}", name, {}) for name in names]
    return Reply(content=(*([TextBlock(text)] if text else []), *blocks), stop_reason="tool_use")


def create(client: openai.OpenAI, messages: list[Any], **more: Any) -> Any:
    extra = {"mead": {"tools": "read"}, **more.pop("extra_body", {})}
    arguments: dict[str, Any] = {"model": "mead-local", "tools": [WEATHER], "extra_body": extra, **more}
    return client.chat.completions.create(messages=messages, **arguments)


def message_of(answer: Any) -> Any:
    return answer.choices[0].message


def result(call_id: str, content: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def test_r08_the_hubs_tools_are_shown_only_where_they_are_asked_for(serving: Serving) -> None:
    provider = ScriptedProvider(otherwise="fine")
    client = client_of(serving, provider)

    client.chat.completions.create(model="mead-local", messages=ASK)
    create(client, ASK)

    assert [shown.name for shown in provider.requests[0].tools] == []
    assert {shown.name for shown in provider.requests[1].tools} == {"clock", "calendar", "weather"}


def test_a_tool_of_the_hub_is_run_here(serving: Serving) -> None:
    client = client_of(serving, ScriptedProvider(asking("clock"), "It is noon."))

    answer = create(client, ASK)

    assert message_of(answer).content == "It is noon."
    assert message_of(answer).tool_calls is None
    assert RUNS == ["clock"]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_both_kinds_at_once(serving: Serving, stream: bool) -> None:
    provider = ScriptedProvider(
        asking("clock", "weather", "calendar", text="I look."), "It is noon and it rains."
    )
    client = client_of(serving, provider)

    if stream:
        with client.chat.completions.stream(
            model="mead-local", messages=ASK, tools=[WEATHER], extra_body={"mead": {"tools": "read"}}
        ) as events:
            first: Any = events.get_final_completion()
    else:
        first = create(client, ASK)
    shown = message_of(first)
    answer = create(
        client,
        [
            *ASK,
            {"role": "assistant", "content": shown.content, "tool_calls": plain(shown.tool_calls)},
            result("call_weather", "rain"),
        ],
    )

    assert first.choices[0].finish_reason == "tool_calls"
    assert shown.content == "I look."
    assert [call.function.name for call in shown.tool_calls] == ["weather"]
    assert message_of(answer).content == "It is noon and it rains."
    assert sorted(RUNS) == ["calendar", "clock"]
    assert provider.requests[1].messages == [
        Message("user", "how is it?"),
        Message(
            "assistant",
            (
                TextBlock("I look."),
                ToolUseBlock("call_clock", "clock", {}),
                ToolUseBlock("call_weather", "weather", {}),
                ToolUseBlock("call_calendar", "calendar", {}),
            ),
        ),
        Message(
            "user",
            (
                ToolResultBlock("call_clock", "noon"),
                ToolResultBlock("call_weather", "rain"),
                ToolResultBlock("call_calendar", "Monday"),
            ),
        ),
    ]


def plain(tool_calls: Any) -> list[dict[str, Any]]:
    """Calls as a client keeps them."""
    return [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in tool_calls
    ]


def test_what_the_hub_did_before_the_clients_call_is_known_afterwards(serving: Serving) -> None:
    provider = ScriptedProvider(asking("clock"), asking("weather"), "fine")
    client = client_of(serving, provider)

    first = create(client, ASK)
    create(client, [*ASK, message_of(first), result("call_weather", "rain")])

    assert RUNS == ["clock"]
    assert [message.role for message in provider.requests[2].messages] == ["user", "assistant"] * 2 + ["user"]
    assert "noon" in provider.requests[2].text


def test_a_client_may_spread_its_calls_over_several_messages(serving: Serving) -> None:
    both = [ToolUseBlock(f"call_{city}", "weather", {"city": city}) for city in ("Oslo", "Rome")]
    mixed = Reply(content=(ToolUseBlock("call_clock", "clock", {}), *both), stop_reason="tool_use")
    provider = ScriptedProvider(mixed, "fine")
    client = client_of(serving, provider)

    oslo, rome = message_of(create(client, ASK)).tool_calls
    create(
        client,
        [
            *ASK,
            {"role": "assistant", "tool_calls": plain([oslo])},
            result(oslo.id, "rain"),
            {"role": "assistant", "tool_calls": plain([rome])},
            result(rome.id, "sun"),
        ],
    )

    assert [block.content for block in provider.requests[1].messages[-1].content] == ["noon", "rain", "sun"]  # type: ignore[union-attr]  # results
    assert len(provider.requests[1].messages) == 3


def test_a_conversation_with_several_rounds(serving: Serving) -> None:
    def answer(request: ProviderRequest) -> Reply | str:
        number = sum(message.role == "assistant" for message in request.messages)
        if number >= 3:
            return "done"
        blocks = [ToolUseBlock(f"{name}_{number}", name, {}) for name in ("clock", "weather")]
        return Reply(content=tuple(blocks), stop_reason="tool_use")

    provider = ScriptedProvider(otherwise=answer)
    client = client_of(serving, provider)
    messages: list[Any] = list(ASK)
    for number in range(3):
        said = message_of(create(client, messages))
        [call] = said.tool_calls
        messages += [said, result(call.id, f"rain {number}")]

    answered = create(client, messages)

    assert message_of(answered).content == "done"
    assert RUNS == ["clock"] * 3
    shown = [block for message in provider.requests[-1].messages for block in message.content]
    results = [block.content for block in shown if isinstance(block, ToolResultBlock)]
    assert results == ["noon", "rain 0", "noon", "rain 1", "noon", "rain 2"]


def test_the_clients_tool_hides_one_of_the_hub_with_its_name(serving: Serving) -> None:
    provider = ScriptedProvider(calls("clock"))
    client = client_of(serving, provider)
    own = {"type": "function", "function": {"name": "clock", "description": "The client's own."}}

    answer = create(client, ASK, tools=[own])

    assert [call.function.name for call in message_of(answer).tool_calls] == ["clock"]
    assert RUNS == []
    shown = {each.name: each.description for each in provider.requests[0].tools}
    assert shown == {"clock": "The client's own.", "calendar": "Tells the day."}


def test_a_tool_of_the_hub_may_be_demanded(serving: Serving) -> None:
    provider = ScriptedProvider(asking("clock"), "noon")

    create(
        client_of(serving, provider),
        ASK,
        tools=[],
        tool_choice={"type": "function", "function": {"name": "clock"}},
    )

    assert provider.requests[0].options.tool_choice == "clock"


def test_r10_what_the_hub_told_the_local_model_stays_with_it(serving: Serving) -> None:
    local = ScriptedProvider(asking("clock", "weather"), "fine")
    cloud = ScriptedProvider(otherwise="seen")
    client = client_of(serving, local, cloud, classifier=mead.AutoClassifier(cloud_share=1))

    first = create(client, ASK)
    brought = [*ASK, message_of(first), result("call_weather", "rain")]
    kept = create(client, brought, model="mead-auto")
    with pytest.raises(openai.PermissionDeniedError, match="a local model asked"):
        create(client, brought, model="mead-cloud")

    assert kept.model_extra["mead"]["route"] == "local"
    assert "noon" in local.requests[1].text
    assert cloud.requests == []


def test_another_owner_is_not_told_what_the_hub_has_done(serving: Serving, tmp_path: Path) -> None:
    from mead.serve.tokens import Tokens

    tokens = Tokens(tmp_path)
    keys = [tokens.create(owner, owner=owner)[1] for owner in ("ada", "eve")]
    provider = ScriptedProvider(asking("clock", "weather"), otherwise="fine")
    url = serving(runtime(provider, tools=[clock]), tokens, doors=[door.routes, listing.routes])
    ada, eve = [client_at(url, api_key=key) for key in keys]

    first = create(ada, ASK)
    brought = [*ASK, message_of(first), result("call_weather", "rain")]
    create(eve, brought)

    assert "noon" not in provider.requests[1].text


def test_effects_need_a_key_and_happen_once(serving: Serving, tmp_path: Path) -> None:
    provider = ScriptedProvider(asking("ring"), "It was rung.")
    store = open_store(f"sqlite:///{tmp_path / 'mead.db'}")
    made = mead.Runtime(slots=slots(provider), tools=[ring], store=store)
    url = serving(made, doors=[door.routes, listing.routes])
    client = client_at(url)
    wanted = {"extra_body": {"mead": {"tools": "effect"}}, "tools": []}

    with pytest.raises(openai.BadRequestError) as caught:
        create(client, ASK, **wanted)
    answers = [create(client, ASK, extra_headers={"Idempotency-Key": "k1"}, **wanted) for _ in range(2)]

    assert caught.value.param == "mead.tools"
    assert [message_of(answer).content for answer in answers] == ["It was rung."] * 2
    assert RUNS == ["ring"]
    assert len(provider.requests) == 2


def test_a_session_takes_no_tools_of_the_client(serving: Serving) -> None:
    client = client_of(serving, ScriptedProvider())

    with pytest.raises(openai.BadRequestError) as caught:
        create(client, ASK, extra_headers={"X-Mead-Session": "new"})

    assert caught.value.param == "tools"


def test_arguments_are_json_of_any_alphabet(serving: Serving) -> None:
    client = client_of(serving, ScriptedProvider(calls("weather", city="Tromsø")))

    [call] = message_of(create(client, ASK)).tool_calls

    assert json.loads(call.function.arguments) == {"city": "Tromsø"}
