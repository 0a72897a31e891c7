"""The hash chain of the audit log: each row's hash covers the row before, so that no row can be changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from mead.storage.protocol import AuditCheck, AuditEntry, AuditRow


def chained(entry: AuditEntry, *, number: int, previous: str) -> AuditRow:
    """The entry as the chain's row `number`, after the row whose hash is `previous`."""
    content = [
        number,
        entry.at,
        entry.owner,
        entry.action,
        entry.subject,
        sorted(entry.details.items()),
        previous,
    ]
    digest = hashlib.sha256(msgspec.json.encode(content)).hexdigest()
    return AuditRow(number=number, entry=entry, previous=previous, hash=digest)


def verified(rows: Iterable[AuditRow]) -> AuditCheck:
    """Checks a whole chain, in order."""
    count, head, broken = 0, "", None
    for row in rows:
        count += 1
        if broken is None and row != chained(row.entry, number=count, previous=head):
            broken = count
        head = row.hash
    return AuditCheck(rows=count, head=head, broken=broken)
