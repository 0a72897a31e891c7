"""Where sessions, their journal and the ledger are kept: in memory, or in a SQLite file."""

from mead.storage.errors import Fenced, StoreError
from mead.storage.protocol import Store
from mead.storage.urls import open_store

__all__ = ["Fenced", "Store", "StoreError", "open_store"]
