"""OAuth for remote MCP servers: a person logs in once, in a browser; a hub then uses what was kept.

The protocol (discovery, PKCE, registration of the client, the requests for tokens) is the SDK's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError, OAuthTokenError
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata, OAuthToken

from mead.mcp._authorization import Bounded, Instead, check_address, prepare, read, refusal
from mead.mcp._browser import PATH, Callback
from mead.mcp._tokens import TokenFile, is_document
from mead.settings import McpServerSettings

__all__ = [
    "InteractiveAuth",
    "LoginError",
    "NeedsLoginError",
    "TokenFile",
    "check_address",
    "interactive_auth",
    "login",
    "stored_auth",
]

LOGIN_TIMEOUT_S = 300.0
_NOT_UNDERSTOOD = -32600  # of JSON-RPC's codes, the one that says that nothing was run
_log = logging.getLogger("mead.mcp")


class NeedsLoginError(Exception):
    """A person has to log in to the server; the text says how."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it asks for a login: run mead mcp login {name}")


class LoginError(Exception):
    """The login did not succeed; the text says why."""


# A hub at work


def stored_auth(server: McpServerSettings, folder: Path | None) -> httpx2.Auth:
    """Authorisation from the tokens that a login has left.

    It refreshes them, opens nothing, and raises `NeedsLoginError` where a person is needed; without tokens
    that is at once, and nothing is sent.
    """
    return _StoredAuth(server, TokenFile(server, folder))


class _StoredAuth(httpx2.Auth):
    """Sends the token, and refreshes it when its time is over or the server does not take it any more.

    The SDK's provider refreshes and does no more: it lets one request through at a time, each until its
    answer begins, so that a slow call would hold up the others.
    """

    def __init__(self, server: McpServerSettings, file: TokenFile) -> None:
        self._server = server
        self._file = file

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Sends the request, and once more if a refreshed token may help."""
        if self._file.tokens is None:
            self._file.read()
        old, response = self._file.tokens, None
        if old is not None and not self._file.expired:
            response = yield self._signed(request)
            if response.status_code == 401:
                response.stream = Bounded(response.stream)
        if old is not None and (response is None or response.status_code == 401):
            refreshing = self._refresh(request, old)
            answer: httpx2.Response | None = None
            try:
                while True:
                    answer = yield await _next(refreshing, answer)
            except StopAsyncIteration:
                pass
            finally:
                await refreshing.aclose()
            response = None
        if response is None:
            response = yield self._signed(request)
        if response.status_code == 401:
            raise NeedsLoginError(self._server.name)
        if response.status_code == 403 and "insufficient_scope" in _challenge(response):
            self._explain(request, response)

    def _signed(self, request: httpx2.Request) -> httpx2.Request:
        tokens = self._file.tokens
        if tokens is None:
            raise NeedsLoginError(self._server.name)
        request.headers["authorization"] = f"Bearer {tokens.access_token}"
        return request

    async def _refresh(
        self, request: httpx2.Request, old: OAuthToken
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """The requests for new tokens; none where another program was first, for a refresh token may be good
        for one use only.

        Raises `NeedsLoginError` when the tokens are good no more, `httpx2.RequestError` if that is not known.
        """
        version = request.headers.get("mcp-protocol-version")
        # The provider would send this one once it has refreshed.
        end = httpx2.Request("GET", request.url, headers={"mcp-protocol-version": version} if version else {})
        answer: httpx2.Response | None = None
        try:
            async with self._file.lock():
                self._file.read()
                if self._file.tokens != old:
                    return
                provider = _provider(self._server, self._file, "http://127.0.0.1/callback")
                provider.context.token_expiry_time = 1.0  # long ago
                flow = provider.async_auth_flow(end)
                try:
                    while (outgoing := await _next(flow, answer)) is not end:
                        await prepare(outgoing, self._server.url or "")
                        answer = yield outgoing
                        await read(answer)
                finally:
                    await flow.aclose()
        except TimeoutError as error:
            busy = f"another program is refreshing the tokens of {self._server.name}"
            raise httpx2.ConnectTimeout(busy, request=request) from error
        except OSError as error:
            _log.warning("the tokens of %s are kept in memory only: %s", self._server.name, error)
        if self._file.tokens != old:
            return
        if answer is None or answer.status_code in (400, 401, 403):
            raise NeedsLoginError(self._server.name)
        # The tokens may be good still: an error of the connection fails this request alone.
        raise httpx2.ConnectError(refusal(answer), request=request)

    def _explain(self, request: httpx2.Request, response: httpx2.Response) -> None:
        """A call that the login does not cover fails with a sentence; nothing else works without it."""
        with contextlib.suppress(OSError):
            self._file.note_challenge(_challenge(response))
        if b'"tools/call"' not in request.content:
            raise NeedsLoginError(self._server.name)
        said = f"the login does not cover this: run mead mcp login {self._server.name}"
        error = {"jsonrpc": "2.0", "id": None, "error": {"code": _NOT_UNDERSTOOD, "message": said}}
        for name in ("content-length", "content-encoding"):
            response.headers.pop(name, None)
        response.headers["content-type"] = "application/json"
        response.stream = Instead(response.stream, msgspec.json.encode(error))


# A person who logs in


class InteractiveAuth(httpx2.Auth):
    """The SDK's provider, with limits to where a server sends us. `logins` counts how often it asked."""

    def __init__(self, provider: OAuthClientProvider, url: str, challenge: str | None) -> None:
        self.logins = 0
        self._provider = provider
        self._url = url
        self._challenge = challenge

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Hands requests and answers on between the client and the provider."""
        flow = self._provider.async_auth_flow(request)
        answer: httpx2.Response | None = None
        try:
            while True:
                outgoing = await _next(flow, answer)
                if outgoing is not request:
                    await prepare(outgoing, self._url)
                    answer = yield outgoing
                    await read(answer)
                elif self._challenge is not None:
                    # The rights that did not suffice are asked for when the provider hears so again.
                    headers, self._challenge = {"www-authenticate": self._challenge}, None
                    answer = httpx2.Response(403, headers=headers, request=request)
                else:
                    answer = yield request
                    if answer.status_code in (401, 403):
                        answer.stream = Bounded(answer.stream)
        except StopAsyncIteration:
            return
        except OAuthRegistrationError:
            hint = "if it registers no clients by itself, set client_id"
            raise OAuthFlowError(f"{refusal(answer)}; {hint}") from None
        except OAuthTokenError:
            raise OAuthFlowError(refusal(answer)) from None  # its text may quote tokens
        finally:
            await flow.aclose()


@asynccontextmanager
async def interactive_auth(
    server: McpServerSettings,
    folder: Path | None,
    *,
    open_url: Callable[[str], object],
    callback_port: int = 0,
) -> AsyncIterator[InteractiveAuth]:
    """Authorisation for which a person logs in, as often as the server asks: `open_url` shows the
    authorization page, and the browser comes back to a port of this machine."""
    url = server.url or ""
    file, callback = TokenFile(server, folder), Callback()
    listener = await asyncio.start_server(callback.answer, "127.0.0.1", callback_port, limit=2**14)

    async def show(address: str) -> None:
        auth.logins += 1
        await check_address(address, url)
        callback.expect(httpx2.URL(address).params.get("state", ""))
        # How a client of the settings shows its secret is known only now that the server is.
        provider.context.client_info = await file.get_client_info()
        await asyncio.to_thread(open_url, address)

    redirect_uri = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}{PATH}"
    challenge, granted = file.challenge, file.tokens.scope if file.tokens is not None else None
    file.begin_anew()
    provider = _provider(server, file, redirect_uri, scope=granted, show=show, wait=callback.next)
    auth = InteractiveAuth(provider, url, challenge)
    try:
        yield auth
    finally:
        listener.close()


async def login(
    server: McpServerSettings,
    folder: Path | None,
    *,
    open_url: Callable[[str], object],
    timeout_s: float = LOGIN_TIMEOUT_S,
    callback_port: int = 0,
) -> None:
    """Logs in to a server. Ends once an authorised request has worked; the tokens are then kept.

    What an earlier login has left stays until there are new tokens. Raises `LoginError`.
    """
    interactive = interactive_auth(server, folder, open_url=open_url, callback_port=callback_port)
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit, interactive as auth:
            await _prove(server, auth)
    except Exception as error:
        if limit.expired():
            raise LoginError(f"nobody logged in to {server.name} within {timeout_s:g} s") from error
        raise LoginError(f"logging in to {server.name} failed: {_said(error)}") from error
    if auth.logins == 0:
        raise LoginError(f"{server.name} does not ask for a login")


async def _prove(server: McpServerSettings, auth: httpx2.Auth) -> None:
    """One authorised exchange: the handshake, and a list of the tools."""
    from mcp import Client

    from mead.mcp.transports import Wire
    from mead.mcp.transports.http import http_transport

    transport = http_transport(server.url or "", headers=server.headers, auth=auth, wire=Wire())
    async with Client(transport, mode=server.mode, cache=None) as client:
        await client.list_tools()


def _provider(
    server: McpServerSettings,
    file: TokenFile,
    redirect_uri: str,
    *,
    scope: str | None = None,
    show: Callable[[str], Awaitable[None]] | None = None,
    wait: Callable[[], Awaitable[AuthorizationCodeResult]] | None = None,
) -> OAuthClientProvider:
    """The SDK's provider. `scope` was granted before; where more is asked for, it is asked for again."""
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "mead",
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "scope": scope,
        }
    )
    provider = OAuthClientProvider(
        server_url=server.url or "",
        client_metadata=metadata,
        storage=file,
        redirect_handler=show,
        callback_handler=wait,
        client_metadata_url=server.client_id if is_document(server.client_id) else None,
    )
    file.attach(provider.context)
    return provider


async def _next(
    flow: AsyncGenerator[httpx2.Request, httpx2.Response], answer: httpx2.Response | None
) -> httpx2.Request:
    return await (anext(flow) if answer is None else flow.asend(answer))


def _challenge(response: httpx2.Response) -> str:
    return str(response.headers.get("www-authenticate", ""))


def _said(error: BaseException) -> str:
    """What an error says, without the groups around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
