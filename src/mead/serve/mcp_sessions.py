"""What an MCP client may read of sessions. Behind it there may be a cloud model, so what is `local_only` is
withheld, unless the client has asked for it itself, or its token may send private content."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from mead.core.messages import Message, ToolUseBlock, blocks_of, clean_text, text_of
from mead.core.options import Route
from mead.core.reasons import NoSuchSession
from mead.core.turns import Label
from mead.serve._json import store_of
from mead.serve.endpoint import Call
from mead.serve.errors import invalid, problem_of
from mead.serve.tokens import TAG_PREFIX, Principal
from mead.storage.protocol import SessionRecord, StoredTurn

STARTED_TAG = "mcp"
"""The tag of sessions that were started here."""


class SessionEntry(Struct, frozen=True, kw_only=True):
    """A session. Times are in seconds since 1970. `title` is null if it has none, or if it is withheld."""

    session_id: str
    title: str | None
    created_at: float
    updated_at: float
    running: bool
    started_here: bool


class SessionList(Struct, frozen=True, kw_only=True):
    """Sessions, the last used first. Titles are withheld if `titles_withheld`. `next` is the cursor of the
    page that follows, if there is one."""

    sessions: tuple[SessionEntry, ...]
    titles_withheld: bool
    next: str | None


class TurnText(Struct, frozen=True, kw_only=True):
    """A turn: what was asked, what was answered, which tools were called; not what these said."""

    number: int
    route: Route | None
    label: Label
    finished_at: float
    question: str
    answer: str
    tools: tuple[str, ...]


class Transcript(Struct, frozen=True, kw_only=True):
    """Turns of a session, the oldest first. `withheld` counts those of the whole session that are not shown
    because they are `local_only`, `earlier` those that may be seen and came before these."""

    session_id: str
    turns: tuple[TurnText, ...]
    withheld: int
    earlier: int


def asker_of(principal: Principal) -> str:
    """Who asks, for what only they may ask for: one token, or one client on stdio."""
    return f"{principal.owner}/{principal.token_id or ''}"


def own_tags(principal: Principal) -> tuple[str, ...]:
    """The tags of a caller's own turns: by them they are known again."""
    return () if principal.token_id is None else (f"{TAG_PREFIX}{principal.token_id}",)


def may_read(principal: Principal, turn: StoredTurn) -> bool:
    """Whether the caller may be shown a turn."""
    if turn.label == "shareable" or principal.may("private:send"):
        return True
    return any(tag in turn.tags for tag in own_tags(principal))


async def withheld_turns(call: Call, session_id: str) -> int:
    """How many turns of a session the caller may not be shown."""
    if call.principal.may("private:send") or call.server.runtime.store is None:
        return 0
    turns = await store_of(call).turns_of(session_id)
    return sum([not may_read(call.principal, turn) for turn in turns])


async def record_of(call: Call, session_id: str) -> SessionRecord:
    """The session. Raises `Problem` if it is not the caller's owner's."""
    record = await store_of(call).get_session(call.principal.owner, session_id)
    if record is None:
        raise problem_of(NoSuchSession(detail="there is no such session"))
    return record


async def session_list(call: Call, limit: int, cursor: str | None) -> SessionList:
    """A page of the caller's owner's sessions. Raises `Problem` for a cursor that is none."""
    before = None if cursor is None else _place(cursor)
    found = await store_of(call).list_sessions(call.principal.owner, limit=limit, before=before)
    shows_titles = call.principal.may("private:send")
    return SessionList(
        sessions=tuple([_entry(record, shows_titles=shows_titles) for record in found]),
        titles_withheld=not shows_titles,
        next=_cursor(found[-1]) if len(found) == limit else None,
    )


def _entry(record: SessionRecord, *, shows_titles: bool) -> SessionEntry:
    return SessionEntry(
        session_id=record.session_id,
        # A title is made of what was said, and has no label: so it counts as local_only.
        title=record.title if shows_titles else None,
        created_at=record.created_at,
        updated_at=record.updated_at,
        running=record.running is not None,
        started_here=STARTED_TAG in record.tags,
    )


async def transcript(call: Call, session_id: str, *, limit: int, before: int | None = None) -> Transcript:
    """The last `limit` turns that the caller may see, of those before number `before`."""
    await record_of(call, session_id)
    turns = await store_of(call).turns_of(session_id)
    seen = [turn for turn in turns if may_read(call.principal, turn)]
    withheld = len(turns) - len(seen)
    if before is not None:
        seen = [turn for turn in seen if turn.number < before]
    shown = seen[-limit:]
    return Transcript(
        session_id=session_id,
        turns=tuple([text for turn in shown if (text := _text(turn)) is not None]),
        withheld=withheld,
        earlier=len(seen) - len(shown),
    )


def _text(turn: StoredTurn) -> TurnText | None:
    """The texts of a turn; `None` for one that cannot be read, which sessions leave out too."""
    try:
        messages = turn.turn().decode()
    except (msgspec.MsgspecError, ValueError):
        return None
    return TurnText(
        number=turn.number,
        route=turn.route,
        label=turn.label,
        finished_at=turn.finished_at,
        question=_said(messages, "user"),
        answer=_said(messages, "assistant"),
        tools=tuple(
            [block.name for each in messages for block in blocks_of(each) if isinstance(block, ToolUseBlock)]
        ),
    )


def _said(messages: Sequence[Message], role: Literal["user", "assistant"]) -> str:
    """The words of one side, without results of tools: those go back to the model that asked for them, and
    nowhere else (R10)."""
    texts = [clean_text(text_of(message.content)) for message in messages if message.role == role]
    return "\n\n".join([text for text in texts if text])


def _cursor(record: SessionRecord) -> str:
    data = msgspec.json.encode((record.updated_at, record.session_id))
    return base64.urlsafe_b64encode(data).decode()


def _place(cursor: str) -> tuple[float, str]:
    try:
        data = base64.b64decode(cursor, altchars=b"-_", validate=True)
        return msgspec.json.decode(data, type=tuple[float, str])
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        raise invalid("it is no cursor of this server", param="cursor") from None


def not_yours(withheld: int) -> str:
    """Says why a session cannot be gone on with."""
    turns = "a turn" if withheld == 1 else f"{withheld} turns"
    return (
        f"the session holds {turns} that must not leave this machine and that were not asked here, and the "
        'answer could quote them; ask with route "cloud", which does not see them, or start another session'
    )
