"""Reads what comes in from callers: checked once, encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, get_args

import msgspec

from mead.core.conversation import EncodedMessages, encode, encode_user
from mead.core.messages import (
    Block,
    DocumentBlock,
    ImageBlock,
    Message,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    VendorBlock,
    blocks_of,
)
from mead.core.options import NO_OPTIONS, RouteChoice, TurnOptions
from mead.core.reasons import InvalidOptions
from mead.core.result import Err
from mead.core.turns import Turn
from mead.sessions.keywords import TurnKeywords
from mead.sessions.session import imported

Attachments: TypeAlias = tuple[ImageBlock | DocumentBlock, ...]


def turn_options(turn: TurnKeywords, *, stream: bool = False) -> TurnOptions:
    """A turn's options. Raises `ValueError` for a `route` or `tools` that is not one of the words."""
    route, tools = turn.get("route", "auto"), turn.get("tools")
    check_choice("route", route, get_args(RouteChoice))
    check_choice("tools", tools, (None, "effect", "none"))
    return TurnOptions(
        route=route,
        tools=tools,
        options=turn.get("options", NO_OPTIONS),
        stream=stream,
        allow_private=turn.get("allow_private", False),
        attachments=tuple(turn.get("attachments", ())),
        tags=tuple(turn.get("tags", ())),
        client_tools=tuple(turn.get("client_tools", ())),
        idempotency_key=turn.get("idempotency_key"),
    )


def read_turn(text: str, attachments: Attachments, *, limit: int) -> EncodedMessages | Err[InvalidOptions]:
    """The person's message, encoded. Refused when it holds nothing, or more than `limit` bytes."""
    size = _bytes_in(text) + sum([len(block.data) for block in attachments])
    if size > limit:
        return _too_long(size, limit)
    if not text.strip() and not attachments:
        return Err(InvalidOptions(detail="the turn is empty: give it some text"))
    if not attachments:
        return encode_user(text)
    blocks: list[Block] = [*attachments]
    if text.strip():
        blocks.append(TextBlock(text))
    return encode([Message("user", tuple(blocks))])


def read_request(
    messages: Sequence[Message], attachments: Attachments, *, limit: int
) -> EncodedMessages | Err[InvalidOptions]:
    """A conversation that its client brings, repaired and encoded; attachments join its last message. Refused
    when there is nothing to answer at its end, or when it holds more than `limit` bytes.

    Raises `ValueError` for what is no `Message`.
    """
    if not all(isinstance(message, Message) for message in messages):
        raise ValueError("messages must be a sequence of mead.Message")
    if any(message.role not in get_args(Role) for message in messages):
        raise ValueError("a message's role must be user or assistant; a system prompt is one of the options")
    brought = [*messages, Message("user", attachments)] if attachments else list(messages)
    try:
        size = sum([_size_of(block) for message in brought for block in blocks_of(message)])
        if size > limit:
            return _too_long(size, limit)
        encoded = encode(brought)
        repaired = encoded.decode()
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError("a message has a content that no message has") from error
    if not repaired or brought[-1].role != "user" or repaired[-1].role != "user":
        return Err(
            InvalidOptions(
                detail="the conversation has nothing to answer: its last message must be the person's, or "
                "hold the results of tools"
            )
        )
    return encoded


def as_turns(history: Sequence[Message] | Sequence[Turn], owner: str) -> list[Turn]:
    """What a session begins with, as turns. Raises `ValueError` for a mixture."""
    turns = [item for item in history if isinstance(item, Turn)]
    messages = [item for item in history if isinstance(item, Message)]
    if len(turns) + len(messages) != len(history) or (turns and messages):
        raise ValueError("history must be messages, or turns, and not both")
    return turns or imported(messages, owner=owner)


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raises `ValueError` for a word that is none of the choices."""
    if value not in choices:
        words = ", ".join([repr(choice) for choice in choices])
        raise ValueError(f"{name} must be one of {words}, not {value!r}")


def check_timeout(timeout_s: float) -> None:
    """Raises `ValueError` for a time that is over before it begins."""
    if not timeout_s > 0:
        raise ValueError(f"turn_timeout_s must be over 0, not {timeout_s}")


def _size_of(block: Block) -> int:
    match block:
        case TextBlock(text=text):
            return _bytes_in(text)
        case ToolUseBlock():
            return len(msgspec.json.encode(block.input)) + _bytes_in(block.malformed or "")
        case ToolResultBlock():
            return _bytes_in(block.content)
        case ImageBlock() | DocumentBlock():
            return len(block.data)
        case VendorBlock():
            return len(bytes(block.data))


def _bytes_in(text: str) -> int:
    return len(text.encode(errors="replace"))


def _too_long(size: int, limit: int) -> Err[InvalidOptions]:
    return Err(
        InvalidOptions(
            detail=f"the turn is {size:,} bytes long and the limit is {limit:,}; shorten it, or "
            "raise max_input_bytes under [sessions]"
        )
    )
