"""OAuth for remote MCP servers: a person logs in once, in a browser; a hub then uses what was kept.

The protocol (PKCE, registration of the client, refreshing) is the SDK's. Here is where tokens are kept, what
a hub does without them, and which addresses a server may send us to.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import socket
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2
import msgspec
from mcp.client.auth import OAuthClientProvider, OAuthFlowError
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)

if TYPE_CHECKING:
    from mcp.client.auth.oauth2 import OAuthContext

from mead.settings import McpServerSettings
from mead.settings.files import make_private_folder

LOGIN_TIMEOUT_S = 300.0
_CALLBACK = "/callback"
_PAGE = (
    "<!doctype html><meta charset=utf-8><title>mead</title>"
    "<p style='font-family:sans-serif;margin:4em'>{said} You can close this window."
)
_Model = TypeVar("_Model", OAuthToken, OAuthClientInformationFull)


class NeedsLoginError(Exception):
    """A person has to log in to the server; the text says how."""

    def __init__(self, name: str) -> None:
        super().__init__(f"it asks for a login: run mead mcp login {name}")


class LoginError(Exception):
    """The login did not succeed; the text says why."""


class TokenFile:
    """The tokens of one server, and the client that was registered for them: the SDK's `TokenStorage`.

    Kept in a file of mode 0600, or in memory without a folder. A file that is a link, or cannot be read,
    holds no tokens.
    """

    def __init__(self, server: McpServerSettings, folder: Path | None) -> None:
        self._server = server
        self._path = folder / "auth" / f"{server.name}.json" if folder is not None else None
        self._kept: dict[str, Any] = {}
        if self._path is not None and not self._path.is_symlink():
            with contextlib.suppress(OSError, msgspec.DecodeError):
                read = msgspec.json.decode(self._path.read_bytes())
                self._kept = read if isinstance(read, dict) else {}

    def __repr__(self) -> str:
        return "TokenFile(…)"

    async def get_tokens(self) -> OAuthToken | None:
        """The tokens; `None` before the first login."""
        return _validated(OAuthToken, self._kept.get("tokens"))

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keeps tokens that were granted or refreshed."""
        # The SDK knows the time of a token's end only while it runs.
        self._kept["expires_at"] = time.time() + tokens.expires_in if tokens.expires_in else None
        self._keep("tokens", tokens.model_dump(mode="json", exclude_none=True))

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """The client that is registered with the authorization server."""
        return _validated(OAuthClientInformationFull, self._kept.get("client"))

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keeps a registration."""
        self._keep("client", client_info.model_dump(mode="json", exclude_none=True))

    def keep_servers(self, context: OAuthContext) -> None:
        """Keeps where tokens are refreshed: the SDK would have to find it out again, and guesses instead."""
        found = (context.oauth_metadata, context.protected_resource_metadata)
        dumped = [
            one.model_dump(mode="json", exclude_none=True) if one is not None else None for one in found
        ]
        self._keep("servers", dumped)

    def restore(self, context: OAuthContext) -> None:
        """Tells the SDK what it knew when the tokens were kept."""
        context.token_expiry_time = self._kept.get("expires_at")
        authorization, resource = self._kept.get("servers") or (None, None)
        with contextlib.suppress(ValueError):
            if authorization is not None:
                context.oauth_metadata = OAuthMetadata.model_validate(authorization)
            if resource is not None:
                context.protected_resource_metadata = ProtectedResourceMetadata.model_validate(resource)

    def begin_anew(self, redirect_uri: str) -> None:
        """Forgets everything, for a login; a client that the settings name counts as registered."""
        self._kept = {}
        server = self._server
        if server.client_id is not None and not _is_address(server.client_id):
            secret = server.client_secret.reveal() if server.client_secret is not None else None
            method = "client_secret_basic" if secret else "none"
            self._kept["client"] = {
                "client_id": server.client_id,
                "redirect_uris": [redirect_uri],
                "token_endpoint_auth_method": method,
                **({"client_secret": secret} if secret else {}),
            }

    def _keep(self, name: str, value: object) -> None:
        self._kept[name] = value
        if self._path is None:
            return
        folder = self._path.parent
        make_private_folder(folder)
        handle, new = tempfile.mkstemp(dir=folder, prefix=".auth-")  # mode 0600
        with os.fdopen(handle, "wb") as file:
            file.write(msgspec.json.encode(self._kept))
        os.replace(new, self._path)


def _validated(kind: type[_Model], value: object) -> _Model | None:
    """The value as the SDK's type, `None` for one that it is not."""
    if value is None:
        return None
    try:
        return kind.model_validate(value)
    except ValueError:
        return None


def stored_auth(server: McpServerSettings, folder: Path | None) -> httpx2.Auth:
    """Authorisation from the tokens that a login has left. It refreshes them, opens nothing, and raises
    `NeedsLoginError` where a person is needed."""

    async def nobody(*_: object) -> AuthorizationCodeResult:
        raise NeedsLoginError(server.name)

    storage = TokenFile(server, folder)
    provider = _provider(server, storage, "http://127.0.0.1/callback", show=nobody, wait=nobody)
    storage.restore(provider.context)
    return _CheckedAuth(provider, server, storage=storage)


@asynccontextmanager
async def interactive_auth(
    server: McpServerSettings,
    folder: Path | None,
    *,
    open_url: Callable[[str], object],
    callback_port: int = 0,
) -> AsyncIterator[httpx2.Auth]:
    """Authorisation for which a person logs in, as often as the server asks: `open_url` shows the
    authorization page, and the browser comes back to a port of this machine."""
    callback = _Callback()
    listener = await asyncio.start_server(callback.answer, "127.0.0.1", callback_port)
    port = listener.sockets[0].getsockname()[1]

    async def show(address: str) -> None:
        await asyncio.to_thread(open_url, address)

    storage = TokenFile(server, folder)
    redirect_uri = f"http://127.0.0.1:{port}{_CALLBACK}"
    storage.begin_anew(redirect_uri)
    try:
        provider = _provider(server, storage, redirect_uri, show=show, wait=callback.next)
        yield _CheckedAuth(provider, server)
        storage.keep_servers(provider.context)
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

    Raises `LoginError`.
    """
    interactive = interactive_auth(server, folder, open_url=open_url, callback_port=callback_port)
    try:
        async with asyncio.timeout(timeout_s), interactive as auth:
            await _prove(server.url or "", auth)
    except TimeoutError as error:
        raise LoginError(f"nobody logged in to {server.name} within {timeout_s:g} s") from error
    except Exception as error:
        raise LoginError(f"logging in to {server.name} failed: {_said(error)}") from error


async def _prove(url: str, auth: httpx2.Auth) -> None:
    """One authorised exchange: the handshake, and a list of the tools."""
    from mcp import Client

    from mead.mcp.transports import Wire
    from mead.mcp.transports.http import http_transport

    async with Client(http_transport(url, headers={}, auth=auth, wire=Wire())) as client:
        await client.list_tools()


def _provider(
    server: McpServerSettings,
    storage: TokenFile,
    redirect_uri: str,
    *,
    show: Callable[[str], Awaitable[Any]],
    wait: Callable[[], Awaitable[AuthorizationCodeResult]],
) -> OAuthClientProvider:
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "mead",
            "redirect_uris": [redirect_uri],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
        }
    )
    return OAuthClientProvider(
        server_url=server.url or "",
        client_metadata=metadata,
        storage=storage,
        redirect_handler=show,
        callback_handler=wait,
        client_metadata_url=server.client_id if _is_address(server.client_id) else None,
    )


def _is_address(client_id: str | None) -> bool:
    """Whether a client's id is the address of a document that describes it, which needs no registration."""
    return client_id is not None and client_id.startswith("https://")


def _said(error: BaseException) -> str:
    """What an error says, without the groups around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


class _Callback:
    """Takes the browser's visits."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[AuthorizationCodeResult | OAuthFlowError] = asyncio.Queue(maxsize=8)

    async def next(self) -> AuthorizationCodeResult:
        """The code that the next visit brings. Raises `OAuthFlowError` if it says no."""
        arrived = await self._arrived.get()
        if isinstance(arrived, OAuthFlowError):
            raise arrived
        return arrived

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads the request, says that it is done, and hands the code on."""
        try:
            async with asyncio.timeout(10):
                head = await reader.readuntil(b"\r\n\r\n")
            status, said = self._take(head.split(b" ", 2)[1].decode("latin-1"))
            page = _PAGE.format(said=said).encode()
            writer.write(
                b"HTTP/1.1 %s\r\ncontent-type: text/html\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
                % (status.encode(), len(page), page)
            )
            await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, IndexError):
            pass  # somebody else came by
        finally:
            writer.close()

    def _take(self, target: str) -> tuple[str, str]:
        parts = httpx2.URL(target)
        query = dict(parts.params)
        if parts.path != _CALLBACK or not ({"code", "error"} & query.keys()):
            return "404 Not Found", "There is nothing here."
        if self._arrived.full():
            return "429 Too Many Requests", "This is not asked for."
        if "error" in query:
            why = query.get("error_description") or query["error"]
            self._arrived.put_nowait(OAuthFlowError(f"the server refused: {why[:200]}"))
            return "200 OK", "The login was refused."
        code = AuthorizationCodeResult(code=query["code"], state=query.get("state"), iss=query.get("iss"))
        self._arrived.put_nowait(code)
        return "200 OK", "You are logged in."


class _CheckedAuth(httpx2.Auth):
    """The SDK's provider, with a look at each address that a server sends us to.

    With `storage`, nothing is sent at all before there are tokens.
    """

    requires_response_body = True

    def __init__(
        self, provider: httpx2.Auth, server: McpServerSettings, *, storage: TokenFile | None = None
    ) -> None:
        self._provider = provider
        self._url = server.url or ""
        self._name = server.name
        self._storage = storage

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Hands requests and answers on between the client and the provider."""
        if self._storage is not None and await self._storage.get_tokens() is None:
            raise NeedsLoginError(self._name)
        flow = self._provider.async_auth_flow(request)
        try:
            outgoing = await anext(flow)
            while True:
                if outgoing is not request:
                    await check_address(str(outgoing.url), self._url)
                response = yield outgoing
                outgoing = await flow.asend(response)
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()


async def check_address(url: str, server_url: str) -> None:
    """Whether a server may send us to this address for its metadata or its tokens.

    Its own host may be anything that was configured. Any other must be https and on the public network: a
    server could otherwise make us ask what only this machine can reach. Raises `OAuthFlowError`.
    """
    target, server = httpx2.URL(url), httpx2.URL(server_url)
    if target.host == server.host:
        return
    addresses = await _addresses(target.host, target.port or 443)
    inside = await _addresses(server.host, server.port or 443)
    if all(address.is_loopback for address in (*addresses, *inside)):
        return
    if target.scheme != "https":
        raise OAuthFlowError(f"the server sends us to {target.host}, which is not https")
    if any(not address.is_global for address in addresses):
        raise OAuthFlowError(f"the server sends us to {target.host}, which is not on the public network")


async def _addresses(host: str, port: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OAuthFlowError(f"the name {host} cannot be resolved") from error
    return [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]
