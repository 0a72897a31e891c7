"""The store in a SQLite file, which several processes may share."""

from mead.storage.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
