"""The suite that any provider must pass. Say how your provider is made to meet each case, and pytest does the
rest:

    class TestMine(ProviderConformance):
        @asynccontextmanager
        async def serving(self, *cases: Case) -> AsyncIterator[Provider]:
            async with FakeServer(*map(my_answer, cases)) as server:
                yield Mine(server.url)

The tests need no plugin: each runs its own event loop. A case that a provider cannot meet is left out with
`not_applicable`.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, NoReturn, TypeAlias, TypeVar

import msgspec
import pytest
from msgspec import Struct

from mead.core.messages import Block, Message, TextBlock, Tool, ToolResultBlock, ToolUseBlock, text_of
from mead.core.options import Options
from mead.core.reasons import (
    HttpStatus,
    MalformedResponse,
    MissingApiKey,
    ProviderReason,
    Timeout,
    ToolsUnsupported,
    Transport,
)
from mead.core.result import Err, Ok, Result
from mead.core.usage import Usage
from mead.providers.protocol import Provider, Reply, can_converse, can_stream, close_provider

QUESTION = "One two three."
"""What the suite says to the model. The text cases are answered with the same words, so that a provider which
only repeats what it is told can meet them too."""

WEATHER = Tool(
    "weather",
    "The weather in a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
OSLO = ToolUseBlock("call_1", "weather", {"city": "Oslo"})
ROME = ToolUseBlock("call_2", "weather", {"city": "Rome", "exactly": [1, None, {"é": "😀"}]})
USAGE = Usage(input_tokens=11, output_tokens=7)
LIMIT_S = 10.0
"""A test that takes longer than this has failed: something waits that should not."""


class Answers(Struct, frozen=True, kw_only=True):
    """The model answers with `pieces` of text, then with `calls`. A streamed answer brings the pieces one by
    one, an unstreamed one brings them joined. `cut_by_limit` is an answer that the token limit cut off."""

    pieces: tuple[str, ...] = ()
    calls: tuple[ToolUseBlock, ...] = ()
    usage: Usage = USAGE
    cut_by_limit: bool = False


class Refuses(Struct, frozen=True, kw_only=True):
    """The server answers with an error status, its words, and a hint when to come back."""

    status: int
    message: str = "not now"
    retry_after_s: int | None = None


class RefusesTools(Struct, frozen=True):
    """The server says that its model cannot use tools."""


class BreaksOff(Struct, frozen=True, kw_only=True):
    """A streamed answer brings `pieces`; then the connection is lost. An unstreamed one is lost midway."""

    pieces: tuple[str, ...] = ()


class GoesSilent(Struct, frozen=True, kw_only=True):
    """A streamed answer brings `pieces`; then nothing more comes, and the connection stays open. An
    unstreamed one never comes."""

    pieces: tuple[str, ...] = ()


class TalksNonsense(Struct, frozen=True):
    """The server answers with success and something that is no answer of its format."""


class IsAway(Struct, frozen=True):
    """Nobody listens at the server's address."""


class LacksTheKey(Struct, frozen=True):
    """The provider needs a key and has none."""


Case: TypeAlias = (
    Answers | Refuses | RefusesTools | BreaksOff | GoesSilent | TalksNonsense | IsAway | LacksTheKey
)

TEXT = Answers(pieces=("One ", "two ", "three."))
_Test = TypeVar("_Test", bound="ProviderConformance")


def not_applicable(why: str) -> NoReturn:
    """For a case that a provider cannot meet: skips the test."""
    pytest.skip(why)


def _in_a_loop(test: Callable[[_Test], Coroutine[Any, Any, None]]) -> Callable[[_Test], None]:
    """Runs an async test in an event loop of its own, with a limit."""

    @functools.wraps(test)
    def run(self: _Test) -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(self)

        asyncio.run(limited())

    return run


class ProviderConformance(ABC):
    """The promises of the provider contract, one test each. Subclass it as `Test…`, and supply `serving`."""

    options = Options(model="test-model")
    """What each call is made with."""
    counts_tokens = True
    """False for a provider that does not pass on the counts of its cases."""

    @abstractmethod
    def serving(self, *cases: Case) -> AbstractAsyncContextManager[Provider]:
        """A provider whose first call meets the first case, the second call the second, and so on."""

    @_in_a_loop
    async def test_complete_answers_with_the_text_and_its_usage(self) -> None:
        async with self.serving(TEXT) as provider:
            completion = (await provider.complete(_question(), self.options)).unwrap()

        assert completion.text == QUESTION
        assert completion.stop_reason == "end_turn"
        if self.counts_tokens:
            assert completion.usage == USAGE

    @_in_a_loop
    async def test_an_answer_that_the_limit_cut_off_says_so(self) -> None:
        async with self.serving(Answers(pieces=("One ",), cut_by_limit=True)) as provider:
            completion = (await provider.complete(_question(), self.options)).unwrap()

        assert (completion.text, completion.stop_reason) == ("One ", "max_tokens")

    @_in_a_loop
    async def test_converse_answers_with_the_same_as_complete(self) -> None:
        async with self.serving(TEXT, TEXT) as provider:
            completion = (await provider.complete(_question(), self.options)).unwrap()
            reply = await self._converse(provider)

        assert text_of(reply.content) == completion.text
        assert (reply.stop_reason, reply.usage) == (completion.stop_reason, completion.usage)

    @_in_a_loop
    async def test_converse_works_without_any_tool(self) -> None:
        async with self.serving(TEXT) as provider:
            reply = await self._converse(provider, tools=())

        assert text_of(reply.content) == QUESTION

    @_in_a_loop
    async def test_a_streamed_answer_is_the_unstreamed_one(self) -> None:
        async with self.serving(TEXT, TEXT) as provider:
            streamed, deltas = await self._stream(provider)
            reply = await self._converse(provider)

        assert streamed == Ok(reply)
        assert "".join(deltas) == QUESTION
        assert all(deltas)

    @_in_a_loop
    async def test_a_streamed_answer_arrives_in_pieces(self) -> None:
        async with self.serving(TEXT) as provider:
            _, deltas = await self._stream(provider)

        assert len(deltas) > 1

    @_in_a_loop
    async def test_a_call_keeps_its_id_its_name_and_its_input(self) -> None:
        async with self.serving(Answers(pieces=("Let me see.",), calls=(OSLO, ROME))) as provider:
            reply = await self._converse(provider)

        assert reply.stop_reason == "tool_use"
        assert _without_vendor(reply) == (TextBlock("Let me see."), OSLO, ROME)

    @_in_a_loop
    async def test_a_streamed_call_is_the_unstreamed_one(self) -> None:
        case = Answers(pieces=("Let ", "me see."), calls=(OSLO, ROME))
        async with self.serving(case, case) as provider:
            streamed, deltas = await self._stream(provider)
            reply = await self._converse(provider)

        assert streamed == Ok(reply)
        assert "".join(deltas) == "Let me see."

    @_in_a_loop
    async def test_results_can_be_sent_back(self) -> None:
        async with self.serving(Answers(calls=(OSLO, ROME)), TEXT) as provider:
            reply = await self._converse(provider)
            results = (ToolResultBlock("call_1", "rain"), ToolResultBlock("call_2", "no such city", True))
            messages = [*_question(), Message("assistant", reply.content), Message("user", results)]
            answer = await self._converse(provider, messages=messages)

        assert text_of(answer.content) == QUESTION

    @_in_a_loop
    async def test_a_provider_keeps_no_conversation_and_changes_none(self) -> None:
        messages = _question()
        async with self.serving(TEXT, TEXT) as provider:
            first = await provider.complete(messages, self.options)
            second = await provider.complete(messages, self.options)

        assert first == second
        assert messages == _question()

    @_in_a_loop
    async def test_calls_side_by_side_do_not_meet(self) -> None:
        async with self.serving(TEXT, TEXT, TEXT) as provider:
            calls = [provider.complete(_question(), self.options) for _ in range(3)]
            texts = [result.unwrap().text for result in await asyncio.gather(*calls)]

        assert texts == [QUESTION] * 3

    @_in_a_loop
    async def test_a_refusal_is_a_status_with_its_hint(self) -> None:
        case = Refuses(status=429, message="slow down", retry_after_s=7)
        async with self.serving(case, case) as provider:
            reasons = [_reason(await provider.complete(_question(), self.options))]
            reasons.append(_reason((await self._stream(provider))[0]))

        for reason in reasons:
            assert isinstance(reason, HttpStatus)
            assert (reason.status, reason.retry_after_s) == (429, 7)
            assert "slow down" in (reason.detail or "")

    @_in_a_loop
    async def test_a_failed_call_is_not_made_again(self) -> None:
        async with self.serving(Refuses(status=503), TEXT) as provider:
            failed = _reason(await provider.complete(_question(), self.options))
            after = await provider.complete(_question(), self.options)

        assert isinstance(failed, HttpStatus)
        assert after.unwrap().text == QUESTION

    @_in_a_loop
    async def test_a_broken_stream_is_a_failure_and_its_deltas_stay(self) -> None:
        async with self.serving(BreaksOff(pieces=("One ", "two "))) as provider:
            result, deltas = await self._stream(provider)

        assert isinstance(_reason(result), (Transport, MalformedResponse))
        assert "".join(deltas) == "One two "

    @_in_a_loop
    async def test_a_broken_answer_is_a_failure(self) -> None:
        async with self.serving(BreaksOff(pieces=("One ",))) as provider:
            result = await provider.complete(_question(), self.options)

        assert isinstance(_reason(result), (Transport, MalformedResponse))

    @_in_a_loop
    async def test_the_deadline_ends_a_call(self) -> None:
        async with self.serving(GoesSilent()) as provider:
            result = await provider.complete(_question(), self._due())

        assert _reason(result) == Timeout(limit="deadline")

    @_in_a_loop
    async def test_the_deadline_ends_a_stream_and_its_deltas_stay(self) -> None:
        async with self.serving(GoesSilent(pieces=("One ",))) as provider:
            result, deltas = await self._stream(provider, self._due())

        assert _reason(result) == Timeout(limit="deadline")
        assert deltas == ["One "]

    @_in_a_loop
    async def test_silence_in_a_stream_has_its_own_limit(self) -> None:
        options = msgspec.structs.replace(self.options, idle_timeout_s=0.05)
        async with self.serving(GoesSilent(pieces=("One ",))) as provider:
            result, _ = await self._stream(provider, options)

        reason = _reason(result)
        assert isinstance(reason, Timeout)
        assert reason.limit == "idle"

    @_in_a_loop
    async def test_nonsense_is_a_malformed_response(self) -> None:
        async with self.serving(TalksNonsense(), TalksNonsense()) as provider:
            result = await provider.complete(_question(), self.options)
            streamed, deltas = await self._stream(provider)

        assert isinstance(_reason(result), MalformedResponse)
        assert isinstance(_reason(streamed), MalformedResponse)
        assert deltas == []

    @_in_a_loop
    async def test_a_server_that_is_away_is_a_transport_failure(self) -> None:
        async with self.serving(IsAway()) as provider:
            result = await provider.complete(_question(), self.options)

        assert isinstance(_reason(result), Transport)

    @_in_a_loop
    async def test_a_missing_key_is_said_before_anything_is_sent(self) -> None:
        async with self.serving(LacksTheKey()) as provider:
            result = await provider.complete(_question(), self.options)

        assert isinstance(_reason(result), MissingApiKey)

    @_in_a_loop
    async def test_a_model_without_tools_is_tools_unsupported(self) -> None:
        async with self.serving(RefusesTools()) as provider:
            if not can_converse(provider):
                not_applicable("it cannot converse")
            result = await provider.converse(_question(), (WEATHER,), self.options)

        assert isinstance(_reason(result), ToolsUnsupported)

    @_in_a_loop
    async def test_cancellation_passes_at_once(self) -> None:
        async with self.serving(GoesSilent(pieces=("One ",))) as provider:
            arrived = asyncio.Event()
            call = asyncio.create_task(self._stream(provider, heard=lambda _: arrived.set()))
            await arrived.wait()
            call.cancel()
            results = await asyncio.gather(call, return_exceptions=True)

        assert isinstance(results[0], asyncio.CancelledError)

    @_in_a_loop
    async def test_an_error_of_the_listener_is_not_swallowed(self) -> None:
        def fail(_: str) -> None:
            raise LookupError("the listener's own")

        async with self.serving(TEXT) as provider:
            with pytest.raises(LookupError, match="the listener's own"):
                await self._stream(provider, heard=fail)

    @_in_a_loop
    async def test_a_provider_can_be_closed_twice(self) -> None:
        async with self.serving(TEXT) as provider:
            (await provider.complete(_question(), self.options)).unwrap()
            await close_provider(provider)
            await close_provider(provider)

    def _due(self) -> Options:
        """Options with a deadline that is about to pass."""
        return msgspec.structs.replace(self.options, deadline=asyncio.get_running_loop().time() + 0.05)

    async def _converse(
        self,
        provider: Provider,
        *,
        messages: Sequence[Message] | None = None,
        tools: Sequence[Tool] = (WEATHER,),
    ) -> Reply:
        if not can_converse(provider):
            not_applicable("it cannot converse")
        return (await provider.converse(messages or _question(), tools, self.options)).unwrap()

    async def _stream(
        self, provider: Provider, options: Options | None = None, heard: Callable[[str], object] | None = None
    ) -> tuple[Result[Reply, ProviderReason], list[str]]:
        """The result of a streamed call, and its deltas."""
        if not can_stream(provider):
            not_applicable("it cannot stream")
        deltas: list[str] = []

        def hear(delta: str) -> None:
            deltas.append(delta)
            if heard is not None:
                heard(delta)

        result = await provider.converse_stream(_question(), (WEATHER,), options or self.options, hear)
        return result, deltas


def _question() -> list[Message]:
    return [Message("user", QUESTION)]


def _reason(result: Result[object, ProviderReason]) -> ProviderReason:
    assert isinstance(result, Err), f"a failure was expected, not {result!r}"
    return result.reason


def _without_vendor(reply: Reply) -> tuple[Block, ...]:
    return tuple([block for block in reply.content if isinstance(block, (TextBlock, ToolUseBlock))])
