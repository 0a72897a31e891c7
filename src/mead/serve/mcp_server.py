"""mead as an MCP server: over HTTP at `/mcp`, and over stdio. docs/mcp-server.md says what it offers.

The official SDK is loaded when the first request comes, since most servers never see one.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from mead.serve.endpoint import Server, stack_of
from mead.serve.errors import Problem, answer, native_shape
from mead.serve.mcp_tools import McpTools
from mead.serve.tokens import Principal
from mead.sessions.runtime import Runtime

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server as LowlevelServer
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

PATH = "/mcp"
IDLE_S = 300.0
"""How long a session of the older protocol may be silent before it is closed, in seconds."""
MAX_SESSIONS = 256
"""How many sessions of the older protocol may be open."""
MAX_OF_TOKEN = 16
"""How many of them one token may have open; then its oldest idle one is closed."""
_SESSION = "mcp-session-id"
_ALSO_WHEN_CLOSING = (b"host", b"accept", b"mcp-protocol-version")
NO_SDK = "the MCP server needs its extra: pip install 'mead-runtime[mcp]'"
_log = logging.getLogger("mead.serve")


def routes(server: Server) -> Sequence[BaseRoute]:
    """The route of the MCP server."""
    tools = McpTools()

    def make() -> LowlevelServer[Any]:
        from mead.serve.mcp_protocol import lowlevel_server

        return lowlevel_server(server, tools)

    @asynccontextmanager
    async def open_tools() -> AsyncIterator[None]:
        try:
            yield
        finally:
            await tools.aclose()

    door = McpDoor(server, make)
    server.started += [open_tools, door.opened]
    return [Route(PATH, door, methods=["GET", "POST", "DELETE"])]


async def serve_stdio(runtime: Runtime, principal: Principal) -> None:
    """Serves one client over standard input and output until it closes them. Whatever else is written to
    standard output meanwhile goes to standard error. The runtime is to be open."""
    from mcp.server.stdio import stdio_server

    from mead.serve.mcp_protocol import lowlevel_server

    tools = McpTools()
    made = lowlevel_server(Server(runtime, None), tools, principal)
    try:
        async with stdio_server() as (reading, writing):
            await made.run(reading, writing, made.create_initialization_options())
    finally:
        await tools.aclose()


class McpDoor:
    """The ASGI application at `/mcp`: asks who calls, then hands over to the server that `make` gives."""

    def __init__(self, server: Server, make: Callable[[], LowlevelServer[Any]]) -> None:
        self._server = server
        self._make = make
        self._ending = asyncio.Event()
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._owner: asyncio.Task[None] | None = None
        self._open: dict[str | None, dict[str, int]] = {}

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keeps what the first request starts, and ends it."""
        self._ending, self._manager, self._owner = asyncio.Event(), None, None
        try:
            yield
        finally:
            self._ending.set()
            if self._owner is not None:
                await asyncio.wait((self._owner,))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun, made = False, None

        async def sending(message: Message) -> None:
            nonlocal has_begun, made
            has_begun = True
            if message["type"] == "http.response.start" and message["status"] < 400:
                made = Headers(raw=message["headers"]).get(_SESSION)
            await send(message)

        try:
            principal = self._let_in(Request(scope))
            manager = await self._started()
            # Blanks around a header's value are no part of it (RFC 9110, 5.5); some HTTP parsers leave them.
            headers = [(name, value.strip(b" \t")) for name, value in scope["headers"]]
            inner = {**scope, "headers": headers, "mead.principal": principal, "user": _user(principal)}
            if scope["method"] == "POST":
                receive = await _whole_body(receive)
            with self._in_use(principal, Request(scope).headers.get(_SESSION)):
                await manager.handle_request(inner, receive, sending)
            if made is not None:
                await self._note(manager, principal, made, inner)
            return
        except Problem as problem:
            told = problem
        except Exception as error:
            told = _crash(error)
        if not has_begun:
            await answer(told, native_shape)(scope, receive, send)

    @contextmanager
    def _in_use(self, principal: Principal, session_id: str | None) -> Iterator[None]:
        """Meanwhile a session of the caller's is not idle, and afterwards it is the last used one."""
        known = self._open.get(principal.token_id, {})
        if session_id is None or session_id not in known:
            yield
            return
        known[session_id] = known.pop(session_id) + 1
        try:
            yield
        finally:
            if session_id in known:
                known[session_id] = known.pop(session_id) - 1

    async def _note(
        self, manager: StreamableHTTPSessionManager, principal: Principal, session_id: str, scope: Scope
    ) -> None:
        """Counts a session that was made for a token, and closes the one of its sessions that was idle for
        the longest time where it has too many: the others need room too."""
        known = self._open.setdefault(principal.token_id, {})
        known.setdefault(session_id, 0)
        if len(known) <= MAX_OF_TOKEN:
            return
        idle = [each for each, requests in known.items() if not requests and each != session_id]
        oldest = next(iter(idle or known))
        del known[oldest]
        kept = [(name, value) for name, value in scope["headers"] if name in _ALSO_WHEN_CLOSING]
        headers = [*kept, (_SESSION.encode(), oldest.encode())]
        await manager.handle_request({**scope, "method": "DELETE", "headers": headers}, _no_body, _unheard)

    def _let_in(self, request: Request) -> Principal:
        """Who calls. Raises `Problem` for who is not let in."""
        principal = self._server.principal(request)
        if not principal.may("chat"):
            raise Problem(403, "forbidden", "the token lacks the scope chat")
        self._server.let_in(principal)
        return principal

    async def _started(self) -> StreamableHTTPSessionManager:
        """The SDK's manager of connections, started by the first request; the next one tries again if that
        fails."""
        if self._ending.is_set():
            raise Problem(503, "shutting_down", "the server stops")
        if self._manager is None:
            if importlib.util.find_spec("mcp") is None:
                raise Problem(501, "no_mcp", NO_SDK)
            loop = asyncio.get_running_loop()
            self._manager = loop.create_future()
            self._owner = loop.create_task(self._own(self._manager))
        # The first request may be cancelled: the others wait for the same.
        return await asyncio.shield(self._manager)

    async def _own(self, manager: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        """Makes the manager and runs it: one task has to enter and leave what it keeps open."""
        try:
            await asyncio.to_thread(_load_sdk)
            made = self._made()
            async with made.run():
                manager.set_result(made)
                await self._ending.wait()
        except Exception as error:
            if manager.done():
                raise
            self._manager = None
            manager.set_exception(error)

    def _made(self) -> StreamableHTTPSessionManager:
        from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

        return StreamableHTTPSessionManager(
            self._make(),
            session_idle_timeout=IDLE_S,
            max_sessions=MAX_SESSIONS,
            max_request_body_size=self._server.runtime.settings.serve.max_body_bytes,
            # Host and Origin were looked at by mead's own guard, as for every other path.
            security_settings=None,
        )


async def _whole_body(receive: Receive) -> Receive:
    """`receive` once the whole body is there. Raises `Problem` for a client that goes away before, which the
    SDK would take for a crash."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(499, "cancelled", "the client went away")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            break
    waiting: list[Message] = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

    async def received() -> Message:
        return waiting.pop() if waiting else await receive()

    return received


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _unheard(message: Message) -> None:
    """Nobody is told how the closing of a session went: it may have been over."""


def _load_sdk() -> None:
    importlib.import_module("mead.serve.mcp_protocol")
    importlib.import_module("mcp.server.streamable_http_manager")


def _user(principal: Principal) -> object:
    """The caller in the SDK's words: a session of the older protocol is good for its own token only."""
    from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
    from mcp.server.auth.provider import AccessToken

    return AuthenticatedUser(AccessToken(token="", client_id=principal.token_id or "", scopes=[]))


def _crash(error: Exception) -> Problem:
    _log.error("%s raised %s\n%s", PATH, type(error).__name__, stack_of(error))
    return Problem(500, "crashed", "the server made a mistake; its log says where")
