"""Walks one TOML document: expands its variables, knows its keys, and says on which line a mistake is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from mead.settings._kinds import Kind
from mead.settings._lines import KeyPath, line_of
from mead.settings._names import dotted, shown
from mead.settings.errors import ConfigError

ANY_NAME = "*"
"""In a path of keys: a table whose name the person chooses."""
_DEEPEST = 64  # tables within tables; far from where recursion fails, and from what anybody writes
_INTEGERS = range(-(2**63), 2**63)  # TOML 1.0, "Integer"
_REFERENCE = re.compile(r"\$(?:\$|\{(?P<inside>[^}]*)(?P<end>\}?))")
_INSIDE = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>(?:(?!\$\{).)*))?", re.DOTALL)
_SECRET_KEY = re.compile(
    r"(?i)(^|[_-])(key|apikey|token|pat|secret|password|passwd|credentials?|authorization|cookie)$"
)
_SCHEME = re.compile(r"(?i)\s*(bearer|basic|token)?\s*")
"""What stands before a secret in a header, and is none itself."""
_REPLACED: dict[KeyPath, str] = {
    ("classifier", "threshold"): "set cloud_share, the share of turns for the cloud model, instead",
}
"""Keys of earlier versions, and what is used now."""


class Reader:
    """A document, its text and the environment. Every method raises `ConfigError` for what is wrong."""

    def __init__(
        self,
        document: Mapping[str, Any],
        *,
        keys: Mapping[KeyPath, tuple[str, ...]],
        text: str,
        file: Path | None,
        environ: Mapping[str, str],
    ) -> None:
        self.environ = environ
        self._keys = keys
        self._text = text
        self._file = file
        self._check_keys(document, ())
        self._written: Mapping[str, Any] = document
        self._document: Mapping[str, Any] = self._expand(document, ())

    def fail(self, path: KeyPath, message: str) -> NoReturn:
        """Raises the error of a key."""
        raise ConfigError(message, file=self._file, line=line_of(self._text, path), key=dotted(path))

    def table(self, path: KeyPath) -> Mapping[str, Any]:
        """A table; an empty one where it is absent."""
        return _table_in(self._document, path)

    def written(self, path: KeyPath) -> Mapping[str, Any]:
        """The same as it stands in the file, with the variables not put in."""
        return _table_in(self._written, path)

    def take(self, path: KeyPath, wanted: Mapping[str, Kind]) -> dict[str, Any]:
        """The values of a table that are set and `wanted`, each read by its kind."""
        read: dict[str, Any] = {}
        for name, value in self.table(path).items():
            if name not in wanted:
                continue
            try:
                read[name] = wanted[name](value)
            except ValueError as error:
                problem = str(error)
            else:
                continue
            self.fail((*path, name), f"{name} {problem}")
        return read

    def _check_keys(self, table: Mapping[str, Any], path: KeyPath) -> None:
        """Every key of every known table is known, and the known tables are tables."""
        for name, value in table.items():
            inner = (*path, name)
            if name not in self._names(path) and ANY_NAME not in self._names(path):
                self.fail(inner, f"there is no such key; {self._advice(name, path)}")
            if self._names(inner):
                if not isinstance(value, dict):
                    self.fail(inner, f"{name} must be a table, as [{dotted(inner)}]")
                self._check_keys(value, inner)

    def _names(self, path: KeyPath) -> tuple[str, ...]:
        """The keys that a table may have; none for what is no table that mead knows."""
        known = self._keys.get(path)
        return known if known is not None else self._keys.get((*path[:-1], ANY_NAME), ())

    def _advice(self, name: str, path: KeyPath) -> str:
        names = self._names(path)
        if (replaced := _REPLACED.get((*path, name))) is not None:
            return replaced
        homes = [table for table, known in self._keys.items() if name in known]
        if homes:
            return f"it belongs in [{dotted(homes[0])}]" if homes[0] else f"[{name}] stands at the top"
        near = difflib.get_close_matches(name.lower(), names, n=1) if len(name) < 64 else []
        return f"did you mean {near[0]!r}?" if near else f"the keys here are {', '.join(names)}"

    def _expand(self, value: Any, path: KeyPath, depth: int = 0) -> Any:
        """The value with `${VAR}` and `${VAR:-default}` replaced in every text; `$$` is a dollar sign."""
        if depth > _DEEPEST:
            self.fail(path[:4], f"this is nested more than {_DEEPEST} levels deep")
        if isinstance(value, dict):
            return {name: self._expand(inner, (*path, name), depth + 1) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._expand(inner, path, depth + 1) for inner in value]
        if isinstance(value, str):
            return _REFERENCE.sub(lambda match: self._resolve(match, path), value)
        if type(value) is int and value not in _INTEGERS:
            self.fail(path, "this number is too large")
        return value

    def _resolve(self, match: re.Match[str], path: KeyPath) -> str:
        if match["inside"] is None:
            return "$"
        inside = _INSIDE.fullmatch(match["inside"]) if match["end"] else None
        if inside is None:
            self.fail(path, "after ${ a variable must follow, as ${NAME} or ${NAME:-default}; $$ gives a $")
        name, default = inside["name"], inside["default"]
        value = self.environ.get(name)
        if default is not None and not value:
            return str(default)
        if value is None:
            self.fail(
                path,
                f"the environment variable {shown(name)} is not set; set it, or give a default: "
                f"${{{shown(name)}:-default}}",
            )
        if not encodable(value):
            self.fail(path, f"the environment variable {shown(name)} is not UTF-8 text")
        return value


def _table_in(table: Mapping[str, Any], path: KeyPath) -> Mapping[str, Any]:
    for name in path:
        table = table.get(name, {})
    return table


def encodable(text: str) -> bool:
    """Whether a text can be written as UTF-8; one made of undecodable bytes cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def holds_literal_key(value: Any, name: str = "") -> bool:
    """Whether a part of a document, not yet expanded, has a secret's text in it and not only a reference."""
    if isinstance(value, dict):
        return any(holds_literal_key(inner, inner_name) for inner_name, inner in value.items())
    if not isinstance(value, str) or not _SECRET_KEY.search(name):
        return False
    literal = _REFERENCE.sub(lambda match: (match["inside"] or "").partition(":-")[2], value)
    return _SCHEME.fullmatch(literal) is None
