"""Runs the commands for their tests: in this process, as a program, at a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from click.testing import CliRunner, Result

from mead.cli import app
from mead.sessions.sync import BackgroundLoop
from mead.testing import Answer, FakeServer, sse
from mead.testing.server import Answering

PATIENCE_S = 30.0
ECHO = '[router.slots.local]\nprovider = "echo"\n'
USAGE = {"prompt_tokens": 7, "completion_tokens": 2}
# A new session has no terminal. The first one that is opened in it becomes its own, and Ctrl-C arrives.
_AT_TERMINAL = (
    "import os, runpy; os.close(os.open(os.ttyname(0), os.O_RDWR)); "
    "runpy.run_module('mead', run_name='__main__', alter_sys=True)"
)


def run(*arguments: str, text: str | bytes | None = None) -> Result:
    """Runs a command in this process."""
    return CliRunner().invoke(app, arguments, input=text, prog_name="mead")


def run_json(*arguments: str, text: str | bytes | None = None) -> Any:
    """The one JSON object that a command writes to standard output, and its exit status."""
    result = run(*arguments, "--json", text=text)
    assert result.stdout.endswith("\n")
    assert result.stdout.count("\n") == 1
    return msgspec.json.decode(result.stdout), result.exit_code


def command_line(*arguments: str) -> list[str]:
    """mead as a program."""
    return [sys.executable, "-m", "mead", *arguments]


def program(*arguments: str, data: bytes = b"", **keywords: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs mead as a program, with `data` on its standard input, and waits for its end."""
    if "stdin" not in keywords:
        keywords["input"] = data
    for stream in ("stdout", "stderr"):
        keywords.setdefault(stream, subprocess.PIPE)
    return subprocess.run(command_line(*arguments), timeout=PATIENCE_S, **keywords)


class Servers:
    """Servers on a thread of their own, so that the tests here can block."""

    def __init__(self) -> None:
        self._background = BackgroundLoop()
        self._running: list[FakeServer] = []

    def start(self, *answers: Answering, routes: Mapping[str, Answer] | None = None) -> FakeServer:
        """Starts one; see `FakeServer`."""
        server = FakeServer(*answers, routes=routes)
        self._background.call(server.__aenter__())
        self._running.append(server)
        return server

    def wait_for(self, event: asyncio.Event) -> None:
        """Waits for one of a server's events."""
        self._background.call(asyncio.wait_for(event.wait(), PATIENCE_S))

    def close(self) -> None:
        """Ends them all."""
        for server in self._running:
            self._background.call(server.__aexit__(None, None, None))
        self._background.close()


class Terminal:
    """A program at a terminal. `shown` is all that it has written there."""

    def __init__(self, *arguments: str, stdout: int | None = None) -> None:
        self.shown = ""
        self._seen = 0
        self._ours, theirs = pty.openpty()
        settings = termios.tcgetattr(theirs)
        settings[1] &= ~termios.OPOST  # line ends come as the program writes them
        termios.tcsetattr(theirs, termios.TCSANOW, settings)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _AT_TERMINAL, *arguments],
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, text: str) -> None:
        """What the person types."""
        os.write(self._ours, text.encode())

    def wait_for(self, text: str) -> str:
        """Waits until the program has written `text`; gives what came before it since the last time."""
        start = self._seen
        if not self._shows(text, PATIENCE_S):
            raise AssertionError(f"{text!r} was not shown: {self.shown!r}")
        return self.shown[start : self._seen - len(text)]

    def press_until(self, key: str, text: str) -> None:
        """Presses a key, and again while nothing happens: where a key raises a signal, Python may see to it
        only at the next key."""
        for _ in range(int(PATIENCE_S)):
            self.type(key)
            if self._shows(text, 1.0):
                return
        raise AssertionError(f"{text!r} was not shown: {self.shown!r}")

    def wait(self) -> int:
        """Waits until the program has ended; gives its exit status."""
        while self._read(PATIENCE_S):
            pass
        return self._process.wait(PATIENCE_S)

    def close(self) -> None:
        """Ends the program, if it has not ended."""
        self._process.kill()
        self._process.wait()
        os.close(self._ours)

    def _shows(self, text: str, timeout_s: float) -> bool:
        until = time.monotonic() + timeout_s
        while (found := self.shown.find(text, self._seen)) < 0:
            if not self._read(until - time.monotonic()):
                return False
        self._seen = found + len(text)
        return True

    def _read(self, timeout_s: float) -> bool:
        """Reads what is there; false when nothing comes any more."""
        if not select.select([self._ours], [], [], max(0, timeout_s))[0]:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # how Linux says that nobody is at the other end
            return False
        self.shown += data.decode(errors="replace")
        return bool(data)


def local_slot(server: FakeServer, **keys: object) -> str:
    """A local slot for a server that speaks OpenAI's format."""
    return _slot("local", server, keys)


def cloud_slot(server: FakeServer, **keys: object) -> str:
    """The same as the cloud slot."""
    return _slot("cloud", server, keys)


def _slot(route: str, server: FakeServer, keys: Mapping[str, object]) -> str:
    set_keys = {"provider": "openai", "model": "small", "base_url": f"{server.url}/v1", **keys}
    lines = [f"{key} = {msgspec.json.encode(value).decode()}" for key, value in set_keys.items()]
    return "\n".join([f"[router.slots.{route}]", *lines, ""])


def said(text: str, *, finish_reason: str = "stop") -> Answer:
    """An answer in OpenAI's format, not streamed."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    return Answer(body=msgspec.json.encode({"choices": [choice], "usage": USAGE}))


def streamed(*fragments: str) -> Answer:
    """The same, streamed."""
    return Answer(
        body=sse(
            *[chunk(fragment) for fragment in fragments],
            {"choices": [{"delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": USAGE},
            end="[DONE]",
        )
    )


def streamed_until(*fragments: str, end: Any) -> Answer:
    """A stream that never ends: after the fragments it hangs, or is cut."""
    return Answer(body=sse(*[chunk(fragment) for fragment in fragments]), end=end)


def chunk(text: str) -> object:
    """One piece of a stream."""
    return {"choices": [{"delta": {"content": text}}]}


def questions(server: FakeServer) -> list[object]:
    """The newest message of each request that reached the server."""
    return [request.json()["messages"][-1]["content"] for request in server.requests]
