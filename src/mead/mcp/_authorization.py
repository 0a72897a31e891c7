"""Requests to authorization servers: where they may go, how long they may take, how a refusal is put.

An MCP server says which authorization server is its own, and the SDK goes there, without any limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import time
from collections.abc import AsyncIterator
from typing import Any, Final, TypeAlias

import httpx2
import msgspec
from mcp.client.auth import OAuthFlowError

ANSWER_TIMEOUT_S = 30.0
"""How long an authorization server may be silent; a whole answer may take twice as long."""

_ANSWER_BYTES: Final = 2**20
_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address


def _without_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = record.exc_text = None
    return True


# The tracebacks that the SDK logs end with what an authorization server has answered, which may be tokens.
logging.getLogger("mcp.client.auth.oauth2").addFilter(_without_traceback)


async def prepare(request: httpx2.Request, server_url: str) -> None:
    """Checks and limits a request that the SDK makes of its own accord. Raises `OAuthFlowError`."""
    await check_address(str(request.url), server_url)
    request.extensions["timeout"] = httpx2.Timeout(ANSWER_TIMEOUT_S).as_dict()


async def read(answer: httpx2.Response) -> None:
    """Reads an answer, within limits. Raises `httpx2.ConnectError`, which fails one request of the client."""
    answer.headers.pop(
        "content-encoding", None
    )  # none was asked for, and a small body can become a large one
    answer.stream = Bounded(answer.stream)
    try:
        await answer.aread()
    except httpx2.RequestError as error:
        said = str(error) or "it did not answer in time"
        raise httpx2.ConnectError(f"the authorization server {answer.request.url.host}: {said}") from error


async def check_address(url: str, server_url: str) -> None:
    """Whether a server may send us to this address for its metadata, its tokens or a login.

    Its own host is the one that was configured. Any other must be https, and no further inside than the
    server is itself: on the public network, on a private one if the server is on one, on this machine (then
    without https too) if the server is. A server could otherwise reach through us what only we can reach.
    Raises `OAuthFlowError`.
    """
    target, server = httpx2.URL(url), httpx2.URL(server_url)
    if target.host == server.host and target.scheme in ("https", server.scheme):
        return
    there = await _addresses(target)
    if not all(address.is_global for address in there):
        here = await _addresses(server)
        if here and all(address.is_loopback for address in (*there, *here)):
            return
        if not (here and all(_is_private(address) for address in (*there, *here))):
            raise OAuthFlowError(f"the server sends us to {target.host}, which is not on the public network")
    if target.scheme != "https":
        raise OAuthFlowError(f"the server sends us to {target.host}, which is not https")


def _is_private(address: _Address) -> bool:
    return address.is_private and not (
        address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast
    )


async def _addresses(url: httpx2.URL) -> list[_Address]:
    """The addresses of a name; none where it is not known here, but perhaps to a proxy."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(
                url.host, url.port or 443, type=socket.SOCK_STREAM
            )
    except (OSError, UnicodeError):
        return []
    addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in found]
    return [getattr(address, "ipv4_mapped", None) or address for address in addresses]


def refusal(answer: httpx2.Response | None) -> str:
    """What an authorization server has answered instead of what it was asked for; never what it granted."""
    if answer is None:
        return "the authorization server did not answer"
    host = answer.request.url.host
    if answer.is_success:
        return f"the authorization server {host} gave an answer that cannot be used"
    said = f"the authorization server {host} answered with HTTP status {answer.status_code}"
    with contextlib.suppress(msgspec.DecodeError, httpx2.StreamError):
        body = msgspec.json.decode(answer.content)
        reasons = [body.get("error"), body.get("error_description")] if isinstance(body, dict) else []
        said += "".join(f": {printable(reason)}" for reason in reasons if isinstance(reason, str))
    return said


def printable(text: str) -> str:
    """A server's words, short and without what a terminal would take for a command."""
    return "".join(filter(str.isprintable, text))[:200]


class Bounded(httpx2.AsyncByteStream):
    """A body that is cut off if it is too large or takes too long."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._until = time.monotonic() + ANSWER_TIMEOUT_S
        self._left = _ANSWER_BYTES

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            self._left -= len(piece)
            if self._left < 0 or time.monotonic() > self._until:
                raise httpx2.ReadError("the answer is too large, or too slow")
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class Instead(httpx2.AsyncByteStream):
    """Our own body in the place of a server's."""

    def __init__(self, inner: Any, body: bytes) -> None:
        self._inner = inner
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    async def aclose(self) -> None:
        await self._inner.aclose()
