"""Takes a server's description of a tool over: what a model is shown of it is bounded and clean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from mead.core.messages import clean_text
from mead.mcp.pins import Definition

if TYPE_CHECKING:
    from mcp.types import Tool

MAX_DESCRIPTION_CHARS = 2_000
MAX_SCHEMA_CHARS = 20_000
# Control characters, and those that are not seen or turn the direction of writing: a description is read by a
# model and shown to a person, and both must read the same.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def clean(text: str) -> str:
    """A text of a server without what is not seen."""
    return _HIDDEN.sub("", clean_text(text))


def definition_of(tool: Tool) -> Definition | str:
    """The tool's definition, or a sentence that says why it cannot be used."""
    name = tool.name
    if not name.strip():
        return "a tool without a name was left out"
    schema = tool.input_schema
    size = len(msgspec.json.encode(schema))
    if size > MAX_SCHEMA_CHARS:
        return f"{clean(name)}: its schema is {size:,} characters long, over {MAX_SCHEMA_CHARS:,}"
    hints = tool.annotations
    return Definition(
        name=name,
        description=clean(tool.description)[:MAX_DESCRIPTION_CHARS] if tool.description else None,
        title=clean(tool.title) if tool.title else None,
        input_schema=schema,
        read_only=bool(hints and hints.read_only_hint),
        destructive=hints is None or hints.destructive_hint is not False,
    )
