"""Strict checks of requests: what a server of the wire format could refuse fails here, and says why.

    async with FakeServer(Answer(body=…)) as server:
        ...
    check_openai(server.requests[0].json())

Each check takes a decoded body and raises `AssertionError` with the place and the fault. `strict` also asks
for what only some servers and models insist on: roles that alternate, a question at the end, tools that
everybody knows.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")
_SERVER_ROLES = ("system", "developer")


def check_openai(body: object, *, strict: bool = True) -> None:
    """Checks a request to `/v1/chat/completions`: every tool call is answered in the next messages, nothing
    is empty."""
    request = _request(body)
    _function_tools(request, strict=strict)
    _needs(request, "tool_choice", "tools")
    if request.get("stream_options") is not None and request.get("stream") is not True:
        _fail("stream_options", "is set, but stream is not true")
    for name in ("max_tokens", "max_completion_tokens"):
        _positive(request, name)
    _walk_functions(request["messages"], _openai_message)
    if strict:
        _alternate([m["role"] for m in request["messages"]], last=("user", "tool"))


def check_anthropic(body: object, *, strict: bool = True) -> None:
    """Checks a request to `/v1/messages`. `strict` is the API version 2026-10-21, which takes no sampling
    options."""
    request = _request(body)
    _positive(request, "max_tokens", needed=True)
    _system(request.get("system"))
    tools = _tools(request)
    for index, tool in enumerate(tools):
        if tool.get("type", "custom") == "custom":
            _name(f"tools[{index}].name", tool.get("name"))
            _schema(f"tools[{index}].input_schema", tool.get("input_schema"))
            _description(f"tools[{index}]", tool)
    _distinct("tools", [tool["name"] for tool in tools if "name" in tool])
    _needs(request, "tool_choice", "tools")
    for index, text in enumerate(request.get("stop_sequences") or ()):
        _text(f"stop_sequences[{index}]", text)
    _walk_anthropic(request["messages"])
    if strict:
        for name in ("temperature", "top_p", "top_k", "seed"):
            if name in request:
                _fail(name, "is not taken by this version of the API")
        _alternate([m["role"] for m in request["messages"]], last=("user",))


def check_ollama(body: object, *, strict: bool = True) -> None:
    """Checks a request to `/api/chat`."""
    request = _request(body)
    _function_tools(request, strict=strict)
    if not isinstance(request.get("options", {}), dict):
        _fail("options", "is not an object")
    if request.get("format") is not None and not isinstance(request["format"], (str, dict)):
        _fail("format", "is neither a word nor a schema")
    if not isinstance(request.get("stream", True), bool):
        _fail("stream", "is neither true nor false")
    _walk_functions(request["messages"], _ollama_message)
    if strict:
        _alternate([m["role"] for m in request["messages"]], last=("user", "tool"))


# What the formats share


def _fail(where: str, what: str) -> NoReturn:
    raise AssertionError(f"{where} {what}")


def _request(body: object) -> dict[str, Any]:
    if not isinstance(body, dict):
        _fail("the body", "is not an object")
    if not (isinstance(body.get("model"), str) and body["model"]):
        _fail("model", "is missing")
    messages = body.get("messages")
    if not (isinstance(messages, list) and messages):
        _fail("messages", "is missing or empty")
    for index, message in enumerate(messages):
        if not (isinstance(message, dict) and isinstance(message.get("role"), str)):
            _fail(f"messages[{index}]", "is no message with a role")
    return body


def _tools(request: Mapping[str, Any]) -> Sequence[dict[str, Any]]:
    tools = request.get("tools")
    if tools is None:
        return ()
    if not (isinstance(tools, list) and tools):
        _fail("tools", "is empty: leave it out")
    return tools


def _function_tools(request: Mapping[str, Any], *, strict: bool) -> None:
    names = []
    for index, tool in enumerate(_tools(request)):
        if tool.get("type") == "function":
            _function_tool(f"tools[{index}]", tool.get("function"))
            names.append(tool["function"]["name"])
        elif strict or not isinstance(tool.get("type"), str):
            _fail(f"tools[{index}]", "is not of type function")
    _distinct("tools", names)


def _function_tool(where: str, function: object) -> None:
    if not isinstance(function, dict):
        _fail(where, "has no function")
    _name(f"{where}.function.name", function.get("name"))
    _schema(f"{where}.function.parameters", function.get("parameters"))
    _description(f"{where}.function", function)


def _name(where: str, name: object) -> None:
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        _fail(where, f"is {name!r}, not 1 to 64 of a-z, A-Z, 0-9, _ and -")


def _schema(where: str, schema: object) -> None:
    if not (isinstance(schema, dict) and schema.get("type") == "object"):
        _fail(where, "is not a schema of type object")
    if not isinstance(schema.get("properties", {}), dict):
        _fail(f"{where}.properties", "is not an object")


def _description(where: str, tool: Mapping[str, Any]) -> None:
    if "description" in tool and not isinstance(tool["description"], str):
        _fail(f"{where}.description", "is not a text: leave it out")


def _needs(request: Mapping[str, Any], name: str, other: str) -> None:
    if request.get(name) is not None and not request.get(other):
        _fail(name, f"is set without {other}")


def _positive(request: Mapping[str, Any], name: str, *, needed: bool = False) -> None:
    value = request.get(name)
    if value is None and not needed:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        _fail(name, f"is {value!r}, not a positive number")


def _text(where: str, text: object) -> None:
    if not (isinstance(text, str) and text.strip()):
        _fail(where, "is not a text, or an empty one")


def _base64(where: str, data: object) -> None:
    try:
        if isinstance(data, str) and data and base64.b64decode(data, validate=True):
            return
    except binascii.Error:
        pass
    _fail(where, "is not base64")


def _distinct(where: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            _fail(where, f"has {name!r} twice")
        seen.add(name)


def _alternate(roles: Sequence[str], *, last: Sequence[str]) -> None:
    """System messages only in front; then the user begins, and the assistant and the others take turns."""
    first = next((index for index, role in enumerate(roles) if role not in _SERVER_ROLES), len(roles))
    expected = "user"
    for index, role in enumerate(roles[first:], first):
        if role == "tool":
            expected = "assistant or user"
        elif role not in expected.split(" or "):
            _fail(f"messages[{index}]", f"is from the {role}; here the {expected} would speak")
        else:
            expected = "assistant" if role == "user" else "user"
    if roles[-1] not in last:
        _fail(f"messages[{len(roles) - 1}]", f"is the last one and from the {roles[-1]}: nothing is asked")


# OpenAI and Ollama: a tool's result is a message of its own


class _Open:
    """The calls of the newest assistant message that are not answered yet, and every id so far."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.unnamed = 0
        self.seen: set[str] = set()

    def call(self, where: str, call_id: object, name: str) -> None:
        if not isinstance(call_id, str) or not call_id:
            _fail(f"{where}.id", "is missing")
        if call_id in self.seen:
            _fail(f"{where}.id", f"is {call_id!r}, which another call has already")
        self.seen.add(call_id)
        self.names[call_id] = name

    def answer(self, where: str, call_id: object) -> str:
        if not isinstance(call_id, str) or call_id not in self.names:
            _fail(where, f"answers {call_id!r}, which is no open call of the message before")
        return self.names.pop(call_id)

    def expect_none(self, where: str) -> None:
        if self.names:
            _fail(where, f"comes before the results of {', '.join(self.names)}")


def _walk_functions(messages: Sequence[dict[str, Any]], check: Any) -> None:
    calls = _Open()
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message["role"] != "tool":
            calls.expect_none(where)
        check(where, message, calls)
    calls.expect_none("the end")


def _openai_message(where: str, message: Mapping[str, Any], calls: _Open) -> None:
    content = message.get("content")
    match message["role"]:
        case "system" | "developer" | "user":
            _openai_content(f"{where}.content", content)
        case "assistant":
            wanted = message.get("tool_calls")
            if wanted is not None and not (isinstance(wanted, list) and wanted):
                _fail(f"{where}.tool_calls", "is empty: leave it out")
            if content is not None or not wanted:
                _openai_content(f"{where}.content", content)
            for index, call in enumerate(wanted or ()):
                _openai_call(f"{where}.tool_calls[{index}]", call, calls)
        case "tool":
            calls.answer(where, message.get("tool_call_id"))
            if not isinstance(content, (str, list)):
                _fail(f"{where}.content", "is not a text")
        case role:
            _fail(where, f"is from {role!r}, a role that the format does not have")


def _openai_call(where: str, call: object, calls: _Open) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not (isinstance(call, dict) and call.get("type") == "function" and isinstance(function, dict)):
        _fail(where, "is not a call of type function")
    _name(f"{where}.function.name", function.get("name"))
    text, arguments = function.get("arguments"), None
    if isinstance(text, str):
        with contextlib.suppress(msgspec.DecodeError):
            arguments = msgspec.json.decode(text)
    if not isinstance(arguments, dict):
        _fail(f"{where}.function.arguments", "is not the JSON text of an object")
    calls.call(where, call.get("id"), function["name"])


def _openai_content(where: str, content: object) -> None:
    if not isinstance(content, list):
        _text(where, content)
        return
    if not content:
        _fail(where, "is empty")
    for index, part in enumerate(content):
        place = f"{where}[{index}]"
        if not isinstance(part, dict):
            _fail(place, "is not a part")
        match part.get("type"):
            case "text":
                _text(f"{place}.text", part.get("text"))
            case "image_url":
                if not str((part.get("image_url") or {}).get("url")).startswith(("data:", "http")):
                    _fail(f"{place}.image_url", "has no address")
            case "file" | "input_audio" | "video_url":
                if not isinstance(part.get(part["type"]), dict):
                    _fail(place, f"has no {part['type']}")
            case kind:
                _fail(place, f"is of the unknown type {kind!r}")


def _ollama_message(where: str, message: Mapping[str, Any], calls: _Open) -> None:
    content = message.get("content", "")
    if not isinstance(content, str):
        _fail(f"{where}.content", "is not a text")
    for index, image in enumerate(message.get("images") or ()):
        _base64(f"{where}.images[{index}]", image)
    match message["role"]:
        case "system" | "user":
            if not (content.strip() or message.get("images")):
                _fail(where, "is empty")
        case "assistant":
            wanted = message.get("tool_calls")
            if not (content.strip() or wanted):
                _fail(where, "is empty")
            for index, call in enumerate(wanted or ()):
                _ollama_call(f"{where}.tool_calls[{index}]", call, calls)
        case "tool":
            name = calls.answer(where, message.get("tool_call_id"))
            if message.get("tool_name") != name:
                _fail(f"{where}.tool_name", f"is {message.get('tool_name')!r}; the call was of {name!r}")
        case role:
            _fail(where, f"is from {role!r}, a role that the format does not have")


def _ollama_call(where: str, call: object, calls: _Open) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not (isinstance(call, dict) and isinstance(function, dict)):
        _fail(where, "has no function")
    _text(f"{where}.function.name", function.get("name"))
    if not isinstance(function.get("arguments"), dict):
        _fail(f"{where}.function.arguments", "is not an object")
    calls.call(where, call.get("id"), function["name"])


# Anthropic: results are blocks of the next user message


def _system(system: object) -> None:
    if isinstance(system, list):
        for index, block in enumerate(system):
            _text(f"system[{index}]", block.get("text") if isinstance(block, dict) else None)
    elif system is not None:
        _text("system", system)


def _walk_anthropic(messages: Sequence[dict[str, Any]]) -> None:
    calls = _Open()
    for index, message in enumerate(messages):
        where, role, content = f"messages[{index}]", message["role"], message.get("content")
        if role not in ("user", "assistant", "system"):
            _fail(where, f"is from {role!r}, a role that the format does not have")
        if not isinstance(content, list):
            _text(f"{where}.content", content)
            content = []
        elif not content:
            _fail(f"{where}.content", "is empty")
        _results(where, role, content, calls)
        calls.expect_none(where)
        for place, block in enumerate(content):
            _anthropic_block(f"{where}.content[{place}]", role, block, calls)
        if content and role == "assistant" and content[-1]["type"] in ("thinking", "redacted_thinking"):
            _fail(f"{where}.content", "ends with thinking")
    calls.expect_none("the end")


def _results(where: str, role: str, content: Sequence[Any], calls: _Open) -> None:
    """The tool results of a message: all in front, each for an open call."""
    others = False
    for index, block in enumerate(content):
        place = f"{where}.content[{index}]"
        if not (isinstance(block, dict) and isinstance(block.get("type"), str)):
            _fail(place, "is not a block with a type")
        if block["type"] != "tool_result":
            others = True
            continue
        if role != "user":
            _fail(place, f"is a tool result from the {role}")
        if others:
            _fail(place, "is a tool result behind other content")
        calls.answer(place, block.get("tool_use_id"))
        if block.get("content") == []:
            _fail(f"{place}.content", "is empty: leave it out")


def _anthropic_block(where: str, role: str, block: Mapping[str, Any], calls: _Open) -> None:
    match block["type"]:
        case "text":
            _text(f"{where}.text", block.get("text"))
        case "image" | "document":
            if role != "user":
                _fail(where, f"is a {block['type']} from the {role}")
            _source(f"{where}.source", block.get("source"))
        case "tool_use" | "thinking" | "redacted_thinking" if role != "assistant":
            _fail(where, f"is a {block['type']} from the {role}")
        case "tool_use":
            _name(f"{where}.name", block.get("name"))
            if not isinstance(block.get("input"), dict):
                _fail(f"{where}.input", "is not an object")
            calls.call(where, block.get("id"), block["name"])
            if not _ANTHROPIC_ID.fullmatch(block["id"]):
                _fail(f"{where}.id", f"is {block['id']!r}, not of a-z, A-Z, 0-9, _ and -")
        case "thinking":
            if not block.get("signature"):
                _fail(f"{where}.signature", "is missing")


def _source(where: str, source: object) -> None:
    if not (isinstance(source, dict) and isinstance(source.get("type"), str)):
        _fail(where, "is not a source with a type")
    if source["type"] == "base64":
        _text(f"{where}.media_type", source.get("media_type"))
        _base64(f"{where}.data", source.get("data"))
    elif source["type"] == "text":
        _text(f"{where}.data", source.get("data"))
