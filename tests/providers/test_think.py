"""A leading think block is taken out, wherever the fragments were cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.providers._think import ThinkFilter, without_thinking

CASES = [
    ("<think>hm</think>ok", "ok"),
    ("<think>hm</think>\n\nok ", "ok "),
    ("\n <think>\nhm\n</think>\nok", "ok"),
    ("<think></think>ok", "ok"),
    ("<think>a <think> b</think>ok</think>", "ok</think>"),
    ("<think>hm</think>", ""),
    ("<think>hm", ""),
    ("<think>", ""),
    ("<thin", "<thin"),
    ("<thinker>ok", "<thinker>ok"),
    ("<", "<"),
    ("  ok", "  ok"),
    (" \n", " \n"),
    ("", ""),
    ("ok <think>hm</think>", "ok <think>hm</think>"),
    ("hm</think>ok", "hm</think>ok"),
    ("<think>x</think><think>y</think>z", "<think>y</think>z"),
]


@pytest.mark.parametrize("text, answer", CASES)
def test_only_a_block_that_opens_the_answer_goes(text: str, answer: str) -> None:
    assert without_thinking(text) == answer


@pytest.mark.parametrize("text, answer", CASES)
def test_cut_after_every_character_it_is_the_same(text: str, answer: str) -> None:
    think = ThinkFilter()
    fragments = [think.feed(character) for character in text]

    assert "".join(fragments) + think.rest() == answer


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "a", " ", "\n", "<"]), max_size=9)
)
def test_any_cut_gives_the_same_text(fragments: list[str]) -> None:
    think = ThinkFilter()
    streamed = "".join([think.feed(fragment) for fragment in fragments]) + think.rest()

    assert streamed == without_thinking("".join(fragments))


@given(st.text())
def test_a_text_without_the_tag_is_untouched(text: str) -> None:
    if not text.lstrip().startswith("<think>"):
        assert without_thinking(text) == text


def test_answer_text_is_passed_on_at_once() -> None:
    think = ThinkFilter()

    assert [think.feed("a"), think.feed(" <think>"), think.feed("b")] == ["a", " <think>", "b"]
