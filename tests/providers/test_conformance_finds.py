"""The conformance kit finds a provider that breaks a promise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from mead.core.messages import Message, TextBlock, Tool
from mead.core.options import Options
from mead.core.reasons import HttpStatus, Timeout
from mead.core.result import Err, Ok
from mead.core.usage import Usage
from mead.providers.protocol import OnDelta, Provider
from mead.testing.providers import Case, IsAway, LacksTheKey, ProviderConformance
from providers.formats import OPENAI


class Wrapped:
    """A good provider, for a bad one to change."""

    def __init__(self, good: Any) -> None:
        self.good = good

    async def complete(self, messages: Sequence[Message], options: Options) -> Any:
        return await self.good.complete(messages, options)

    async def converse(self, messages: Sequence[Message], tools: Sequence[Tool], options: Options) -> Any:
        return await self.good.converse(messages, tools, options)

    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Any:
        return await self.good.converse_stream(messages, tools, options, on_delta)


class Retries(Wrapped):
    async def complete(self, messages: Sequence[Message], options: Options) -> Any:
        result = await super().complete(messages, options)
        if isinstance(result, Err) and isinstance(result.reason, HttpStatus):
            result = await super().complete(messages, options)
        return result


class ForgetsTheEnd(Wrapped):
    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Any:
        result = await super().converse_stream(messages, tools, options, on_delta)
        if isinstance(result, Err) and not isinstance(result.reason, Timeout):
            return Ok(await self._half())
        return result

    async def _half(self) -> Any:
        from mead.providers.protocol import Reply

        return Reply(content=(TextBlock("half"),))


class DeliversNothing(Wrapped):
    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Any:
        return await super().converse_stream(messages, tools, options, lambda _: None)


class DeliversTwice(Wrapped):
    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Any:
        return await super().converse_stream(messages, tools, options, lambda d: (on_delta(d), on_delta(d)))


class SwallowsCancellation(Wrapped):
    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Any:
        try:
            return await super().converse_stream(messages, tools, options, on_delta)
        except asyncio.CancelledError:
            return Err(Timeout())


class SwallowsTheListener(Wrapped):
    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Any:
        try:
            return await super().converse_stream(messages, tools, options, on_delta)
        except LookupError:
            return Err(Timeout())


class CountsNothing(Wrapped):
    async def complete(self, messages: Sequence[Message], options: Options) -> Any:
        result = await super().complete(messages, options)
        return Ok(msgspec.structs.replace(result.value, usage=Usage())) if isinstance(result, Ok) else result


class ChangesTheMessages(Wrapped):
    async def complete(self, messages: Sequence[Message], options: Options) -> Any:
        result = await super().complete(messages, options)
        if isinstance(messages, list):
            messages.append(Message("assistant", "mine"))
        return result


class Raises(Wrapped):
    async def complete(self, messages: Sequence[Message], options: Options) -> Any:
        return Ok((await super().complete(messages, options)).unwrap())


FOUND = [
    (Retries, "test_a_failed_call_is_not_made_again"),
    (ForgetsTheEnd, "test_a_broken_stream_is_a_failure_and_its_deltas_stay"),
    (ForgetsTheEnd, "test_nonsense_is_a_malformed_response"),
    (DeliversNothing, "test_a_streamed_answer_is_the_unstreamed_one"),
    (DeliversNothing, "test_a_streamed_answer_arrives_in_pieces"),
    (DeliversTwice, "test_a_streamed_answer_is_the_unstreamed_one"),
    (DeliversTwice, "test_a_broken_stream_is_a_failure_and_its_deltas_stay"),
    (SwallowsCancellation, "test_cancellation_passes_at_once"),
    (SwallowsTheListener, "test_an_error_of_the_listener_is_not_swallowed"),
    (CountsNothing, "test_complete_answers_with_the_text_and_its_usage"),
    (ChangesTheMessages, "test_a_provider_keeps_no_conversation_and_changes_none"),
    (Raises, "test_a_refusal_is_a_status_with_its_hint"),
]


@pytest.mark.parametrize("bad, test", FOUND, ids=[f"{bad.__name__}-{test[5:]}" for bad, test in FOUND])
def test_a_broken_promise_is_found(bad: Callable[[Any], Provider], test: str) -> None:
    class Suite(ProviderConformance):
        @asynccontextmanager
        async def serving(self, *cases: Case) -> AsyncIterator[Provider]:
            assert not any(isinstance(case, (IsAway, LacksTheKey)) for case in cases)
            async with OPENAI.serving(*cases) as good:
                yield bad(good)

    # An exception that the provider should have returned, or a failed promise: either fails the user's test.
    with pytest.raises((Exception, pytest.fail.Exception)):
        getattr(Suite(), test)()


def test_without_serving_there_is_no_suite() -> None:
    with pytest.raises(TypeError):
        ProviderConformance()  # type: ignore[abstract]  # that is what is tested
