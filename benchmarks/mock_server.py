"""A model server that costs next to nothing: OpenAI chat completions, plain and streamed, from canned bytes.

    /l50-n200/v1/chat/completions    answers after 50 ms, a stream of it has 200 deltas (sent in one write)

Prints its port on standard output, and ends when its standard input does.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import ClassVar

_PATH = re.compile(rb"^POST /l(\d+)-n(\d+)/")
_TOOL = re.compile(rb'"name": ?"([a-z_]*add)"')
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def text_of(deltas: int) -> str:
    return "".join([f"tok{index % 1000:03d} " for index in range(deltas)])


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _plain(deltas: int) -> bytes:
    message = {"role": "assistant", "content": text_of(deltas)}
    body = _json(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "model": "mock",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 20, "completion_tokens": deltas},
        }
    )
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _tool_call() -> bytes:
    """The model asks for the first tool, whose name is `add` or ends with it."""
    function = {"name": "NAME", "arguments": '{"a": 2, "b": 3}'}
    call = {"id": "call_1", "type": "function", "function": function}
    choice = {
        "message": {"role": "assistant", "content": None, "tool_calls": [call]},
        "finish_reason": "tool_calls",
    }
    return _json({"choices": [choice], "usage": {"prompt_tokens": 20, "completion_tokens": 5}})


def _streamed(deltas: int) -> bytes:
    def event(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "mock", "choices": [choice]}
        return b"data: " + _json(chunk) + b"\n\n"

    pieces = [event({"role": "assistant", "content": ""})]
    pieces += [event({"content": f"tok{index % 1000:03d} "}) for index in range(deltas)]
    usage = {"choices": [], "usage": {"prompt_tokens": 20, "completion_tokens": deltas}}
    pieces.append(event({}, "stop") + b"data: " + _json(usage) + b"\n\ndata: [DONE]\n\n")
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join([b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces]) + b"0\r\n\r\n"


class _Connection(asyncio.Protocol):
    _canned: ClassVar[dict[tuple[int, bool], bytes]] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        length = _LENGTH.search(self._buffer, 0, head_end + 2)
        end = head_end + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) < end:
            return
        request, self._buffer = self._buffer[:end], self._buffer[end:]
        self._answer(request, head_end)

    def _answer(self, request: bytes, head_end: int) -> None:
        match = _PATH.match(request)
        if match is None:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            return
        delay_ms, deltas = int(match[1]), int(match[2])
        streamed = b'"stream":true' in request[head_end:].replace(b'"stream": true', b'"stream":true')
        if b'"tools":' in request and b'"role":"tool"' not in request.replace(b'": "', b'":"'):
            name = _TOOL.search(request)
            body = _tool_call().replace(b"NAME", name[1] if name else b"add")
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)
            return
        key = (deltas, streamed)
        if key not in self._canned:
            self._canned[key] = _streamed(deltas) if streamed else _plain(deltas)
        if delay_ms:
            asyncio.get_running_loop().call_later(delay_ms / 1000, self._transport.write, self._canned[key])
        else:
            self._transport.write(self._canned[key])


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    ended = loop.create_future()
    loop.add_reader(sys.stdin.fileno(), lambda: ended.done() or ended.set_result(None))
    await ended


if __name__ == "__main__":
    asyncio.run(_serve())
