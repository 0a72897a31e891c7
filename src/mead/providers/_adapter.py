"""What the adapters share: the three calls of the contract over one HTTP request.

A wire format supplies how a request is written (`_request`) and how an answer is read (`_reader`); the same
reader takes a whole answer and a streamed one, so that both give the same reply.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import msgspec
from msgspec import Struct

from mead.core.conversation import Conversation
from mead.core.messages import Block, Message, TextBlock, Tool, ToolUseBlock, clean_text, text_of
from mead.core.options import Options
from mead.core.reasons import InvalidOptions, MissingApiKey, ProviderReason, Transport
from mead.core.repair import encodable
from mead.core.result import Err, Ok, Result
from mead.providers._errors import Sent, reason_of
from mead.providers.http import HttpClient
from mead.providers.protocol import Completion, OnDelta, Reply

encode = msgspec.json.encode
TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")


class Request(Struct, frozen=True):
    """One HTTP request in a wire format."""

    path: str
    body: bytes
    headers: Mapping[str, str]


class Reader(Protocol):
    """Reads one answer, whole or in pieces."""

    def feed(self, chunk: bytes) -> bool:
        """Takes a piece of a stream; true when the answer's end has been seen."""

    def whole(self, body: bytes) -> None:
        """Takes an answer that came at once."""

    def result(self) -> Result[Reply, ProviderReason]:
        """The reply. An answer without its end, with an error in it, or of no known form is a failure."""


class HttpAdapter(ABC):
    """A provider that speaks one wire format over HTTP.

    `api_key` is sent as the format wants it; with `needs_key`, a missing or empty one fails each call with
    `MissingApiKey` before anything is sent. The adapter owns `client` and closes it.
    """

    wire_format: ClassVar[str]

    def __init__(
        self, client: HttpClient, *, api_key: str | None = None, name: str, needs_key: bool = False
    ) -> None:
        self.client = client
        self.name = name
        self.headers: dict[str, str] = {}
        self.api_key = (api_key or "").strip()
        self._needs_key = needs_key
        self._encoded_tools: tuple[Sequence[Tool], bytes] = ((), b"")

    async def complete(
        self, messages: Sequence[Message], options: Options
    ) -> Result[Completion, ProviderReason]:
        """Answers with text; see `Provider.complete`."""
        result = await self._call(Conversation.of(messages), (), options, None)
        if isinstance(result, Err):
            return result
        reply = result.value
        return Ok(
            Completion(
                text=text_of(reply.content),
                usage=reply.usage,
                stop_reason="max_tokens" if reply.stop_reason == "max_tokens" else "end_turn",
                warnings=reply.warnings,
            )
        )

    async def converse(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options
    ) -> Result[Reply, ProviderReason]:
        """Answers or asks for tools; see `ConversingProvider.converse`."""
        return await self._call(Conversation.of(messages), tools, options, None)

    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Result[Reply, ProviderReason]:
        """The same, streamed; see `StreamingProvider.converse_stream`."""
        return await self._call(Conversation.of(messages), tools, options, on_delta)

    async def aclose(self) -> None:
        """Closes the connections."""
        await self.client.aclose()

    async def _call(
        self,
        conversation: Conversation,
        tools: Sequence[Tool],
        options: Options,
        on_delta: OnDelta | None,
    ) -> Result[Reply, ProviderReason]:
        system = clean_text(options.system) if options.system and options.system.strip() else None
        if system != options.system:
            options = msgspec.structs.replace(options, system=system)
        refusal = await self._refusal(conversation, tools, options)
        if refusal is not None:
            return Err(refusal)
        request = self._request(conversation, tools, options, stream=on_delta is not None)
        sent = Sent(conversation, system=options.system, secret=self.api_key, tools=bool(tools))
        reader = self._reader(sent, on_delta)
        result = await self.client.send(
            "POST",
            request.path,
            options,
            body=request.body,
            headers=request.headers,
            on_chunk=None if on_delta is None else reader.feed,
        )
        if isinstance(result, Err):
            return result
        if result.value.status != 200:
            return Err(reason_of(result.value, sent))
        if on_delta is None:
            reader.whole(result.value.body)
        return reader.result()

    @property
    def must_stay_here(self) -> bool:
        """Whether the model must be one that the server runs itself."""
        return self.client.slot == "local" and not self.client.allow_remote

    def missing_key(self) -> MissingApiKey | None:
        """The reason for a key that is needed and not there."""
        if self._needs_key and not self.api_key:
            return MissingApiKey(detail=f"{self.name} needs an API key: set api_key in its slot")
        return None

    async def _refusal(
        self, conversation: Conversation, tools: Sequence[Tool], options: Options
    ) -> ProviderReason | None:
        """Why the request cannot be sent as it is, or `None`."""
        if (missing := self.missing_key()) is not None:
            return missing
        if options.model is None:
            return InvalidOptions(detail=f"{self.name} needs a model: set model in its slot")
        for tool in tools:
            if TOOL_NAME.fullmatch(tool.name) is None:
                return InvalidOptions(
                    detail=f"the tool name {tool.name!r} is not 1 to 64 of a-z, A-Z, 0-9, _ and -"
                )
        return self._unsupported(conversation, options)

    def _unsupported(self, conversation: Conversation, options: Options) -> ProviderReason | None:
        """The option or content that this wire format has no place for, or `None`."""
        return None

    def _tools_json(self, tools: Sequence[Tool]) -> bytes:
        """The tools in the wire format, encoded once for as long as they stay the same."""
        known, encoded = self._encoded_tools
        if known is not tools or not isinstance(tools, tuple):  # a list may have changed
            wires = [self._tool(tool) for tool in tools]
            try:
                encoded = encode(wires)
            except UnicodeEncodeError:
                encoded = encode(encodable(wires))
            self._encoded_tools = (tools, encoded)
        return encoded

    def _messages_json(self, conversation: Conversation) -> bytes:
        """The messages in the wire format, comma-separated. Plain pieces are in it already."""
        key = (type(self), self.vendor)
        return b",".join(
            [
                piece.data if piece.plain else piece.variant(key, self._convert)
                for piece in conversation.pieces
            ]
        )

    def _convert(self, messages: list[Message]) -> bytes:
        return b",".join([encode(wire) for message in messages for wire in self._message(message)])

    @property
    def vendor(self) -> str:
        """Whose opaque blocks this adapter keeps and sends back: those of its own wire format (some servers
        speak several) and server."""
        return f"{self.wire_format}:{self.client.host}"

    @abstractmethod
    def _tool(self, tool: Tool) -> object:
        """One tool in the wire format."""

    @abstractmethod
    def _message(self, message: Message) -> list[dict[str, object]]:
        """One message in the wire format, which may take several."""

    @abstractmethod
    def _request(
        self, conversation: Conversation, tools: Sequence[Tool], options: Options, *, stream: bool
    ) -> Request:
        """The request, ready to send."""

    @abstractmethod
    def _reader(self, sent: Sent, on_delta: OnDelta | None) -> Reader:
        """A reader for the answer."""


def safe_name(name: str) -> str:
    """A name or an id as every vendor takes it back: a model may ask for a tool whose name no vendor allows,
    and the call is in the history then."""
    return name if TOOL_NAME.fullmatch(name) else (_NOT_IN_NAMES.sub("_", name)[:64] or "_")


def object_schema(tool: Tool) -> Mapping[str, object]:
    """The tool's schema with what every vendor insists on: its type, and its properties."""
    schema = tool.input_schema
    if schema.get("type") == "object" and "properties" in schema:
        return schema
    return {**schema, "type": "object", "properties": schema.get("properties") or {}}


def join_body(head: Mapping[str, object], **parts: bytes) -> bytes:
    """A JSON object of encoded `parts` and the fields of `head`."""
    members = b",".join([b'"%s":%s' % (name.encode(), value) for name, value in parts.items()])
    rest = encode(head)[1:]
    return b"{" + members + (b"," if rest != b"}" else b"") + rest


def parse_arguments(call_id: str, name: str, arguments: object) -> ToolUseBlock:
    """A tool call from its arguments as a server gave them: a JSON text, an object, or nothing at all.

    Nothing, blank text and `null` mean no arguments. What is not a JSON object is kept as `malformed`.
    """
    if isinstance(arguments, dict):
        return ToolUseBlock(call_id, name, arguments)
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        return ToolUseBlock(call_id, name, {})
    text = arguments if isinstance(arguments, str) else encode(arguments).decode()
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return ToolUseBlock(call_id, name, {}, malformed=text)
    if parsed is None:
        return ToolUseBlock(call_id, name, {})
    if not isinstance(parsed, dict):
        return ToolUseBlock(call_id, name, {}, malformed=text)
    return ToolUseBlock(call_id, name, parsed)


def with_ids(calls: Sequence[ToolUseBlock]) -> list[ToolUseBlock]:
    """The calls with distinct ids. A missing one is made from the call itself, so that a streamed reply and
    the same reply unstreamed get the same."""
    seen: set[str] = set()
    named = []
    for index, call in enumerate(calls):
        call_id = call.id
        if not call_id or call_id in seen:
            digest = hashlib.blake2b(f"{index}/{call.name}/{call.input}".encode(), digest_size=8)
            call_id = f"call_{digest.hexdigest()}"
        seen.add(call_id)
        named.append(call if call_id == call.id else msgspec.structs.replace(call, id=call_id))
    return named


def count(value: object) -> int | None:
    """A token count as a server gave it; `None` for what is no count."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
        return None
    return int(value)


def cut_off(vendor: str) -> Transport:
    """The reason for a stream that ended before its end."""
    host = vendor.partition(":")[2]
    return Transport(cause="cut", detail=f"the stream from {host} ended before the answer did")


def text_block(text: str) -> tuple[Block, ...]:
    """The text as blocks: none for no text."""
    return (TextBlock(text),) if text else ()
