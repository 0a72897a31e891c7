"""What a runtime writes into the audit chain when it starts."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from pathlib import Path

from mead.storage import Store
from mead.storage.protocol import AuditEntry

SETTINGS = "settings.change"


async def note_settings(store: Store, owner: str, source: Path | None) -> None:
    """Writes down that a settings file is not as it was at the last start: which, and its hash, not what it
    says. A file that cannot be read is left alone: its settings are loaded already."""
    if source is None:
        return
    path = os.path.abspath(source)  # noqa: ASYNC240 - looks at no file
    try:
        data = await asyncio.to_thread(Path(path).read_bytes)
    except OSError:
        return
    digest = hashlib.sha256(data).hexdigest()
    last = await store.last_audit(SETTINGS, path)
    if last is None or last.entry.details.get("sha256") != digest:
        details = {"sha256": digest}
        await store.append_audit(
            AuditEntry(at=time.time(), owner=owner, action=SETTINGS, subject=path, details=details)
        )
