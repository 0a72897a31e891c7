"""Tools for a model that was not trained to use any.

A small model writes a valid call only where a grammar makes it, and picks badly among many things. So the
tool is found by the words that request and description share, and the model fills in the arguments, under a
grammar made of the tool's schema, in which a text must be one of the pieces of the request. Two worked
examples show it the form. What the tool says is then the answer, word for word: asked to report it, the
packaged model makes things up. All of this is emulation, and is said to be.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from mead.core.messages import (
    Message,
    TextBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    blocks_of,
    text_of,
)

RESULT_CHARS = 2_000
"""How much of a result a model with a short context is shown."""
_MAX_PIECES = 60
_STEM_CHARS = 5

_COMMON = frozenset(
    {
        *("a", "about", "an", "and", "are", "as", "at", "be", "by", "can", "could", "do", "does", "for"),
        *("from", "give", "has", "have", "how", "i", "in", "is", "it", "let", "list", "me", "my", "of", "on"),
        *("or", "please", "show", "tell", "that", "the", "their", "there", "these", "this", "to", "us"),
        *("was", "we", "what", "when", "where", "which", "who", "will", "with", "would", "you", "your"),
    }
)
_QUOTED = re.compile(r"[\"“‘`]([^\"”’`]+)[\"”’`]|(?<!\w)'([^']+)'(?!\w)")
_PATH_WORDS = re.compile(r"path|dir|file|folder|repo|url|uri|root", re.IGNORECASE)

EXAMPLES: tuple[Message, ...] = (
    Message("user", "get_weather(city, days)\nRequest: How is the weather in Oslo in the next 3 days?"),
    Message("assistant", '{"city":"Oslo","days":3}'),
    Message("user", "add_file(path, title)\nRequest: Add a file called milk in /home/me/notes."),
    Message("assistant", '{"path":"/home/me/notes","title":"milk"}'),
)


def request_in(messages: Sequence[Message]) -> str | None:
    """What the person asks in the newest message; `None` once a tool has answered it: one call a turn."""
    if not messages or messages[-1].role != "user":
        return None
    blocks = blocks_of(messages[-1])
    if any(isinstance(block, ToolResultBlock) for block in blocks):
        return None
    return text_of(blocks) or None


def fitting_tool(request: str, tools: Sequence[Tool]) -> Tool | None:
    """The tool whose name and description share the most telling words with the request, if any does."""
    wanted = set(_stems(request))
    described = [set(_stems(f"{_own_name(tool)} {_description(tool)}")) for tool in tools]
    known_by = {word: sum(word in words for words in described) for word in wanted}
    best: tuple[float, Tool | None] = (0.0, None)
    for tool, words in zip(tools, described, strict=True):
        named = set(_stems(_own_name(tool)))
        score = sum(
            math.log(1 + len(tools) / known_by[word]) * (2 if word in named else 1)
            for word in wanted & words
            if len(tools) < 3 or known_by[word] <= len(tools) / 2
        )
        score /= 1 + 0.1 * len(named)
        if score > best[0]:
            best = (score, tool)
    return best[1]


def arguments_schema(tool: Tool, request: str) -> dict[str, object]:
    """The tool's schema narrowed to what it requires, its texts to the pieces of the request."""
    properties = tool.input_schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = [name for name in _names(tool.input_schema.get("required")) if name in properties]
    pieces = _pieces(request, tool)
    narrowed = {name: _narrow(name, properties[name], pieces) for name in required}
    schema: dict[str, object] = {
        "type": "object",
        "properties": narrowed,
        "required": required,
        "additionalProperties": False,
    }
    if "$defs" in tool.input_schema:
        schema["$defs"] = tool.input_schema["$defs"]
    return schema


def arguments_prompt(tool: Tool, request: str) -> str:
    """Asks for the arguments, in the form of the examples."""
    names = ", ".join(_names(tool.input_schema.get("required")))
    return f"{_own_name(tool)}({names})\nRequest: {request}"


def results_in(messages: Sequence[Message]) -> str | None:
    """What the tools answered in the newest message, in their own words; `None` if none did."""
    if not messages:
        return None
    names = {
        block.id: block.name
        for message in messages[-2:]
        for block in blocks_of(message)
        if isinstance(block, ToolUseBlock)
    }
    said = [
        f"{names.get(block.tool_use_id, 'The tool').rpartition('__')[2]} "
        f"{'failed' if block.is_error else 'answered'}:\n{block.content.strip()}"
        for block in blocks_of(messages[-1])
        if isinstance(block, ToolResultBlock)
    ]
    return "\n\n".join(said) or None


def without_tool_blocks(messages: Sequence[Message]) -> list[Message]:
    """The messages with calls and results told in words, for a model that knows nothing else."""
    told: list[Message] = []
    for message in messages:
        texts = [text for block in blocks_of(message) if (text := _told(block))]
        if message.role == "assistant" and not texts:
            continue  # a message that holds nothing but a call
        told.append(Message(message.role, "\n\n".join(texts)))
    return told


def _told(block: object) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case ToolResultBlock():
            said = block.content
            if len(said) > RESULT_CHARS:
                said = said[:RESULT_CHARS] + " …"
            what = "failed" if block.is_error else "answered"
            return f"The tool {what}:\n{said}\n\nReport the result in one sentence."
        case _:
            return ""


def call_in(text: str, tool: Tool) -> ToolUseBlock | None:
    """The call that the model wrote; `None` if it is not whole (the grammar allows it to be cut off)."""
    try:
        arguments = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return None
    if not isinstance(arguments, dict):
        return None
    required = _names(tool.input_schema.get("required"))
    if any(name not in arguments for name in required):
        return None
    return ToolUseBlock("", tool.name, arguments)


def _narrow(name: str, schema: Any, pieces: Sequence[str]) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    if schema.get("type") == "array":
        return {**schema, "items": _narrow(name, schema.get("items"), pieces)}
    if schema.get("type") != "string" or "enum" in schema or "const" in schema or "pattern" in schema:
        return schema
    paths = [piece for piece in pieces if "/" in piece]
    others = [piece for piece in pieces if "/" not in piece]
    fitting = paths if _PATH_WORDS.search(name) and paths else others or paths
    return {"enum": fitting} if fitting else {"type": "string", "maxLength": 200}


def _pieces(request: str, tool: Tool) -> list[str]:
    """What in the request may be an argument: what is quoted, else its words but those that name the tool or
    its parameters."""
    about = set(_stems(f"{_own_name(tool)} {_description(tool)}"))
    properties = tool.input_schema.get("properties")
    about |= set(_stems(" ".join(properties) if isinstance(properties, Mapping) else ""))
    pieces = [first or second for first, second in _QUOTED.findall(request)]
    rest = _QUOTED.sub(" ", request)
    for word in rest.split():
        piece = word.strip(".,;:?!()[]'\"")
        telling = not set(_stems(piece)) <= about or any(ch in piece for ch in "/\\._-0123456789")
        if piece and piece.lower() not in _COMMON and telling and piece not in pieces:
            pieces.append(piece)
    named = [piece for piece in pieces if "/" not in piece]
    quoted = [first or second for first, second in _QUOTED.findall(request)]
    if quoted and len(named) > len(quoted):
        # Somebody who quotes means what is quoted.
        pieces = [piece for piece in pieces if "/" in piece or piece in quoted]
    return pieces[:_MAX_PIECES]


def _stems(text: str) -> list[str]:
    return [
        word[:_STEM_CHARS]
        for word in re.findall(r"[a-z0-9]+", text.lower().replace("_", " "))
        if len(word) > 1 and word not in _COMMON
    ]


def _own_name(tool: Tool) -> str:
    """The name without its server's."""
    return tool.name.rpartition("__")[2]


def _description(tool: Tool) -> str:
    return re.sub(r"^\[[^\]]*\]\s*", "", tool.description or "")


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
