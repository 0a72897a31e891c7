"""Reads the exceptions that the SDK wraps in groups, and tells those that trying again does not mend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal


class MeadItselfError(Exception):
    """The server is mead."""


def lasting(
    error: BaseException | None,
) -> Literal["misconfigured", "needs_auth"] | None:
    """The state for a failure that trying again does not mend."""
    if isinstance(error, MeadItselfError):
        return "misconfigured"
    if type(error).__name__ == "NeedsLoginError":
        return "needs_auth"
    return None


def innermost(error: BaseException) -> BaseException:
    """The one exception inside groups of one; of several, the one that says most."""
    while isinstance(error, BaseExceptionGroup):
        inner = list(_leaves(error))
        error = next((leaf for leaf in inner if lasting(leaf) is not None), inner[0])
    cause: BaseException | None = error
    while cause is not None:
        if lasting(cause) is not None:
            return cause
        cause = cause.__cause__ or cause.__context__
    return error


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
