"""Canaries: long random words that are planted in a conversation, and found again wherever they come out.

    canaries = Canaries(seed=1)
    secret = canaries.make("argument")
    assert find(base64.b64encode(f"at {secret}".encode()), [secret]) == [Found(secret, "base64")]

A word that nobody else uses proves by its mere presence that something got through. `find` looks for it as it
stands and through the encodings that text goes through on its way out, one inside the other.
"""

from __future__ import annotations

import binascii
import random
import re
import string
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from msgspec import Struct

LETTERS = 24
"""How long a canary is. Letters only, so that it means nothing to a search for numbers, names or keys."""
DEPTH = 5
"""How many encodings, one inside the other, are taken off at most."""

_MOST_VIEWS = 64
_MOST_BYTES = 64 * 1024 * 1024
_MOST_STREAMS = 16
# A canary of this length is found by either half, so that one that was cut off is found too.
_WORTH_HALVING = 16


class Canary(Struct, frozen=True):
    """A word to plant: `str(canary)`, or the canary itself in an f-string. `kind` says where it was planted;
    `number` counts from 1 within one `Canaries`."""

    kind: str
    number: int
    text: str

    @property
    def name(self) -> str:
        """What messages call it: they do not repeat the word."""
        return f"{self.kind} canary {self.number}"

    def __str__(self) -> str:
        return self.text


class Found(NamedTuple):
    """A canary that was found. `encoding` names what had to be undone, the outermost first (`gzip > base64`);
    `as it is` if nothing had. `part` says that only a half of it is there."""

    canary: Canary
    encoding: str
    part: bool = False


class Canaries:
    """Makes canaries. The same seed makes the same words."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(f"canaries {seed}")
        self.made: list[Canary] = []

    def make(self, kind: str) -> Canary:
        """A word that was never used before."""
        return self.keep(kind, "".join(self._random.choices(string.ascii_lowercase, k=LETTERS)))

    def keep(self, kind: str, text: str) -> Canary:
        """A canary of a text of your own. Raises `ValueError` for one under 6 characters, which could be
        found by chance."""
        if len(text) < 6:
            raise ValueError("a canary has 6 characters at least: a shorter one may be there by chance")
        canary = Canary(kind, len(self.made) + 1, text)
        self.made.append(canary)
        return canary


def find(data: bytes | str, canaries: Iterable[Canary]) -> list[Found]:
    """The canaries that stand in `data`, each once, whatever the case of their letters.

    Looks behind JSON's escapes (in JSON texts inside JSON texts too), percent-encoding, base64 (standard and
    URL-safe, whatever stands before the canary in the same text), hexadecimal digits, gzip, zlib and raw
    deflate, up to `DEPTH` of them one inside the other. Half a canary of 16 characters or more is enough.
    """
    wanted = [(canary, _parts(canary.text)) for canary in canaries]
    if not wanted:
        return []
    shortest = min(len(canary.text.encode(errors="replace")) for canary, _ in wanted)
    found: dict[Canary, Found] = {}
    for encoding, view in _views(data.encode(errors="replace") if isinstance(data, str) else data, shortest):
        lower = view.lower()
        for canary, (whole, halves) in wanted:
            known = found.get(canary)
            if known is not None and not known.part:
                continue
            if whole in lower:
                found[canary] = Found(canary, encoding)
            elif known is None and any(half in lower for half in halves):
                found[canary] = Found(canary, encoding, part=True)
    return [found[canary] for canary, _ in wanted if canary in found]


def _parts(text: str) -> tuple[bytes, Sequence[bytes]]:
    """A canary's text and its halves, as they stand in a view in lower case."""
    # `bytes.lower` knows ASCII letters only, as in the views.
    whole, middle = text.encode(errors="replace").lower(), len(text) // 2
    if len(text) < _WORTH_HALVING:
        return whole, ()
    return whole, [half.encode(errors="replace").lower() for half in (text[:middle], text[middle:])]


def _views(data: bytes, shortest: int) -> Iterator[tuple[str, bytes]]:
    """`data` as it is, then with encodings taken off, the fewest first."""
    seen = {data}
    views = [("", data)]
    for _ in range(DEPTH + 1):
        yield from ((name or "as it is", view) for name, view in views)
        deeper = []
        for name, view in views:
            for encoding, decoded in _decoded(view, shortest):
                if decoded and decoded not in seen and len(seen) < _MOST_VIEWS:
                    seen.add(decoded)
                    deeper.append((f"{name} > {encoding}" if name else encoding, decoded))
        views = deeper


def _decoded(view: bytes, shortest: int) -> Iterator[tuple[str, bytes]]:
    """The view with each encoding that it may be in taken off."""
    if b"\\" in view:
        yield "json", _without_escapes(view)
    if b"%" in view:
        yield "url", unquote_to_bytes(view)
    yield from _base64(view, shortest)
    yield from _hex(view, shortest)
    yield from _inflated(view)


_ESCAPE = re.compile(rb"\\+(?:u([0-9a-fA-F]{4})|([\"\\/bfnrt]))")
_ESCAPED = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t"}


def _without_escapes(view: bytes) -> bytes:
    """Without JSON's escapes. JSON inside JSON has more backslashes before the same letters."""

    def plain(match: re.Match[bytes]) -> bytes:
        if (code := match[1]) is not None:
            return chr(int(code, 16)).encode(errors="replace")
        return _ESCAPED.get(match[2], match[2])

    return _ESCAPE.sub(plain, view)


_URL_SAFE = bytes.maketrans(b"-_", b"+/")


def _base64(view: bytes, shortest: int) -> Iterator[tuple[str, bytes]]:
    """Each run of base64 digits, read from each of the four places where a byte may begin."""
    least = max(8, shortest * 4 // 3 - 2)
    runs = [run.translate(_URL_SAFE) for run in _runs(rb"[A-Za-z0-9+/_-]{%d,}", least, view)]
    for offset in range(4 if runs else 0):
        yield "base64", b"\n".join([_bytes_of_base64(run[offset:]) for run in runs])


def _bytes_of_base64(digits: bytes) -> bytes:
    if len(digits) % 4 == 1:
        digits = digits[:-1]  # six bits are no byte
    return binascii.a2b_base64(digits + b"=" * (-len(digits) % 4))


def _hex(view: bytes, shortest: int) -> Iterator[tuple[str, bytes]]:
    """Each run of hexadecimal digits, read from either place where a byte may begin."""
    runs = _runs(rb"[0-9a-fA-F]{%d,}", max(12, shortest * 2 - 2), view)
    for offset in range(2 if runs else 0):
        even = [run[offset : len(run) - (len(run) - offset) % 2] for run in runs]
        yield "hex", b"\n".join(map(binascii.unhexlify, even))


def _runs(pattern: bytes, least: int, view: bytes) -> list[bytes]:
    return re.findall(pattern % least, view)


_STREAMS = re.compile(rb"\x1f\x8b\x08|\x78[\x01\x5e\x9c\xda]")


def _inflated(view: bytes) -> Iterator[tuple[str, bytes]]:
    """What is compressed in the view, from each place where a stream seems to begin. A stream that breaks off
    gives what it has until then."""
    for match in list(_STREAMS.finditer(view))[:_MOST_STREAMS]:
        name, bits = ("gzip", 31) if match.group().startswith(b"\x1f") else ("zlib", 15)
        yield name, _inflate(view[match.start() :], bits)
    yield "deflate", _inflate(view, -15)  # raw deflate has no mark: it is the whole of a body or nothing


def _inflate(data: bytes, bits: int) -> bytes:
    reader, pieces = zlib.decompressobj(bits), []
    try:
        # Small steps: what was read before the data turned out to be broken is kept.
        for start in range(0, len(data), 256):
            pieces.append(reader.decompress(data[start : start + 256], _MOST_BYTES))
            if reader.eof:
                break
    except zlib.error:
        pass
    return b"".join(pieces)
