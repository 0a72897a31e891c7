"""Reads `mead.toml` and the environment into frozen settings (`docs/settings.md`).

Below this room nobody reads the environment. A mistake is a `ConfigError`, raised once, at the start: it
names the file, the line and the key, and the nearest valid one.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import platformdirs

from mead.settings._kinds import file_path
from mead.settings._names import shown
from mead.settings._read import (
    KEYS,
    read_budgets,
    read_classifier,
    read_embedded,
    read_mcp,
    read_prices,
    read_router,
    read_serve,
    read_sessions,
    read_storage,
    read_telemetry,
    refuse_code,
)
from mead.settings._reader import Reader, encodable, holds_literal_key
from mead.settings.errors import ConfigError
from mead.settings.foreign import read_foreign
from mead.settings.values import (
    ArgumentRule,
    ClassifierSettings,
    EmbeddedSettings,
    EscalationSettings,
    McpServerSettings,
    McpSettings,
    RouterSettings,
    Secret,
    ServeSettings,
    SessionSettings,
    Settings,
    SlotSettings,
    SlotsSettings,
    StorageSettings,
    TelemetrySettings,
)

FILE_NAME = "mead.toml"


def load(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Settings:
    """The settings of a file: `path`, else `$MEAD_CONFIG`, else `mead.toml` in `cwd` (the working folder),
    else the one in the user's configuration folder. The defaults where there is none.

    A file in the working folder was named by nobody, and may be somebody else's: its servers are started once
    a person has approved them, and it brings no code of its own.

    Raises `ConfigError` for a file that was named and is not there, and for whatever is wrong in one.
    """
    environ = os.environ if environ is None else environ
    cwd = cwd or Path()
    found = _find(path, environ, cwd)
    if found is None:
        return parse("", environ=environ)
    text, mode = _read_file(found)
    named = path is not None or bool(environ.get("MEAD_CONFIG"))
    found_in = None if named or _same(found, _users_file()) else cwd.resolve()
    return _build(text, file=found, environ=environ, mode=mode, found_in=found_in)


def parse(text: str, *, file: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings that a TOML text says. `file` is named in errors, and not opened. Raises `ConfigError`."""
    return _build(text, file=file, environ=os.environ if environ is None else environ, mode=0)


def _build(
    text: str, *, file: Path | None, environ: Mapping[str, str], mode: int, found_in: Path | None = None
) -> Settings:
    """`mode` is the file's permission bits, `found_in` the working folder if it was found there, unnamed."""
    text = text.removeprefix("\ufeff")
    document = _parse_toml(text, file)
    reader = Reader(document, keys=KEYS, text=text, file=file, environ=environ)
    if found_in is not None:
        refuse_code(reader)
    return Settings(
        router=read_router(reader),
        sessions=read_sessions(reader),
        classifier=read_classifier(reader),
        embedded=read_embedded(reader),
        mcp=_found_in(read_mcp(reader), found_in),
        storage=read_storage(reader),
        serve=read_serve(reader),
        telemetry=read_telemetry(reader),
        prices=read_prices(reader),
        budgets=read_budgets(reader),
        data_folder=_data_folder(environ),
        source=file,
        discovered=found_in is not None,
        warnings=_warnings(document, file, mode),
    )


def _found_in(mcp: McpSettings, folder: Path | None) -> McpSettings:
    """The servers with the folder that their settings were found in."""
    if folder is None:
        return mcp
    servers = [msgspec.structs.replace(server, found_in=folder) for server in mcp.servers]
    return msgspec.structs.replace(mcp, servers=tuple(servers))


def _parse_toml(text: str, file: Path | None) -> dict[str, Any]:
    if not encodable(text):
        raise ConfigError("this is not UTF-8 text", file=file)
    line: int | None = None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, line = _toml_problem(str(error), text)
    except RecursionError:
        message = "it is nested too deeply"
    except ValueError:
        message = "a number in it is too long"  # the limit of int() on its digits
    raise ConfigError(f"this is not valid TOML: {message}", file=file, line=line)


def _toml_problem(said: str, text: str) -> tuple[str, int | None]:
    """The parser's message without the names it quotes (one may be a secret), and the line it is about."""
    message, _, place = said.rpartition(" (at ")
    found = re.match(r"line (\d+)", place)
    line = int(found[1]) if found else max(1, len(text.splitlines()))  # else "at end of document"
    message = re.sub(r"'([^']{2,})'", lambda match: shown(match[1]), message or said)
    if message == "Invalid value":
        message += " (text must stand in quotes)"
    return message[0].lower() + message[1:], line


def _find(path: Path | None, environ: Mapping[str, str], cwd: Path) -> Path | None:
    if path is not None:
        return cwd / path
    if named := environ.get("MEAD_CONFIG"):
        return cwd / _path_in(environ, "MEAD_CONFIG", named)
    usual = (cwd / FILE_NAME, _users_file())
    # A link that leads nowhere was meant to be a configuration: it is found, and reading it then fails.
    return next((candidate for candidate in usual if os.path.lexists(candidate)), None)


def _users_file() -> Path:
    return platformdirs.user_config_path("mead") / FILE_NAME


def _same(one: Path, other: Path) -> bool:
    """Whether two names are of one file; a link to it counts as another."""
    return one.parent.resolve() == other.parent.resolve()


def _data_folder(environ: Mapping[str, str]) -> Path:
    if named := environ.get("MEAD_DATA_FOLDER"):
        return _path_in(environ, "MEAD_DATA_FOLDER", named)
    return platformdirs.user_data_path("mead")


def _path_in(environ: Mapping[str, str], variable: str, named: str) -> Path:
    try:
        return file_path(named)
    except ValueError as error:
        problem = str(error)
    raise ConfigError(f"the environment variable {variable} {problem}")


def _read_file(path: Path) -> tuple[str, int]:
    """A file's text and its permission bits."""
    try:
        with open(path, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            data = file.read()
    except FileNotFoundError:
        raise ConfigError("there is no such file", file=path) from None
    except IsADirectoryError:
        raise ConfigError(f"this is a folder; name the {FILE_NAME} in it", file=path) from None
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or "its name is none that a file can have"
        raise ConfigError(f"the file cannot be read: {problem}", file=path) from None
    try:
        return data.decode("utf-8"), mode
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
    raise ConfigError("this is not UTF-8 text; save the file as UTF-8", file=path, line=line)


def _warnings(document: Mapping[str, Any], file: Path | None, mode: int) -> tuple[str, ...]:
    """Warns of a key that stands in a file which others may read."""
    if file is None or os.name != "posix" or not mode & 0o077:
        return ()
    if holds_literal_key(document.get("router", {}).get("slots", {})):
        what = "an API key"
    elif holds_literal_key(document.get("mcp", {}).get("servers", {})):
        what = "a secret of an MCP server"
    else:
        return ()
    return (f"{file} holds {what} and others may read it: chmod 600 {file}",)


__all__ = [
    "KEYS",
    "ArgumentRule",
    "ClassifierSettings",
    "ConfigError",
    "EmbeddedSettings",
    "EscalationSettings",
    "McpServerSettings",
    "McpSettings",
    "RouterSettings",
    "Secret",
    "ServeSettings",
    "SessionSettings",
    "Settings",
    "SlotSettings",
    "SlotsSettings",
    "StorageSettings",
    "TelemetrySettings",
    "load",
    "parse",
    "read_foreign",
]
