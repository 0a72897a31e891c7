"""A provider that says what its script says: for tests of programs that use mead.

    provider = ScriptedProvider("Hello.", calls("weather", city="Oslo"), "It rains.", HttpStatus(status=429))

Every request is kept in `provider.requests`, so that a test can look at what the model was shown.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from mead.core.messages import Message, TextBlock, Tool, ToolResultBlock, ToolUseBlock, blocks_of, text_of
from mead.core.options import Options
from mead.core.reasons import ProviderReason, Reason
from mead.core.result import Err, Ok, Result
from mead.core.usage import Usage
from mead.providers.protocol import Completion, Known, OnDelta, Reply

ONE_TOKEN = Usage(input_tokens=1, output_tokens=1)


class ProviderRequest(Struct, frozen=True, kw_only=True):
    """One call of the provider: which of the three, and all that it was given."""

    call: Literal["complete", "converse", "converse_stream"]
    messages: list[Message]
    tools: tuple[Tool, ...]
    options: Options

    @property
    def text(self) -> str:
        """Everything that the model was shown, as one text: system prompt, messages, calls, results."""
        shown = [self.options.system or ""]
        for message in self.messages:
            shown += [_shown(block) for block in blocks_of(message)]
        return "\n".join(shown)


Step: TypeAlias = (
    str | Reply | Completion | Reason | BaseException | Callable[[ProviderRequest], Any] | Sequence[str]
)
"""What the script says for one call: a text (a list of texts streams in these pieces), a reply, a reason to
fail with, an exception to raise, or a function of the request that gives one of these (it may be async)."""


class ScriptedProvider:
    """Follows its script, one step a call. After the last step every call gets `otherwise`; without one, a
    call that the script does not foresee raises `AssertionError`.

    `tools=False` makes a provider that cannot `converse`, `streaming=False` one that cannot stream;
    `context_tokens` is the length of its context. A text costs one token each way; a `Reply` or `Completion`
    costs what it says.
    """

    def __init__(
        self,
        *script: Step,
        otherwise: Step | None = None,
        name: str = "scripted",
        tools: bool = True,
        streaming: bool = True,
        context_tokens: int | None = None,
    ) -> None:
        self._script = list(script)
        self._otherwise = otherwise
        self.name = name
        self.requests: list[ProviderRequest] = []
        self.closed = False
        self._context_tokens = context_tokens
        if not tools:
            self.converse = None  # type: ignore[assignment,method-assign]  # what a provider without it is like
        if not tools or not streaming:
            self.converse_stream = None  # type: ignore[assignment,method-assign]  # as above

    async def complete(
        self, messages: Sequence[Message], options: Options
    ) -> Result[Completion, ProviderReason]:
        result = await self._reply("complete", messages, (), options)
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
        return await self._reply("converse", messages, tools, options)

    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Result[Reply, ProviderReason]:
        return await self._reply("converse_stream", messages, tools, options, on_delta)

    async def context_tokens(self, options: Options, prompt_bytes: int) -> int | None:
        return self._context_tokens

    def known(self, options: Options) -> Known:
        return Known(context_tokens=self._context_tokens)

    async def aclose(self) -> None:
        self.closed = True

    async def _reply(
        self,
        call: Literal["complete", "converse", "converse_stream"],
        messages: Sequence[Message],
        tools: Sequence[Tool],
        options: Options,
        on_delta: OnDelta | None = None,
    ) -> Result[Reply, ProviderReason]:
        request = ProviderRequest(call=call, messages=list(messages), tools=tuple(tools), options=options)
        self.requests.append(request)
        step = self._script.pop(0) if self._script else self._otherwise
        if step is None:
            raise AssertionError(f"the script has no step for call {len(self.requests)} of {self.name}")
        while callable(step):
            step = step(request)
            if inspect.isawaitable(step):
                step = await step
        return _follow(step, on_delta)


def calls(name: str, /, _id: str = "", **arguments: object) -> Reply:
    """A reply that asks for one tool."""
    block = ToolUseBlock(_id or f"call_{name}", name, arguments)
    return Reply(content=(block,), stop_reason="tool_use", usage=ONE_TOKEN)


def quote_everything(request: ProviderRequest) -> str:
    """A step that answers with all that the model was shown: what it saw cannot be hidden any more."""
    return request.text


def _follow(step: Any, on_delta: OnDelta | None) -> Result[Reply, ProviderReason]:
    if isinstance(step, (Ok, Err)):
        return step
    if isinstance(step, BaseException):
        raise step
    if isinstance(step, Reason):
        return Err(step)  # type: ignore[arg-type]  # a script may say any reason
    pieces: Sequence[str] = [step] if isinstance(step, str) else []
    if isinstance(step, Completion):
        step = Reply(
            content=(TextBlock(step.text),) if step.text else (),
            stop_reason=step.stop_reason,
            usage=step.usage,
            warnings=step.warnings,
        )
    if isinstance(step, Reply):
        pieces = [text_of(step.content)]
    else:
        pieces = pieces or list(step)
        text = "".join(pieces)
        step = Reply(content=(TextBlock(text),) if text else (), usage=ONE_TOKEN)
    if on_delta is not None:
        for piece in filter(None, pieces):
            on_delta(piece)
    return Ok(step)


def _shown(block: object) -> str:
    match block:
        case TextBlock(text=text):
            return text
        case ToolUseBlock():
            return f"{block.name} {block.input} {block.malformed or ''}"
        case ToolResultBlock():
            return block.content
        case _:
            return repr(block)
