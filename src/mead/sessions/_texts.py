"""The texts in messages that fingerprints are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mead.core.messages import DocumentBlock, Message, ToolResultBlock, ToolUseBlock, blocks_of, text_of

_OPENING = re.compile(r"^[ \t]*<([A-Za-z][\w-]{0,63})>[ \t]*$", re.MULTILINE)
_TRIES = 16
_SPEAKER = re.compile(
    r'^[ \t>*#"{]*(?:role"?\s*:\s*")?(?:user|assistant|human|ai|model)\b["*]{0,3}\s{0,3}[:,]',
    re.IGNORECASE | re.MULTILINE,
)


def texts_of(message: Message) -> list[str]:
    """A message's words, the values of the calls in it, the results of tools, and files that are text."""
    texts = [text_of(message.content)]
    for block in blocks_of(message):
        if isinstance(block, ToolUseBlock):
            texts += [*_strings_in(block.input), block.malformed or ""]
        elif isinstance(block, ToolResultBlock):
            texts.append(block.content)
        elif isinstance(block, DocumentBlock) and block.media_type.startswith("text/"):
            texts.append(block.data.decode(errors="replace"))
    return [text for text in texts if text and not text.isspace()]


def _strings_in(value: object) -> Iterator[str]:
    """The strings in a JSON value, however deep, without names of fields."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, Mapping):
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each


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
