"""Finds the line on which a key stands in a TOML text: the parser of the standard library does not say."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

KeyPath: TypeAlias = tuple[str, ...]

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')"""
_DOTTED = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_STATEMENT = re.compile(rf"[ \t]*(?:\[\[?[ \t]*(?P<table>{_DOTTED})[ \t]*\]\]?|(?P<entry>{_DOTTED})[ \t]*=)")
_PART = re.compile(_KEY)
# What a value is made of. A string may hold brackets, line ends and what looks like a table, so strings are
# taken whole; the ones in three quotes come first because `"` alone begins them too.
_TOKEN = re.compile(
    r'"""(?:\\.|(?!""").)*"""' + r'"{0,2}'
    r"|'''(?:(?!''').)*'''" + r"'{0,2}"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"""|[^"'#\[\]{}\n]+"""
    r"|.",
    re.DOTALL,
)


def line_of(text: str, wanted: Sequence[str]) -> int | None:
    r"""The number, from 1, of the line of a TOML text that sets the key, or of the nearest table around it.

    A key of an inline table stands on the line of the key which that table belongs to. `None` where the text
    has nothing of the path. The text must be valid TOML.

    >>> line_of("[a]\nb = {c = 1}", ("a", "b", "c"))
    2
    """
    wanted = tuple(wanted)
    best, found = 0, None
    for line, path in _statements(text):
        if path[: len(wanted)] == wanted:
            score = len(wanted)
        else:
            score = len(path) if wanted[: len(path)] == path else 0
        if score > best:
            best, found = score, line
    return found


def _statements(text: str) -> Iterator[tuple[int, KeyPath]]:
    """Every table header and every key that is set outside brackets, with its line."""
    text = text.replace("\r\n", "\n")
    position, line = 0, 1
    table: KeyPath = ()
    while position < len(text):
        start = position
        if match := _STATEMENT.match(text, position):
            if match["table"]:
                table = path = _parts(match["table"])
            else:
                path = table + _parts(match["entry"])
            yield line, path
            position = match.end()
        position = _end_of_statement(text, position)
        line += text.count("\n", start, position)


def _end_of_statement(text: str, position: int) -> int:
    """Where the next statement begins: after the first line end that is in no string and no bracket."""
    depth = 0
    while position < len(text):
        token = _TOKEN.match(text, position)
        assert token is not None  # its last branch takes any character
        position = token.end()
        depth += (token[0] in ("[", "{")) - (token[0] in ("]", "}"))
        if token[0] == "\n" and depth <= 0:
            break
    return position


def _parts(path: str) -> KeyPath:
    return tuple([_plain(part) for part in _PART.findall(path)])


def _plain(part: str) -> str:
    if part[0] == '"':
        return str(tomllib.loads(f"key = {part}")["key"])
    return part.strip("'") if part[0] == "'" else part
