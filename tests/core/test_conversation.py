"""Messages are encoded once, joined into requests, and decoded when somebody looks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.core.conversation import Conversation, EncodedMessages, encode, encode_exchange, encode_user
from mead.core.messages import (
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    VendorBlock,
)

EXCHANGE = [
    Message("user", (ImageBlock("image/png", b"\x00\xff"), TextBlock("look"))),
    Message("assistant", (VendorBlock("v", msgspec.Raw(b'{"k":1}')), ToolUseBlock("a", "clock", {"x": 1}))),
    Message("user", (ToolResultBlock("a", "noon", True), DocumentBlock("application/pdf", b"%PDF", "a.pdf"))),
    Message("assistant", "it is noon"),
]


def test_every_block_comes_back_as_it_went_in() -> None:
    assert encode(EXCHANGE).decode() == EXCHANGE


def test_a_plain_piece_is_the_json_of_every_wire_format() -> None:
    piece = encode_exchange(encode_user('say "hé"'), "hé")

    assert piece.plain
    assert piece.closed
    assert msgspec.json.decode(b"[" + piece.data + b"]") == [
        {"role": "user", "content": 'say "hé"'},
        {"role": "assistant", "content": "hé"},
    ]


def test_an_exchange_with_an_empty_answer_is_not_closed_so_the_next_turn_mends_it() -> None:
    piece = encode_exchange(encode_user("hello"), "  ")

    conversation = Conversation([piece, encode_user("are you there?")])

    assert conversation == [Message("user", "hello\n\nare you there?")]


def test_pieces_that_do_not_stand_alone_are_repaired_together() -> None:
    conversation = Conversation([encode([Message("user", "one")]), encode_user("two")])

    assert len(conversation.pieces) == 1
    assert conversation == [Message("user", "one\n\ntwo")]


def test_closed_pieces_are_joined_without_being_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [encode_exchange(encode_user("one"), "two"), encode_user("three")]
    monkeypatch.setattr(EncodedMessages, "decode", None)

    conversation = Conversation(pieces)

    assert [piece.data for piece in conversation.pieces] == [piece.data for piece in pieces]


def test_r10_texts_only_keeps_the_words_and_nothing_else() -> None:
    stripped = encode(EXCHANGE).texts_only()

    assert stripped.decode() == [
        Message(
            "user",
            (
                ImageBlock("image/png", b"\x00\xff"),
                TextBlock("look"),
                DocumentBlock("application/pdf", b"%PDF", "a.pdf"),
            ),
        ),
        Message("assistant", "it is noon"),
    ]


def test_a_variant_is_made_once() -> None:
    piece = encode(EXCHANGE)
    made: list[int] = []

    for _ in range(3):
        piece.variant("size", lambda messages: made.append(len(messages)))

    assert made == [4]


@given(st.text().filter(str.strip), st.text())
def test_d63_any_text_can_be_kept_and_sent(user: str, answer: str) -> None:
    piece = encode_exchange(encode_user(user), answer)
    msgspec.json.decode(b"[" + piece.data + b"]")

    assert piece.decode()[0].role == "user"


@given(st.text(alphabet=st.characters(codec="utf-8"), min_size=1).filter(str.strip))
def test_text_is_kept_exactly(text: str) -> None:
    assert encode_user(text).decode() == [Message("user", text)]


def test_a_conversation_is_a_sequence_of_messages() -> None:
    conversation = Conversation.of(EXCHANGE)

    assert len(conversation) == 4
    assert conversation[-1] == EXCHANGE[-1]
    assert conversation[:2] == EXCHANGE[:2]
    assert list(conversation) == EXCHANGE
    assert Conversation.of(conversation) is conversation
