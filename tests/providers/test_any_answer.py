"""Whatever a server says, an adapter gives a well-formed reply or a reason; it never raises."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mead.core.messages import Block, Message, TextBlock, ToolResultBlock, ToolUseBlock, text_of
from mead.core.reasons import (
    HttpStatus,
    InvalidOptions,
    MalformedResponse,
    ToolsUnsupported,
    Transport,
)
from mead.core.result import Err
from mead.testing.providers import OSLO, ROME, TEXT, WEATHER, Answers
from providers.formats import FORMATS, OPTIONS, Replay, WireFormat, adapter
from providers.suites import QUESTION, ask

every_format = pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.name)
PLAIN: list[Any] = [None, True, False, 0, -1, 7, 1.5, 2**70, "", " ", "text", "😀", "{", "null"]
NESTED: list[Any] = [[], [None], [[]], {}, {"text": "a"}, {"type": "text"}, [{"type": "text", "text": 5}]]
odd_values = st.sampled_from([*PLAIN, *NESTED, {"error": "x"}, ["a"], [{}], [1, "b"]])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of everything inside a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    return [place for key, item in inside for place in [(*path, key), *places(item, (*path, key))]]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The value with another one at a place; `...` takes the place away."""
    if not path:
        return new
    copy = value.copy()
    inner = changed(copy[path[0]], path[1:], new)
    if inner is ...:
        del copy[path[0]]
    else:
        copy[path[0]] = inner
    return copy


def is_well_formed(content: tuple[Block, ...]) -> bool:
    ids = [block.id for block in content if isinstance(block, ToolUseBlock)]
    texts = [block.text for block in content if isinstance(block, TextBlock)]
    return len({*ids}) == len(ids) and all(ids) and all(texts)


async def judge(wire: WireFormat, call: str, *pieces: bytes) -> None:
    """Asserts what must hold for any answer."""
    deltas: list[str] = []
    result = await ask(adapter(wire, Replay(200, *pieces)), call, tools=(WEATHER,), deltas=deltas)
    assert all(deltas)
    if isinstance(result, Err):
        kinds = (MalformedResponse, Transport, HttpStatus, InvalidOptions, ToolsUnsupported)
        assert isinstance(result.reason, kinds)
        return
    reply = result.value
    assert is_well_formed(reply.content)
    assert reply.stop_reason in ("end_turn", "tool_use", "max_tokens")
    assert all(count is None or count >= 0 for count in msgspec.structs.astuple(reply.usage))
    if call == "converse_stream":
        assert "".join(deltas) == text_of(reply.content)
    await assert_it_can_be_sent_back(reply.content)


async def assert_it_can_be_sent_back(content: tuple[Block, ...]) -> None:
    results = [ToolResultBlock(block.id, "done") for block in content if isinstance(block, ToolUseBlock)]
    history = [*QUESTION, Message("assistant", content), Message("user", (*results, TextBlock("Go on.")))]
    for wire in FORMATS:
        replay = Replay(200, msgspec.json.encode(wire.whole(TEXT)))
        (await adapter(wire, replay).converse(history, (WEATHER,), OPTIONS)).unwrap()
        wire.checks(replay.bodies[0])


CASE = Answers(pieces=("One ", "two."), calls=(OSLO, ROME))


@every_format
@given(data=st.data())
@settings(max_examples=120)
def test_an_answer_with_an_odd_value_in_any_place(wire: WireFormat, data: st.DataObject) -> None:
    answer: Any = wire.whole(CASE)
    for _ in range(data.draw(st.integers(1, 3))):
        if not isinstance(answer, dict) or not answer:
            break
        new = data.draw(odd_values | st.just(...))
        answer = changed(answer, data.draw(st.sampled_from(places(answer))), new)

    asyncio.run(judge(wire, "converse", msgspec.json.encode(answer)))


@every_format
@given(data=st.data())
@settings(max_examples=120)
def test_a_stream_with_an_odd_value_in_any_place(wire: WireFormat, data: st.DataObject) -> None:
    events = wire.stream(CASE)
    at = data.draw(st.integers(0, len(events) - 1))
    prefix, brace, rest = events[at].partition(b"{")
    if brace:
        event = msgspec.json.decode(brace + rest)
        event = changed(
            event, data.draw(st.sampled_from(places(event))), data.draw(odd_values | st.just(...))
        )
        ending = rest[len(rest.rstrip()) :]
        events[at] = prefix + msgspec.json.encode(event) + ending

    asyncio.run(judge(wire, "converse_stream", *events))


@every_format
@given(data=st.data())
@settings(max_examples=100)
def test_a_stream_whose_events_come_in_another_order(wire: WireFormat, data: st.DataObject) -> None:
    events = data.draw(st.permutations(wire.stream(CASE)))
    asyncio.run(judge(wire, "converse_stream", *events))


@every_format
@given(body=st.binary(max_size=40), call=st.sampled_from(["converse", "converse_stream"]))
@settings(max_examples=100)
def test_any_bytes(wire: WireFormat, body: bytes, call: str) -> None:
    asyncio.run(judge(wire, call, body))
    asyncio.run(judge(wire, call, b"data: ", body, b"\n\ndata: [DONE]\n\n"))
