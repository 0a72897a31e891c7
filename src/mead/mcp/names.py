"""Names of tools as a model sees them, and back.

Vendors take different names; `[A-Za-z][A-Za-z0-9_-]{0,62}` is what all of them do. A tool `log` of the
server `git` becomes `git__log`. The name depends on server and tool alone, so it is the same after a restart,
whatever else is configured.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Sequence

from mead.core.messages import Tool

LONGEST = 63
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARS = 8
_SHOWN_NAMES = 20


def public_name(server: str, tool: str) -> str:
    """The name under which a model knows a server's tool. A name that had to be changed or cut ends with a
    hash of the real one, so that two never meet.

    >>> public_name("git", "log"), public_name("git", "a.b")
    ('git__log', 'git__a_b_7e516e15')
    """
    plain = f"{server}__{tool}"
    safe = _UNSAFE.sub("_", plain)
    if safe == plain and len(plain) <= LONGEST:
        return plain
    digest = hashlib.sha256(f"{server}\0{tool}".encode(errors="surrogatepass")).hexdigest()[:_HASH_CHARS]
    return f"{safe[: LONGEST - _HASH_CHARS - 1]}_{digest}"


def unknown_tool(name: str, visible: Sequence[Tool]) -> str:
    """What a model is told that asks for a tool it does not see. Nothing hidden is named."""
    names = [tool.name for tool in visible]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if not near:
        near = names[:_SHOWN_NAMES]
    known = f" Did you mean {', '.join(near)}?" if near else ""
    return f"There is no tool named {name[:100]!r}.{known}"
