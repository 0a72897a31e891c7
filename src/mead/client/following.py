"""Follows a turn on a server: its events as they come, taken up again where a connection broke off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping

import msgspec

from mead.client._http import Connection, Lost, pause
from mead.client._sse import EventReader, Received
from mead.core.reasons import MalformedResponse, Transport
from mead.core.scope import Approval
from mead.sessions.bodies import ApprovalBody, RequestBody, TurnBody
from mead.sessions.events import ApprovalNeeded, Delta, Finished, ToolCalled, ToolReturned, TurnEvent
from mead.sessions.shapes import (
    ApprovalShape,
    DeltaEvent,
    OutcomeShape,
    StartedEvent,
    ToolCalledEvent,
    ToolReturnedEvent,
)

TRIES = 6
"""How often in a row a stream is asked for again, without anything new in it."""
_SSE = {"accept": "text/event-stream"}


class Followed:
    """One turn, from its submission to its end. `events` is called once."""

    def __init__(
        self, connection: Connection, path: str, body: TurnBody | RequestBody, headers: Mapping[str, str]
    ) -> None:
        self._connection = connection
        self._path = path
        self._body = body
        self._headers = headers
        self._turn_id: str | None = None
        self._last = 0
        self._answers: set[asyncio.Task[None]] = set()

    async def events(self) -> AsyncGenerator[TurnEvent, None]:
        """The events, last of all `Finished`. Raises `Lost` where there is no end to be had. Leaving early
        cancels the turn."""
        is_over, attempt = False, 0
        try:
            while True:
                seen = self._last
                try:
                    async with contextlib.aclosing(self._received()) as received:
                        async for event in received:
                            is_over = isinstance(event, Finished)
                            yield event
                            if is_over:
                                return
                    lost = Lost(Transport(cause="cut", detail="the stream ended before the turn"))
                except Lost as error:
                    if not error.is_connection or self._turn_id is None:
                        raise
                    lost = error
                attempt = 0 if self._last > seen else attempt + 1
                if attempt >= TRIES or self._turn_id is None:
                    raise lost
                await pause(attempt)
        finally:
            for task in self._answers:
                task.cancel()
            if not is_over and self._turn_id is not None:
                await self._cancel(self._turn_id)

    async def _received(self) -> AsyncGenerator[TurnEvent, None]:
        """The events of one connection, those that were not seen yet."""
        if self._turn_id is None:
            opened = self._connection.stream(
                "POST", self._path, self._body, headers={**_SSE, **self._headers}
            )
        else:
            headers = {**_SSE, "last-event-id": str(self._last)}
            opened = self._connection.stream("GET", f"/api/turns/{self._turn_id}/events", headers=headers)
        reader = EventReader()
        async with opened as response:
            async for chunk in response.content.iter_any():
                for received in reader.feed(chunk):
                    event = self._read(received)
                    self._last = max(self._last, received.number)
                    if event is not None:
                        yield event

    def _read(self, received: Received) -> TurnEvent | None:
        """The event as programs know it; `None` for one that they do not."""
        try:
            match received.name:
                case "started":
                    self._turn_id = msgspec.json.decode(received.data, type=StartedEvent).turn_id
                case "delta":
                    return Delta(msgspec.json.decode(received.data, type=DeltaEvent).text)
                case "tool_called":
                    called = msgspec.json.decode(received.data, type=ToolCalledEvent)
                    return ToolCalled(called.name, called.effect)
                case "tool_returned":
                    returned = msgspec.json.decode(received.data, type=ToolReturnedEvent)
                    return ToolReturned(returned.name, returned.is_error)
                case "approval_needed":
                    return self._approval(msgspec.json.decode(received.data, type=ApprovalShape))
                case "finished":
                    return Finished(msgspec.json.decode(received.data, type=OutcomeShape).result())
        except (msgspec.DecodeError, ValueError) as error:
            raise Lost(MalformedResponse(detail="the stream holds what is no event of mead")) from error
        return None

    def _approval(self, asked: ApprovalShape) -> ApprovalNeeded:
        loop = asyncio.get_running_loop()

        def answer(approval: Approval) -> None:
            loop.call_soon_threadsafe(self._send, asked.approval_id, approval)

        return ApprovalNeeded(asked.request, answer)

    def _send(self, approval_id: str, approval: Approval) -> None:
        task = asyncio.get_running_loop().create_task(self._answer(approval_id, approval))
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    async def _answer(self, approval_id: str, approval: Approval) -> None:
        """Sends an answer. One that the server does not take counts for nothing: the call waits, and is
        refused in the end."""
        body = ApprovalBody(decision=approval.decision, only=approval.only)
        with contextlib.suppress(Lost, ValueError):
            await self._connection.call("POST", f"/api/approvals/{approval_id}", body)

    async def _cancel(self, turn_id: str) -> None:
        with contextlib.suppress(Lost, ValueError):
            await self._connection.call("POST", f"/api/turns/{turn_id}/cancel", timeout_s=5)
