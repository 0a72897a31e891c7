"""Reads the MCP servers that other programs' configuration files name.

The shapes in use: a table `mcpServers` or `servers` (also inside `mcp`), a server with a `command` or a
`url`. What such a file says about approvals is not taken over: the policy is mead's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mead.settings.values import FreeTable, McpServerSettings

SERVER_NAME = re.compile(r"[a-z][a-z0-9-]{0,23}")

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_IGNORED = ("autoApprove", "alwaysAllow", "alwaysAllowed", "allowedTools")
_HTTP = ("http", "streamable-http", "streamableHttp", "streamable_http")


def read_foreign(path: Path, *, environ: Mapping[str, str]) -> list[McpServerSettings]:
    """The servers of a file, in its order. One that cannot be started says why in its `problem`.

    Raises `ValueError` with a sentence for a file that cannot be read or holds no servers.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ValueError(f"names {path}, which cannot be read: {error.strerror}") from None
    except ValueError:
        raise ValueError(f"names {path}, which is no JSON") from None
    servers = _servers_in(document)
    if servers is None:
        raise ValueError(f"names {path}, which holds neither mcpServers nor servers")
    taken: set[str] = set()
    found = []
    for name, entry in servers.items():
        slug = _slug(name, taken)
        taken.add(slug)
        if isinstance(entry, dict) and not entry.get("disabled"):
            found.append(_server(slug, entry, path, environ))
    return found


def ignored_approvals(path: Path) -> list[str]:
    """What a file says about approvals and mead does not take over, as `server.key`."""
    try:
        servers = _servers_in(json.loads(path.read_text(encoding="utf-8-sig")))
    except (OSError, ValueError):
        return []
    return [
        f"{name}.{key}"
        for name, entry in (servers or {}).items()
        if isinstance(entry, dict)
        for key in _IGNORED
        if entry.get(key)
    ]


def _servers_in(document: Any) -> Mapping[str, Any] | None:
    if not isinstance(document, dict):
        return None
    inner = document.get("mcp")
    for place in (document, inner if isinstance(inner, dict) else {}):
        for key in ("mcpServers", "servers"):
            if isinstance(place.get(key), dict):
                return place[key]  # type: ignore[no-any-return]  # its keys are JSON's: texts
    return None


def _slug(name: str, taken: set[str]) -> str:
    """A name as mead writes them: `My Server` becomes `my-server`."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    slug = re.sub(r"^[^a-z]+", "", slug)[:24].strip("-") or "server"
    base, number = slug[:21], 1
    while slug in taken:
        number += 1
        slug = f"{base}-{number}"
    return slug


class _UnresolvedError(ValueError):
    """A text names a variable that is not set."""


def _server(name: str, entry: Mapping[str, Any], path: Path, environ: Mapping[str, str]) -> McpServerSettings:
    try:
        return _read_server(name, entry, path, environ)
    except ValueError as error:
        return McpServerSettings(name=name, source=path, problem=str(error))


def _read_server(
    name: str, entry: Mapping[str, Any], path: Path, environ: Mapping[str, str]
) -> McpServerSettings:
    command, url = entry.get("command"), entry.get("url")
    kind = entry.get("type") or entry.get("transport")
    if kind == "sse":
        raise ValueError("it speaks the deprecated SSE transport; mead speaks streamable HTTP")
    if isinstance(command, str) and command:
        return McpServerSettings(
            name=name,
            command=_expand(command, environ),
            args=tuple([_expand(_text(item, "args"), environ) for item in _list(entry, "args")]),
            env=_texts(entry, "env", environ),
            cwd=_expand(_text(entry["cwd"], "cwd"), environ) if entry.get("cwd") else None,
            call_timeout_s=_timeout_s(entry),
            source=path,
            written=_as_written(command, *_list(entry, "args")),
        )
    if isinstance(url, str) and url and (kind is None or kind in _HTTP):
        expanded = _expand(url, environ)
        if not re.match(r"https?://[^/?#]", expanded):
            raise ValueError("its url is no http or https address")
        return McpServerSettings(
            name=name,
            url=expanded,
            headers=_texts(entry, "headers", environ),
            call_timeout_s=_timeout_s(entry),
            source=path,
            written=_as_written(url),
        )
    raise ValueError("it has neither a command nor a url that mead can use")


def _expand(text: str, environ: Mapping[str, str]) -> str:
    def resolve(match: re.Match[str]) -> str:
        inside = _VARIABLE.fullmatch(match[1])
        if inside is None:
            raise _UnresolvedError(f"it needs {match[0]}, which only its own program knows")
        name, default = inside[1], inside[2]
        value = environ.get(name) or default
        if value is None:
            raise _UnresolvedError(f"the environment variable {name} is not set")
        return value

    return _REFERENCE.sub(resolve, text)


def _as_written(*words: str) -> tuple[str, ...]:
    return words if any(_REFERENCE.search(word) for word in words) else ()


def _list(entry: Mapping[str, Any], key: str) -> list[Any]:
    value = entry.get(key, [])
    if not isinstance(value, list):
        raise ValueError(f"its {key} is no list")
    return value


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"its {key} holds something that is no text")
    return value


def _texts(entry: Mapping[str, Any], key: str, environ: Mapping[str, str]) -> FreeTable:
    table = entry.get(key) or {}
    if not isinstance(table, dict):
        raise ValueError(f"its {key} is no table")
    return FreeTable({name: _expand(_text(value, key), environ) for name, value in table.items()})


def _timeout_s(entry: Mapping[str, Any]) -> float:
    """These files count in milliseconds."""
    value = entry.get("timeout")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0:
        return min(value / 1000, 600.0)
    return 60.0
