"""The thread that reads. It never writes, and so never checkpoints."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from mead.storage.sqlite.faults import damaged, store_error
from mead.storage.sqlite.workers import Op, Worker, connect

LOCK_TIMEOUT_S = 10.0
"""How long a read waits for another program, in the rare case that it must."""


class Reader(Worker):
    """Reads, each operation in a snapshot of its own."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "mead-store-reader")

    def open(self) -> None:
        self.db = connect(self.path, timeout_s=LOCK_TIMEOUT_S)
        self.db.execute("PRAGMA query_only=ON")

    def handle(self, batch: list[Op[object]]) -> None:
        for op in batch:
            try:
                self.db.execute("BEGIN")
                try:
                    op.value = op.run(self.db)
                finally:
                    self.db.execute("ROLLBACK")
            except sqlite3.Error as error:
                op.fail(store_error(error, self.path))
            except msgspec.MsgspecError:
                op.fail(damaged(self.path))
            except Exception as error:
                op.fail(error)

    def close(self) -> None:
        self.db.close()
