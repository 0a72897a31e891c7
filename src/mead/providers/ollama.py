"""Ollama's `/api/chat`.

Format: Ollama's server source of 2026-08-21 (`api/types.go`, `server/routes.go`). A stream is lines of JSON;
it is over with `done: true`. Before a model's first use, and once a minute, `/api/show` is asked what the
model can do and whether Ollama runs it in its cloud (R17): a model's name proves nothing.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
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
from mead.providers._embed import embed, read_ollama
from mead.providers._errors import Sent, reason_in_body, unreadable
from mead.providers._show import Show, remote, runs_elsewhere
from mead.providers._sse import NdjsonParser
from mead.providers._think import ThinkFilter
from mead.providers.http import HttpClient
from mead.providers.protocol import WORTH_ASKING_BYTES, Embeddings, Known, OnDelta, Reply

DEFAULT_BASE_URL = "http://127.0.0.1:11434"
SMALLEST_CONTEXT = 4096
# Room for the answer where nobody set a limit.
_ANSWER_TOKENS = 1024
# A token is about four bytes of text; a third of that is more than any prompt needs, and a count under a
# twelfth means that the server has dropped most of it.
_BYTES_PER_TOKEN_AT_LEAST = 3
_BYTES_PER_TOKEN_AT_MOST = 12
_WORTH_A_WARNING_BYTES = 8192

# These stand beside `options` in the body, everything else of the sampling options inside it.
_SAMPLING = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "seed": "seed", "stop": "stop"}


class _Function(Struct):
    name: Any = None
    arguments: Any = None


class _Call(Struct):
    id: Any = None
    function: _Function | None = None


class _Said(Struct):
    content: Any = None
    thinking: Any = None
    tool_calls: list[_Call] | None = None


class _Line(Struct):
    message: _Said | None = None
    done: bool = False
    done_reason: Any = None
    prompt_eval_count: Any = None
    eval_count: Any = None
    remote_host: Any = None
    remote_model: Any = None
    error: Any = None


_decode = msgspec.json.Decoder(_Line).decode


class Ollama(HttpAdapter):
    """The `/api/chat` adapter.

    `num_ctx` is sent with each request, large enough for it, since the server's default drops the front of a
    longer prompt in silence; it only grows, because a change makes Ollama load the model again. Somebody who
    sets it (`extra = {options = {num_ctx = …}}`) is never overridden.
    """

    wire_format = "ollama"

    def __init__(
        self,
        client: HttpClient,
        *,
        api_key: str | None = None,
        name: str = "ollama",
        strip_thinking: bool = True,
    ) -> None:
        super().__init__(client, api_key=api_key, name=name)
        self._strip_thinking = strip_thinking
        self.headers = {"content-type": "application/json"}
        if self.api_key:
            self.headers["authorization"] = f"Bearer {self.api_key}"
        self._show = Show(client, self.headers, secret=self.api_key, is_ollama=True)
        self._context_tokens = SMALLEST_CONTEXT

    async def _refusal(
        self, conversation: Conversation, tools: Sequence[Tool], options: Options
    ) -> ProviderReason | None:
        refusal = await super()._refusal(conversation, tools, options)
        if refusal is not None or not (tools or self.must_stay_here):
            return refusal
        facts = await self._show.ask(options)
        if isinstance(facts, Err):
            return facts.reason
        if facts.value.runs_at and self.must_stay_here:
            return runs_elsewhere(options.model, facts.value.runs_at)
        if tools and facts.value.tools is False:
            return ToolsUnsupported(detail=f"Ollama says that {options.model} cannot use tools")
        return None

    async def embed(self, texts: Sequence[str], options: Options) -> Result[Embeddings, ProviderReason]:
        """The vectors of the texts, by `/api/embed`; a text that is too long for the model is an error."""
        refusal = await self._refusal(Conversation.of(()), (), options)
        if refusal is not None:
            return Err(refusal)
        return await embed(
            self.client, "/api/embed", {"truncate": False}, texts, options, self.headers, read_ollama
        )

    async def context_tokens(self, options: Options, prompt_bytes: int) -> int | None:
        """The longest context of the model, in tokens, where the prompt is of a size to ask."""
        if prompt_bytes < WORTH_ASKING_BYTES:
            return None
        facts = await self._show.ask(options)
        return facts.value.context_tokens if isinstance(facts, Ok) else None

    def known(self, options: Options) -> Known:
        """What the server has said of the model, if it was asked already."""
        facts = self._show.known(options)
        if facts is None:
            return Known()
        return Known(context_tokens=facts.context_tokens, tools=facts.tools)

    def _unsupported(self, conversation: Conversation, options: Options) -> ProviderReason | None:
        if options.tool_choice is not None or options.parallel_tools is not None:
            return InvalidOptions(detail="Ollama cannot be told which tools to call; leave tool_choice unset")
        for piece in conversation.pieces:
            if not piece.plain and piece.variant("has_document", _has_document):
                return InvalidOptions(detail="Ollama takes no documents; attach text or an image")
        return None

    def _request(
        self, conversation: Conversation, tools: Sequence[Tool], options: Options, *, stream: bool
    ) -> Request:
        messages = self._messages_json(conversation)
        if options.system:
            messages = encode({"role": "system", "content": options.system}) + b"," + messages
        parts = {"messages": b"[" + messages + b"]"}
        if tools:
            parts["tools"] = self._tools_json(tools)
        size = sum(map(len, parts.values()))
        head: dict[str, object] = {"model": options.model, "stream": stream, "truncate": False}
        if options.response_format is not None:
            head["format"] = options.response_format.schema or "json"
        if options.thinking is not None:
            head["think"] = options.thinking
        extra = dict(options.extra or {})
        head["options"] = self._model_options(options, extra.pop("options", None), size)
        head.update(extra)
        return Request("/api/chat", join_body(head, **parts), self.headers)

    def _model_options(self, options: Options, more: object, prompt_bytes: int) -> dict[str, object]:
        chosen = {
            wire: value for name, wire in _SAMPLING.items() if (value := getattr(options, name)) is not None
        }
        if options.max_tokens is not None:
            chosen["num_predict"] = options.max_tokens
        more = more if isinstance(more, Mapping) else {}
        if "num_ctx" not in more:
            chosen["num_ctx"] = self._fit_context(prompt_bytes, options)
        return {**chosen, **more}

    def _fit_context(self, prompt_bytes: int, options: Options) -> int:
        """The context to ask for, in tokens: a power of two that holds prompt and answer."""
        needed = prompt_bytes // _BYTES_PER_TOKEN_AT_LEAST + (options.max_tokens or _ANSWER_TOKENS)
        while self._context_tokens < needed:
            self._context_tokens *= 2
        facts = self._show.known(options)
        if facts is not None and facts.context_tokens is not None:
            return min(self._context_tokens, max(facts.context_tokens, 1))
        return self._context_tokens

    def _tool(self, tool: Tool) -> object:
        function: dict[str, object] = {"name": tool.name, "parameters": object_schema(tool)}
        if tool.description:
            function["description"] = tool.description
        return {"type": "function", "function": function}

    def _convert(self, messages: list[Message]) -> bytes:
        names = {
            block.id: safe_name(block.name)
            for message in messages
            for block in blocks_of(message)
            if isinstance(block, ToolUseBlock)
        }
        wires = [wire for message in messages for wire in self._message(message)]
        for wire in wires:
            if wire["role"] == "tool":
                wire["tool_name"] = names.get(str(wire["tool_call_id"]), "")
        return b",".join(map(encode, wires))

    def _message(self, message: Message) -> list[dict[str, object]]:
        blocks = blocks_of(message)
        if message.role == "assistant":
            return [_assistant_message(blocks, self.vendor)]
        wires: list[dict[str, object]] = [
            {"role": "tool", "tool_call_id": block.tool_use_id, "content": block.content}
            for block in blocks
            if isinstance(block, ToolResultBlock)
        ]
        text = "\n\n".join([block.text for block in blocks if isinstance(block, TextBlock)])
        images = [base64.b64encode(b.data).decode() for b in blocks if isinstance(b, ImageBlock)]
        if text or images:
            wire: dict[str, object] = {"role": "user", "content": text}
            if images:
                wire["images"] = images
            wires.append(wire)
        return wires

    def _reader(self, sent: Sent, on_delta: OnDelta | None) -> OllamaReader:
        return OllamaReader(
            sent,
            self.vendor,
            on_delta,
            strip_thinking=self._strip_thinking,
            must_stay_here=self.must_stay_here,
        )

    async def _call(
        self,
        conversation: Conversation,
        tools: Sequence[Tool],
        options: Options,
        on_delta: OnDelta | None,
    ) -> Result[Reply, ProviderReason]:
        result = await super()._call(conversation, tools, options, on_delta)
        if isinstance(result, Ok):
            read = result.value.usage.input_tokens
            size = sum([len(piece.data) for piece in conversation.pieces if piece.plain])
            if read and size > _WORTH_A_WARNING_BYTES and read * _BYTES_PER_TOKEN_AT_MOST < size:
                warning = (
                    f"Ollama read only {read} tokens of a prompt of {size} bytes: it has probably dropped "
                    "the front of it. Raise num_ctx, or shorten the conversation."
                )
                reply = msgspec.structs.replace(result.value, warnings=(*result.value.warnings, warning))
                return Ok(reply)
        return result


def _has_document(messages: list[Message]) -> bool:
    return any(isinstance(block, DocumentBlock) for message in messages for block in blocks_of(message))


def _assistant_message(blocks: Sequence[Block], vendor: str) -> dict[str, object]:
    text = "".join([block.text for block in blocks if isinstance(block, TextBlock)])
    calls = [
        {"id": block.id, "function": {"name": safe_name(block.name), "arguments": block.input}}
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    wire: dict[str, object] = {"role": "assistant", "content": text}
    if calls:
        wire["tool_calls"] = calls
        for block in blocks:
            if isinstance(block, VendorBlock) and block.vendor == vendor:
                wire.update(msgspec.json.decode(block.data))
    return wire


class OllamaReader:
    """Reads an answer, whole (one object) or streamed (lines of them)."""

    def __init__(
        self,
        sent: Sent,
        vendor: str,
        on_delta: OnDelta | None,
        *,
        strip_thinking: bool = True,
        must_stay_here: bool = False,
    ) -> None:
        self._sent = sent
        self._vendor = vendor
        self._on_delta = on_delta
        self._must_stay_here = must_stay_here
        self._lines = NdjsonParser()
        self._think = ThinkFilter() if strip_thinking else None
        self._texts: list[str] = []
        self._thinking: list[str] = []
        self._calls: list[ToolUseBlock] = []
        self._usage = Usage()
        self._done_reason: object = None
        self._done = False
        self._failure: ProviderReason | None = None

    def feed(self, chunk: bytes) -> bool:
        for line in self._lines.feed(chunk):
            self._take(line)
            if self._done or self._failure is not None:
                return True
        return False

    def whole(self, body: bytes) -> None:
        if self.feed(body) or self._lines.rest.strip():
            return
        self._failure = self._failure or unreadable("is empty")

    def _take(self, data: bytes) -> None:
        try:
            line = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            self._failure = unreadable("holds a line that is no JSON of Ollama's chat format")
            return
        if line.error:
            self._failure = reason_in_body(line.error, self._sent)
            return
        elsewhere = remote(line.remote_host, line.remote_model)
        if elsewhere and self._must_stay_here:
            self._failure = runs_elsewhere("this model", elsewhere)
            return
        if line.message is not None:
            self._hear(line.message)
        elif not line.done:
            self._failure = unreadable("has a line without a message")
        if line.done:
            self._done = True
            self._done_reason = line.done_reason
            self._usage = Usage(
                input_tokens=count(line.prompt_eval_count), output_tokens=count(line.eval_count)
            )

    def _hear(self, said: _Said) -> None:
        if isinstance(said.thinking, str):
            self._thinking.append(said.thinking)
        text = said.content if isinstance(said.content, str) else ""
        if text and self._think is not None:
            text = self._think.feed(text)
        if text:
            self._say(text)
        for call in said.tool_calls or ():
            function = call.function
            if function is not None and isinstance(function.name, str) and function.name:
                call_id = call.id if isinstance(call.id, str) else ""
                self._calls.append(parse_arguments(call_id, function.name, function.arguments))

    def _say(self, text: str) -> None:
        self._texts.append(text)
        if self._on_delta is not None:
            self._on_delta(text)

    def result(self) -> Result[Reply, ProviderReason]:
        if not self._done and self._failure is None and self._lines.rest.strip():
            self._take(self._lines.rest)  # the last line may lack its newline
        if self._failure is not None:
            return Err(self._failure)
        if not self._done:
            return Err(cut_off(self._vendor))
        if self._think is not None and (held := self._think.rest()):
            self._say(held)
        calls = with_ids(self._calls)
        content: list[Block] = []
        if calls and self._thinking:
            kept = {"thinking": "".join(self._thinking)}
            content.append(VendorBlock(self._vendor, msgspec.Raw(encode(kept))))
        content += [*text_block("".join(self._texts)), *calls]
        stop_reason: StopReason = "tool_use" if calls else "end_turn"
        if self._done_reason == "length":
            stop_reason = "max_tokens"
        return Ok(Reply(content=tuple(content), stop_reason=stop_reason, usage=self._usage))
