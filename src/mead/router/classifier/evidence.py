"""The evidence classifier: how likely a text is private by what it says, where no rule finds a value.

It is linear. Its features are words with their digits masked, pairs of words with names masked, and the
shapes of words, hashed into buckets; scripts without spaces count by pairs of characters. A text is judged
in windows, so that one private sentence of a long text is found.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from math import exp, sqrt
from typing import NamedTuple
from zlib import crc32

import msgspec
from msgspec import Struct

BUCKETS = 24_576
WINDOW_CHARS = 300
_OVERLAP_CHARS = 120
_LONGEST_WORD = 40

_TOKEN = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]+|[!-&(-/:-@\[-^`{-~]|\w+(?:['’]\w+)?|[^\w\s]"
)
_DIGIT = re.compile(r"\d")
_NO_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\u0e00-\u0e7f]")
_END = re.compile(r"[.!?。！？;；](?=\s|$|[\u3040-\u9fff])\s*|\n\s*")
_SPACE = re.compile(r"\s")


class EvidenceFile(Struct, frozen=True, kw_only=True):
    """The weights as they are stored (MessagePack). `scale` turns a weight's 8 bits into its value."""

    buckets: int
    bias: float
    scale: float
    thresholds: dict[str, float]
    weights: bytes


class Window(NamedTuple):
    """A part of a text, and how likely it is private (0 to 1)."""

    start: int
    end: int
    probability: float


def windows(text: str) -> Iterator[tuple[int, int]]:
    """Parts of about `WINDOW_CHARS` characters that end where sentences or lines do and
    overlap by a sentence.

    They cover all of the text. What has no ends is cut at spaces, or anywhere.
    """
    if len(text) <= WINDOW_CHARS:
        if text.strip():
            yield 0, len(text)
        return
    start = previous = last = 0
    for begin, end in _sentences(text):
        if end - start > WINDOW_CHARS and last > start:
            yield start, last
            overlaps = last - previous <= _OVERLAP_CHARS and end - previous <= WINDOW_CHARS
            start = previous if overlaps else begin
        previous, last = begin, end
    if text[start:].strip():
        yield start, len(text)


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _END.finditer(text):
        yield from _pieces(text, start, match.end())
        start = match.end()
    if start < len(text):
        yield from _pieces(text, start, len(text))


def _pieces(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    while end - start > WINDOW_CHARS:
        cut = text.rfind(" ", start + WINDOW_CHARS // 2, start + WINDOW_CHARS) + 1 or start + WINDOW_CHARS
        yield start, cut
        start = cut
    if end > start:
        yield start, end


def features(text: str) -> set[int]:
    """The buckets that a window's features fall into."""
    found: set[str] = set()
    add = found.add
    before = "^"
    begins = True
    for token in _TOKEN.findall(text):
        word = masked = token[:_LONGEST_WORD].lower()
        if _DIGIT.search(token):
            # A key, a hash, a part number: which it is the rules must say.
            word = masked = "0" * min(len(token), 5) if token.isdecimal() else "x0"
        elif _NO_SPACES.match(word):
            found.update([word[place : place + 2] for place in range(len(word))])
            before = "字"
            begins = False
            continue
        elif token[0].isupper() and not begins:
            masked = "XX" if len(token) > 1 and token.isupper() else "Xx"
            add(masked)
        add(word)
        add(f"{before} {masked}")
        if len(word) > 6:
            add(word[:5] + "~")
        before = masked
        begins = word in ".!?:>\"'-"
    return {crc32(name.encode("utf-8", "surrogatepass")) % BUCKETS for name in found}


class Evidence:
    """The classifier with its weights."""

    def __init__(self, stored: EvidenceFile) -> None:
        self.thresholds = stored.thresholds
        self._bias = stored.bias
        # Signed bytes, as values.
        values = [(byte - 256 if byte > 127 else byte) * stored.scale for byte in range(256)]
        self._weights = [values[byte] for byte in stored.weights]

    def probability(self, window: str) -> float:
        """How likely a window of text is private, 0 to 1."""
        buckets = features(window)
        if not buckets:
            return 0.0
        weights = self._weights
        total = self._bias + sum([weights[bucket] for bucket in buckets]) / sqrt(len(buckets))
        return 1 / (1 + exp(-max(-30.0, min(30.0, total))))

    def judge(self, text: str) -> list[Window]:
        """Each window of a text with its probability, in the order of the text."""
        return [Window(start, end, self.probability(text[start:end])) for start, end in windows(text)]


def decode(data: bytes) -> Evidence:
    """The classifier of a weights file. Raises `ValueError` for what is none."""
    stored = msgspec.msgpack.decode(data, type=EvidenceFile)
    if stored.buckets != BUCKETS or len(stored.weights) != BUCKETS:
        raise ValueError(f"the weights are of {len(stored.weights)} buckets, not {BUCKETS}")
    return Evidence(stored)


@functools.cache
def load() -> tuple[Evidence, str]:
    """The classifier that mead brings, and its version: a short hash of its weights."""
    data = files("mead.router.classifier").joinpath("weights/privacy.bin").read_bytes()
    return decode(data), hashlib.sha256(data).hexdigest()[:12]
