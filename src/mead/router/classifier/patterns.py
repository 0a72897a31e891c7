"""Finds obvious secrets and identifiers in a text: patterns, each checked by what its kind demands.

All of a text is looked at, however long it is, so each pattern takes a time in proportion to it: it either
begins where no other match of it can have begun, or has a limit on how far it looks.

What looks like an identifier but is known to be none (a placeholder, an example address, a number that fails
its checksum) is passed over.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mead.core.turns import Finding


class _Pattern(NamedTuple):
    kind: str
    regex: re.Pattern[str]
    hint: re.Pattern[str]
    """Something cheap to find without which the pattern cannot match."""
    is_real: Callable[[str], bool]


def _always(_: str) -> bool:
    return True


def _passes_luhn(text: str) -> bool:
    digits = [int(ch) for ch in text if ch.isdigit()]
    if not 13 <= len(digits) <= 19 or len(set(digits)) == 1:
        return False
    doubled = [digit * 2 - 9 if digit > 4 else digit * 2 for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def _passes_mod97(text: str) -> bool:
    """Whether the text is an IBAN, or begins with one that ends with a word: capitals may follow it."""
    head, rest, length = "", 0, 0
    for word in text.split():
        for ch in word:
            length += 1
            if length <= 4:
                head += ch
            else:
                rest = _append(rest, ch)
        if 15 <= length <= 34 and functools.reduce(_append, head, rest) == 1:
            return True
    return False


def _append(remainder: int, ch: str) -> int:
    """The remainder by 97 of a number that has this digit, or this letter's two, appended."""
    value = int(ch, 36)
    return (remainder * (10 if value < 10 else 100) + value) % 97


def _is_issued_ssn(text: str) -> bool:
    area, group, serial = text.split("-")
    return area not in ("000", "666") and area < "900" and group != "00" and serial != "0000"


def _is_own_address(text: str) -> bool:
    domain = text.rpartition("@")[2].lower()
    return not re.search(r"(^|\.)(example|test|invalid|localhost)(\.|$)", domain)


def _is_own_phone(text: str) -> bool:
    digits = "".join([ch for ch in text if ch.isdigit()])
    return 8 <= len(digits) <= 15 and "55501" not in digits and len(set(digits)) > 2


def _is_no_placeholder(text: str) -> bool:
    value = re.split(r"[:=\s]", text)[-1].strip("\"'")
    if re.search(r"(?i)x{4}|\*{3}|\.{3}|<|\$\{|example|your|change.?me|placeholder|dummy|redacted", value):
        return False
    return len(set(value)) > 3


_DIGITS = re.compile(r"\d\D{0,2}\d\D{0,2}\d\D{0,2}\d")
_PATTERNS = (
    _Pattern("card", re.compile(r"(?<![\w.])(?:\d[ -]?){12,18}\d(?![\w.]?\d)"), _DIGITS, _passes_luhn),
    _Pattern("iban", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]){11,30}\b"), _DIGITS, _passes_mod97),
    _Pattern("ssn", re.compile(r"(?<![\d-])\d{3}-\d{2}-\d{4}(?![\d-])"), _DIGITS, _is_issued_ssn),
    _Pattern(
        "phone",
        re.compile(
            r"(?<![\w+.])(?:\+\d{1,3}[ .-]?(?:\(?\d{1,4}\)?[ .-]?){2,5}\d{2,4}|\(\d{3}\) ?\d{3}-\d{4})"
        ),
        _DIGITS,
        _is_own_phone,
    ),
    _Pattern(
        "email",
        re.compile(
            r"\b[\w.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){0,8}\.[A-Za-z]{2,63}\b",
        ),
        re.compile("@"),
        _is_own_address,
    ),
    _Pattern(
        "private_key",
        re.compile(r"-----BEGIN (?:[A-Z]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----"),
        re.compile("-----BEGIN"),
        _always,
    ),
    _Pattern(
        "api_key",
        re.compile(
            r"\b(?:sk-(?:[a-z]+-)*[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
            r"|glpat-[\w-]{16,}|AKIA[A-Z0-9]{16}|AIza[\w-]{30,}|xox[abpr]-[\w-]{10,}"
            r")|(?<![\w-])[\w-]{13,}\.eyJ[\w-]{10,}\.[\w-]{10,}"
        ),
        re.compile(r"sk-|gh[pousr]_|github_pat|glpat-|AKIA|AIza|xox|eyJ"),
        _is_no_placeholder,
    ),
    _Pattern(
        "password",
        re.compile(
            r"(?i)\b(?:password|passwd|passphrase|secret(?:[ _-]?key)?|api[ _-]?key|(?:access[ _-]?)?token"
            r"|pin)"
            r"(?: is|\s*[:=])\s*[\"']?[^\s\"',;]{4,}"
        ),
        re.compile(r"(?i)passw|passphrase|secret|key|token|\bpin\b"),
        _is_no_placeholder,
    ),
)
_ANY_HINT = re.compile(r"@|\d|-----BEGIN|(?i:passw|passphrase|secret|key|token|\bpin\b)|xox|eyJ")
_LIKE_A_VALUE = re.compile(r"\d|[^\w\s]")


def find(text: str) -> tuple[Finding, ...]:
    """Everything private that the patterns see, in the order of the text."""
    if not _ANY_HINT.search(text):
        return ()
    return tuple(sorted(_matches(text), key=lambda finding: finding.start))


def _matches(text: str) -> Iterator[Finding]:
    for pattern in _PATTERNS:
        if not pattern.hint.search(text):
            continue
        for match in pattern.regex.finditer(text):
            found = match.group()
            if pattern.kind == "password" and not _LIKE_A_VALUE.search(re.split(r"[:=\s]", found)[-1]):
                continue  # "my password is wrong" tells no password
            if pattern.is_real(found):
                yield Finding(pattern.kind, match.start(), match.end(), mask(found))


def mask(value: str) -> str:
    """A value made unreadable: its length stays, with two characters of a long one at its end.

    >>> mask("4111111111111111"), mask("hunter2")
    ('••••••••••••••11', '•••••••')
    """
    shown = 2 if len(value) >= 12 else 0
    return "•" * (len(value) - shown) + (value[-shown:] if shown else "")
