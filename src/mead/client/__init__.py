"""The client of a mead server: a `Runtime` that is somewhere else.

async with mead.connect("http://127.0.0.1:4141", token) as runtime:
    session_id = await runtime.start_session()
    result = await runtime.submit_turn(session_id, "hello")
"""

from __future__ import annotations

from typing import cast

from mead.client.remote import RemoteRuntime
from mead.sessions.runtime import Runtime
from mead.sessions.sync import SyncRuntime

__all__ = ["RemoteRuntime", "connect", "connect_sync"]


def connect(url: str, token: str | None = None) -> RemoteRuntime:
    """The runtime of a server, to be used as `async with`; nothing is contacted before the first call.
    `token` is what `mead token create` wrote; `None` for a server that asks for none."""
    return RemoteRuntime(url, token)


def connect_sync(url: str, token: str | None = None) -> SyncRuntime:
    """The same for code that is not async, to be used as `with`."""
    return SyncRuntime(lambda: cast(Runtime, RemoteRuntime(url, token)))  # it has the methods that are called
