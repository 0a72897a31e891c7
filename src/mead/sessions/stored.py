"""Sessions in a store: made, and read again."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from mead.core.conversation import encode
from mead.core.turns import Turn
from mead.storage import Store
from mead.storage.protocol import SessionRecord, StoredTurn

if TYPE_CHECKING:
    from mead.sessions.session import Session

_log = logging.getLogger("mead.sessions")

Load: TypeAlias = Callable[[], Awaitable[tuple[list[Turn], object, int]]]


async def create_stored(store: Store, session: Session, *, title: str | None = None) -> None:
    """Keeps a new session, with the history that it begins with."""
    now = time.time()
    record = SessionRecord(
        session_id=session.session_id,
        owner=session.owner,
        created_at=now,
        updated_at=now,
        title=title,
        tags=session.tags,
        options=session.options,
        turn_timeout_s=session.turn_timeout_s,
        busy=session.busy,
        state=None if session.state is None else msgspec.json.encode(session.state),
        kind=session.kind,
    )
    await store.create_session(record, [StoredTurn.of(turn, finished_at=now) for turn in session.turns])


async def load_stored(store: Store, owner: str, session_id: str) -> tuple[list[Turn], object, int]:
    """A session's turns, its handler's state and its version, as the store has them now; the turns repaired,
    so that none of them can make a later one fail."""
    record = await store.get_session(owner, session_id)
    if record is None:
        return [], None, 0
    found = [_repaired(stored.turn()) for stored in await store.turns_of(session_id)]
    turns = [turn for turn in found if turn is not None]
    state = None if record.state is None else msgspec.json.decode(record.state)
    return turns, state, record.version


def _repaired(turn: Turn) -> Turn | None:
    """The turn, encoded anew, which repairs its messages; `None` if nothing in it can be read."""
    try:
        messages = turn.decode()
    except (msgspec.DecodeError, ValueError) as error:
        _log.error("turn %d cannot be read and is left out: %s", turn.number, type(error).__name__)
        return None
    return msgspec.structs.replace(turn, messages=encode(messages)) if messages else None
