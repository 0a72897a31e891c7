"""What a store raises when it cannot keep its promise: the turn stops there."""

from __future__ import annotations

from typing import Literal, TypeAlias

Fault: TypeAlias = Literal["closed", "corrupt", "disk_full", "io", "locked", "read_only", "too_new", "unsafe"]
"""`unsafe` is a file that is a link, or that belongs to somebody else."""


class StoreError(Exception):
    """The store cannot do what it was asked; nothing of the operation was kept, and what was acknowledged
    before is safe. The message is one sentence that says what to do; `fault` is its kind."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault: Fault = fault


class Fenced(Exception):  # noqa: N818 - a state, not a fault
    """The turn is no longer the session's running one: it is over, its session was taken over, or is gone.
    Nothing was written. Whoever gets this must stop at once and call no tool."""
