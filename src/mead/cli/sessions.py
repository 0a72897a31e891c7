"""`mead sessions`: what was kept of earlier conversations."""

from __future__ import annotations

import datetime
import sys
import time
from pathlib import Path
from typing import Any

import click

from mead.cli._json import json_text, write_json
from mead.cli._open import TURN_TIMEOUT_S
from mead.cli._options import conversation_options
from mead.cli._store import (
    OWNER,
    find_session,
    interruption,
    not_one,
    one_line,
    store_settings,
    with_store,
)
from mead.cli._terminal import fail_usage, is_terminal, safe, say, write, write_answer
from mead.core.messages import text_of
from mead.sessions import shelf
from mead.sessions.transfer import TransferError, read_sessions, to_jsonl, to_markdown
from mead.storage import Store
from mead.storage.protocol import (
    AlreadyRunning,
    SessionRecord,
    StoredTurn,
)

_BUSY = "a turn of this session is running; wait for it, or end it"
_GONE = "the session is not there any more"
_MOST_DAYS = 36_500


@click.group("sessions")
def command() -> None:
    """List, show, continue, fork and delete earlier conversations."""


@command.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def list_command(config: Path | None, /, limit: int, as_json: bool) -> None:
    """List the sessions, the last used first."""

    async def look(store: Store) -> tuple[SessionRecord, ...]:
        return await store.list_sessions(OWNER, limit=limit)

    found = with_store(store_settings(config), look)
    if as_json:
        write_json({"ok": True, "sessions": [_record_json(record) for record in found]})
        return
    for record in found:
        at = datetime.datetime.fromtimestamp(record.updated_at).astimezone()
        tags = f"  [{one_line(', '.join(record.tags))}]" if record.tags else ""
        write(safe(f"{record.session_id:<18}{at:%Y-%m-%d %H:%M}  {_title(record.title)}{tags}"))
    if not found:
        say("No sessions were kept yet.")


@command.command("show")
@click.argument("session")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def show_command(config: Path | None, /, session: str, as_json: bool) -> None:
    """Show a session's turns. SESSION is an id, its beginning, or `last`."""

    async def look(store: Store) -> None:
        record = await _find(store, session)
        turns = await store.turns_of(record.session_id)
        interrupted = await store.interrupted_turns(record.session_id)
        effects = await store.untold_effects(record.session_id)
        if as_json:
            write_json(
                {
                    "ok": True,
                    "session": _record_json(record),
                    "turns": [_turn_json(turn) for turn in turns],
                    "interrupted": [turn.number for turn in interrupted],
                    "untold_effects": [
                        {"turn": row.turn, "name": row.name, "status": row.status} for row in effects
                    ],
                }
            )
            return
        write(safe(to_markdown(record, turns)), newline=False)
        for turn in interrupted:
            say(interruption(turn.number))
        for row in effects:
            say(f"{row.name}, called in turn {row.turn}: {row.status}; the history does not show it.")

    with_store(store_settings(config), look)


@command.command("resume")
@click.argument("session", default="last")
@conversation_options
@click.pass_obj
def resume_command(config: Path | None, /, session: str, **options: Any) -> None:
    """Go on with a session at the terminal; without a name, with the last one."""
    from mead.cli.chat import talk

    talk(config, options, resume=session)


@command.command("rename")
@click.argument("session")
@click.argument("title")
@click.pass_obj
def rename_command(config: Path | None, /, session: str, title: str) -> None:
    """Give a session a title."""

    async def rename(store: Store) -> None:
        await shelf.change(store, await _find(store, session), title=title)

    with_store(store_settings(config), rename)


@command.command("fork")
@click.argument("session")
@click.option("--turn", type=click.IntRange(min=0), help="The last turn to take along; all without it.")
@click.pass_obj
def fork_command(config: Path | None, /, session: str, turn: int | None) -> None:
    """Make a new session of an earlier one's turns; writes its id."""

    async def fork(store: Store) -> str:
        record = await _find(store, session)
        made = await shelf.fork(store, record, turn)
        if not isinstance(made, str):
            fail_usage(_GONE if made is None else str(made))
        return made

    write(with_store(store_settings(config), fork))


@command.command("rewind")
@click.argument("session")
@click.option("--turn", type=click.IntRange(min=0), required=True, help="The last turn that stays.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def rewind_command(config: Path | None, /, session: str, turn: int, yes: bool) -> None:
    """Delete the turns after one; what was done in them stays done."""

    async def look(store: Store) -> SessionRecord:
        record = await _find(store, session)
        missing = await shelf.find_missing(store, record.session_id, [turn] if turn else [])
        if missing is not None:
            fail_usage(str(missing))
        return record

    async def rewind(store: Store) -> None:
        rewound = await shelf.rewind(store, record, turn)
        if not isinstance(rewound, SessionRecord):
            fail_usage(_BUSY if isinstance(rewound, AlreadyRunning) else str(rewound or _GONE))

    settings = store_settings(config)
    record = with_store(settings, look)
    _confirm(f"Delete the turns of {record.session_id} after turn {turn}?", yes=yes)
    with_store(settings, rewind)


@command.command("export")
@click.argument("session")
@click.option(
    "--markdown", is_flag=True, help="Markdown to read, instead of JSON Lines that can be imported."
)
@click.pass_obj
def export_command(config: Path | None, /, session: str, markdown: bool) -> None:
    """Write a session to standard output."""

    async def export(store: Store) -> tuple[SessionRecord, tuple[StoredTurn, ...]]:
        record = await _find(store, session)
        turns = await store.turns_of(record.session_id)
        await shelf.note(store, OWNER, "export", record.session_id)
        return record, turns

    record, turns = with_store(store_settings(config), export)
    if markdown:
        write_answer(to_markdown(record, turns))
    else:
        write("\n".join([json_text(line) for line in to_jsonl(record, turns)]))


@command.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_obj
def import_command(config: Path | None, /, file: Path) -> None:
    """Bring sessions in: JSON Lines of mead, the log database of llm, an export of Open WebUI."""

    settings = store_settings(config)
    try:
        brought = read_sessions(file)
    except TransferError as error:
        fail_usage(str(error))

    async def bring(store: Store) -> None:
        for one in brought:
            timeout_s = settings.sessions.turn_timeout_s or TURN_TIMEOUT_S
            record = await shelf.bring_in(store, OWNER, one, turn_timeout_s=timeout_s)
            count = "1 turn" if len(one.turns) == 1 else f"{len(one.turns):,} turns"
            write(safe(f"{record.session_id}  {_title(record.title)}  {count}"))

    with_store(settings, bring, makes=True)


@command.command("delete")
@click.argument("session")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def delete_command(config: Path | None, /, session: str, yes: bool) -> None:
    """Delete a session, so that no file holds its text any more."""

    async def look(store: Store) -> SessionRecord:
        return await _find(store, session)

    async def delete(store: Store) -> None:
        if not await store.delete_session(OWNER, record.session_id):
            fail_usage(_GONE)
        await shelf.note(store, OWNER, "delete", record.session_id)

    settings = store_settings(config)
    record = with_store(settings, look)
    _confirm(f"Delete {record.session_id} {_title(record.title)}?", yes=yes)
    with_store(settings, delete)


@command.command("prune")
@click.option(
    "--older-than",
    "days",
    type=click.IntRange(1, _MOST_DAYS),
    metavar="DAYS",
    required=True,
    help="How many days ago a session must have been used last.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.pass_obj
def prune_command(config: Path | None, /, days: int, yes: bool) -> None:
    """Delete the sessions that were not used for some days, those of every owner."""

    async def prune(store: Store) -> int:
        count = await store.delete_older_than(time.time() - days * 86_400)
        await shelf.note(store, OWNER, "prune", "*", older_than_days=str(days), sessions=str(count))
        return count

    settings = store_settings(config)
    _confirm(f"Delete every session that was last used more than {days:,} days ago?", yes=yes)
    count = with_store(settings, prune)
    say("1 session was deleted." if count == 1 else f"{count:,} sessions were deleted.")


async def _find(store: Store, wanted: str) -> SessionRecord:
    """The session that a word means. Ends the program with a sentence where it is not one."""
    found = await find_session(store, wanted)
    if found is None:
        fail_usage(not_one(wanted))
    return found


def _confirm(question: str, *, yes: bool) -> None:
    if yes:
        return
    if not is_terminal(sys.stdin):
        fail_usage("this cannot be undone: run it at a terminal, or with --yes")
    if not click.confirm(safe(question), err=True):
        say("Nothing was changed.")
        sys.exit(1)


def _title(title: str | None) -> str:
    return one_line(title or "") or "(no title)"


def _record_json(record: SessionRecord) -> dict[str, object]:
    return {
        "session_id": record.session_id,
        "title": record.title,
        "tags": record.tags,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "parent": record.parent,
    }


def _turn_json(stored: StoredTurn) -> dict[str, object]:
    messages = stored.turn().decode()
    return {
        "turn": stored.number,
        "route": stored.route,
        "label": stored.label,
        "finished_at": stored.finished_at,
        "question": text_of(messages[0].content) if messages else "",
        "answer": text_of(messages[-1].content) if messages else "",
    }
