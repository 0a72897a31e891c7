"""The tables, by numbered scripts: a database is brought to the newest form when it is opened.

`PRAGMA user_version` says how many scripts a database has seen. Before a database that holds something is
changed, it is copied to a file beside it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from mead.storage.errors import StoreError
from mead.storage.sqlite.files import beside, make_private_file

APPLICATION_ID = 0x6D656164
"""Says in the file's head that it is mead's."""
BACKUP = "-backup-v"
"""What follows the database's name in that of a backup, before the version that it is of."""


def scripts() -> tuple[str, ...]:
    """The migrations, the first one first."""
    folder = resources.files("mead.storage.sqlite") / "migrations"
    names = sorted([entry.name for entry in folder.iterdir() if entry.name.endswith(".sql")])
    return tuple([(folder / name).read_text(encoding="utf-8") for name in names])


def migrate(db: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    """Brings a database to the newest form. Call it with the write lock held.

    Each script is applied whole or not at all. Raises `StoreError`: `too_new` for a database from the future,
    `corrupt` for that of another program; `sqlite3.Error`.
    """
    version = _pragma(db, "user_version")
    if version > len(migrations):
        raise StoreError(
            "too_new",
            f"{path} is of a newer mead (its format is {version}, this one knows {len(migrations)}): upgrade "
            "mead, or name another file.",
        )
    is_empty = db.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
    if not is_empty and _pragma(db, "application_id") != APPLICATION_ID:
        raise StoreError("corrupt", f"{path} is a database of another program: name another file.")
    if not is_empty and version < len(migrations):
        _back_up(db, beside(path, f"{BACKUP}{version}"))
    for number, script in enumerate(migrations[version:], version + 1):
        _apply(db, script, number)


def touch(db: sqlite3.Connection) -> None:
    """Writes something, and so raises `sqlite3.Error` for a file that SQLite could only open to read."""
    db.execute(f"PRAGMA user_version={_pragma(db, 'user_version')}")


def backups(path: Path) -> list[Path]:
    """The copies that migrations have made."""
    return [place for place in path.parent.iterdir() if place.name.startswith(path.name + BACKUP)]


def _apply(db: sqlite3.Connection, script: str, number: int) -> None:
    try:
        db.executescript(
            f"BEGIN IMMEDIATE;\n{script}\n;PRAGMA application_id={APPLICATION_ID};"
            f"PRAGMA user_version={number};COMMIT;"
        )
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _back_up(db: sqlite3.Connection, target: Path) -> None:
    unfinished = target.with_name(target.name + "~")
    unfinished.unlink(missing_ok=True)
    make_private_file(unfinished)
    copy = sqlite3.connect(unfinished)
    try:
        db.backup(copy)
        copy.execute("PRAGMA journal_mode=DELETE")  # or opening the copy would leave a -wal beside it
    finally:
        copy.close()
    os.replace(unfinished, target)


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])
