"""The person's own lists: words, paths, patterns and prefixes that make a text private.

All are looked for in the normalised text, whatever the case of its letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mead.router.classifier.normalise import PARAGRAPH, normalise
from mead.router.classifier.rule import Hit

_BETWEEN_WORDS = r"[\s_.-]{0,3}"
_SPACED_OUT = r"[\s_.*-]{1,2}"
_MAYBE_SPACED = r"[\s_.*-]{0,2}"
_NO_LETTER = re.compile(r"[\W_]+")
_HOME = r"(?:~|/home/[^/\s]{1,64}|/Users/[^/\s]{1,64}|/root|[A-Za-z]:[/\\]{1,2}Users[/\\]{1,2}[^/\\\s]{1,64})"
_SHORT_WORD, _SPACED_WORD = 5, 6


class PrivateLists:
    """What a person says is private. Raises `ValueError` for a pattern that is no regular expression.

    A word of fewer than five letters counts as a whole word only; a longer one anywhere. It is found, too, if
    spaces or hyphens stand between its letters. A path may be a glob (`*`, `**`, `?`) or the beginning of
    paths; `~` is anybody's home. Patterns are Python's; how long one takes is its author's affair.
    """

    def __init__(
        self, *, words: Sequence[str], paths: Sequence[str], patterns: Sequence[str], prefixes: Sequence[str]
    ) -> None:
        self._words = [_word(word) for word in words if word.strip()]
        self._paths = [re.compile(_path(path), re.IGNORECASE) for path in paths if path.strip()]
        self._patterns = [_pattern(pattern) for pattern in patterns if pattern]
        stripped = [normalise(prefix).text.strip() for prefix in prefixes]
        starts = "|".join([re.escape(prefix) for prefix in stripped if prefix])
        self._prefix = re.compile(rf"{PARAGRAPH}(?:{starts})", re.IGNORECASE) if starts else None

    def hits(self, text: str) -> Iterator[Hit]:
        """What a normalised text holds of the lists."""
        if self._prefix is not None:
            yield from _hits("marker", self._prefix, text)
        if self._words:
            letters = _letters(text)
            for word_letters, regex in self._words:
                if word_letters in letters:
                    yield from _hits("private_word", regex, text)
        for regex in self._paths:
            yield from _hits("private_path", regex, text)
        for regex in self._patterns:
            yield from _hits("private_pattern", regex, text)


def _hits(kind: str, regex: re.Pattern[str], text: str) -> Iterator[Hit]:
    for match in regex.finditer(text):
        if match.group():
            yield Hit(kind, *match.span())


def _letters(text: str) -> str:
    return _NO_LETTER.sub("", text.lower())


def _word(word: str) -> tuple[str, re.Pattern[str]]:
    """The word's letters, without which a text cannot hold it, and what finds it."""
    parts = normalise(word).text.split()
    letters = _letters("".join(parts))
    together = _BETWEEN_WORDS.join([re.escape(part) for part in parts])
    is_short = len(letters) < _SHORT_WORD and letters.isascii()
    forms = [rf"(?<![^\W_]){together}(?![^\W_])" if is_short else together]
    if len(letters) >= 3:
        gap = _MAYBE_SPACED if len(letters) >= _SPACED_WORD else _SPACED_OUT
        forms.append(rf"(?<![^\W_]){gap.join([re.escape(ch) for ch in ''.join(parts)])}(?![^\W_])")
    return letters, re.compile("|".join(forms), re.IGNORECASE)


_GLOB = {"**": r"[^\s\"'<>|]{0,200}", "*": r"[^\s\"'<>|/\\]{0,80}", "?": r"[^\s/\\]"}


def _path(path: str) -> str:
    """A regular expression for the paths that a glob or a beginning means."""
    path = normalise(path).text.strip()
    anywhere = path.startswith("*")
    regex = "" if anywhere else r"(?<![\w.~])"
    if path.startswith("~"):
        regex, path = regex + _HOME, path[1:]
    for part in re.findall(r"\*{2}|[*?]|[/\\]+|[^*?/\\]+", path.lstrip("*")):
        regex += _GLOB.get(part) or (r"[/\\]{1,4}" if part[0] in "/\\" else re.escape(part))
    return regex if path.endswith(("/", "\\", "*")) else regex + r"(?![\w-])"


def _pattern(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the private pattern {pattern!r} is no regular expression: {error}") from None
