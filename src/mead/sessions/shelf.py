"""What is done to kept sessions besides talking: renamed, forked, rewound, brought in, declassified.

What takes something away, or lifts a label, leaves an entry in the audit chain. The commands and the native
API do it through here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mead.core.messages import clean_text
from mead.core.options import Options
from mead.sessions.runtime import TURN_TIMEOUT_S, Runtime
from mead.sessions.session import new_session_id
from mead.sessions.transfer import Brought
from mead.storage import Store
from mead.storage.protocol import (
    AlreadyRunning,
    AuditEntry,
    SessionChange,
    SessionRecord,
    StoredTurn,
)


class NoSuchTurn(Struct, frozen=True):
    """The history has no turn of this number; `last` is its last one's, `None` for an empty history."""

    session_id: str
    number: int
    last: int | None

    def __str__(self) -> str:
        has = "it has none" if self.last is None else f"its last one is turn {self.last}"
        return f"there is no turn {self.number} in the history of {self.session_id}; {has}"


async def note(store: Store, owner: str, action: str, subject: str, **details: str) -> None:
    """Writes into the audit chain what was done to a session."""
    entry = AuditEntry(
        at=time.time(), owner=owner, action=f"session.{action}", subject=subject, details=details
    )
    await store.append_audit(entry)


async def change(
    store: Store,
    record: SessionRecord,
    *,
    title: str | UnsetType | None = UNSET,
    tags: tuple[str, ...] | UnsetType = UNSET,
) -> bool:
    """Gives a session a title or tags. It does not count as used by that. False if it is gone."""
    if isinstance(title, str):
        title = one_line(title) or None
    wanted = SessionChange(updated_at=record.updated_at, title=title, tags=tags)
    return await store.update_session(record.owner, record.session_id, wanted)


async def find_missing(store: Store, session_id: str, numbers: Iterable[int]) -> NoSuchTurn | None:
    """The first of the numbers that is no turn's of the history; `None` if there is none."""
    known = [turn.number for turn in await store.turns_of(session_id)]
    missing = [number for number in numbers if number not in known]
    if not missing:
        return None
    return NoSuchTurn(session_id, missing[0], known[-1] if known else None)


async def fork(store: Store, record: SessionRecord, turn: int | None) -> str | NoSuchTurn | None:
    """Makes a session of the turns up to one, or of all; gives its id. 0 stands before the first turn. `None`
    if the session is gone."""
    if turn and (missing := await find_missing(store, record.session_id, [turn])) is not None:
        return missing
    made = await store.fork(
        record.owner, record.session_id, new_id=new_session_id(), at=time.time(), up_to=turn
    )
    return None if made is None else made.session_id


async def rewind(
    store: Store, record: SessionRecord, turn: int
) -> SessionRecord | AlreadyRunning | NoSuchTurn | None:
    """Takes the turns after one away. `None` if the session is gone."""
    if turn and (missing := await find_missing(store, record.session_id, [turn])) is not None:
        return missing
    rewound = await store.rewind(record.owner, record.session_id, to=turn, at=time.time())
    if isinstance(rewound, SessionRecord):
        await note(store, record.owner, "rewind", record.session_id, to=str(turn))
    return rewound


async def declassify(
    store: Store, record: SessionRecord, numbers: Sequence[int], *, by: str
) -> str | NoSuchTurn:
    """Makes a session like this one in which the turns of these numbers are `shareable`; gives its id.

    The session itself stays as it is, and so do the fingerprints of its text: only who goes on with the new
    one has lifted anything. `by` says whose word it was, in the audit chain.
    """
    if (missing := await find_missing(store, record.session_id, numbers)) is not None:
        return missing
    now, lifted = time.time(), frozenset(numbers)
    turns = [
        msgspec.structs.replace(turn, label="shareable") if turn.number in lifted else turn
        for turn in await store.turns_of(record.session_id)
    ]
    made = msgspec.structs.replace(
        record, session_id=new_session_id(), parent=record.session_id, created_at=now, updated_at=now
    )
    # The word is written down first: nothing is lifted that the chain does not tell of.
    shown = ",".join([str(number) for number in sorted(lifted)])
    await note(store, record.owner, "declassify", record.session_id, turns=shown, made=made.session_id, by=by)
    await store.create_session(made, turns)
    return made.session_id


async def bring_in(
    store: Store, owner: str, brought: Brought, *, turn_timeout_s: float | None = None
) -> SessionRecord:
    """Keeps a session that was read from a file. `None` is the library's deadline for its turns."""
    now = time.time()
    record = SessionRecord(
        session_id=new_session_id(),
        owner=owner,
        created_at=now,
        updated_at=now,
        title=one_line(brought.title or "") or None,
        tags=brought.tags,
        options=Options(system=brought.system),
        turn_timeout_s=turn_timeout_s or TURN_TIMEOUT_S,
    )
    turns = [msgspec.structs.replace(turn, owner=owner) for turn in brought.turns]
    await store.create_session(record, [StoredTurn.of(turn, finished_at=now) for turn in turns])
    await note(store, owner, "import", record.session_id)
    return record


async def refresh(runtime: Runtime, session_id: str) -> None:
    """Has the runtime take over what was changed of a session in its store. One whose turn runs does so
    before the next turn."""
    session, store = runtime._find(session_id), runtime.store
    if session is None or store is None:
        return
    record = await store.get_session(runtime.owner, session_id)
    if record is None:
        return
    session.tags = record.tags
    if session.is_idle:
        await session.reload()


def one_line(text: str) -> str:
    """A title without line breaks, and without what cannot be stored."""
    return " ".join(clean_text(text).split())
