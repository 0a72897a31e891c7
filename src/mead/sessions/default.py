"""The default runtime behind the module-level functions, as `mead.submit_turn`.

It is opened on first use with the settings that `mead.toml` gives (without one, turns are echoed), lives on a
background loop, and is closed when the process ends. The functions block; `mead.aio` has the same to await,
over the same sessions.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Unpack

from mead.core.messages import Message
from mead.core.reasons import NoSuchSession, TurnReason
from mead.core.result import Result
from mead.core.turns import Answer, Decision, Turn
from mead.router.decide import Refused
from mead.sessions.events import TurnEvent
from mead.sessions.keywords import SessionKeywords, TurnKeywords
from mead.sessions.runtime import Runtime
from mead.sessions.sync import SyncRuntime

_lock = threading.Lock()
_current: tuple[int, SyncRuntime] | None = None


def configure(config: str | Path | None = None, *, make: Callable[[], Runtime] | None = None) -> SyncRuntime:
    """Opens the default runtime anew, with a configuration file or with a runtime of your making.

    Sessions of the one before are gone. Raises `ConfigError`.
    """
    global _current
    opened = SyncRuntime(make) if make is not None else SyncRuntime.open(config)
    with _lock:
        before, _current = _current, (os.getpid(), opened)
    if before is not None and before[0] == os.getpid():
        before[1].close()
    return opened


def default_runtime() -> SyncRuntime:
    """The default runtime, opened now if it was not. A forked process gets one of its own: threads do not
    survive a fork."""
    global _current
    with _lock:
        if _current is None or _current[0] != os.getpid():
            _current = (os.getpid(), SyncRuntime.open())
        return _current[1]


@atexit.register
def close_default() -> None:
    """Closes the default runtime, if it was opened. The next use opens a new one."""
    global _current
    with _lock:
        before, _current = _current, None
    if before is not None and before[0] == os.getpid():
        with contextlib.suppress(Exception):
            before[1].close()


def start_session(**session: Unpack[SessionKeywords]) -> str:
    """Starts a session; see `Runtime.start_session`."""
    return default_runtime().start_session(**session)


def submit_turn(session_id: str, text: str, **turn: Unpack[TurnKeywords]) -> Result[Answer, TurnReason]:
    """Submits a turn and waits for its answer; see `Runtime.submit_turn`."""
    return default_runtime().submit_turn(session_id, text, **turn)


def stream_turn(session_id: str, text: str, **turn: Unpack[TurnKeywords]) -> Generator[TurnEvent, None, None]:
    """Submits a turn and yields its events; see `Runtime.stream_turn`."""
    return default_runtime().stream_turn(session_id, text, **turn)


def submit_request(messages: Sequence[Message], **turn: Unpack[TurnKeywords]) -> Result[Answer, TurnReason]:
    """Answers a conversation that is brought along; see `Runtime.submit_request`."""
    return default_runtime().submit_request(messages, **turn)


def stream_request(
    messages: Sequence[Message], **turn: Unpack[TurnKeywords]
) -> Generator[TurnEvent, None, None]:
    """The same, and yields its events; see `Runtime.stream_request`."""
    return default_runtime().stream_request(messages, **turn)


def cancel_turn(session_id: str) -> bool:
    """Cancels the running turn; see `Runtime.cancel_turn`."""
    return default_runtime().cancel_turn(session_id)


def stop_session(session_id: str) -> bool:
    """Ends a session; see `Runtime.stop_session`."""
    return default_runtime().stop_session(session_id)


def history(session_id: str) -> Result[tuple[Turn, ...], NoSuchSession]:
    """The session's turns; see `Runtime.history`."""
    return default_runtime().history(session_id)


def explain(
    text: str, *, session_id: str | None = None, **turn: Unpack[TurnKeywords]
) -> Result[Decision | Refused, TurnReason]:
    """What would be decided of a turn; see `Runtime.explain`."""
    return default_runtime().explain(text, session_id=session_id, **turn)


def explain_request(
    messages: Sequence[Message], **turn: Unpack[TurnKeywords]
) -> Result[Decision | Refused, TurnReason]:
    """What would be decided of a request; see `Runtime.explain_request`."""
    return default_runtime().explain_request(messages, **turn)
