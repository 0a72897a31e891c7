"""Stands between a transport and the SDK, and repairs what would cost more than it should.

The SDK drops a whole list for one bad tool, and a whole result for one bad block. Here the one is repaired,
replaced by text, or left out, and a note says so. What mead does not offer (sampling, roots, elicitation) is
refused by the SDK itself, at once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeAlias

from mcp.shared.message import SessionMessage
from mcp.types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    CallToolResult,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    ListToolsResult,
)
from mcp.types.methods import validate_server_result
from mcp.types.version import MODERN_PROTOCOL_VERSIONS

from mead.mcp.transports import ANSWER_LOST, ReadStream, TransportStreams, Wire, WriteStream

_Object: TypeAlias = dict[str, Any]

_VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
_FIRST_VERSION: Final = "2025-11-25"
_TEXT_LIMIT: Final = 2000
_STRING_LIMIT: Final = 200

_BLOCK_KEYS: Final = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource": ("resource",),
    "resource_link": ("uri", "name"),
}
"""The block types that the SDK knows, with what each must have."""

_TOOL_EXTRAS: Final = ("description", "annotations", "title", "icons", "execution", "_meta")
_RESULT_KEYS: Final = frozenset(("content", "isError", "resultType"))


@asynccontextmanager
async def guarded(
    transport: AbstractAsyncContextManager[TransportStreams], wire: Wire
) -> AsyncIterator[TransportStreams]:
    """The transport's two streams, with the results of `tools/list` and `tools/call` repaired.

    Output schemas are removed, so that the SDK cannot refuse a result for not keeping to one.
    """
    async with transport as (read, write):
        asked = _Asked()
        yield _Reading(read, asked, wire), _Writing(write, asked)


class _Asked:
    """The requests on their way whose results are looked at: their method and protocol version by id."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, str]] = {}
        self._version = _FIRST_VERSION

    def sent(self, message: JSONRPCRequest) -> None:
        if message.method in ("initialize", "tools/list", "tools/call"):
            # A modern request names its version itself; before that, the handshake settled it.
            meta = (message.params or {}).get("_meta") or {}
            self._open[str(message.id)] = message.method, meta.get(_VERSION_KEY, self._version)

    def forget(self, request_id: object) -> None:
        self._open.pop(str(request_id), None)

    def answered(self, message: JSONRPCResponse) -> tuple[str, str] | None:
        found = self._open.pop(str(message.id), None)
        if found is not None and found[0] == "initialize":
            version = message.result.get("protocolVersion")
            self._version = version if isinstance(version, str) else _FIRST_VERSION
        return found


class _Reading(ReadStream["SessionMessage | Exception"]):
    def __init__(self, inner: ReadStream[SessionMessage | Exception], asked: _Asked, wire: Wire) -> None:
        self._inner = inner
        self._asked = asked
        self._wire = wire

    @property
    def last_context(self) -> object:
        """The context of the newest message's sender, which the SDK looks for."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        item = await self._inner.receive()
        if isinstance(item, SessionMessage):
            message = item.message
            if isinstance(message, JSONRPCResponse):
                match self._asked.answered(message):
                    case "tools/list", version:
                        _repair_list(message.result, version, self._wire.note)
                    case "tools/call", version:
                        _repair_result(message.result, version, self._wire.note)
            elif isinstance(message, JSONRPCError):
                self._asked.forget(message.id)
                if message.error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                    # The SDK's own codes. Here they come from the server, or for one request alone; left as
                    # they are they would say that the connection is gone.
                    message.error.code = ANSWER_LOST
        return item

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Writing(WriteStream[SessionMessage]):
    def __init__(self, inner: WriteStream[SessionMessage], asked: _Asked) -> None:
        self._inner = inner
        self._asked = asked

    async def send(self, item: SessionMessage, /) -> None:
        """Raises `ValueError` for arguments that are no JSON, before anything is sent."""
        message = item.message
        if isinstance(message, JSONRPCRequest):
            if message.method == "tools/call":
                _check(message.params)
            self._asked.sent(message)
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._asked.forget((message.params or {}).get("requestId"))
        await self._inner.send(item)

    async def aclose(self) -> None:
        await self._inner.aclose()


def _check(params: object) -> None:
    # The HTTP transport would find out in a task of its own, and end the session.
    try:
        json.dumps(params, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"the arguments cannot be sent as JSON: {error}") from error


# Lists


def _repair_list(result: _Object, version: str, note: Callable[[str], None]) -> None:
    tools = result.get("tools")
    if not isinstance(tools, list):
        note("The server's list of tools is no list; it was taken for an empty one.")
        tools = []
    mended = [tool for tool in (_mended_tool(tool, note) for tool in tools) if tool is not None]
    result["tools"] = mended
    if version in MODERN_PROTOCOL_VERSIONS:
        result.setdefault("resultType", "complete")
        result.setdefault("ttlMs", 0)
        result.setdefault("cacheScope", "private")
    if _fits("tools/list", version, result):
        return
    frame = {"tools": [], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    result["tools"] = [
        tool for tool in (_fitting_tool(tool, version, frame, note) for tool in mended) if tool is not None
    ]
    if not _fits("tools/list", version, result):
        note("The server's list of tools has fields of the wrong kind beside the tools; they were left out.")
        cursor = result.get("nextCursor")
        tools = result["tools"]
        result.clear()
        result.update(frame, tools=tools, **({"nextCursor": cursor} if isinstance(cursor, str) else {}))


def _mended_tool(tool: object, note: Callable[[str], None]) -> _Object | None:
    """The tool with an input schema that is an object; `None` for one that cannot be called."""
    if not isinstance(tool, dict) or not isinstance(tool.get("name"), str) or not tool["name"]:
        note(f"A tool without a name was left out: {_shown(tool)}.")
        return None
    name = _shown(tool["name"])
    tool.pop("outputSchema", None)
    schema = tool.get("inputSchema")
    # An empty PHP array is encoded as a list.
    if schema is None or schema == []:
        note(f"The tool {name} has no input schema; it is taken to need no arguments.")
        schema = {"type": "object", "properties": {}}
    if not isinstance(schema, dict):
        note(f"The tool {name} was left out: its input schema is {_shown(schema)}.")
        return None
    kind = schema.get("type")
    if kind != "object":
        if kind is not None and not (isinstance(kind, list) and "object" in kind):
            note(f"The tool {name} was left out: its input schema has the type {_shown(kind)}.")
            return None
        schema = {**schema, "type": "object"}
    if schema.get("properties") == []:
        schema = {**schema, "properties": {}}
    tool["inputSchema"] = schema
    return tool


def _fitting_tool(tool: _Object, version: str, frame: _Object, note: Callable[[str], None]) -> _Object | None:
    """The tool as the SDK takes it: without the fields that are wrong, or `None`."""

    def fits(candidate: _Object) -> bool:
        return _fits("tools/list", version, {**frame, "tools": [candidate]})

    if fits(tool):
        return tool
    name = _shown(tool["name"])
    kept = {"name": tool["name"], "inputSchema": tool["inputSchema"]}
    if not fits(kept):
        required = kept["inputSchema"].get("required")
        kept["inputSchema"] = {key: value for key, value in kept["inputSchema"].items() if key != "required"}
        if required is None or not fits(kept):
            note(f"The tool {name} was left out: its input schema is not valid.")
            return None
        note(f"The tool {name} has a list of required arguments that is none; it is not used.")
    for key in _TOOL_EXTRAS:
        if key in tool:
            if fits({**kept, key: tool[key]}):
                kept[key] = tool[key]
            else:
                note(f"The tool {name} has a {key} of the wrong kind, which is not used.")
    return kept


# Results


def _repair_result(result: _Object, version: str, note: Callable[[str], None]) -> None:
    if result.get("resultType", "complete") != "complete":
        return  # It is no result yet: the server asks for input, or speaks of a task.
    content = result.get("content")
    if (
        isinstance(content, list)
        and result.keys() <= _RESULT_KEYS
        and isinstance(result.get("isError", False), bool)
        and all(map(_is_plain_text, content))
        and (version not in MODERN_PROTOCOL_VERSIONS or "resultType" in result)
    ):
        return  # Nearly all are like this, and need no closer look.
    if version in MODERN_PROTOCOL_VERSIONS:
        result["resultType"] = "complete"
    if not isinstance(content, list):
        result["content"] = _content_of(result, content)
        note("A result came without a list of content blocks.")
    if "isError" in result and not isinstance(result["isError"], bool):
        result["isError"] = result["isError"] not in (None, 0, "", "false")
    if _fits("tools/call", version, result):
        return

    def fits(block: object) -> bool:
        return _fits("tools/call", version, {"content": [block], "resultType": "complete"})

    result["content"] = [_fitting_block(block, fits, note) for block in result["content"]]
    if not _fits("tools/call", version, result):
        note("A result had fields of the wrong kind beside its content; they were left out.")
        _keep_content(result)


def _is_plain_text(block: object) -> bool:
    return (
        isinstance(block, dict)
        and len(block) == 2
        and block.get("type") == "text"
        and isinstance(block.get("text"), str)
    )


def _content_of(result: _Object, content: object) -> list[object]:
    """The blocks of a result whose content is no list."""
    if isinstance(content, str):
        return [_text(content)]
    if content is not None:
        return [content]
    if "structuredContent" in result:
        return []
    rest = {key: value for key, value in result.items() if key not in _RESULT_KEYS and key != "_meta"}
    return [_text(_json(rest))] if rest else []


def _fitting_block(block: object, fits: Callable[[object], bool], note: Callable[[str], None]) -> object:
    """The block, or what can be saved of it, or a text that says what it was."""
    if fits(block):
        return block
    if isinstance(block, str):
        note("A content block was a bare text.")
        return _text(block)
    if not isinstance(block, dict):
        note("A content block that is no object was replaced by text.")
        return _text(f"[unsupported content] {_json(block)}")
    kind = block.get("type")
    if isinstance(kind, str) and kind in _BLOCK_KEYS:
        bare = {"type": kind, **{key: block[key] for key in _BLOCK_KEYS[kind] if key in block}}
        if fits(bare):
            note(f"A content block of the type {kind!r} had extra fields of the wrong kind.")
            return bare
    note(f"A content block of the type {_shown(kind)} was replaced by text.")
    resource = block.get("resource")
    for holder in (block, resource):
        if isinstance(holder, dict) and isinstance(holder.get("text"), str):
            return _text(holder["text"])
    return _text(f"[unsupported content] {_json(block)}")


def _keep_content(result: _Object) -> None:
    """Leaves the content and whether it is an error; structured content follows as text."""
    kept: _Object = {"content": result["content"], "isError": result.get("isError", False)}
    structured = result.get("structuredContent")
    if structured is not None and not any(map(_is_plain_text, kept["content"])):
        kept["content"] = [*kept["content"], _text(_json(structured, shorten=False))]
    if "resultType" in result:
        kept["resultType"] = "complete"
    result.clear()
    result.update(kept)


# Helpers


def _fits(method: str, version: str, result: _Object) -> bool:
    """Whether the SDK will take the result. These are the two checks that it makes."""
    model = ListToolsResult if method == "tools/list" else CallToolResult
    try:
        # Of a method that the version does not have, the SDK checks nothing either.
        with contextlib.suppress(KeyError):
            validate_server_result(method, version, result)
        model.model_validate(result, by_name=False)
    except (ValueError, RecursionError):
        return False
    return True


def _text(text: str) -> _Object:
    return {"type": "text", "text": text}


def _json(value: object, *, shorten: bool = True) -> str:
    """Compact JSON; for a person or a model to look at, so long strings (binary) and long rests are cut."""
    try:
        text = json.dumps(_short(value) if shorten else value, ensure_ascii=False, separators=(",", ":"))
    except RecursionError:
        return "(nested too deeply)"
    return text if not shorten or len(text) <= _TEXT_LIMIT else f"{text[:_TEXT_LIMIT]}…"


def _short(value: object) -> object:
    match value:
        case str() if len(value) > _STRING_LIMIT:
            return f"({len(value):,} characters)"
        case dict():
            return {key: _short(item) for key, item in value.items()}
        case list():
            return [_short(item) for item in value]
    return value


def _shown(value: object) -> str:
    """A server's word for the operator's eyes: short, and without control characters."""
    try:
        text = repr(value)
    except RecursionError:
        return "(nested too deeply)"
    return text if len(text) <= 80 else f"{text[:79]}…"
