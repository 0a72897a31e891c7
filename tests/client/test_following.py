"""What the client does when the connection, the token or the server is not as it should be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import mead
from client.conftest import Serve
from mead import Err
from mead.client._sse import EventReader, Received
from mead.core.reasons import HttpStatus, MalformedResponse, Transport
from mead.serve.tokens import Tokens
from mead.testing import calls
from serve.api import Gate, kept, model, token

Stop = Callable[[], None]


@mead.tool(effect=False)
def look() -> str:
    """Looks."""
    return "seen"


class Relay:
    """Passes bytes on to a server, and breaks connections off when it is told to."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("http://").partition(":")
        self._to = (host, int(port))
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.connections = 0
        self.refuses = False
        self.cuts: list[int] = []
        """After how many bytes of an answer the next connections are broken off, one after the other."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self.refuses:
            writer.transport.abort()
            return
        from_server, to_server = await asyncio.open_connection(*self._to)
        self._open |= {writer, to_server}
        try:
            await asyncio.gather(
                self._pass(reader, to_server, None),
                self._pass(from_server, writer, self.cuts.pop(0) if self.cuts else None),
            )
        except ConnectionError:
            pass
        finally:
            for each in (writer, to_server):
                each.transport.abort()
                self._open.discard(each)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None
    ) -> None:
        passed = 0
        while data := await reader.read(1 if limit is not None else 65_536):
            passed += len(data)
            writer.write(data)
            await writer.drain()
            if limit is not None and passed >= limit:
                raise ConnectionAbortedError
        raise ConnectionAbortedError

    def cut(self) -> None:
        """Breaks every connection off."""
        for each in list(self._open):
            each.transport.abort()


@asynccontextmanager
async def relayed(address: str) -> AsyncIterator[tuple[Relay, str]]:
    relay = Relay(address)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield relay, f"http://127.0.0.1:{port}"
        relay.cut()


@pytest.mark.parametrize("cuts", [[400], [450, 350, 360], [480, 100, 460, 1000, 600]], ids=str)
async def test_a_stream_that_breaks_off_is_taken_up_and_nothing_is_lost_or_told_twice(
    serve: Serve, cuts: list[int]
) -> None:
    local = model(["one ", "two ", "three"])
    async with relayed(serve(kept(local))) as (relay, address):
        async with mead.connect(address) as runtime:
            session_id = await runtime.start_session()
        relay.cuts = [*cuts]
        async with mead.connect(address) as runtime:
            events = [event async for event in runtime.stream_turn(session_id, "x", route="local")]

    assert relay.cuts == []
    assert relay.connections >= 2 + len(cuts)
    assert [event.text for event in events if isinstance(event, mead.Delta)] == ["one ", "two ", "three"]
    assert isinstance(events[-1], mead.Finished)
    assert events[-1].result.unwrap().text == "one two three"
    assert len(local.requests) == 1


async def test_a_turn_goes_on_while_its_stream_is_broken_off(serve: Serve) -> None:
    gate = Gate("the end")
    server = serve(kept(model(calls("look"), gate), tools=[look]))
    async with relayed(server) as (relay, address), mead.connect(address) as runtime:
        session_id = await runtime.start_session()
        events = runtime.stream_turn(session_id, "x", route="local")
        assert await anext(events) == mead.ToolCalled("look", effect=False)
        assert await asyncio.to_thread(gate.begun.wait, 20)
        relay.cut()
        gate.open()

        *_, last = [event async for event in events]

    assert isinstance(last, mead.Finished)
    assert last.result.unwrap().text == "the end"
    assert not gate.cancelled.is_set()


async def test_a_server_that_stays_away_is_a_transport_reason(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mead.client.following.pause", _no_pause)
    gate = Gate()
    server = serve(kept(model(calls("look"), gate), tools=[look]))
    async with relayed(server) as (relay, address), mead.connect(address) as runtime:
        events = runtime.stream_turn(await runtime.start_session(), "x", route="local")
        assert await anext(events) == mead.ToolCalled("look", effect=False)
        relay.refuses = True
        relay.cut()

        result = (await _last(events)).result

    assert isinstance(result, Err)
    assert isinstance(result.reason, Transport)


async def test_where_nothing_listens_every_method_says_so() -> None:
    async with mead.connect("http://127.0.0.1:9") as runtime:
        turn = await runtime.submit_turn("x", "hello")
        assert turn == Err(Transport(cause="refused", detail="nothing accepts connections at 127.0.0.1:9"))
        assert (await _last(runtime.stream_turn("x", "hello"))).result == turn
        assert await runtime.history("x") == turn
        assert await runtime.explain("x") == turn
        with pytest.raises(mead.MeadError, match="transport"):
            await runtime.start_session()


async def test_a_server_that_is_no_mead_is_told_from_one() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with mead.connect(f"http://127.0.0.1:{port}") as runtime:
            result = await runtime.submit_turn("x", "hello")

    assert isinstance(result, Err)
    assert isinstance(result.reason, MalformedResponse)


async def test_what_the_token_may_not_do_is_an_http_status(serve: Serve, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    address = serve(kept(model()), tokens)
    async with (
        mead.connect(address, token(tokens, "chat")) as chat,
        mead.connect(address, "mead_x") as nobody,
    ):
        session_id = await chat.start_session()
        refused = await chat.submit_turn(session_id, "x", tools="effect")
        unknown = await nobody.submit_turn(session_id, "x")

        assert isinstance(refused, Err)
        assert isinstance(refused.reason, HttpStatus)
        assert (refused.reason.status, refused.reason.code) == (403, "forbidden")
        assert isinstance(unknown, Err)
        assert isinstance(unknown.reason, HttpStatus)
        assert unknown.reason.status == 401
        assert "mead_x" not in repr(nobody)


async def test_s10_a_client_sees_the_sessions_of_its_tokens_owner_only(serve: Serve, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    address = serve(kept(model()), tokens)
    async with (
        mead.connect(address, token(tokens, "chat")) as mine,
        mead.connect(address, token(tokens, "chat", owner="other")) as other,
    ):
        session_id = await mine.start_session()
        assert await mine.sessions() == (session_id,)
        assert await other.sessions() == ()
        assert not await other.stop_session(session_id)


async def test_what_cannot_be_done_from_afar_says_so() -> None:
    async with mead.connect("http://127.0.0.1:9") as runtime:
        with pytest.raises(RuntimeError, match="token"):
            runtime.for_owner("other")
        with pytest.raises(RuntimeError, match="afar"):
            await runtime.delete_owner()
        with pytest.raises(ValueError, match="handler"):
            await runtime.start_session(handler=mead.EchoHandler())
        with pytest.raises(ValueError, match="idempotency key"):
            await runtime.start_session(idempotency_key="k")
    with pytest.raises(ValueError, match="http"):
        mead.connect("localhost:4141")


def test_code_that_is_not_async_has_the_same_client(serve: Serve) -> None:
    with mead.connect_sync(serve(kept(model(["a", "b"])))) as runtime:
        session_id = runtime.start_session()
        events = list(runtime.stream_turn(session_id, "x", route="local"))

        assert [type(event).__name__ for event in events] == ["Delta", "Delta", "Finished"]
        assert runtime.submit_turn(session_id, "y", route="local").unwrap().text == "from local"
        assert len(runtime.history(session_id).unwrap()) == 2
        assert runtime.stop_session(session_id)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"], ids=["lf", "crlf", "cr"])
def test_events_are_the_same_however_the_bytes_are_cut(size: int, end: str) -> None:
    text = f": ping{end}{end}id: 4{end}event: delta{end}data: ab{end}data: c{end}{end}data: x{end}{end}id: 9"
    data, reader = text.encode(), EventReader()

    found = [event for at in range(0, len(data), size) for event in reader.feed(data[at : at + size])]

    assert found == [Received(4, "delta", b"ab\nc"), Received(0, "", b"x")]


async def _no_pause(attempt: int) -> None:
    await asyncio.sleep(0)


async def _last(stream: AsyncIterator[mead.TurnEvent]) -> mead.Finished:
    *_, last = [event async for event in stream]
    assert isinstance(last, mead.Finished)
    return last
