"""Ways to a server: each is a context manager that gives the two streams through which the SDK speaks."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from types import TracebackType
from typing import Protocol, Self, TypeAlias, TypeVar

import anyio
from mcp.shared.message import SessionMessage

_Item_co = TypeVar("_Item_co", covariant=True)
_Item_contra = TypeVar("_Item_contra", contravariant=True)

MAX_MESSAGE_BYTES = 64 * 2**20
"""The largest message that is taken from a server over stdio."""
MAX_HTTP_MESSAGE_BYTES = 16 * 2**20
"""The largest over HTTP, where the SDK needs five times its size to read one."""

ANSWER_LOST = -32010
"""The JSON-RPC error code for an answer that never came whole: the call may have been carried out."""
TOO_LARGE = -32011
"""The code for an answer that is larger than the limit: the call was carried out."""

_NOTES = 100
_STDERR_BYTES = 8192


class ReadStream(Protocol[_Item_co]):
    """What the SDK reads from. A subclass adds `receive`, which raises `anyio.EndOfStream` at the end."""

    @abstractmethod
    async def receive(self) -> _Item_co: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    def __aiter__(self) -> ReadStream[_Item_co]:
        return self

    async def __anext__(self) -> _Item_co:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        await self.aclose()
        return None


class WriteStream(Protocol[_Item_contra]):
    """What the SDK writes to. `send` raises `anyio.BrokenResourceError` when nobody reads any more."""

    @abstractmethod
    async def send(self, item: _Item_contra, /) -> None: ...

    @abstractmethod
    async def aclose(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> bool | None:
        await self.aclose()
        return None


TransportStreams: TypeAlias = tuple[ReadStream[SessionMessage | Exception], WriteStream[SessionMessage]]
"""The SDK's own alias has no public name; this one has the same shape."""


class Wire:
    """Facts about one connection. The transport and the guard write them, the connection reads them."""

    def __init__(self) -> None:
        self.pid: int | None = None
        """The process of a stdio server."""
        self.exit_status: int | None = None
        """How that process ended: its status, or minus the number of the signal."""
        self.noise = 0
        """Lines on the server's stdout that were no JSON-RPC."""
        self.notes: list[str] = []
        """What was repaired or left out, a sentence each: the newest hundred, none of them twice."""
        self.lost = asyncio.Event()
        """Set when the transport knows that the connection is gone."""
        self.http_status: int | None = None
        """The status of the newest HTTP answer that was an error."""
        self._stderr = bytearray()

    def note(self, sentence: str) -> None:
        """Keeps a sentence for the operator."""
        if sentence not in self.notes:
            self.notes.append(sentence)
            del self.notes[:-_NOTES]

    def add_stderr(self, data: bytes) -> None:
        """Takes more of what the server wrote on stderr; only the end of it is kept."""
        self._stderr += data
        if len(self._stderr) > 2 * _STDERR_BYTES:
            del self._stderr[:-_STDERR_BYTES]

    def stderr_tail(self) -> str:
        """The last 8 kB of stderr. What is no UTF-8 is replaced."""
        return self._stderr[-_STDERR_BYTES:].decode("utf-8", "replace")
