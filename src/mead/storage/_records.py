"""What every store does to records alike."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import asdict, replace

from mead.core.scope import NULL_SCOPE
from mead.storage.errors import Fenced
from mead.storage.protocol import Reservation, SessionChange, SessionRecord, StoredTurn, TurnEnd


def new_session(session: SessionRecord, turns: Sequence[StoredTurn], *, used: int = 0) -> SessionRecord:
    """A session as it is first kept: the store's own fields begin anew, the options are without what belongs
    to a single call. `used` is the highest turn number that the ledger knows of its id, from an earlier life.
    Raises `ValueError` for turns whose numbers do not ascend from 1."""
    numbers = [turn.number for turn in turns]
    if any(after <= before for before, after in zip([0, *numbers], numbers, strict=False)):
        raise ValueError("the numbers of a session's turns must ascend from 1")
    options = replace(session.options, scope=NULL_SCOPE, deadline=None, route=None)
    last_number = max([used, *numbers])
    return replace(session, options=options, version=0, last_number=last_number, running=None)


def changed(session: SessionRecord, change: SessionChange) -> SessionRecord:
    """The session with what `change` sets."""
    fields = {name: value for name, value in asdict(change).items() if value is not UNSET}
    if change.options is not UNSET:
        fields["options"] = replace(change.options, scope=NULL_SCOPE, deadline=None, route=None)
    return replace(session, version=session.version + 1, **fields)


def ended(session: SessionRecord, end: TurnEnd) -> SessionRecord:
    """The session after its running turn."""
    return replace(
        session,
        running=None,
        updated_at=end.finished_at,
        state=session.state if end.state is None else end.state,
        version=session.version + (end.turn is not None),
    )


def forked(
    session: SessionRecord, turns: Sequence[StoredTurn], *, new_id: str, at: float, up_to: int | None
) -> tuple[SessionRecord, tuple[StoredTurn, ...]]:
    """The new session of a fork, and its turns."""
    kept = tuple([turn for turn in turns if up_to is None or turn.number <= up_to])
    state = session.state if len(kept) == len(turns) else None
    fork = replace(
        session, session_id=new_id, created_at=at, updated_at=at, state=state, parent=session.session_id
    )
    return fork, kept


def taken(session_id: str) -> ValueError:
    """What is raised for a session's id that is in use."""
    return ValueError(f"there is a session {session_id!r} already")


def used_number(what: str, number: int) -> ValueError:
    """What is raised for a call or a tool call whose number the turn has used."""
    return ValueError(f"the turn has a {what} {number} already")


def used_reservation(reservation: Reservation) -> ValueError:
    """What is raised for a reservation's id that is in use."""
    return ValueError(f"there is a reservation {reservation.reservation_id!r} already")


def fenced(turn: int) -> Fenced:
    """What is raised for a write of a turn that no longer runs."""
    return Fenced(f"turn {turn} is over: it has ended, or its session was taken over or deleted")
