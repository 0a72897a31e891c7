"""Anthropic messages, and servers that speak the same format (llama.cpp).

Format: the Anthropic API reference, "Messages" and "Streaming", version 2026-10-21, as spoken by anthropic
2.14. Under this version sampling options are refused, so they are refused here, before anything is sent. A
stream is over with `message_stop`, and with nothing else.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mead.core.conversation import Conversation
from mead.core.messages import (
    Block,
    DocumentBlock,
    ImageBlock,
    Message,
    StopReason,
    TextBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    VendorBlock,
    blocks_of,
)
from mead.core.options import Options
from mead.core.reasons import InvalidOptions, ProviderReason
from mead.core.result import Err, Ok, Result
from mead.core.usage import Usage
from mead.providers._adapter import (
    HttpAdapter,
    Request,
    count,
    cut_off,
    join_body,
    object_schema,
    parse_arguments,
    safe_name,
    with_ids,
)
from mead.providers._errors import Sent, reason_in_body, unreadable
from mead.providers._show import Show
from mead.providers._sse import SseParser
from mead.providers.http import HttpClient
from mead.providers.protocol import OnDelta, Reply

DEFAULT_BASE_URL = "https://api.anthropic.com"
API_VERSION = "2026-10-21"
DEFAULT_MAX_TOKENS = 4096
"""Sent when nobody set a limit: the format demands one."""

_NOT_TAKEN = ("temperature", "top_p", "top_k", "seed")
_STOP_REASONS: dict[str, StopReason] = {
    "tool_use": "tool_use",
    "max_tokens": "max_tokens",
    "model_context_window_exceeded": "max_tokens",
}
_WARNINGS = {
    "refusal": "The model declined to answer.",
    "pause_turn": "The provider paused a long turn; ask it to go on.",
    "model_context_window_exceeded": "The answer filled the model's context.",
}


class _Delta(Struct):
    type: str = ""
    text: Any = None
    partial_json: Any = None
    thinking: Any = None
    signature: Any = None
    stop_reason: Any = None


class _Event(Struct):
    """An event of a stream, or a whole answer: their fields do not collide."""

    type: str = ""
    index: int = 0
    delta: _Delta | None = None
    content_block: dict[str, Any] | None = None
    message: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    error: Any = None
    content: list[dict[str, Any]] | None = None
    stop_reason: Any = None


_decode = msgspec.json.Decoder(_Event).decode


class Anthropic(HttpAdapter):
    """The messages adapter. A local server is asked where its model runs: Ollama speaks this format too."""

    wire_format = "messages"

    def __init__(
        self,
        client: HttpClient,
        *,
        api_key: str | None = None,
        name: str = "anthropic",
        needs_key: bool = False,
    ) -> None:
        super().__init__(client, api_key=api_key, name=name, needs_key=needs_key)
        self.headers = {"content-type": "application/json", "anthropic-version": API_VERSION}
        if self.api_key:
            self.headers["authorization"] = f"Bearer {self.api_key}"
        self._show = Show(client, self.headers, secret=self.api_key)

    async def _refusal(
        self, conversation: Conversation, tools: Sequence[Tool], options: Options
    ) -> ProviderReason | None:
        refusal = await super()._refusal(conversation, tools, options)
        if refusal is None and self.must_stay_here:
            return await self._show.elsewhere(options)
        return refusal

    def _unsupported(self, conversation: Conversation, options: Options) -> ProviderReason | None:
        for name in _NOT_TAKEN:
            if getattr(options, name) is not None:
                return InvalidOptions(detail=f"Anthropic takes no {name}; leave it unset for this slot")
        if options.response_format is not None and options.response_format.schema is None:
            return InvalidOptions(detail="Anthropic needs a JSON Schema for a response format")
        return None

    def _request(
        self, conversation: Conversation, tools: Sequence[Tool], options: Options, *, stream: bool
    ) -> Request:
        head: dict[str, object] = {
            "model": options.model,
            "max_tokens": options.max_tokens or DEFAULT_MAX_TOKENS,
        }
        if stream:
            head["stream"] = True
        if options.system:
            head["system"] = options.system
        if options.stop:
            head["stop_sequences"] = options.stop
        head.update(_thinking_and_format(options))
        if options.extra:
            head.update(options.extra)
        parts = {"messages": b"[" + self._messages_json(conversation) + b"]"}
        if tools:
            parts["tools"] = self._tools_json(tools)
            head = {**_tool_use(options), **head}
        return Request("/v1/messages", join_body(head, **parts), self.headers)

    def _tool(self, tool: Tool) -> object:
        wire: dict[str, object] = {"name": tool.name, "input_schema": object_schema(tool)}
        if tool.description:
            wire["description"] = tool.description
        return wire

    def _message(self, message: Message) -> list[dict[str, object]]:
        content = [wire for block in blocks_of(message) if (wire := self._block(block)) is not None]
        while content and _is_thinking(content[-1]):
            content.pop()  # the API refuses a message that ends with it
        return [{"role": message.role, "content": content}] if content else []

    def _block(self, block: Block) -> object:
        match block:
            case TextBlock():
                return {"type": "text", "text": block.text}
            case ToolUseBlock():
                return {
                    "type": "tool_use",
                    "id": safe_name(block.id),
                    "name": safe_name(block.name),
                    "input": block.input,
                }
            case ToolResultBlock():
                return _tool_result(block)
            case ImageBlock():
                return {"type": "image", "source": _base64(block)}
            case DocumentBlock():
                return _document(block)
            case VendorBlock():
                return block.data if block.vendor == self.vendor else None

    def _reader(self, sent: Sent, on_delta: OnDelta | None) -> MessagesReader:
        return MessagesReader(sent, self.vendor, on_delta)


def _tool_use(options: Options) -> dict[str, object]:
    if options.tool_choice is None and options.parallel_tools is None:
        return {}
    choice: dict[str, object] = {"type": "auto"}
    if options.tool_choice == "required":
        choice["type"] = "any"
    elif options.tool_choice is not None:
        choice = {"type": "tool", "name": safe_name(options.tool_choice)}
    if options.parallel_tools is not None:
        choice["disable_parallel_tool_use"] = not options.parallel_tools
    return {"tool_choice": choice}


def _thinking_and_format(options: Options) -> dict[str, object]:
    head: dict[str, object] = {}
    output: dict[str, object] = {}
    if options.thinking is False:
        head["thinking"] = {"type": "disabled"}
    elif options.thinking is not None:
        head["thinking"] = {"type": "adaptive"}
        if options.thinking is not True:
            output["effort"] = options.thinking
    if options.response_format is not None:
        output["format"] = {"type": "json_schema", "schema": options.response_format.schema}
    if output:
        head["output_config"] = output
    return head


def _is_thinking(wire: object) -> bool:
    if not isinstance(wire, msgspec.Raw):
        return False
    return str(msgspec.json.decode(wire).get("type")).endswith("thinking")


def _tool_result(block: ToolResultBlock) -> dict[str, object]:
    wire: dict[str, object] = {"type": "tool_result", "tool_use_id": safe_name(block.tool_use_id)}
    if block.content.strip():
        wire["content"] = block.content
    if block.is_error:
        wire["is_error"] = True
    return wire


def _base64(block: ImageBlock | DocumentBlock) -> dict[str, object]:
    data = base64.b64encode(block.data).decode()
    return {"type": "base64", "media_type": block.media_type, "data": data}


def _document(block: DocumentBlock) -> dict[str, object]:
    source: dict[str, object] = _base64(block)
    if block.media_type.startswith("text/"):
        text = block.data.decode(errors="replace")
        source = {"type": "text", "media_type": "text/plain", "data": text}
    wire: dict[str, object] = {"type": "document", "source": source}
    if block.name:
        wire["title"] = block.name
    return wire


class _PartialBlock:
    """A content block as its deltas come in."""

    __slots__ = ("json", "start", "texts")

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = dict(start)
        self.texts: list[str] = [_text(start, "text")]
        self.json: list[str] = []

    @property
    def is_text(self) -> bool:
        return self.start.get("type") == "text"

    def add(self, delta: _Delta) -> None:
        if isinstance(delta.text, str):
            self.texts.append(delta.text)
        if isinstance(delta.partial_json, str):
            self.json.append(delta.partial_json)
        if isinstance(delta.thinking, str):
            self.start["thinking"] = (self.start.get("thinking") or "") + delta.thinking
        if isinstance(delta.signature, str):
            self.start["signature"] = delta.signature

    def whole(self) -> dict[str, Any]:
        """The block as an unstreamed answer would hold it; arguments stay JSON text until they are read."""
        if self.is_text:
            return {**self.start, "text": "".join(self.texts)}
        if self.json:
            return {**self.start, "input": "".join(self.json)}
        return self.start


class MessagesReader:
    """Reads an answer, whole or streamed: a stream is put together to the blocks of a whole answer."""

    def __init__(self, sent: Sent, vendor: str, on_delta: OnDelta | None) -> None:
        self._sent = sent
        self._vendor = vendor
        self._on_delta = on_delta
        self._sse = SseParser()
        self._partial: dict[int, _PartialBlock] = {}
        self._speaking = 0
        self._content: list[dict[str, Any]] = []
        self._usage: dict[str, Any] = {}
        self._stop_reason: str | None = None
        self._done = False
        self._failure: ProviderReason | None = None

    def feed(self, chunk: bytes) -> bool:
        for data in self._sse.feed(chunk):
            if not data:
                continue
            try:
                event = _decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                self._failure = unreadable("holds an event that is no JSON of the messages format")
                return True
            self._take(event)
            if self._done or self._failure is not None:
                return True
        return False

    def _take(self, event: _Event) -> None:
        delta = event.delta
        match event.type:
            case "content_block_delta" if delta is not None:
                partial = self._partial.get(event.index)
                if partial is None:
                    partial = self._partial[event.index] = _PartialBlock({"type": "text"})
                partial.add(delta)
                if type(delta.text) is str and delta.text:
                    self._say(event.index, delta.text, partial)
            case "content_block_start" if event.content_block is not None:
                if event.index in self._partial:
                    self._failure = unreadable("begins a block twice")
                    return
                partial = self._partial[event.index] = _PartialBlock(event.content_block)
                if (text := partial.texts[0]) and partial.is_text:
                    self._say(event.index, text, partial)
            case "message_start" if event.message is not None:
                self._count(event.message.get("usage"))
            case "message_delta":
                self._count(event.usage)
                if delta is not None and isinstance(delta.stop_reason, str):
                    self._stop_reason = delta.stop_reason
            case "message_stop":
                self._content = [self._partial[index].whole() for index in sorted(self._partial)]
                self._done = True
            case _:
                if event.error is not None:
                    self._failure = reason_in_body(event.error, self._sent)

    def whole(self, body: bytes) -> None:
        try:
            answer = _decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._failure = unreadable("is not a message")
            return
        if answer.error is not None:
            self._failure = reason_in_body(answer.error, self._sent)
        elif answer.content is None:
            self._failure = unreadable("has no content")
        else:
            self._content = answer.content
            self._count(answer.usage)
            if isinstance(answer.stop_reason, str):
                self._stop_reason = answer.stop_reason
            self._done = True

    def _say(self, index: int, text: str, partial: _PartialBlock) -> None:
        """Delivers text, which must come in the order in which the answer holds it."""
        if not partial.is_text or index < self._speaking:
            self._failure = unreadable("has text in a place where none belongs")
            return
        self._speaking = index
        if self._on_delta is not None:
            self._on_delta(text)

    def _take_unstreamed(self) -> None:
        """Takes an answer that came at once although a stream was asked for."""
        self.whole(self._sse.rest)
        for wire in self._content:
            text = wire.get("text") if wire.get("type") == "text" else None
            if isinstance(text, str) and text and self._on_delta is not None:
                self._on_delta(text)

    def _count(self, usage: object) -> None:
        """Takes counts over: they are cumulative, so a later one replaces an earlier one."""
        if isinstance(usage, dict):
            self._usage.update({name: value for name, value in usage.items() if value is not None})

    def result(self) -> Result[Reply, ProviderReason]:
        if self._sse.is_other:
            self._take_unstreamed()
        if self._failure is not None:
            return Err(self._failure)
        if not self._done:
            return Err(cut_off(self._vendor))
        content = [block for wire in self._content if (block := self._block(wire)) is not None]
        calls = iter(with_ids([block for block in content if isinstance(block, ToolUseBlock)]))
        content = [next(calls) if isinstance(block, ToolUseBlock) else block for block in content]
        return Ok(
            Reply(
                content=tuple(content),
                stop_reason=self._reply_stop_reason(content),
                usage=_usage_of(self._usage),
                warnings=(warning,) if (warning := _WARNINGS.get(self._stop_reason or "")) else (),
            )
        )

    def _reply_stop_reason(self, content: list[Block]) -> StopReason:
        if _STOP_REASONS.get(self._stop_reason or "") == "max_tokens":
            return "max_tokens"
        has_calls = any(isinstance(block, ToolUseBlock) for block in content)
        return "tool_use" if has_calls else "end_turn"

    def _block(self, wire: dict[str, Any]) -> Block | None:
        match wire.get("type"):
            case "text":
                text = wire.get("text")
                return TextBlock(text) if isinstance(text, str) and text else None
            case "tool_use":
                return parse_arguments(_text(wire, "id"), _text(wire, "name"), wire.get("input"))
            case "thinking" if not wire.get("signature"):
                # Without its signature the vendor would refuse it, and with it every later request.
                return None
            case str():
                return VendorBlock(self._vendor, msgspec.Raw(_canonical(wire)))
            case _:
                return None


def _text(wire: dict[str, Any], name: str) -> str:
    value = wire.get(name)
    return value if isinstance(value, str) else ""


def _canonical(wire: dict[str, Any]) -> bytes:
    """The block as JSON with its keys in order; the arguments of a server's own tool as an object."""
    given = wire.get("input")
    if isinstance(given, str):
        wire = {**wire, "input": parse_arguments("", "", given).input}
    return msgspec.json.encode(wire, order="deterministic")


def _usage_of(usage: dict[str, Any]) -> Usage:
    fresh = count(usage.get("input_tokens"))
    written = count(usage.get("cache_creation_input_tokens"))
    read = count(usage.get("cache_read_input_tokens"))
    details = usage.get("output_tokens_details")
    return Usage(
        input_tokens=None if fresh is None else fresh + (written or 0) + (read or 0),
        output_tokens=count(usage.get("output_tokens")),
        cached_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=count(details.get("thinking_tokens")) if isinstance(details, dict) else None,
    )
