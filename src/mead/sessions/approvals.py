"""Approvals: who is asked, and what a person has already said in a session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from msgspec import Struct

from mead.core.scope import Approval, ApprovalRequest

Approver: TypeAlias = Callable[[ApprovalRequest], Awaitable[Approval]]
"""Asks a person. A coroutine function; it may take its time, within the limit of the settings."""

_log = logging.getLogger("mead.sessions")


class Grant(Struct, frozen=True):
    """A standing answer of a session: the tool, with these arguments, may or may not be called. `exact` says
    that a call with any other argument is another one."""

    tool: str
    arguments: Mapping[str, object]
    allowed: bool
    exact: bool = False

    def covers(self, request: ApprovalRequest) -> bool:
        """Whether it answers the request."""
        if self.tool != request.tool or (self.exact and len(request.arguments) != len(self.arguments)):
            return False
        return all(
            name in request.arguments and request.arguments[name] == value
            for name, value in self.arguments.items()
        )

    def __str__(self) -> str:
        rule = ", ".join([f"{name} = {value!r}" for name, value in self.arguments.items()])
        verb = "may be called" if self.allowed else "may not be called"
        with_what = f" with {rule}" if rule else " without arguments" if self.exact else ""
        return f"{self.tool} {verb}{with_what}"


def grant_of(request: ApprovalRequest, approval: Approval) -> Grant | None:
    """The standing answer that an approval makes, if it makes one.

    An `only` that is no tuple of the request's arguments makes none: it counts as `once`, because a rule that
    was misspelled would cover more than the person meant.
    """
    if approval.decision == "never":
        return Grant(request.tool, {}, allowed=False)
    if approval.decision != "session":
        return None
    if approval.only is None:
        return Grant(request.tool, dict(request.arguments), allowed=True, exact=True)
    if not _names_arguments(approval.only, request):
        _log.warning("an approval of %s names what is no argument of the call: it holds once", request.tool)
        return None
    return Grant(request.tool, {name: request.arguments[name] for name in approval.only}, allowed=True)


def _names_arguments(only: object, request: ApprovalRequest) -> bool:
    return isinstance(only, tuple) and all(isinstance(n, str) and n in request.arguments for n in only)


def standing_answer(grants: list[Grant], request: ApprovalRequest) -> bool | None:
    """What was said before of such a call; a refusal wins. `None` if nothing was."""
    found = [grant.allowed for grant in grants if grant.covers(request)]
    return None if not found else all(found)


class Question:
    """A request on its way to whoever reads the stream, and the answer on its way back."""

    __slots__ = ("_future", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Approval] = self._loop.create_future()

    def answer(self, approval: Approval) -> None:
        """Gives the answer, from any thread. The first one counts."""
        self._loop.call_soon_threadsafe(self._set, approval)

    def _set(self, approval: Approval) -> None:
        if not self._future.done():
            self._future.set_result(approval)

    async def wait(self) -> Approval:
        """The answer, when it comes."""
        return await self._future
