"""When the disk or the file is not in order: one clear sentence, and nothing lost."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from msgspec.structs import replace

from mead.storage import StoreError
from mead.storage.protocol import AuditEntry
from mead.storage.sqlite import SqliteStore, schema, writer
from mead.storage.sqlite.faults import store_error
from mead.storage.sqlite.workers import connect
from mead.testing.stores import exchange, session, take_turn

CONNECT = connect


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A database with one session of one turn."""
    store = SqliteStore(tmp_path / "mead.db")
    await store.open()
    await store.create_session(session())
    await take_turn(store)
    await store.aclose()
    return store.path


async def opened(path: Path) -> SqliteStore:
    """The store, opened, with little patience."""
    store = SqliteStore(path, lock_timeout_s=0.05)
    await store.open()
    return store


async def refusal(path: Path) -> StoreError:
    """Why the store cannot be opened."""
    with pytest.raises(StoreError) as raised:
        await opened(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)
    return raised.value


async def assert_nothing_is_lost(path: Path) -> None:
    store = await opened(path)
    assert await store.check() == ()
    assert await store.turns_of("s1") == (exchange(1),)
    assert await take_turn(store) == 2
    await store.aclose()


async def test_a_full_disk_fails_what_finds_no_room_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def small(path: Path, *, timeout_s: float) -> sqlite3.Connection:
        db = CONNECT(path, timeout_s=timeout_s)
        db.execute("PRAGMA max_page_count=40")
        return db

    monkeypatch.setattr(writer, "connect", small)
    store = await opened(path)
    large = [store.create_session(replace(session(f"l{n}"), state=bytes(200_000))) for n in range(3)]
    little = [store.create_session(session(f"s{n}")) for n in range(2, 5)]
    outcomes = await asyncio.gather(*large, *little, return_exceptions=True)
    listed = [record.session_id for record in await store.list_sessions("local")]
    await store.aclose()
    monkeypatch.undo()

    assert [getattr(outcome, "fault", None) for outcome in outcomes] == ["disk_full"] * 3 + [None] * 3
    assert "free some space" in str(outcomes[0])
    assert sorted(listed) == ["s1", "s2", "s3", "s4"]
    await assert_nothing_is_lost(path)


async def test_a_file_that_cannot_be_written_is_said_at_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(path: Path, *, timeout_s: float) -> sqlite3.Connection:
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=timeout_s, isolation_level=None)

    monkeypatch.setattr(writer, "connect", read_only)
    error = await refusal(path)
    monkeypatch.undo()

    assert error.fault == "read_only"
    assert "cannot be written" in str(error)
    await assert_nothing_is_lost(path)


@pytest.mark.parametrize(
    "number, fault", [(errno.EACCES, "read_only"), (errno.EROFS, "read_only"), (errno.ENOSPC, "disk_full")]
)
def test_what_the_system_says_becomes_a_sentence(number: int, fault: str) -> None:
    assert store_error(OSError(number, os.strerror(number)), Path("/mead.db")).fault == fault


async def test_another_programs_lock_is_waited_for_and_then_named(path: Path) -> None:
    store = await opened(path)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError) as raised:
        await store.create_session(session("s2"))
    at_opening = await refusal(path)
    other.close()
    await store.create_session(session("s3"))
    listed = [record.session_id for record in await store.list_sessions("local")]
    await store.aclose()

    assert raised.value.fault == at_opening.fault == "locked"
    assert sorted(listed) == ["s1", "s3"]
    await assert_nothing_is_lost(path)


async def test_another_process_that_hangs_in_a_commit_is_not_waited_for_for_ever(path: Path) -> None:
    store = await opened(path)
    fd = os.open(f"{path}-lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(StoreError, match="is locked by another program"):
        await store.create_session(session("s2"))
    os.close(fd)
    await store.create_session(session("s2"))
    await store.aclose()

    await assert_nothing_is_lost(path)


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mead.db"
    path.write_bytes(b"a diary, and no database" * 1000)
    error = await refusal(path)

    assert error.fault == "corrupt"
    assert path.read_bytes() == b"a diary, and no database" * 1000


def damage(path: Path) -> None:
    """Overwrites everything but the first page, which says what the tables are."""
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))


async def test_a_damaged_file_is_named_when_it_is_read(path: Path) -> None:
    store = await opened(path)
    for number in range(50):
        await store.create_session(replace(session(f"x{number}"), state=bytes(3000)))
    await store.aclose()
    damage(path)

    with pytest.raises(StoreError) as raised:
        store = await opened(path)
        try:
            await store.list_sessions("local")
        finally:
            await store.aclose()

    assert raised.value.fault == "corrupt"
    assert "put a backup in its place" in str(raised.value)


async def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "mead.db"
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE recipes (name TEXT)")
    theirs.close()
    error = await refusal(path)

    assert "of another program" in str(error)


async def test_a_database_from_the_future_is_left_alone(path: Path) -> None:
    newer = sqlite3.connect(path)
    newer.execute("PRAGMA user_version=99")
    newer.close()
    error = await refusal(path)
    older = sqlite3.connect(path)
    older.execute(f"PRAGMA user_version={len(schema.scripts())}")
    older.close()

    assert error.fault == "too_new"
    assert "upgrade mead" in str(error)
    await assert_nothing_is_lost(path)


def backups(path: Path) -> dict[str, int]:
    """The backups beside a database, and their modes."""
    found = path.parent.glob("mead.db-backup*")
    return {place.name: stat.S_IMODE(place.stat().st_mode) for place in found}


async def test_a_migration_leaves_a_backup_until_something_is_deleted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = (*schema.scripts(), "ALTER TABLE sessions ADD COLUMN mood TEXT;")
    monkeypatch.setattr(schema, "scripts", lambda: more)
    store = await opened(path)
    version_before = len(more) - 1
    backup = path.with_name(f"mead.db-backup-v{version_before}")
    made = backups(path)
    copy = sqlite3.connect(f"file:{backup}?immutable=1", uri=True)
    turns = copy.execute("SELECT count(*) FROM turns").fetchone()
    version = copy.execute("PRAGMA user_version").fetchone()
    copy.close()
    await store.create_session(session("s2"))
    await store.delete_session("local", "s2")
    await store.aclose()

    assert (turns, version) == ((1,), (version_before,))
    assert made == {backup.name: 0o600}
    assert backups(path) == {}
    await assert_nothing_is_lost(path)


async def test_a_database_of_the_first_form_is_brought_to_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.db"
    first = schema.scripts()[0]
    db = sqlite3.connect(path)
    db.executescript(f"{first};PRAGMA application_id={schema.APPLICATION_ID};PRAGMA user_version=1;")
    db.execute(
        "INSERT INTO sessions VALUES ('s1', 'local', 1, 2, NULL, '[]', '{}', 30, 'queue', NULL, NULL, 1, 1, "
        "1, NULL, NULL)"
    )
    turn = exchange(1, label="local_only")
    db.execute(
        "INSERT INTO turns (session_id, number, owner, status, finished_at, messages, plain, closed, label, "
        "tags) VALUES ('s1', 1, 'local', 'done', 3, ?, 1, 1, 'local_only', '[]')",
        (turn.messages,),
    )
    db.commit()
    db.close()
    store = await opened(path)
    listed = await store.list_sessions("local")
    turns = await store.turns_of("s1")
    unmarked = await store.unmarked_turns("local")
    await store.aclose()

    assert [(record.session_id, record.kind) for record in listed] == [("s1", "conversation")]
    assert [each.turn for each in unmarked] == list(turns), "its private text is still to be marked"
    assert turns[0].messages == turn.messages


async def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    more = (*schema.scripts(), "ALTER TABLE sessions ADD COLUMN mood TEXT; ALTER TABLE nothing RENAME TO x;")
    monkeypatch.setattr(schema, "scripts", lambda: more)
    await refusal(path)
    monkeypatch.undo()

    await assert_nothing_is_lost(path)


async def test_the_audit_log_cannot_be_changed_unseen(path: Path) -> None:
    store = await opened(path)
    for number in range(3):
        await store.append_audit(AuditEntry(at=float(number), owner="local", action="export", subject="s1"))
    await store.aclose()
    db = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        db.execute("DELETE FROM audit")
    db.execute("DROP TRIGGER audit_is_not_changed")
    db.execute("UPDATE audit SET subject = 's2' WHERE number = 2")
    db.commit()
    db.close()
    store = await opened(path)
    check = await store.verify_audit()
    await store.aclose()

    assert (check.rows, check.broken) == (3, 2)


async def test_a_bug_in_an_operation_reaches_its_caller_and_nobody_else(path: Path) -> None:
    store = await opened(path)
    broken = store.create_session(replace(session("s2"), title=object()))
    outcomes = await asyncio.gather(
        store.create_session(session("s3")),
        broken,
        store.create_session(session("s4")),
        return_exceptions=True,
    )
    await store.aclose()

    assert [outcome is None for outcome in outcomes] == [True, False, True]
    await assert_nothing_is_lost(path)
