"""Opens the store for the commands that look at what was kept."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

from mead.cli._terminal import fail_usage, say
from mead.sessions.runtime import Runtime
from mead.sessions.shelf import one_line as one_line
from mead.sessions.sync import SyncRuntime
from mead.settings import ConfigError, Settings, load
from mead.storage import Store, StoreError, open_store
from mead.storage.protocol import SessionRecord

_T = TypeVar("_T")
OWNER = "local"
TITLE_CHARS = 60


def store_url(settings: Settings) -> str:
    """Where the commands keep sessions: what the settings say, else a file in the data folder."""
    if settings.storage.url is not None:
        return settings.storage.url
    return f"sqlite:///{(settings.data_folder / 'mead.db').absolute()}"


def is_there(settings: Settings) -> bool:
    """Whether anything was ever kept: a command that only looks makes no file."""
    return settings.storage.url is not None or (settings.data_folder / "mead.db").exists()


def store_settings(config: Path | None) -> Settings:
    """The settings of a command about what was kept. Ends the program where they are wrong."""
    try:
        settings = load(config)
    except ConfigError as error:
        fail_usage(str(error))
    for warning in settings.warnings:
        say(f"warning: {warning}")
    return settings


async def find_session(store: Store, wanted: str) -> SessionRecord | None:
    """The session that a word means: an id, its beginning, or `last`, which is the last used one that has a
    turn. `None` for a word that fits none, or several."""
    if (record := await store.get_session(OWNER, wanted)) is not None:
        return record
    if wanted == "last":
        found = await _last_with_a_turn(store)
    else:
        found = [name for name in await _session_ids(store) if wanted and name.startswith(wanted)]
    return await store.get_session(OWNER, found[0]) if len(found) == 1 else None


async def _last_with_a_turn(store: Store) -> list[str]:
    """The last used session, unless its first turn has failed: then nobody means that one."""
    recent = await store.list_sessions(OWNER, limit=50)
    for record in recent:
        if record.version or await store.turns_of(record.session_id):
            return [record.session_id]
    return [record.session_id for record in recent[:1]]


async def _session_ids(store: Store) -> list[str]:
    found: list[str] = []
    before: tuple[float, str] | None = None
    while page := await store.list_sessions(OWNER, limit=1000, before=before):
        found += [record.session_id for record in page]
        before = (page[-1].updated_at, page[-1].session_id)
    return found


def not_one(wanted: str) -> str:
    """Says that a word means no session, or several."""
    if wanted == "last":
        return "no session was kept yet"
    return f"{wanted!r} is the beginning of no session's id, or of several; `mead sessions list` shows them"


def interruption(number: int) -> str:
    """Tells of a turn that a crash cut off."""
    return f"Turn {number} was interrupted: its process died in it. Nothing of it is in the history."


def continued(runtime: SyncRuntime, wanted: str) -> str:
    """The id of the session that a word means, to go on with it; says what was interrupted in it. Ends the
    program with a sentence where the word means none."""
    store = runtime.runtime.store
    assert store is not None  # the runtimes of commands have one

    async def look(_: Runtime) -> tuple[str, list[int]] | None:
        record = await find_session(store, wanted)
        if record is None:
            return None
        turns = await store.turns_of(record.session_id)
        last = turns[-1].number if turns else 0
        interrupted = await store.interrupted_turns(record.session_id)
        return record.session_id, [turn.number for turn in interrupted if turn.number > last]

    found = runtime.submit(look).result()
    if found is None:
        fail_usage(not_one(wanted))
    session_id, interrupted = found
    for number in interrupted:
        say(interruption(number))
    return session_id


def title_of(text: str) -> str | None:
    """What a session is called that begins with a text: its first line, short."""
    line = one_line(text.strip().partition("\n")[0])
    return (line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1] + "…") or None


@contextlib.contextmanager
def saying_faults() -> Iterator[None]:
    """Ends the program with a sentence where the store cannot be used."""
    try:
        yield
    except StoreError as error:
        fail_usage(str(error))


def with_store(settings: Settings, work: Callable[[Store], Awaitable[_T]], *, makes: bool = False) -> _T:
    """Runs `work` with the store. Ends the program with a sentence where it cannot be used. Where nothing was
    ever kept it is an empty one, and no file is made, unless `makes` says that `work` brings something."""

    async def run() -> _T:
        store = open_store(store_url(settings) if makes or is_there(settings) else "memory://")
        await store.open()
        try:
            return await work(store)
        finally:
            await store.aclose()

    with saying_faults():
        return asyncio.run(run())
