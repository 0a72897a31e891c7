"""The egress gate: the only place where mead opens a connection to a model.

One `HttpClient` serves one slot and knows which. For a local slot it ignores proxies, follows no redirect,
and looks at the address of every socket before it connects (R17): a name proves nothing, so the check is made
where the connection is made. For a cloud slot it serves calls of cloud turns only. Every request leaves an
`EgressRecord`. Nothing is ever sent twice.
"""

from __future__ import annotations

import asyncio
import io
import ipaddress
import math
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Literal, TypeAlias
from urllib.request import getproxies_environment, proxy_bypass_environment  # type: ignore[attr-defined]

import aiohttp
from aiohttp.client_exceptions import (
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientPayloadError,
    ClientSSLError,
    ServerDisconnectedError,
    ServerTimeoutError,
)
from msgspec import Struct
from yarl import URL

from mead.core.options import Options, Route
from mead.core.reasons import InvalidOptions, MalformedResponse, ProviderReason, Timeout, Transport
from mead.core.result import Err, Ok, Result
from mead.core.scope import EgressRecord
from mead.settings.values import SHARED_NETWORK

MAX_BODY_BYTES = 64 * 1024 * 1024
# A server that closes idle connections after 5 s (many do) must never find us about to reuse one: a request
# on a connection that was just closed looks like a failed call, and nothing is retried.
KEEPALIVE_S = 4.0
CONNECT_TIMEOUT_S = 10.0
# From here on aiohttp wants a body that it can send piece by piece.
_PIECEWISE_BYTES = 1024 * 1024

_ALLOWED_PRIVATE = "cloud slot, cloud turn; private content by the turn's word (allow_private)"

IpNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
IpAddress: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
OnChunk: TypeAlias = Callable[[bytes], bool]

_MACHINE = [ipaddress.ip_network(text) for text in ("127.0.0.0/8", "::1/128")]
_PRIVATE = [
    ipaddress.ip_network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
]
# Addresses where clouds serve credentials to their machines; they lie inside private ranges.
_METADATA = [ipaddress.ip_address(text) for text in ("fd00:ec2::254", "100.100.100.200")]


def why_local(address: str, named_networks: Sequence[IpNetwork] = ()) -> str | None:
    """The rule by which an address counts as local, `None` if it does not (R17).

    Loopback, RFC 1918 and fc00::/7 do; parts of 100.64/10 do where `named_networks` has them. 0.0.0.0/8,
    link-local and metadata addresses never do. An IPv4 address mapped into IPv6 is judged as IPv4.

    >>> why_local("192.168.1.5"), why_local("::ffff:8.8.8.8")
    ('private network', None)
    """
    try:
        ip: IpAddress = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip in _METADATA:
        return None
    if any(ip in network for network in _MACHINE):
        return "this machine"
    if any(ip in network for network in _PRIVATE):
        return "private network"
    if ip in SHARED_NETWORK and any(ip in network for network in named_networks):
        return "network named in the settings"
    return None


def named_network(text: str) -> IpNetwork:
    """A network for `HttpClient(local_networks=…)`. Raises `ValueError` for one outside 100.64.0.0/10."""
    network = ipaddress.ip_network(text)
    if not (isinstance(network, ipaddress.IPv4Network) and network.subnet_of(SHARED_NETWORK)):
        raise ValueError(f"{text} is not a part of 100.64.0.0/10; for other networks set allow_remote = true")
    return network


def environment_proxy(url: str) -> str | None:
    """The proxy that the environment names for `url` (`HTTPS_PROXY` and friends, heeding `NO_PROXY`)."""
    target = URL(url)
    proxies = getproxies_environment()
    if not target.host or proxy_bypass_environment(target.host, proxies):
        return None
    return proxies.get(target.scheme) or proxies.get("all")


class HttpReply(Struct, frozen=True, kw_only=True):
    """A server's answer. `body` is empty where the chunks were handed on as they came."""

    status: int
    body: bytes
    retry_after_s: float | None = None
    location: str | None = None


class AnswerTooLongError(ValueError):
    """An answer, or one message of a streamed one, is over the limit."""


class _ConsumerError(Exception):
    """`on_chunk` raised: that is no failure of the connection. The cause is what it raised."""


class HttpClient:
    """The connections of one slot to one server.

    `base_url` is what every path is appended to; `unix:/path/to.sock` speaks HTTP over a unix
    socket. `allow_remote` lifts the address check of a local slot. `proxy` is for cloud slots only.
    """

    def __init__(
        self,
        base_url: str,
        *,
        slot: Route,
        allow_remote: bool = False,
        local_networks: Sequence[IpNetwork] = (),
        proxy: str | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        self.slot: Route = slot
        self.allow_remote = allow_remote
        self._socket_path = base_url.removeprefix("unix:") if base_url.startswith("unix:") else None
        if self._socket_path is not None:
            self._socket_path = "/" + self._socket_path.lstrip("/")
            base_url = "http://localhost"
        url = URL(base_url)
        if url.scheme not in ("http", "https") or not url.host:
            raise ValueError(f"base_url must look like http://host:port, not {base_url!r}")
        self._origin = str(url.origin())
        self.prefix = url.path.rstrip("/")
        self.host = self._socket_path or f"{url.host}:{url.port}"
        self._networks = tuple(local_networks)
        self._proxy = proxy if slot == "cloud" else None
        self._connect_timeout_s = connect_timeout_s
        self._urls: dict[str, URL] = {}
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def allowed_because(self) -> str:
        """The rule under which this client's requests leave, for the egress record."""
        if self.slot == "cloud":
            return "cloud slot, cloud turn"
        if self._socket_path is not None:
            return "unix socket"
        return "allow_remote is set" if self.allow_remote else "local address, checked at the socket"

    async def send(
        self,
        method: Literal["GET", "POST"],
        path: str,
        options: Options,
        *,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        on_chunk: OnChunk | None = None,
        at_root: bool = False,
    ) -> Result[HttpReply, ProviderReason]:
        """Makes one request, once. `path` stands below `base_url`, or with `at_root` below its host.

        With `on_chunk`, the body of a 200 is handed on as it arrives, until `on_chunk` answers true (it has
        seen the end) or the body ends. Any other answer is read whole. Fails with `Timeout`, `Transport`, or
        `MalformedResponse` for what is not HTTP or over `MAX_BODY_BYTES`.
        """
        if self.slot == "cloud" and options.route == "local":
            raise RuntimeError("a local turn reached the cloud slot's connections")  # a bug, never a reason
        url = self._url(path if at_root else self.prefix + path)
        self._record(url.path, len(body), options)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout_at(options.deadline) as limit:
                async with self._open_session(loop).request(
                    method,
                    url,
                    data=body if len(body) < _PIECEWISE_BYTES else io.BytesIO(body),
                    headers=headers,
                    proxy=self._proxy,
                    allow_redirects=False,
                ) as response:
                    data = b""
                    if on_chunk is not None and response.status == 200:
                        await _hand_on(response, on_chunk, limit, options, loop)
                    else:
                        data = await _read_whole(response)
        except _ConsumerError as error:
            raise error.__cause__ or error from None
        except (
            aiohttp.ClientError,
            OSError,
            ValueError,
        ) as error:  # ValueError: a header that cannot be sent
            return Err(self._reason(error, options, loop), cause=error)
        return Ok(
            HttpReply(
                status=response.status,
                body=data,
                retry_after_s=_retry_after_s(response.headers.get("retry-after")),
                location=response.headers.get("location"),
            )
        )

    async def aclose(self) -> None:
        """Closes every connection."""
        session, self._session = self._session, None
        if session is not None and self._loop is asyncio.get_running_loop():
            await session.close()

    def _record(self, path: str, size: int, options: Options) -> None:
        options.scope.sent(
            EgressRecord(
                at=time.time(),
                destination="provider",
                slot=self.slot,
                route=options.route,
                host=self.host,
                path=path,
                bytes_sent=size,
                allowed_because=_ALLOWED_PRIVATE if options.private else self.allowed_because(),
            )
        )

    def _url(self, path: str) -> URL:
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = URL(self._origin + path)
        return url

    def _open_session(self, loop: asyncio.AbstractEventLoop) -> aiohttp.ClientSession:
        """The session of the running loop: connections belong to the loop that opened them."""
        if self._session is None or self._loop is not loop:
            connector: aiohttp.BaseConnector
            if self._socket_path is not None:
                connector = aiohttp.UnixConnector(self._socket_path, limit=0, keepalive_timeout=KEEPALIVE_S)
            else:
                checked = self.slot == "local" and not self.allow_remote
                connector = aiohttp.TCPConnector(
                    limit=0,
                    keepalive_timeout=KEEPALIVE_S,
                    socket_factory=self._checked_socket if checked else None,
                )
            self._loop = loop
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
                headers={"user-agent": "mead"},
                trust_env=False,
            )
        return self._session

    def _checked_socket(
        self,
        address: tuple[int | socket.AddressFamily, int | socket.SocketKind, int, str, tuple[object, ...]],
    ) -> socket.socket:
        """A socket for an address that is about to be connected to, if a local slot may connect to it."""
        family, kind, protocol, _, where = address
        if why_local(str(where[0]), self._networks) is None:
            raise PermissionError(f"egress gate: {where[0]} is not local")
        return socket.socket(family, kind, protocol)

    def _reason(self, error: Exception, options: Options, loop: asyncio.AbstractEventLoop) -> ProviderReason:
        where = self.host
        if "egress gate:" in str(getattr(error, "os_error", error)):
            return Transport(
                cause="not_local",
                detail=f"{where} is neither on this machine nor on a private network, and the slot is local. "
                "Set allow_remote = true in the slot if it is meant to be reached.",
            )
        if isinstance(error, ServerTimeoutError):
            return Timeout(limit="connect", detail=f"{where} did not accept the connection")
        if isinstance(error, TimeoutError):
            late = options.deadline is not None and loop.time() >= options.deadline
            return Timeout() if late else Timeout(limit="idle", detail=f"{where} went silent in mid-answer")
        if isinstance(error, ClientConnectorDNSError):
            return Transport(cause="dns", detail=f"the name {where} cannot be resolved")
        if isinstance(error, ClientSSLError):
            return Transport(cause="tls", detail=f"no trusted TLS connection to {where}")
        if isinstance(error, ClientConnectorError):
            return Transport(cause="refused", detail=f"nothing accepts connections at {where}")
        if isinstance(error, ClientPayloadError):
            return Transport(cause="cut", detail=f"{where} broke off its answer")
        if isinstance(error, (aiohttp.ClientResponseError, AnswerTooLongError)):
            return MalformedResponse(detail=f"{where} does not answer with readable HTTP")
        if isinstance(error, (ServerDisconnectedError, aiohttp.ClientConnectionError, OSError)):
            return Transport(cause="reset", detail=f"{where} closed the connection")
        return InvalidOptions(detail="the request cannot be sent as it is")


async def _read_whole(response: aiohttp.ClientResponse) -> bytes:
    content = response.content
    data = await content.readany()
    if content.at_eof():
        return data
    pieces, size = [data], len(data)
    while piece := await content.readany():
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise AnswerTooLongError
        pieces.append(piece)
    return b"".join(pieces)


async def _hand_on(
    response: aiohttp.ClientResponse,
    on_chunk: OnChunk,
    limit: asyncio.Timeout,
    options: Options,
    loop: asyncio.AbstractEventLoop,
) -> None:
    """Gives the chunks to `on_chunk` until it has seen the end. Silence is limited from the first chunk on:
    a cold model may take its time before that."""
    content, idle_s = response.content, options.idle_timeout_s
    while chunk := await content.readany():
        try:
            if on_chunk(chunk):
                break
        except AnswerTooLongError:
            raise
        except Exception as error:
            raise _ConsumerError from error
        if idle_s is not None:
            until = loop.time() + idle_s
            limit.reschedule(until if options.deadline is None else min(until, options.deadline))


def _retry_after_s(header: str | None) -> float | None:
    """Seconds from a `Retry-After` header, which holds seconds or a date (RFC 9110, 10.2.3)."""
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(header).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
