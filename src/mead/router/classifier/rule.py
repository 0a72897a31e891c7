"""What a rule is: a pattern, something cheap to look for first, and a check of what the pattern found."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

Span: TypeAlias = tuple[int, int]
Check: TypeAlias = Callable[[re.Match[str]], Span | None]
"""Where in the text the private value stands, or `None` if the match is none."""


Hint: TypeAlias = re.Pattern[str] | tuple[str, ...]


class Rule(NamedTuple):
    """Finds one kind. `regex` is tried on a text only where `hint` is in it: a pattern, or any of some words,
    which are looked for in the text's lower case."""

    kind: str
    regex: re.Pattern[str]
    hint: Hint
    check: Check


class Hit(NamedTuple):
    """What a rule found: the kind, and where."""

    kind: str
    start: int
    end: int


def when(is_real: Callable[[str], bool]) -> Check:
    """A check of the whole match's text."""
    return lambda match: match.span() if is_real(match.group()) else None


def always(match: re.Match[str]) -> Span:
    """The check of a pattern that says enough."""
    return match.span()


def before(match: re.Match[str], chars: int = 48) -> str:
    """The text just before a match."""
    return match.string[max(0, match.start() - chars) : match.start()]


def hits(text: str, rules: Sequence[Rule]) -> Iterator[Hit]:
    """Everything that the rules find in a text, rule by rule."""
    lower = text.lower()
    hinted: dict[int, bool] = {}
    for kind, regex, hint, check in rules:
        seen = hinted.get(id(hint))
        if seen is None:
            seen = hinted[id(hint)] = _is_hinted(hint, text, lower)
        if seen:
            for match in regex.finditer(text):
                span = check(match)
                if span:
                    yield Hit(kind, *span)


def _is_hinted(hint: Hint, text: str, lower: str) -> bool:
    if isinstance(hint, tuple):
        for word in hint:  # noqa: SIM110 - a generator would cost more than the search
            if word in lower:
                return True
        return False
    return hint.search(text) is not None
