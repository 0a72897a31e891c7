"""What SQLite and the system say when something is wrong, as one sentence with what to do about it."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from mead.storage.errors import StoreError

_OF_ERRNO = {
    errno.ENOSPC: sqlite3.SQLITE_FULL,
    errno.EDQUOT: sqlite3.SQLITE_FULL,
    errno.EROFS: sqlite3.SQLITE_READONLY,
    errno.EACCES: sqlite3.SQLITE_READONLY,
    errno.EPERM: sqlite3.SQLITE_READONLY,
}


def store_error(error: sqlite3.Error | OSError, path: Path) -> StoreError:
    """The error as a `StoreError` about the database at `path`."""
    code = _primary_code(error)
    if code == sqlite3.SQLITE_FULL:
        return StoreError("disk_full", f"There is no room left for {path}: free some space, and go on.")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreError(
            "read_only", f"{path} cannot be written: give your user write access to it and to its folder."
        )
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return locked(path)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return damaged(path)
    return StoreError("io", f"{path} cannot be used ({_words(error)}): check the disk and the folder.")


def locked(path: Path) -> StoreError:
    """Another program holds the file."""
    return StoreError("locked", f"{path} is locked by another program: end it or wait, then try again.")


def damaged(path: Path) -> StoreError:
    """The file is not what was written."""
    return StoreError(
        "corrupt",
        f"{path} is damaged or no database: move it away with its -wal file, and put a backup in its place.",
    )


def is_of_the_operation(error: BaseException) -> bool:
    """Whether only one operation failed, and not the file under it."""
    if not isinstance(error, sqlite3.Error):
        return True
    return _primary_code(error) in (sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, None)


def _primary_code(error: sqlite3.Error | OSError) -> int | None:
    if isinstance(error, OSError):
        return _OF_ERRNO.get(error.errno or 0, sqlite3.SQLITE_IOERR)
    code: int | None = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def _words(error: sqlite3.Error | OSError) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)
