"""A stdio MCP server with one fault, by hand and with the standard library alone, so that it starts fast.

Run it as `python -m mead.testing.mcp MODE [ARGUMENT]`; `--help` lists the modes.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

EFFECTS_FILE = "FAULTY_SERVER_FILE"
"""The environment variable that names a file: each tool call appends a line to it."""

VERSION = "2025-11-25"

MODES = {
    "plain": "no fault; tools echo, pid and environment",
    "hang_init": "never answers the handshake",
    "die_init": "exits at the handshake",
    "exit_at_start": "writes 'missing API key' on stderr and exits with 3",
    "hang_call": "the tool hang never answers; a cancel is noted on stderr as CANCELLED",
    "die_call": "the tool die exits without an answer",
    "slow_call": "the tool slow answers after ARGUMENT seconds (0.2), other calls at once",
    "noise": "writes a banner on stdout before each message",
    "badutf8": "the tool bad answers with bytes that are no UTF-8",
    "half_surrogate": "the tool half answers with half an emoji, as a server that cuts texts does",
    "nan": "the tool nan answers with NaN, which is no JSON",
    "broken_answer": "the tool broken answers with a line that is no JSON but shows its id",
    "stderrflood": "writes 2 MB on stderr before the tool flood answers",
    "big": "the tool big answers with ARGUMENT bytes (50,000,000)",
    "big_id_last": "the same, with the id at the end of the message",
    "endless": "the tool endless writes a line that never ends",
    "endless_noise": "the same, with a line that is no JSON",
    "byte_by_byte": "writes each answer byte by byte",
    "two_in_one": "the tool pair waits for a second call and answers both in one write",
    "lines": "the tool lines answers with U+2028, U+0085 and other things that look like line ends",
    "badstruct": "the tool bad declares an output schema and does not keep to it",
    "noschema": "one of three tools has no input schema",
    "nullschema": "one of three tools has null for its input schema",
    "badtools": "tools with schemas, names and descriptions of the wrong kinds, and one good one",
    "schemas": "schemas with $ref and $defs, with anyOf at the root, with null types",
    "names": "names with dots, slashes, spaces, an umlaut, 80 characters, and an empty one",
    "dup_names": "two tools of one name",
    "page": "three pages with the tools p0, p1 and p2",
    "loopcursor": "a next cursor that never changes",
    "changing": "the tool change replaces the tool before by after and says so",
    "described": "the tool thing has ARGUMENT for its description",
    "tools500": "five hundred tools",
    "unknown_block": "the tool odd answers with a text, a block of an unknown type, and a text",
    "malformed_block": "the tool odd answers with known blocks that lack fields",
    "missing_content": "the tool empty answers without content",
    "image_only": "the tool image answers with one image of ARGUMENT bytes (1,000)",
    "embedded_resource": "the tool read answers with a text and a resource",
    "long_text": "the tool long answers with 500 kB of text and a block of an unknown type",
    "is_error": "the tool fail answers with isError",
    "rpc_error": "the tool fail answers with a JSON-RPC error",
    "ignore_eof": "stays when its stdin is closed, until SIGTERM",
    "ignore_term": "stays when its stdin is closed and ignores SIGTERM",
    "grandchild": "starts a child of its own that outlives it",
    "deaf": "stops reading its stdin after the handshake",
    "close_stdout": "the tool close closes stdout and stays",
    "sampling": "the tool ask asks the client for sampling and answers with what came back",
    "effect_then_die": f"the tool effect appends a line to ${EFFECTS_FILE}, then exits",
    "count": f"no fault; each call appends a line to ${EFFECTS_FILE}, as in every mode",
    "annotations": "tools with every kind of hint, one of them a lie",
}

Message = dict[str, Any]


class Server:
    """One conversation over stdin and stdout."""

    def __init__(self, mode: str, argument: str | None) -> None:
        self.mode = mode
        self.argument = argument
        self.changed = False
        self.held: list[Message] = []
        self.asked: Message | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        if self.mode == "exit_at_start":
            sys.stderr.write("missing API key\n")
            sys.exit(3)
        if self.mode == "ignore_term":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.mode == "grandchild":
            child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.DEVNULL)
            sys.stderr.write(f"grandchild {child.pid}\n")
            sys.stderr.flush()
        for line in sys.stdin.buffer:
            self.receive(json.loads(line))
        if self.mode in ("ignore_eof", "ignore_term"):
            _stay()

    def receive(self, message: Message) -> None:
        method = message.get("method")
        if method is None:
            if self.asked is not None:
                outcome = message.get("error") or message.get("result")
                self.answer(self.asked, _text("sampling: " + json.dumps(outcome)))
        elif "id" not in message:
            if method == "notifications/cancelled":
                sys.stderr.write(f"CANCELLED {message['params']['requestId']}\n")
                sys.stderr.flush()
        elif method in ("initialize", "server/discover") and self.mode == "hang_init":
            return
        elif method in ("initialize", "server/discover") and self.mode == "die_init":
            sys.exit(1)
        elif method == "initialize":
            self.answer(message, _welcome(message["params"]["protocolVersion"]))
            if self.mode == "deaf":
                _stay()
        elif method == "tools/list":
            self.answer(message, self.listing((message.get("params") or {}).get("cursor")))
        elif method == "tools/call":
            _note_effect(message["params"]["name"])
            self.call(message, message["params"]["name"], message["params"].get("arguments") or {})
        elif method == "ping":
            self.answer(message, {})
        else:
            self.refuse(message, -32601, "Method not found")

    # Tools

    def listing(self, cursor: str | None) -> Message:
        if self.mode == "page":
            index = int(cursor or 0)
            more = {"nextCursor": str(index + 1)} if index < 2 else {}
            return {"tools": [_tool(f"p{index}")], **more}
        if self.mode == "loopcursor":
            return {"tools": [_tool("only")], "nextCursor": "again"}
        if self.mode == "changing":
            return {"tools": [_tool("change"), _tool("after" if self.changed else "before")]}
        if self.mode == "described":
            return {"tools": [_tool("thing", description=self.argument)]}
        return {"tools": TOOLS.get(self.mode, [*PLAIN_TOOLS, *map(_tool, OWN_TOOLS.get(self.mode, ()))])}

    def call(self, message: Message, name: str, arguments: Message) -> None:
        act: Callable[[Message], None] | None = getattr(self, f"on_{self.mode}", None)
        if name == "echo":
            self.answer(message, _text(str(arguments.get("text", ""))))
        elif name == "pid":
            self.answer(message, _text(str(os.getpid())))
        elif name == "environment":
            self.answer(message, _text(json.dumps(dict(os.environ))))
        elif name in RESULTS.get(self.mode, {}):
            self.answer(message, RESULTS[self.mode][name])
        elif act is not None:
            act(message)
        else:
            self.answer(message, _text(f"{name} was called"))

    def on_hang_call(self, message: Message) -> None:
        pass

    def on_die_call(self, message: Message) -> None:
        os._exit(1)

    on_effect_then_die = on_die_call

    def on_slow_call(self, message: Message) -> None:
        wait_s = float(self.argument or 0.2)
        timer = threading.Timer(wait_s, self.answer, (message, _text("slow was called")))
        timer.daemon = True
        timer.start()

    def on_badutf8(self, message: Message) -> None:
        self.write(_encode(_reply(message, _text("caf*"))).replace(b"*", b"\xe9"))

    def on_half_surrogate(self, message: Message) -> None:
        self.write(_encode(_reply(message, _text("cut *"))).replace(b"*", rb"\ud83d"))

    def on_nan(self, message: Message) -> None:
        self.answer(message, _text("not a number") | {"structuredContent": {"value": float("nan")}})

    def on_broken_answer(self, message: Message) -> None:
        self.write(b'{"jsonrpc": "2.0", "id": %d, "result": {"content": oops}}' % message["id"])

    def on_stderrflood(self, message: Message) -> None:
        for _ in range(2000):
            sys.stderr.write("x" * 999 + "\n")
        sys.stderr.write("end of the flood\n")
        sys.stderr.flush()
        self.answer(message, _text("flood was called"))

    def on_big(self, message: Message) -> None:
        self.answer(message, _text("x" * int(self.argument or 50_000_000)))

    def on_big_id_last(self, message: Message) -> None:
        result = _text("x" * int(self.argument or 50_000_000))
        self.write(_encode({"result": result, "jsonrpc": "2.0", "id": message["id"]}))

    def on_endless(self, message: Message) -> None:
        _endless(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % message["id"])

    def on_endless_noise(self, message: Message) -> None:
        _endless(b"")

    def on_two_in_one(self, message: Message) -> None:
        self.held.append(message)
        if len(self.held) == 2:
            self.write(b"\n".join([_encode(_reply(held, _text("pair was called"))) for held in self.held]))
            self.held.clear()

    def on_changing(self, message: Message) -> None:
        self.changed = True
        self.answer(message, _text("changed"))
        self.write(_encode({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))

    def on_image_only(self, message: Message) -> None:
        data = base64.b64encode(b"\x89PNG" * (int(self.argument or 1000) // 4)).decode()
        self.answer(message, {"content": [{"type": "image", "mimeType": "image/png", "data": data}]})

    def on_rpc_error(self, message: Message) -> None:
        self.refuse(message, -32050, "the disk is full")

    def on_close_stdout(self, message: Message) -> None:
        os.close(1)
        _stay()

    def on_sampling(self, message: Message) -> None:
        self.asked = message
        content = {"type": "text", "text": "What next?"}
        params = {"messages": [{"role": "user", "content": content}], "maxTokens": 10}
        self.write(
            _encode({"jsonrpc": "2.0", "id": 9001, "method": "sampling/createMessage", "params": params})
        )

    # Writing

    def answer(self, message: Message, result: Message) -> None:
        self.write(_encode(_reply(message, result)))

    def refuse(self, message: Message, code: int, text: str) -> None:
        error = {"code": code, "message": text}
        self.write(_encode({"jsonrpc": "2.0", "id": message["id"], "error": error}))

    def write(self, line: bytes) -> None:
        line += b"\n"
        if self.mode == "noise":
            line = b"Loading model... done\n\x1b[32mready\x1b[0m {not json}\n" + line
        pieces = [bytes([byte]) for byte in line] if self.mode == "byte_by_byte" else [line]
        with self._lock:
            for piece in pieces:
                _write_all(piece)


def _write_all(data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(1, rest) :]


def _endless(start: bytes) -> NoReturn:
    _write_all(start)
    chunk = b"x" * 65536
    while True:
        _write_all(chunk)


def _stay() -> NoReturn:
    while True:
        time.sleep(1000)


def _note_effect(name: str) -> None:
    if path := os.environ.get(EFFECTS_FILE):
        with open(path, "a") as file:
            file.write(f"{name}\n")


def _encode(message: Message) -> bytes:
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def _reply(message: Message, result: Message) -> Message:
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


def _welcome(version: str) -> Message:
    return {
        "protocolVersion": version if version <= VERSION else VERSION,
        "capabilities": {"tools": {"listChanged": True}},
        "serverInfo": {"name": "faulty", "version": "1"},
    }


def _text(text: str) -> Message:
    return {"content": [{"type": "text", "text": text}]}


def _tool(name: str, **fields: object) -> Message:
    return {
        "name": name,
        "description": f"The tool {name}.",
        "inputSchema": {"type": "object", "properties": {}},
        **fields,
    }


def _hints(name: str, **hints: bool) -> Message:
    return _tool(name, annotations={f"{hint}Hint": value for hint, value in hints.items()})


_ECHO_SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
_NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

PLAIN_TOOLS = [_tool("echo", inputSchema=_ECHO_SCHEMA), _tool("pid"), _tool("environment")]

OWN_TOOLS = {
    "hang_call": ["hang"],
    "die_call": ["die"],
    "slow_call": ["slow"],
    "badutf8": ["bad"],
    "half_surrogate": ["half"],
    "nan": ["nan"],
    "broken_answer": ["broken"],
    "stderrflood": ["flood"],
    "big": ["big"],
    "big_id_last": ["big"],
    "endless": ["endless"],
    "endless_noise": ["endless"],
    "two_in_one": ["pair"],
    "lines": ["lines"],
    "unknown_block": ["odd"],
    "malformed_block": ["odd"],
    "missing_content": ["empty", "structured", "old"],
    "image_only": ["image"],
    "embedded_resource": ["read"],
    "long_text": ["long"],
    "is_error": ["fail"],
    "rpc_error": ["fail"],
    "close_stdout": ["close"],
    "sampling": ["ask"],
    "effect_then_die": ["effect"],
}
"""What a mode offers beside the plain tools."""

TOOLS: dict[str, list[Any]] = {
    "badstruct": [
        _tool("bad", outputSchema=_NUMBER),
        _tool("invalid", outputSchema={"type": "object", "properties": {"n": {"type": "nonsense"}}}),
    ],
    "noschema": [_tool("first"), {"name": "bare", "description": "No schema."}, _tool("last")],
    "nullschema": [_tool("first"), _tool("bare", inputSchema=None), _tool("last")],
    "badtools": [
        _tool("good"),
        "not a tool",
        {"description": "No name."},
        _tool("number", description=5),
        _tool("list_schema", inputSchema=[]),
        _tool("text_schema", inputSchema={"type": "string"}),
        _tool("list_properties", inputSchema={"type": "object", "properties": []}),
        _tool("required_flag", inputSchema={"type": "object", "required": True}),
        _tool("bad_hints", annotations={"readOnlyHint": "perhaps"}),
        _tool("bad_icons", icons="none", title=["x"]),
    ],
    "schemas": [
        _tool(
            "ref",
            inputSchema={
                "type": "object",
                "properties": {"point": {"$ref": "#/$defs/point"}},
                "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}}},
            },
        ),
        _tool("any_of", inputSchema={"anyOf": [_NUMBER, _ECHO_SCHEMA]}),
        _tool("nullable", inputSchema={"type": ["object", "null"], "properties": {}}),
        _tool(
            "optional",
            inputSchema={
                "type": "object",
                "properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None}},
            },
        ),
    ],
    "names": [_tool(name) for name in ("a.b", "a/b", "x" * 80, "with space", "grün", "", "ok")],
    "dup_names": [_tool("twin", description="The first."), _tool("twin", description="The second.")],
    "tools500": [_tool(f"tool_{index}") for index in range(500)],
    "annotations": [
        _hints("read", readOnly=True, openWorld=False),
        _hints("write", readOnly=False, destructive=False, idempotent=True),
        _hints("destroy", readOnly=False, destructive=True),
        _hints("delete_all", readOnly=True),
        _tool("bare"),
    ],
}

RESULTS: dict[str, dict[str, Message]] = {
    "lines": {"lines": _text("a\u2028b\u0085c\u2029d\x0be\x0cf")},
    "badstruct": {
        "bad": {**_text("the answer"), "structuredContent": {"n": "no number"}},
        "invalid": {**_text("the answer"), "structuredContent": {"n": 1}},
    },
    "unknown_block": {
        "odd": {
            "content": [
                {"type": "text", "text": "before"},
                {"type": "hologram", "data": "A" * 5000, "angle": 3},
                {"type": "text", "text": "after"},
            ]
        }
    },
    "malformed_block": {
        "odd": {
            "content": [
                {"type": "text", "text": "kept"},
                {"type": "text", "text": "also kept", "annotations": "none"},
                {"type": "image", "data": "A" * 5000},
                {"type": "resource", "resource": {"text": "without an address"}},
                {"type": "text", "text": 5},
                "bare text",
                None,
            ],
            "isError": None,
            "_meta": [],
        }
    },
    "missing_content": {
        "empty": {},
        "structured": {"structuredContent": {"n": 1}},
        "old": {"toolResult": "the answer of old servers"},
    },
    "embedded_resource": {
        "read": {
            "content": [
                {"type": "text", "text": "successfully downloaded"},
                {
                    "type": "resource",
                    "resource": {"uri": "file:///readme.md", "mimeType": "text/markdown", "text": "# Title"},
                },
            ]
        }
    },
    "long_text": {
        "long": {"content": [{"type": "text", "text": "word " * 100_000}, {"type": "hologram", "data": "A"}]}
    },
    "is_error": {"fail": {**_text("there is no such city"), "isError": True}},
}


def main(arguments: list[str] | None = None) -> None:
    """Runs the server until its stdin ends."""
    width = max(map(len, MODES))
    parser = argparse.ArgumentParser(
        prog="python -m mead.testing.mcp",
        description="A stdio MCP server with one fault.",
        epilog="modes:\n" + "\n".join([f"  {mode:{width}}  {text}" for mode, text in MODES.items()]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("mode", choices=MODES, metavar="MODE")
    parser.add_argument("argument", nargs="?", metavar="ARGUMENT")
    chosen = parser.parse_args(arguments)
    Server(chosen.mode, chosen.argument).run()


if __name__ == "__main__":
    main()
