"""A server that is reached by streamable HTTP: the SDK's transport over a client that contains faults.

The SDK takes one broken connection for the end of the session: each call on its way fails with it. Here it is
the failure of one request. What goes wrong is answered, in the server's place, with a JSON-RPC error.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import httpx2
import msgspec
from mcp.client.streamable_http import streamable_http_client
from mcp.types import INTERNAL_ERROR
from msgspec import Struct

from mead.mcp.transports import ANSWER_LOST, MAX_HTTP_MESSAGE_BYTES, TOO_LARGE, TransportStreams, Wire
from mead.mcp.transports._messages import decode, mended

_CONNECT_S: Final = 10.0
_SILENCE_S: Final = 660.0
"""How long an answer may be silent: longer than any call may take, whose own deadline comes first."""
_NOTICE_S: Final = 2.0
_FAREWELL_S: Final = 2.0
_ERROR_BYTES: Final = 2**16
_SESSION: Final = "mcp-session-id"
_BEFORE_SENDING: Final = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)


@asynccontextmanager
async def http_transport(
    url: str,
    *,
    headers: Mapping[str, str],
    auth: httpx2.Auth | None,
    wire: Wire,
    on_request: Callable[[str, int], None] | None = None,
    max_message_bytes: int = MAX_HTTP_MESSAGE_BYTES,
) -> AsyncIterator[TransportStreams]:
    """Speaks to the endpoint `url`. Nothing is sent before the SDK sends something.

    `on_request` is called before each request leaves, with its path (for another host, as an authorization
    server is, its address) and the size of its body. Redirects are followed within the origin only. For
    loopback, proxies of the environment are not used.
    """
    client = _Client(url, headers, auth, wire, on_request, max_message_bytes)
    async with (
        client,
        streamable_http_client(url, http_client=client, max_sse_event_size=max_message_bytes) as streams,
    ):
        yield streams


class _RpcErrorData(Struct):
    code: int
    message: str


class _Answer(Struct):
    """What is looked at of a message that comes."""

    id: int | str | None = None
    error: _RpcErrorData | None = None


class _Sent(Struct):
    """What is looked at of a message that is sent."""

    method: str | None = None
    id: int | str | None = None
    params: Any = None

    @property
    def is_request(self) -> bool:
        return self.method is not None and self.id is not None


class _Client(httpx2.AsyncClient):
    """Answers by itself what the server does not answer."""

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        auth: httpx2.Auth | None,
        wire: Wire,
        on_request: Callable[[str, int], None] | None,
        limit: int,
    ) -> None:
        super().__init__(
            # Without compression the size of an answer is known while it is read.
            headers={"accept-encoding": "identity", **headers},
            auth=auth,
            timeout=httpx2.Timeout(_CONNECT_S, read=_SILENCE_S, write=_SILENCE_S, pool=None),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=10),
            trust_env=not _is_loopback(url),
            event_hooks={"request": [self._before_request]},
        )
        self._endpoint = httpx2.URL(url)
        self._wire = wire
        self._on_request = on_request
        self._limit = limit
        self._answers: dict[int | str, anyio.CancelScope | _Events] = {}

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Gives an answer for every POST: a fault of the connection is an answer with status 502.

        What the authorization raises is passed on: it concerns the whole server.
        """
        match request.method:
            case "POST":
                return await self._post(request, options)
            case "DELETE":
                return await self._leave(request, options)
        # The stream for the server's own messages may be silent for ever. What breaks it, the SDK handles.
        _allow_silence(request)
        return await super().send(request, **options)

    async def _post(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        sent = msgspec.json.decode(await request.aread(), type=_Sent)
        if sent.method == "subscriptions/listen":
            _allow_silence(request)
        response: httpx2.Response | None = None
        # The SDK sends nothing else while it waits for the answer to a notification.
        with anyio.move_on_after(None if sent.is_request else _NOTICE_S) as scope:
            if sent.is_request and sent.id is not None:
                self._answers[sent.id] = scope
            try:
                response = await self._taken(request, await super().send(request, **options), sent)
            except httpx2.RequestError as error:
                response = _refused(request, *_reason(error))
            finally:
                self._forget(sent.id, scope)
        if sent.method == "notifications/cancelled":
            self._give_up((sent.params or {}).get("requestId"))
        return _refused(request, ANSWER_LOST, "the call was given up") if response is None else response

    def _give_up(self, request_id: int | str | None) -> None:
        """Closes the connection on which the answer to a cancelled request would come.

        A server of 2025 may otherwise keep it open for as long as it likes.
        """
        if request_id is not None and (answer := self._answers.pop(request_id, None)) is not None:
            answer.cancel()

    def _forget(self, request_id: int | str | None, answer: object) -> None:
        if request_id is not None and self._answers.get(request_id) is answer:
            del self._answers[request_id]

    async def _leave(self, request: httpx2.Request, options: dict[str, Any]) -> httpx2.Response:
        """Ends the session, if the server is there to be told."""
        if not self._wire.lost.is_set():
            with anyio.move_on_after(_FAREWELL_S), contextlib.suppress(httpx2.RequestError):
                response = await super().send(request, **options)
                await response.aclose()
        return httpx2.Response(204, request=request)

    async def _taken(
        self, request: httpx2.Request, response: httpx2.Response, sent: _Sent
    ) -> httpx2.Response:
        """The answer with its body, which the SDK must not be left to read: it may break off or be endless.

        An event stream is left to the SDK, which does handle what breaks it.
        """
        if response.next_request is not None:
            await response.aclose()
            return _copy(response, b"")
        if response.is_error:
            body = await _read(response, _ERROR_BYTES) or b""
            self._wire.http_status = response.status_code
            if _SESSION in request.headers and _has_expired(response, body):
                self._wire.lost.set()
            return _failed(request, response, body)
        if _kind(response) == "text/event-stream":
            if sent.id is not None and sent.is_request:
                stream = _Events(response.stream, lambda: self._forget(sent.id, stream))
                self._answers[sent.id] = response.stream = stream
            return response
        whole = await _read(response, self._limit)
        if whole is None:
            return _refused(request, TOO_LARGE, f"the result is larger than {self._limit:,} bytes")
        if not sent.is_request or response.status_code == 202:
            return _copy(response, whole)
        return _checked(request, response, whole, sent)

    async def _before_request(self, request: httpx2.Request) -> None:
        if self._on_request is not None:
            url, own = request.url, self._endpoint
            at_home = (url.scheme, url.host, url.port) == (own.scheme, own.host, own.port)
            address = str(url.copy_with(query=None, fragment=None, userinfo=b""))
            size = int(request.headers.get("content-length", "0"))
            self._on_request(url.path if at_home else address, size)


class _Events(httpx2.AsyncByteStream):
    """An event stream that can be ended from outside, also while the server is silent."""

    def __init__(self, inner: Any, on_close: Callable[[], None]) -> None:
        self._inner = inner
        self._on_close = on_close
        self._scope = anyio.CancelScope()
        self._given_up = False

    def cancel(self) -> None:
        self._given_up = True
        self._scope.cancel()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        chunks = aiter(self._inner)
        while True:
            chunk: bytes | None = None
            # A scope for each chunk, since none may stay open across a yield.
            with anyio.CancelScope() as self._scope:
                chunk = await anext(chunks, None)
            if self._given_up:
                # Of all errors, the one after which the SDK does not try to resume the stream.
                raise httpx2.SSEError("the call was given up")
            if chunk is None:
                return
            yield chunk

    async def aclose(self) -> None:
        self._on_close()
        await self._inner.aclose()


async def _read(response: httpx2.Response, limit: int) -> bytes | None:
    """The body; `None` if it is larger than the limit."""
    try:
        if int(response.headers.get("content-length", "0")) > limit:
            return None
        pieces, size = [], 0
        async for piece in response.aiter_bytes():
            size += len(piece)
            if size > limit:
                return None
            pieces.append(piece)
        return b"".join(pieces)
    finally:
        await response.aclose()


def _allow_silence(request: httpx2.Request) -> None:
    request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "read": None}


def _copy(response: httpx2.Response, body: bytes) -> httpx2.Response:
    """The same answer, with this body at hand."""
    framing = ("content-length", "content-encoding", "transfer-encoding")
    headers = [(name, value) for name, value in response.headers.multi_items() if name not in framing]
    copy = httpx2.Response(response.status_code, headers=headers, content=body, request=response.request)
    copy.next_request = response.next_request
    return copy


def _refused(request: httpx2.Request, code: int, why: str) -> httpx2.Response:
    # The SDK puts the id of its request in the place of the null.
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": why}}
    return httpx2.Response(502, json=error, request=request)


def _failed(request: httpx2.Request, response: httpx2.Response, body: bytes) -> httpx2.Response:
    """An answer with an error status: the server's own JSON-RPC error, or one that says the status."""
    if _kind(response) == "application/json":
        with contextlib.suppress(ValueError):
            if msgspec.json.decode(body, type=_Answer).error is not None:
                return _copy(response, body)
    status = response.status_code
    phrase = httpx2.codes.get_reason_phrase(status)
    why = f"the server answered with HTTP status {status} {phrase}".rstrip()
    if body and _kind(response) != "text/html":
        said = " ".join(body.decode("utf-8", "replace").split())
        why += f": {''.join(filter(str.isprintable, said))[:200]}"
    # A gateway may have passed the call on before it gave up.
    return _refused(request, INTERNAL_ERROR if status < 500 else ANSWER_LOST, why)


def _has_expired(response: httpx2.Response, body: bytes) -> bool:
    """Whether a request in a session was refused because the session is no more.

    That is status 404, but servers made after a common example say 400, with a sentence and without an id.
    """
    if response.status_code != 400:
        return response.status_code == 404
    with contextlib.suppress(ValueError):
        if msgspec.json.decode(body, type=_Answer).id is not None:
            return False
    return b"session" in body.lower()


def _reason(error: httpx2.RequestError) -> tuple[int, str]:
    what = str(error) or type(error).__name__
    if isinstance(error, _BEFORE_SENDING):
        return INTERNAL_ERROR, f"the server cannot be reached: {what}"
    return ANSWER_LOST, f"the connection broke before the answer was there: {what}"


def _checked(request: httpx2.Request, response: httpx2.Response, body: bytes, sent: _Sent) -> httpx2.Response:
    """A JSON answer that the SDK can read and will take for the answer to its request.

    It fails at bytes that are no UTF-8 and at half a surrogate pair, and it drops an answer with another id,
    so that the call would wait for its deadline.
    """
    if _kind(response) != "application/json":
        return _refused(request, ANSWER_LOST, f"the server answered with {_kind(response) or 'no content'}")
    try:
        answer = msgspec.json.decode(body, type=_Answer)
        if not body.isascii():
            body.decode()
    except (ValueError, RecursionError):
        try:
            decode(body)
        except ValueError:
            return _refused(request, ANSWER_LOST, "the server's answer is no valid JSON-RPC message")
        return _copy(response, mended(body).encode())
    if str(answer.id) == str(sent.id):
        return _copy(response, body)
    if answer.error is not None:
        return _refused(request, answer.error.code, answer.error.message)
    return _refused(request, ANSWER_LOST, "the server answered a request that was not this one")


def _kind(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _is_loopback(url: str) -> bool:
    host = httpx2.URL(url).host
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
