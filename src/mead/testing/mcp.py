"""MCP servers with a fault, over stdio and over HTTP, for tests of programs that use tools.

    faulty = FaultyServer("die_call")
    McpServerSettings(name="faulty", command=faulty.command, args=faulty.args)

    async with FaultyHttpServer() as server:
        McpServerSettings(name="faulty", url=server.url)

`python -m mead.testing.mcp --help` lists the modes of the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec
from msgspec import Struct

from mead.testing import _faulty_server
from mead.testing._faulty_server import EFFECTS_FILE, MODES
from mead.testing.server import Received, _read_request

__all__ = ["EFFECTS_FILE", "MODES", "FaultyHttpServer", "FaultyServer"]

_VERSIONS = {"legacy": "2025-11-25", "modern": "2026-07-28"}
_HTTP_TOOLS = {
    "echo": "no fault",
    "drop": "closes the socket instead of an answer",
    "cut": "closes the socket in the middle of the answer",
    "slow": "answers when the test calls release()",
    "hang": "never answers",
    "ping": "sends keep-alive comments and no result",
    "big": "answers with `bytes` bytes",
    "unavailable": "answers with status 503 and a text",
    "html": "answers with a web page",
    "elsewhere": "redirects to another origin",
    "accepted": "answers with status 202, as to a notification",
    "no_json": "answers with what is no JSON",
}


class FaultyServer(Struct, frozen=True):
    """How to start a stdio server with the fault `mode`, a key of `MODES`; `ValueError` for another."""

    mode: str
    argument: str | int | float | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"there is no mode {self.mode!r}")

    @property
    def command(self) -> str:
        """This Python."""
        return sys.executable

    @property
    def args(self) -> tuple[str, ...]:
        """The rest of the command line."""
        # The file itself, without the packages around it, starts in 40 ms.
        file = str(Path(_faulty_server.__file__))
        return ("-I", file, self.mode, *(() if self.argument is None else (str(self.argument),)))


class FaultyHttpServer:
    """A streamable-HTTP server on 127.0.0.1, each tool of which has a fault. Use as `async with`.

    `era` is `legacy` (2025-11-25, with sessions) or `modern` (2026-07-28, without); `answers` are event
    streams or plain JSON. The tools are echo, drop (closes the socket), cut (closes it in the middle of the
    answer), slow (answers when `release()` is called), hang, ping (comments, no result), big (`bytes`),
    unavailable (503), html, elsewhere (a redirect to another origin), accepted (202) and no_json. A `silent`
    server accepts connections and answers nothing; one with a `status` answers everything with it; with
    `hang_notifications` it takes notifications and does not answer them. `expired_body` goes with the 404 for
    a session that `expire()` ended.
    """

    def __init__(
        self,
        *,
        era: Literal["legacy", "modern"] = "legacy",
        answers: Literal["sse", "json"] = "sse",
        silent: bool = False,
        status: int | None = None,
        hang_notifications: bool = False,
        expired_body: object = None,
    ) -> None:
        self.requests: list[Received] = []
        """What came in, in order."""
        self.calls: list[str] = []
        """The tools that were called, whether or not they answered."""
        self.cancelled: list[object] = []
        """The ids of the requests that the client cancelled with a notification."""
        self.arrived = asyncio.Event()
        """Set when a tool is called."""
        self.listening = asyncio.Event()
        """Set when the client has opened its stream for the server's own messages."""
        self.client_left = asyncio.Event()
        """Set when the client closes a connection on which it waits for an answer."""
        self.silent = silent
        self.status = status
        self.body = b"the server says no"
        """What goes with the status."""
        self._era = era
        self._answers = answers
        self._hang_notifications = hang_notifications
        self._expired_body = b"" if expired_body is None else msgspec.json.encode(expired_body)
        self._session = 1
        self._released = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """The address of its endpoint."""
        return f"http://127.0.0.1:{self._port}/mcp"

    def release(self) -> None:
        """Lets the calls of `slow` answer."""
        self._released.set()

    def expire(self) -> None:
        """Forgets the session, as a server does that was restarted."""
        self._session += 1

    def announce(self, method: str) -> None:
        """Sends a notification to each client that listens."""
        for writer in self._listeners:
            writer.write(_chunk(_event({"jsonrpc": "2.0", "method": method})))

    def disconnect(self) -> None:
        """Closes all connections, as they are."""
        for task in list(self._tasks):
            task.cancel()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
        self._port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.disconnect()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                if not await self._answer(request, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.client_left.set()
        finally:
            self._listeners.discard(writer)
            writer.close()
            with contextlib.suppress(Exception):
                await writer.wait_closed()

    async def _answer(
        self, request: Received, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Sends the answer; whether the connection can serve another request."""
        if self.silent:
            return await self._wait_for_leave(reader)
        if self.status is not None:
            return _send(writer, self.status, self.body, "text/plain")
        if request.method == "DELETE":
            return _send(writer, 200)
        session = request.headers.get("mcp-session-id")
        if request.method == "GET":
            if self._era == "modern":
                return _send(writer, 405)
            writer.write(_head(200, "text/event-stream", chunked=True))
            self._listeners.add(writer)
            self.listening.set()
            return await self._wait_for_leave(reader)
        message = request.json()
        if session not in (None, str(self._session)):
            return _send(writer, 404, self._expired_body, "application/json" if self._expired_body else None)
        if "id" not in message or "method" not in message:
            if message.get("method") == "notifications/cancelled":
                self.cancelled.append(message["params"]["requestId"])
            if self._hang_notifications:
                return await self._wait_for_leave(reader)
            return _send(writer, 202)
        if message["method"] == "tools/call":
            return await self._call(message, reader, writer)
        return self._reply(writer, message, self._result(message))

    def _result(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """The result of any request but a call; an error where there is no such method."""
        capabilities = {"tools": {"listChanged": True}}
        if message["method"] == "initialize" and self._era == "legacy":
            info = {"name": "faulty", "version": "1"}
            version = _VERSIONS["legacy"]
            return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
        if message["method"] == "server/discover" and self._era == "modern":
            return {"supportedVersions": [_VERSIONS["modern"]], "capabilities": capabilities, **_CACHING}
        if message["method"] == "tools/list":
            tools = [
                {"name": name, "description": text, "inputSchema": {"type": "object"}}
                for name, text in _HTTP_TOOLS.items()
            ]
            return {"tools": tools, **(_CACHING if self._era == "modern" else {})}
        return {"error": {"code": -32601, "message": "Method not found"}}

    async def _call(
        self, message: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        name = message["params"]["name"]
        arguments = message["params"].get("arguments") or {}
        self.calls.append(name)
        self.arrived.set()
        text = f"{name} was called"
        match name:
            case "drop":
                return False
            case "hang":
                return await self._wait_for_leave(reader)
            case "ping":
                writer.write(_head(200, "text/event-stream", chunked=True))
                return await self._ping(reader, writer)
            case "cut":
                kind = "application/json" if self._answers == "json" else "text/event-stream"
                writer.write(_head(200, kind, chunked=True) + _chunk(b'{"jsonrpc":"2.0",'))
                await writer.drain()
                return False
            case "unavailable":
                return _send(writer, 503, b"come back later", "text/plain")
            case "html":
                return _send(writer, 200, b"<html>Log in first</html>", "text/html")
            case "elsewhere":
                return _send(writer, 307, location="http://example.invalid/mcp")
            case "accepted":
                return _send(writer, 202)
            case "no_json":
                return _send(writer, 200, b"{nothing", "application/json")
            case "slow":
                await self._released.wait()
            case "big":
                text = "x" * arguments.get("bytes", 2**21)
            case "echo":
                text = str(arguments.get("text", ""))
        return self._reply(writer, message, {"content": [{"type": "text", "text": text}]})

    def _reply(
        self, writer: asyncio.StreamWriter, message: Mapping[str, Any], result: dict[str, Any]
    ) -> bool:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        if "error" in result:
            answer.update(result)
        else:
            answer["result"] = {"resultType": "complete", **result} if self._era == "modern" else result
        starts_session = message["method"] == "initialize" and self._era == "legacy"
        session = str(self._session) if starts_session else None
        if self._answers == "json":
            return _send(writer, 200, msgspec.json.encode(answer), "application/json", session=session)
        writer.write(_head(200, "text/event-stream", chunked=True, session=session))
        writer.write(_chunk(_event(answer)) + _chunk(b""))
        return True

    async def _wait_for_leave(self, reader: asyncio.StreamReader) -> bool:
        if not await reader.read(1):
            self.client_left.set()
        return False

    async def _ping(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        leaving = asyncio.ensure_future(self._wait_for_leave(reader))
        try:
            while not (await asyncio.wait([leaving], timeout=0.02))[0]:
                writer.write(_chunk(b": ping\n\n"))
        finally:
            leaving.cancel()
        return False


_CACHING = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


def _event(message: object) -> bytes:
    return b"event: message\ndata: " + msgspec.json.encode(message) + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _head(
    status: int,
    kind: str | None = None,
    *,
    size: int = 0,
    chunked: bool = False,
    session: str | None = None,
    location: str | None = None,
) -> bytes:
    headers = {
        "content-type": kind,
        "transfer-encoding": "chunked" if chunked else None,
        "content-length": None if chunked else str(size),
        "mcp-session-id": session,
        "location": location,
    }
    lines = [f"{name}: {value}\r\n" for name, value in headers.items() if value is not None]
    return f"HTTP/1.1 {status} Status\r\n{''.join(lines)}\r\n".encode()


def _send(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes = b"",
    kind: str | None = None,
    *,
    session: str | None = None,
    location: str | None = None,
) -> bool:
    writer.write(_head(status, kind, size=len(body), session=session, location=location) + body)
    return True


if __name__ == "__main__":
    _faulty_server.main()
