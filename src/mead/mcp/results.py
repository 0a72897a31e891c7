"""Turns what an MCP tool answered into text for a model, within a budget."""

from __future__ import annotations

import base64
import binascii
import re
from typing import TYPE_CHECKING, Any

import msgspec

from mead.core.messages import clean_text

if TYPE_CHECKING:
    from mcp.types import CallToolResult

NOTHING = "(no content)"
_UNKNOWN_CHARS = 2000
_HEAD_SHARE = 0.7
# Everything of C0 and C1 but line ends and tabs: a result is shown to people too.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def text_of_result(result: CallToolResult, *, max_chars: int) -> str:
    """The text of a result: texts as they are, resources inline, a note for what is binary.

    Structured content is added where no text carries it. What is over `max_chars` is cut out of the middle.
    """
    texts = [text for block in result.content if (text := _text_of_block(block))]
    structured = result.structured_content
    if structured is not None and not _carries(texts, structured):
        texts.append(msgspec.json.encode(structured).decode())
    text = _CONTROL.sub("", clean_text("\n".join(texts)))
    return cut(text, max_chars) if text.strip() else NOTHING


def cut(text: str, max_chars: int) -> str:
    """The text, or its head and tail with a note of how much was left out between them."""
    if len(text) <= max_chars:
        return text
    head = int(max_chars * _HEAD_SHARE)
    tail = max_chars - head
    left_out = len(text) - max_chars
    return f"{text[:head]}\n[… {left_out:,} characters left out …]\n{text[len(text) - tail :]}"


def _text_of_block(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return f"[{block.type} {block.mime_type}, {_size(block.data):,} bytes]"
        case "resource":
            return _text_of_resource(block.resource)
        case "resource_link":
            about = ", ".join(
                [str(fact) for fact in (block.mime_type, _bytes(getattr(block, "size", None))) if fact]
            )
            return f"{block.name} <{block.uri}>" + (f" ({about})" if about else "")
        case _:
            return str(block.model_dump_json(by_alias=True))[:_UNKNOWN_CHARS]


def _text_of_resource(resource: Any) -> str:
    text = getattr(resource, "text", None)
    if text is not None:
        return f"[{resource.uri}]\n{text}"
    return f"[resource {resource.uri}, {resource.mime_type or 'binary'}, {_size(resource.blob):,} bytes]"


def _bytes(size: int | None) -> str | None:
    return None if size is None else f"{size:,} bytes"


def _size(data: str) -> int:
    """How many bytes a base64 text stands for."""
    try:
        return len(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        return len(data) * 3 // 4


def _carries(texts: list[str], structured: object) -> bool:
    """Whether one of the texts is the structured content, as servers are asked to send it."""
    for text in texts:
        if text[:1] not in '{["0123456789-tfn':
            continue
        try:
            if msgspec.json.decode(text) == structured:
                return True
        except (msgspec.DecodeError, UnicodeEncodeError):
            continue
    return isinstance(structured, dict) and list(structured) == ["result"] and _is_said(structured, texts)


def _is_said(structured: dict[str, Any], texts: list[str]) -> bool:
    """Whether a wrapped plain result (`{"result": …}`) is what the texts say."""
    value = structured["result"]
    said = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return said == "\n".join(texts)
