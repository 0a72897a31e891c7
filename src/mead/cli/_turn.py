"""Runs one turn at the terminal."""

from __future__ import annotations

import contextlib
import time
from typing import Unpack

from mead.cli._approve import ask_person, can_ask
from mead.cli._terminal import say, say_facts, write_answer
from mead.core.result import Ok
from mead.core.turns import TurnResult
from mead.sessions.events import ApprovalNeeded, Delta, Finished, ToolCalled
from mead.sessions.runtime import TurnKeywords
from mead.sessions.sync import SyncRuntime


def stream_to_terminal(
    runtime: SyncRuntime, session_id: str, text: str, **turn: Unpack[TurnKeywords]
) -> TurnResult | None:
    """Streams a turn to the terminal, with the line about it underneath. `None` when Ctrl-C cancelled it."""
    started = time.perf_counter()
    turn["asks"] = can_ask()
    on_new_line = True
    result: TurnResult | None = None
    try:
        with contextlib.closing(runtime.stream_turn(session_id, text, **turn)) as events:
            for event in events:
                match event:
                    case Delta(text=fragment):
                        on_new_line = fragment.endswith("\n")  # before Ctrl-C can come in between
                        write_answer(fragment)
                    case ToolCalled(name=name):
                        if not on_new_line:
                            write_answer("", newline=True)
                        on_new_line = True
                        say(f"[{name}]")
                    case ApprovalNeeded(request=request, answer=answer):
                        if not on_new_line:
                            write_answer("", newline=True)
                        on_new_line = True
                        answer(ask_person(request))
                    case Finished(result=finished):
                        result = finished
    except KeyboardInterrupt:
        # Leaving the stream cancels the turn, but Ctrl-C may come just before the stream can be left.
        runtime.cancel_turn(session_id)
        result = None
    if not on_new_line:
        write_answer("", newline=True)
    if isinstance(result, Ok):
        say_facts(result.value, time.perf_counter() - started)
    return result
