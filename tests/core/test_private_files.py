"""Files for their owner alone: written whole, never through a link."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from mead.core.private_files import create_private, read_private, write_private


def test_a_file_is_written_whole_for_its_owner_alone_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"older")
    path.chmod(0o644)
    write_private(path, b"newer")

    assert read_private(path) == b"newer"
    assert read_private(path, limit=2) == b"ne"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["key"]


def test_a_link_is_not_read_and_is_replaced_when_written(tmp_path: Path) -> None:
    path, target = tmp_path / "key", tmp_path / "target"
    target.write_bytes(b"theirs")
    path.symlink_to(target)

    with pytest.raises(OSError, match="it is a link") as raised:
        read_private(path)
    assert raised.value.errno == errno.ELOOP
    write_private(path, b"mine")
    assert not path.is_symlink()
    assert target.read_bytes() == b"theirs"


def test_a_file_that_is_there_is_not_created_and_stays_as_it_is(tmp_path: Path) -> None:
    path, link = tmp_path / "key", tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")

    assert create_private(path, b"first")
    assert not create_private(path, b"second")
    assert not create_private(link, b"third"), "a link counts as there, whatever it points to"
    assert path.read_bytes() == b"first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["key", "link"]


def test_a_write_that_fails_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"older")

    def refuse(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "replace", refuse)

    with pytest.raises(OSError, match="full"):
        write_private(path, b"newer")
    assert path.read_bytes() == b"older"
    assert os.listdir(tmp_path) == ["key"]


def test_a_file_that_is_not_there_is_said_to_be_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_private(tmp_path / "key")
