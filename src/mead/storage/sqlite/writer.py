"""The thread that writes, with group commit: operations that wait are committed together.

The fsync that makes them durable is shared, and each is answered after the commit. Only this thread's
connection commits and checkpoints, and only with the file's lock held: of two connections that write and
checkpoint at the same time SQLite up to 3.51.2 can corrupt the write-ahead log.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

from mead.storage.errors import StoreError
from mead.storage.sqlite import leases, schema
from mead.storage.sqlite.faults import is_of_the_operation, store_error
from mead.storage.sqlite.files import Life, WriteLock, make_private_file, prepare
from mead.storage.sqlite.scrub import is_due, scrub
from mead.storage.sqlite.workers import Op, Worker, connect

OnStep: TypeAlias = Callable[[str], object]

SCRUB_AGAIN_S = 5.0
"""How long to wait before deleted text is scrubbed again, where that was not possible."""

_log = logging.getLogger("mead.storage")


class Writer(Worker):
    """Writes. `before_close` is called on its thread before the connection is closed, `on_step` before and
    after every write, for tests that stop it there."""

    def __init__(
        self,
        path: Path,
        *,
        lock_timeout_s: float,
        on_step: OnStep | None = None,
        before_close: Callable[[], object],
    ) -> None:
        super().__init__(path, "mead-store-writer")
        self._before_close = before_close
        self._lock_timeout_s = lock_timeout_s
        self._on_step = on_step or (lambda _: None)
        self._scrub_due = False
        self._lock: WriteLock
        self.life: Life

    def open(self) -> None:
        prepare(self.path)
        self._lock = WriteLock(self.path, timeout_s=self._lock_timeout_s)
        try:
            with self._lock.held():
                self._open_locked()
        except BaseException:
            self._lock.close()
            raise

    def _open_locked(self) -> None:
        make_private_file(self.path)  # again: whoever had the lock may have moved it away
        self.db = connect(self.path, timeout_s=self._lock_timeout_s)
        try:
            self.db.execute("PRAGMA journal_mode=WAL")
            self.db.execute("PRAGMA synchronous=FULL")
            self.db.execute("PRAGMA secure_delete=ON")
            schema.migrate(self.db, self.path, schema.scripts())
            self.life = Life(self.path)
            self._recover()
        except BaseException:
            self.db.close()
            raise

    def _recover(self) -> None:
        """Frees what dead processes have left."""
        try:
            with self.db:
                self.db.execute("BEGIN IMMEDIATE")
                leases.recover_dead(self.db, self.life)
                schema.touch(self.db)
            self._scrub()
            self.life.clear()
        except BaseException:
            self.life.end()
            raise

    def _first(self) -> Op[object] | None:
        while self._scrub_due:
            try:
                return self._queue.get(timeout=SCRUB_AGAIN_S)
            except queue.Empty:
                self._scrub_alone()
        return self._queue.get()

    def handle(self, batch: list[Op[object]]) -> None:
        try:
            with self._lock.held():
                self._commit(batch)
                if self._scrub_due or any(op.scrubs for op in batch):
                    self._scrub()
        except StoreError as error:  # the lock was not to be had; nothing was begun
            _fail_all(batch, error)
        except OSError as error:
            _fail_all(batch, store_error(error, self.path), error)
        for op in batch:
            if op.error is not None and op.future is None:
                _log.error("a write that nobody waits for failed: %s", op.error)

    def _commit(self, batch: list[Op[object]]) -> None:
        """One transaction for all of them, with a savepoint for each."""
        db = self.db
        try:
            db.execute("BEGIN IMMEDIATE")
            for op in batch:
                self._on_step("before a write")
                db.execute("SAVEPOINT op")
                try:
                    op.value = op.run(db)
                except Exception as error:
                    if not (db.in_transaction and is_of_the_operation(error)):
                        raise
                    db.execute("ROLLBACK TO op")
                    op.fail(error)
                db.execute("RELEASE op")
                self._on_step("after a write")
            db.execute("COMMIT")
            self._on_step("after a commit")
        except sqlite3.Error as error:
            self._roll_back()
            self._commit_singly(batch, error)
        except Exception as error:  # a bug: the thread must outlive it
            self._roll_back()
            for op in batch:
                op.fail(error)

    def _roll_back(self) -> None:
        if self.db.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # then it is rolled back already
                self.db.execute("ROLLBACK")

    def _commit_singly(self, batch: list[Op[object]], error: sqlite3.Error) -> None:
        """After a transaction that failed: one operation that finds no room must not sink the others."""
        fault = store_error(error, self.path)
        if len(batch) == 1 or fault.fault != "disk_full":
            _fail_all(batch, fault, error)
            return
        for op in batch:
            op.value = op.error = None
            self._commit([op])

    def _scrub(self) -> None:
        """Leaves nothing of what was deleted in any file; see `scrub`."""
        try:
            self._scrub_due = is_due(self.db) and not scrub(self.db, self.path)
        except (sqlite3.Error, OSError) as error:
            self._scrub_due = True
            _log.error("deleted text could not be scrubbed yet: %s", store_error(error, self.path))
            return
        if self._scrub_due:
            _log.warning("another program reads %s: deleted text is scrubbed once it has ended", self.path)

    def _scrub_alone(self) -> None:
        with contextlib.suppress(StoreError):  # somebody else is busy; the next time will do
            with self._lock.held():
                self._scrub()

    def close(self) -> None:
        self._before_close()
        try:
            with self._lock.held():
                self._let_go()
        finally:
            self.db.close()  # in case that somebody else would not give the lock
            self.life.end()
            self._lock.close()

    def _let_go(self) -> None:
        """Ends what still runs. Who is the last to close empties and removes the write-ahead log."""
        try:
            with self.db:
                self.db.execute("BEGIN IMMEDIATE")
                leases.recover(self.db, self.life.name)
        finally:
            self.db.close()


def _fail_all(batch: Iterable[Op[object]], fault: StoreError, cause: Exception | None = None) -> None:
    for op in batch:
        error = StoreError(fault.fault, str(fault))  # one for each, for each is raised somewhere else
        error.__cause__ = cause
        op.fail(error)
