"""Which store a URL names."""

from __future__ import annotations

from pathlib import Path

import pytest

from mead.storage import open_store
from mead.storage.memory import MemoryStore
from mead.storage.sqlite import SqliteStore


def test_a_url_names_a_store() -> None:
    store = open_store("sqlite:////data/my own/mead.db")

    assert isinstance(open_store("memory://"), MemoryStore)
    assert isinstance(store, SqliteStore)
    assert store.path == Path("/data/my own/mead.db")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "sqlite:///mead.db",
        "sqlite://",
        "sqlite:////data/",
        "sqlite:////a\0b",
        "redis://x",
        "/a.db",
    ],
)
def test_any_other_url_is_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(ValueError, match=r"use memory://|write sqlite:///"):
        open_store(url)
