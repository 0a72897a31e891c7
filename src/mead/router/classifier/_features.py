"""What the difficulty model sees of a prompt: hashed words and character n-grams, and its surface.

Training and run time both use this file, so they cannot differ. Whoever changes what it gives must run
`scripts/train` again; a test notices.

What tells of the wrapper more than of the question is masked first: sentences such as "Answer with the letter
only", labels such as "Question:", and the letters of a multiple choice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import log1p
from zlib import crc32

from msgspec import Struct

from mead.core.messages import Tool

BUCKETS = 1 << 13
"""How many buckets the words have, and the character n-grams again."""
KNOWN_BITS = 1 << 15
"""How many bits the filter of known words has."""
HEAD, TAIL = 6_000, 2_000
"""How many characters are looked at of a long text: its beginning, and its end."""
SURFACE = (
    "length",
    "number of words",
    "word length",
    "long words",
    "numbers",
    "mathematics",
    "code",
    "lines",
    "sentences",
    "capitals",
    "other scripts",
    "question words: first",
    "question words",
    "orders",
    "negations",
    "question mark",
    "quotes",
    "gaps",
    "statements",
    "small first letter",
    "options",
    "options: length",
    "options: words",
    "options: numbers",
    "options: mathematics",
    "options: long words",
    "options: combined",
    "options: capitals",
    "tools",
    "tools: how many",
    "tools: parameters",
)
"""The names of the surface features, in their order."""

_GRAM = 6
_LONG_WORD = 9
_BEGINNING = 8  # words
_SHORTEST = 15  # less than this is no question; what would leave less is not masked

_OPTION = re.compile(r"^[ \t]*\(?[A-Ja-j][.):][ \t]*(\S.*)$", re.MULTILINE)
_LABEL = re.compile(
    r"^[ \t]*(?:question|context|passage|options?|choices|answer|input|output|problem|instructions?|q|a)"
    r"[ \t]*:[ \t]*",
    re.IGNORECASE | re.MULTILINE,
)
_WRAPPING = (
    r"\b(?:multiple[- ]choice|the (?:correct|right|best) (?:answer|option|choice|letter)"
    r"|following (?:questions?|problems?)|step[- ]by[- ]step|(?:final|your) answer"
    r"|only the (?:letter|answer|number|option)|helpful assistant|answer (?:concisely|briefly)"
    r"|(?:answer|respond|reply) with)\b|\\boxed"
)
_HINT = re.compile(_WRAPPING, re.IGNORECASE)
_WRAPPER = re.compile(
    rf"(?:^|(?<=[.!?:\n]))[^.!?:\n]{{0,80}}(?:{_WRAPPING})[^.!?:\n]{{0,120}}[.!?:]?", re.IGNORECASE
)
_TOKEN = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")
_QUESTION_WORDS = frozenset(["who", "whose", "when", "where", "which", "what", "name"])
_ORDERS = frozenset(
    [
        "write",
        "create",
        "implement",
        "design",
        "explain",
        "describe",
        "give",
        "find",
        "calculate",
        "compute",
        "determine",
        "prove",
        "solve",
        "make",
        "generate",
        "convert",
        "compare",
        "list",
        "summarise",
        "summarize",
        "translate",
        "analyse",
        "analyze",
    ]
)
_NEGATIONS = frozenset(["not", "except", "never", "no", "false", "incorrect", "least", "without"])
_CODE = re.compile(
    r"```|\b(?:def|class|import) \w|\breturn\b|#include|>>>|\bfunction\b|\bpython\b|\b\w{1,40}\(\w{0,40}\)|=>"
    r"|[{};][ \t]*$|==",
    re.IGNORECASE | re.MULTILINE,
)
_MATHEMATICS = re.compile(r"[=+*/^<>√∑∫π≤≥×÷%$\\]|\d-\d")
_SENTENCE = re.compile(r"[.!?](?:\s|$)")
_CAPITAL = re.compile(r"[A-Z]")
_OTHER_SCRIPT = re.compile(r"[^\x00-\u024f]")
_NUMERIC = re.compile(r"(?=.{0,11}\d)[\s$€£%+\-−.,\d/^()*=√πa-z]{1,12}")
_COMBINED = re.compile(r"\b(?:all|none|both|neither) of|\bI and|\bonly\b|(?:true|false), ", re.IGNORECASE)


class Features(Struct, frozen=True, gc=False):
    """A prompt as the model sees it.

    `words` and `grams` are the buckets that it holds, each once. `hashes` are those of its words, for
    `coverage`; numbers and signs are no words. `surface` has the order of `SURFACE`.
    """

    words: tuple[int, ...]
    grams: tuple[int, ...]
    hashes: tuple[int, ...]
    surface: tuple[float, ...]


def features_of(text: str, tools: Sequence[Tool] = ()) -> Features:
    """What the model sees of a prompt and of the tools that are offered with it.

    Of a text longer than `HEAD + TAIL` characters the middle is not looked at, so the time has a limit.
    """
    if len(text) > HEAD + TAIL:
        text = f"{text[:HEAD]}\n{text[-TAIL:]}"
    question, options = mask(text)
    asked, offered = tokens_of(question), tokens_of("\n".join(options))
    tokens = asked + offered
    by_word = {token: crc32(token.encode("utf-8", "surrogatepass")) for token in tokens}
    data = f" {' '.join(tokens)} ".encode("utf-8", "surrogatepass")
    grams = {crc32(data[at : at + _GRAM]) & (BUCKETS - 1) for at in range(len(data) - _GRAM + 1)}
    return Features(
        words=tuple({value & (BUCKETS - 1) for value in by_word.values()}),
        grams=tuple(grams),
        hashes=tuple([by_word[token] for token in tokens if token[0].isalpha()]),
        surface=(
            *_surface_of(question, asked),
            *_surface_of_options(options, offered),
            *_surface_of_tools(tools),
        ),
    )


def mask(text: str) -> tuple[str, list[str]]:
    """The question without its wrapper, and the options of a multiple choice without their letters."""
    options = _OPTION.findall(text)
    if len(options) >= 2:
        text = _OPTION.sub("", text)
    else:
        options = []
    text = _LABEL.sub("", text)
    if _HINT.search(text):
        rest = _WRAPPER.sub(" ", text)
        if len(rest.strip()) >= _SHORTEST:
            text = rest
    return text.strip(), options


def tokens_of(text: str) -> list[str]:
    """Words in small letters, single signs, and for each number how many digits it has.

    >>> tokens_of("Is 12 > 7?")
    ['is', '#2', '>', '#1', '?']
    """
    return [
        f"#{min(len(token), 4)}" if token[0].isdigit() else token for token in _TOKEN.findall(text.lower())
    ]


def known_bit(value: int) -> int:
    """The bit of a word in the filter of known words, by its hash."""
    # The low bits choose its bucket, so these are independent of it.
    return (value >> 13) & (KNOWN_BITS - 1)


def coverage(hashes: Sequence[int], known: bytes) -> tuple[int, float]:
    """How many of the words are known, and what share of all that is; 0 for none. The filter is small: about
    one unknown word in seven passes for a known one."""
    found = 0
    for value in hashes:
        bit = known_bit(value)
        found += known[bit >> 3] >> (bit & 7) & 1
    return found, found / len(hashes) if hashes else 0.0


def _surface_of(text: str, tokens: Sequence[str]) -> tuple[float, ...]:
    length = len(text) or 1
    words = [token for token in tokens if token[0].isalpha()]
    count = len(words) or 1
    numbers = sum([token[0] == "#" and len(token) > 1 for token in tokens])
    return (
        log1p(len(text)),
        log1p(len(words)),
        sum(map(len, words)) / count,
        sum([len(word) >= _LONG_WORD for word in words]) / count,
        log1p(numbers),
        log1p(len(_MATHEMATICS.findall(text))),
        log1p(len(_CODE.findall(text))),
        log1p(text.count("\n")),
        log1p(len(_SENTENCE.findall(text))),
        len(_CAPITAL.findall(text)) / length,
        len(_OTHER_SCRIPT.findall(text)) / length,
        float(not _QUESTION_WORDS.isdisjoint(words[:_BEGINNING])),
        float(not _QUESTION_WORDS.isdisjoint(words)),
        log1p(sum([word in _ORDERS for word in words])),
        log1p(sum([word in _NEGATIONS for word in words])),
        float(text.endswith("?")),
        log1p(text.count('"') + text.count("'")),
        float("__" in text),
        float("|" in text or "tatement" in text),
        float(text[:1].islower()),
    )


def _surface_of_options(options: Sequence[str], tokens: Sequence[str]) -> tuple[float, ...]:
    if not options:
        return (0.0,) * 8
    joined = " ".join(options)
    words = [token for token in tokens if token[0].isalpha()]
    return (
        1.0,
        log1p(len(joined)),
        log1p(len(words) / len(options)),
        sum([_NUMERIC.fullmatch(option) is not None for option in options]) / len(options),
        log1p(len(_MATHEMATICS.findall(joined))),
        sum([len(word) >= _LONG_WORD for word in words]) / (len(words) or 1),
        float(_COMBINED.search(joined) is not None),
        len(_CAPITAL.findall(joined)) / len(joined),
    )


def _surface_of_tools(tools: Sequence[Tool]) -> tuple[float, ...]:
    parameters = 0
    for tool in tools:
        properties = tool.input_schema.get("properties")
        parameters += len(properties) if isinstance(properties, Mapping) else 0
    return float(len(tools) > 0), log1p(len(tools)), log1p(parameters)
