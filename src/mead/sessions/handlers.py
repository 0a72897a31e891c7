"""The turn handler that needs nothing: no key, no model, no network (S4)."""

from __future__ import annotations

from collections.abc import Sequence

from mead.core.conversation import encode_exchange
from mead.core.messages import text_of
from mead.core.options import TurnOptions
from mead.core.reasons import TurnReason
from mead.core.result import Ok, Result
from mead.core.turns import Answer, Turn


class EchoHandler:
    """Answers each turn with its own text."""

    async def handle_turn(
        self, turns: Sequence[Turn], state: object, options: TurnOptions
    ) -> Result[Answer, TurnReason]:
        newest = turns[-1].messages
        text = text_of(newest.decode()[-1].content)
        if options.stream and text:
            options.scope.delta(text)
        return Ok(Answer(text=text, messages=encode_exchange(newest, text)))
