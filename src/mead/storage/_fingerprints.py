"""Fingerprints of private text, kept in memory: by the store that forgets, and where there is no store."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from mead.storage.protocol import StoredTurn, TurnMarks, UnmarkedTurn

PAGE = 1000
"""How many turns' fingerprints are given at once."""


class _Row(Struct, frozen=True, kw_only=True):
    number: int
    owner: str
    session_id: str
    turn: int
    at: float
    data: bytes


class FingerprintLog:
    """What `Store` says of fingerprints, without a file."""

    def __init__(self) -> None:
        self._rows: list[_Row] = []
        self._last = 0
        self._unmarked: dict[tuple[str, int], UnmarkedTurn] = {}

    async def fingerprints_since(self, owner: str, cursor: int = 0) -> tuple[bytes, int]:
        rows = [row for row in self._rows if row.number > cursor and row.owner == owner][:PAGE]
        return b"".join([row.data for row in rows]), rows[-1].number if rows else cursor

    async def unmarked_turns(self, owner: str, *, limit: int = 50) -> tuple[UnmarkedTurn, ...]:
        return tuple([turn for turn in self._unmarked.values() if turn.owner == owner][:limit])

    async def mark_turns(self, marks: Sequence[TurnMarks]) -> None:
        for mark in marks:
            found = self._unmarked.pop((mark.session_id, mark.number), None)
            if found is not None:
                self.add(found.owner, mark.session_id, mark.number, mark.at, mark.fingerprints)

    def add(self, owner: str, session_id: str, turn: int, at: float, data: bytes) -> None:
        """Keeps a turn's fingerprints."""
        if data:
            self._last += 1
            row = _Row(number=self._last, owner=owner, session_id=session_id, turn=turn, at=at, data=data)
            self._rows.append(row)

    def note_unmarked(self, owner: str, session_id: str, turn: StoredTurn) -> None:
        """Remembers a turn whose fingerprints are still to be made, if it needs any."""
        if turn.label == "local_only":
            unmarked = UnmarkedTurn(owner=owner, session_id=session_id, turn=turn)
            self._unmarked[session_id, turn.number] = unmarked

    def forget(self, session_id: str, *, after: int = 0) -> None:
        """Forgets a session's, or those of its turns after a number."""
        self._keep(lambda row: row.session_id != session_id or row.turn <= after)
        for key in [key for key in self._unmarked if key[0] == session_id and key[1] > after]:
            del self._unmarked[key]

    def forget_owner(self, owner: str) -> None:
        """Forgets all of an owner's."""
        self._keep(lambda row: row.owner != owner)
        self._unmarked = {key: turn for key, turn in self._unmarked.items() if turn.owner != owner}

    def forget_older(self, before: float, *, but: Callable[[str], bool]) -> None:
        """Forgets what is older, but of the sessions for which `but` is true."""
        self._keep(lambda row: row.at >= before or but(row.session_id))

    def _keep(self, wanted: Callable[[_Row], bool]) -> None:
        self._rows = [row for row in self._rows if wanted(row)]
