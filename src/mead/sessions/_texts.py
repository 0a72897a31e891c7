"""The texts in messages that fingerprints are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mead.core.messages import DocumentBlock, Message, ToolResultBlock, ToolUseBlock, blocks_of, text_of

_OPENING = re.compile(r"^[ \t]*<([A-Za-z][\w-]{0,63})>[ \t]*$", re.MULTILINE)
_TRIES = 16
_IDENTIFIER = re.compile(r"[\w$@/:.-]{1,128}")
_BETWEEN = re.compile(r"[\W_]")
_KEY_CHARACTERS, _KEY_DIGITS = 20, 4
_SPEAKER = re.compile(
    r'^[ \t>*#"{]*(?:role"?\s*:\s*")?(?:user|assistant|human|ai|model)\b["*]{0,3}\s{0,3}[:,]',
    re.IGNORECASE | re.MULTILINE,
)


def texts_of(message: Message) -> list[str]:
    """A message's words, the calls in it with what they are called with, the results of tools, and files that
    are text. Names count where they say something, see `_said`."""
    texts = [text_of(message.content)]
    for block in blocks_of(message):
        if isinstance(block, ToolUseBlock):
            texts += [*_said(block.name), block.id, *_strings_in(block.input), block.malformed or ""]
        elif isinstance(block, ToolResultBlock):
            texts += [block.tool_use_id, block.content]
        elif isinstance(block, DocumentBlock) and block.media_type.startswith("text/"):
            texts.append(block.data.decode(errors="replace"))
    return [text for text in texts if text and not text.isspace()]


def _strings_in(value: object) -> Iterator[str]:
    """The strings in a JSON value, however deep, and what is said in the names of fields."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            for name in each:
                yield from _said(name)
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each


def _said(name: str) -> Iterator[str]:
    """A name that somebody has made up, or that holds a key. The identifiers that tools and their fields have
    say nothing: they stand in the descriptions of tools too, which every request brings."""
    if not _IDENTIFIER.fullmatch(name) or any(map(_is_key, _BETWEEN.split(name))):
        yield name


def _is_key(word: str) -> bool:
    """Whether a part of a name is a key or a hash: long, and with more digits than a name has."""
    return len(word) >= _KEY_CHARACTERS and sum(map(str.isdigit, word)) >= _KEY_DIGITS


def frame_of(text: str) -> str | None:
    """The transcript in a prompt that a client has made around it, to have a title made, say: what stands
    between a line `<tag>` and a line `</tag>`, if two speakers' lines begin in it. `None` for other texts.

    >>> frame_of("Name this:\\n<chat>\\nUser: hello\\nAssistant: hi\\n</chat>\\nUse 3 words.")
    'User: hello\\nAssistant: hi'
    """
    for opening, _ in zip(_OPENING.finditer(text), range(_TRIES), strict=False):
        end = text.rfind(f"</{opening[1]}>", opening.end())
        inner = text[opening.end() : end].strip("\n") if end >= 0 else ""
        speakers = _SPEAKER.finditer(inner)
        if next(speakers, None) and next(speakers, None):
            return inner
    return None
