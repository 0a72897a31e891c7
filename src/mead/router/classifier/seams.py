"""Finds a value that was split over two messages: the end of one and the beginning of the next."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from mead.core.turns import Finding
from mead.router.classifier.normalise import normalise
from mead.router.classifier.patterns import RULES, mask
from mead.router.classifier.rule import hits

SEAM_CHARS = 160
"""How much of each text is looked at."""

# Joining makes rows of digits that nobody wrote: only what checks itself, or a word names, counts.
_KINDS = frozenset({"card", "iban", "ssn", "private_key", "api_key", "password", "email"})
_SEAM_RULES = tuple([rule for rule in RULES if rule.kind in _KINDS])
_FRAGMENT = re.compile(r"(?<![\w+/-])(?=[\w+/-]{0,40}[\dA-Z])[\w+/=-]{3,}(?:[ -]\d{2,6}){0,4}")
_TWO_DIGITS_OR_CAPITALS = re.compile(r"\d.*\d|[A-Z].*[A-Z]")
_CLUE = re.compile(
    r"(?i)\b(?:half|part|first|start|begin|rest|remain|continu|end|second|last|follow|other|split|join|plus|then|piece"
    r"|erste|zweite|premi|second|prim|segund|hälfte|moiti|mitad)"
)


class _Join(NamedTuple):
    """A text made of two, and where in it the second part begins and ends, and in the later text begins."""

    text: str
    seam: int
    end: int
    later: int


def find_at_seam(tail: str, head: str) -> tuple[Finding, ...]:
    """What stands neither in the end of one text nor in the beginning of the next, but in both together.

    Offsets are the later text's.
    """
    if not tail.strip() or not head.strip():
        return ()
    found = {}
    plain = normalise(head)
    alone = {(hit.kind, hit.start, hit.end) for hit in hits(plain.text, _SEAM_RULES)}
    for join in _joins(normalise(tail).text, plain.text):
        for hit in hits(join.text, _SEAM_RULES):
            if join.seam < hit.end <= join.end:
                start = join.later + max(0, hit.start - join.seam)
                end = join.later + hit.end - join.seam
                if hit.start >= join.seam and (hit.kind, start, end) in alone:
                    continue
                span = plain.span(start, end)
                found[hit.kind, *span] = Finding(hit.kind, *span, mask(head[slice(*span)]))
    return tuple(found.values())


def _joins(tail: str, head: str) -> Iterator[_Join]:
    """The two as they are, with and without a space; then the last value of one with the first ones of the
    other, where the person says that they belong together."""
    ended, begun = tail.rstrip(), head.lstrip()
    skipped = len(head) - len(begun)
    for between in ("", " "):
        joined = ended + between
        yield _Join(joined + begun, len(joined), len(joined) + len(begun), skipped)
    if not (_CLUE.search(tail) or _CLUE.search(head)):
        return
    first = [match for match in _FRAGMENT.finditer(tail) if _TWO_DIGITS_OR_CAPITALS.search(match.group())][
        -1:
    ]
    second = [match for match in _FRAGMENT.finditer(head) if _TWO_DIGITS_OR_CAPITALS.search(match.group())][
        :2
    ]
    for begins in first:
        context = tail[max(0, begins.start() - 60) : begins.start()]
        for goes_on in second:
            for between in ("", " "):
                joined = context + begins.group() + between
                yield _Join(
                    joined + goes_on.group(), len(joined), len(joined) + len(goes_on.group()), goes_on.start()
                )
