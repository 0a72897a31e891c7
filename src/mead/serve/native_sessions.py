"""Sessions of the native API: started, listed, changed, forked, rewound, taken away and brought in."""

from __future__ import annotations

import asyncio
import base64
import binascii

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from mead.core.reasons import SessionBusy, ShuttingDown
from mead.core.result import Err
from mead.serve._json import ExportQuery, PageQuery, query, reply, store_of
from mead.serve.endpoint import Call
from mead.serve.errors import Problem, invalid, problem_of
from mead.serve.native_checks import check_start, checked_tags, no_such_session, refusing_bad_words
from mead.sessions import shelf
from mead.sessions.bodies import ChangeBody, DeclassifyBody, ForkBody, RewindBody, StartBody, TurnShape
from mead.sessions.keywords import SessionKeywords
from mead.sessions.shapes import (
    EffectShape,
    HistoryShape,
    ImportedShape,
    ImportPage,
    MadeShape,
    SessionPage,
    SessionShape,
    turn_shapes,
)
from mead.sessions.transfer import Brought, TransferError, sessions_in, to_jsonl, to_markdown
from mead.storage.protocol import AlreadyRunning, SessionRecord

JSONL = "application/x-ndjson"
MARKDOWN = "text/markdown"
_SQLITE = b"SQLite format 3\0"


async def start(call: Call) -> Response:
    """Starts a session."""
    body = await call.json(StartBody)
    if call.server.is_stopping:
        raise problem_of(ShuttingDown(detail="the server stops"))
    check_start(call, body)
    if body.turns and body.messages:
        raise invalid("give turns or messages, one of them", param="turns")
    owner = call.principal.owner
    session = SessionKeywords(
        system=body.system,
        options=body.options.options(),
        turn_timeout_s=body.turn_timeout_s,
        busy=body.busy,
        history=[turn.turn(owner) for turn in body.turns] or body.messages,
        state=body.state,
        tags=body.tags,
        title=None if body.title is None else shelf.one_line(body.title) or None,
    )
    with refusing_bad_words():
        session_id = await call.runtime.start_session(**session)
    return reply(MadeShape(session_id=session_id), 201, {"location": f"/api/sessions/{session_id}"})


async def list_all(call: Call) -> Response:
    """The caller's sessions, the last used first."""
    wanted = query(call, PageQuery)
    before = None if wanted.cursor is None else _place(wanted.cursor)
    found = await store_of(call).list_sessions(call.principal.owner, limit=wanted.limit, before=before)
    more = len(found) == wanted.limit
    shapes = tuple([SessionShape.of(record) for record in found])
    return reply(SessionPage(sessions=shapes, next=_cursor(found[-1]) if more else None))


async def get(call: Call) -> Response:
    """A session without its turns."""
    return reply(SessionShape.of(await record_of(call)))


async def change(call: Call) -> Response:
    """Changes title and tags."""
    body = await call.json(ChangeBody)
    if isinstance(body.tags, tuple):
        checked_tags(body.tags)
    record = await record_of(call)
    if not await shelf.change(store_of(call), record, title=body.title, tags=body.tags):
        raise no_such_session()
    await shelf.refresh(call.runtime, record.session_id)
    return reply(SessionShape.of(await record_of(call)))


async def delete(call: Call) -> Response:
    """Ends a session and deletes it."""
    session_id = call.request.path_params["session_id"]
    if not await call.runtime.stop_session(session_id):
        raise no_such_session()
    store = call.server.runtime.store
    if store is not None:
        await shelf.note(store, call.principal.owner, "delete", session_id, by=who(call))
    return Response(status_code=204)


async def history(call: Call) -> Response:
    """A session's turns, and what the history does not tell of."""
    store, session_id = call.server.runtime.store, call.request.path_params["session_id"]
    if store is None:
        result = await call.runtime.history(session_id)
        if isinstance(result, Err):
            raise no_such_session()
        return reply(HistoryShape(turns=tuple([TurnShape.of(turn) for turn in result.value])))
    await record_of(call)
    interrupted = await store.interrupted_turns(session_id)
    effects = await store.untold_effects(session_id)
    return reply(
        HistoryShape(
            turns=turn_shapes(await store.turns_of(session_id)),
            interrupted=tuple([turn.number for turn in interrupted]),
            untold_effects=tuple(
                [EffectShape(turn=row.turn, name=row.name, status=row.status) for row in effects]
            ),
        )
    )


async def fork(call: Call) -> Response:
    """Makes a session of this one's turns."""
    body = await call.json(ForkBody)
    made = await shelf.fork(store_of(call), await record_of(call), body.turn)
    if made is None:
        raise no_such_session()
    if isinstance(made, shelf.NoSuchTurn):
        raise invalid(str(made), param="turn")
    return reply(MadeShape(session_id=made), 201)


async def rewind(call: Call) -> Response:
    """Takes the turns after one away."""
    body = await call.json(RewindBody)
    rewound = await shelf.rewind(store_of(call), await record_of(call), body.turn)
    if rewound is None:
        raise no_such_session()
    if isinstance(rewound, shelf.NoSuchTurn):
        raise invalid(str(rewound), param="turn")
    if isinstance(rewound, AlreadyRunning):
        raise problem_of(SessionBusy(detail="a turn of this session is running; wait for it, or cancel it"))
    await shelf.refresh(call.runtime, rewound.session_id)
    return reply(SessionShape.of(rewound))


async def declassify(call: Call) -> Response:
    """Makes a session in which some turns may be seen by a cloud model."""
    body = await call.json(DeclassifyBody)
    made = await shelf.declassify(store_of(call), await record_of(call), body.turns, by=who(call))
    if isinstance(made, shelf.NoSuchTurn):
        raise invalid(str(made), param="turns")
    return reply(MadeShape(session_id=made), 201)


async def export(call: Call) -> Response:
    """A session as a file."""
    wanted = query(call, ExportQuery)
    store, record = store_of(call), await record_of(call)
    turns = await store.turns_of(record.session_id)
    await shelf.note(store, record.owner, "export", record.session_id, by=who(call))
    if wanted.format == "markdown":
        return Response(to_markdown(record, turns), media_type=MARKDOWN)
    return Response("\n".join(to_jsonl(record, turns)) + "\n", media_type=JSONL)


async def bring_in(call: Call) -> Response:
    """Brings sessions in. Only who may lift labels brings in turns that are `shareable`; the others' become
    `local_only`."""
    store = store_of(call)
    brought = await asyncio.to_thread(_brought, await _body(call))
    keeps_labels = call.principal.may("declassify")
    made: list[ImportedShape] = []
    for one in brought:
        checked_tags(one.tags)
        lowered, kept = (0, one) if keeps_labels else _lowered(one)
        timeout_s = call.server.runtime.settings.sessions.turn_timeout_s
        record = await shelf.bring_in(store, call.principal.owner, kept, turn_timeout_s=timeout_s)
        made.append(
            ImportedShape(
                session_id=record.session_id, title=record.title, turns=len(kept.turns), lowered=lowered
            )
        )
    return reply(ImportPage(sessions=tuple(made)), 201)


def _brought(data: bytes) -> list[Brought]:
    if data.startswith(_SQLITE):
        raise invalid("a database is not taken here; bring it in with mead sessions import")
    try:
        return sessions_in(data.decode("utf-8-sig"), "the body")
    except UnicodeDecodeError:
        raise invalid("the body is no text in UTF-8") from None
    except TransferError as error:
        raise invalid(str(error)) from None


def _lowered(brought: Brought) -> tuple[int, Brought]:
    count = sum([turn.label == "shareable" for turn in brought.turns])
    turns = [msgspec.structs.replace(turn, label="local_only") for turn in brought.turns]
    return count, msgspec.structs.replace(brought, turns=tuple(turns))


async def _body(call: Call) -> bytes:
    try:
        return await call.request.body()
    except ClientDisconnect:
        raise Problem(499, "cancelled", "the client went away") from None


async def record_of(call: Call) -> SessionRecord:
    """The session that the path names. Raises `Problem` if it is not the caller's owner's."""
    store, owner = store_of(call), call.principal.owner
    record = await store.get_session(owner, call.request.path_params["session_id"])
    if record is None:
        raise no_such_session()
    return record


def who(call: Call) -> str:
    """Who did something, for the audit chain."""
    return "nobody in particular" if call.principal.token_id is None else f"token {call.principal.token_id}"


# Pages


def _cursor(record: SessionRecord) -> str:
    data = msgspec.json.encode((record.updated_at, record.session_id))
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _place(cursor: str) -> tuple[float, str]:
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(data, type=tuple[float, str])
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        raise invalid("it is no cursor of this server", param="cursor") from None
