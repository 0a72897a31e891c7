"""Small files that only their owner may read: read whole, and written whole or not at all.

No link is followed: a file that is one is not read, and is replaced when it is written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

MAX_BYTES = 2**24
"""How much of a file is read at most."""

# Without blocking, should it be a pipe.
_READ = os.O_RDONLY | os.O_NONBLOCK | getattr(os, "O_NOFOLLOW", 0) | os.O_CLOEXEC


def read_private(path: Path, *, limit: int = MAX_BYTES) -> bytes:
    """What is in a file, at most `limit` bytes of it.

    Raises `OSError`: `FileNotFoundError` for one that is not there, and for a link one that says so.
    """
    try:
        handle = os.open(path, _READ)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link") from error
        raise
    with os.fdopen(handle, "rb") as file:
        return file.read(limit)


def write_private(path: Path, data: bytes) -> None:
    """Writes a file of mode 0600 in place of the one that is there. Its folder must be there.

    Raises `OSError`, and then the file is as it was.
    """
    new = _written(path, data)
    try:
        os.replace(new, path)
    except BaseException:
        _remove(new)
        raise


def create_private(path: Path, data: bytes) -> bool:
    """Writes a file of mode 0600 that is not there yet; false, and nothing is changed, if it is. Of several
    processes that try, one makes it, and no one ever sees part of it. Raises `OSError`."""
    new = _written(path, data)
    try:
        os.link(new, path)
    except FileExistsError:
        return False
    finally:
        _remove(new)
    return True


def _written(path: Path, data: bytes) -> str:
    """A file beside `path` that holds `data`, of mode 0600."""
    handle, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except BaseException:
        _remove(new)
        raise
    return new


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
