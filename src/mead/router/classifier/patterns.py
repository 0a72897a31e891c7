"""Finds secrets and identifiers in a text by rules, each checked by what its kind demands.

All of a text is looked at, however long it is, so each pattern takes a time in proportion to it: it either
begins where no other match of it can have begun, or has a limit on how far it looks.

What looks like an identifier but is known to be none (a placeholder, an example address, a number that fails
its checksum) is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence

from mead.core.turns import Finding
from mead.router.classifier import rules_contact, rules_directives, rules_identifiers, rules_secrets
from mead.router.classifier.normalise import Plain, decoded, normalise
from mead.router.classifier.rule import hits

RULES = (*rules_identifiers.RULES, *rules_contact.RULES, *rules_secrets.RULES)
"""The rules for values, which are looked for in what is decoded as well."""

# Findings are compared with each other only where they are few: the time stays in proportion to the text.
_COMPARED = 64
_ALL_RULES = (*RULES, *rules_directives.RULES)


def find(text: str) -> tuple[Finding, ...]:
    """Everything private that the rules see, in the order of the text. Offsets are the given text's."""
    return find_plain(text, normalise(text))


def find_plain(text: str, plain: Plain) -> tuple[Finding, ...]:
    """The same for a text that was normalised already."""
    found: dict[tuple[int, int, str], Finding] = {}
    for hit in hits(plain.text, _ALL_RULES):
        _keep(found, text, hit.kind, plain.span(hit.start, hit.end))
    for part in decoded(plain.text):
        span = plain.span(part.start, part.end)
        for hit in hits(part.text, RULES):
            _keep(found, text, hit.kind, span)
    ordered = [found[key] for key in sorted(found)]
    return tuple([finding for finding in ordered if not _is_part(finding, ordered)])


def _keep(found: dict[tuple[int, int, str], Finding], text: str, kind: str, span: tuple[int, int]) -> None:
    start, end = span
    found[start, end, kind] = Finding(kind, start, end, mask(text[start:end]))


def _is_part(finding: Finding, others: Sequence[Finding]) -> bool:
    """Whether a phone number is only a part of what another rule knows better, a card for one."""
    if finding.kind != "phone" or len(others) > _COMPARED:
        return False
    return any(
        other.kind != "phone" and other.start < finding.end and finding.start < other.end for other in others
    )


def mask(value: str) -> str:
    """A value made unreadable: its length stays, with two characters of a long one at its end.

    >>> mask("4111111111111111"), mask("hunter2")
    ('••••••••••••••11', '•••••••')
    """
    shown = 2 if len(value) >= 12 else 0
    return "•" * (len(value) - shown) + (value[-shown:] if shown else "")
