"""The test kit does what its users rely on."""

from __future__ import annotations

import asyncio

import pytest

from mead.core.messages import Message
from mead.core.options import Options
from mead.core.reasons import HttpStatus, Transport
from mead.core.result import Err, Ok
from mead.providers.http import HttpClient
from mead.providers.protocol import can_converse, can_stream
from mead.testing import Answer, FakeServer, Received, ScriptedProvider, calls, ndjson, quote_everything, sse

HELLO = [Message("user", "hello")]


async def test_a_scripted_provider_follows_its_script_and_keeps_the_requests() -> None:
    fragments: list[str] = []
    provider = ScriptedProvider("one", ["t", "wo"], HttpStatus(status=429), lambda request: request.text)

    assert (await provider.complete(HELLO, Options())).unwrap().text == "one"
    streamed = await provider.converse_stream(HELLO, (), Options(), fragments.append)
    failed = await provider.complete(HELLO, Options())
    computed = (await provider.complete(HELLO, Options(system="be kind"))).unwrap()

    assert isinstance(streamed, Ok)
    assert fragments == ["t", "wo"]
    assert failed == Err(HttpStatus(status=429))
    assert computed.text == "be kind\nhello"
    assert [request.call for request in provider.requests] == [
        "complete",
        "converse_stream",
        "complete",
        "complete",
    ]


async def test_a_call_that_the_script_does_not_foresee_fails_the_test() -> None:
    provider = ScriptedProvider("one")
    await provider.complete(HELLO, Options())

    with pytest.raises(AssertionError, match="call 2"):
        await provider.complete(HELLO, Options())


async def test_a_scripted_provider_can_lack_tools_or_streaming_and_can_raise() -> None:
    assert not can_converse(ScriptedProvider(tools=False))
    assert not can_stream(ScriptedProvider(tools=False))
    assert can_converse(ScriptedProvider(streaming=False))
    assert not can_stream(ScriptedProvider(streaming=False))
    with pytest.raises(LookupError):
        await ScriptedProvider(LookupError()).complete(HELLO, Options())


async def test_quoting_gives_back_all_that_was_shown() -> None:
    provider = ScriptedProvider(calls("look", at="the oak"), otherwise=quote_everything)
    reply = (await provider.converse(HELLO, (), Options())).unwrap()

    quoted = await provider.complete([*HELLO, Message("assistant", reply.content)], Options(system="rules"))

    assert all(word in quoted.unwrap().text for word in ("rules", "hello", "look", "the oak"))


async def ask(server: FakeServer, pieces: list[bytes] | None = None) -> object:
    client = HttpClient(server.url, slot="local")

    def keep(chunk: bytes) -> bool:
        if pieces is not None:
            pieces.append(chunk)
        return False

    try:
        return await client.send("POST", "/x", Options(), body=b'{"a":1}', on_chunk=keep)
    finally:
        await client.aclose()


async def test_the_server_answers_in_order_and_keeps_what_came_in() -> None:
    def echo(request: Received) -> Answer:
        return Answer(status=404, body=request.body)

    async with FakeServer(echo, Answer(status=500), routes={"/props": Answer(status=201)}) as server:
        client = HttpClient(server.url, slot="local")
        replies = [
            (await client.send("POST", path, Options(), body=b'{"a":1}')).unwrap()
            for path in ("/one", "/props", "/two", "/three")
        ]
        await client.aclose()

    assert [reply.status for reply in replies] == [404, 201, 500, 500]
    assert replies[0].body == b'{"a":1}'
    assert [request.path for request in server.requests] == ["/one", "/props", "/two", "/three"]
    assert server.requests_to("/two")[0].json() == {"a": 1}


@pytest.mark.parametrize("chunked", [True, False])
async def test_the_server_can_cut_an_answer_off(chunked: bool) -> None:
    pieces: list[bytes] = []
    async with FakeServer(Answer(body=[b"half", b" an"], end="cut", chunked=chunked)) as server:
        result = await ask(server, pieces)

    assert isinstance(result, Err)
    assert isinstance(result.reason, Transport)
    assert b"".join(pieces) == b"half an"


async def test_the_server_can_hang_and_sees_its_client_leave() -> None:
    async with FakeServer(Answer(body=b"half", end="hang")) as server:
        task = asyncio.create_task(ask(server))
        await server.answering.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asyncio.wait_for(server.client_left.wait(), 5)


def test_events_and_lines_are_written_as_servers_do() -> None:
    assert sse({"a": 1}, "plain", end="[DONE]") == b'data: {"a":1}\n\ndata: plain\n\ndata: [DONE]\n\n'
    assert ndjson({"a": 1}, {"b": 2}) == b'{"a":1}\n{"b":2}\n'
