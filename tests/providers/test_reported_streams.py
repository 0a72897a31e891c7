"""Reported faults of other programs, replayed: framing, usage, tool calls, thinking, histories, errors.

The number in a test's name is the report's. Where the format does not matter, all three are asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from mead.core.conversation import Conversation, encode
from mead.core.messages import (
    Block,
    Message,
    TextBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    text_of,
)
from mead.core.options import Options
from mead.core.reasons import (
    HttpStatus,
    InvalidOptions,
    MalformedResponse,
    MissingApiKey,
    Timeout,
    ToolsUnsupported,
    Transport,
)
from mead.core.result import Err
from mead.core.usage import Usage
from mead.providers.protocol import Reply
from mead.testing import Answer, FakeServer, Received, ndjson, sse
from mead.testing.providers import OSLO, ROME, TEXT, WEATHER, Answers, GoesSilent
from mead.testing.server import Answering
from providers.formats import (
    ANTHROPIC,
    FORMATS,
    OLLAMA,
    OPENAI,
    OPTIONS,
    OpenAIFormat,
    WireFormat,
    json_answer,
    reason,
)
from providers.suites import KEY, QUESTION, ask, due

every_format = pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.name)
chunk = OpenAIFormat.chunk


async def streamed(wire: WireFormat, *pieces: bytes, **keywords: Any) -> tuple[Any, list[str]]:
    """What a stream of these bytes gives, and its deltas."""
    deltas: list[str] = []
    async with wire.server(wire.streaming(*pieces, **keywords)) as server, wire.provider(server) as provider:
        result = await ask(provider, "converse_stream", deltas=deltas)
    return result, deltas


async def answered(wire: WireFormat, answer: Answering, call: str = "converse", tools: Any = ()) -> Any:
    """What a call gives that is answered in this way."""
    async with wire.server(answer) as server, wire.provider(server) as provider:
        return await ask(provider, call, tools=tools)


async def chat_stream(*events: object) -> Reply:
    """The reply to a chat completions stream of these events."""
    result, _ = await streamed(OPENAI, *[sse(event) for event in events])
    reply: Reply = result.unwrap()
    return reply


async def call_stream(*fragments: list[dict[str, Any]], finish: str = "tool_calls") -> Sequence[Block]:
    """The blocks that a chat completions stream of these tool call fragments gives."""
    events = [chunk(tool_calls=calls) for calls in fragments]
    last = {"choices": [{"delta": {}, "finish_reason": finish}]}
    return (await chat_stream(*events, last, "[DONE]")).content


async def request_for(
    wire: WireFormat, messages: Sequence[Message], tools: Sequence[Tool] = (WEATHER,)
) -> Any:
    """The request that these messages make, checked to be well-formed."""
    async with wire.server(wire.answer(TEXT)) as server, wire.provider(server) as provider:
        (await provider.converse(messages, tools, OPTIONS)).unwrap()
    body = server.requests_to(wire.path)[0].json()
    wire.checks(body)
    return body


def fragment(index: int | None = None, id: str | None = None, **function: object) -> dict[str, Any]:
    """A fragment of a tool call; what is `None` is left out."""
    call: dict[str, Any] = {"function": function}
    if index is not None:
        call["index"] = index
    if id is not None:
        call["id"] = id
    return call


# A. Framing


@every_format
async def test_d01_characters_cut_between_reads_stay_whole(wire: WireFormat) -> None:
    whole = b"".join(wire.stream(Answers(pieces=("é世", "😀"))))
    result, deltas = await streamed(wire, *[whole[at : at + 1] for at in range(len(whole))])

    assert text_of(result.unwrap().content) == "é世😀"
    assert deltas == ["é世", "😀"]


@pytest.mark.parametrize("cut", range(60))
async def test_d02_an_event_cut_before_its_blank_line_is_kept(cut: int) -> None:
    stream = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n'
    result, deltas = await streamed(OPENAI, stream[:cut], stream[cut:])

    assert result.unwrap().content == (TextBlock("a"),)
    assert deltas == ["a"]


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=lambda wire: wire.name)
async def test_d03_comments_are_passed_over(wire: WireFormat) -> None:
    stream = [b":\n\n", b": OPENROUTER PROCESSING\n\n"]
    for event in wire.stream(TEXT):
        stream += [event, b": still here\n", b":\n\n"]
    result, deltas = await streamed(wire, *stream)

    assert text_of(result.unwrap().content) == "".join(deltas) == "One two three."


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=lambda wire: wire.name)
@pytest.mark.parametrize("newline", [b"\r\n", b"\r"], ids=["CRLF", "CR"])
async def test_d04_every_line_end_gives_the_same(wire: WireFormat, newline: bytes) -> None:
    stream = b"".join(wire.stream(TEXT))
    expected = await streamed(wire, stream)
    other = stream.replace(b"\n", newline)

    assert await streamed(wire, other) == expected
    assert await streamed(wire, *[other[at : at + 1] for at in range(len(other))]) == expected


async def test_d04_a_line_end_split_between_two_reads_is_one() -> None:
    pieces = b"".join(OPENAI.stream(TEXT)).replace(b"\n", b"\r|\n").split(b"|")
    result, _ = await streamed(OPENAI, *pieces)

    assert text_of(result.unwrap().content) == "One two three."


async def test_d05_chunks_without_choices_are_no_failure() -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 2}
    reply = await chat_stream(
        {"choices": []}, chunk(content="a"), {"choices": None}, {"usage": usage}, "[DONE]"
    )

    assert reply.content == (TextBlock("a"),)
    assert reply.usage == Usage(input_tokens=4, output_tokens=2)


@every_format
async def test_d06_a_clean_close_before_the_end_is_a_failure(wire: WireFormat) -> None:
    result, deltas = await streamed(wire, *wire.text_events(["Hel", "lo"]))

    assert isinstance(reason(result), (Transport, MalformedResponse))
    assert deltas == ["Hel", "lo"]


@pytest.mark.parametrize("call", ["complete", "converse", "converse_stream"])
async def test_d07_an_error_under_status_200_is_a_failure(call: str) -> None:
    error = json_answer({"error": {"message": "upstream failed", "code": 502}})

    assert reason(await answered(OPENAI, error, call)) == HttpStatus(status=502, detail="upstream failed")


@every_format
@pytest.mark.parametrize("call", ["complete", "converse_stream"])
async def test_d08_the_status_is_looked_at_before_the_body(wire: WireFormat, call: str) -> None:
    headers = {"content-type": "text/html"}
    page = Answer(status=502, body=b"<html>\n\n<h1>Bad Gateway</h1></html>", headers=headers)

    assert reason(await answered(wire, page, call)) == HttpStatus(status=502)
    under_200 = await answered(wire, msgspec.structs.replace(page, status=200), call)
    assert isinstance(reason(under_200), MalformedResponse)


@every_format
async def test_d09_silence_after_a_delta_ends_with_the_deadline_and_the_socket_is_closed(
    wire: WireFormat,
) -> None:
    async with wire.server(wire.answer(GoesSilent(pieces=("Hel",)))) as server:
        async with wire.provider(server) as provider:
            failure = reason(await ask(provider, "converse_stream", due()))
            await asyncio.wait_for(server.client_left.wait(), 2)

    assert failure == Timeout(limit="deadline")


@every_format
async def test_d09_a_smaller_idle_limit_ends_it_earlier(wire: WireFormat) -> None:
    loop = asyncio.get_running_loop()
    options = msgspec.structs.replace(OPTIONS, deadline=loop.time() + 60, idle_timeout_s=0.03)
    async with wire.server(wire.answer(GoesSilent(pieces=("Hel",)))) as server:
        async with wire.provider(server) as provider:
            failure = reason(await ask(provider, "converse_stream", options))
            await asyncio.wait_for(server.client_left.wait(), 2)

    assert isinstance(failure, Timeout)
    assert failure.limit == "idle"


async def test_d10_lines_of_json_are_no_single_document() -> None:
    lines = b"".join(OLLAMA.stream(Answers(pieces=("a", "b"))))
    size = len(lines) // 5 + 1
    in_five = [lines[at : at + size] for at in range(0, len(lines), size)]
    replies = [await streamed(OLLAMA, *pieces) for pieces in ([lines], in_five, [lines.rstrip()])]

    assert [text_of(result.unwrap().content) for result, _ in replies] == ["ab"] * 3
    assert len({repr(result) for result, _ in replies}) == 1


@pytest.mark.parametrize("newline", [b"\n", b""], ids=["ended", "unended"])
async def test_d11_an_error_line_after_text_is_a_failure(newline: bytes) -> None:
    error = b'{"error":"model runner has unexpectedly stopped"}' + newline
    result, deltas = await streamed(OLLAMA, *OLLAMA.text_events(["Hel"]), error)

    assert reason(result) == HttpStatus(status=500, detail="model runner has unexpectedly stopped")
    assert deltas == ["Hel"]


async def test_d12_an_error_event_in_mid_stream_is_a_failure() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    result, deltas = await streamed(ANTHROPIC, *ANTHROPIC.text_events(["Hel"]), ANTHROPIC.event(error))

    assert reason(result) == HttpStatus(status=529, code="overloaded_error", detail="Overloaded")
    assert deltas == ["Hel"]


# B. Usage


@pytest.mark.parametrize(
    "usage, expected",
    [
        ({"prompt_tokens": None, "completion_tokens": 7, "total_tokens": None}, Usage(output_tokens=7)),
        (None, Usage()),
    ],
    ids=["a null count", "null"],
)
async def test_d13_counts_that_are_null_are_unknown(usage: object, expected: Usage) -> None:
    reply = await chat_stream(chunk(content="a"), {"choices": [], "usage": usage}, "[DONE]")
    whole = {**OPENAI.whole(Answers(pieces=("a",))), "usage": usage}

    assert (reply.content, reply.usage) == ((TextBlock("a"),), expected)
    assert (await answered(OPENAI, json_answer(whole))).unwrap().usage == expected


async def test_d14_a_stream_asks_for_its_usage() -> None:
    def stingy(request: Received) -> Answer:
        body = request.json()
        if not body.get("stream"):
            return json_answer(OPENAI.whole(TEXT))
        events = OPENAI.stream(TEXT)
        wanted = (body.get("stream_options") or {}).get("include_usage")
        return OPENAI.streaming(*(events if wanted else [*events[:-2], events[-1]]))

    results = [await answered(OPENAI, stingy, call) for call in ("converse", "converse_stream")]

    assert [result.unwrap().usage for result in results] == [TEXT.usage] * 2


async def test_d14_a_server_that_refuses_the_question_is_still_usable() -> None:
    def strict(request: Received) -> Answer:
        if "stream_options" in request.json():
            return json_answer(OPENAI.error("unknown field: stream_options", 400), status=400)
        return OPENAI.streaming(*OPENAI.stream(TEXT))

    result = await answered(OPENAI, strict, "converse_stream")

    assert text_of(result.unwrap().content) == "One two three."


@pytest.mark.parametrize("counts", [[15], [5, 15]], ids=["one", "two"])
async def test_d15_output_tokens_are_cumulative(counts: list[int]) -> None:
    def delta(tokens: int) -> bytes:
        event = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
        return ANTHROPIC.event({**event, "usage": {"output_tokens": tokens}})

    stop = ANTHROPIC.event({"type": "message_stop"})
    result, _ = await streamed(ANTHROPIC, *ANTHROPIC.text_events(["a"]), *map(delta, counts), stop)

    assert result.unwrap().usage.output_tokens == 15


async def test_d16_cached_tokens_are_a_part_of_the_prompt() -> None:
    details = {"cached_tokens": 1920}
    usage = {"prompt_tokens": 2006, "completion_tokens": 300, "prompt_tokens_details": details}
    reply = await chat_stream(chunk(content="a"), {"choices": [], "usage": usage}, "[DONE]")

    assert reply.usage == Usage(input_tokens=2006, output_tokens=300, cached_tokens=1920)


async def test_d17_cache_writes_and_reads_are_added_once() -> None:
    counts = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 12304,
        "cache_read_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 12304, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 550,
    }
    whole = {**ANTHROPIC.whole(TEXT), "usage": counts}
    begin = ANTHROPIC.event({"type": "message_start", "message": whole})
    end = [
        ANTHROPIC.event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": counts}),
        ANTHROPIC.event({"type": "message_stop"}),
    ]
    expected = Usage(input_tokens=12307, output_tokens=550, cached_tokens=0, cache_write_tokens=12304)

    assert (await answered(ANTHROPIC, json_answer(whole))).unwrap().usage == expected
    assert (await streamed(ANTHROPIC, begin, *end))[0].unwrap().usage == expected


@pytest.mark.parametrize("reason_word", ["stop", "load"])
async def test_d18_a_last_line_without_counts_is_an_answer(reason_word: str) -> None:
    last = {"message": {"role": "assistant", "content": "a"}, "done": True, "done_reason": reason_word}

    for call in ("converse", "converse_stream"):
        reply = (await answered(OLLAMA, Answer(body=ndjson(last)), call)).unwrap()
        assert (text_of(reply.content), reply.usage) == ("a", Usage())


# C. Tool calls


async def test_d21_fragments_without_an_index_are_told_apart_by_their_ids() -> None:
    blocks = await call_stream(
        [fragment(id="a", name="x", arguments="{")],
        [fragment(arguments="}")],
        [fragment(id="b", name="y", arguments="{}")],
    )

    assert blocks == (ToolUseBlock("a", "x", {}), ToolUseBlock("b", "y", {}))


async def test_d22_complete_calls_that_share_an_index_are_two() -> None:
    first = fragment(0, "a", name="x", arguments='{"n":1}')
    second = fragment(0, "b", name="y", arguments='{"n":2}')
    expected = (ToolUseBlock("a", "x", {"n": 1}), ToolUseBlock("b", "y", {"n": 2}))

    assert await call_stream([first], [second]) == expected
    assert await call_stream([first, second]) == expected


async def test_d22_even_without_ids() -> None:
    first, second = fragment(0, name="x", arguments='{"n":1}'), fragment(0, name="x", arguments='{"n":2}')
    blocks = await call_stream([first], [second])

    assert [block.input for block in blocks if isinstance(block, ToolUseBlock)] == [{"n": 1}, {"n": 2}]


async def test_d23_a_name_and_its_first_piece_in_one_chunk_are_one_call() -> None:
    blocks = await call_stream(
        [fragment(0, "a", name="x", arguments=""), fragment(0, arguments='{"n"')],
        [fragment(0, arguments=":1}")],
    )

    assert blocks == (ToolUseBlock("a", "x", {"n": 1}),)


async def test_d24_interleaved_fragments_find_their_call_by_the_index() -> None:
    blocks = await call_stream(
        [fragment(0, "a", name="x", arguments=""), fragment(1, "b", name="y", arguments="")],
        [fragment(0, arguments='{"n"'), fragment(1, arguments='{"m"')],
        [fragment(1, arguments=":2}")],
        [fragment(0, arguments=":1}")],
    )

    assert blocks == (ToolUseBlock("a", "x", {"n": 1}), ToolUseBlock("b", "y", {"m": 2}))


@pytest.mark.parametrize("arguments", ["", "  ", None], ids=["empty", "blank", "absent"])
async def test_d25_no_arguments_are_an_empty_object(arguments: str | None) -> None:
    function = {"name": "x"} if arguments is None else {"name": "x", "arguments": arguments}
    call = {"id": "a", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole = json_answer({"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    expected = (ToolUseBlock("a", "x", {}),)

    assert (await answered(OPENAI, whole)).unwrap().content == expected
    assert await call_stream([{"index": 0, **call}]) == expected


async def test_d25_a_call_without_a_delta_is_an_empty_object() -> None:
    start = {"type": "tool_use", "id": "a", "name": "x", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": ""}
    for deltas in ([], [delta]):
        for opening in (start, {name: value for name, value in start.items() if name != "input"}):
            events = [*ANTHROPIC.begin(Answers()), *ANTHROPIC.block(opening, *deltas, stop=True)]
            result, _ = await streamed(ANTHROPIC, *events, ANTHROPIC.event({"type": "message_stop"}))
            assert result.unwrap().content == (ToolUseBlock("a", "x", {}),)


@every_format
async def test_d26_empty_arguments_go_back_as_an_empty_object(wire: WireFormat) -> None:
    result = await answered(OPENAI, json_answer(_whole_call("")))
    history = [
        *QUESTION,
        Message("assistant", result.unwrap().content),
        Message("user", (ToolResultBlock("a", "done"),)),
    ]

    body = msgspec.json.encode(await request_for(wire, history)).decode()
    assert '"arguments":"{}"' in body or '"arguments":{}' in body or '"input":{}' in body


def _whole_call(arguments: object, finish: str = "tool_calls", **message: Any) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "x", "arguments": arguments}}
    said = {"role": "assistant", "content": None, "tool_calls": [call], **message}
    return {"choices": [{"message": said, "finish_reason": finish}]}


async def test_d27_arguments_that_cannot_be_read_are_kept_as_malformed_beside_their_siblings() -> None:
    broken = '{"path": "/tmp/a", "mode": '
    blocks = await call_stream(
        [fragment(0, "a", name="write", arguments=broken[:9]), fragment(1, "b", name="read", arguments="{}")],
        [fragment(0, arguments=broken[9:])],
    )

    assert blocks == (
        ToolUseBlock("a", "write", {}, malformed=broken),
        ToolUseBlock("b", "read", {}),
    )


@every_format
async def test_d28_a_call_with_truncated_arguments_can_be_answered_and_sent_back(wire: WireFormat) -> None:
    broken = ToolUseBlock("a", "write", {}, malformed='{"path": ')
    history = [
        *QUESTION,
        Message("assistant", (broken,)),
        Message("user", (ToolResultBlock("a", "not run", True),)),
    ]

    assert '"path' not in msgspec.json.encode(await request_for(wire, history)).decode()


@pytest.mark.parametrize("arguments", ["[1]", '"x"', "5", "true", '"{}"', "\u0000", "{}{}", "\ud800"])
async def test_d29_arguments_that_are_no_object_are_malformed(arguments: str) -> None:
    message = OPENAI.call(ToolUseBlock("a", "x", {}))
    message["function"]["arguments"] = "?"
    body = msgspec.json.encode({"choices": [{"message": {"tool_calls": [message]}, "finish_reason": "stop"}]})
    body = body.replace(b'"?"', ascii_json(arguments))
    result = await answered(OPENAI, Answer(body=body))

    if isinstance(result, Err):  # half a character is not even JSON
        assert isinstance(result.reason, MalformedResponse)
        return
    [block] = result.value.content
    assert (block.input, block.malformed) == ({}, arguments)


def ascii_json(text: str) -> bytes:
    """A JSON text of ASCII alone: half a character can be written no other way."""
    return ('"' + "".join(f"\\u{ord(letter):04x}" for letter in text) + '"').encode()


async def test_d29_null_arguments_count_as_none() -> None:
    result = await answered(OPENAI, json_answer(_whole_call("null")))

    assert result.unwrap().content == (ToolUseBlock("a", "x", {}),)


async def test_d30_calls_decide_whatever_the_finish_reason_says() -> None:
    with_calls = (await answered(OPENAI, json_answer(_whole_call("{}", "stop")))).unwrap()
    text_only = _whole_call("{}", content="hi")
    text_only["choices"][0]["message"]["tool_calls"] = []
    text = (await answered(OPENAI, json_answer(text_only))).unwrap()
    nothing = _whole_call("{}", tool_calls=None)

    assert with_calls.stop_reason == "tool_use"
    assert (text.stop_reason, text_of(text.content)) == ("end_turn", "hi")
    assert isinstance(reason(await answered(OPENAI, json_answer(nothing))), MalformedResponse)


@pytest.mark.parametrize("call_id", ["", None, 7], ids=["empty", "null", "number"])
async def test_d31_a_missing_id_is_made_up_the_same_in_a_stream(call_id: object) -> None:
    function = {"name": "x", "arguments": {"n": 1}}
    calls = [{"id": call_id, "function": function}, {"function": function}]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    chat = {"choices": [{"message": message, "finish_reason": "tool_calls"}]}
    whole = (await answered(OPENAI, json_answer(chat))).unwrap().content
    stream = await call_stream([{"index": at, **call} for at, call in enumerate(calls)])
    ollama = (await answered(OLLAMA, json_answer({"message": message, "done": True}))).unwrap().content

    assert [block.input for block in whole] == [{"n": 1}] * 2
    assert len({block.id for block in whole}) == 2
    assert all(block.id for block in whole)
    assert whole == stream == ollama


@every_format
async def test_d31_pairs_stay_consistent_in_the_history(wire: WireFormat) -> None:
    history = [
        *QUESTION,
        Message("assistant", (ToolUseBlock("", "x", {"n": 1}), ToolUseBlock("", "x", {"n": 2}))),
        Message("user", (ToolResultBlock("", "one"), ToolResultBlock("", "two"))),
    ]

    await request_for(wire, history)


@every_format
async def test_d32_the_same_id_twice_is_made_distinct(wire: WireFormat) -> None:
    twice = Answers(calls=(OSLO, msgspec.structs.replace(ROME, id=OSLO.id)))
    for call in ("converse", "converse_stream"):
        blocks = (await answered(wire, wire.answer(twice), call, tools=(WEATHER,))).unwrap().content
        results = [ToolResultBlock(block.id, block.input["city"]) for block in blocks]
        body = await request_for(
            wire, [*QUESTION, Message("assistant", blocks), Message("user", tuple(results))]
        )

        assert [block.input["city"] for block in blocks] == ["Oslo", "Rome"]
        text = msgspec.json.encode(body["messages"][2:]).decode()
        assert text.index("Oslo") < text.index("Rome")


async def test_d33_a_call_of_an_unknown_tool_is_passed_on_as_it_is() -> None:
    unknown = ToolUseBlock("a", "no_such_tool", {})
    for wire in FORMATS:
        reply = (await answered(wire, wire.answer(Answers(calls=(unknown, OSLO))), tools=(WEATHER,))).unwrap()
        assert reply.content == (unknown, OSLO)


@every_format
async def test_d34_a_streamed_reply_is_the_unstreamed_one_at_any_cut(wire: WireFormat) -> None:
    case = Answers(pieces=("é", "世"), calls=(OSLO, ROME))
    unstreamed = await answered(wire, wire.answer(case), tools=(WEATHER,))
    whole = b"".join(wire.stream(case))
    async with wire.server(
        *[wire.streaming(whole[:at], whole[at:]) for at in range(0, len(whole), 7)]
    ) as server:
        async with wire.provider(server) as provider:
            for _ in range(0, len(whole), 7):
                assert await ask(provider, "converse_stream", tools=(WEATHER,)) == unstreamed


# D. Retry, thinking


@every_format
async def test_d36_a_stream_that_fails_midway_is_not_tried_again(wire: WireFormat) -> None:
    broken = wire.streaming(*wire.text_events(["Hel"]), end="cut")
    deltas: list[str] = []
    async with wire.server(broken, wire.answer(TEXT)) as server, wire.provider(server) as provider:
        result = await ask(provider, "converse_stream", deltas=deltas)

    assert isinstance(result, Err)
    assert deltas == ["Hel"]
    assert len(server.requests_to(wire.path)) == 1


async def test_d37_thinking_goes_back_with_its_signature_and_never_without() -> None:
    signed = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    call = {"type": "tool_use", "id": "call_1", "name": "weather", "input": {"city": "Oslo"}}

    def answer(request: Received) -> Answer:
        if len(request.json()["messages"]) > 1:
            return json_answer(ANTHROPIC.whole(TEXT))
        unsigned = [
            {"type": "thinking", "thinking": "x"},
            {"type": "thinking", "thinking": "y", "signature": ""},
        ]
        return json_answer({**ANTHROPIC.whole(TEXT), "content": [*unsigned, signed, call]})

    async with FakeServer(answer) as server, ANTHROPIC.provider(server) as provider:
        reply = (await ask(provider, "converse", tools=(WEATHER,))).unwrap()
        results = Message("user", (ToolResultBlock("call_1", "rain"),))
        await provider.converse(
            [*QUESTION, Message("assistant", reply.content), results], (WEATHER,), OPTIONS
        )

    assert server.requests[1].json()["messages"][1]["content"] == [signed, call]


async def test_d37_a_signature_that_comes_after_its_thinking_is_kept() -> None:
    start = {"type": "thinking", "thinking": ""}
    deltas = [{"type": "thinking_delta", "thinking": "hm"}, {"type": "signature_delta", "signature": "c2ln"}]
    stop = ANTHROPIC.event({"type": "message_stop"})
    with_it, _ = await streamed(ANTHROPIC, *ANTHROPIC.block(start, *deltas, stop=True), stop)
    without, _ = await streamed(ANTHROPIC, *ANTHROPIC.block(start, deltas[0], stop=True), stop)

    [block] = with_it.unwrap().content
    assert msgspec.json.decode(block.data) == {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    assert without.unwrap().content == ()


@pytest.mark.parametrize("wire", [OPENAI, OLLAMA], ids=lambda wire: wire.name)
async def test_d38_a_think_tag_split_over_two_deltas_does_not_leak(wire: WireFormat) -> None:
    result, deltas = await streamed(wire, *wire.stream(Answers(pieces=("<think>x</th", "ink>ok"))))

    assert result.unwrap().content == (TextBlock("ok"),)
    assert deltas == ["ok"]


# E. Histories and keys


@every_format
async def test_d39_an_empty_answer_does_not_poison_the_next_request(wire: WireFormat) -> None:
    empty = (await answered(wire, wire.answer(Answers()))).unwrap()
    histories: list[Sequence[Message]] = [
        [*QUESTION, Message("assistant", empty.content), *QUESTION],
        [*QUESTION, Message("assistant", (TextBlock(""),)), *QUESTION],
        [*QUESTION, Message("assistant", " \n"), *QUESTION],
        Conversation([encode([*QUESTION, Message("assistant", empty.content)]), encode(QUESTION)]),
    ]

    assert empty.content == ()
    for history in histories:
        assert len((await request_for(wire, history))["messages"]) == 1


@every_format
async def test_d40_two_user_messages_in_a_row_become_one(wire: WireFormat) -> None:
    body = await request_for(wire, [Message("user", "first"), Message("user", "second")])

    assert len(body["messages"]) == 1
    assert "first\\n\\nsecond" in msgspec.json.encode(body["messages"]).decode()


@every_format
@pytest.mark.parametrize("results", [(), (ToolResultBlock("call_2", "sun"),)], ids=["none", "one of two"])
async def test_d41_no_request_leaves_with_an_unanswered_call(
    wire: WireFormat, results: tuple[Block, ...]
) -> None:
    cancelled = [
        *QUESTION,
        Message("assistant", (OSLO, ROME)),
        Message("user", (*results, TextBlock("Go on."))),
    ]
    body = await request_for(wire, cancelled)

    assert "was lost" in msgspec.json.encode(body).decode()


@every_format
async def test_d42_a_key_that_ends_with_a_newline_is_trimmed(wire: WireFormat) -> None:
    async with (
        wire.server(wire.answer(TEXT)) as server,
        wire.provider(server, api_key=f"{KEY}\n") as provider,
    ):
        (await ask(provider, "complete")).unwrap()

    assert server.requests_to(wire.path)[0].headers["authorization"] == f"Bearer {KEY}"


@every_format
async def test_d42_a_key_with_a_newline_inside_is_refused_without_being_shown(wire: WireFormat) -> None:
    async with wire.server(Answer()) as server, wire.provider(server, api_key=f"{KEY}\nx: y") as provider:
        failure = reason(await ask(provider, "complete"))

    assert isinstance(failure, InvalidOptions)
    assert KEY not in repr(failure)
    assert server.requests == []


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=lambda wire: wire.name)
async def test_d43_an_empty_key_is_a_missing_one(wire: WireFormat) -> None:
    async with wire.server(Answer()) as server:
        async with wire.provider(server, api_key="", needs_key=True) as provider:
            failure = reason(await ask(provider, "complete"))

    assert isinstance(failure, MissingApiKey)
    assert server.requests == []


# F. Ollama and local servers


async def test_d44_a_prompt_that_the_server_cut_is_a_warning() -> None:
    long = [Message("user", "word " * 15_000)]
    case = Answers(pieces=("a",), usage=Usage(input_tokens=2051, output_tokens=1))
    async with OLLAMA.server(OLLAMA.answer(case)) as server, OLLAMA.provider(server) as provider:
        for stream in (False, True):
            call = (
                provider.converse_stream(long, (), OPTIONS, lambda _: None)
                if stream
                else provider.converse(long, (), OPTIONS)
            )
            [warning] = (await call).unwrap().warnings
            assert "2051" in warning

    body = server.requests_to("/api/chat")[0].json()
    assert body["options"]["num_ctx"] >= 15_000
    assert body["truncate"] is False


async def test_d44_a_persons_own_num_ctx_is_kept() -> None:
    options = Options(model="m", extra={"options": {"num_ctx": 512}})
    async with OLLAMA.server(OLLAMA.answer(TEXT)) as server, OLLAMA.provider(server) as provider:
        (await provider.complete([Message("user", "word " * 15_000)], options)).unwrap()

    assert server.requests_to("/api/chat")[0].json()["options"] == {"num_ctx": 512}


async def test_d45_a_model_without_tools_or_thinking() -> None:
    no_tools = json_answer({"error": "registry.ollama.ai/library/m does not support tools"}, status=400)
    no_thinking = json_answer({"error": '"m" does not support thinking'}, status=400)

    assert isinstance(reason(await answered(OLLAMA, no_tools, tools=(WEATHER,))), ToolsUnsupported)
    assert reason(await answered(OLLAMA, no_thinking, tools=(WEATHER,))) == InvalidOptions(
        detail='"m" does not support thinking'
    )


@pytest.mark.parametrize("path", ["/api/chat", "/api/show"])
async def test_d46_a_model_that_is_not_there_is_said_in_the_servers_words(path: str) -> None:
    said = 'model "m" not found, try pulling it first'
    missing = json_answer({"error": said}, status=404)
    routes = {"/api/show": json_answer({}), path: missing}
    async with FakeServer(routes=routes) as server, OLLAMA.provider(server) as provider:
        failure = reason(await ask(provider, "complete"))

    assert failure == HttpStatus(status=404, detail=said)


@every_format
async def test_d47_a_proxy_of_the_environment_sees_nothing_of_a_local_model(
    wire: WireFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with FakeServer() as proxy, wire.server(wire.answer(TEXT)) as server:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        async with wire.provider(server) as provider:
            (await ask(provider, "converse_stream", tools=(WEATHER,))).unwrap()

    assert proxy.requests == []


@every_format
async def test_d48_empty_deltas_are_neither_delivered_nor_stored(wire: WireFormat) -> None:
    case = Answers(pieces=("", "", ""), calls=(OSLO,))
    result, deltas = await streamed(wire, *wire.stream(case))

    assert result.unwrap().content == (OSLO,)
    assert deltas == []


# G. Histories that were broken elsewhere


@every_format
async def test_d52_a_result_whose_call_was_trimmed_away_is_left_out(wire: WireFormat) -> None:
    cut = [
        Message("assistant", "Once upon a time"),
        Message("user", (ToolResultBlock("gone", "rain"),)),
        Message("assistant", "It rains."),
        Message("user", "Thanks."),
        Message("assistant", (OSLO,)),
        Message("user", (ToolResultBlock("call_1", "rain"), ToolResultBlock("call_2", "sun"))),
    ]
    text = msgspec.json.encode(await request_for(wire, cut)).decode()

    assert "Once" not in text
    assert "gone" not in text
    assert "sun" not in text
    assert "rain" in text


@every_format
async def test_d63_half_a_character_is_replaced_before_it_is_sent(wire: WireFormat) -> None:
    history = [
        Message("user", "a\ud83db"),
        Message("assistant", (TextBlock("c\ud83d"), ToolUseBlock("call_1", "x", {"f\ud83d": ["g\ud83d"]}))),
        Message("user", (ToolResultBlock("call_1", "d\ud83d"), TextBlock("e\ud83d"))),
    ]
    tools = (Tool("x", "h\ud83d", {"properties": {"f": {"title": "i\ud83d"}}}),)
    async with wire.server(wire.answer(TEXT)) as server, wire.provider(server) as provider:
        options = msgspec.structs.replace(OPTIONS, system="j\ud83d")
        (await provider.converse(history, tools, options)).unwrap()
    body = server.requests_to(wire.path)[0].json()
    wire.checks(body)

    text = msgspec.json.encode(body).decode()
    assert [letter for letter in "abcdefghij" if f"{letter}\ufffd" in text] == list("acdefghij")


@every_format
async def test_d72_a_schema_is_sent_with_its_definitions(wire: WireFormat) -> None:
    schema = {"$defs": {"n": {"type": "integer"}}, "properties": {"n": {"$ref": "#/$defs/n"}}}
    body = await request_for(wire, QUESTION, (Tool("x", "does x", schema),))

    [tool] = body["tools"]
    sent = tool["input_schema"] if wire is ANTHROPIC else tool["function"]["parameters"]
    assert sent == {**schema, "type": "object"}


@every_format
@pytest.mark.parametrize("schema", [{}, {"properties": {}}, {"type": "object"}, {"type": None}])
async def test_d73_a_schema_without_its_type_is_completed(
    wire: WireFormat, schema: dict[str, object]
) -> None:
    body = await request_for(wire, QUESTION, (Tool("x", None, schema),))

    [tool] = body["tools"]
    sent = tool["input_schema"] if wire is ANTHROPIC else tool["function"]["parameters"]
    assert sent == {"type": "object", "properties": {}}
