"""Calls the native API as a program would, and a model that waits until it is told to go on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx

import mead
from mead.router import Slot, Slots
from mead.serve import native
from mead.serve.tokens import SCOPES, Scope, Tokens
from mead.storage import open_store
from mead.testing import ProviderRequest, ScriptedProvider

DOORS = (native.routes,)


def kept(local: object = None, cloud: object = None, **more: Any) -> mead.Runtime:
    """A runtime over these providers that keeps its sessions in memory."""
    slots = Slots(
        local=None if local is None else Slot(local),  # type: ignore[arg-type]  # any object with complete
        cloud=None if cloud is None else Slot(cloud),  # type: ignore[arg-type]  # as above
    )
    settings = more.pop("settings", mead.Settings())
    return mead.Runtime(settings, slots=slots, store=open_store("memory://"), **more)


def token(tokens: Tokens, *scopes: Scope, owner: str = "local", **more: Any) -> str:
    """A new token with these scopes, or with all."""
    return tokens.create("a test", owner=owner, scopes=scopes or SCOPES, **more)[1]


class Event:
    """An event of a stream."""

    def __init__(self, lines: list[str]) -> None:
        fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
        self.number = int(fields["id"])
        self.name = fields["event"]
        self.data: Any = json.loads(fields["data"])


class Api:
    """The native API at an address, with a token."""

    def __init__(self, address: str, token: str | None = None) -> None:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        # No connection is kept, so that nothing is left to be closed.
        limits = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(base_url=address, headers=headers, timeout=30, limits=limits)

    def call(self, method: str, path: str, body: object = None, **more: Any) -> httpx.Response:
        """An answer, whatever its status."""
        if body is not None:
            more["json"] = body
        return self.client.request(method, f"/api/{path}", **more)

    def get(self, path: str, **more: Any) -> Any:
        """The JSON of an answer that must have succeeded."""
        return self._good(self.call("GET", path, **more))

    def post(self, path: str, body: object = None, **more: Any) -> Any:
        """The same for a POST."""
        return self._good(self.call("POST", path, {} if body is None else body, **more))

    def fault(self, method: str, path: str, body: object = None, **more: Any) -> tuple[int, str, str | None]:
        """The status, tag and field of an answer that must tell of an error."""
        response = self.call(method, path, body, **more)
        error = response.json()["error"]
        return response.status_code, error["tag"], error.get("param")

    def start(self, **body: Any) -> str:
        """Starts a session."""
        return str(self.post("sessions", body)["session_id"])

    def turn(self, session_id: str, text: str = "hello", **body: Any) -> Any:
        """A turn's answer."""
        return self.post(f"sessions/{session_id}/turns", {"text": text, **body})

    @contextlib.contextmanager
    def stream(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> Iterator[Iterator[Event]]:
        """The events of a stream as they come. Leaving it closes the connection."""
        sent = {"accept": "text/event-stream", **{name.replace("_", "-"): v for name, v in headers.items()}}
        with self.client.stream(method, f"/api/{path}", json=body, headers=sent) as response:
            assert response.status_code == 200, response.read()
            yield _events(response.iter_lines())

    def _good(self, response: httpx.Response) -> Any:
        assert response.status_code < 300, response.text
        return response.json() if response.content else None


def _events(lines: Iterator[str]) -> Iterator[Event]:
    found: list[str] = []
    for line in lines:
        if line:
            found.append(line)
        elif found:
            if not all(each.startswith(":") for each in found):
                yield Event(found)
            found = []


class Gate:
    """A step of a model that waits until `open` is called, from any thread. `cancelled` says that it was
    broken off."""

    def __init__(self, answer: str = "done") -> None:
        self.begun = threading.Event()
        self.cancelled = threading.Event()
        self._answer = answer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opened: asyncio.Event | None = None

    async def __call__(self, request: ProviderRequest) -> str:
        self._loop, self._opened = asyncio.get_running_loop(), asyncio.Event()
        self.begun.set()
        try:
            await self._opened.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self._answer

    def open(self) -> None:
        """Lets the model answer."""
        assert self.begun.wait(20)
        assert self._loop is not None
        assert self._opened is not None
        self._loop.call_soon_threadsafe(self._opened.set)


def model(*script: Any, otherwise: Any = "from local", **more: Any) -> ScriptedProvider:
    """A model that follows a script, and answers everything else."""
    return ScriptedProvider(*script, otherwise=otherwise, **more)
