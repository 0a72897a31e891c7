"""Looks at every request before anything reads it: whom it is addressed to, from where, and how large it is.

A browser that was led to a hostile page can reach servers on loopback. Such a request names a foreign host
(DNS rebinding) or a foreign origin, and is refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mead.serve.errors import Problem, answer, native_shape
from mead.telemetry.context import REQUEST_ID

MAX_HEADERS = 100
MAX_HEADER_BYTES = 64 * 1024
_MAX_DIGITS = 18
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_log = logging.getLogger("mead.serve")


class Guard:
    """An ASGI middleware.

    `hosts` are names that the server is called by besides those of loopback, `"*"` is any; `origins` are the
    pages that may call it besides its own. `max_body_bytes` and `body_timeout_s` limit a request's body.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Sequence[str] = (),
        origins: Sequence[str] = (),
        max_body_bytes: int,
        body_timeout_s: float,
    ) -> None:
        self._app = app
        self._hosts = {*_LOOPBACK, *[_name_of(_bracketed(host.lower())) for host in hosts]}
        self._origins = {origin.rstrip("/").lower() for origin in origins}
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        REQUEST_ID.set(request_id)
        send = _with_id(send, request_id)
        headers = Headers(scope=scope)
        problem = self._problem(headers, str(scope.get("scheme", "http")))
        if problem is not None:
            await answer(problem, native_shape)(scope, receive, send)
            return
        await self._app(scope, self._limited(receive), send)

    def _problem(self, headers: Headers, scheme: str) -> Problem | None:
        raw = headers.raw
        if len(raw) > MAX_HEADERS or sum([len(name) + len(value) for name, value in raw]) > MAX_HEADER_BYTES:
            return Problem(431, "headers_too_large", "the request has too many or too long headers")
        host = headers.get("host", "").lower()
        if "*" not in self._hosts and _name_of(host) not in self._hosts:
            said = "the server is not called by this host name; name it in allowed_hosts under [serve]"
            return Problem(421, "wrong_host", said)
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin.lower(), f"{scheme}://{host}"):
            said = "a page of this origin may not call the server; name it in allowed_origins under [serve]"
            return Problem(403, "wrong_origin", said)
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            return Problem(400, "invalid_request", "the content-length is no number")
        is_long = len(length) > _MAX_DIGITS or int(length) > self._max_body_bytes
        return self._too_large() if is_long else None

    def _is_own(self, origin: str, own: str) -> bool:
        return origin == own or origin in self._origins or "*" in self._origins

    def _too_large(self) -> Problem:
        said = f"the body is larger than {self._max_body_bytes:,} bytes; raise max_body_bytes under [serve]"
        return Problem(413, "body_too_large", said)

    def _limited(self, receive: Receive) -> Receive:
        """`receive`, for a body that comes in time and is not too large. Raises `Problem`."""
        received, is_whole = 0, False
        loop = asyncio.get_running_loop()
        until = loop.time() + self._body_timeout_s

        async def limited() -> Message:
            nonlocal received, is_whole
            if is_whole:  # what comes now is the end of the connection, which may take as long as it likes
                return await receive()
            try:
                async with asyncio.timeout_at(until):
                    message = await receive()
            except TimeoutError:
                raise Problem(408, "slow_body", "the body of the request did not come in time") from None
            received += len(message.get("body", b""))
            is_whole = not message.get("more_body", False)
            if received > self._max_body_bytes:
                raise self._too_large()
            return message

        return limited


def _with_id(send: Send, request_id: str) -> Send:
    """Sends a response with the id that the log lines of its request have."""
    header = (b"x-request-id", request_id.encode())

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), header]
        await send(message)

    return sending


def _name_of(host: str) -> str:
    """The name in a Host header or in the settings, without the port; an IPv6 address in its short form,
    within brackets."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return f"[{ipaddress.IPv6Address(name).compressed}]" if ":" in name else name
    except ValueError:
        return ""


def _bracketed(host: str) -> str:
    """A host of the settings, where an IPv6 address may stand without brackets."""
    try:
        return f"[{ipaddress.IPv6Address(host).compressed}]"
    except ValueError:
        return host
