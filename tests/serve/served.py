"""A server over a runtime, on a free port of 127.0.0.1, in a thread of its own."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import openai
import uvicorn

import mead
from mead.serve.app import make_app
from mead.serve.tokens import Tokens

Serving = Callable[..., str]
"""`serving(runtime, tokens=None, *, doors=None)` gives the server's address, without a path. `doors` are the
doors of the application, instead of all."""


class _Server(uvicorn.Server):
    """Says when it takes connections, or that it will never do so."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up_or_over = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets=sockets)
        finally:
            self.is_up_or_over.set()


@contextmanager
def served(runtime: mead.Runtime, tokens: Tokens | None) -> Iterator[str]:
    app = make_app(runtime, tokens)
    config = uvicorn.Config(app, lifespan="on", log_config=None, timeout_graceful_shutdown=5)
    server = _Server(config)
    # With its protocol named: asyncio sends small answers at once (TCP_NODELAY) only on such a socket.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        thread = threading.Thread(target=_run, args=(server, listening), name="served")
        thread.start()
        try:
            assert server.is_up_or_over.wait(30), "the server does not start"
            assert server.started, "the server did not start"
            yield f"http://127.0.0.1:{port}"
        finally:
            server.should_exit = True
            thread.join(30)
    assert not thread.is_alive(), "the server does not end"


def _run(server: _Server, listening: socket.socket) -> None:
    try:
        asyncio.run(server.serve(sockets=[listening]))
    finally:
        server.is_up_or_over.set()


_OPEN: list[openai.OpenAI] = []


def client_at(url: str, *, api_key: str = "none", max_retries: int = 0) -> openai.OpenAI:
    """OpenAI's client of a server. It is closed when the test ends."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, max_retries=max_retries)
    _OPEN.append(client)
    return client


def close_clients() -> None:
    """Closes what `client_at` has made."""
    while _OPEN:
        _OPEN.pop().close()
