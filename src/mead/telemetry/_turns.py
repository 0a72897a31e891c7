"""Keeps the events of turns that still run, so that they can be told of together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from mead.telemetry.events import Event

TurnKey: TypeAlias = tuple[str, int]
"""A session's id and the number of one of its turns."""
MAX_TURNS = 10_000
"""The events of so many turns are kept; then the oldest turn's are given up. A turn that a session runs gives
its events back when it ends, so only those of `route(…)` with a session id of one's own can stay behind."""


class Kept(NamedTuple):
    """An event, and when it came: nanoseconds on the clock of `time.perf_counter_ns`."""

    event: Event
    at_ns: int


def key_of(event: Event) -> TurnKey | None:
    """The turn that an event belongs to; `None` outside a session."""
    session_id, turn = event.metadata.get("session_id"), event.metadata.get("turn")
    return (session_id, turn) if isinstance(session_id, str) and isinstance(turn, int) else None


class TurnEvents:
    """Events by turn. Safe on several threads: each runtime emits on its own. `on_given_up` gets the events
    of a turn for which there is no more room."""

    def __init__(
        self, *, max_turns: int = MAX_TURNS, on_given_up: Callable[[Sequence[Kept]], object] | None = None
    ) -> None:
        self._turns: dict[TurnKey, list[Kept]] = {}
        self._max_turns = max_turns
        self._on_given_up = on_given_up
        self._lock = threading.Lock()

    def keep(self, key: TurnKey, event: Event) -> None:
        """Keeps an event of a turn."""
        given_up: Sequence[Kept] = ()
        with self._lock:
            if key not in self._turns and len(self._turns) >= self._max_turns:
                given_up = self._turns.pop(next(iter(self._turns)))
            self._turns.setdefault(key, []).append(Kept(event, time.perf_counter_ns()))
        if given_up and self._on_given_up is not None:
            self._on_given_up(given_up)

    def take(self, key: TurnKey) -> Sequence[Kept]:
        """The events of a turn, which are forgotten."""
        with self._lock:
            return self._turns.pop(key, ())

    def take_all(self) -> Sequence[Kept]:
        """The events of all turns, which are forgotten."""
        with self._lock:
            turns, self._turns = self._turns, {}
        return [kept for events in turns.values() for kept in events]
