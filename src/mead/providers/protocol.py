"""The provider contract (P1–P5): what a model backend must offer, and what it may.

A provider is any object with `complete`; `converse` and `converse_stream` are optional. It keeps no
conversation between calls, returns its failures, raises only for a bug, retries nothing, and lets
`asyncio.CancelledError` pass at once.

Six more things are optional: `embed(texts, options)` makes embeddings; `aclose()` releases what it holds;
`name` is what events and decisions call it; `context_tokens(options, prompt_bytes)` says how long the model's
context is, so that a conversation can be fitted into it (`context_tokens_of`); `known(options)` says what is
known of the model without asking anybody (`known_of`); `answers_with_results` says that what a tool said is
its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeGuard

from msgspec import Struct

from mead.core.messages import Block, Message, StopReason, Tool
from mead.core.options import Options
from mead.core.reasons import ProviderReason
from mead.core.result import Result
from mead.core.usage import Usage

OnDelta = Callable[[str], object]


class Completion(Struct, frozen=True, kw_only=True):
    """A text answer. `stop_reason` is `max_tokens` when the limit cut it off. `warnings` are sentences for
    the person."""

    text: str
    usage: Usage = Usage()
    stop_reason: StopReason = "end_turn"
    warnings: tuple[str, ...] = ()


class Reply(Struct, frozen=True, kw_only=True):
    """An answer in blocks. With `stop_reason` `tool_use` the blocks ask for tools whose results must be sent
    back; with `max_tokens` the limit cut the answer off."""

    content: tuple[Block, ...]
    stop_reason: StopReason = "end_turn"
    usage: Usage = Usage()
    warnings: tuple[str, ...] = ()


class Embeddings(Struct, frozen=True, kw_only=True):
    """One vector for each text, in their order."""

    vectors: tuple[tuple[float, ...], ...]
    usage: Usage = Usage()


class Provider(Protocol):
    """A model backend."""

    async def complete(
        self, messages: Sequence[Message], options: Options
    ) -> Result[Completion, ProviderReason]:
        """Answers with text, by `options.deadline` at the latest.

        Fails with `MissingApiKey`, `InvalidOptions` (nothing was sent, or the server refused an option),
        `HttpStatus` (the server refused), `MalformedResponse`, `Transport` or `Timeout`.
        """


class ConversingProvider(Provider, Protocol):
    """A provider whose model may ask for tools."""

    async def converse(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options
    ) -> Result[Reply, ProviderReason]:
        """Like `complete`, but the model may ask for tools. Fails with `ToolsUnsupported` too."""


class StreamingProvider(ConversingProvider, Protocol):
    """A provider that can also stream."""

    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Result[Reply, ProviderReason]:
        """Like `converse`; `on_delta` gets each fragment of text as it arrives, in order, never an empty one.

        The fragments are a preview; the returned reply is the answer, the same that `converse` would give for
        the same content. When the stream fails midway, its reason is returned, and the fragments already
        delivered stay delivered.
        """


class EmbeddingProvider(Provider, Protocol):
    """A provider that also makes embeddings."""

    async def embed(self, texts: Sequence[str], options: Options) -> Result[Embeddings, ProviderReason]:
        """The vectors of the texts. Of the options `model`, `extra` (`dimensions`, say), `deadline` and what
        belongs to the turn count. Fails as `complete` does."""


def can_embed(provider: Provider) -> TypeGuard[EmbeddingProvider]:
    """Whether the provider makes embeddings."""
    return callable(getattr(provider, "embed", None))


def can_converse(provider: Provider) -> TypeGuard[ConversingProvider]:
    """Whether the provider's model may be given tools."""
    return callable(getattr(provider, "converse", None))


def can_stream(provider: Provider) -> TypeGuard[StreamingProvider]:
    """Whether the provider can stream."""
    return callable(getattr(provider, "converse_stream", None))


WORTH_ASKING_BYTES = 6 * 1024
"""A prompt under this fits every context that is in use: its length is not asked for."""


async def context_tokens_of(provider: object, options: Options, prompt_bytes: int) -> int | None:
    """The length of the model's context in tokens; `None` if the provider does not know, or finds that a
    prompt of this size is not worth asking about. A provider says it with an optional method
    `context_tokens(options, prompt_bytes)`."""
    ask = getattr(provider, "context_tokens", None)
    if not callable(ask):
        return None
    found = await ask(options, prompt_bytes)
    return found if isinstance(found, int) and found > 0 else None


class Known(Struct, frozen=True, kw_only=True):
    """What is known of a slot's model at this moment. `None` is not known: nobody has asked yet, or the
    server does not say."""

    context_tokens: int | None = None
    tools: bool | None = None


_NOTHING_KNOWN = Known()


def known_of(provider: object, options: Options) -> Known:
    """What is known of the provider's model without contacting anything. A provider says it with an optional
    method `known(options)`; one without `converse` cannot use tools."""
    if not callable(getattr(provider, "converse", None)):
        return Known(tools=False)
    ask = getattr(provider, "known", None)
    found = ask(options) if callable(ask) else None
    return found if isinstance(found, Known) else _NOTHING_KNOWN


def answers_with_results(provider: object) -> bool:
    """Whether the provider gives a tool's results for the answer without asking its model, so that they need
    not fit into a context. It says so with an optional attribute of that name."""
    return getattr(provider, "answers_with_results", False) is True


def name_of(provider: object) -> str:
    """What events and decisions call the provider: its `name`, or its class's."""
    name = getattr(provider, "name", None)
    return name if isinstance(name, str) else type(provider).__name__


async def close_provider(provider: object) -> None:
    """Calls the provider's `aclose`, if it has one."""
    aclose = getattr(provider, "aclose", None)
    if callable(aclose):
        await aclose()
