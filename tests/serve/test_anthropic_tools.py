"""Tools of mead beside tools of an Anthropic client, over HTTP: the client sees its own calls only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import msgspec
import pytest

import mead
from mead.core.messages import TextBlock, ToolResultBlock, ToolUseBlock
from mead.core.usage import Usage
from mead.providers.anthropic import Anthropic
from mead.providers.http import HttpClient
from mead.providers.protocol import Reply
from mead.router import Slot, Slots
from mead.serve import anthropic as door
from mead.serve.tokens import Tokens
from mead.storage.memory import MemoryStore
from mead.testing import ScriptedProvider, calls
from mead.testing.server import Answer, FakeServer
from serve.anthropic_client import Clients, result, said, text, user
from serve.served import Serving
from support import runtime, slots

WEATHER = {"name": "weather", "input_schema": {"type": "object"}}
READ = {"mead": {"tools": "read"}}


class Tools:
    """Tools of mead, and what was called."""

    def __init__(self) -> None:
        self.called: list[str] = []

    @property
    def functions(self) -> list[Any]:
        @mead.tool(effect=False)
        def clock() -> str:
            """The time."""
            self.called.append("clock")
            return "noon"

        @mead.tool(effect=False, name="weather")
        def hidden() -> str:
            """The weather where the server stands."""
            self.called.append("weather")
            return "fog"

        @mead.tool(effect=True)
        def ring() -> str:
            """Rings the bell."""
            self.called.append("ring")
            return "rung"

        return [clock, hidden, ring]


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture
def make(serving: Serving) -> Iterator[Clients]:
    with Clients(serving) as clients:
        yield clients


def asked(*messages: Any, **fields: Any) -> dict[str, Any]:
    wanted = {"model": "mead-local", "max_tokens": 99, "messages": list(messages)}
    return {**wanted, "extra_body": READ, "tools": [WEATHER], **fields}


def replied(*content: Any) -> Reply:
    return Reply(content=content, stop_reason="tool_use", usage=Usage(input_tokens=1, output_tokens=1))


MIXED = replied(
    TextBlock("Let me see."),
    ToolUseBlock("c1", "weather", {"city": "Oslo"}),
    ToolUseBlock("h1", "clock", {}),
    ToolUseBlock("c2", "weather", {"city": "Rome"}),
)


def answer_of(client: anthropic.Anthropic, streams: bool, **request: Any) -> Any:
    if not streams:
        return client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        return stream.get_final_message()


@pytest.mark.parametrize("streams", [False, True])
def test_the_client_sees_its_own_calls_and_the_model_sees_all(
    make: Clients, tools: Tools, streams: bool
) -> None:
    local = ScriptedProvider(MIXED, "At noon it rains in Oslo, and not in Rome.")
    client = make(runtime(local, tools=tools.functions))
    question = user("How is it there now?")

    first = answer_of(client, streams, **asked(question))
    results = [
        result("c2", "sun"),
        result("c1", "rain"),
    ]
    reply = said(first.content)
    second = answer_of(client, streams, **asked(question, reply, user(results)))

    assert [block.type for block in first.content] == ["text", "tool_use", "tool_use"]
    assert [block.id for block in first.content[1:]] == ["c1", "c2"]
    assert first.stop_reason == "tool_use"
    assert tools.called == ["clock"], "each of mead's tools is run once"
    _, before, given = local.requests[1].messages
    assert before.content == MIXED.content
    assert given.content == (
        ToolResultBlock("c1", "rain"),
        ToolResultBlock("h1", "noon"),
        ToolResultBlock("c2", "sun"),
    )
    assert second.content[0].text == "At noon it rains in Oslo, and not in Rome."


def test_a_tool_of_the_client_hides_the_one_of_mead(make: Clients, tools: Tools) -> None:
    local = ScriptedProvider(calls("weather"))
    client = make(runtime(local, tools=tools.functions))

    answer = client.messages.create(**asked(user("How is it?")))

    assert answer.stop_reason == "tool_use"
    assert tools.called == []
    assert sorted(tool.name for tool in local.requests[0].tools) == ["clock", "weather"]


def test_meads_tools_are_shown_only_where_the_request_asks(make: Clients, tools: Tools) -> None:
    local = ScriptedProvider(otherwise="fine")
    client = make(runtime(local, tools=tools.functions))

    client.messages.create(**asked(user("hi"), extra_body={}))
    client.messages.create(**asked(user("hello"), tools=[], tool_choice={"type": "none"}))

    assert [[tool.name for tool in request.tools] for request in local.requests] == [["weather"], []]


@pytest.mark.parametrize("streams", [False, True])
def test_meads_own_tools_are_run_before_the_answer(make: Clients, tools: Tools, streams: bool) -> None:
    local = ScriptedProvider(
        replied(TextBlock("One moment."), ToolUseBlock("h1", "clock", {})), "It is noon."
    )
    client = make(runtime(local, tools=tools.functions))

    answer = answer_of(client, streams, **asked(user("What time is it?"), tools=[]))

    texts = [block.text for block in answer.content]
    assert texts == (["One moment.", "It is noon."] if streams else ["It is noon."])
    assert answer.stop_reason == "end_turn"
    assert tools.called == ["clock"]


def test_tools_with_effects_need_the_scope_and_a_key(make: Clients, tools: Tools, tmp_path: Any) -> None:
    tokens = Tokens(tmp_path)
    _, plain = tokens.create("reads")
    _, strong = tokens.create("acts", scopes=("chat", "tools:effect"))
    local = ScriptedProvider(calls("ring"), "It rang.")
    opened = mead.Runtime(slots=slots(local), tools=tools.functions, store=MemoryStore())
    client = make(opened, tokens, api_key=strong)
    wanted = asked(user("Ring!"), tools=[], extra_body={"mead": {"tools": "effect"}})
    keyed = {"extra_headers": {"idempotency-key": "bell-1"}}

    with pytest.raises(anthropic.PermissionDeniedError):
        client.with_options(api_key=plain).messages.create(**wanted, **keyed)
    with pytest.raises(anthropic.BadRequestError, match="Idempotency-Key"):
        client.messages.create(**wanted)
    once = client.messages.create(**wanted, **keyed)
    again = client.messages.create(**wanted, **keyed)

    assert once.content[0].text == again.content[0].text == "It rang."
    assert tools.called == ["ring"]


def test_r10_what_a_local_model_was_told_does_not_go_to_the_cloud(make: Clients, tools: Tools) -> None:
    local, cloud = ScriptedProvider(MIXED, "Local words."), ScriptedProvider(otherwise="Cloud words.")
    client = make(runtime(local, cloud, tools=tools.functions))
    question = user("How is it there now?")
    first = client.messages.create(**asked(question))
    results = [result(call, "sun") for call in ("c1", "c2")]
    reply = said(first.content)

    on_auto = client.messages.create(**asked(question, reply, user(results), model="mead-auto"))

    assert on_auto.mead["route"] == "local"
    with pytest.raises(anthropic.PermissionDeniedError):
        client.messages.create(**asked(question, reply, user(results), model="mead-cloud"))
    assert cloud.requests == []


async def test_what_the_vendors_model_thought_is_put_back_by_mead(serving: Serving) -> None:
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
    first, second = _vendor(thought, call), _vendor(text("It rains."))
    async with FakeServer(first, second) as vendor:
        provider = Anthropic(HttpClient(vendor.url, slot="cloud"), api_key="secret")
        slot = Slot(provider, mead.Options(model="some-model"))
        url = serving(mead.Runtime(slots=Slots(cloud=slot)), doors=(door.routes,))
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
            wanted = asked(user("How is Oslo?"), model="cloud/some-model", extra_body={})
            answer = await client.messages.create(**wanted)
            wanted["messages"] += [
                said(answer.content),
                user([result("toolu_1", "rain")]),
            ]
            final = await client.messages.create(**wanted)

    assert [block.type for block in answer.content] == ["tool_use"]
    assert vendor.requests[1].json()["messages"][1]["content"] == [thought, call]
    assert final.content[0].text == "It rains."


def _vendor(*content: Any) -> Answer:
    body = {"content": content, "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}
    return Answer(body=msgspec.json.encode(body))
