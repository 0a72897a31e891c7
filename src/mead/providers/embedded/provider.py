"""The embedded model as a provider: the OpenAI adapter over the worker's own server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from mead.core.messages import Message, TextBlock, Tool
from mead.core.options import Options, ResponseFormat
from mead.core.reasons import InvalidOptions, ProviderReason, Transport
from mead.core.result import Err, Ok, Result
from mead.core.usage import Usage
from mead.providers._adapter import with_ids
from mead.providers.embedded import emulation
from mead.providers.embedded.model import MODEL_NAME, find_model
from mead.providers.embedded.server import EmbeddedServer, Running
from mead.providers.openai_chat import OpenAIChat
from mead.providers.protocol import Completion, Known, OnDelta, Reply

DEFAULT_MAX_TOKENS = 256
"""A small model does not know when to stop."""

_Value = TypeVar("_Value", Completion, Reply)
_CALL_TOKENS = 200
_NO_TOKENS = Usage(input_tokens=0, output_tokens=0)


class EmbeddedProvider:
    """A small model that runs on this machine without anything else installed.

    `model_path` is a GGUF file, by default the installed one in `folder`. `context_tokens` is the context of
    each of `parallel` turns answered at once; `threads` is, by default, one less than the machine has cores.

    Tools are emulated (`emulation.py`): at most one call a turn, under a grammar; the packaged model's answer
    is then what the tool said.
    """

    name = "embedded"
    emulates_tools = True

    def __init__(
        self,
        model_path: Path | None = None,
        *,
        folder: Path,
        threads: int | None = None,
        context_tokens: int = 4096,
        parallel: int = 2,
    ) -> None:
        self._server = EmbeddedServer(
            lambda: model_path or find_model(folder),
            threads=threads,
            context_tokens=context_tokens,
            parallel=parallel,
        )
        self._context_tokens = context_tokens
        # Somebody's own model may be large enough to report what a tool said.
        self._own_words = model_path is not None
        self._chat: tuple[Running, OpenAIChat] | None = None

    async def context_tokens(self, options: Options, prompt_bytes: int) -> int | None:
        """The context of one turn, in tokens."""
        return self._context_tokens

    def known(self, options: Options) -> Known:
        """Its context; and tools, which it can be led to use."""
        return Known(context_tokens=self._context_tokens, tools=True)

    @property
    def answers_with_results(self) -> bool:
        """Whether what a tool says is the answer, word for word: with the packaged model, it is."""
        return not self._own_words

    @property
    def server(self) -> EmbeddedServer:
        """The worker behind it."""
        return self._server

    async def complete(
        self, messages: Sequence[Message], options: Options
    ) -> Result[Completion, ProviderReason]:
        """Answers with text; see `Provider.complete`."""
        return await self._with_chat(options, lambda chat, chosen: chat.complete(messages, chosen))

    async def converse(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options
    ) -> Result[Reply, ProviderReason]:
        """The same in blocks, or a call of one of the tools."""
        return await self._converse(messages, tools, options, None)

    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Result[Reply, ProviderReason]:
        """The same, streamed."""
        return await self._converse(messages, tools, options, on_delta)

    async def aclose(self) -> None:
        """Ends the worker."""
        self._chat = None
        await self._server.aclose()

    async def _converse(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta | None
    ) -> Result[Reply, ProviderReason]:
        called = await self._try_call(messages, tools, options) if tools else None
        if called is not None and (isinstance(called, Err) or called.value.content):
            return called
        if not self._own_words and (said := emulation.results_in(messages)) is not None:
            if on_delta is not None:
                on_delta(said)
            return Ok(Reply(content=(TextBlock(said),), usage=_NO_TOKENS))
        told = emulation.without_tool_blocks(messages)

        async def answer(chat: OpenAIChat, chosen: Options) -> Result[Reply, ProviderReason]:
            if on_delta is None:
                return await chat.converse(told, (), chosen)
            return await chat.converse_stream(told, (), chosen, on_delta)

        result = await self._with_chat(options, answer)
        if isinstance(result, Err) or called is None:
            return result
        return Ok(msgspec.structs.replace(result.value, usage=_added(called.value.usage, result.value.usage)))

    async def _try_call(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options
    ) -> Result[Reply, ProviderReason] | None:
        """A reply with a call, one without content if the model did not get to write one, or `None` where no
        tool fits the request."""
        request = emulation.request_in(messages)
        tool = emulation.fitting_tool(request, tools) if request else None
        if request is None or tool is None:
            return None
        asked = [*emulation.EXAMPLES, Message("user", emulation.arguments_prompt(tool, request))]
        filled = await self._fill(asked, emulation.arguments_schema(tool, request), options)
        if isinstance(filled, Err):
            return filled
        usage = filled.value.usage
        call = emulation.call_in(filled.value.text, tool)
        if call is None:
            return Ok(Reply(content=(), usage=usage))
        return Ok(Reply(content=tuple(with_ids([call])), stop_reason="tool_use", usage=usage))

    async def _fill(
        self, messages: Sequence[Message], schema: dict[str, object], options: Options
    ) -> Result[Completion, ProviderReason]:
        """Has the model write JSON that fits a schema."""
        form = msgspec.structs.replace(
            options,
            system=None,
            response_format=ResponseFormat(schema=schema),
            max_tokens=_CALL_TOKENS,
            temperature=0.0,
            stop=None,
        )
        return await self._with_chat(form, lambda chat, chosen: chat.complete(messages, chosen))

    async def _with_chat(
        self,
        options: Options,
        call: Callable[[OpenAIChat, Options], Awaitable[Result[_Value, ProviderReason]]],
    ) -> Result[_Value, ProviderReason]:
        if options.model not in (None, MODEL_NAME):
            return Err(InvalidOptions(detail=f"the embedded model is {MODEL_NAME}, not {options.model!r}"))
        running = await self._server.running(options)
        if isinstance(running, Err):
            return running
        chosen = options.over(Options(model=MODEL_NAME, max_tokens=DEFAULT_MAX_TOKENS))
        result = await call(self._chat_over(running.value), chosen)
        if isinstance(result, Err) and isinstance(result.reason, Transport):
            return Err(await self._server.crashed() or result.reason, cause=result.cause)
        return result

    def _chat_over(self, running: Running) -> OpenAIChat:
        if self._chat is None or self._chat[0] is not running:
            chat = OpenAIChat(running.client, api_key=running.secret, name=self.name, is_own=True)
            self._chat = (running, chat)
        return self._chat[1]


def _added(first: Usage, second: Usage) -> Usage:
    """Both calls' tokens; what one of them does not say is unknown."""

    def both(one: int | None, other: int | None) -> int | None:
        return None if one is None or other is None else one + other

    return Usage(
        input_tokens=both(first.input_tokens, second.input_tokens),
        output_tokens=both(first.output_tokens, second.output_tokens),
    )
