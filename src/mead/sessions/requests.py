"""Requests that bring their own history: each is a turn of a session that nobody is shown (R16).

A session runs one turn at a time, so requests at the same time have one each. It is given back after the
request, and taken again for the next one of its owner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import TypeAlias

import msgspec

from mead.sessions.session import Session, new_session_id

PREFIX = "requests-"
"""How the ids of these sessions begin."""
KEPT_S = 24 * 3600.0
"""How long the result of a request with an idempotency key is kept, and an unused session, in seconds."""
_IDLE = 64

Make: TypeAlias = Callable[[str], Session]
"""Makes a session with this id."""


class Requests:
    """The sessions that requests are made in, those that run and some that wait for the next one."""

    def __init__(self) -> None:
        self._taken: dict[str, Session] = {}
        self._idle: dict[str, list[Session]] = {}

    def take(self, owner: str, key: str | None, make: Make) -> Session:
        """A session for a request: with an idempotency key the one that is this key's alone, else any that is
        free. Give it back."""
        if key is not None:
            session_id = keyed_id(owner, key)
            if session_id not in self._taken:
                self._taken[session_id] = make(session_id)
            return self._taken[session_id]
        idle = self._idle.get(owner)
        session = idle.pop() if idle else make(PREFIX + new_session_id())
        self._taken[session.session_id] = session
        return session

    def give_back(self, session: Session) -> None:
        """The request is over. A session whose last end could not be stored is kept: the next request in it
        stores it."""
        if not session.is_idle or self._taken.get(session.session_id) is not session:
            return
        session.grants.clear()
        is_owed = session.unended is not None
        if session.session_id.startswith(_KEYED) and is_owed:
            return
        del self._taken[session.session_id]
        if not session.session_id.startswith(_KEYED):
            idle = self._idle.setdefault(session.owner, [])
            if len(idle) < _IDLE or is_owed:
                idle.append(session)

    def of_owner(self, owner: str) -> Iterator[Session]:
        """An owner's sessions, those that wait too."""
        yield from (*self.running(owner), *self._idle.get(owner, ()))

    def running(self, owner: str | None = None) -> Iterator[Session]:
        """The sessions of requests that are not over, of one owner or of all."""
        yield from [each for each in self._taken.values() if owner in (None, each.owner)]

    def forget(self, owner: str) -> None:
        """Forgets an owner's sessions: they were deleted."""
        self._idle.pop(owner, None)
        for session in self.running(owner):
            del self._taken[session.session_id]


_KEYED = PREFIX + "key-"


def keyed_id(owner: str, key: str) -> str:
    """The id of the session that belongs to an owner's idempotency key, in every process the same."""
    return _KEYED + _digest(owner, key)


def keyed_session_id(owner: str, key: str) -> str:
    """The id of the conversation that was started under an owner's idempotency key, in the same way."""
    return "key-" + _digest(owner, key)


def _digest(owner: str, key: str) -> str:
    return hashlib.blake2b(msgspec.json.encode([owner, key]), digest_size=16).hexdigest()
