"""A server on 127.0.0.1 that answers as it is told, also badly: it refuses, stalls, cuts answers off.

    async with FakeServer(Answer(body=b'{"ok":true}')) as server:
        client = HttpClient(server.url, slot="local")

Each request takes the next answer, and the last one is given again and again; `server.requests` keeps what
came in. It is no Ollama server: unless a route answers it, the question `/api/show`, which every local slot
asks, gets a 404 and is kept in `server.questions`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self, TypeAlias

import msgspec
from msgspec import Struct


class Answer(Struct, frozen=True, kw_only=True):
    """One answer of the server.

    `body` is sent whole, or piece by piece where it is a list. `end` says what follows: `whole` ends the
    answer as HTTP does; `cut` closes the connection in the middle of it; `hang` sends nothing more and waits
    for the client to leave. With `chunked` false the answer has a `content-length`, or, when it is cut or
    hangs, one that is not reached.
    """

    status: int = 200
    body: bytes | Sequence[bytes] = b""
    headers: Mapping[str, str] = MappingProxyType({"content-type": "application/json"})
    end: Literal["whole", "cut", "hang"] = "whole"
    chunked: bool = True


class Received(Struct, frozen=True, kw_only=True):
    """One request as it came in. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body, decoded."""
        return msgspec.json.decode(self.body)


_SHOW = "/api/show"
Answering: TypeAlias = "Answer | Callable[[Received], Answer]"


def sse(*events: object, end: str = "") -> bytes:
    """Server-sent events: each object as JSON, each text as it is, then `end` as an event of its own."""
    texts = [event if isinstance(event, str) else msgspec.json.encode(event).decode() for event in events]
    return "".join([f"data: {text}\n\n" for text in [*texts, *([end] if end else [])]]).encode()


def ndjson(*lines: object) -> bytes:
    """Lines of JSON."""
    return b"".join([msgspec.json.encode(line) + b"\n" for line in lines])


class FakeServer:
    """An HTTP server for tests. Use as `async with`.

    Each of `answers` is an `Answer` or a function that makes one from the request; `routes` answers the
    requests whose path it names, before any of them is used.
    """

    def __init__(self, *answers: Answering, routes: Mapping[str, Answering] | None = None) -> None:
        self._answers = list(answers) or [Answer()]
        self._routes = dict(routes or {})
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests: list[Received] = []
        self.questions: list[Received] = []
        self.client_left = asyncio.Event()
        """Set when a client closes its connection in the middle of an answer."""
        self.answering = asyncio.Event()
        """Set once an answer's first bytes, all that it has before it hangs, are on their way."""

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        """Its address, for a `base_url`."""
        return f"http://127.0.0.1:{self.port}"

    def requests_to(self, path: str) -> list[Received]:
        """The requests for one path."""
        return [request for request in self.requests if request.path == path]

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _read_request(reader)) is not None:
                is_question = request.path.endswith(_SHOW) and request.path not in self._routes
                (self.questions if is_question else self.requests).append(request)
                answer = self._next_answer(request)
                if not await self._answer(answer, reader, writer, is_question=is_question):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            self.client_left.set()
        finally:
            writer.close()
            with contextlib.suppress(Exception):
                await writer.wait_closed()

    def _next_answer(self, request: Received) -> Answer:
        chosen = self._routes.get(request.path)
        if chosen is None and request.path.endswith(_SHOW):
            return Answer(status=404)
        if chosen is None:
            chosen = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return chosen if isinstance(chosen, Answer) else chosen(request)

    async def _answer(
        self,
        answer: Answer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_question: bool,
    ) -> bool:
        """Sends the answer; whether the connection can serve another request."""
        pieces = [answer.body] if isinstance(answer.body, bytes) else list(answer.body)
        writer.write(_head(answer, sum(map(len, pieces))))
        for piece in pieces:
            if answer.chunked and piece:
                piece = b"%x\r\n%s\r\n" % (len(piece), piece)
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)  # lets the client read the pieces one by one
        if not is_question:
            self.answering.set()
        if answer.end == "whole":
            if answer.chunked:
                writer.write(b"0\r\n\r\n")
                await writer.drain()
            return True
        if answer.end == "hang" and not await reader.read(1):
            self.client_left.set()
        return False


def _head(answer: Answer, size: int) -> bytes:
    headers = dict(answer.headers)
    if answer.chunked:
        headers["transfer-encoding"] = "chunked"
    else:
        headers["content-length"] = str(size if answer.end == "whole" else size + 1)
    lines = [f"HTTP/1.1 {answer.status} Status", *[f"{name}: {value}" for name, value in headers.items()]]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def _read_request(reader: asyncio.StreamReader) -> Received | None:
    """The next request, `None` when the client has left."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {}
    for line in filter(None, lines):
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    if headers.get("transfer-encoding") == "chunked":
        body = await _read_chunked(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Received(method=method, path=path, headers=headers, body=body)


async def _read_chunked(reader: asyncio.StreamReader) -> bytes:
    pieces = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        pieces.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(pieces)
