"""No list of messages can make a provider refuse a request: it is repaired before it is encoded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mead.core.messages import (
    Block,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    blocks_of,
)
from mead.core.repair import UNKNOWN_OUTCOME, repair

CALL = ToolUseBlock("a", "clock", {})
RESULT = ToolResultBlock("a", "noon")


def well_formed(messages: list[Message]) -> None:
    """Raises `AssertionError` for what a strict provider would refuse."""
    open_calls: list[str] = []
    seen: set[str] = set()
    for number, message in enumerate(messages):
        blocks = blocks_of(message)
        assert message.role == ("user", "assistant")[number % 2], "roles alternate, the user begins"
        assert blocks, "no content is empty"
        for block in blocks:
            assert not isinstance(block, TextBlock) or block.text.strip(), "no text is blank"
        results = [block.tool_use_id for block in blocks if isinstance(block, ToolResultBlock)]
        assert results == open_calls, "every call is answered in the next message, in order"
        kinds = [isinstance(block, ToolResultBlock) for block in blocks]
        assert kinds == sorted(kinds, reverse=True), "results come first"
        open_calls = [block.id for block in blocks if isinstance(block, ToolUseBlock)]
        assert message.role == "assistant" or not open_calls
        for call_id in open_calls:
            assert call_id, "a call has an id"
            assert call_id not in seen, "ids are distinct"
            seen.add(call_id)
    assert not open_calls, "no call is left open"


def test_what_is_well_formed_stays_as_it_is() -> None:
    messages = [
        Message("user", "what time is it?"),
        Message("assistant", (TextBlock("let me see"), CALL)),
        Message("user", (RESULT,)),
        Message("assistant", "noon"),
    ]

    assert repair(messages) == messages


def test_d40_neighbours_of_one_role_become_one_message() -> None:
    repaired = repair([Message("user", "one"), Message("user", "two"), Message("assistant", "three")])

    assert repaired == [Message("user", "one\n\ntwo"), Message("assistant", "three")]


def test_d39_an_empty_answer_leaves_no_empty_content() -> None:
    repaired = repair([Message("user", "one"), Message("assistant", ()), Message("user", "two")])

    assert repaired == [Message("user", "one\n\ntwo")]
    assert repair([Message("user", "one"), Message("assistant", (TextBlock("  "),))]) == [
        Message("user", "one")
    ]


def test_d41_d50_a_call_without_a_result_gets_one_that_says_so() -> None:
    repaired = repair([Message("user", "go"), Message("assistant", (CALL,)), Message("user", "and?")])

    assert repaired[2] == Message(
        "user", (ToolResultBlock("a", UNKNOWN_OUTCOME, is_error=True), TextBlock("and?"))
    )
    assert repair([Message("user", "go"), Message("assistant", (CALL,))])[2] == Message(
        "user", (ToolResultBlock("a", UNKNOWN_OUTCOME, is_error=True),)
    )


def test_d52_a_result_without_its_call_goes() -> None:
    assert repair([Message("user", (RESULT,)), Message("assistant", "noon")]) == []
    assert repair([Message("user", (RESULT, TextBlock("so?"))), Message("assistant", "noon")]) == [
        Message("user", "so?"),
        Message("assistant", "noon"),
    ]


def test_d32_equal_ids_are_told_apart_with_their_results() -> None:
    twice = Message("assistant", (CALL, ToolUseBlock("a", "calendar", {})))
    results = Message("user", (RESULT, ToolResultBlock("a", "May")))

    repaired = repair([Message("user", "go"), twice, results])

    calls = [block for block in blocks_of(repaired[1]) if isinstance(block, ToolUseBlock)]
    answers = [block for block in blocks_of(repaired[2]) if isinstance(block, ToolResultBlock)]
    assert [call.id for call in calls] == ["a", "a_2"]
    assert [(answer.tool_use_id, answer.content) for answer in answers] == [("a", "noon"), ("a_2", "May")]


@pytest.mark.parametrize("text,clean", [("a\ud83d", "a�"), ("\udc00b", "�b"), ("\ud83d\ude00", "😀")])
def test_d63_a_lone_surrogate_is_replaced(text: str, clean: str) -> None:
    assert repair([Message("user", text)]) == [Message("user", clean)]


TEXTS = st.sampled_from(["", " ", "hello", "\ud83d", "two\nlines"])
IDS = st.sampled_from(["", "a", "a", "b", "a_2"])
BLOCKS: st.SearchStrategy[Block] = st.one_of(
    st.builds(TextBlock, TEXTS),
    st.builds(ToolUseBlock, IDS, st.just("clock"), st.just({})),
    st.builds(ToolResultBlock, IDS, TEXTS, st.booleans()),
    st.just(ImageBlock("image/png", b"x")),
)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["user", "assistant"]),
    st.one_of(TEXTS, st.lists(BLOCKS, max_size=4).map(tuple)),
)


def as_made(message: Message) -> Message:
    """A person calls no tools and a model gives no results: no mead message has these."""
    wrong = ToolUseBlock if message.role == "user" else ToolResultBlock
    if isinstance(message.content, str):
        return message
    return Message(message.role, tuple(block for block in message.content if not isinstance(block, wrong)))


@given(st.lists(MESSAGES.map(as_made), max_size=8))
@settings(max_examples=500)
def test_s7_any_messages_become_well_formed(messages: list[Message]) -> None:
    repaired = repair(messages)

    well_formed(repaired)
    assert repair(repaired) == repaired, "a second repair has nothing to do"
