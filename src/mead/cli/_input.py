"""Reads what a turn is made of: words on the command line, piped text, attached files."""

from __future__ import annotations

import mimetypes
import sys
from pathlib import Path

from mead.core.messages import DocumentBlock, ImageBlock

_MAX_FILE_BYTES = 32 * 1024 * 1024


class InputError(ValueError):
    """What was given cannot be read; the text says which and why."""


def piped_text() -> str:
    """What another program pipes in; nothing when standard input is a terminal or closed."""
    if sys.stdin is None or sys.stdin.closed or sys.stdin.isatty():
        return ""
    return sys.stdin.buffer.read().decode("utf-8", errors="replace")


def join_texts(*texts: str) -> str:
    """The texts that say something, one below the other."""
    return "\n\n".join([text.strip("\n") for text in texts if text.strip()])


def read_attachment(path: Path) -> str | ImageBlock | DocumentBlock:
    """A file: text becomes part of the message, under the file's name; a picture or a PDF an attachment.

    Raises `InputError` for a file that cannot be read, is too large, or is of another kind.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise InputError(f"{path} is {size:,} bytes long; the limit is {_MAX_FILE_BYTES:,}")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    media_type = mimetypes.guess_type(path.name)[0] or ""
    if media_type.startswith("image/") and media_type != "image/svg+xml":
        return ImageBlock(media_type, data)
    if media_type == "application/pdf":
        return DocumentBlock(media_type, data, path.name)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is neither text, nor a picture, nor a PDF") from error
    return f"{path.name}:\n{text}"
