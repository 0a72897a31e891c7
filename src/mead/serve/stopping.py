"""A server process that is told to stop: turns that run get their time before connections are closed."""

from __future__ import annotations

import asyncio
import socket

import uvicorn

from mead.serve.endpoint import Server

CLOSING_S = 3
"""How long answers may take to be sent once no turn runs any more, in seconds."""


class StoppingServer(uvicorn.Server):
    """uvicorn's server. At a stop it takes no new turns, waits up to `timeout_s` seconds for those that run
    (also in the background, or under a handle), and ends those that still run with `shutting_down`. Then it
    closes. Meanwhile it answers everything else; `/readyz` says 503."""

    def __init__(self, config: uvicorn.Config, server: Server, *, timeout_s: float) -> None:
        config.timeout_graceful_shutdown = CLOSING_S
        super().__init__(config)
        self._stopping = server
        self._timeout_s = timeout_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drains the runtime, then shuts down. A second Ctrl-C ends the waiting."""
        self._stopping.is_stopping = True
        runtime = self._stopping.runtime
        draining = asyncio.ensure_future(runtime.drain(self._timeout_s))
        while not draining.done():
            await asyncio.wait((draining,), timeout=0.1)
            if self.force_exit and not draining.done():
                draining.cancel()
                await runtime.drain(0)
                break
        await super().shutdown(sockets)
