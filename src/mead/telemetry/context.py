"""Which turn, and which request of a client, the running code belongs to: for log lines.

A turn's task, and whatever it starts, sees its own `CURRENT_TURN`. A task that outlives the turn keeps the
value, which then says that the turn is over.
"""

from __future__ import annotations

from contextvars import ContextVar


class CurrentTurn:
    """A turn that runs, or is over."""

    __slots__ = ("is_over", "session_id", "turn")

    def __init__(self, session_id: str, turn: int) -> None:
        self.session_id = session_id
        self.turn = turn
        self.is_over = False


CURRENT_TURN: ContextVar[CurrentTurn | None] = ContextVar("mead_current_turn", default=None)
REQUEST_ID: ContextVar[str | None] = ContextVar("mead_request_id", default=None)
"""The id of the HTTP request that is being answered, where somebody has set it."""


def current_turn() -> CurrentTurn | None:
    """The turn that the running code belongs to, while it lasts."""
    turn = CURRENT_TURN.get()
    return None if turn is None or turn.is_over else turn
