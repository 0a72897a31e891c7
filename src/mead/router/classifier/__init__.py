"""The interface of classifiers: they judge the newest turn, where `auto` needs it and before a cloud call.

A classifier reads and computes; it contacts nothing, so that asking it can never leak (R4, R16). What it
cannot read (an image, a document) it must call private.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from mead.core.messages import TextBlock, blocks_of
from mead.core.options import TurnOptions
from mead.core.turns import Finding, Turn, Verdict
from mead.router.slots import Slots


class ClassifierInput(Struct, frozen=True, kw_only=True):
    """What a classifier may look at.

    `texts` are the newest turn's own: the message first, then the turn's system prompt, if it has one.
    `unreadable` counts the parts that hold no text. `has_local` and `has_cloud` say which slots are filled.
    """

    texts: tuple[str, ...]
    unreadable: int = 0
    has_local: bool = True
    has_cloud: bool = True


class Classifier(Protocol):
    """Judges turns."""

    def classify(self, turn: ClassifierInput) -> Verdict:
        """Where the turn should go, whether it is private, and why."""

    def scan(self, text: str) -> Sequence[Finding]:
        """What is private in a text that is about to be sent, a tool's result for one."""


def newest_input(newest: Turn, options: TurnOptions, slots: Slots) -> ClassifierInput:
    """What a classifier may look at of a newest turn."""
    texts: list[str] = []
    unreadable = 0
    for message in newest.decode():
        for block in blocks_of(message):
            if isinstance(block, TextBlock):
                texts.append(block.text)
            else:
                unreadable += 1
    if options.options.system:
        texts.append(options.options.system)
    return ClassifierInput(
        texts=tuple(texts),
        unreadable=unreadable,
        has_local=slots.local is not None,
        has_cloud=slots.cloud is not None,
    )
