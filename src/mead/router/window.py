"""Fits a conversation into a model's context: whole turns are left out, the oldest first.

Nobody here counts tokens exactly. For leaving out, a token is taken for three bytes of JSON, which is rarely
too few; for refusing a turn, for eight, which no text reaches: what lies between is the server's to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mead.core.conversation import EncodedMessages
from mead.core.options import Options
from mead.core.reasons import ContextOverflow

BYTES_PER_TOKEN = 3
BYTES_PER_TOKEN_AT_MOST = 8
ANSWER_TOKENS = 1024
"""Room for the answer where nobody set a limit."""


class Fitted(NamedTuple):
    """The part of a history that fits, and how many turns were left out."""

    history: Sequence[EncodedMessages]
    left_out: int


def prompt_bytes(history: Sequence[EncodedMessages], newest: EncodedMessages, extra_bytes: int) -> int:
    """How large a request would be, without its frame."""
    return sum([len(piece.data) for piece in history]) + len(newest.data) + extra_bytes


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
    fixed = len(newest.data) + extra_bytes
    if fixed > context_tokens * BYTES_PER_TOKEN_AT_MOST:
        return ContextOverflow(
            detail=f"the turn is {fixed:,} bytes long and the model's context holds {context_tokens:,} "
            "tokens; shorten it, or use a model with a longer context"
        )
    answer = min(options.max_tokens or ANSWER_TOKENS, context_tokens // 2)
    room = (context_tokens - answer) * BYTES_PER_TOKEN - fixed
    kept = len(history)
    while kept > 0 and len(history[kept - 1].data) <= room:
        kept -= 1
        room -= len(history[kept].data)
    return Fitted(history[kept:], kept)
