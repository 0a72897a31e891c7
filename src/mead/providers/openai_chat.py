"""OpenAI chat completions: OpenAI itself, and the many servers that speak its format (llama.cpp, vLLM,
LM Studio, OpenRouter, Groq …).

Format: the OpenAI API reference, "Chat completions", as served by openai 3.57; deviations of the other
servers as recorded from them. A stream is over with `[DONE]`, or at its clean end after a `finish_reason`.
"""

from __future__ import annotations

import asyncio
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
from mead.core.reasons import InvalidOptions, ProviderReason, ToolsUnsupported
from mead.core.result import Err, Ok, Result
from mead.core.usage import Usage
from mead.providers._adapter import (
    HttpAdapter,
    Request,
    count,
    cut_off,
    encode,
    join_body,
    object_schema,
    parse_arguments,
    safe_name,
    text_block,
    with_ids,
)
from mead.providers._embed import embed, read_openai
from mead.providers._errors import Sent, reason_in_body, unreadable
from mead.providers._show import Show
from mead.providers._sse import SseParser
from mead.providers._think import ThinkFilter
from mead.providers.http import HttpClient
from mead.providers.protocol import WORTH_ASKING_BYTES, Embeddings, Known, OnDelta, Reply

DEFAULT_BASE_URL = "https://api.openai.com/v1"
_OPENAI_HOST = "api.openai.com:443"
_PROPS_KEPT_S = 60.0
_EFFORT = {True: "medium", False: "none", "low": "low", "medium": "medium", "high": "high"}


class _Function(Struct):
    name: Any = None
    arguments: Any = None


class _Call(Struct):
    index: Any = None
    id: Any = None
    function: _Function | None = None
    extra_content: Any = None


class _Said(Struct):
    """A message, or a delta of one. What servers disagree about is decoded as it comes, to look at later."""

    content: Any = None
    refusal: Any = None
    tool_calls: list[_Call] | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None
    extra_content: Any = None
    thought_signature: Any = None


class _Choice(Struct):
    delta: _Said | None = None
    message: _Said | None = None
    finish_reason: Any = None
    error: Any = None


class _Body(Struct):
    choices: list[_Choice] | None = None
    usage: Any = None
    x_groq: Any = None
    error: Any = None


class _Props(Struct, frozen=True):
    """What `/props` says of a model. `None` where it says nothing."""

    at: float
    tools: bool | None = None
    context_tokens: int | None = None


_decode = msgspec.json.Decoder(_Body).decode


class OpenAIChat(HttpAdapter):
    """The chat completions adapter.

    A server that refuses to be asked for usage in a stream (a 400 that names `stream_options`; nothing was
    generated) is asked again without, and remembered. A local server is asked through Ollama's `/api/show`
    where the model runs, and through llama.cpp's `/props` whether it can use tools before any are sent.
    `is_own` says that the server is mead's own, which runs its model itself.
    """

    wire_format = "chat"

    def __init__(
        self,
        client: HttpClient,
        *,
        api_key: str | None = None,
        name: str = "openai",
        needs_key: bool = False,
        strip_thinking: bool = True,
        is_own: bool = False,
    ) -> None:
        super().__init__(client, api_key=api_key, name=name, needs_key=needs_key)
        self._strip_thinking = strip_thinking
        self._asks_usage = True
        self._is_openai = client.host == _OPENAI_HOST
        self.headers = {"content-type": "application/json"}
        if self.api_key:
            self.headers["authorization"] = f"Bearer {self.api_key}"
        self._known_props: _Props | None = None
        self._show = None if is_own else Show(client, self.headers, secret=self.api_key)

    async def _call(
        self,
        conversation: Conversation,
        tools: Sequence[Tool],
        options: Options,
        on_delta: OnDelta | None,
    ) -> Result[Reply, ProviderReason]:
        result = await super()._call(conversation, tools, options, on_delta)
        if on_delta is not None and self._asks_usage and _refuses_stream_options(result):
            self._asks_usage = False
            result = await super()._call(conversation, tools, options, on_delta)
        return result

    async def _refusal(
        self, conversation: Conversation, tools: Sequence[Tool], options: Options
    ) -> ProviderReason | None:
        refusal = await super()._refusal(conversation, tools, options)
        if refusal is None and self._show is not None and self.must_stay_here:
            refusal = await self._show.elsewhere(options)
        ask = refusal is None and bool(tools) and self.client.slot == "local"
        if ask and (await self._props(options)).tools is False:
            return ToolsUnsupported(detail="the server says that its model's template has no tools")
        return refusal

    async def embed(self, texts: Sequence[str], options: Options) -> Result[Embeddings, ProviderReason]:
        """The vectors of the texts, by `/embeddings`."""
        refusal = await self._refusal(Conversation.of(()), (), options)
        if refusal is not None:
            return Err(refusal)
        return await embed(
            self.client,
            "/embeddings",
            {"encoding_format": "float"},
            texts,
            options,
            self.headers,
            read_openai,
        )

    async def context_tokens(self, options: Options, prompt_bytes: int) -> int | None:
        """The context of a local llama.cpp server's model, where the prompt is of a size to ask."""
        if self.client.slot != "local" or prompt_bytes < WORTH_ASKING_BYTES:
            return None
        return (await self._props(options)).context_tokens

    def known(self, options: Options) -> Known:
        """What a llama.cpp server has said of its model, if it was asked already."""
        props = self._known_props
        if props is None:
            return Known()
        return Known(context_tokens=props.context_tokens, tools=props.tools)

    async def _props(self, options: Options) -> _Props:
        """What llama.cpp says of its model, asked once a minute."""
        now = asyncio.get_running_loop().time()
        known = self._known_props
        if known is None or now - known.at > _PROPS_KEPT_S:
            result = await self.client.send("GET", "/props", options, headers=self.headers, at_root=True)
            if isinstance(result, Err):
                return _Props(at=now)  # it did not get to say: the next call asks again
            known = _Props(at=now)
            if result.value.status == 200:
                known = _read_props(result.value.body, now)
            self._known_props = known
        return known

    def _unsupported(self, conversation: Conversation, options: Options) -> ProviderReason | None:
        if options.top_k is not None and self._is_openai:
            return InvalidOptions(detail="OpenAI takes no top_k; leave it unset for this slot")
        return None

    def _request(
        self, conversation: Conversation, tools: Sequence[Tool], options: Options, *, stream: bool
    ) -> Request:
        messages = self._messages_json(conversation)
        if options.system:
            messages = encode({"role": "system", "content": options.system}) + b"," + messages
        parts = {"messages": b"[" + messages + b"]"}
        head = self._head(options, stream=stream)
        if tools:
            parts["tools"] = self._tools_json(tools)
            head = {**_tool_use(options), **head}
        body = join_body(head, **parts)
        return Request("/chat/completions", body, self.headers)

    def _head(self, options: Options, *, stream: bool) -> dict[str, object]:
        head: dict[str, object] = {"model": options.model}
        if stream:
            head["stream"] = True
            if self._asks_usage:
                head["stream_options"] = {"include_usage": True}
        if options.max_tokens is not None:
            # OpenAI's newer models refuse the old name; local servers read nothing else.
            head["max_completion_tokens" if self._is_openai else "max_tokens"] = options.max_tokens
        for name in ("temperature", "top_p", "top_k", "seed", "stop"):
            value = getattr(options, name)
            if value is not None:
                head[name] = value
        if options.response_format is not None:
            head["response_format"] = _response_format(options)
        if options.thinking is not None:
            head["reasoning_effort"] = _EFFORT[options.thinking]
        if options.extra:
            head.update(options.extra)
        return head

    def _tool(self, tool: Tool) -> object:
        function: dict[str, object] = {"name": tool.name, "parameters": object_schema(tool)}
        if tool.description:
            function["description"] = tool.description
        return {"type": "function", "function": function}

    def _message(self, message: Message) -> list[dict[str, object]]:
        blocks = blocks_of(message)
        if message.role == "assistant":
            return [_assistant_message(blocks, self.vendor)]
        wires: list[dict[str, object]] = [
            {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.content}
            for block in blocks
            if isinstance(block, ToolResultBlock)
        ]
        parts = [part for block in blocks if (part := _user_part(block)) is not None]
        if parts:
            only_text = all(isinstance(b, (TextBlock, ToolResultBlock)) for b in blocks)
            text = "\n\n".join([b.text for b in blocks if isinstance(b, TextBlock)])
            wires.append({"role": "user", "content": text if only_text else parts})
        return wires

    def _reader(self, sent: Sent, on_delta: OnDelta | None) -> ChatReader:
        return ChatReader(sent, self.vendor, on_delta, strip_thinking=self._strip_thinking)


def _refuses_stream_options(result: Result[Reply, ProviderReason]) -> bool:
    return (
        isinstance(result, Err)
        and isinstance(result.reason, InvalidOptions)
        and "stream_options" in (result.reason.detail or "")
    )


def _read_props(body: bytes, now: float) -> _Props:
    try:
        parsed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _Props(at=now)
    if not isinstance(parsed, dict):
        return _Props(at=now)
    caps, generation = parsed.get("chat_template_caps"), parsed.get("default_generation_settings")
    tools = caps.get("supports_tool_calls") if isinstance(caps, dict) else None
    context = generation.get("n_ctx") if isinstance(generation, dict) else None
    return _Props(
        at=now, tools=tools if isinstance(tools, bool) else None, context_tokens=count(context) or None
    )


def _tool_use(options: Options) -> dict[str, object]:
    head: dict[str, object] = {}
    if options.tool_choice is not None:
        named = {"type": "function", "function": {"name": options.tool_choice}}
        head["tool_choice"] = "required" if options.tool_choice == "required" else named
    if options.parallel_tools is not None:
        head["parallel_tool_calls"] = options.parallel_tools
    return head


def _response_format(options: Options) -> dict[str, object]:
    wanted = options.response_format
    assert wanted is not None
    if wanted.schema is None:
        return {"type": "json_object"}
    schema = {"name": wanted.name, "schema": wanted.schema, "strict": True}
    return {"type": "json_schema", "json_schema": schema}


def _assistant_message(blocks: Sequence[Block], vendor: str) -> dict[str, object]:
    text = "".join([block.text for block in blocks if isinstance(block, TextBlock)])
    calls = [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    wire: dict[str, object] = {"role": "assistant", "content": text or None}
    if calls:
        wire["tool_calls"] = calls
        for block in blocks:
            if isinstance(block, VendorBlock) and block.vendor == vendor:
                kept = msgspec.json.decode(block.data)
                for call, extra in zip(calls, kept.pop(_CALL_EXTRAS, ()), strict=False):
                    call.update(extra)
                wire.update(kept)
    return wire


def _call(block: ToolUseBlock) -> dict[str, object]:
    function = {"name": safe_name(block.name), "arguments": encode(block.input).decode()}
    return {"id": block.id, "type": "function", "function": function}


def _user_part(block: Block) -> dict[str, object] | None:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    if isinstance(block, (ImageBlock, DocumentBlock)):
        url = f"data:{block.media_type};base64,{base64.b64encode(block.data).decode()}"
        if isinstance(block, ImageBlock):
            return {"type": "image_url", "image_url": {"url": url}}
        return {"type": "file", "file": {"filename": block.name or "document", "file_data": url}}
    return None


class _PartialCall:
    """A tool call as its fragments come in."""

    __slots__ = ("arguments", "extra", "id", "name", "whole_arguments")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.arguments: list[str] = []
        self.whole_arguments: dict[str, object] | None = None
        self.extra: dict[str, object] = {}

    def add(self, call: _Call) -> None:
        if call.extra_content is not None:
            self.extra["extra_content"] = call.extra_content
        if isinstance(call.id, str) and call.id:
            self.id = call.id
        function = call.function
        if function is None:
            return
        if isinstance(function.name, str) and function.name and not self.name:
            self.name = function.name
        if isinstance(function.arguments, dict):
            self.whole_arguments = function.arguments
        elif function.arguments is not None:
            arguments = function.arguments
            self.arguments.append(arguments if isinstance(arguments, str) else encode(arguments).decode())

    def is_another(self, call: _Call) -> bool:
        """Whether the fragment begins a call of its own although it came under this one's index: it has
        another id, or it names a tool and brings arguments while this call's are complete."""
        if isinstance(call.id, str) and call.id and self.id and call.id != self.id:
            return True
        function = call.function
        brings = function is not None and bool(function.name) and bool(function.arguments)
        return brings and bool(self.name) and self._is_complete()

    def _is_complete(self) -> bool:
        if self.whole_arguments is not None:
            return True
        try:
            msgspec.json.decode("".join(self.arguments))
        except (msgspec.DecodeError, UnicodeEncodeError):
            return False
        return True

    def block(self) -> ToolUseBlock:
        arguments = self.whole_arguments if self.whole_arguments is not None else "".join(self.arguments)
        return parse_arguments(self.id, self.name, arguments)


class ChatReader:
    """Reads a chat completion, whole or streamed; the same steps build the reply in both cases."""

    def __init__(
        self, sent: Sent, vendor: str, on_delta: OnDelta | None, *, strip_thinking: bool = True
    ) -> None:
        self._sent = sent
        self._vendor = vendor
        self._on_delta = on_delta
        self._sse = SseParser()
        self._think = ThinkFilter() if strip_thinking else None
        self._texts: list[str] = []
        self._calls: list[_PartialCall] = []
        self._by_index: dict[object, _PartialCall] = {}
        self._kept: dict[str, object] = {}
        self._usage = Usage()
        self._finish: str | None = None
        self._heard = False
        self._done = False
        self._failure: ProviderReason | None = None

    def feed(self, chunk: bytes) -> bool:
        for data in self._sse.feed(chunk):
            if data[:1] != b"{":
                data = data.strip()
                if data == b"[DONE]":
                    self._done = True
                    return True
                if data[:1] != b"{":
                    continue
            self._take(data)
            if self._failure is not None:
                return True
        return False

    def whole(self, body: bytes) -> None:
        self._take(body)
        if self._failure is None and not self._heard:
            self._failure = unreadable("has no choices")
        self._done = True

    def _take(self, data: bytes) -> None:
        try:
            body = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._failure = unreadable("is not a chat completion")
            return
        if body.error:
            self._failure = reason_in_body(body.error, self._sent)
            return
        self._count(body)
        if not body.choices:
            return
        choice = body.choices[0]
        if choice.error:
            self._failure = reason_in_body(choice.error, self._sent)
            return
        said = choice.delta or choice.message
        if said is not None:
            self._heard = True
            self._hear(said, whole=choice.message is not None)
        if isinstance(choice.finish_reason, str) and choice.finish_reason:
            self._finish = choice.finish_reason

    def _hear(self, said: _Said, *, whole: bool) -> None:
        text = said.content if type(said.content) is str else _text_in(said.content)
        if not text and isinstance(said.refusal, str):
            text = said.refusal
        if text and self._think is not None:
            text = self._think.feed(text)
        if text:
            self._texts.append(text)
            if self._on_delta is not None:
                self._on_delta(text)
        for call in said.tool_calls or ():
            self._hear_call(call, whole=whole)
        for name in _KEPT_TEXTS:
            value = getattr(said, name)
            if value is not None:
                self._keep(name, value)

    def _hear_call(self, call: _Call, *, whole: bool) -> None:
        index = call.index if isinstance(call.index, int) else None
        current = self._by_index.get(index) if index is not None else self._newest_call()
        begins = index is None and isinstance(call.id, str) and bool(call.id)
        if current is None or whole or current.is_another(call) or (begins and current.id != call.id):
            current = _PartialCall()
            self._calls.append(current)
            if index is not None:
                self._by_index[index] = current
        current.add(call)

    def _newest_call(self) -> _PartialCall | None:
        return self._calls[-1] if self._calls else None

    def _keep(self, name: str, value: object) -> None:
        """Adds to what the vendor wants back: texts are joined, details merged, the rest replaced."""
        known = self._kept.get(name)
        if isinstance(value, str) and isinstance(known, str):
            value = known + value
        elif isinstance(value, list):
            value = _merge_details(known if isinstance(known, list) else [], value)
        self._kept[name] = value

    def _count(self, body: _Body) -> None:
        usage = body.usage
        if not isinstance(usage, dict) and isinstance(body.x_groq, dict):
            usage = body.x_groq.get("usage")
        if isinstance(usage, dict):
            self._usage = _usage_of(usage)

    def result(self) -> Result[Reply, ProviderReason]:
        if self._sse.is_other:
            self.whole(self._sse.rest)
        if self._failure is not None:
            return Err(self._failure)
        if not self._done and self._finish is None:
            return Err(cut_off(self._vendor))
        if not self._heard and self._finish is None:
            return Err(unreadable("has no choices"))
        if self._think is not None and (held := self._think.rest()):
            self._texts.append(held)
            if self._on_delta is not None:
                self._on_delta(held)
        named = [call for call in self._calls if call.name]
        calls = with_ids([call.block() for call in named])
        if any(call.extra for call in named):
            self._kept[_CALL_EXTRAS] = [call.extra for call in named]
        text = "".join(self._texts)
        if self._finish in ("tool_calls", "function_call") and not calls and not text:
            return Err(unreadable("asks for tools and names none"))
        content: list[Block] = [*self._vendor_blocks(), *text_block(text), *calls]
        return Ok(
            Reply(
                content=tuple(content),
                stop_reason=self._stop_reason(bool(calls)),
                usage=self._usage,
                warnings=self._warnings(),
            )
        )

    def _stop_reason(self, has_calls: bool) -> StopReason:
        if self._finish == "length":
            return "max_tokens"
        return "tool_use" if has_calls else "end_turn"

    def _warnings(self) -> tuple[str, ...]:
        if self._finish == "content_filter":
            return ("The provider's content filter cut the answer off.",)
        return ()

    def _vendor_blocks(self) -> tuple[Block, ...]:
        if not self._kept:
            return ()
        return (VendorBlock(self._vendor, msgspec.Raw(encode(self._kept))),)


# What servers want back beside the calls that it led to; a plain `reasoning` text is for reading only.
_CALL_EXTRAS = "call_extras"  # the same for each call, in the order of the calls
_KEPT_TEXTS = ("reasoning_content", "reasoning_details", "extra_content", "thought_signature")


def _text_in(content: object) -> str:
    """The text of a content that is a list of parts."""
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
    return "".join([text for text in texts if isinstance(text, str)])


def _merge_details(known: list[object], more: list[object]) -> list[object]:
    """Reasoning details with the fragments of each one joined, told apart by type and index."""
    merged = list(known)
    for item in more:
        last = merged[-1] if merged else None
        if isinstance(item, dict) and isinstance(last, dict) and _same_detail(last, item):
            joined = dict(last)
            for key, value in item.items():
                before = joined.get(key)
                if key in ("text", "summary", "data") and isinstance(before, str) and isinstance(value, str):
                    value = before + value
                joined[key] = value if value is not None else before
            merged[-1] = joined
        else:
            merged.append(item)
    return merged


def _same_detail(first: dict[str, object], second: dict[str, object]) -> bool:
    index = second.get("index")
    return index is not None and first.get("index") == index and first.get("type") == second.get("type")


def _usage_of(usage: dict[str, Any]) -> Usage:
    def detail(where: str, what: str) -> int | None:
        details = usage.get(where)
        return count(details.get(what)) if isinstance(details, dict) else None

    cached = detail("prompt_tokens_details", "cached_tokens")
    return Usage(
        input_tokens=count(usage.get("prompt_tokens")),
        output_tokens=count(usage.get("completion_tokens")),
        cached_tokens=cached if cached is not None else count(usage.get("prompt_cache_hit_tokens")),
        cache_write_tokens=detail("prompt_tokens_details", "cache_write_tokens"),
        reasoning_tokens=detail("completion_tokens_details", "reasoning_tokens"),
    )
