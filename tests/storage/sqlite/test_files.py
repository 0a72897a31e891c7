"""The files of the store: for their owner alone, no link followed, and nothing of what was deleted."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import random
import sqlite3
import stat
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from mead.storage import StoreError
from mead.storage.protocol import AlreadyRunning, Begun, SessionChange, StoredTurn, TurnEnd
from mead.storage.sqlite import SqliteStore, scrub, writer
from mead.testing.stores import begun, session, start, take_turn


async def opened(path: Path) -> SqliteStore:
    """A store, opened."""
    store = SqliteStore(path, lock_timeout_s=5.0)
    await store.open()
    return store


def files_with(marker: str, folder: Path) -> list[str]:
    """The files that hold some text. Another process reads them: to close them here would drop the locks that
    SQLite holds on them."""
    found = subprocess.run(["grep", "-rlaF", marker, str(folder)], capture_output=True, text=True)
    return found.stdout.split()


async def test_files_and_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = await opened(tmp_path / "new" / "mead.db")
    finally:
        os.umask(before)
    await store.create_session(session())
    modes = {place.name: stat.S_IMODE(place.stat().st_mode) for place in (tmp_path / "new").rglob("*")}
    await store.aclose()

    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert modes.pop("mead.db-live") == 0o700
    assert {"mead.db", "mead.db-wal", "mead.db-shm", "mead.db-lock"} < modes.keys()
    assert set(modes.values()) == {0o600}


async def test_a_file_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "mead.db"
    await (await opened(path)).aclose()
    path.chmod(0o644)
    await (await opened(path)).aclose()

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["mead.db", "mead.db-wal", "mead.db-shm", "mead.db-lock"])
async def test_no_link_is_followed(tmp_path: Path, name: str) -> None:
    target = tmp_path / "elsewhere"
    target.write_text("precious")
    (tmp_path / name).symlink_to(target)

    with pytest.raises(StoreError, match="is a link") as raised:
        await opened(tmp_path / "mead.db")

    assert raised.value.fault == "unsafe"
    assert target.read_text() == "precious"


async def test_a_folder_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "mead.db").mkdir()

    with pytest.raises(StoreError, match="is no file"):
        await opened(tmp_path / "mead.db")


async def test_a_deleted_text_is_in_no_file(tmp_path: Path) -> None:
    chance = random.Random(4)
    store = await opened(tmp_path / "mead.db")
    alive: list[str] = []
    gone: list[str] = []
    for step in range(120):
        if chance.random() < 0.3 or not alive:
            alive.append(f"<{step}!>")
            text = (alive[-1] * chance.choice([5, 200, 900, 5000])).encode()
            await store.create_session(replace(session(alive[-1]), title=alive[-1], state=text))
        elif chance.random() < 0.8:
            name = chance.choice(alive)
            turn = await begun(store, name)
            text = (name * chance.choice([5, 200, 900, 5000])).encode()
            messages = StoredTurn(
                number=turn.number, messages=text, plain=True, closed=True, finished_at=chance.random()
            )
            end = TurnEnd(
                session_id=name, number=turn.number, status="done", finished_at=1.0, turn=messages, state=text
            )
            await store.end_turn(end, epoch=turn.epoch)
        else:
            gone.append(alive.pop(chance.randrange(len(alive))))
            await store.delete_session("local", gone[-1])
            assert files_with(gone[-1], tmp_path) == []
    found = [name for name in gone if files_with(name, tmp_path)]
    await store.aclose()

    assert len(gone) > 5
    assert found == []


async def test_a_reader_that_stands_in_the_way_only_delays_the_scrubbing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(scrub, "READERS_MS", 10)
    path = tmp_path / "mead.db"
    store = await opened(path)
    await store.create_session(replace(session(), title="<secret>"))
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sessions").fetchone()

    assert await store.delete_session("local", "s1")
    assert "another program reads" in caplog.text
    reader.close()
    await store.create_session(session("s2"))  # the next write tries again
    found = files_with("<secret>", tmp_path)
    await store.aclose()

    assert found == []


async def test_the_scrubbing_is_tried_again_without_being_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrub, "READERS_MS", 10)
    monkeypatch.setattr(writer, "SCRUB_AGAIN_S", 0.01)
    scrubbed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def watch(db: sqlite3.Connection, path: Path) -> bool:
        if done := scrub.scrub(db, path):
            loop.call_soon_threadsafe(scrubbed.set)
        return done

    monkeypatch.setattr(writer, "scrub", watch)
    store = await opened(tmp_path / "mead.db")
    await store.create_session(replace(session(), title="<secret>"))
    reader = sqlite3.connect(store.path, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM sessions").fetchone()
    await store.delete_session("local", "s1")
    reader.close()
    await scrubbed.wait()
    found = files_with("<secret>", tmp_path)
    await store.aclose()

    assert found == []


async def test_a_process_that_died_before_scrubbing_leaves_it_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mead.db"
    store = await opened(path)
    await store.create_session(replace(session(), title="<secret>", state=b"<secret>" * 1000))
    with monkeypatch.context() as patch:
        patch.setattr(writer, "scrub", lambda *_: True)
        await store.delete_session("local", "s1")
    await store.aclose()
    is_noted = sqlite3.connect(path)
    assert is_noted.execute("SELECT name FROM chores").fetchall() == [("scrub",)]
    is_noted.close()

    store = await opened(path)
    found = files_with("<secret>", tmp_path)
    await store.aclose()

    assert found == []


async def test_a_child_that_is_forked_does_not_keep_its_parents_turns_alive(tmp_path: Path) -> None:
    """The locks are held by open files, which a forked child shares: it must let go of them."""
    context = multiprocessing.get_context("spawn")
    parent = context.Process(target=_fork_and_die, args=(str(tmp_path / "mead.db"),))
    parent.start()
    await asyncio.to_thread(parent.join)
    child = int((tmp_path / "child").read_text())
    store = await opened(tmp_path / "mead.db")
    try:
        os.kill(child, 0)  # it is alive
        assert isinstance(await store.begin_turn(start()), Begun)
    finally:
        os.kill(child, 9)
        await store.aclose()


def _fork_and_die(path: str) -> None:
    asyncio.run(_begin_and_fork(Path(path)))


async def _begin_and_fork(path: Path) -> None:
    store = await opened(path)
    await store.create_session(session())
    await begun(store)
    child = os.fork()
    if child == 0:
        await asyncio.Event().wait()
    (path.parent / "child").write_text(str(child))
    os.kill(os.getpid(), 9)


async def test_signs_of_dead_processes_are_cleared(tmp_path: Path) -> None:
    live = tmp_path / "mead.db-live"
    one = await opened(tmp_path / "mead.db")
    (live / "0123456789abcdef").touch()
    two = await opened(tmp_path / "mead.db")
    both = len(list(live.iterdir()))
    await one.create_session(session())
    await begun(one)
    refused = await two.begin_turn(start())
    await one.aclose()
    free = await two.begin_turn(start())
    await two.aclose()

    assert both == 2
    assert refused == AlreadyRunning(number=1)
    assert isinstance(free, Begun)
    assert list(live.iterdir()) == []


async def test_a_store_serves_several_loops_at_once(tmp_path: Path) -> None:
    store = await opened(tmp_path / "mead.db")
    await store.create_session(session())
    await store.create_session(session("s2"))

    async def take_turns(name: str) -> list[int]:
        return [await take_turn(store, name) for _ in range(20)]

    elsewhere = asyncio.to_thread(lambda: asyncio.run(take_turns("s2")))
    here, there = await asyncio.gather(take_turns("s1"), elsewhere)
    await store.update_session("local", "s1", SessionChange(updated_at=1.0))
    await store.aclose()

    assert here == there == list(range(1, 21))
