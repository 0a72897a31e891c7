"""The files of a database: private ones, the lock of those who write, and the sign that a process lives.

Beside `mead.db` (and SQLite's own `-wal` and `-shm`) there are `mead.db-lock`, which is locked around each
commit and checkpoint, and the folder `mead.db-live` with a file for each process that has the database open.
A process holds a lock on its own file for as long as it lives: the system drops it with the process.
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import stat
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mead.settings.files import make_private_folder
from mead.storage.errors import StoreError
from mead.storage.sqlite.faults import locked

_NEW = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN: weakref.WeakSet[_Locked] = weakref.WeakSet()


def make_private_file(path: Path) -> None:
    """Makes an empty file of mode 0600, or makes sure of the mode of one that is there.

    A file that is there is not opened: closing it would drop the locks that SQLite holds on it. Raises
    `StoreError` (`unsafe`) for a link, for what is no file, and for somebody else's file; `OSError`.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        try:
            os.close(os.open(path, _NEW | os.O_EXCL, 0o600))
            return
        except FileExistsError:
            found = path.lstat()
    check_private(path, found)
    if stat.S_IMODE(found.st_mode) & 0o077:
        path.chmod(0o600)


def check_private(path: Path, found: os.stat_result) -> None:
    """Raises `StoreError` for a file that is not plainly this user's own."""
    if not stat.S_ISREG(found.st_mode):
        what = "is a link" if stat.S_ISLNK(found.st_mode) else "is no file"
        raise StoreError("unsafe", f"{path} {what}, and mead follows none: name the file itself.")
    if found.st_uid not in (os.geteuid(), 0) and os.geteuid() != 0:
        raise StoreError("unsafe", f"{path} belongs to another user: name a file of your own.")


def beside(path: Path, suffix: str) -> Path:
    """The file of the database at `path` that ends in `suffix`."""
    return path.with_name(path.name + suffix)


def prepare(path: Path) -> None:
    """Makes the folder and the files of a database, as far as they are missing, for this user alone.

    Raises `StoreError` (`unsafe`), `OSError`.
    """
    make_private_folder(path.parent)
    make_private_file(path)
    for suffix in ("-wal", "-shm"):
        side = beside(path, suffix)
        if side.is_symlink() or side.exists():
            make_private_file(side)
    make_private_folder(beside(path, "-live"))


class _Locked:
    """An open file that can be locked. A forked child lets go of it: the lock is its parent's."""

    def __init__(self, path: Path) -> None:
        try:
            self.fd = os.open(path, _NEW, 0o600)
        except OSError as error:
            if path.is_symlink():
                raise StoreError("unsafe", f"{path} is a link, and mead follows none: remove it.") from error
            raise
        _OPEN.add(self)

    def try_lock(self) -> bool:
        """Takes the lock, if nobody has it."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def _after_fork() -> None:
    for file in list(_OPEN):
        file.close()


os.register_at_fork(after_in_child=_after_fork)


class WriteLock:
    """The lock that is held around each commit and checkpoint, by one process at a time."""

    def __init__(self, path: Path, *, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._file = _Locked(beside(path, "-lock"))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Holds the lock. Raises `StoreError` (`locked`) if others keep it for too long."""
        if not self._file.try_lock():
            self._wait()
        try:
            yield
        finally:
            self._file.unlock()

    def _wait(self) -> None:
        # Polled, for flock knows no time limit. The pauses are uneven, so that two who write all the time do
        # not keep step with each other.
        due = time.monotonic() + self._timeout_s
        while not self._file.try_lock():
            if time.monotonic() > due:
                raise locked(self._path)
            time.sleep(random.uniform(0.0002, 0.001))

    def close(self) -> None:
        """Closes the file. The lock must not be held."""
        self._file.close()


class Life:
    """The sign that this process has the database open. `name` is what its leases are held under."""

    def __init__(self, path: Path) -> None:
        """Call it with the write lock held: nobody may take the new file for a dead process's."""
        self._folder = beside(path, "-live")
        self.name = secrets.token_hex(8)
        self._file = _Locked(self._folder / self.name)
        self._file.try_lock()

    def is_alive(self, name: str) -> bool:
        """Whether the process with this sign still runs. Call it with the write lock held."""
        if name == self.name:
            return True
        if not (self._folder / name).exists():
            return False
        file = _Locked(self._folder / name)
        try:
            return not file.try_lock()
        finally:
            file.close()

    def clear(self) -> None:
        """Removes the signs of dead processes. Call it with the write lock held, once they hold nothing."""
        for name in os.listdir(self._folder):
            if not self.is_alive(name):
                (self._folder / name).unlink(missing_ok=True)

    def end(self) -> None:
        """Removes the own sign. May be called twice."""
        (self._folder / self.name).unlink(missing_ok=True)
        self._file.close()
