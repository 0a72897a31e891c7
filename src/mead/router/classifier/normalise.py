"""Makes a text plain before it is searched, and remembers where each character of it came from.

Compatibility forms become the usual ones (NFKC), invisible characters go, digits of all scripts become 0 to
9, and all dashes become hyphens. Beside that, long tokens are decoded once (base64, percent signs), and
digits that were spaced out are put together.
"""

from __future__ import annotations

import base64
import binascii
import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

_INVISIBLE = (
    "\x00-\x08\x0e-\x1f\x7f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e001f\U000e007f-\U000e0fff"
)
_DASHES = "\u2010-\u2015\u2043\u2212\ufe58\ufe63\uff0d"
# Tag characters spell ASCII that nobody sees but a model reads.
_TAGS = "\U000e0020-\U000e007e"
_MARKS = "\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_TRICKY = re.compile(f"[{_INVISIBLE}{_DASHES}{_TAGS}]")
_OTHER_DIGIT = re.compile(r"[^\D0-9]")
# A character with the marks that stand on it; the marks are few, so that a row of them costs little.
_CLUSTER = re.compile(f"[{_INVISIBLE}]|[\x00-\x7f][{_MARKS}]{{1,30}}|[^\x00-\x7f][{_MARKS}]{{0,30}}")


_LINE_ENDS = r"\n\r\v\f\x85\u2028\u2029"
_LINE_END = rf"(?>\r\n|[{_LINE_ENDS}])"
PARAGRAPH = rf"(?:\A\s*|{_LINE_END}[^\S{_LINE_ENDS}]*{_LINE_END}[^\S{_LINE_ENDS}]*)"
"""A regular expression for where a plain text, or a paragraph of it after an empty line, begins."""


class Plain(NamedTuple):
    """A text made plain. `starts` and `ends` hold for each of its characters where the original one begins
    and ends; both are `None` where nothing was changed."""

    text: str
    starts: list[int] | None = None
    ends: list[int] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Where a part of the plain text stands in the original. The part must not be empty."""
        if self.starts is None or self.ends is None:
            return start, end
        return self.starts[start], self.ends[end - 1]


def normalise(text: str) -> Plain:
    """The plain form of any text; a text that is plain already is not copied."""
    if not _TRICKY.search(text) and (
        text.isascii() or (unicodedata.is_normalized("NFKC", text) and not _OTHER_DIGIT.search(text))
    ):
        return Plain(text)
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    done = 0
    for match in _CLUSTER.finditer(text):
        start, end = match.span()
        parts.append(text[done:start])
        starts += range(done, start)
        ends += range(done + 1, start + 1)
        new = _plain_cluster(match.group())
        parts.append(new)
        starts += [start] * len(new)
        ends += [end] * len(new)
        done = end
    parts.append(text[done:])
    starts += range(done, len(text))
    ends += range(done + 1, len(text) + 1)
    return Plain("".join(parts), starts, ends)


def _plain_cluster(cluster: str) -> str:
    if _TRICKY.match(cluster):
        code = ord(cluster[0])
        if 0xE0020 <= code <= 0xE007E:
            return chr(code - 0xE0000)
        return "-" if _DASH.match(cluster) else ""
    if cluster[0].isdecimal():
        return str(unicodedata.decimal(cluster[0]))
    return unicodedata.normalize("NFKC", cluster)


_DASH = re.compile(f"[{_DASHES}]")


class Decoded(NamedTuple):
    """What a part of a text says once decoded, and where that part stands."""

    text: str
    start: int
    end: int


_BASE64 = re.compile(r"(?<![\w+/-])[\w+/-]{16,}(?:\r?\n[A-Za-z0-9+/_-]{4,})*={0,2}", re.ASCII)
_PERCENT = re.compile(r"(?<![^\s\"'<>])[^\s\"'<>%]*%[0-9A-Fa-f]{2}[^\s\"'<>]*")
_ESCAPED = re.compile(rb"%([0-9A-Fa-f]{2})")
_SPACED = re.compile(r"(?<![\w.])\d(?:[ _.\t]{1,2}\d){6,}(?!\w)")
_UNPRINTABLE = re.compile(r"[^\w\s!-~]")
_LONG_TOKEN = re.compile(r"[\w+/-]{16}")


def decoded(text: str) -> Iterator[Decoded]:
    """The parts of a plain text that say something else once decoded, in no particular order."""
    if _LONG_TOKEN.search(text):
        for match in _BASE64.finditer(text):
            said = _from_base64(match.group())
            if said:
                yield Decoded(said, match.start(), match.end())
    if "%" in text:
        for match in _PERCENT.finditer(text):
            token = match.group().encode("utf-8", "surrogatepass")
            said = _ESCAPED.sub(_unescape, token).decode("utf-8", "replace")
            yield Decoded(normalise(said).text, match.start(), match.end())
    for match in _SPACED.finditer(text):
        yield Decoded(re.sub(r"\D", "", match.group()), match.start(), match.end())


def _unescape(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match.group(1).decode())


def _from_base64(token: str) -> str | None:
    """What the token says, if it is base64 of readable text."""
    packed = re.sub(r"\s", "", token).rstrip("=").replace("-", "+").replace("_", "/")
    packed = packed[: len(packed) - 1] if len(packed) % 4 == 1 else packed
    try:
        said = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        return None
    if len(_UNPRINTABLE.findall(said)) > len(said) // 20:
        return None
    return normalise(said).text
