"""Streams of the Anthropic-compatible door, and clients that go away or come back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import pytest

import mead
from mead.core.options import Options
from mead.core.reasons import HttpStatus, Timeout
from mead.core.result import Result
from mead.providers.protocol import OnDelta, Reply
from mead.serve import anthropic as door
from mead.serve import chat, streams
from mead.testing import ProviderRequest, ScriptedProvider
from serve.anthropic_client import Clients, user
from serve.served import Serving
from support import runtime, two_models


@pytest.fixture
def client_of(serving: Serving) -> Iterator[Clients]:
    with Clients(serving) as clients:
        yield clients


def test_a_stream_has_anthropics_events_in_their_order(client_of: Clients) -> None:
    client = client_of(runtime(ScriptedProvider(["Hel", "lo ", "you"])))
    asked = {"model": "mead-local", "max_tokens": 9, "stream": True, "messages": [user("hi")]}

    raw = httpx2.post(f"{client.base_url}/v1/messages", json=asked)
    events = [line.removeprefix("event: ") for line in raw.text.splitlines() if line.startswith("event: ")]

    assert raw.headers["content-type"].startswith("text/event-stream")
    assert events == [
        "message_start",
        "content_block_start",
        "ping",
        "content_block_delta",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_a_streams_text_is_the_answer(client_of: Clients) -> None:
    client = client_of(runtime(ScriptedProvider(["Hel", "lo ", "you"])))

    with client.messages.stream(model="mead-local", max_tokens=9, messages=[user("hi")]) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()

    assert pieces == ["Hel", "lo ", "you"]
    assert [block.text for block in final.content] == ["Hello you"]
    assert final.stop_reason == "end_turn"


def test_the_end_of_a_stream_tells_of_the_route(client_of: Clients) -> None:
    client = client_of(runtime(*two_models()))

    with client.messages.create(
        model="mead-cloud", max_tokens=9, stream=True, messages=[user("hi")]
    ) as stream:
        (end,) = [event for event in stream if event.type == "message_delta"]

    assert (end.mead["route"], end.mead["label"]) == ("cloud", "shareable")


async def test_the_asynchronous_library_streams_too(serving: Serving) -> None:
    url = serving(runtime(ScriptedProvider(["a", "b"])), doors=(door.routes,))

    async with anthropic.AsyncAnthropic(base_url=url, api_key="any") as client:
        async with client.messages.stream(model="mead-local", max_tokens=9, messages=[user("x")]) as stream:
            pieces = [text async for text in stream.text_stream]
            final = await stream.get_final_message()

    assert pieces == ["a", "b"]
    assert final.content[0].text == "ab"  # type: ignore[union-attr]  # it is a text block


def test_a_stream_that_fails_at_once_has_a_status_of_its_own(client_of: Clients) -> None:
    client = client_of(runtime(ScriptedProvider(otherwise=HttpStatus(status=529, detail="too many"))))

    with (
        pytest.raises(anthropic.InternalServerError) as caught,
        client.messages.stream(model="mead-local", max_tokens=9, messages=[user("hi")]),
    ):
        pass

    assert caught.value.status_code == 529


class Breaks(ScriptedProvider):
    """Says a word, and then fails."""

    async def converse_stream(
        self, messages: object, tools: object, options: object, on_delta: OnDelta
    ) -> Result[Reply, Any]:
        on_delta("Well, ")
        return mead.Err(Timeout())


def test_a_stream_that_fails_midway_ends_with_an_error(client_of: Clients) -> None:
    client = client_of(runtime(Breaks()))
    pieces: list[str] = []

    with (
        pytest.raises(anthropic.APIStatusError) as caught,
        client.messages.stream(model="mead-local", max_tokens=9, messages=[user("hi")]) as stream,
    ):
        pieces += stream.text_stream

    assert pieces == ["Well, "]
    error: Any = caught.value.body
    assert error["error"]["type"] == "timeout_error"
    assert error["error"]["code"] == "timeout"


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_begins_before_a_slow_model_does(
    client_of: Clients, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(streams, "PING_S", 0.02)
    may_answer = threading.Event()

    async def slow(request: ProviderRequest) -> object:
        await asyncio.to_thread(may_answer.wait, 20)
        return HttpStatus(status=500) if fails else "At last."

    client = client_of(runtime(ScriptedProvider(slow)))
    with client.messages.stream(model="mead-local", max_tokens=9, messages=[user("hi")]) as stream:
        first = next(iter(stream))
        may_answer.set()
        if fails:
            with pytest.raises(anthropic.APIStatusError):
                stream.until_done()
        else:
            assert stream.get_final_text() == "At last."

    assert first.type == "message_start"


# Going away


class Hangs(ScriptedProvider):
    """Says a word, if it streams, and then nothing until it is cancelled; the next call is answered."""

    def __init__(self) -> None:
        super().__init__(otherwise="I am here again.")
        self.started = threading.Event()
        self.cancelled = threading.Event()

    async def complete(self, messages: Any, options: Options) -> Any:
        await self._hang()
        return await super().complete(messages, options)

    async def converse_stream(self, messages: Any, tools: Any, options: Options, on_delta: OnDelta) -> Any:
        if not self.started.is_set():
            on_delta("Well")
        await self._hang()
        return await super().converse_stream(messages, tools, options, on_delta)

    async def _hang(self) -> None:
        if self.started.is_set():
            return
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def test_a_client_that_closes_its_stream_cancels_the_turn(client_of: Clients) -> None:
    hanging = Hangs()
    client = client_of(runtime(hanging))

    with client.messages.stream(model="mead-local", max_tokens=9, messages=[user("hi")]) as stream:
        assert next(stream.text_stream) == "Well"

    assert hanging.cancelled.wait(20)
    answer = client.messages.create(model="mead-local", max_tokens=9, messages=[user("hello?")])
    assert answer.content[0].text == "I am here again."


async def test_a_client_that_goes_away_cancels_the_turn(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "RETRY_GRACE_S", 0.0)
    hanging = Hangs()
    url = serving(runtime(hanging), doors=(door.routes,))

    async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
        asking = asyncio.ensure_future(
            client.messages.create(model="mead-local", max_tokens=9, messages=[user("hi")])
        )
        assert await asyncio.to_thread(hanging.started.wait, 20)
        asking.cancel()
        assert await asyncio.to_thread(hanging.cancelled.wait, 20)


def test_a_repeat_by_the_library_does_not_ask_the_model_again(client_of: Clients) -> None:
    local = ScriptedProvider(otherwise="once")
    client = client_of(runtime(local))
    asked: dict[str, Any] = {"model": "mead-local", "max_tokens": 9, "messages": [user("hi")]}
    client.messages.create(**asked)

    answer = client.messages.create(**asked, extra_headers={"x-stainless-retry-count": "1"})

    assert answer.content[0].text == "once"
    assert len(local.requests) == 1


def test_the_librarys_own_repeats_reach_an_answer(client_of: Clients) -> None:
    local = ScriptedProvider(HttpStatus(status=500), "the second time")
    client = client_of(runtime(local), max_retries=1)

    answer = client.messages.create(model="mead-local", max_tokens=9, messages=[user("hi")])

    assert answer.content[0].text == "the second time"
