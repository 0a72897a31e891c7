"""A server that is a child process, spoken to over its stdin and stdout, a JSON-RPC message a line.

The SDK's own transport copies a long line again with each chunk, takes lines of any length, dies of invalid
UTF-8 and opens a cancel scope that must be left by the task that entered it. Here nothing runs in a task:
the event loop's callbacks fill a queue, and the SDK empties it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import cast

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError

from mead.mcp.transports import (
    ANSWER_LOST,
    MAX_MESSAGE_BYTES,
    TOO_LARGE,
    ReadStream,
    TransportStreams,
    Wire,
    WriteStream,
)
from mead.mcp.transports._messages import Lines, Skipped, answered_id, decode

_log = logging.getLogger("mead.mcp")

_GRACE_S = 2.0
"""How long the server may take to leave once its stdin is closed, and again after SIGTERM."""
_KILL_S = 1.2
_LAST_WORDS_S = 0.2
"""How long after the end of stdout the exit status and the rest of stderr are waited for."""
_QUEUED_BYTES = 2**20


@asynccontextmanager
async def stdio_transport(
    command: str,
    args: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    wire: Wire,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> AsyncIterator[TransportStreams]:
    """Starts `command` and speaks to it. When the block is left the process and all its children are gone,
    after at most 6 s, and whether or not the task is cancelled meanwhile.

    The environment is PATH, HOME and the like, and `env` over it; nothing else of ours is handed on.
    Raises an `OSError` for a command that cannot be started.
    """
    server = _Server(wire, max_message_bytes)
    await server.start(command, args, get_default_environment() | dict(env), cwd)
    try:
        yield server.reading, server.writing
    finally:
        await _to_the_end(server.stop())


class _Server(asyncio.SubprocessProtocol):
    """The process. Its callbacks come from the event loop, in the order in which things happened."""

    def __init__(self, wire: Wire, limit: int) -> None:
        self.wire = wire
        self.limit = limit
        self.reading = _Reading(self)
        self.writing = _Writing(self)
        self._lines = Lines(limit)
        self._open = {0, 1, 2}
        self._exited = asyncio.Event()
        self._closed = asyncio.Event()
        self._last_words: asyncio.TimerHandle | None = None

    async def start(self, command: str, args: Sequence[str], env: Mapping[str, str], cwd: str | None) -> None:
        pipe = asyncio.subprocess.PIPE
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                command,
                *args,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        except OSError as error:
            raise type(error)(_cannot_start(command, cwd, error)) from error

    # What the process does

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._stdin = cast("asyncio.WriteTransport", self._transport.get_pipe_transport(0))
        self._stdout = cast("asyncio.ReadTransport", self._transport.get_pipe_transport(1))
        self.wire.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self.wire.add_stderr(data)
        elif not self.reading.closed:
            for line in self._lines.feed(data):
                self.reading.put(line)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open.discard(fd)
        self._ending()

    def process_exited(self) -> None:
        self.wire.exit_status = self._transport.get_returncode()
        # At once, while the group's number cannot belong to anybody else: the children it left behind.
        self._signal(signal.SIGKILL)
        self._exited.set()
        self._ending()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    def _ending(self) -> None:
        """Ends the reading once all is known, or soon after the first sign of it."""
        if self._exited.is_set() and not self._open & {1, 2}:
            self.drop()
        elif self._last_words is None and (self._exited.is_set() or not {0, 1} <= self._open):
            self._last_words = asyncio.get_running_loop().call_later(_LAST_WORDS_S, self.drop)

    # What is done to it

    def drop(self) -> None:
        """Gives the connection up: what was received is still read, and nothing more."""
        self.reading.end()

    def pause(self, paused: bool) -> None:
        if not self._stdout.is_closing():
            (self._stdout.pause_reading if paused else self._stdout.resume_reading)()

    def write(self, data: bytes) -> None:
        """Hands a message over at once. Raises `BrokenResourceError` if the server takes no more."""
        if self._stdin.is_closing() or self.reading.ended:
            raise anyio.BrokenResourceError
        if self._stdin.get_write_buffer_size() > self.limit:
            self.wire.note("The server does not read what it is sent; the connection was dropped.")
            self.drop()
            raise anyio.BrokenResourceError
        self._stdin.write(data)

    async def stop(self) -> None:
        self.reading.close()
        self._stdin.close()
        for number, wait_s in ((None, _GRACE_S), (signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _KILL_S)):
            if number is not None:
                self._signal(number)
            if await _within(wait_s, self._exited):
                break
        else:
            _log.warning("the MCP server with process %s cannot be ended", self.wire.pid)
        if self._last_words is not None:
            self._last_words.cancel()
        # A descendant that left the group may hold the pipes open; they are closed on our side then.
        await _within(_LAST_WORDS_S, self._closed)
        self._transport.close()
        await _within(_LAST_WORDS_S, self._closed)
        await self._group_gone()

    async def _group_gone(self) -> None:
        """Waits until the children that were killed are dead, which takes the kernel a moment."""
        with contextlib.suppress(ProcessLookupError, PermissionError, TimeoutError):
            # Bounded: where nobody reaps orphans, the group has its dead members for ever.
            async with asyncio.timeout(_LAST_WORDS_S):
                while True:
                    os.killpg(self._transport.get_pid(), 0)
                    await asyncio.sleep(0.002)

    def _signal(self, number: signal.Signals) -> None:
        # To the group: `Process.kill` would not reach the children, and may reap the process itself.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._transport.get_pid(), number)


class _Reading(ReadStream["SessionMessage | Exception"]):
    """The queue of lines. They are parsed when the SDK asks for them."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._lines: deque[bytes | Skipped] = deque()
        self._bytes = 0
        self._paused = False
        self._waiter: asyncio.Future[None] | None = None
        self.ended = False
        self.closed = False

    def put(self, line: bytes | Skipped) -> None:
        if self.ended:
            return
        self._lines.append(line)
        self._bytes += len(line) if isinstance(line, bytes) else 0
        if self._bytes > _QUEUED_BYTES and not self._paused:
            self._pause(True)
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._wake()

    def close(self) -> None:
        """Drops what is still queued and lets the server write on into nothing, so that it can leave."""
        self.ended = self.closed = True
        self._lines.clear()
        self._pause(False)
        self._wake()

    async def aclose(self) -> None:
        self.close()

    async def receive(self) -> SessionMessage:
        while True:
            # The loop gets a turn before each message, as from any other stream.
            await asyncio.sleep(0)
            while self._lines:
                message = self._message(self._next())
                if message is not None:
                    return message
            if self.closed:
                raise anyio.ClosedResourceError
            if self.ended:
                self._server.wire.lost.set()
                raise anyio.EndOfStream
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _next(self) -> bytes | Skipped:
        line = self._lines.popleft()
        if isinstance(line, bytes):
            self._bytes -= len(line)
        if self._paused and not self._lines:
            self._pause(False)
        return line

    def _message(self, line: bytes | Skipped) -> SessionMessage | None:
        wire, limit = self._server.wire, self._server.limit
        if isinstance(line, Skipped):
            if line.answers is not None:
                return _refusal(line.answers, TOO_LARGE, f"the result is larger than {limit:,} bytes")
            if line.harmless:
                wire.note(f"A message that is larger than {limit:,} bytes was left out.")
                return None
            wire.note(f"The server sent a line of more than {limit:,} bytes; the connection was dropped.")
            self._lines.clear()
            self._server.drop()
            return None
        try:
            return SessionMessage(decode(line))
        except ValueError:
            asked = answered_id(line[:512], line[-512:])
            if asked is not None:
                return _refusal(asked, ANSWER_LOST, "the server's answer is no valid JSON-RPC message")
        wire.noise += 1
        if wire.noise == 1:
            _log.info("the MCP server with process %s writes other things than JSON-RPC to stdout", wire.pid)
        return None

    def _pause(self, paused: bool) -> None:
        self._paused = paused
        self._server.pause(paused)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Writing(WriteStream[SessionMessage]):
    """Sends without waiting, so that a message is either handed over whole or not at all."""

    def __init__(self, server: _Server) -> None:
        self._server = server
        self._closed = False

    async def send(self, item: SessionMessage, /) -> None:
        if self._closed:
            raise anyio.ClosedResourceError
        self._server.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")

    async def aclose(self) -> None:
        self._closed = True


def _cannot_start(command: str, cwd: str | None, error: OSError) -> str:
    if cwd is not None and error.filename == cwd:
        return f"the server's folder {cwd!r} cannot be entered: {error.strerror}"
    why = "there is no such command" if error.errno == errno.ENOENT else error.strerror
    return f"the server's command {command!r} cannot be started: {why}"


def _refusal(asked: int | str, code: int, why: str) -> SessionMessage:
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=asked, error=ErrorData(code=code, message=why)))


async def _within(limit_s: float, event: asyncio.Event) -> bool:
    """Whether the event came in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            await event.wait()
    return event.is_set()


async def _to_the_end(work: Coroutine[object, object, None]) -> None:
    """Does `work` to its end even if the task is cancelled meanwhile; the cancellation follows then."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    # The scope holds off anyio's cancellations, which would come again and again.
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
