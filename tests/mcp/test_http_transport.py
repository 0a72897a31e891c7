"""The HTTP transport, and what the SDK's own one does in the same place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification, ToolListChangedNotification

from mead.mcp.transports import ANSWER_LOST, TOO_LARGE, Wire, http
from mead.mcp.transports.http import http_transport
from mead.testing import Answer, FakeServer, Received
from mead.testing.mcp import FaultyHttpServer

LIMIT_S = 10.0
MODES = {"legacy": "legacy", "modern": "auto"}

Connect = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def client_of(connect: Connect, wire: Wire) -> Connect:
    """A client of a faulty server, through mead's transport: `async with client_of(server) as client`."""

    @asynccontextmanager
    async def made(server: FaultyHttpServer, era: str = "legacy", **keywords: Any) -> AsyncIterator[Client]:
        handler = {"message_handler": keywords.pop("message_handler", None)}
        keywords = {"headers": {}, "auth": None, "wire": wire, **keywords}
        async with asyncio.timeout(LIMIT_S):
            async with connect(http_transport(server.url, **keywords), mode=MODES[era], **handler) as client:
                yield client

    return made


eras = pytest.mark.parametrize("era", ["legacy", "modern"])
answers = pytest.mark.parametrize("answers", ["sse", "json"])


# Connections that break


@eras
@answers
@pytest.mark.parametrize("tool", ["drop", "cut"])
async def test_mcp_d05_a_broken_connection_fails_one_call(tool, era, answers, client_of, text, wire) -> None:
    async with FaultyHttpServer(era=era, answers=answers) as server, client_of(server, era) as client:
        slow = asyncio.create_task(client.session.call_tool("slow", {}))
        await server.arrived.wait()
        with pytest.raises(MCPError) as caught:
            await client.session.call_tool(tool, {})
        server.release()

        assert caught.value.error.code == ANSWER_LOST
        assert text(await slow) == "slow was called"
        assert text(await client.session.call_tool("echo", {"text": "later"})) == "later"
        assert not wire.lost.is_set()


async def test_mcp_d05_without_mead_it_fails_all_of_them(text) -> None:
    async with FaultyHttpServer(answers="json") as server:
        with pytest.raises(BaseExceptionGroup):
            async with Client(streamable_http_client(server.url), mode="legacy", cache=None) as client:
                slow = asyncio.create_task(client.session.call_tool("slow", {}))
                await server.arrived.wait()
                with pytest.raises(MCPError):
                    await client.session.call_tool("drop", {})
        server.release()

        with pytest.raises(MCPError, match="Connection closed"):
            await slow


async def test_mcp_d04_the_task_of_a_call_that_breaks_is_not_cancelled(client_of) -> None:
    async with FaultyHttpServer() as server, client_of(server) as client:
        with pytest.raises(MCPError, match="the connection broke before the answer was there"):
            await client.session.call_tool("drop", {})

        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


@eras
async def test_mcp_d06_a_server_that_is_gone_fails_the_call(era, client_of, text) -> None:
    async with FaultyHttpServer(era=era) as server, client_of(server, era) as client:
        hang = asyncio.create_task(client.session.call_tool("hang", {}))
        await server.arrived.wait()
        server.disconnect()
        with pytest.raises(MCPError):
            await hang

        assert text(await client.session.call_tool("echo", {"text": "back"})) == "back"


@eras
async def test_mcp_d18_a_call_whose_answer_was_lost_is_not_repeated(era, client_of) -> None:
    async with FaultyHttpServer(era=era) as server, client_of(server, era) as client:
        for tool in ("drop", "cut"):
            with pytest.raises(MCPError):
                await client.session.call_tool(tool, {})

        assert server.calls == ["drop", "cut"]


@eras
async def test_mcp_d03_a_closed_port_is_an_error_that_says_so(era, wire, connect) -> None:
    async with FaultyHttpServer() as server:
        url = server.url
    with pytest.raises((MCPError, ExceptionGroup)) as caught:
        async with connect(http_transport(url, headers={}, auth=None, wire=wire), mode=MODES[era]):
            pass

    assert "the server cannot be reached: All connection attempts failed" in str(innermost(caught.value))


async def test_mcp_d10_a_server_that_never_answers_is_left_at_the_callers_deadline(connect, wire) -> None:
    async with FaultyHttpServer(silent=True) as server:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                async with connect(http_transport(server.url, headers={}, auth=None, wire=wire)):
                    pass
        async with asyncio.timeout(LIMIT_S):
            await server.client_left.wait()


@eras
async def test_mcp_d11_keep_alive_comments_keep_no_call_alive(era, client_of, text) -> None:
    async with FaultyHttpServer(era=era) as server, client_of(server, era) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.session.call_tool("ping", {})

        assert text(await client.session.call_tool("echo", {"text": "hi"})) == "hi"


@eras
@pytest.mark.parametrize("tool", ["ping", "hang"])
async def test_a_call_that_is_given_up_holds_no_connection(tool, era, client_of) -> None:
    async with FaultyHttpServer(era=era) as server, client_of(server, era) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.session.call_tool(tool, {})
        await server.client_left.wait()

        assert server.cancelled == ([3 if era == "modern" else 2] if era == "legacy" else [])


async def test_mcp_d20_a_cancelled_call_reaches_the_server(client_of, text) -> None:
    async with FaultyHttpServer() as server, client_of(server) as client:
        call = asyncio.create_task(client.session.call_tool("hang", {}))
        await server.arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await server.client_left.wait()

        assert len(server.cancelled) == 1
        assert text(await client.session.call_tool("echo", {"text": "hi"})) == "hi"


async def test_a_notification_without_an_answer_does_not_hold_up_calls(client_of, text, monkeypatch) -> None:
    monkeypatch.setattr(http, "_NOTICE_S", 0.1)
    async with FaultyHttpServer(hang_notifications=True) as server, client_of(server) as client:
        assert text(await client.session.call_tool("echo", {"text": "hi"})) == "hi"


async def test_without_mead_it_holds_them_up() -> None:
    notification = SessionMessage(JSONRPCNotification(jsonrpc="2.0", method="notifications/any"))
    async with FaultyHttpServer(hang_notifications=True) as server:
        async with streamable_http_client(server.url) as (_, write):
            await write.send(notification)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await write.send(notification)


async def test_leaving_a_server_that_is_silent_is_bounded(client_of, monkeypatch) -> None:
    monkeypatch.setattr(http, "_FAREWELL_S", 0.1)
    async with FaultyHttpServer() as server, client_of(server):
        server.silent = True


# Sessions


@pytest.mark.parametrize(
    "body",
    [None, {"jsonrpc": "2.0", "id": None, "error": {"code": -32001, "message": "Session not found"}}],
    ids=["empty", "with an error"],
)
async def test_mcp_d14_d15_an_expired_session_is_noticed(body, client_of, wire) -> None:
    async with FaultyHttpServer(expired_body=body) as server, client_of(server) as client:
        server.expire()
        with pytest.raises(MCPError):
            await client.session.call_tool("echo", {"text": "hi"})

        assert wire.lost.is_set()
        assert server.calls == []
    assert not [request for request in server.requests if request.method == "DELETE"]


async def test_mcp_d14_an_expired_session_is_noticed_at_a_server_that_says_400(client_of, wire) -> None:
    async with FaultyHttpServer() as server, client_of(server) as client:
        server.status, server.body = 400, b"Bad Request: No valid session ID provided"
        with pytest.raises(MCPError):
            await client.list_tools()

        assert wire.lost.is_set()


async def test_a_refused_argument_named_session_is_no_expired_session(client_of, wire) -> None:
    async with FaultyHttpServer() as server, client_of(server) as client:
        error = {"code": -32602, "message": "session_id is missing"}
        server.status, server.body = 400, json.dumps({"jsonrpc": "2.0", "id": 2, "error": error}).encode()
        with pytest.raises(MCPError):
            await client.list_tools()

        assert not wire.lost.is_set()


async def test_mcp_d16_an_expired_session_is_noticed_by_a_list(client_of, wire) -> None:
    async with FaultyHttpServer() as server, client_of(server) as client:
        server.expire()
        with pytest.raises(MCPError):
            await client.list_tools()

        assert wire.lost.is_set()


async def test_a_missing_method_is_no_expired_session(client_of, wire) -> None:
    async with FaultyHttpServer(era="modern") as server, client_of(server, "modern") as client:
        server.status = 404
        with pytest.raises(MCPError, match="HTTP status 404 Not Found"):
            await client.list_tools()

        assert not wire.lost.is_set()


async def test_a_session_is_ended_when_it_is_left(client_of) -> None:
    async with FaultyHttpServer() as server:
        async with client_of(server):
            pass

        assert server.requests[-1].method == "DELETE"


async def test_mcp_d39_a_changed_list_is_heard_of(client_of) -> None:
    changed = asyncio.Event()

    async def handle(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async with FaultyHttpServer() as server, client_of(server, message_handler=handle):
        await server.listening.wait()
        server.announce("notifications/tools/list_changed")
        await changed.wait()


# Answers


@eras
@pytest.mark.parametrize(
    "tool, code, said",
    [
        ("unavailable", ANSWER_LOST, "HTTP status 503 Service Unavailable: come back later"),
        ("html", ANSWER_LOST, "the server answered with text/html"),
        ("elsewhere", -32600, "Redirect to http://example.invalid/mcp not followed"),
        ("accepted", -32600, "202 Accepted"),
        ("no_json", ANSWER_LOST, "the server's answer is no valid JSON-RPC message"),
    ],
)
async def test_a_wrong_answer_is_an_error_of_that_call(tool, code, said, era, client_of, text, wire) -> None:
    async with FaultyHttpServer(era=era) as server, client_of(server, era) as client:
        with pytest.raises(MCPError) as caught:
            await client.session.call_tool(tool, {})

        assert said in str(caught.value)
        assert caught.value.error.code == code
        assert text(await client.session.call_tool("echo", {"text": "hi"})) == "hi"
        assert not wire.lost.is_set()


@eras
@pytest.mark.parametrize("status", [401, 403, 500])
async def test_a_server_that_refuses_says_its_status(status, era, connect, wire) -> None:
    async with FaultyHttpServer(status=status) as server:
        with pytest.raises((MCPError, ExceptionGroup)) as caught:
            async with connect(http_transport(server.url, headers={}, auth=None, wire=wire), mode=MODES[era]):
                pass

    assert f"the server answered with HTTP status {status}" in str(innermost(caught.value))
    assert wire.http_status == status


@eras
@answers
async def test_mcp_d30_a_result_of_2_mib_is_whole(era, answers, client_of, text) -> None:
    async with FaultyHttpServer(era=era, answers=answers) as server, client_of(server, era) as client:
        assert len(text(await client.session.call_tool("big", {"bytes": 2**21}))) == 2**21


async def test_mcp_d30_without_mead_it_is_an_error() -> None:
    async with FaultyHttpServer() as server:
        async with Client(streamable_http_client(server.url), mode="legacy", cache=None) as client:
            with pytest.raises(MCPError, match="1048576 byte limit"):
                await client.session.call_tool("big", {"bytes": 2**21})


@answers
async def test_mcp_d30_a_result_over_the_limit_is_an_error_that_names_it(answers, client_of, text) -> None:
    async with FaultyHttpServer(answers=answers) as server:
        async with client_of(server, max_message_bytes=100_000) as client:
            with pytest.raises(MCPError, match=r"100,?000 byte") as caught:
                await client.session.call_tool("big", {"bytes": 200_000})
            assert text(await client.session.call_tool("echo", {"text": "hi"})) == "hi"

    assert caught.value.error.code == (TOO_LARGE if answers == "json" else ANSWER_LOST)


async def test_mcp_d29_line_ends_of_unicode_end_no_event(client_of, text) -> None:
    odd = "a\u2028b\u0085c\u2029d"
    async with FaultyHttpServer() as server, client_of(server) as client:
        assert text(await client.session.call_tool("echo", {"text": odd})) == odd


def replying(text: bytes = b"", answer: bytes = b"") -> Callable[[Received], Answer]:
    """A server that answers each request with this text in a result, or with this answer."""

    def reply(request: Received) -> Answer:
        content = b'[{"type":"text","text":"%s"}]' % text
        more = b'"resultType":"complete","tools":[],"ttlMs":0,"cacheScope":"private"'
        result = b'{"jsonrpc":"2.0","id":%d,"result":{"content":%s,%s}}' % (
            request.json()["id"],
            content,
            more,
        )
        return Answer(body=answer or result)

    return reply


@pytest.mark.parametrize(
    "raw, expected",
    [(b"caf\xe9", "caf\ufffd"), (rb"cut \ud83d", "cut \ufffd")],
    ids=["bytes", "half an emoji"],
)
async def test_broken_text_costs_no_result(raw, expected, connect, text, wire) -> None:
    async with FakeServer(replying(raw)) as server:
        transport = http_transport(server.url, headers={}, auth=None, wire=wire)
        async with asyncio.timeout(LIMIT_S), connect(transport, mode="2026-07-28") as client:
            assert text(await client.session.call_tool("any", {})) == expected


@pytest.mark.parametrize(
    "answer, said",
    [
        (b'{"jsonrpc":"2.0","id":99,"result":{}}', "a request that was not this one"),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}', "Parse error"),
    ],
    ids=["another id", "no id"],
)
async def test_an_answer_with_a_wrong_id_is_an_error_at_once(answer, said, connect, wire) -> None:
    async with FakeServer(replying(answer=answer)) as server:
        transport = http_transport(server.url, headers={}, auth=None, wire=wire)
        async with asyncio.timeout(LIMIT_S), connect(transport, mode="2026-07-28") as client:
            with pytest.raises(MCPError, match=said):
                await client.session.call_tool("any", {})


async def test_a_compressed_answer_is_cut_at_the_limit_too(connect, wire) -> None:
    import gzip

    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    async with FakeServer(Answer(body=gzip.compress(b" " * 10_000_000), headers=headers)) as server:
        transport = http_transport(server.url, headers={}, auth=None, wire=wire, max_message_bytes=2**16)
        async with asyncio.timeout(LIMIT_S), connect(transport, mode="2026-07-28") as client:
            with pytest.raises(MCPError, match="larger than 65,536 bytes"):
                await client.session.call_tool("any", {})

    assert server.requests[0].headers["accept-encoding"] == "identity"


# What is sent


async def test_redirects_are_followed_within_the_origin(connect, text, wire) -> None:
    routes = {"/": Answer(status=307, headers={"location": "/mcp"}), "/mcp": replying(b"there")}
    async with FakeServer(routes=routes) as server:
        transport = http_transport(server.url, headers={}, auth=None, wire=wire)
        async with asyncio.timeout(LIMIT_S), connect(transport, mode="2026-07-28") as client:
            assert text(await client.session.call_tool("any", {})) == "there"


async def test_each_request_is_reported_before_it_leaves(client_of) -> None:
    seen: list[tuple[str, int]] = []
    async with FaultyHttpServer() as server:
        async with client_of(server, on_request=lambda path, size: seen.append((path, size))) as client:
            await client.session.call_tool("echo", {"text": "hi"})
            await server.listening.wait()

    sent = [(request.path, len(request.body)) for request in server.requests]
    assert sorted(seen) == sorted(sent)
    assert len(seen) >= 5


async def test_the_headers_of_the_settings_are_sent(client_of) -> None:
    async with FaultyHttpServer() as server, client_of(server, headers={"x-key": "secret"}):
        pass

    assert {request.headers["x-key"] for request in server.requests} == {"secret"}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "dev.localhost"])
def test_loopback_is_known(host) -> None:
    assert http._is_loopback(f"http://{host}:8000/mcp")


@pytest.mark.parametrize("host", ["example.org", "10.0.0.1", "localhost.example.org"])
def test_other_hosts_are_no_loopback(host) -> None:
    assert not http._is_loopback(f"http://{host}:8000/mcp")


async def test_no_proxy_of_the_environment_is_used_for_loopback(client_of, text, monkeypatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    async with FaultyHttpServer() as server, client_of(server) as client:
        assert text(await client.session.call_tool("echo", {"text": "hi"})) == "hi"


# Authorization


class FailingAuth(httpx2.Auth):
    """Asks for a token at another address, or raises."""

    def __init__(self, error: Exception | None = None, token_url: str | None = None) -> None:
        self.error = error
        self.token_url = token_url

    async def async_auth_flow(self, request: httpx2.Request):
        if self.error is not None:
            raise self.error
        yield httpx2.Request("POST", f"{self.token_url}/token?code=secret", data={"code": "secret"})
        yield request


async def test_what_the_authorization_raises_reaches_the_connection(connect, wire) -> None:
    auth = FailingAuth(LookupError("log in first"))
    async with FaultyHttpServer() as server:
        with pytest.raises(ExceptionGroup) as caught:
            async with connect(http_transport(server.url, headers={}, auth=auth, wire=wire)):
                pass

    assert isinstance(innermost(caught.value), LookupError)


async def test_the_address_of_another_host_is_reported_without_its_query(connect, wire) -> None:
    seen: list[str] = []
    async with FaultyHttpServer() as server, FakeServer() as other:
        transport = http_transport(
            server.url,
            headers={},
            auth=FailingAuth(token_url=other.url),
            wire=wire,
            on_request=lambda path, size: seen.append(path),
        )
        async with asyncio.timeout(LIMIT_S), connect(transport):
            assert set(seen) == {f"{other.url}/token", "/mcp"}


def innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
