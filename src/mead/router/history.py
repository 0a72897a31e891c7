"""Looks through a history again before any of it is sent: rules may be new, labels may come from elsewhere.

Each message is looked at once: what was found is kept beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mead.core.messages import Message
from mead.core.turns import Turn
from mead.router.classifier import Classifier, scanner, texts_of


def gated(earlier: Sequence[Turn], classifier: Classifier) -> list[Turn]:
    """The turns, those that are shareable and hold something private as `local_only`.

    What a cloud model has written itself is not looked at: it was made from what that model has seen.
    """
    same = _Same(classifier)
    return [
        msgspec.structs.replace(turn, label="local_only")
        if turn.label == "shareable" and _holds_something(turn, classifier, same)
        else turn
        for turn in earlier
    ]


def _holds_something(turn: Turn, classifier: Classifier, same: _Same) -> bool:
    answers = turn.route != "cloud"
    messages = turn.messages if turn.route == "cloud" else turn.messages.texts_only()

    def look(decoded: list[Message]) -> bool:
        texts, unreadable = texts_of(decoded, answers=answers)
        scan = scanner(classifier)
        return bool(unreadable) or any(scan(text) for text in texts)

    return messages.variant((same, answers), look)


class _Same:
    """Stands for a classifier as a key: for that object, however it compares itself with others."""

    __slots__ = ("_one",)

    def __init__(self, one: object) -> None:
        self._one = one

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other._one is self._one

    def __hash__(self) -> int:
        return id(self._one)
