"""Anthropic messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mead.core.messages import (
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
from mead.core.reasons import HttpStatus, InvalidOptions, MalformedResponse
from mead.core.usage import Usage
from mead.providers.protocol import Reply
from mead.testing import Answer, FakeServer, Received, sse
from mead.testing.providers import OSLO, ROME, TEXT, WEATHER
from mead.testing.wire import check_anthropic
from providers.formats import ANTHROPIC, ASK, OPTIONS, json_answer, reason
from providers.suites import KEY, QUESTION, FailureSuite, StreamSuite, UsageSuite, ask

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
THINKING = {"type": "thinking", "thinking": "I must look.", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "eHh4"}
TOOL_USE = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}


class TestFailures(FailureSuite):
    wire = ANTHROPIC


class TestStreams(StreamSuite):
    wire = ANTHROPIC


class TestUsage(UsageSuite):
    wire = ANTHROPIC


async def sent(
    messages: Sequence[Message] = QUESTION,
    options: Options = OPTIONS,
    tools: Sequence[Tool] = (),
    call: str = "converse",
) -> Any:
    """The body that a call sends, checked to be well-formed."""
    received: list[Received] = []

    def keep(request: Received) -> Answer:
        received.append(request)
        made = ANTHROPIC.answer(TEXT)
        assert callable(made)
        return made(request)

    async with FakeServer(keep) as server, ANTHROPIC.provider(server) as provider:
        match call:
            case "complete":
                result: Any = await provider.complete(messages, options)
            case "converse":
                result = await provider.converse(messages, tools, options)
            case _:
                result = await provider.converse_stream(messages, tools, options, lambda _: None)
        result.unwrap()
    body = received[0].json()
    check_anthropic(body)
    return body


async def read(*content: dict[str, Any], stop_reason: str = "end_turn", usage: object = None) -> Reply:
    """The reply that an unstreamed answer gives."""
    answer = {**ANTHROPIC.whole(TEXT), "content": content, "stop_reason": stop_reason, "usage": usage}
    async with ANTHROPIC.server(json_answer(answer)) as server, ANTHROPIC.provider(server) as provider:
        reply: Reply = (await ask(provider, "converse")).unwrap()
    return reply


async def read_stream(*events: bytes) -> tuple[Any, list[str]]:
    """What a stream of these events gives, and its deltas."""
    deltas: list[str] = []
    async with ANTHROPIC.server(ANTHROPIC.streaming(*events)) as server:
        async with ANTHROPIC.provider(server) as provider:
            result = await ask(provider, "converse_stream", deltas=deltas)
    return result, deltas


STOP = ANTHROPIC.event({"type": "message_stop"})


def begin(**usage: object) -> bytes:
    return ANTHROPIC.event({"type": "message_start", "message": {"usage": usage}})


def message_delta(stop_reason: str | None = "end_turn", **usage: object) -> bytes:
    return ANTHROPIC.event({"type": "message_delta", "delta": {"stop_reason": stop_reason}, "usage": usage})


# Requests


async def test_a_plain_call_sends_the_model_the_limit_and_the_messages() -> None:
    for call in ("complete", "converse"):
        assert await sent(call=call) == {
            "model": "test-model",
            "max_tokens": 4096,
            "messages": [{"role": "user", "content": ASK}],
        }


async def test_a_streamed_call_says_so() -> None:
    assert (await sent(call="converse_stream"))["stream"] is True


async def test_the_version_is_pinned_and_the_key_is_a_bearer() -> None:
    async with ANTHROPIC.server(ANTHROPIC.answer(TEXT)) as server:
        async with ANTHROPIC.provider(server, api_key=KEY) as provider:
            for call in ("complete", "converse", "converse_stream"):
                (await ask(provider, call)).unwrap()

    seen = [
        (r.method, r.path, r.headers["anthropic-version"], r.headers["authorization"])
        for r in server.requests
    ]
    assert seen == [("POST", "/v1/messages", "2026-10-21", f"Bearer {KEY}")] * 3


async def test_options_have_their_place_in_the_body() -> None:
    options = Options(
        model="m",
        system="Be brief.",
        max_tokens=5,
        stop=("END",),
        thinking="low",
        response_format=ResponseFormat(schema=SCHEMA),
        extra={"service_tier": "auto"},
    )

    assert await sent(options=options) == {
        "model": "m",
        "max_tokens": 5,
        "system": "Be brief.",
        "messages": [{"role": "user", "content": ASK}],
        "stop_sequences": ["END"],
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "service_tier": "auto",
    }


@pytest.mark.parametrize(
    "thinking, wire", [(True, {"type": "adaptive"}), (False, {"type": "disabled"}), (None, None)]
)
async def test_thinking_can_be_switched(thinking: bool | None, wire: object) -> None:
    body = await sent(options=Options(model="m", thinking=thinking))

    assert body.get("thinking") == wire
    assert "output_config" not in body


@pytest.mark.parametrize(
    "options",
    [
        Options(temperature=1.0),
        Options(top_p=1.0),
        Options(top_k=1),
        Options(seed=0),
        Options(response_format=ResponseFormat()),
    ],
    ids=["temperature", "top_p", "top_k", "seed", "any JSON"],
)
async def test_p4_invalid_options_for_what_the_version_does_not_take(options: Options) -> None:
    async with ANTHROPIC.server(Answer()) as server, ANTHROPIC.provider(server) as provider:
        failure = reason(await ask(provider, "complete", options.over(OPTIONS)))

    assert isinstance(failure, InvalidOptions)
    assert server.requests == []


async def test_tools_carry_what_the_vendor_insists_on() -> None:
    body = await sent(tools=(WEATHER, Tool("now", None, {"type": "object"})))

    assert body["tools"] == [
        {"name": "weather", "input_schema": WEATHER.input_schema, "description": "The weather in a city."},
        {"name": "now", "input_schema": {"type": "object", "properties": {}}},
    ]


async def test_results_are_one_user_message_in_the_order_of_the_calls_before_the_text() -> None:
    body = await sent(
        [
            Message("user", "Weather?"),
            Message("assistant", (TextBlock("Let me see."), OSLO, ROME)),
            Message("user", (TextBlock("Be quick."), ToolResultBlock("call_2", "no such city", True))),
            Message("user", (ToolResultBlock("call_1", " "),)),
            Message("assistant", "It rains."),
            Message("user", "And now?"),
        ],
        tools=(WEATHER,),
    )

    assert body["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me see."},
                TOOL_USE,
                {"type": "tool_use", "id": "call_2", "name": "weather", "input": ROME.input},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1"},
                {
                    "type": "tool_result",
                    "tool_use_id": "call_2",
                    "content": "no such city",
                    "is_error": True,
                },
                {"type": "text", "text": "Be quick."},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "It rains."}]},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
    ]


async def test_pictures_and_documents_are_blocks() -> None:
    content = (
        ImageBlock("image/png", b"\x89PNG"),
        DocumentBlock("application/pdf", b"%PDF", "paper.pdf"),
        DocumentBlock("text/markdown", "# é".encode()),
        TextBlock("Compare."),
    )
    body = await sent([Message("user", content)])

    assert body["messages"][0]["content"] == [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}},
        {
            "type": "document",
            "title": "paper.pdf",
            "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
        },
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "# é"}},
        {"type": "text", "text": "Compare."},
    ]


async def test_a_call_with_an_odd_id_and_name_can_be_sent_back() -> None:
    odd = ToolUseBlock("functions.get:0", "get the weather, please", {})
    body = await sent(
        [
            Message("user", "Weather?"),
            Message("assistant", (odd,)),
            Message("user", (ToolResultBlock("functions.get:0", "There is no such tool.", True),)),
        ],
        tools=(WEATHER,),
    )

    call = body["messages"][1]["content"][0]
    assert (call["id"], call["name"]) == ("functions_get_0", "get_the_weather__please")
    assert body["messages"][2]["content"][0]["tool_use_id"] == "functions_get_0"


# What the vendor wants back


async def next_request(reply: Reply, *, own: bool = True) -> Any:
    """The body of the request after a reply; with `own` false it goes to another vendor."""
    async with FakeServer(ANTHROPIC.answer(TEXT)) as server:
        vendor = ANTHROPIC.make(server.url).vendor if own else "messages:elsewhere:443"
        content = tuple(
            [
                msgspec.structs.replace(block, vendor=vendor) if isinstance(block, VendorBlock) else block
                for block in reply.content
            ]
        )
        results = (ToolResultBlock("call_1", "rain"), ToolResultBlock("call_2", "sun"))
        messages = [
            *QUESTION,
            Message("assistant", content),
            Message("user", (*results, TextBlock("Go on."))),
        ]
        async with ANTHROPIC.provider(server) as provider:
            (await provider.converse(messages, (WEATHER,), OPTIONS)).unwrap()
    body = server.requests[0].json()
    check_anthropic(body)
    return body


async def test_thinking_is_no_text_and_goes_back_unchanged() -> None:
    content = [THINKING, REDACTED, {"type": "text", "text": "Let me see."}, TOOL_USE]
    reply = await read(*content, stop_reason="tool_use")

    assert (await next_request(reply))["messages"][1]["content"] == content
    assert [block.text for block in reply.content if isinstance(block, TextBlock)] == ["Let me see."]


async def test_thinking_goes_back_to_its_own_vendor_only() -> None:
    reply = await read(THINKING, TOOL_USE, stop_reason="tool_use")

    assert (await next_request(reply, own=False))["messages"][1]["content"] == [TOOL_USE]


async def test_streamed_thinking_is_the_unstreamed_one() -> None:
    blocks = ANTHROPIC.block(
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "I must "},
        {"type": "thinking_delta", "thinking": "look."},
        {"type": "signature_delta", "signature": "c2ln"},
        stop=True,
    )
    call = ANTHROPIC.block(
        {**TOOL_USE, "input": {}},
        {"type": "input_json_delta", "partial_json": '{"city":"Oslo"}'},
        index=1,
        stop=True,
    )
    result, deltas = await read_stream(begin(), *blocks, *call, message_delta("tool_use"), STOP)

    again = await next_request(result.unwrap())
    assert deltas == []
    assert again["messages"][1]["content"] == [THINKING, TOOL_USE]


async def test_a_server_tool_is_kept_for_its_vendor_and_is_no_call() -> None:
    use = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {"q": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srv_1", "content": [{"title": "t"}]}
    text = {"type": "text", "text": "Found.", "citations": [{"url": "u"}]}
    reply = await read(use, found, text)

    assert reply.stop_reason == "end_turn"
    assert [type(block) for block in reply.content] == [VendorBlock, VendorBlock, TextBlock]
    assert (await next_request(reply))["messages"][1]["content"][:2] == [use, found]


async def test_a_streamed_server_tool_gets_its_input_as_an_object() -> None:
    use = {"type": "server_tool_use", "id": "srv_1", "name": "web_search", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"q":"x"}'}
    result, _ = await read_stream(begin(), *ANTHROPIC.block(use, delta), message_delta(), STOP)

    block = result.unwrap().content[0]
    assert isinstance(block, VendorBlock)
    assert msgspec.json.decode(block.data) == {**use, "input": {"q": "x"}}


async def test_an_answer_of_thinking_alone_is_left_out_of_the_next_request() -> None:
    reply = await read(THINKING)
    messages = (await next_request(reply))["messages"]

    assert reply.content != ()
    assert [message["role"] for message in messages] == ["user"]


async def test_thinking_at_the_end_of_an_answer_is_not_sent_back() -> None:
    reply = await read({"type": "text", "text": "So."}, THINKING)

    assert (await next_request(reply))["messages"][1]["content"] == [{"type": "text", "text": "So."}]


# Answers


@pytest.mark.parametrize(
    "said, expected, warns",
    [
        ("end_turn", "end_turn", False),
        ("stop_sequence", "end_turn", False),
        ("max_tokens", "max_tokens", False),
        ("model_context_window_exceeded", "max_tokens", True),
        ("refusal", "end_turn", True),
        ("pause_turn", "end_turn", True),
        ("something_new", "end_turn", False),
    ],
)
async def test_stop_reasons(said: str, expected: str, warns: bool) -> None:
    reply = await read({"type": "text", "text": "a"}, stop_reason=said)

    assert (reply.stop_reason, bool(reply.warnings)) == (expected, warns)


async def test_an_unknown_event_and_a_ping_are_passed_over() -> None:
    text = ANTHROPIC.block({"type": "text", "text": "a"}, {"type": "text_delta", "text": "b"}, stop=True)
    result, deltas = await read_stream(
        begin(),
        ANTHROPIC.event({"type": "ping"}),
        ANTHROPIC.event({"type": "news", "content": [], "delta": {"mood": "good"}}),
        *text,
        ANTHROPIC.event({"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta"}}),
        message_delta(),
        STOP,
    )

    assert result.unwrap().content == (TextBlock("ab"),)
    assert deltas == ["a", "b"]


async def test_an_event_without_data_is_passed_over() -> None:
    result, _ = await read_stream(b"event: ping\ndata:\n\n", *ANTHROPIC.stream(TEXT))

    assert result.unwrap().content == (TextBlock("One two three."),)


@pytest.mark.parametrize("again", [0, 5], ids=["a block twice", "text before its place"])
async def test_p4_malformed_response_for_blocks_in_disorder(again: int) -> None:
    later = ANTHROPIC.block({"type": "text", "text": ""}, {"type": "text_delta", "text": "b"}, index=9)
    other = ANTHROPIC.block({"type": "text", "text": ""}, {"type": "text_delta", "text": "c"}, index=again)
    result, deltas = await read_stream(*ANTHROPIC.text_events(["a"]), *later, *other, message_delta(), STOP)

    assert isinstance(reason(result), MalformedResponse)
    assert deltas == ["a", "b"]


async def test_p4_malformed_response_for_text_in_a_call() -> None:
    call = ANTHROPIC.block({**TOOL_USE, "input": {}}, {"type": "text_delta", "text": "b"})
    result, deltas = await read_stream(begin(), *call, message_delta(), STOP)

    assert isinstance(reason(result), MalformedResponse)
    assert deltas == []


async def test_a_block_without_a_type_is_left_out() -> None:
    reply = await read({"text": "a"}, {"type": "text", "text": "b"})

    assert reply.content == (TextBlock("b"),)


async def test_blocks_are_told_apart_by_their_index() -> None:
    first, second = {**TOOL_USE, "input": {}}, {**TOOL_USE, "id": "call_2", "input": {}}
    half = {"type": "input_json_delta", "partial_json": '{"city":'}
    rest = {"type": "input_json_delta", "partial_json": '"Oslo"}'}
    result, _ = await read_stream(
        begin(),
        *ANTHROPIC.block(first, half, index=0),
        *ANTHROPIC.block(second, half, index=1),
        ANTHROPIC.event({"type": "content_block_delta", "index": 0, "delta": rest}),
        ANTHROPIC.event({"type": "content_block_delta", "index": 1, "delta": rest}),
        message_delta("tool_use"),
        STOP,
    )

    assert result.unwrap().content == (OSLO, msgspec.structs.replace(OSLO, id="call_2"))


@pytest.mark.parametrize("end", [b"data: {broken\n\n", b"data: [1]\n\n"], ids=["no JSON", "no object"])
async def test_p4_malformed_response_for_an_event_that_is_none(end: bytes) -> None:
    result, deltas = await read_stream(*ANTHROPIC.text_events(["Hel"]), end)

    assert isinstance(reason(result), MalformedResponse)
    assert deltas == ["Hel"]


async def test_a_message_delta_alone_does_not_end_a_stream() -> None:
    result, _ = await read_stream(*ANTHROPIC.text_events(["Hel"]), message_delta())

    assert getattr(reason(result), "cause", None) == "cut"


async def test_p4_an_error_type_stands_for_its_status() -> None:
    answer = {"type": "error", "error": {"type": "not_found_error", "message": "no model m"}}
    async with ANTHROPIC.server(json_answer(answer)) as server, ANTHROPIC.provider(server) as provider:
        failure = reason(await ask(provider, "complete"))

    assert failure == HttpStatus(status=404, code="not_found_error", detail="no model m")


async def test_p4_a_spend_limit_has_its_own_code() -> None:
    details = {"error_code": "enforced_spend_limit_reached"}
    error = {"type": "rate_limit_error", "message": "limit reached", "details": details}
    answer = json_answer({"type": "error", "error": error}, status=429)
    async with ANTHROPIC.server(answer) as server, ANTHROPIC.provider(server) as provider:
        failure = reason(await ask(provider, "complete"))

    assert failure == HttpStatus(
        status=429, code="enforced_spend_limit_reached", detail="limit reached", retry_after_s=None
    )


async def test_p5_usage_adds_what_the_cache_read_and_wrote() -> None:
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 100,
        "output_tokens": 9,
        "output_tokens_details": {"thinking_tokens": 4},
    }
    expected = Usage(
        input_tokens=123, output_tokens=9, cached_tokens=100, cache_write_tokens=20, reasoning_tokens=4
    )
    text = ANTHROPIC.block({"type": "text", "text": "a"}, stop=True)
    early = {name: value for name, value in usage.items() if not name.startswith("output")}
    result, _ = await read_stream(begin(**early, output_tokens=1), *text, message_delta(**usage), STOP)

    assert (await read({"type": "text", "text": "a"}, usage=usage)).usage == expected
    assert result.unwrap().usage == expected


async def test_p5_counts_that_come_early_stay_when_the_last_event_leaves_them_out() -> None:
    text = ANTHROPIC.block({"type": "text", "text": "a"}, stop=True)
    result, _ = await read_stream(
        begin(input_tokens=1, cache_read_input_tokens=219), *text, message_delta(output_tokens=60), STOP
    )

    assert result.unwrap().usage == Usage(input_tokens=220, output_tokens=60, cached_tokens=219)


async def test_an_event_without_its_name_line_is_read_too() -> None:
    events = [sse({"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}})]
    result, _ = await read_stream(*events, sse({"type": "message_stop"}))

    assert result.unwrap().content == (TextBlock("a"),)
