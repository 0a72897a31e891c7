"""What is wrong with a configuration, for the person who wrote it."""

from __future__ import annotations

from pathlib import Path


class ConfigError(Exception):
    """A configuration that cannot be used; raised once, at the start.

    Its text says where the mistake is and what to do, and never holds a key. `line` counts from 1; `key` is a
    dotted path. Each is `None` where it is not known.
    """

    def __init__(
        self, message: str, *, file: Path | None = None, line: int | None = None, key: str | None = None
    ) -> None:
        where = str(file) if file else "configuration" if line else ""
        if line:
            where += f", line {line}"
        text = ": ".join([part for part in (where, key) if part] + [message])
        super().__init__(text)
        self.message = message
        self.file = file
        self.line = line
        self.key = key
