"""What scores a person's own turns get, so that a share of the cloud model stays that share.

Only counts are kept, of a hundred steps of the score: nothing of any text. They stay on this machine.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
from msgspec import Struct

from mead.core.private_files import read_private, write_private

STEPS = 100
ORDINARY_TURNS = 200
"""How many ordinary turns are supposed to have been seen before the first one."""
REMEMBERED_TURNS = 2_000
"""Older turns fade: when as many were counted, all counts are halved."""
_SAVED_EVERY = 32


class _Saved(Struct, frozen=True):
    version: str
    counts: list[float]


class Traffic:
    """Counts of scores. `path`, where given, is the file that they are kept in; `version` names the weights
    that the scores come from, since those of others cannot be compared."""

    def __init__(self, version: str, path: Path | None = None) -> None:
        self._version = version
        self._path = path
        self._counts = _read(path, version)
        self._unsaved = [0] * STEPS

    def threshold(self, share: float) -> float:
        """The score from which on a turn is among the hardest `share` (0 to 1) of all."""
        counts = [own + ORDINARY_TURNS / STEPS for own in self._counts]
        left = sum(counts) * share
        for step in range(STEPS - 1, -1, -1):
            if left <= counts[step]:
                return (step + 1 - left / counts[step]) / STEPS
            left -= counts[step]
        return 0.0

    def note(self, score: float) -> None:
        """Counts one turn's score."""
        step = min(STEPS - 1, max(0, int(score * STEPS)))
        self._counts[step] += 1
        self._unsaved[step] += 1
        if sum(self._counts) >= REMEMBERED_TURNS:
            self._counts = [count / 2 for count in self._counts]
        if sum(self._unsaved) >= _SAVED_EVERY:
            self.save()

    def save(self) -> None:
        """Writes the counts down, added to those that another process has written meanwhile. A file that
        cannot be written is left: the counts are worth no failure."""
        if self._path is None or not any(self._unsaved):
            return
        found = _read(self._path, self._version)
        self._counts = [kept + new for kept, new in zip(found, self._unsaved, strict=True)]
        while sum(self._counts) >= REMEMBERED_TURNS:
            self._counts = [count / 2 for count in self._counts]
        self._unsaved = [0] * STEPS
        saved = _Saved(self._version, [round(count, 2) for count in self._counts])
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(self._path, msgspec.json.encode(saved))


def _read(path: Path | None, version: str) -> list[float]:
    if path is not None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found = msgspec.json.decode(read_private(path), type=_Saved)
            if found.version == version and len(found.counts) == STEPS and min(found.counts) >= 0:
                return found.counts
    return [0.0] * STEPS
