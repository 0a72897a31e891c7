"""Talks HTTP to a mead server, and tells what went wrong as a reason."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from msgspec import Struct
from yarl import URL

from mead.core.reasons import HttpStatus, MalformedResponse, NoSuchSession, Timeout, Transport, TurnReason

CONNECT_TIMEOUT_S = 10.0
KEPT_S = 3.0
"""How long a connection is kept for the next call, in seconds: less long than servers keep one."""
CALL_TIMEOUT_S = 60.0
"""How long a call may take that makes no turn, in seconds."""
SILENT_S = 45.0
"""How long a stream may be silent, in seconds: the server says every 15 seconds that it lives."""


_SECONDS = re.compile(r"[0-9]{1,9}")


class Lost(Exception):  # noqa: N818 - it is a result, raised where it is found
    """The call came to nothing; `reason` says why. `is_connection` says that the server was not reached, or
    broke off, and may have what was asked for all the same."""

    def __init__(self, reason: TurnReason, *, is_connection: bool = False) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.is_connection = is_connection


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    data: bytes


class _Fault(Struct, frozen=True):
    tag: str = ""
    detail: str | None = None
    param: str | None = None


class _Told(Struct, frozen=True):
    error: msgspec.Raw


class _Reason(Struct, frozen=True):
    error: TurnReason


class Connection:
    """The connections to one server. They belong to the event loop that they are used on."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError("a server's url begins with http:// or https://")
        self._base = url.rstrip("/")
        self.host = parts.netloc.rpartition("@")[2]
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._session: aiohttp.ClientSession | None = None

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = CALL_TIMEOUT_S,
    ) -> Reply:
        """A whole answer that tells of no error. Raises `Lost`, or `ValueError` where the server says that
        the request is wrong."""
        async with self._sent(
            method, path, body, query=query, headers=headers, timeout_s=timeout_s, silent_s=None
        ) as response:
            return await _whole(response)

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, body: object = None, *, headers: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """An answer that comes bit by bit. Raises as `call` does."""
        async with self._sent(
            method, path, body, query=None, headers=headers, timeout_s=None, silent_s=SILENT_S
        ) as response:
            if response.status != 200:
                await _whole(response)
                raise Lost(MalformedResponse(detail=f"{self.host} does not answer with a stream"))
            yield response

    @asynccontextmanager
    async def _sent(
        self,
        method: str,
        path: str,
        body: object,
        *,
        query: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
        timeout_s: float | None,
        silent_s: float | None,
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        sent = {**self._headers, **(headers or {})}
        data = None
        if body is not None:
            data, sent["content-type"] = msgspec.json.encode(body), "application/json"
        limits = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S, sock_read=silent_s)
        # A redirect is not followed: the token is for this server alone.
        try:
            async with self._open().request(
                method,
                URL(self._base + path, encoded=True).update_query(dict(query or {})),
                data=data,
                headers=sent,
                timeout=limits,
                allow_redirects=False,
            ) as response:
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Lost(self._reason(error), is_connection=True) from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Turns wait in the server, not here. A connection that it may be about to close is not used.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        return self._session

    async def aclose(self) -> None:
        """Closes the connections. May be called twice."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _reason(self, error: BaseException) -> TurnReason:
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return Timeout(limit="connect", detail=f"{self.host} does not accept the connection")
        if isinstance(error, (aiohttp.ServerTimeoutError, TimeoutError)):
            return Timeout(limit="idle", detail=f"{self.host} went silent")
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return Transport(cause="dns", detail=f"the name {self.host} cannot be resolved")
        if isinstance(error, aiohttp.ClientSSLError):
            return Transport(cause="tls", detail=f"no trusted TLS connection to {self.host}")
        if isinstance(error, aiohttp.ClientConnectorError):
            return Transport(cause="refused", detail=f"nothing accepts connections at {self.host}")
        if isinstance(error, aiohttp.ClientPayloadError):
            return Transport(cause="cut", detail=f"{self.host} broke off its answer")
        return Transport(cause="reset", detail=f"{self.host} closed the connection")


async def _whole(response: aiohttp.ClientResponse) -> Reply:
    """The answer, if it tells of no error."""
    data = await response.read()
    if response.status < 300:
        return Reply(response.status, data)
    raise _error(response.status, data, response.headers.get("retry-after"))


def _error(status: int, data: bytes, retry_after: str | None) -> Exception:
    """What an answer says that tells of an error: a reason's own, or the server's."""
    try:
        return Lost(msgspec.json.decode(data, type=_Reason).error)
    except msgspec.DecodeError:
        fault = _fault(data)
    if status == 400 and fault.tag == "invalid_request":
        return ValueError(f"{fault.param}: {fault.detail}" if fault.param else fault.detail)
    if status == 404 and fault.tag == "not_found":
        return Lost(NoSuchSession(detail="there is no such session"))
    retry_after_s = float(retry_after) if retry_after and _SECONDS.fullmatch(retry_after) else None
    return Lost(
        HttpStatus(status=status, code=fault.tag or None, detail=fault.detail, retry_after_s=retry_after_s)
    )


def _fault(data: bytes) -> _Fault:
    try:
        return msgspec.json.decode(msgspec.json.decode(data, type=_Told).error, type=_Fault)
    except msgspec.DecodeError:
        return _Fault()


def quoted(part: str) -> str:
    """A part of a path."""
    return quote(part, safe="")


async def pause(attempt: int) -> None:
    """Waits before a stream is asked for again: longer each time, from a tenth of a second on."""
    await asyncio.sleep(0.1 * 2**attempt)
