"""Fits a conversation into a model's context: whole turns are left out, the oldest first, and the results of
tools that are too long are cut.

Nobody here counts tokens exactly. For leaving out, a token is taken for three bytes of JSON, which is rarely
too few; for refusing a turn, for eight, which no text reaches: what lies between is the server's to say. An
attachment counts a flat number of tokens, whatever its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from mead.core.conversation import EncodedMessages, encode
from mead.core.messages import Block, Message, ToolResultBlock, blocks_of
from mead.core.options import Options
from mead.core.reasons import ContextOverflow

BYTES_PER_TOKEN = 3
BYTES_PER_TOKEN_AT_MOST = 8
ATTACHMENT_TOKENS = 1600
"""What the vendors count for a large picture, or for a page of a document."""
ATTACHMENT_TOKENS_AT_LEAST = 64
"""Fewer than any model needs for a picture."""
ANSWER_TOKENS = 1024
"""Room for the answer where nobody set a limit."""


class Fitted(NamedTuple):
    """The part of a history that fits, and how many turns were left out."""

    history: Sequence[EncodedMessages]
    left_out: int


def prompt_bytes(history: Sequence[EncodedMessages], newest: EncodedMessages, extra_bytes: int) -> int:
    """How large a request would be, without its frame, if all of it were text."""
    return sum([_weight(piece) for piece in history]) + _weight(newest) + extra_bytes


def _weight(piece: EncodedMessages) -> int:
    """The bytes of text that would take as many tokens as these messages."""
    text_bytes, images, documents, _ = piece.size
    return text_bytes + (images + documents) * ATTACHMENT_TOKENS * BYTES_PER_TOKEN


def _least_tokens(piece: EncodedMessages, extra_bytes: int) -> int:
    """Fewer tokens no model can make of these messages."""
    text_bytes, images, documents, _ = piece.size
    least = -(-(text_bytes + extra_bytes) // BYTES_PER_TOKEN_AT_MOST)
    return least + (images + documents) * ATTACHMENT_TOKENS_AT_LEAST


def fit(
    history: Sequence[EncodedMessages],
    newest: EncodedMessages,
    *,
    context_tokens: int,
    options: Options,
    extra_bytes: int = 0,
) -> Fitted | ContextOverflow:
    """The newest turns of `history` that fit beside `newest`, the answer, and `extra_bytes` (system prompt
    and tools). Refused with `ContextOverflow` where `newest` cannot fit alone."""
    if _least_tokens(newest, extra_bytes) > context_tokens:
        return ContextOverflow(
            detail=f"the turn is {newest.size.text_bytes + extra_bytes:,} bytes long and the model's context "
            f"holds {context_tokens:,} tokens; shorten it, or use a model with a longer context"
        )
    room = _room(context_tokens, options) - _weight(newest) - extra_bytes
    kept = len(history)
    while kept > 0 and _weight(history[kept - 1]) <= room:
        kept -= 1
        room -= _weight(history[kept])
    return Fitted(history[kept:], kept)


def _room(context_tokens: int, options: Options) -> int:
    """How many bytes a prompt may have beside its answer."""
    answer = min(options.max_tokens or ANSWER_TOKENS, context_tokens // 2)
    return (context_tokens - answer) * BYTES_PER_TOKEN


def shorten_results(
    messages: Sequence[Message], *, context_tokens: int, options: Options, extra_bytes: int = 0
) -> list[Message]:
    """The messages of a turn with the results of its tools cut to what fits beside the rest, the longest
    first. Of what is cut, head and tail stay, and between them it is said how much is missing."""
    excess = _weight(encode(messages)) + extra_bytes - _room(context_tokens, options)
    lengths = [
        _json_bytes(block.content)
        for message in messages
        for block in blocks_of(message)
        if isinstance(block, ToolResultBlock)
    ]
    if excess <= 0 or not lengths:
        return list(messages)
    most = _most_bytes(lengths, sum(lengths) - excess)

    def shorter(block: Block) -> Block:
        if not isinstance(block, ToolResultBlock) or _json_bytes(block.content) <= most:
            return block
        return msgspec.structs.replace(block, content=_cut(block.content, most))

    return [
        message
        if isinstance(message.content, str)
        else Message(message.role, tuple([shorter(block) for block in message.content]))
        for message in messages
    ]


def _most_bytes(lengths: Sequence[int], room: int) -> int:
    """How long each may be, so that all of them have room: what the short ones leave is for the long ones."""
    for index, length in enumerate(sorted(lengths)):
        share = max(0, room) // (len(lengths) - index)
        if length > share:
            return share
        room -= length
    return max(lengths)


def _cut(text: str, most: int) -> str:
    """Head and tail of a text, together with a note between them `most` bytes of JSON, or the note alone."""
    kept = len(text)
    while True:
        # The bytes may stand anywhere in the text, so a cut by the average may leave too many.
        kept = min(kept * 3 // 4, most)
        note = f"[… {len(text) - kept:,} characters are left out here: they do not fit the model's context …]"
        head = text[: kept - kept // 3]
        shown = "\n".join([part for part in (head, note, text[len(text) - kept // 3 :]) if part])
        if not kept or _json_bytes(shown) <= most:
            return shown


def _json_bytes(text: str) -> int:
    return len(msgspec.json.encode(text))
