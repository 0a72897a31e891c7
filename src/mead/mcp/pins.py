"""Remembers what each server offered when it was first used, so that a later change is noticed.

A tool's definition is hashed with everything a model or a person goes by; so is each part of the line that
starts the server. The file also serves as the catalogue of servers that are not running. Several processes
may use it: each change reads it anew, under a lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mead.core.private_files import read_private, write_private
from mead.settings import McpServerSettings
from mead.settings.files import make_private_folder

FILE_NAME = "pins.json"
_LOCK_NAME = ".pins.lock"


class Definition(Struct, frozen=True, omit_defaults=True):
    """A tool as its server describes it."""

    name: str
    description: str | None = None
    title: str | None = None
    input_schema: Mapping[str, Any] = {}
    read_only: bool = False
    destructive: bool = True

    def digest(self) -> str:
        """A hash of all of it, the same for the same meaning."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()


class StartPart(Struct, frozen=True):
    """A part of what starts a server: what it is, how a person is shown it, and the hash of its value."""

    what: str
    shown: str
    digest: str


class ServerPin(Struct, omit_defaults=True):
    """What is remembered of a server: the hash of what starts it, its tools, and the parts of that start."""

    start: str
    tools: dict[str, Definition] = {}
    parts: tuple[StartPart, ...] = ()


class Change(Struct, frozen=True):
    """A tool that is not as it was: `before` is `None` for one that is new."""

    tool: str
    before: Definition | None
    now: Definition

    def lines(self) -> list[str]:
        """The difference, for a person."""
        if self.before is None:
            return [f"+ {self.tool}: {_shown(self.now.description)}"]
        lines = []
        for name in Definition.__struct_fields__:
            old, new = getattr(self.before, name), getattr(self.now, name)
            if old != new:
                lines += [f"- {self.tool} {name}: {_shown(old)}", f"+ {self.tool} {name}: {_shown(new)}"]
        return lines


def _shown(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def start_parts(server: McpServerSettings) -> tuple[StartPart, ...]:
    """What runs when the server is started, or its address. What came from a variable is shown as it stands
    in the settings, the value of an environment variable not at all."""
    values: list[tuple[str, str, str]] = []
    if server.url is not None:
        values.append(("url", server.written[0] if server.written else server.url, server.url))
    else:
        line = (server.command or "", *server.args)
        written = server.written if len(server.written) == len(line) else line
        names = ("command", *[f"argument {number}" for number in range(1, len(line))])
        values += zip(names, written, line, strict=True)
    if server.cwd is not None:
        values.append(("folder", server.cwd, server.cwd))
    values += [(f"env {name}", "(its value is not shown)", server.env[name]) for name in sorted(server.env)]
    return tuple([StartPart(what, shown, _digest([what, value])) for what, shown, value in values])


def start_digest(server: McpServerSettings) -> str:
    """A hash of all that."""
    return _digest([part.digest for part in start_parts(server)])


def _digest(value: object) -> str:
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()


class Pins:
    """The pins of all servers, in a file of mode 0600. Without a folder they are kept in memory.

    `problem` is a sentence about a file that is there and cannot be read: nothing is known of any server
    then, so none may be started, and nothing is written over the file.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE_NAME if folder is not None else None
        self._servers: dict[str, ServerPin] = {}
        self.problem: str | None = None
        self._read()

    def known(self, server: McpServerSettings) -> ServerPin | None:
        """What is remembered of a server, `None` before its first use."""
        return self._servers.get(_key(server))

    def start_changed(self, server: McpServerSettings) -> bool:
        """Whether the server would now be started in another way than the one that was approved."""
        pin = self.known(server)
        return pin is not None and pin.start != start_digest(server)

    def start_lines(self, server: McpServerSettings) -> list[str]:
        """What starts the server, and how that differs from what was approved, for a person."""
        pin, now = self.known(server), {part.what: part for part in start_parts(server)}
        old = {part.what: part for part in pin.parts} if pin is not None else {}
        lines = []
        for what in [*now, *[what for what in old if what not in now]]:
            before, after = old.get(what), now.get(what)
            if before is not None and after is not None and before.digest == after.digest:
                lines.append(f"  {what}: {after.shown}")
                continue
            lines += [f"- {what}: {before.shown}"] if before is not None else []
            lines += [f"+ {what}: {after.shown}"] if after is not None else []
        return lines

    def needs_word(self, server: McpServerSettings) -> bool:
        """Whether a person must approve the server before its first start."""
        return server.found_in is not None and server.command is not None and self.known(server) is None

    def compare(self, server: McpServerSettings, found: Sequence[Definition]) -> list[Change]:
        """What has changed since the server was pinned; a server without a pin gets one now."""
        self._read()
        pin = self.known(server)
        if pin is None and self.problem is None:
            self.approve(server, found)
            return []
        known = pin.tools if pin is not None else {}
        return [
            Change(definition.name, known.get(definition.name), definition)
            for definition in found
            if known.get(definition.name) != definition
        ]

    def approve(self, server: McpServerSettings, found: Sequence[Definition] | None) -> None:
        """Takes what is there now as right; with `None`, only the line that starts the server."""
        with self._changing():
            if found is not None:
                tools = {definition.name: definition for definition in found}
            else:
                pin = self.known(server)
                tools = pin.tools if pin is not None else {}
            self._servers[_key(server)] = ServerPin(start_digest(server), tools, start_parts(server))

    def forget(self, name: str) -> None:
        """Forgets a server."""
        with self._changing():
            self._servers.pop(name, None)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Reads the file anew, lets the body change what is remembered, and writes it, under the lock."""
        if self._path is None:
            yield
            return
        make_private_folder(self._path.parent)
        with _locked(self._path.parent / _LOCK_NAME):
            self._read()
            yield
            if self.problem is None:
                write_private(self._path, msgspec.json.encode(self._servers))

    def _read(self) -> None:
        """Takes what is in the file. What is remembered already stays if it cannot be read."""
        if self._path is None:
            return
        self.problem = None
        try:
            self._servers = msgspec.json.decode(read_private(self._path), type=dict[str, ServerPin])
        except FileNotFoundError:
            self._servers = {}
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            self.problem = (
                f"what was approved of the servers cannot be read ({self._path}: {why}); put the file "
                "right, or remove it to have every server count as new"
            )


def _key(server: McpServerSettings) -> str:
    """The name of a pin: one of a file that lies in some folder is good for that folder only."""
    return server.name if server.found_in is None else f"{server.name} in {server.found_in}"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keeps other processes out, where the system can."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        with contextlib.suppress(ImportError):
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
