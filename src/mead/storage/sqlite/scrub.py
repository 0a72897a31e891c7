"""Makes sure that deleted text is in no file any more.

`secure_delete` overwrites what is deleted, but not the copies that SQLite leaves in the gaps of pages when it
moves rows between them; so the database is written anew (`VACUUM`), and the write-ahead log emptied. That
takes about half a second for 100 MB, in which nobody else writes. The table `chores` remembers that it is to
be done, in case that the process dies before.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from mead.storage.sqlite.schema import backups

READERS_MS = 2000
"""How long readers of other processes are waited for, who keep the write-ahead log from being emptied."""
IN_MEMORY_BYTES = 64 * 2**20
"""A database up to this size is written anew by way of memory, a larger one by way of a temporary file."""


def note(db: sqlite3.Connection) -> None:
    """Remembers, within the transaction that deletes, that there is something to scrub."""
    db.execute("INSERT OR IGNORE INTO chores VALUES ('scrub')")


def is_due(db: sqlite3.Connection) -> bool:
    """Whether something was deleted and not scrubbed."""
    return db.execute("SELECT 1 FROM chores WHERE name = 'scrub'").fetchone() is not None


def scrub(db: sqlite3.Connection, path: Path) -> bool:
    """Scrubs, backups included. Call it with the write lock held, and outside a transaction.

    False if a reader of another process stood in the way: then it is to be done again.
    """
    for backup in backups(path):
        backup.unlink(missing_ok=True)
    if path.stat().st_size > IN_MEMORY_BYTES:
        db.execute("PRAGMA temp_store=FILE")
    try:
        db.execute("VACUUM")
    finally:
        db.execute("PRAGMA temp_store=MEMORY")
    if not empty_log(db):
        return False
    db.execute("DELETE FROM chores WHERE name = 'scrub'")
    return True


def empty_log(db: sqlite3.Connection) -> bool:
    """Empties the write-ahead log; false if a reader stood in the way."""
    (before,) = db.execute("PRAGMA busy_timeout").fetchone()
    db.execute(f"PRAGMA busy_timeout={READERS_MS}")
    try:
        busy, _, _ = db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    finally:
        db.execute(f"PRAGMA busy_timeout={before}")
    return not busy
