"""Sessions as files: JSON Lines and Markdown to take away, JSON Lines and other programs' files to bring in.

JSON Lines hold everything, labels too: a first line about the session, then a line for each turn. A history
from elsewhere has no labels, and nobody knows where it has been: it is `local_only`.
"""

from __future__ import annotations

import datetime
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mead.core.conversation import encode
from mead.core.messages import (
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    blocks_of,
)
from mead.core.options import Route
from mead.core.turns import Label, Turn
from mead.core.usage import UsageTotal
from mead.sessions.session import imported
from mead.storage.protocol import SessionRecord, StoredTurn

FORMAT = 1


class Brought(Struct, frozen=True, kw_only=True):
    """A session that was read from a file."""

    title: str | None
    turns: tuple[Turn, ...]
    tags: tuple[str, ...] = ()
    system: str | None = None


class TransferError(ValueError):
    """The file cannot be read as sessions; the text says why."""


# Out


def to_jsonl(record: SessionRecord, turns: Sequence[StoredTurn]) -> Iterator[str]:
    """The lines of a session."""
    head = {
        "mead": FORMAT,
        "session_id": record.session_id,
        "title": record.title,
        "tags": record.tags,
        "created_at": record.created_at,
        "system": record.options.system,
    }
    yield msgspec.json.encode(head).decode()
    for stored in turns:
        line = {
            "turn": stored.number,
            "route": stored.route,
            "label": stored.label,
            "finished_at": stored.finished_at,
            "usage": stored.usage,
            "messages": stored.turn().decode(),
        }
        yield msgspec.json.encode(line).decode()


def to_markdown(record: SessionRecord, turns: Sequence[StoredTurn]) -> str:
    """A session to read."""
    parts = [f"# {record.title or record.session_id}"]
    if record.options.system:
        parts.append(f"> {_quoted(record.options.system)}")
    for stored in turns:
        at = datetime.datetime.fromtimestamp(stored.finished_at).astimezone()
        parts.append(
            f"## {stored.number} · {stored.route or 'no model'} · {stored.label} · {at:%Y-%m-%d %H:%M}"
        )
        parts += [_markdown(message) for message in stored.turn().decode()]
    return "\n\n".join(parts) + "\n"


def _markdown(message: Message) -> str:
    blocks = blocks_of(message)
    answers = any(isinstance(block, ToolResultBlock) for block in blocks)
    who = "Model" if message.role == "assistant" else "Tools" if answers else "You"
    shown = [text for block in blocks if (text := _shown(block))]
    return "\n\n".join([f"**{who}**", *shown])


def _shown(block: object) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case ToolUseBlock():
            return f"`{block.name}` {msgspec.json.encode(block.input).decode()}"
        case ToolResultBlock():
            return f"> {_quoted(block.content)}"
        case ImageBlock() | DocumentBlock():
            return f"[{block.media_type}, {len(block.data):,} bytes]"
        case _:
            return ""


def _quoted(text: str) -> str:
    return text.replace("\n", "\n> ")


# In


class _Head(Struct, frozen=True):
    title: str | None = None
    tags: tuple[str, ...] = ()
    system: str | None = None


class _Line(Struct, frozen=True):
    messages: list[Message]
    route: Route | None = None
    label: Label = "local_only"
    usage: UsageTotal | None = None


def read_sessions(path: Path) -> list[Brought]:
    """The sessions of a file: JSON Lines of mead, the log database of `llm`, or an export of Open WebUI.

    Raises `TransferError`.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError as error:
        raise TransferError(f"{path} cannot be read: {error.strerror}") from error
    if head == b"SQLite format 3\0":
        return _from_llm(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TransferError(f"{path} is no text") from error
    return sessions_in(text, str(path))


def sessions_in(text: str, name: str) -> list[Brought]:
    """The sessions of a text: JSON Lines of mead, or an export of Open WebUI. `name` is what the text is
    called where something is wrong with it. Raises `TransferError`."""
    if text.lstrip().startswith("["):
        return _from_open_webui(name, _json(name, text))
    return list(_from_jsonl(name, text))


def _json(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TransferError(f"{path} is no JSON that can be read") from error


def _from_jsonl(path: str, text: str) -> Iterator[Brought]:
    head: _Head | None = None
    turns: list[Turn] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            keys = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            if "mead" in keys:
                if bytes(keys["mead"]) != str(FORMAT).encode():
                    raise TransferError(f"{path}, line {number}: this was written by a newer mead")
                if head is not None:
                    yield _brought(head, turns)
                head, turns = msgspec.json.decode(line, type=_Head), []
            elif head is not None:
                turns.append(_turn(msgspec.json.decode(line, type=_Line), len(turns) + 1))
            else:
                raise TransferError(_unknown(path))
        except TransferError:
            raise
        except (ValueError, RecursionError) as error:
            if head is None:
                raise TransferError(_unknown(path)) from error
            raise TransferError(f"{path}, line {number}: this is no turn") from error
    if head is None:
        raise TransferError(f"{path} holds no session")
    yield _brought(head, turns)


def _unknown(path: str) -> str:
    return f"{path} is of no known form: no JSON Lines of mead, log database of llm or export of Open WebUI"


def _turn(line: _Line, number: int) -> Turn:
    messages = encode(line.messages)
    if not messages.data:
        raise ValueError("a turn says something")
    return Turn(messages=messages, number=number, route=line.route, label=line.label, usage=line.usage)


def _brought(head: _Head, turns: Sequence[Turn]) -> Brought:
    return Brought(title=head.title, tags=head.tags, system=head.system, turns=tuple(turns))


def _from_llm(path: Path) -> list[Brought]:
    """The conversations of the `llm` program's log database."""
    query = (
        "SELECT c.id, c.name, r.prompt, r.response FROM responses r "
        "JOIN conversations c ON c.id = r.conversation_id ORDER BY c.id, r.datetime_utc, r.id"
    )
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            rows = connection.execute(query).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise TransferError(f"{path} is no log database of llm: {error}") from error
    found: dict[str, tuple[str | None, list[Message]]] = {}
    for conversation, name, prompt, response in rows:
        _, messages = found.setdefault(conversation, (name, []))
        messages += [Message("user", str(prompt or "")), Message("assistant", str(response or ""))]
    return [_elsewhere(_text(title) or None, messages) for title, messages in found.values()]


def _from_open_webui(path: str, document: Any) -> list[Brought]:
    """The chats of an export of Open WebUI: of each the branch that was shown last."""
    found = [entry.get("chat") for entry in document if isinstance(entry, dict)]
    chats: list[dict[str, Any]] = [chat for chat in found if isinstance(chat, dict)]
    if not chats:
        raise TransferError(_unknown(path) if document else f"{path} holds no session")
    return [_elsewhere(_text(chat.get("title")) or None, _branch(chat)) for chat in chats]


def _branch(chat: Mapping[str, Any]) -> Iterable[Message]:
    found = chat.get("history")
    history: dict[str, Any] = found if isinstance(found, dict) else {}
    nodes = history.get("messages")
    if not isinstance(nodes, dict):
        listed = chat.get("messages")
        return [message for node in listed if (message := _message(node))] if isinstance(listed, list) else []
    messages: list[Message] = []
    node_id, seen = history.get("currentId"), set[str]()
    while isinstance(node_id, str) and node_id in nodes and node_id not in seen:
        seen.add(node_id)
        node = nodes[node_id]
        if (message := _message(node)) is not None:
            messages.append(message)
        node_id = node.get("parentId") if isinstance(node, dict) else None
    return reversed(messages)


def _message(node: Any) -> Message | None:
    if not isinstance(node, dict) or node.get("role") not in ("user", "assistant"):
        return None
    return Message(node["role"], _text(node.get("content")))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _elsewhere(title: str | None, messages: Iterable[Message]) -> Brought:
    return Brought(title=title, turns=tuple(imported(list(messages), owner="local")))
