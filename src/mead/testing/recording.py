"""Servers that keep every byte that reaches them: they stand for the places that nothing private may reach.

cloud = Recorder("cloud")
async with RecordingServer(cloud, echo_all) as server:
    ...  # a provider with base_url=server.url
assert cloud.find([secret]) == []
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self, SupportsIndex

import msgspec

from mead.testing.canaries import Canary, find
from mead.testing.server import Answer, Answering, FakeServer, Received, ndjson, sse


class Leak(NamedTuple):
    """A canary that came out: `place` and `where` say where it was seen, `encoding` what it was hidden in."""

    canary: Canary
    place: str
    where: str
    encoding: str
    part: bool

    def __str__(self) -> str:
        half = "half of " if self.part else ""
        return f"{half}the {self.canary.name} reached {self.place} ({self.where}), {self.encoding}"


class Piece:
    """Some bytes that came in, which may still become more, and where they came in."""

    __slots__ = ("data", "where")

    def __init__(self, where: str, data: bytes) -> None:
        self.where = where
        self.data = bytearray(data)


class Recorder:
    """All that reached one place, in its order."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.pieces: list[Piece] = []

    def add(self, where: str, data: bytes | str) -> Piece:
        """Keeps what came in."""
        raw = data.encode(errors="replace") if isinstance(data, str) else data
        piece = Piece(where, raw)
        self.pieces.append(piece)
        return piece

    def find(self, canaries: Iterable[Canary], *, first: int = 0, last: int | None = None) -> list[Leak]:
        """Each of the canaries in each piece that has it; of the pieces from `first` to before `last`."""
        wanted = list(canaries)
        return [
            Leak(found.canary, self.place, piece.where, found.encoding, found.part)
            for piece in self.pieces[first:last]
            for found in find(bytes(piece.data), wanted)
        ]

    def holds(self, text: str, *, first: int = 0, last: int | None = None) -> bool:
        """Whether a text came in as it is."""
        wanted = text.encode(errors="replace")
        return any(wanted in piece.data for piece in self.pieces[first:last])


class RecordingServer(FakeServer):
    """A `FakeServer` whose every byte goes to `recorder` as it comes in, also what is no HTTP at all.

    `host` is an address of this machine; `port` 0 is any free one.
    """

    def __init__(
        self,
        recorder: Recorder,
        *answers: Answering,
        routes: Mapping[str, Answering] | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        super().__init__(*answers, routes=routes)
        self.recorder = recorder
        self._where = (host, port)

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._protocol, *self._where)
        return self

    def _protocol(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(_RecordingReader(self.recorder), self._accept)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await super()._serve(reader, writer)
        except (ValueError, asyncio.LimitOverrunError):
            writer.close()  # no HTTP: it is on record, and there is nothing to answer

    def _next_answer(self, request: Received) -> Answer:
        # The raw bytes hold the body as well, unless something was done to it on the way.
        if {"transfer-encoding", "content-encoding"} & set(request.headers):
            self.recorder.add(f"the body of {request.method} {request.path}", request.body)
        return super()._next_answer(request)


class _RecordingReader(asyncio.StreamReader):
    """Keeps what is fed to it, a piece for each write of the client's that begins like a request."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(limit=1024 * 1024)
        self._recorder = recorder
        self._piece: Piece | None = None

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        raw = bytes(data)
        first, _, rest = raw.partition(b"\r\n")
        if self._piece is None or (rest and first.endswith((b" HTTP/1.1", b" HTTP/1.0"))):
            request = first.decode("latin-1").rpartition(" ")[0][:80]
            where = f"request {len(self._recorder.pieces) + 1}: {request or 'no HTTP'}"
            self._piece = self._recorder.add(where, raw)
        else:
            self._piece.data += raw
        super().feed_data(raw)


def echo_all(request: Received) -> Answer:
    """Answers a chat request in OpenAI's or Ollama's format with every word that the model was shown, each
    once, also those in calls, results and tools. Any other request gets an empty object."""
    try:
        asked = request.json()
    except msgspec.DecodeError:
        asked = None
    if not isinstance(asked, dict) or not request.path.endswith(("/chat/completions", "/api/chat")):
        return Answer(body=b"{}", chunked=False)
    text = " ".join(dict.fromkeys(_words(asked)))
    as_stream = asked.get("stream") is True
    if request.path.endswith("/api/chat"):
        return _ollama(text)
    return _openai(text, as_stream=as_stream)


def _words(value: object) -> Iterable[str]:
    """The words of every text in a JSON value, in its order; a text that is JSON itself is looked into."""
    match value:
        case dict():
            for key, inner in value.items():
                yield str(key)
                yield from _words(inner)
        case list():
            for inner in value:
                yield from _words(inner)
        case str():
            yield from _words(_json(value)) if value.lstrip().startswith(("{", "[")) else value.split()


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return " " + text.lstrip("{[ ")


def _ollama(text: str) -> Answer:
    message = {"role": "assistant", "content": text}
    counts = {"prompt_eval_count": 1, "eval_count": 1}
    line = {"model": "echo", "message": message, "done": True, "done_reason": "stop", **counts}
    return Answer(body=ndjson(line), headers={"content-type": "application/x-ndjson"})


def _openai(text: str, *, as_stream: bool) -> Answer:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    message: dict[str, Any] = {"role": "assistant", "content": text}
    choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
    if as_stream:
        chunk = {"choices": [{**choice, "delta": message}], "usage": usage}
        return Answer(body=sse(chunk, end="[DONE]"), headers={"content-type": "text/event-stream"})
    return Answer(body=msgspec.json.encode({"choices": [{**choice, "message": message}], "usage": usage}))


_NO_NAMES: Mapping[str, Sequence[str]] = MappingProxyType({})


class RecordingDns(asyncio.DatagramProtocol):
    """A name server that keeps the names it is asked for, over UDP. Use as `async with`.

    `names` gives each name its IPv4 addresses: every question gets the next one, and the last one is given
    again and again; no answer may be kept. Other names do not exist. `host` and `port` are as above.
    """

    def __init__(
        self,
        recorder: Recorder,
        names: Mapping[str, Sequence[str]] = _NO_NAMES,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.recorder = recorder
        self.asked: list[str] = []
        self._names = {name.lower(): list(addresses) for name, addresses in names.items()}
        self._where = (host, port)
        self._transport: asyncio.DatagramTransport | None = None
        self._closed = asyncio.Event()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._transport is not None
        return int(self._transport.get_extra_info("sockname")[1])

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=self._where)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._transport is not None
        self._transport.close()
        await self._closed.wait()  # its port is free again

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed.set()

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        try:
            name, kind, end = _question(data)
        except (IndexError, struct.error):
            self.recorder.add("a datagram that is no question", data)
            return
        self.asked.append(name)
        # A text that was cut into labels is looked for without the dots too.
        self.recorder.add(f"a question for {name[:80]}", data + f" {name} {name.replace('.', '')}".encode())
        assert self._transport is not None
        self._transport.sendto(self._answer(data, name, kind, end), addr)

    def _answer(self, data: bytes, name: str, kind: int, end: int) -> bytes:
        """The answer to a question of RFC 1035, 4.1: its header and itself, and an address where there is
        one."""
        addresses = self._names.get(name.lower())
        found = b""
        if addresses and kind == 1:  # an IPv4 address is asked for
            address = addresses.pop(0) if len(addresses) > 1 else addresses[0]
            found = struct.pack("!HHHIH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(address)
        flags = 0x8180 if addresses else 0x8183
        return data[:2] + struct.pack("!HHHHH", flags, 1, 1 if found else 0, 0, 0) + data[12:end] + found


def _question(data: bytes) -> tuple[str, int, int]:
    """The name that a datagram asks for, the kind of record, and where the question ends."""
    labels, place = [], 12
    while length := data[place]:
        labels.append(data[place + 1 : place + 1 + length].decode("latin-1"))
        place += 1 + length
    (kind,) = struct.unpack_from("!H", data, place + 1)
    return ".".join(labels), kind, place + 5
