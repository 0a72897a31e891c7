"""What of a session's history a model may be shown (R10, R16).

A provider of the cloud slot is only ever called with a `CloudView`, and `cloud_view` is the only place that
makes one: a turn that is `local_only` cannot get into it, so no later step needs to remember to leave it out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from mead.core.conversation import Conversation, EncodedMessages
from mead.core.options import Route
from mead.core.turns import Turn


@final
class LocalView:
    """Everything that went before: for the local model."""

    __slots__ = ("history",)

    def __init__(self, history: Sequence[EncodedMessages]) -> None:
        self.history = history


@final
class CloudView:
    """Shareable turns only. Made by `cloud_view`."""

    __slots__ = ("history",)

    def __init__(self, history: Sequence[EncodedMessages], *, proof: object) -> None:
        if proof is not _PROOF:
            raise TypeError("a CloudView is made by cloud_view(), which takes nothing local_only into it")
        self.history = history


_PROOF = object()


def local_view(earlier: Sequence[Turn]) -> LocalView:
    """All earlier turns; tool traffic of the cloud model goes without, its text stays."""
    return LocalView([_as_seen_by("local", turn) for turn in earlier])


def cloud_view(earlier: Sequence[Turn]) -> CloudView:
    """The earlier turns that are shareable; tool traffic of the local model goes without, its text stays."""
    return CloudView(
        [_as_seen_by("cloud", turn) for turn in earlier if turn.label == "shareable"], proof=_PROOF
    )


def ask(view: LocalView | CloudView, newest: EncodedMessages, *, left_out: int = 0) -> Conversation:
    """The view with what is to be answered now, without the oldest `left_out` turns."""
    return Conversation([*view.history[left_out:], newest])


def _as_seen_by(route: Route, turn: Turn) -> EncodedMessages:
    """The turn with its tool traffic only for the route that made it (R10)."""
    messages = turn.messages
    return messages if messages.plain or turn.route == route else messages.texts_only()
