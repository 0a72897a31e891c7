"""Recorded exchanges of real servers, replayed through the adapters: whole, in pieces, cut short, sent back.

The recordings lie beside the repository, in `shared/wire`; without them these tests are skipped.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from mead.core.messages import Message, TextBlock, ToolResultBlock, ToolUseBlock, text_of
from mead.core.reasons import HttpStatus, InvalidOptions, ToolsUnsupported
from mead.core.result import Err, Result
from mead.providers.protocol import Reply
from mead.testing import Answer
from mead.testing.providers import TEXT, WEATHER
from providers.formats import ANTHROPIC, FORMATS, OPENAI, OPTIONS, Replay, WireFormat, adapter
from providers.suites import QUESTION, ask

WIRE = Path(__file__).parents[2].parent / "shared" / "wire"
MOST_CUTS = 2500
"""A recording is cut at every byte, a long one at this many."""

pytestmark = [
    pytest.mark.wire,
    pytest.mark.skipif(not WIRE.is_dir(), reason="the recordings are not beside the repository"),
]


class Exchange(NamedTuple):
    """One recorded request with its answer."""

    name: str
    wire: WireFormat
    request: Any
    status: int
    body: bytes
    is_stream: bool

    @property
    def is_complete(self) -> bool:
        """Whether the server got to say all: two streams hold an error, and one server was killed."""
        return "server-killed" not in self.name and b'data: {"error"' not in self.body


def recorded() -> Iterator[Exchange]:
    for file in sorted(WIRE.glob("*/*/*.json")):
        wire = {"openai-chat": OPENAI, "anthropic-messages": ANTHROPIC}.get(file.parent.name)
        exchange = msgspec.json.decode(file.read_bytes())
        if wire is None or exchange["request"]["path"] != wire.path:
            continue
        response = exchange["response"]
        body = msgspec.json.encode(response.get("body"))
        if "body_file" in response:
            body = (file.parent / response["body_file"]).read_bytes()
        name = str(file.relative_to(WIRE).with_suffix(""))
        request = exchange["request"].get("body")
        yield Exchange(name, wire, request, response["status"], body, "body_file" in response)
    for stem, wire in (("openai_chat", OPENAI), ("anthropic", ANTHROPIC)):
        file = WIRE / "vendor" / f"{stem}.jsonl.gz"
        for line in gzip.decompress(file.read_bytes()).splitlines() if file.exists() else ():
            row = msgspec.json.decode(line)
            text = row.get("text")
            body = text.encode() if text is not None else msgspec.json.encode(row["json"])
            name = f"{row['vendor']}/{row['id']}"
            yield Exchange(name, wire, row["request"], row["status"], body, text is not None)


EXCHANGES = list(recorded())
ANSWERED = [one for one in EXCHANGES if one.status == 200 and one.is_complete]
STREAMS = [one for one in ANSWERED if one.is_stream]


def each(exchanges: Sequence[Exchange]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("exchange", exchanges, ids=lambda exchange: exchange.name)


async def replayed(exchange: Exchange, *pieces: bytes) -> tuple[Result[Reply, Any], list[str]]:
    """What the adapter makes of these bytes, and its deltas."""
    deltas: list[str] = []
    provider = adapter(exchange.wire, Replay(exchange.status, *pieces))
    call = "converse_stream" if exchange.is_stream else "converse"
    return await ask(provider, call, tools=(WEATHER,), deltas=deltas), deltas


# What the recording says, read without the adapters' help


def events(stream: bytes) -> list[tuple[int, Any]]:
    """Where each event of a stream ends, and its data."""
    found, at = [], 0
    for part in stream.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]:
        at += len(part) + 2
        data = b"\n".join([line[5:].strip() for line in part.split(b"\n") if line.startswith(b"data:")])
        if data.startswith(b"{"):
            found.append((at, msgspec.json.decode(data)))
        elif data:
            found.append((at, data.decode()))
    return found


def end_of(exchange: Exchange) -> int:
    """Where the event ends with which the answer is complete."""
    for at, event in events(exchange.body):
        if event == "[DONE]" or (isinstance(event, dict) and event.get("type") == "message_stop"):
            return at
        choices = event.get("choices") if isinstance(event, dict) else None
        if choices and choices[0].get("finish_reason"):
            return at
    raise AssertionError(f"{exchange.name} has no end")


def said_usage(exchange: Exchange) -> tuple[int | None, int | None]:
    """Input and output tokens as the recording counts them."""
    usages: list[dict[str, Any]] = []
    for part in (
        [event for _, event in events(exchange.body)]
        if exchange.is_stream
        else [msgspec.json.decode(exchange.body)]
    ):
        if isinstance(part, dict):
            places = (part, part.get("message") or {}, part.get("x_groq") or {})
            usages += [place["usage"] for place in places if isinstance(place.get("usage"), dict)]
    known: dict[str, Any] = {}
    for usage in usages:
        known |= {name: value for name, value in usage.items() if value is not None}
    if exchange.wire is OPENAI:
        return known.get("prompt_tokens"), known.get("completion_tokens")
    cached = known.get("cache_creation_input_tokens", 0) + known.get("cache_read_input_tokens", 0)
    return known.get("input_tokens", 0) + cached, known.get("output_tokens")


def said_text(exchange: Exchange) -> str:
    """The answer's text."""
    texts: list[Any] = []
    for part in (
        [event for _, event in events(exchange.body)]
        if exchange.is_stream
        else [msgspec.json.decode(exchange.body)]
    ):
        if not isinstance(part, dict):
            continue
        for choice in (part.get("choices") or [])[:1]:
            said = choice.get("delta") or choice.get("message") or {}
            texts.append(said.get("content") or said.get("refusal"))
        texts += [block.get("text") for block in part.get("content") or () if block["type"] == "text"]
        for block in (part.get("content_block"), part.get("delta")):
            texts.append((block or {}).get("text"))
    return "".join([text for text in texts if isinstance(text, str)])


def said_calls(exchange: Exchange) -> list[tuple[str, object]]:
    """The names and the arguments of an unstreamed answer's calls."""
    body = msgspec.json.decode(exchange.body)
    if exchange.wire is ANTHROPIC:
        return [(b["name"], b["input"]) for b in body["content"] if b["type"] == "tool_use"]
    calls = [call["function"] for call in body["choices"][0]["message"].get("tool_calls") or ()]
    return [(call["name"], arguments(call.get("arguments"))) for call in calls]


def arguments(text: str | None) -> object:
    """Arguments that the token limit cut off are none."""
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}


# Replays


def test_there_are_recordings_of_every_kind() -> None:
    assert len(EXCHANGES) > 200
    assert {one.wire.name for one in STREAMS} == {"openai", "anthropic"}


@each([one for one in EXCHANGES if one.status != 200])
async def test_an_error_is_a_reason_of_the_contract(exchange: Exchange) -> None:
    result, deltas = await replayed(exchange, exchange.body)

    assert isinstance(result, Err)
    if exchange.status == 400:
        assert isinstance(result.reason, (InvalidOptions, ToolsUnsupported))
    else:
        assert isinstance(result.reason, HttpStatus)
        assert result.reason.status == exchange.status
    assert result.reason.detail
    assert deltas == []


@each(ANSWERED)
async def test_an_answer_is_what_the_vendor_said(exchange: Exchange) -> None:
    result, deltas = await replayed(exchange, exchange.body)
    reply = result.unwrap()

    assert text_of(reply.content).strip() == said_text(exchange).strip()
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == said_usage(exchange)
    calls = [block for block in reply.content if isinstance(block, ToolUseBlock)]
    assert len({call.id for call in calls}) == len(calls)
    if exchange.is_stream:
        assert "".join(deltas) == text_of(reply.content)
        assert all(deltas)
    else:
        assert [(call.name, call.input) for call in calls] == said_calls(exchange)


@each(ANSWERED)
async def test_an_answer_comes_over_a_connection_as_well(exchange: Exchange) -> None:
    async with exchange.wire.server(Answer(body=exchange.body, chunked=exchange.is_stream)) as server:
        async with exchange.wire.provider(server) as provider:
            deltas: list[str] = []
            call = "converse_stream" if exchange.is_stream else "converse"
            result = await ask(provider, call, tools=(WEATHER,), deltas=deltas)
            completion = await ask(provider, "complete")

    expected, expected_deltas = await replayed(exchange, exchange.body)
    assert text_of(result.unwrap().content) == text_of(expected.unwrap().content)
    assert (result.unwrap().usage, deltas) == (expected.unwrap().usage, expected_deltas)
    assert exchange.is_stream or completion.unwrap().text == text_of(expected.unwrap().content)


@each(STREAMS)
async def test_a_stream_in_two_pieces_is_the_same(exchange: Exchange) -> None:
    expected = await replayed(exchange, exchange.body)
    body = exchange.body

    assert await replayed(exchange, *[body[at : at + 1] for at in range(len(body))]) == expected
    for cut in cuts(exchange):
        assert await replayed(exchange, body[:cut], body[cut:]) == expected, f"cut at byte {cut}"


@each(STREAMS)
async def test_a_stream_that_is_cut_short_is_a_failure(exchange: Exchange) -> None:
    whole, _ = await replayed(exchange, exchange.body)
    end = end_of(exchange)
    for cut in cuts(exchange):
        result, _ = await replayed(exchange, exchange.body[:cut])
        if cut < end:
            assert isinstance(result, Err), f"cut at byte {cut}"
        else:
            assert result.unwrap().content == whole.unwrap().content, f"cut at byte {cut}"


@each([one for one in EXCHANGES if one.is_stream and b'data: {"error"' in one.body])
async def test_an_error_inside_a_stream_is_a_failure_in_the_servers_words(exchange: Exchange) -> None:
    result, _ = await replayed(exchange, exchange.body)

    assert isinstance(result, Err)
    assert (result.reason.detail or "").startswith("Tool c")
    for cut in cuts(exchange):
        assert isinstance((await replayed(exchange, exchange.body[:cut]))[0], Err)


@each([one for one in EXCHANGES if "server-killed" in one.name])
async def test_a_stream_of_a_server_that_was_killed_is_a_failure(exchange: Exchange) -> None:
    result, deltas = await replayed(exchange, exchange.body)
    cut = exchange.wire.streaming(exchange.body, end="cut")
    async with exchange.wire.server(cut) as server, exchange.wire.provider(server) as provider:
        over_a_connection = await ask(provider, "converse_stream")

    assert getattr(getattr(result, "reason", None), "cause", None) == "cut"
    assert getattr(getattr(over_a_connection, "reason", None), "cause", None) == "cut"
    assert deltas


@each(ANSWERED)
async def test_an_answer_can_be_sent_back_in_every_format(exchange: Exchange) -> None:
    result, _ = await replayed(exchange, exchange.body)
    content = result.unwrap().content
    results = [ToolResultBlock(b.id, "done") for b in content if isinstance(b, ToolUseBlock)]
    history = [*QUESTION, Message("assistant", content), Message("user", (*results, TextBlock("Go on.")))]

    for wire in FORMATS:
        replay = Replay(200, msgspec.json.encode(wire.whole(TEXT)))
        (await adapter(wire, replay).converse(history, (WEATHER,), OPTIONS)).unwrap()
        wire.checks(replay.bodies[0])


@each([one for one in ANSWERED if one.wire is ANTHROPIC and not one.is_stream])
async def test_opaque_blocks_go_back_to_their_vendor_unchanged(exchange: Exchange) -> None:
    result, _ = await replayed(exchange, exchange.body)
    content = result.unwrap().content
    results = [ToolResultBlock(b.id, "done") for b in content if isinstance(b, ToolUseBlock)]
    history = [*QUESTION, Message("assistant", content), Message("user", (*results, TextBlock("Go on.")))]
    replay = Replay(200, msgspec.json.encode(ANTHROPIC.whole(TEXT)))
    (await adapter(ANTHROPIC, replay).converse(history, (WEATHER,), OPTIONS)).unwrap()

    [_, sent, *_] = replay.bodies[0]["messages"]
    blocks = [] if isinstance(sent["content"], str) else sent["content"]
    opaque = [b for b in blocks if b["type"] not in ("text", "tool_use")]
    said = msgspec.json.decode(exchange.body)["content"]
    assert opaque == [b for b in said if b["type"] not in ("text", "tool_use")]


@each([one for one in ANSWERED if "error-missing" not in one.name])
def test_the_checkers_accept_what_the_vendors_accepted(exchange: Exchange) -> None:
    exchange.wire.checks(exchange.request, strict=False)  # type: ignore[call-arg]  # each of them has it


def cuts(exchange: Exchange) -> list[int]:
    """Every byte of a recording; of a long one some, and those around the ends of its events."""
    size = len(exchange.body)
    step = max(1, size // MOST_CUTS)
    around = [at + shift for at, _ in events(exchange.body)[-6:] for shift in range(-3, 4)]
    return sorted({cut for cut in [*range(1, size, step), *around] if 0 < cut < size})
