"""Reads what a turn is made of: words on the command line, piped text, attached files."""

from __future__ import annotations

import mimetypes
import sys
from pathlib import Path

from mead.cli._terminal import is_terminal
from mead.core.messages import DocumentBlock, ImageBlock

MAX_FILE_BYTES = 32 * 1024 * 1024
# The settings limit what a turn may hold; this only keeps an endless pipe out of the memory.
MAX_PIPED_BYTES = 256 * 1024 * 1024


class InputError(ValueError):
    """What was given cannot be read; the text says which and why."""


def piped_text() -> str:
    """What another program pipes in; nothing when standard input is a terminal or closed.

    Bytes that are no UTF-8 are replaced. Raises `InputError` for what is no text at all, or endless.
    """
    if sys.stdin is None or sys.stdin.closed or is_terminal(sys.stdin):
        return ""
    try:
        data = sys.stdin.buffer.read(MAX_PIPED_BYTES + 1)
    except OSError as error:
        raise InputError(f"standard input cannot be read: {error.strerror}") from error
    if len(data) > MAX_PIPED_BYTES:
        raise InputError(f"what is piped in is longer than {MAX_PIPED_BYTES:,} bytes, the limit")
    if b"\0" in data:
        raise InputError("what is piped in is not text; give a picture or a PDF with --attach FILE")
    return data.decode("utf-8-sig", errors="replace")


def join_texts(*texts: str) -> str:
    """The texts that say something, one below the other."""
    return "\n\n".join([text.strip("\n") for text in texts if text.strip()])


def read_attachment(path: Path) -> str | ImageBlock | DocumentBlock:
    """A file: text becomes part of the message, under the file's name; a picture or a PDF an attachment.

    Raises `InputError` for a file that cannot be read, is empty or too large, or is of another kind.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name is none that a file can have"
        raise InputError(f"{path} cannot be read: {why}") from error
    if len(data) > MAX_FILE_BYTES:
        raise InputError(f"{path} is longer than {MAX_FILE_BYTES:,} bytes, the limit")
    if not data:
        raise InputError(f"{path} is empty")
    media_type = mimetypes.guess_type(path.name)[0] or ""
    if media_type.startswith("image/") and media_type != "image/svg+xml":
        return ImageBlock(media_type, data)
    if media_type == "application/pdf":
        return DocumentBlock(media_type, data, path.name)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InputError(f"{path} is neither text in UTF-8, nor a picture, nor a PDF")
    # The empty line makes the text's start one of a paragraph: a marker there counts (`private:`).
    return f"{path.name}:\n\n{text}"
