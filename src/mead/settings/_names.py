"""Writes the names of keys and variables into error messages. A secret pasted in the wrong place may well
be such a name, so what looks like one is cut short."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SECRET = re.compile(r"sk-|gsk_|ghp_|github_pat_|glpat-|hf_|xai-|xox[a-z]-|[prs]k_(live|test)_|AIza")
_LONGEST = 40  # no key of mead's comes near; most secrets are longer


def looks_secret(text: str) -> bool:
    """Whether a text begins as the keys of the usual vendors do.

    >>> looks_secret("sk-ant-api03-abc"), looks_secret("llama3.1")
    (True, False)
    """
    return _SECRET.match(text) is not None


def shown(name: str) -> str:
    """A name as an error may print it: on one line, and without what may be a secret.

    >>> shown("model"), shown("sk-ant-api03-abc"), shown("a b")
    ('model', '"sk-…"', '"a b"')
    """
    if looks_secret(name) or len(name) > _LONGEST:
        name = f"{name[:3]}…"
    if _BARE.fullmatch(name):
        return name
    return f'"{name}"' if name.isprintable() and '"' not in name and "\\" not in name else json.dumps(name)


def dotted(path: Iterable[str]) -> str:
    """A path of keys as it stands in a TOML file."""
    return ".".join([shown(name) for name in path])
