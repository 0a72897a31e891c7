"""Runs one turn at the terminal."""

from __future__ import annotations

import contextlib
import time
from typing import Unpack

from mead.cli._terminal import safe, say, say_facts, write_answer
from mead.core.result import Ok
from mead.sessions.events import Delta, Finished, ToolCalled
from mead.sessions.run import TurnResult
from mead.sessions.runtime import TurnKeywords
from mead.sessions.sync import SyncRuntime


def stream_to_terminal(
    runtime: SyncRuntime, session_id: str, text: str, **turn: Unpack[TurnKeywords]
) -> TurnResult | None:
    """Streams a turn to the terminal, with the line about it underneath. `None` when Ctrl-C cancelled it."""
    started = time.perf_counter()
    wrote = ""
    result: TurnResult | None = None
    try:
        with contextlib.closing(runtime.stream_turn(session_id, text, **turn)) as events:
            for event in events:
                match event:
                    case Delta(text=fragment):
                        write_answer(fragment)
                        wrote = fragment
                    case ToolCalled(name=name):
                        say(f"[{safe(name)}]")
                    case Finished(result=finished):
                        result = finished
    except KeyboardInterrupt:
        result = None
    if wrote and not wrote.endswith("\n"):
        write_answer("", newline=True)
    if isinstance(result, Ok):
        say_facts(result.value, time.perf_counter() - started)
    return result
