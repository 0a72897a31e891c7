"""The kinds of values that a key may have. Each is a function which gives the value as mead keeps it, or
raises `ValueError` with the rest of a sentence that begins with the key's name. No sentence quotes the value:
it may be a secret in the wrong place."""

from __future__ import annotations

import datetime
import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

from mead.settings._names import looks_secret, shown
from mead.settings.values import SHARED_NETWORK, FreeTable, Secret

Kind: TypeAlias = Callable[[Any], Any]

_BASE_URL = re.compile(
    r"(?i)https?://(?:[^\s/?#@:\[\]]+|\[[0-9a-f:.]+\])(?::(?P<port>\d{1,5}))?(?:/[^\s?#]*)?"
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_VARIABLE_NAME = re.compile(r"[A-Z][A-Z0-9_]*_(?:KEY|TOKEN|SECRET)")
_KIND_NAMES = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list"}


def kind_name(value: object) -> str:
    """What a TOML value is, in a word or two."""
    return _KIND_NAMES.get(type(value), "a table" if isinstance(value, dict) else "a date or time")


def text(value: Any) -> str:
    """Any text, the empty one too."""
    if not isinstance(value, str):
        raise ValueError(f"must be text in quotes, not {kind_name(value)}")
    return value


def word(value: Any) -> str:
    """A text of one line that is not empty; white space around it goes."""
    stripped = text(value).strip()
    if not stripped:
        raise ValueError("must not be empty")
    if _CONTROL.search(stripped):
        raise ValueError("must be one line without control characters")
    return stripped


def name(value: Any) -> str:
    """The name of a model or a provider."""
    if looks_secret(found := word(value)):
        raise ValueError("looks like an API key; that belongs in api_key")
    return found


def flag(value: Any) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {kind_name(value)}")
    return value


def number(low: float, high: float = math.inf, *, above: bool = False) -> Kind:
    """A finite number from `low` (or `above` it) to `high`."""
    limits = f"over {low:g}" if above else f"at least {low:g}"
    if high < math.inf:
        limits += f" and at most {high:g}"

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"must be a number, not {kind_name(value)}")
        if not math.isfinite(value) or not low <= value <= high or (above and value == low):
            raise ValueError(f"must be {limits}")
        return float(value)

    return read


def count(low: int, high: int | None = None) -> Kind:
    """A whole number from `low` on, to `high` where there is one."""

    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            other = "one with a fraction" if isinstance(value, float) else kind_name(value)
            raise ValueError(f"must be a whole number, not {other}")
        if value < low:
            raise ValueError(f"must be at least {low}")
        if high is not None and value > high:
            raise ValueError(f"must be at most {high}")
        return value

    return read


def usd(value: Any) -> Decimal:
    """An amount of US dollars, as exactly as it is written, to a millionth of a millionth."""
    amount = Decimal(repr(number(0, 1_000_000_000)(value)))
    if amount != round(amount, 12):
        raise ValueError("must have at most 12 digits after the point")
    return amount


def day(value: Any) -> datetime.date:
    """A date, as TOML writes it or in a text."""
    if isinstance(value, str):
        try:
            return datetime.date.fromisoformat(value.strip())
        except ValueError:
            pass
    elif isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    raise ValueError("must be a date, as 2026-12-31")


def choice(*options: bool | str) -> Kind:
    """One of a few values."""
    listed = ", ".join(
        [str(option).lower() if isinstance(option, bool) else f'"{option}"' for option in options]
    )

    def read(value: Any) -> bool | str:
        for option in options:
            if type(value) is type(option) and value == option:
                return option
        raise ValueError(f"must be one of {listed}")

    return read


def regex(value: Any) -> str:
    """A regular expression, as Python writes them."""
    found = word(value)
    try:
        re.compile(found)
    except re.error as error:
        where = "" if error.pos is None else f", at character {error.pos + 1}"
        raise ValueError(f"is no regular expression: {error.msg}{where}") from None
    return found


def list_of(kind: Kind) -> Kind:
    """A list with every entry of a kind."""

    def read(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError(f'must be a list, as ["one", "two"], not {kind_name(value)}')
        entries = []
        for place, entry in enumerate(value, start=1):
            try:
                entries.append(kind(entry))
            except ValueError as error:
                raise ValueError(f"has a wrong entry: number {place} {error}") from None
        return tuple(entries)

    return read


def stop_text(value: Any) -> str:
    """A text at which the model stops. White space is as good as any."""
    if not text(value):
        raise ValueError("must not be empty")
    return str(value)


def free_table(value: Any) -> FreeTable:
    """A table with any keys."""
    if not isinstance(value, dict):
        raise ValueError(f"must be a table, not {kind_name(value)}")
    return FreeTable(value)


def text_table(value: Any) -> FreeTable:
    """A table of texts, whose names mead does not know."""
    table = free_table(value)
    for key, inner in table.items():
        if not isinstance(inner, str):
            raise ValueError(f"must hold texts only; {shown(str(key))} is {kind_name(inner)}")
    return table


def table_of(known: Mapping[str, Kind], *, needed: tuple[str, ...]) -> Kind:
    """A table with a few known keys, of which some must be there."""

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise ValueError(f"must be a table, as {{{needed[0]} = …}}, not {kind_name(value)}")
        read: dict[str, Any] = {}
        for key, inner in value.items():
            if key not in known:
                raise ValueError(f"has the unknown key {shown(key)}; the keys are {', '.join(known)}")
            try:
                read[key] = known[key](inner)
            except ValueError as error:
                raise ValueError(f"is wrong: {key} {error}") from None
        for key in needed:
            if key not in read:
                raise ValueError(f"lacks {key}")
        return read

    return read


def file_path(value: Any) -> Path:
    """A path; `~` is the home folder."""
    try:
        return Path(word(value)).expanduser()
    except RuntimeError:
        raise ValueError("begins with a ~ for which no home folder is known") from None


def secret(value: Any) -> Secret:
    """A key, if it is not one of the usual mistakes."""
    found = text(value).strip()
    if found.lower().startswith("bearer "):
        raise ValueError("must be the key alone, without the word Bearer")
    if re.fullmatch(r"\$[A-Za-z_]\w*|" + _VARIABLE_NAME.pattern, found):
        raise ValueError("seems to be the name of a variable; write ${NAME} to take the key from there")
    return Secret(found)


def base_url(value: Any) -> str:
    """The address of a server, without credentials, query or fragment."""
    found = word(value)
    if found.startswith("unix:"):
        if not found.removeprefix("unix:").strip("/"):
            raise ValueError("must name a socket, as unix:/run/model.sock")
        return found
    if "@" in found.partition("://")[2].partition("/")[0]:
        raise ValueError("must not hold a user name or password; a key belongs in api_key")
    if "?" in found or "#" in found:
        raise ValueError("must end before any ? or #; a key belongs in api_key")
    match = _BASE_URL.fullmatch(found)
    if match is None or int(match["port"] or 80) not in range(1, 65536):
        raise ValueError("must look like http://host:port, https://host/v1 or unix:/path.sock")
    return found


def http_url(value: Any) -> str:
    """The address of an MCP server, without credentials; a query is part of some."""
    found = word(value)
    address = found.partition("?")[0]
    if "@" in address.partition("://")[2].partition("/")[0]:
        raise ValueError("must not hold a user name or password; a key belongs in headers")
    if _BASE_URL.fullmatch(address) is None or "#" in found:
        raise ValueError("must look like https://host/mcp or http://127.0.0.1:port/mcp")
    return found


def store_url(value: Any) -> str:
    """Where things are kept."""
    found = word(value)
    if found == "memory://" or re.fullmatch(r"sqlite:////[^/].*[^/]", found):
        return found
    raise ValueError('must be memory:// or sqlite:// and a whole path, as "sqlite:////home/me/mead.db"')


def shared_network(value: Any) -> str:
    """A part of 100.64.0.0/10, which carriers and private overlays share (R17)."""
    found = word(value)
    try:
        network = ipaddress.ip_network(found)
    except ValueError:
        network = None
    if not isinstance(network, ipaddress.IPv4Network) or not network.subnet_of(SHARED_NETWORK):
        raise ValueError(
            'must be a part of 100.64.0.0/10, as "100.64.0.0/16"; for other networks set allow_remote = true'
        )
    return found
