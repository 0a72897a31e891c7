"""Ollama's `/api/chat`."""

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
from mead.core.reasons import HttpStatus, InvalidOptions, MalformedResponse, ToolsUnsupported, Transport
from mead.core.usage import Usage
from mead.providers.http import HttpClient
from mead.providers.ollama import Ollama
from mead.providers.protocol import Reply
from mead.testing import Answer, FakeServer, Received, ndjson
from mead.testing.providers import OSLO, ROME, TEXT, WEATHER, Answers
from mead.testing.wire import check_ollama
from providers.formats import ASK, OLLAMA, OPTIONS, json_answer, reason
from providers.suites import KEY, QUESTION, FailureSuite, StreamSuite, UsageSuite, ask, due

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}


class TestFailures(FailureSuite):
    wire = OLLAMA


class TestStreams(StreamSuite):
    wire = OLLAMA


class TestUsage(UsageSuite):
    wire = OLLAMA


def answering(request: Received) -> Answer:
    made = OLLAMA.answer(TEXT)
    assert callable(made)
    return made(request)


def shows(**facts: object) -> FakeServer:
    """A server whose `/api/show` says these things."""
    return FakeServer(answering, routes={"/api/show": json_answer(facts)})


async def sent(
    messages: Sequence[Message] = QUESTION,
    options: Options = OPTIONS,
    tools: Sequence[Tool] = (),
    call: str = "converse",
) -> Any:
    """The body that a call sends, checked to be well-formed."""
    async with OLLAMA.server(answering) as server, OLLAMA.provider(server) as provider:
        match call:
            case "complete":
                result: Any = await provider.complete(messages, options)
            case "converse":
                result = await provider.converse(messages, tools, options)
            case _:
                result = await provider.converse_stream(messages, tools, options, lambda _: None)
        result.unwrap()
    body = server.requests_to("/api/chat")[0].json()
    check_ollama(body)
    return body


async def read(message: dict[str, Any], **line: Any) -> Reply:
    """The reply that an unstreamed answer gives."""
    answer = json_answer({"message": message, "done": True, "done_reason": "stop", **line})
    async with OLLAMA.server(answer) as server, OLLAMA.provider(server) as provider:
        reply: Reply = (await ask(provider, "converse")).unwrap()
    return reply


async def read_stream(*lines: object) -> tuple[Any, list[str]]:
    """What a stream of these lines gives, and its deltas."""
    deltas: list[str] = []
    async with OLLAMA.server(OLLAMA.streaming(*[ndjson(line) for line in lines])) as server:
        async with OLLAMA.provider(server) as provider:
            result = await ask(provider, "converse_stream", deltas=deltas)
    return result, deltas


# Requests


async def test_a_plain_call_sends_the_model_the_context_and_the_messages() -> None:
    for call, stream in (("complete", False), ("converse", False), ("converse_stream", True)):
        assert await sent(call=call) == {
            "model": "test-model",
            "stream": stream,
            "truncate": False,
            "options": {"num_ctx": 4096},
            "messages": [{"role": "user", "content": ASK}],
        }


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
        response_format=ResponseFormat(schema=SCHEMA),
        extra={"keep_alive": "5m", "options": {"mirostat": 1}},
    )

    assert await sent(options=options) == {
        "model": "m",
        "stream": False,
        "truncate": False,
        "format": SCHEMA,
        "think": "low",
        "keep_alive": "5m",
        "options": {
            "temperature": 0.0,
            "top_p": 0.5,
            "top_k": 3,
            "seed": 0,
            "stop": ["END"],
            "num_predict": 5,
            "num_ctx": 4096,
            "mirostat": 1,
        },
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASK}],
    }


async def test_any_json_is_a_word() -> None:
    assert (await sent(options=Options(model="m", response_format=ResponseFormat())))["format"] == "json"


async def test_calls_and_results_become_messages_of_their_own() -> None:
    body = await sent(
        [
            Message("user", "Weather?"),
            Message("assistant", (TextBlock("Let me see."), OSLO, ROME)),
            Message("user", (ToolResultBlock("call_2", "sun"), ToolResultBlock("call_1", "rain"))),
            Message("assistant", "It rains."),
            Message("user", "And now?"),
        ],
        tools=(WEATHER,),
    )

    assert body["messages"] == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [
                {"id": "call_1", "function": {"name": "weather", "arguments": {"city": "Oslo"}}},
                {"id": "call_2", "function": {"name": "weather", "arguments": ROME.input}},
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "tool_name": "weather", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_2", "tool_name": "weather", "content": "sun"},
        {"role": "assistant", "content": "It rains."},
        {"role": "user", "content": "And now?"},
    ]
    assert body["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "weather",
                "parameters": WEATHER.input_schema,
                "description": "The weather in a city.",
            },
        }
    ]


async def test_pictures_stand_beside_the_text() -> None:
    body = await sent([Message("user", (TextBlock("What is it?"), ImageBlock("image/png", b"\x89PNG")))])

    assert body["messages"] == [{"role": "user", "content": "What is it?", "images": ["iVBORw=="]}]


async def test_p4_invalid_options_for_a_document() -> None:
    async with OLLAMA.server(answering) as server, OLLAMA.provider(server) as provider:
        paper = (TextBlock("Read."), DocumentBlock("application/pdf", b"%PDF"))
        failure = reason(await provider.complete([Message("user", paper)], OPTIONS))

    assert isinstance(failure, InvalidOptions)
    assert server.requests == []


async def test_a_key_is_sent_where_there_is_one() -> None:
    async with OLLAMA.server(answering) as server, OLLAMA.provider(server, api_key=KEY) as provider:
        (await ask(provider, "complete")).unwrap()

    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}


# The size of the context


async def test_the_context_grows_with_the_prompt_and_never_shrinks() -> None:
    long = [Message("user", "word " * 8000)]
    async with OLLAMA.server(answering) as server, OLLAMA.provider(server) as provider:
        for messages in (QUESTION, long, QUESTION):
            (await provider.complete(messages, OPTIONS)).unwrap()

    sizes = [request.json()["options"]["num_ctx"] for request in server.requests_to("/api/chat")]
    assert sizes == [4096, 16384, 16384]


async def test_room_for_a_long_answer_counts_too() -> None:
    assert (await sent(options=Options(model="m", max_tokens=8192)))["options"]["num_ctx"] == 16384


async def test_a_persons_own_context_is_never_overridden() -> None:
    options = Options(model="m", extra={"options": {"num_ctx": 1024}})

    assert (await sent([Message("user", "word " * 8000)], options))["options"]["num_ctx"] == 1024


async def test_the_models_own_length_is_the_most_that_is_asked_for() -> None:
    async with (
        shows(model_info={"llama.context_length": 2048}) as server,
        OLLAMA.provider(server) as provider,
    ):
        (await ask(provider, "complete")).unwrap()

    assert server.requests_to("/api/chat")[0].json()["options"]["num_ctx"] == 2048


# What /api/show says


async def test_the_server_is_asked_once_about_a_model() -> None:
    async with OLLAMA.server(answering) as server, OLLAMA.provider(server) as provider:
        for call in ("complete", "converse"):
            (await ask(provider, call, tools=(WEATHER,))).unwrap()
        (await ask(provider, "complete", Options(model="other"))).unwrap()

    asked = [request.json() for request in server.requests_to("/api/show")]
    assert asked == [{"model": "test-model"}, {"model": "other"}]


async def test_a_model_without_tools_is_tools_unsupported_before_anything_is_sent() -> None:
    async with shows(capabilities=["completion"]) as server, OLLAMA.provider(server) as provider:
        failure = reason(await ask(provider, "converse", tools=(WEATHER,)))
        (await ask(provider, "converse")).unwrap()

    assert isinstance(failure, ToolsUnsupported)
    assert len(server.requests_to("/api/chat")) == 1


@pytest.mark.parametrize("facts", [{"remote_host": "https://ollama.com:443"}, {"remote_model": "big"}])
async def test_r17_a_model_that_runs_in_the_cloud_is_refused_before_anything_is_sent(facts: Any) -> None:
    async with shows(**facts) as server, OLLAMA.provider(server) as provider:
        failures = [reason(await ask(provider, call)) for call in ("complete", "converse_stream")]

    assert [getattr(failure, "cause", failure) for failure in failures] == ["not_local"] * 2
    assert server.requests_to("/api/chat") == []


async def test_r17_an_answer_that_comes_from_the_cloud_is_refused() -> None:
    line = {**OLLAMA.line(content="hi"), "remote_host": "https://ollama.com:443"}
    result, deltas = await read_stream(line, {"message": {"content": ""}, "done": True})

    assert getattr(reason(result), "cause", None) == "not_local"
    assert deltas == []


async def test_r17_allow_remote_lets_a_cloud_model_answer() -> None:
    async with shows(remote_host="https://ollama.com:443") as server:
        provider = Ollama(HttpClient(server.url, slot="local", allow_remote=True))
        completion = (await ask(provider, "complete")).unwrap()
        await provider.aclose()

    assert completion.text == "One two three."


async def test_r17_a_model_that_is_only_named_like_a_cloud_model_is_asked() -> None:
    async with OLLAMA.server(answering) as server, OLLAMA.provider(server) as provider:
        assert (await ask(provider, "complete", Options(model="gpt-oss:120b-cloud"))).unwrap()


@pytest.mark.parametrize(
    "answer",
    [
        Answer(status=404),
        Answer(status=405),
        Answer(body=b"<html>"),
        json_answer([]),
        json_answer({"capabilities": 1}),
    ],
    ids=["404", "405", "page", "list", "number"],
)
async def test_a_server_that_does_not_say_is_simply_asked(answer: Answer) -> None:
    async with FakeServer(answering, routes={"/api/show": answer}) as server:
        async with OLLAMA.provider(server) as provider:
            (await ask(provider, "converse", tools=(WEATHER,))).unwrap()


async def test_a_failure_of_show_is_the_failure_of_the_call_and_is_not_remembered() -> None:
    broken = [Answer(status=500), json_answer({})]

    async with FakeServer(answering, routes={"/api/show": lambda _: broken.pop(0)}) as server:
        async with OLLAMA.provider(server) as provider:
            failure = reason(await ask(provider, "complete"))
            (await ask(provider, "complete")).unwrap()

    assert failure == HttpStatus(status=500)
    assert len(server.requests_to("/api/chat")) == 1


async def test_p4_timeout_also_covers_the_question_to_show() -> None:
    hangs = Answer(end="hang")
    async with FakeServer(answering, routes={"/api/show": hangs}) as server:
        async with OLLAMA.provider(server) as provider:
            failure = reason(await ask(provider, "complete", due()))

    assert failure.tag == "timeout"
    assert server.requests_to("/api/chat") == []


# Answers


async def test_thinking_is_no_text_and_goes_back_with_its_calls() -> None:
    message = {
        "content": "",
        "thinking": "I must look.",
        "tool_calls": [OLLAMA.call(OSLO)],
    }
    reply = await read(message)
    async with OLLAMA.server(answering) as server, OLLAMA.provider(server) as provider:
        content = tuple(
            [
                msgspec.structs.replace(b, vendor=provider.vendor) if isinstance(b, VendorBlock) else b
                for b in reply.content
            ]
        )
        messages = [
            *QUESTION,
            Message("assistant", content),
            Message("user", (ToolResultBlock("call_1", "r"),)),
        ]
        (await provider.converse(messages, (WEATHER,), OPTIONS)).unwrap()

    assert [block for block in reply.content if isinstance(block, TextBlock)] == []
    again = server.requests_to("/api/chat")[0].json()["messages"][1]
    assert (again["thinking"], again["content"]) == ("I must look.", "")


async def test_streamed_thinking_is_the_unstreamed_one() -> None:
    last = {"message": {"content": ""}, "done": True, "done_reason": "stop"}
    result, deltas = await read_stream(
        OLLAMA.line(content="", thinking="I must "),
        OLLAMA.line(content="", thinking="look."),
        OLLAMA.line(content="", tool_calls=[OLLAMA.call(OSLO)]),
        last,
    )
    whole = await read({"content": "", "thinking": "I must look.", "tool_calls": [OLLAMA.call(OSLO)]})

    assert [getattr(block, "data", block) for block in result.unwrap().content] == [
        getattr(block, "data", block) for block in whole.content
    ]
    assert deltas == []


async def test_thinking_of_an_answer_without_calls_is_dropped() -> None:
    assert (await read({"content": "ok", "thinking": "hm"})).content == (TextBlock("ok"),)


async def test_a_leading_think_block_is_no_text() -> None:
    result, deltas = await read_stream(
        OLLAMA.line(content="<think>hm</th"),
        OLLAMA.line(content="ink>ok"),
        {"message": {"content": ""}, "done": True},
    )

    assert result.unwrap().content == (TextBlock("ok"),)
    assert deltas == ["ok"]


@pytest.mark.parametrize(
    "word, expected", [("length", "max_tokens"), ("stop", "end_turn"), ("load", "end_turn")]
)
async def test_stop_reasons(word: str, expected: str) -> None:
    assert (await read({"content": "a"}, done_reason=word)).stop_reason == expected


async def test_p4_malformed_response_for_a_line_that_is_none() -> None:
    async with OLLAMA.server(OLLAMA.streaming(*OLLAMA.text_events(["Hel"]), b"{broken\n")) as server:
        async with OLLAMA.provider(server) as provider:
            deltas: list[str] = []
            failure = reason(await ask(provider, "converse_stream", deltas=deltas))

    assert isinstance(failure, MalformedResponse)
    assert deltas == ["Hel"]


async def test_p5_counts_that_are_no_counts_are_unknown() -> None:
    assert (await read({"content": "a"}, prompt_eval_count="3", eval_count=-1)).usage == Usage()


async def test_the_warning_of_a_dropped_prompt_is_for_long_prompts_only() -> None:
    case = Answers(pieces=("a",), usage=Usage(input_tokens=3, output_tokens=1))
    async with OLLAMA.serving(case) as provider:
        assert (await ask(provider, "complete")).unwrap().warnings == ()


async def test_a_call_without_a_name_is_no_call() -> None:
    calls = [{"function": {"arguments": {}}}, {"function": None}, OLLAMA.call(ToolUseBlock("a", "x", {}))]

    assert (await read({"content": "", "tool_calls": calls})).content == (ToolUseBlock("a", "x", {}),)


async def test_p4_transport_is_the_failure_of_show_too() -> None:
    async with FakeServer() as server:
        url = server.url
    provider = OLLAMA.make(url)
    failure = reason(await ask(provider, "converse", tools=(WEATHER,)))
    await provider.aclose()

    assert isinstance(failure, Transport)
