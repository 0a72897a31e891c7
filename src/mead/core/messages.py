"""Blocks, messages and tools: what a conversation is made of (P5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

Role: TypeAlias = Literal["user", "assistant"]
StopReason: TypeAlias = Literal["end_turn", "tool_use", "max_tokens"]


class TextBlock(Struct, frozen=True, tag_field="type", tag="text"):
    """Words of the person or of the model."""

    text: str


class ToolUseBlock(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="tool_use"):
    """The model asks for a tool.

    `malformed` holds the arguments as the model wrote them when they are not a JSON object; `input` is empty
    then, and such a call is never run.
    """

    id: str
    name: str
    input: Mapping[str, object]
    malformed: str | None = None


class ToolResultBlock(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="tool_result"):
    """What a tool answered, as text for the model."""

    tool_use_id: str
    content: str
    is_error: bool = False


class ImageBlock(Struct, frozen=True, tag_field="type", tag="image"):
    """A picture: its bytes and their media type, for example `image/png`."""

    media_type: str
    data: bytes


class DocumentBlock(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="document"):
    """A file that the model is to read, for example `application/pdf`."""

    media_type: str
    data: bytes
    name: str | None = None


class VendorBlock(Struct, frozen=True, tag_field="type", tag="vendor"):
    """A piece of a reply that only its own vendor understands (thinking and its signature, a server tool's
    result), kept byte for byte and sent back to that vendor alone. Never shown as answer text."""

    vendor: str
    data: msgspec.Raw


Block: TypeAlias = TextBlock | ToolUseBlock | ToolResultBlock | ImageBlock | DocumentBlock | VendorBlock


class Message(Struct, frozen=True):
    """One side's contribution. `content` is the text, or blocks where there is more than text."""

    role: Role
    content: str | tuple[Block, ...]


class Tool(Struct, frozen=True, omit_defaults=True):
    """A tool as a model sees it. `input_schema` is a JSON Schema whose type is `object`."""

    name: str
    description: str | None
    input_schema: Mapping[str, object]


def blocks_of(message: Message) -> tuple[Block, ...]:
    """The message's content as blocks, whichever way it is written."""
    content = message.content
    if isinstance(content, str):
        return (TextBlock(content),) if content else ()
    return content


def text_of(content: str | Sequence[Block]) -> str:
    """The text blocks of a content, joined."""
    if isinstance(content, str):
        return content
    return "".join([block.text for block in content if isinstance(block, TextBlock)])


def clean_text(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD: it could not be encoded as UTF-8.

    >>> clean_text("a\\ud83db")
    'a�b'
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
