"""A history that outgrows the model's context: the oldest whole turns are left out, and it is said (S7)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead import telemetry
from mead.core.conversation import EncodedMessages, encode, encode_user
from mead.core.messages import (
    Block,
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    blocks_of,
)
from mead.core.options import Options, TurnOptions
from mead.core.reasons import ContextOverflow
from mead.core.result import Err
from mead.core.turns import NoHub, Turn
from mead.mcp.functions import tool
from mead.mcp.hub import ToolHub
from mead.providers.protocol import Reply
from mead.router import route
from mead.router.window import (
    ANSWER_TOKENS,
    BYTES_PER_TOKEN,
    BYTES_PER_TOKEN_AT_MOST,
    Fitted,
    fit,
    shorten_results,
)
from mead.testing import ScriptedProvider, calls
from support import heard, newest, past, runtime, slots

LONG = "a turn of some length " * 20  # 440 bytes
LOCAL = TurnOptions(route="local")


def piece(size: int) -> EncodedMessages:
    return EncodedMessages(b"x" * size, plain=True, closed=True)


@given(
    st.lists(st.integers(1, 2_000), max_size=30),
    st.integers(1, 3_000),
    st.integers(64, 8_192),
    st.one_of(st.none(), st.integers(1, 10_000)),
)
def test_what_is_kept_fits_and_is_the_newest_part(
    sizes: list[int], size: int, context: int, max_tokens: int | None
) -> None:
    history = [piece(length) for length in sizes]

    fitted = fit(history, piece(size), context_tokens=context, options=Options(max_tokens=max_tokens))

    if isinstance(fitted, ContextOverflow):
        assert size > context * BYTES_PER_TOKEN_AT_MOST
        return
    assert list(fitted.history) == history[fitted.left_out :]
    answer = min(max_tokens or ANSWER_TOKENS, context // 2)
    room = (context - answer) * BYTES_PER_TOKEN - size
    kept = sum(sizes[fitted.left_out :])
    assert kept <= max(room, 0)
    if fitted.left_out:
        assert kept + sizes[fitted.left_out - 1] > room, "nothing is left out without need"


async def test_the_oldest_turns_are_left_out_and_the_answer_and_the_event_say_so() -> None:
    provider = ScriptedProvider("ok", context_tokens=700)
    turns = [*[past(f"{number} {LONG}", "answer") for number in range(6)], newest("and now?")]
    with heard(telemetry.ROUTE) as events:
        result = (await route(turns, None, LOCAL, slots(provider), NoHub())).unwrap()

    shown = [str(message.content)[:1] for message in provider.requests[0].messages[:-1:2]]
    assert 0 < len(shown) < 6
    assert shown == [str(number) for number in range(6 - len(shown), 6)]
    assert result.left_out == 6 - len(shown) == events[0].metadata["left_out"]
    (warning,) = result.warnings
    assert warning == f"{result.left_out} earlier turns were left out: the model's context holds 700 tokens."


async def test_a_tool_call_is_never_parted_from_its_result() -> None:
    exchange = [
        Message("user", "look"),
        Message("assistant", (ToolUseBlock("a", "look", {"at": LONG}),)),
        Message("user", (ToolResultBlock("a", LONG),)),
        Message("assistant", "seen"),
    ]
    tools = Turn(messages=encode(exchange), route="local", label="shareable")
    for context in range(300, 1200, 50):
        provider = ScriptedProvider("ok", context_tokens=context)
        await route([tools, past("b", "c"), newest("d")], None, LOCAL, slots(provider), NoHub())

        messages = provider.requests[0].messages
        assert messages[0].content in ("look", "b", "d")
        assert [m.role for m in messages] == [("user", "assistant")[n % 2] for n in range(len(messages))]


async def test_a_newest_turn_that_cannot_fit_alone_is_refused_and_nothing_is_sent() -> None:
    provider = ScriptedProvider(context_tokens=100)

    result = await route([newest("x" * 1000)], None, LOCAL, slots(provider), NoHub())

    assert isinstance(result, Err)
    assert isinstance(result.reason, ContextOverflow)
    assert "100" in (result.reason.detail or "")
    assert provider.requests == []


async def test_s7_a_session_goes_on_for_ever_in_a_short_context() -> None:
    provider = ScriptedProvider(otherwise=LONG, context_tokens=600)
    async with runtime(provider) as opened:
        session_id = await opened.start_session()
        for number in range(20):
            answer = (await opened.submit_turn(session_id, f"turn {number}", route="local")).unwrap()

    assert answer.left_out > 15
    assert max(len(request.text) for request in provider.requests) < 600 * BYTES_PER_TOKEN


async def test_a_provider_that_does_not_know_its_context_is_sent_everything() -> None:
    provider = ScriptedProvider("ok")
    turns = [*[past(LONG, "answer") for _ in range(50)], newest("and now?")]

    result = (await route(turns, None, LOCAL, slots(provider), NoHub())).unwrap()

    assert result.left_out == 0
    assert len(provider.requests[0].messages) == 101


@pytest.mark.parametrize("context", [256, 512])
def test_s7_the_embedded_model_keeps_answering(context: int, model_folder: object) -> None:
    from pathlib import Path

    from mead.providers.embedded import EmbeddedProvider

    assert isinstance(model_folder, Path)
    provider = EmbeddedProvider(folder=model_folder, threads=1, context_tokens=context, parallel=1)

    async def talk() -> list[int]:
        left_out = []
        async with runtime(provider) as opened:
            session_id = await opened.start_session(turn_timeout_s=120)
            for number in range(4):
                text = f"{number}: tell me something about lighthouses, ships and storms. " * 3
                options = Options(max_tokens=16)
                turn = await opened.submit_turn(session_id, text, route="local", options=options)
                left_out.append(turn.unwrap().left_out)
        return left_out

    assert asyncio.run(talk())[-1] > 0 or context > 256


def test_nothing_to_leave_out_is_no_work() -> None:
    assert fit([], encode_user("x"), context_tokens=64, options=Options()) == Fitted([], 0)


# Attachments and results


@pytest.mark.parametrize(
    "block", [ImageBlock("image/png", b"x" * 150_000), DocumentBlock("application/pdf", b"x" * 150_000)]
)
async def test_an_attachment_counts_as_what_a_model_makes_of_it_and_not_as_text(block: Block) -> None:
    provider = ScriptedProvider("a cat", context_tokens=8_192)
    turn = Turn(messages=encode([Message("user", (TextBlock("what is it?"), block))]), label="local_only")

    answer = (await route([past("a", "b"), turn], None, LOCAL, slots(provider), NoHub())).unwrap()

    assert (answer.text, answer.left_out) == ("a cat", 0)


def test_an_attached_text_counts_as_text() -> None:
    text = DocumentBlock("text/plain", b"x" * 150_000)
    attached = encode([Message("user", (text,))])

    assert 150_000 < attached.size.text_bytes < 150_200
    assert isinstance(fit([], attached, context_tokens=8_192, options=Options()), ContextOverflow)


@tool(effect=True)
def fetch(number: int = 0) -> str:
    "Fetches a page."
    return f"head {number} " + 'a "word" ' * 4_000 + f"tail {number}"


@tool(effect=False)
def short() -> str:
    "Says a word."
    return "a word"


@pytest.mark.parametrize("names", [["fetch"], ["fetch", "fetch"], ["short", "fetch"]], ids=" ".join)
async def test_s7_a_long_result_is_cut_to_what_fits_and_the_turn_goes_on(names: list[str]) -> None:
    asked = tuple([ToolUseBlock(f"c{number}", name, {}) for number, name in enumerate(names)])
    provider = ScriptedProvider(Reply(content=asked, stop_reason="tool_use"), "done", context_tokens=2_000)
    options = TurnOptions(route="local", tools="effect")

    answer = (await route([newest("go")], None, options, slots(provider), ToolHub([fetch, short]))).unwrap()

    results = blocks_of(provider.requests[1].messages[-1])
    assert answer.text == "done"
    assert len(msgspec.json.encode(provider.requests[1].messages)) < 2_000 * BYTES_PER_TOKEN
    for name, result in zip(names, results, strict=True):
        assert isinstance(result, ToolResultBlock)
        if name == "short":
            assert result.content == "a word"
        else:
            assert result.content.startswith("head 0 a")
            assert result.content.endswith("tail 0")
            assert "characters are left out here" in result.content
            assert len(result.content) > 500


@given(st.lists(st.text(max_size=3_000), min_size=1, max_size=4), st.integers(300, 3_000))
def test_results_are_cut_only_where_they_must_be(texts: list[str], context: int) -> None:
    ids = [str(number) for number in range(len(texts))]
    messages = [
        Message("user", "go"),
        Message("assistant", tuple([ToolUseBlock(call_id, "f", {}) for call_id in ids])),
        Message("user", tuple(map(ToolResultBlock, ids, texts))),
    ]
    options = Options()
    size = len(encode(messages).data)
    room = (context - min(ANSWER_TOKENS, context // 2)) * BYTES_PER_TOKEN

    cut = shorten_results(messages, context_tokens=context, options=options)

    if size <= room:
        assert cut == messages
    else:
        # A note has a length of its own, which alone may be more than there is room for.
        assert len(encode(cut).data) <= max(room, 1_400)


async def test_a_provider_that_answers_with_the_results_gets_them_whole() -> None:
    provider = ScriptedProvider(calls("fetch"), "done", context_tokens=2_000)
    provider.answers_with_results = True  # type: ignore[attr-defined]  # what the embedded model says
    options = TurnOptions(route="local", tools="effect")

    (await route([newest("go")], None, options, slots(provider), ToolHub([fetch]))).unwrap()

    (result,) = blocks_of(provider.requests[1].messages[-1])
    assert result == ToolResultBlock("call_fetch", fetch())
