"""Both stores keep the promises of the protocol."""

from __future__ import annotations

from pathlib import Path

from mead.testing.stores import StoreConformance


class TestMemory(StoreConformance):
    survives = False

    def url(self, folder: Path) -> str:
        return "memory://"


class TestSqlite(StoreConformance):
    def url(self, folder: Path) -> str:
        return f"sqlite:///{folder}/data/mead.db"
