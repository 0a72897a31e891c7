"""The embedded model as a provider: the OpenAI adapter over the worker's own server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from mead.core.messages import Message, Tool
from mead.core.options import Options
from mead.core.reasons import InvalidOptions, ProviderReason, ToolsUnsupported, Transport
from mead.core.result import Err, Result
from mead.providers.embedded.model import MODEL_NAME, find_model
from mead.providers.embedded.server import EmbeddedServer, Running
from mead.providers.openai_chat import OpenAIChat
from mead.providers.protocol import Completion, OnDelta, Reply

DEFAULT_MAX_TOKENS = 256
"""A small model does not know when to stop."""

_Value = TypeVar("_Value", Completion, Reply)
_NO_TOOLS = ToolsUnsupported(
    detail="the embedded model cannot use tools: ask the cloud model (route), configure another local one, "
    "or hide the tools (tools none)"
)


class EmbeddedProvider:
    """A small model that runs on this machine without anything else installed.

    `model_path` is a GGUF file, by default the installed one in `folder`. `context_tokens` is the context of
    each of `parallel` turns answered at once; `threads` is, by default, one less than the machine has cores.
    """

    name = "embedded"

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
        self._chat: tuple[Running, OpenAIChat] | None = None

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
        """The same in blocks. Fails with `ToolsUnsupported` where tools are shown."""
        if tools:
            return Err(_NO_TOOLS)
        return await self._with_chat(options, lambda chat, chosen: chat.converse(messages, (), chosen))

    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Result[Reply, ProviderReason]:
        """The same, streamed."""
        if tools:
            return Err(_NO_TOOLS)
        return await self._with_chat(
            options, lambda chat, chosen: chat.converse_stream(messages, (), chosen, on_delta)
        )

    async def aclose(self) -> None:
        """Ends the worker."""
        self._chat = None
        await self._server.aclose()

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
            chat = OpenAIChat(running.client, api_key=running.secret, name=self.name)
            self._chat = (running, chat)
        return self._chat[1]
