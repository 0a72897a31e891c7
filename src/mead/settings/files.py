"""Folders and files that are for their owner alone."""

from __future__ import annotations

from pathlib import Path


def make_private_folder(folder: Path) -> None:
    """Makes a folder of mode 0700, and those above it that are missing. One that is there stays as it is.

    Raises `OSError`.
    """
    missing = [folder, *folder.parents]
    missing = missing[: next((at for at, place in enumerate(missing) if place.exists()), len(missing))]
    for place in reversed(missing):
        place.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)  # raises where a file stands in its place
