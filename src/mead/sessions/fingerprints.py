"""Keyed fingerprints of text: they find it again inside other text, and tell nothing of it without the key.

A text is read as words: case, white space, punctuation, escapes of JSON and HTML and the marks of Markdown do
not count. A character of a script that is written without spaces is a word of its own. Then

- every run of 8 words is a *shingle*; of each 5 shingles in a row the one with the smallest hash is kept
  (winnowing), so two texts that share a run of 12 words share a fingerprint, wherever it stands in them;
- in scripts without spaces a shingle is 13 characters long and the run 16: characters say less than words;
- a short text, under 16 words, is kept whole, and found again where it fills a line, after the name of who
  says it too, or stands between quotation marks of any kind;
- a long word of letters and digits, a key or a hash, is kept by itself.

What says too little is not kept: under 5 words, or 12 characters without spaces, or 24 characters.
"""

from __future__ import annotations

import hashlib
import re
import sys
import unicodedata
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence

from mead.core.messages import clean_text

SHINGLE, WINDOW = 8, 5
UNSPACED_SHINGLE, UNSPACED_WINDOW = 13, 4
GUARANTEED_WORDS = SHINGLE + WINDOW - 1
"""A run of so many words that two texts have in common is found."""
GUARANTEED_CHARACTERS = UNSPACED_SHINGLE + UNSPACED_WINDOW - 1
"""The same for characters of scripts without spaces, and for words mixed with them."""
KEY_BYTES = 32

_LEAST_WORDS, _LEAST_CHARACTERS, _LEAST_UNSPACED = 5, 24, 12
_LONG_WORD = 20
_WHOLE_BELOW = 16
_SIZE = 8
_BASE, _MASK = 0x9E3779B97F4A7C15, 2**64 - 1

# Thai and Lao, Burmese, Khmer, the Japanese syllables, Chinese characters.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
)
# Marks that stand within words and are no letters: accents, vowel points, the signs of Indian scripts.
_MARKS = "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u0610-\u061a\u064b-\u065f\u0900-\u0963\u0966-\u0dff"
_ASCII_WORD = re.compile("[a-z0-9]+")
_WORD = re.compile(f"[{_UNSPACED}]|(?:[^\\W_{_UNSPACED}]|[{_MARKS}])+")
_ESCAPE = re.compile(r"(?<!\\)\\++(?:u([0-9a-f]{4})|([nr])|[tbfv])", re.IGNORECASE)
_ENTITY = re.compile(
    r"&(?:amp;){0,4}(?:amp|lt|gt|(quot)|(apos)|nbsp|#(\d{1,7})|#x([0-9a-f]{1,6}));", re.IGNORECASE
)
_IS_UNSPACED = re.compile(f"[{_UNSPACED}]").match
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_PIECE = re.compile(r"[\s\S]{1,1000}(?:\s|\Z)|[\s\S]{1,1000}")
_SPEAKER_WORDS = 2
# Marks that are apostrophes too count where a word begins or ends.
_QUOTE_KINDS = (
    '["\u201c-\u201f\u301d-\u301f\uff02]',
    "[\u00ab\u00bb\u2039\u203a]",
    "[\u3008-\u300b]",
    "[\u300c-\u300f\ufe41-\ufe44\uff62\uff63]",
    "[`\u00b4]",
    "(?<![^\\W_])['\u2018-\u201b]|['\u2018-\u201b](?![^\\W_])",
)
_QUOTES = [re.compile(kind) for kind in _QUOTE_KINDS]
_QUOTE = re.compile("|".join(_QUOTE_KINDS))


class Fingerprinter:
    """Makes fingerprints with a key of `KEY_BYTES` bytes, as numbers of 64 bits whose last one is 0.

    The time is linear in the length of the text.
    """

    def __init__(self, key: bytes) -> None:
        self._words = hashlib.blake2b(key=key, digest_size=_SIZE, person=b"words")
        self._alone = hashlib.blake2b(key=key, digest_size=_SIZE, person=b"alone")

    def to_keep(self, text: str) -> set[int]:
        """What is kept of a private text."""
        words = _words(_normalised(text))
        return {*self._inside(words), *self._whole(words)}

    def to_find(self, text: str) -> set[int]:
        """What is looked for of a text that may hold private ones: some of it is among what was kept of them
        if it does."""
        text = _normalised(text)
        words = _words(text)
        found = {*self._inside(words), *self._whole(words)}
        for part in _parts(text):
            spoken = _words(part)
            for speaker in range(_SPEAKER_WORDS + 1):
                found.update(self._whole(spoken[speaker:]))
        return found

    def _inside(self, words: Sequence[str]) -> Iterator[int]:
        """Of parts of a text, wherever they stand."""
        unspaced = [_is_unspaced(word) for word in words]
        hashes = [zlib.crc32(word.encode("utf-8", "replace")) for word in words]
        for start in _chosen(hashes, SHINGLE, WINDOW):
            if _says_enough(words[start : start + SHINGLE], unspaced[start : start + SHINGLE]):
                yield self._of(words[start : start + SHINGLE])
        if any(unspaced):
            for start in _chosen(hashes, UNSPACED_SHINGLE, UNSPACED_WINDOW):
                yield self._of(words[start : start + UNSPACED_SHINGLE])
        for word in words:
            if len(word) >= _LONG_WORD and not word.isalpha() and not word.isdigit():
                yield self._of((word,))

    def _whole(self, words: Sequence[str]) -> Iterator[int]:
        """Of a whole text, if it is a short one: a long one is known by its parts."""
        if not words or len(words) >= _WHOLE_BELOW:
            return
        unspaced = [_is_unspaced(word) for word in words]
        if _says_enough(words, unspaced) or (
            sum(map(len, words)) + len(words) > _LEAST_CHARACTERS and not any(unspaced)
        ):
            yield self._of(words, alone=True)

    def _of(self, words: Sequence[str], *, alone: bool = False) -> int:
        digest = (self._alone if alone else self._words).copy()
        digest.update(" ".join(words).encode("utf-8", "replace"))
        return int.from_bytes(digest.digest(), "little") & ~1


def _parts(text: str) -> set[str]:
    """What stands on a line or between quotation marks: between those of each kind, and of all kinds, for a
    text may hold some of another kind than it stands between."""
    lines = text.split("\n")
    parts = set(lines)
    for line in lines:
        if not _QUOTE.search(line):
            continue
        parts.update(_QUOTE.split(line))
        for kind in _QUOTES:
            pieces = kind.split(line)
            if len(pieces) > 1:
                parts.update(pieces)
    return parts


def _normalised(text: str) -> str:
    """The text in a form in which equal ones are equal, line by line, but for what stands between words."""
    if "\\" in text:
        text = clean_text(_ESCAPE.sub(_unescaped, text))
    if "&" in text:
        text = _ENTITY.sub(_entity, text)
    if text.isascii():
        return text.lower()
    # Piece by piece: the marks of one character are sorted in a time that grows as their number squared.
    return "".join([_folded(piece) for piece in _PIECE.findall(_INVISIBLE.sub("", text))])


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _words(text: str) -> list[str]:
    return (_ASCII_WORD if text.isascii() else _WORD).findall(text)


def _unescaped(found: re.Match[str]) -> str:
    code, line_end = found.groups()
    return chr(int(code, 16)) if code else "\n" if line_end else " "


def _entity(found: re.Match[str]) -> str:
    double, single, decimal, hexadecimal = found.groups()
    if double or single:
        return '"' if double else "'"
    code = int(decimal) if decimal else int(hexadecimal, 16) if hexadecimal else 0x20
    return chr(code) if code <= sys.maxunicode and not 0xD800 <= code < 0xE000 else " "


def _is_unspaced(word: str) -> bool:
    return len(word) == 1 and word >= "\u0e00" and _IS_UNSPACED(word) is not None


def _says_enough(words: Sequence[str], unspaced: Sequence[bool]) -> bool:
    """Whether some words are more than a phrase that anybody uses."""
    characters = sum(unspaced)
    return (len(words) - characters) * _LEAST_UNSPACED + characters * _LEAST_WORDS >= (
        _LEAST_WORDS * _LEAST_UNSPACED
    )


def _chosen(hashes: Sequence[int], shingle: int, window: int) -> list[int]:
    """Where the shingles begin that are kept: in each window the last of those with the smallest hash. Of a
    text with fewer shingles than a window has, all: it may stand in the middle of others."""
    orders = _orders(hashes, shingle)
    if len(orders) < window:
        return list(range(len(orders)))
    chosen: list[int] = []
    best = -1
    for last, order in enumerate(orders):
        first = last - window + 1
        if best < first:
            best = max(first, 0)
            for at in range(best + 1, last + 1):
                if orders[at] <= orders[best]:
                    best = at
        elif order <= orders[best]:
            best = last
        if first >= 0 and (not chosen or chosen[-1] != best):
            chosen.append(best)
    return chosen


def _orders(hashes: Sequence[int], shingle: int) -> list[int]:
    """A hash for each shingle, to choose by: it rolls along, and is not kept."""
    leaving = pow(_BASE, shingle, 2**64)
    rolling, orders = 0, []
    for at, value in enumerate(hashes):
        rolling = rolling * _BASE + value & _MASK
        if at >= shingle:
            rolling = rolling - hashes[at - shingle] * leaving & _MASK
        if at >= shingle - 1:
            orders.append(rolling)
    return orders


# As bytes


def pack(values: Iterable[int]) -> bytes:
    """Fingerprints as 8 bytes each, the lowest first, whatever the machine."""
    packed = array("Q", sorted(values))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack(data: bytes) -> Sequence[int]:
    """The fingerprints again. Bytes at the end that are no whole one are left out."""
    packed = array("Q")
    packed.frombytes(data[: len(data) - len(data) % _SIZE])
    if sys.byteorder == "big":
        packed.byteswap()
    return packed
