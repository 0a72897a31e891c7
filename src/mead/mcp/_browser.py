"""The port of this machine to which the browser comes back from a login."""

from __future__ import annotations

import asyncio
import hmac
from typing import Final

import httpx2
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import AuthorizationCodeResult

from mead.mcp._authorization import printable

PATH: Final = "/callback"
_VISIT_S: Final = 10.0
_HEAD: Final = (
    "HTTP/1.1 {status}\r\ncontent-type: text/html; charset=utf-8\r\ncontent-length: {size}\r\n"
    "cache-control: no-store\r\nreferrer-policy: no-referrer\r\nconnection: close\r\n\r\n"
)
_PAGE: Final = (
    "<!doctype html><title>mead</title><p style='font-family:sans-serif;margin:4em'>{said} "
    "You can close this window."
)


class Callback:
    """Takes the browser's visit: `answer` serves a connection, `next` gives the code that was brought."""

    def __init__(self) -> None:
        self._state = b""
        self._arrived: asyncio.Future[AuthorizationCodeResult] | None = None

    def expect(self, state: str) -> None:
        """Waits from now on for the end of the login with this state."""
        self._state = state.encode()
        self._arrived = asyncio.get_running_loop().create_future()

    async def next(self) -> AuthorizationCodeResult:
        """The code that the visit brings. Raises `OAuthFlowError` if it brings a refusal."""
        assert self._arrived is not None  # something is expected before it is waited for
        return await self._arrived

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads one request, and says what became of it."""
        try:
            async with asyncio.timeout(_VISIT_S):
                line = await reader.readuntil(b"\r\n")
                await reader.readuntil(b"\r\n\r\n")
            status, said = self._take(line.split(b" ", 2)[1].decode("latin-1"))
            page = _PAGE.format(said=said).encode()
            writer.write(_HEAD.format(status=status, size=len(page)).encode() + page)
            await writer.drain()
        except (OSError, EOFError, IndexError, asyncio.LimitOverrunError, httpx2.InvalidURL):
            pass  # somebody else came by
        finally:
            writer.close()

    def _take(self, target: str) -> tuple[str, str]:
        parts = httpx2.URL(target)
        query = dict(parts.params)
        if parts.path != PATH or not ({"code", "error"} & query.keys()):
            return "404 Not Found", "There is nothing here."
        # Any page in the browser can come here: a visit without the login's state does not end it.
        known = hmac.compare_digest(query.get("state", "").encode(), self._state)
        if self._arrived is None or self._arrived.done() or not known:
            return "400 Bad Request", "This does not belong to a login that was begun."
        if "error" in query:
            why = printable(query.get("error_description") or query["error"])
            self._arrived.set_exception(OAuthFlowError(f"the server refused: {why}"))
            return "200 OK", "The login was refused."
        self._arrived.set_result(
            AuthorizationCodeResult(code=query["code"], state=query["state"], iss=query.get("iss"))
        )
        return "200 OK", "You are logged in."
