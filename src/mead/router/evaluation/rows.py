"""Reads the rows of an evaluation: JSON lines, plain or gzip'd, one file for each set."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

_ENDINGS = (".jsonl.gz", ".jsonl")
_Row = TypeVar("_Row")


class DataError(ValueError):
    """The data cannot be used; the message names the file, and the line and field where there is one."""


class RawRow(NamedTuple):
    """A row as it was read, and where it stands. Lines are counted from 1."""

    file: Path
    line: int
    fields: dict[str, object]

    def convert(self, type: type[_Row]) -> _Row:
        """The row as a struct; fields that the struct lacks are passed over. Raises `DataError`."""
        try:
            return msgspec.convert(self.fields, type)
        except msgspec.ValidationError as error:
            raise self.error(str(error)) from None

    def error(self, what: str) -> DataError:
        """What is wrong with the row, to be raised."""
        return DataError(f"{self.file}, line {self.line}: {what}")


def read_located(path: Path) -> dict[str, list[RawRow]]:
    """The rows of a file, or of each `.jsonl` and `.jsonl.gz` file of a folder, with their places.

    A set has its file's name without the ending. Empty lines are passed over. Raises `DataError` for a file
    that cannot be read, is empty or holds anything but JSON objects, and for a folder without such files.
    """
    return {_set_name(file): list(_rows_of(file)) for file in _files(path)}


def read_rows(path: Path) -> dict[str, list[dict[str, object]]]:
    """The same without the places."""
    return {name: [row.fields for row in rows] for name, rows in read_located(path).items()}


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted([file for file in path.iterdir() if file.name.endswith(_ENDINGS)])
        if not files:
            raise DataError(f"{path}: there is no .jsonl or .jsonl.gz file in this folder")
    elif not path.exists():
        raise DataError(f"{path}: there is no such file or folder")
    else:
        files = [path]
    names = [_set_name(file) for file in files]
    for name in names:
        if names.count(name) > 1:
            raise DataError(f"{path}: two files are named {name!r}")
    return files


def _set_name(file: Path) -> str:
    for ending in _ENDINGS:
        if file.name.endswith(ending):
            return file.name.removesuffix(ending)
    return file.stem


def _rows_of(file: Path) -> Iterator[RawRow]:
    decoder = msgspec.json.Decoder(dict[str, object])
    found = False
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        try:
            fields = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataError(f"{file}, line {number}: no JSON object: {error}") from None
        found = True
        yield RawRow(file, number, fields)
    if not found:
        raise DataError(f"{file}: there are no rows")


def _lines(file: Path) -> list[bytes]:
    try:
        data = file.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: it cannot be read: {error}") from None
    # Not `splitlines`: JSON may hold other line ends as they are.
    return data.split(b"\n")
