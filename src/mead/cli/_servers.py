"""Tells the person of MCP servers that wait for a word of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mead import telemetry
from mead.cli._terminal import say

_WHAT_TO_DO = {
    "changed": "waits for your approval: mead mcp approve {name}",
    "needs_auth": "asks for a login: mead mcp login {name}",
    "misconfigured": "cannot be started as it is configured; why, says: mead mcp list",
}


@contextmanager
def telling_of_servers() -> Iterator[None]:
    """Within the block, says in one line on standard error what is to be done about a server, once each."""
    told: set[tuple[object, object]] = set()

    def hear(event: telemetry.Event) -> None:
        name, state = event.metadata["server"], event.metadata["state"]
        if state in _WHAT_TO_DO and (name, state) not in told:
            told.add((name, state))
            say(f"note: the MCP server {name} {_WHAT_TO_DO[str(state)].format(name=name)}")

    detach = telemetry.attach(hear, telemetry.SERVER)
    try:
        yield
    finally:
        detach()
