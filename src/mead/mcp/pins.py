"""Remembers what each server offered when it was first used, so that a later change is noticed.

A tool's definition is hashed with everything a model or a person goes by; so is the line that starts the
server. The file also serves as the catalogue of servers that are not running.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from mead.settings import McpServerSettings
from mead.settings.files import make_private_folder

FILE_NAME = "pins.json"


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


class ServerPin(Struct, omit_defaults=True):
    """What is remembered of a server: the hash of what starts it, and its tools."""

    start: str
    tools: dict[str, Definition] = {}


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


def start_digest(server: McpServerSettings) -> str:
    """A hash of what runs when the server is started, or of its address."""
    parts = [server.command, list(server.args), sorted(server.env), server.cwd, server.url]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


class Pins:
    """The pins of all servers, in a file of mode 0600. Without a folder they are kept in memory.

    A file that cannot be read counts as empty: every tool is then new on a server that is new.
    """

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE_NAME if folder is not None else None
        self._servers: dict[str, ServerPin] = {}
        if self._path is not None and not self._path.is_symlink():
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                self._servers = msgspec.json.decode(self._path.read_bytes(), type=dict[str, ServerPin])

    def known(self, server: McpServerSettings) -> ServerPin | None:
        """What is remembered of a server, `None` before its first use."""
        return self._servers.get(server.name)

    def start_changed(self, server: McpServerSettings) -> bool:
        """Whether the server would now be started in another way than the one that was approved."""
        pin = self._servers.get(server.name)
        return pin is not None and pin.start != start_digest(server)

    def compare(self, server: McpServerSettings, found: Sequence[Definition]) -> list[Change]:
        """What has changed since the server was pinned; a server without a pin gets one now."""
        pin = self._servers.get(server.name)
        if pin is None:
            self.approve(server, found)
            return []
        return [
            Change(definition.name, pin.tools.get(definition.name), definition)
            for definition in found
            if pin.tools.get(definition.name) != definition
        ]

    def approve(self, server: McpServerSettings, found: Sequence[Definition] | None) -> None:
        """Takes what is there now as right; with `None`, only the line that starts the server."""
        tools = {definition.name: definition for definition in found} if found is not None else None
        if tools is None:
            pin = self._servers.get(server.name)
            tools = pin.tools if pin is not None else {}
        self._servers[server.name] = ServerPin(start_digest(server), tools)
        self._save()

    def forget(self, name: str) -> None:
        """Forgets a server."""
        if self._servers.pop(name, None) is not None:
            self._save()

    def _save(self) -> None:
        if self._path is None:
            return
        folder = self._path.parent
        make_private_folder(folder)
        handle, new = tempfile.mkstemp(dir=folder, prefix=".pins-")  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode(self._servers))
            os.replace(new, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
