"""Which store a URL names."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mead.storage.protocol import Store


def open_store(url: str) -> Store:
    """The store at a URL, yet to be opened: `memory://`, or `sqlite:///` and an absolute path, which is taken
    as it is written: `sqlite:////folder/mead.db`.

    Raises `ValueError` for any other URL.
    """
    if url == "memory://":
        from mead.storage.memory import MemoryStore

        return MemoryStore()
    scheme, _, path = url.partition("://")
    if scheme == "sqlite":
        if not path.startswith("//") or path.endswith("/") or "\0" in path:
            raise ValueError(
                f"the store {url!r} names no file by its whole path; write sqlite:/// and then that path, "
                "for example sqlite:////home/me/mead.db"
            )
        from mead.storage.sqlite import SqliteStore

        return SqliteStore(path[1:])
    raise ValueError(f"mead knows no store {url!r}; use memory:// or sqlite:////folder/mead.db")
