"""A history that outgrows the model's context: the oldest whole turns are left out, and it is said (S7)."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead import telemetry
from mead.core.conversation import EncodedMessages, encode, encode_user
from mead.core.messages import Message, ToolResultBlock, ToolUseBlock
from mead.core.options import Options, TurnOptions
from mead.core.reasons import ContextOverflow
from mead.core.result import Err
from mead.core.turns import NoHub, Turn
from mead.router import route
from mead.router.window import ANSWER_TOKENS, BYTES_PER_TOKEN, BYTES_PER_TOKEN_AT_MOST, Fitted, fit
from mead.testing import ScriptedProvider
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
