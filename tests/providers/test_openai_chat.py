"""OpenAI chat completions, at OpenAI and elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mead.core.conversation import Conversation, encode
from mead.core.messages import (
    Block,
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    VendorBlock,
)
from mead.core.options import Options, ResponseFormat
from mead.core.reasons import HttpStatus, InvalidOptions, MalformedResponse, ToolsUnsupported
from mead.core.usage import Usage
from mead.providers.http import HttpClient
from mead.providers.openai_chat import OpenAIChat
from mead.providers.protocol import Reply
from mead.testing import Answer, FakeServer, Received, sse
from mead.testing.providers import OSLO, ROME, TEXT, WEATHER, Answers
from mead.testing.wire import check_openai
from providers.formats import ASK, OPENAI, OPTIONS, json_answer, reason
from providers.suites import KEY, QUESTION, FailureSuite, StreamSuite, UsageSuite, ask

PIXEL = ImageBlock("image/png", b"\x89PNG")
PAPER = DocumentBlock("application/pdf", b"%PDF", "paper.pdf")
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


class TestFailures(FailureSuite):
    wire = OPENAI


class TestStreams(StreamSuite):
    wire = OPENAI


class TestUsage(UsageSuite):
    wire = OPENAI


async def sent(
    messages: Sequence[Message] = QUESTION,
    options: Options = OPTIONS,
    tools: Sequence[Tool] = (),
    call: str = "converse",
    **keywords: Any,
) -> Any:
    """The body that a call sends, checked to be well-formed."""
    received: list[Received] = []
    async with FakeServer(keep(received), routes=OPENAI.routes) as server:
        async with OPENAI.provider(server, **keywords) as provider:
            match call:
                case "complete":
                    result: Any = await provider.complete(messages, options)
                case "converse":
                    result = await provider.converse(messages, tools, options)
                case _:
                    result = await provider.converse_stream(messages, tools, options, lambda _: None)
            result.unwrap()
    body = received[0].json()
    check_openai(body)
    return body


def keep(received: list[Received]) -> Any:
    def answer(request: Received) -> Answer:
        received.append(request)
        made = OPENAI.answer(TEXT)
        assert callable(made)
        return made(request)

    return answer


async def read(message: dict[str, Any], finish: str = "stop", **body: Any) -> Reply:
    """The reply that an unstreamed answer gives."""
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **body}
    async with OPENAI.server(json_answer(answer)) as server, OPENAI.provider(server) as provider:
        reply: Reply = (await ask(provider, "converse")).unwrap()
    return reply


async def read_stream(*events: object) -> tuple[Any, list[str]]:
    """What a stream of these events gives, and its deltas."""
    deltas: list[str] = []
    async with OPENAI.server(OPENAI.streaming(*[sse(event) for event in events])) as server:
        async with OPENAI.provider(server) as provider:
            result = await ask(provider, "converse_stream", deltas=deltas)
    return result, deltas


# Requests


async def test_a_plain_call_sends_the_model_and_the_messages() -> None:
    for call in ("complete", "converse"):
        assert await sent(call=call) == {
            "model": "test-model",
            "messages": [{"role": "user", "content": ASK}],
        }


async def test_a_streamed_call_also_asks_for_usage() -> None:
    assert await sent(call="converse_stream") == {
        "model": "test-model",
        "messages": [{"role": "user", "content": ASK}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_the_three_calls_go_to_the_same_address() -> None:
    async with OPENAI.server(OPENAI.answer(TEXT)) as server:
        async with OPENAI.provider(server, api_key=KEY) as provider:
            for call in ("complete", "converse", "converse_stream"):
                (await ask(provider, call)).unwrap()

    assert [(r.method, r.path, r.headers["authorization"]) for r in server.requests] == [
        ("POST", "/v1/chat/completions", f"Bearer {KEY}")
    ] * 3
    assert {r.headers["content-type"] for r in server.requests} == {"application/json"}


async def test_without_a_key_there_is_no_authorization() -> None:
    async with OPENAI.server(OPENAI.answer(TEXT)) as server, OPENAI.provider(server) as provider:
        await ask(provider, "complete")

    assert "authorization" not in server.requests[0].headers


async def test_options_have_their_place_in_the_body() -> None:
    options = Options(
        model="m",
        system="Be brief.",
        max_tokens=5,
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        seed=0,
        stop=("END",),
        thinking="low",
        extra={"parallel_tool_calls": False},
    )

    assert await sent(options=options) == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASK}],
        "max_tokens": 5,
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 3,
        "seed": 0,
        "stop": ["END"],
        "reasoning_effort": "low",
        "parallel_tool_calls": False,
    }


@pytest.mark.parametrize(
    "wanted, wire",
    [
        (ResponseFormat(), {"type": "json_object"}),
        (
            ResponseFormat(schema=SCHEMA, name="count"),
            {"type": "json_schema", "json_schema": {"name": "count", "schema": SCHEMA, "strict": True}},
        ),
    ],
    ids=["any JSON", "a schema"],
)
async def test_a_response_format(wanted: ResponseFormat, wire: object) -> None:
    body = await sent(options=Options(model="m", response_format=wanted))

    assert body["response_format"] == wire


async def test_tools_carry_what_every_vendor_insists_on() -> None:
    bare = Tool("now", None, {})
    body = await sent(tools=(WEATHER, bare))

    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": WEATHER.input_schema,
                "description": "The weather in a city.",
            },
        },
        {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
    ]


async def test_a_list_of_tools_that_changes_is_sent_as_it_is() -> None:
    tools = [WEATHER]
    received: list[Received] = []
    async with FakeServer(keep(received), routes=OPENAI.routes) as server:
        async with OPENAI.provider(server) as provider:
            await provider.converse(QUESTION, tools, OPTIONS)
            tools[0] = Tool("now", None, {})
            await provider.converse(QUESTION, tools, OPTIONS)

    assert [r.json()["tools"][0]["function"]["name"] for r in received] == ["weather", "now"]


async def test_calls_and_results_become_messages_of_their_own() -> None:
    body = await sent(
        [
            Message("user", "Weather?"),
            Message("assistant", (TextBlock("Let me see."), OSLO, ROME)),
            Message(
                "user",
                (ToolResultBlock("call_2", "no such city", True), ToolResultBlock("call_1", "rain")),
            ),
            Message("assistant", "It rains."),
            Message("user", (TextBlock("And"), TextBlock("now?"))),
        ],
        tools=(WEATHER,),
    )

    assert body["messages"] == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [OPENAI.call(OSLO), OPENAI.call(ROME)],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "content": "no such city"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "Andnow?"},
    ]


async def test_pictures_and_documents_are_parts() -> None:
    content: tuple[Block, ...] = (TextBlock("Compare."), PIXEL, PAPER)
    body = await sent([Message("user", content)])

    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "Compare."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        {
            "type": "file",
            "file": {"filename": "paper.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
        },
    ]


async def test_a_result_with_a_picture_behind_it_stays_in_order() -> None:
    body = await sent(
        [
            Message("user", "Draw."),
            Message("assistant", (OSLO,)),
            Message("user", (ToolResultBlock("call_1", "done"), TextBlock("Like this?"), PIXEL)),
        ],
        tools=(WEATHER,),
    )

    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "user"]
    assert [part["type"] for part in body["messages"][3]["content"]] == ["text", "image_url"]


async def test_plain_history_is_joined_as_it_was_encoded() -> None:
    first = encode([Message("user", "a"), Message("assistant", "b")])
    conversation = Conversation([first, encode([Message("user", "c")])])

    assert [m["content"] for m in (await sent(conversation))["messages"]] == ["a", "b", "c"]


async def test_openai_itself_gets_the_new_name_of_the_limit_and_no_top_k() -> None:
    provider = OpenAIChat(HttpClient("https://api.openai.com/v1", slot="cloud"), api_key=KEY)
    options = Options(model="m", max_tokens=9, route="cloud")
    request = provider._request(Conversation.of(QUESTION), (), options, stream=False)
    refused = await provider.complete(QUESTION, msgspec.structs.replace(options, top_k=3))

    assert msgspec.json.decode(request.body)["max_completion_tokens"] == 9
    assert reason(refused) == InvalidOptions(detail="OpenAI takes no top_k; leave it unset for this slot")


async def test_a_tool_name_that_the_model_made_up_can_be_sent_back() -> None:
    odd = ToolUseBlock("functions.get:0", "get the weather, please", {})
    body = await sent(
        [
            Message("user", "Weather?"),
            Message("assistant", (odd,)),
            Message("user", (ToolResultBlock("functions.get:0", "There is no such tool.", True),)),
        ],
        tools=(WEATHER,),
    )

    call = body["messages"][1]["tool_calls"][0]
    assert call["function"]["name"] == "get_the_weather__please"
    assert body["messages"][2]["tool_call_id"] == call["id"]


async def test_equal_ids_of_two_turns_are_told_apart() -> None:
    turn = encode(
        [
            Message("user", "Weather?"),
            Message("assistant", (OSLO,)),
            Message("user", (ToolResultBlock("call_1", "rain"),)),
            Message("assistant", "Rain."),
        ]
    )
    body = await sent(Conversation([turn, turn, encode(QUESTION)]), tools=(WEATHER,))

    ids = [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"]
    assert ids == ["call_1", "call_1_2"]


# What vendors want back


REASONED = {
    "role": "assistant",
    "content": None,
    "reasoning": "for reading only",
    "reasoning_content": "I must look.",
    "reasoning_details": [{"type": "reasoning.encrypted", "index": 0, "data": "abc="}],
    "tool_calls": [OPENAI.call(OSLO)],
}


async def back_and_forth(reply: Reply) -> Any:
    """The assistant message that is sent for a reply in the next request."""
    async with FakeServer(OPENAI.answer(TEXT), routes=OPENAI.routes) as server:
        vendor = OPENAI.make(server.url).vendor
        content = [
            msgspec.structs.replace(block, vendor=vendor) if isinstance(block, VendorBlock) else block
            for block in reply.content
        ]
        messages = [
            *QUESTION,
            Message("assistant", tuple(content)),
            Message("user", (ToolResultBlock("call_1", "rain"), ToolResultBlock("call_2", "sun"))),
        ]
        async with OPENAI.provider(server) as provider:
            (await provider.converse(messages, (WEATHER,), OPTIONS)).unwrap()
    body = server.requests_to(OPENAI.path)[0].json()
    check_openai(body)
    return body["messages"][1]


async def test_reasoning_is_no_text_and_goes_back_unchanged() -> None:
    reply = await read(REASONED, "tool_calls")
    again = await back_and_forth(reply)

    assert [block for block in reply.content if isinstance(block, TextBlock)] == []
    assert again == {name: value for name, value in REASONED.items() if name != "reasoning"}


async def test_reasoning_goes_back_to_its_own_vendor_only() -> None:
    reply = await read(REASONED, "tool_calls")
    foreign = [
        msgspec.structs.replace(block, vendor="other:443") if isinstance(block, VendorBlock) else block
        for block in reply.content
    ]
    body = await sent(
        [
            *QUESTION,
            Message("assistant", tuple(foreign)),
            Message("user", (ToolResultBlock("call_1", "rain"),)),
        ],
        tools=(WEATHER,),
    )

    assert body["messages"][1] == {"role": "assistant", "content": None, "tool_calls": [OPENAI.call(OSLO)]}


async def test_streamed_reasoning_is_put_together() -> None:
    result, deltas = await read_stream(
        OPENAI.chunk(reasoning_content="I must "),
        OPENAI.chunk(reasoning_content="look.", reasoning_details=[{"type": "t", "index": 0, "text": "a"}]),
        OPENAI.chunk(reasoning_details=[{"type": "t", "index": 0, "text": "b", "signature": "s"}]),
        OPENAI.chunk(reasoning_details=[{"type": "t", "index": 1, "text": "c"}]),
        OPENAI.chunk(tool_calls=[{"index": 0, **OPENAI.call(OSLO)}]),
        "[DONE]",
    )

    again = await back_and_forth(result.unwrap())
    assert deltas == []
    assert again["reasoning_content"] == "I must look."
    assert again["reasoning_details"] == [
        {"type": "t", "index": 0, "text": "ab", "signature": "s"},
        {"type": "t", "index": 1, "text": "c"},
    ]


async def test_what_a_vendor_adds_to_a_call_goes_back_with_that_call() -> None:
    signed = {**OPENAI.call(ROME), "extra_content": {"google": {"thought_signature": "sig="}}}
    whole = await read({"content": None, "tool_calls": [OPENAI.call(OSLO), signed]}, "tool_calls")
    streamed, _ = await read_stream(
        OPENAI.chunk(tool_calls=[{"index": 0, **OPENAI.call(OSLO)}, {"index": 1, **signed}]), "[DONE]"
    )

    for reply in (whole, streamed.unwrap()):
        assert (await back_and_forth(reply))["tool_calls"] == [OPENAI.call(OSLO), signed]


# Answers


async def test_text_in_parts_is_joined_and_thinking_parts_are_left_out() -> None:
    parts = [
        {"type": "thinking", "thinking": []},
        {"type": "text", "text": "a"},
        {"type": "text", "text": "b"},
    ]

    assert (await read({"content": parts})).content == (TextBlock("ab"),)


async def test_a_refusal_is_the_answer() -> None:
    assert (await read({"content": None, "refusal": "I cannot."})).content == (TextBlock("I cannot."),)


async def test_a_content_filter_is_a_warning() -> None:
    reply = await read({"content": "Half"}, "content_filter")

    assert (reply.stop_reason, len(reply.warnings)) == ("end_turn", 1)


async def test_the_limit_inside_a_call_is_max_tokens() -> None:
    message = {
        "content": None,
        "tool_calls": [{**OPENAI.call(OSLO), "function": {"name": "w", "arguments": "{"}}],
    }

    reply = await read(message, "length")
    assert reply.stop_reason == "max_tokens"
    assert reply.content == (ToolUseBlock("call_1", "w", {}, malformed="{"),)


async def test_a_leading_think_block_is_no_text_streamed_or_not() -> None:
    whole = await read({"content": "<think>hm</think>\n\nok"})
    streamed, deltas = await read_stream(
        OPENAI.chunk(content="<thi"), OPENAI.chunk(content="nk>hm</think>\n\nok"), "[DONE]"
    )

    assert whole.content == streamed.unwrap().content == (TextBlock("ok"),)
    assert deltas == ["ok"]


async def test_a_think_block_can_be_kept() -> None:
    answer = json_answer(OPENAI.whole(Answers(pieces=("<think>hm</think>ok",))))
    async with OPENAI.server(answer) as server:
        async with OPENAI.provider(server, strip_thinking=False) as provider:
            completion = (await ask(provider, "complete")).unwrap()

    assert completion.text == "<think>hm</think>ok"


async def test_an_error_of_a_choice_is_an_error() -> None:
    choice = {"index": 0, "message": {"content": "Hal"}, "finish_reason": "error", "error": {"code": 502}}
    async with OPENAI.server(json_answer({"choices": [choice]})) as server:
        async with OPENAI.provider(server) as provider:
            assert reason(await ask(provider, "complete")) == HttpStatus(status=502)


async def test_a_stream_without_a_single_choice_is_no_answer() -> None:
    result, _ = await read_stream({"choices": []}, {"usage": {"prompt_tokens": 1}}, "[DONE]")

    assert isinstance(reason(result), MalformedResponse)


async def test_a_stream_is_over_at_its_clean_end_after_a_finish_reason() -> None:
    result, _ = await read_stream(
        OPENAI.chunk(content="a"), {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    )

    assert result.unwrap().content == (TextBlock("a"),)


async def test_space_around_the_data_of_an_event_does_no_harm() -> None:
    body = b'data:   {"choices":[{"delta":{"content":"a"}}]}\n\ndata:[DONE] \n\n'
    async with OPENAI.server(OPENAI.streaming(body)) as server, OPENAI.provider(server) as provider:
        result = await ask(provider, "converse_stream")

    assert result.unwrap().content == (TextBlock("a"),)


async def test_an_error_in_the_middle_of_a_stream_is_a_failure_and_deltas_stay() -> None:
    result, deltas = await read_stream(
        OPENAI.chunk(content="Hel"), {"error": {"message": "upstream is gone", "code": 503}}
    )

    assert reason(result) == HttpStatus(status=503, detail="upstream is gone")
    assert deltas == ["Hel"]


@pytest.mark.parametrize(
    "usage, expected",
    [
        (
            {
                "prompt_tokens": 2006,
                "completion_tokens": 300,
                "prompt_tokens_details": {"cached_tokens": 1920, "cache_write_tokens": 5},
                "completion_tokens_details": {"reasoning_tokens": 40},
            },
            Usage(
                input_tokens=2006,
                output_tokens=300,
                cached_tokens=1920,
                cache_write_tokens=5,
                reasoning_tokens=40,
            ),
        ),
        (
            {"prompt_tokens": 9, "completion_tokens": 1, "prompt_cache_hit_tokens": 4},
            Usage(input_tokens=9, output_tokens=1, cached_tokens=4),
        ),
        ({"prompt_tokens": -1, "completion_tokens": "7"}, Usage()),
        (
            {"prompt_tokens": True, "completion_tokens": 7.0, "prompt_tokens_details": 5},
            Usage(output_tokens=7),
        ),
        (None, Usage()),
        ([], Usage()),
    ],
)
async def test_p5_counts_are_read_and_nonsense_is_unknown(usage: object, expected: Usage) -> None:
    whole = await read({"content": "a"}, usage=usage)
    streamed, _ = await read_stream(OPENAI.chunk(content="a"), {"choices": [], "usage": usage}, "[DONE]")

    assert whole.usage == streamed.unwrap().usage == expected


async def test_p5_groq_puts_usage_in_its_own_place() -> None:
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    result, _ = await read_stream(
        OPENAI.chunk(content="a"), {"choices": [], "x_groq": {"usage": usage}}, "[DONE]"
    )

    assert result.unwrap().usage == Usage(input_tokens=3, output_tokens=2)


# llama.cpp's /props


def props(*, tools: bool) -> Answer:
    return json_answer({"chat_template_caps": {"supports_tool_calls": tools}})


async def test_a_local_llama_cpp_server_is_asked_once_whether_it_has_tools() -> None:
    async with FakeServer(OPENAI.answer(TEXT), routes={"/props": props(tools=True)}) as server:
        async with OPENAI.provider(server) as provider:
            for _ in range(2):
                (await ask(provider, "converse", tools=(WEATHER,))).unwrap()

    assert len(server.requests_to("/props")) == 1


async def test_a_template_without_tools_is_tools_unsupported_before_anything_is_sent() -> None:
    async with FakeServer(OPENAI.answer(TEXT), routes={"/props": props(tools=False)}) as server:
        async with OPENAI.provider(server) as provider:
            failure = reason(await ask(provider, "converse_stream", tools=(WEATHER,)))
            (await ask(provider, "converse_stream")).unwrap()

    assert isinstance(failure, ToolsUnsupported)
    assert len(server.requests_to(OPENAI.path)) == 1


@pytest.mark.parametrize(
    "answer",
    [Answer(status=500), Answer(body=b"<html>"), json_answer([]), json_answer({"chat_template_caps": 7})],
    ids=["error", "page", "list", "number"],
)
async def test_a_server_that_does_not_say_is_simply_asked(answer: Answer) -> None:
    async with FakeServer(OPENAI.answer(TEXT), routes={"/props": answer}) as server:
        async with OPENAI.provider(server) as provider:
            (await ask(provider, "converse", tools=(WEATHER,))).unwrap()


async def test_a_cloud_slot_is_not_asked_for_props() -> None:
    options = msgspec.structs.replace(OPTIONS, route="cloud")
    async with FakeServer(OPENAI.answer(TEXT)) as server:
        async with OPENAI.provider(server, slot="cloud") as provider:
            (await ask(provider, "converse", options, tools=(WEATHER,))).unwrap()

    assert [request.path for request in server.requests] == [OPENAI.path]


# A server that cannot be asked for usage


def refuses_stream_options(request: Received) -> Answer:
    if "stream_options" in request.json():
        message = "Unrecognized request argument supplied: stream_options"
        return json_answer(OPENAI.error(message, 400), status=400)
    answer = OPENAI.answer(TEXT)
    assert callable(answer)
    return answer(request)


async def test_a_server_that_refuses_stream_options_is_asked_without_and_remembered() -> None:
    async with OPENAI.server(refuses_stream_options) as server, OPENAI.provider(server) as provider:
        for _ in range(2):
            (await ask(provider, "converse_stream")).unwrap()

    asked_usage = ["stream_options" in request.json() for request in server.requests]
    assert asked_usage == [True, False, False]


async def test_calls_at_the_same_time_do_not_mix() -> None:
    def echo(request: Received) -> Answer:
        text = request.json()["messages"][0]["content"]
        return OPENAI.streaming(*OPENAI.stream(Answers(pieces=(text[:2], text[2:]))))

    async with OPENAI.server(echo) as server, OPENAI.provider(server) as provider:

        async def say(text: str) -> str:
            deltas: list[str] = []
            await provider.converse_stream([Message("user", text)], (), OPTIONS, deltas.append)
            return "".join(deltas)

        texts = [f"text {number}" for number in range(20)]
        assert await asyncio.gather(*map(say, texts)) == texts


async def test_two_calls_at_once_and_a_cancelled_one_do_not_lose_what_props_says() -> None:
    hangs = [Answer(end="hang"), props(tools=False)]
    routes = {"/props": lambda _: hangs.pop(0) if len(hangs) > 1 else hangs[0]}
    async with FakeServer(OPENAI.answer(TEXT), routes=routes) as server:
        async with OPENAI.provider(server) as provider:
            cancelled = asyncio.create_task(ask(provider, "converse", tools=(WEATHER,)))
            await server.answering.wait()
            meanwhile = reason(await ask(provider, "converse", tools=(WEATHER,)))
            cancelled.cancel()
            await asyncio.wait([cancelled])
            afterwards = reason(await ask(provider, "converse", tools=(WEATHER,)))

    assert isinstance(meanwhile, ToolsUnsupported)
    assert isinstance(afterwards, ToolsUnsupported)
    assert server.requests_to(OPENAI.path) == []
