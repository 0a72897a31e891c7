"""Answers that take their time: they end when their client goes away, and show that they live meanwhile."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import suppress
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mead.serve.errors import Problem

_T = TypeVar("_T")
_log = logging.getLogger("mead.serve")

PING_S = 15.0
"""How long a stream is silent at most, in seconds; then it sends a comment, which clients pass over."""
_PING = b": ping\n\n"


async def until_gone(request: Request, work: Awaitable[_T]) -> _T:
    """What the work gives. It is cancelled when the client goes away, which raises `Problem`."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request.receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise Problem(499, "cancelled", "the client went away")
        return working.result()
    finally:
        watching.cancel()
        if not working.done():
            working.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await working


async def _gone(receive: Receive) -> None:
    """Returns when the client has gone. The body of the request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class SseResponse(Response):
    """A stream of server-sent events: `events` yields each as its bytes. Its iterator is closed when the
    client goes away. Wrap them in `begun` where what is wrong with a request is to be told with a status of
    its own."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], headers: Mapping[str, str] | None = None) -> None:
        self.status_code = 200
        self.background = None
        self._events = events
        self.init_headers({"cache-control": "no-store", "x-accel-buffering": "no", **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        watching = asyncio.ensure_future(_gone(receive))
        try:
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
            if sending.done() and (error := sending.exception()) is not None:
                # Its message is left out: it may quote the conversation (T3). The client sees a cut.
                stack = "".join(traceback.format_tb(error.__traceback__))
                _log.error("a stream broke off with %s\n%s", type(error).__name__, stack)
        finally:
            watching.cancel()
            sending.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await sending

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        events, waiting = self._events, None
        try:
            while True:
                if waiting is None:
                    waiting = asyncio.ensure_future(_next(events))
                done, _ = await asyncio.wait((waiting,), timeout=PING_S)
                if not done:
                    await send({"type": "http.response.body", "body": _PING, "more_body": True})
                    continue
                event, waiting = waiting.result(), None
                if event is None:
                    break
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if waiting is not None:
                waiting.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await waiting
            aclose = getattr(events, "aclose", None)
            if aclose is not None:
                await aclose()


async def _next(events: AsyncIterator[bytes]) -> bytes | None:
    return await anext(events, None)


async def begun(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same events, once the first one is there: what raises before it, raises here."""
    first = await anext(events, None)

    async def all_of() -> AsyncIterator[bytes]:
        try:
            if first is not None:
                yield first
            async for event in events:
                yield event
        finally:
            aclose = getattr(events, "aclose", None)
            if aclose is not None:
                await aclose()

    return all_of()


def sse(data: bytes, *, event: str | None = None, number: int | None = None) -> bytes:
    """One server-sent event. `data` is one line."""
    head = b"" if number is None else b"id: %d\n" % number
    if event is not None:
        head += b"event: " + event.encode() + b"\n"
    return head + b"data: " + data + b"\n\n"
