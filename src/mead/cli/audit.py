"""`mead audit`: the record of what was done to sessions, and whether it is as it was written."""

from __future__ import annotations

import datetime
import sys
from collections import deque
from pathlib import Path

import click

from mead.cli._json import write_json
from mead.cli._store import one_line, store_settings, with_store
from mead.cli._terminal import safe, say, write
from mead.storage import Store
from mead.storage.protocol import AuditCheck, AuditRow

_BROKEN = 1
"""The exit status for a chain that was changed."""


@click.group("audit")
def command() -> None:
    """Show what was done to sessions, and check that nobody changed the record of it."""


@command.command("list")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def list_command(config: Path | None, /, limit: int, as_json: bool) -> None:
    """List the newest rows of the record, the oldest of them first."""

    async def look(store: Store) -> deque[AuditRow]:
        newest: deque[AuditRow] = deque(maxlen=limit)
        after = 0
        while page := await store.audit_rows(after=after):
            newest.extend(page)
            after = page[-1].number
        return newest

    found = with_store(store_settings(config), look)
    if as_json:
        write_json({"ok": True, "rows": [_row_json(row) for row in found]})
        return
    for row in found:
        entry = row.entry
        at = datetime.datetime.fromtimestamp(entry.at).astimezone()
        details = [f"{name}={value}" for name, value in sorted(entry.details.items())]
        words = [one_line(word) for word in (entry.owner, entry.action, entry.subject, *details)]
        shown = "  ".join([f"{at:%Y-%m-%d %H:%M}", *words])
        write(f"{row.number:>5}  {safe(shown)}")
    if not found:
        say("Nothing was recorded yet.")


@command.command("verify")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def verify_command(config: Path | None, /, as_json: bool) -> None:
    """Check every row of the record: it is a chain, in which no row can be changed unseen."""

    async def look(store: Store) -> AuditCheck:
        return await store.verify_audit()

    check = with_store(store_settings(config), look)
    if as_json:
        write_json(
            {"ok": check.broken is None, "rows": check.rows, "head": check.head, "broken": check.broken}
        )
    elif check.broken is None:
        rows = "1 row, as it was" if check.rows == 1 else f"{check.rows:,} rows, all as they were"
        write(f"{rows} written" + (f"; the last hash is {safe(check.head)}" if check.head else ""))
    else:
        say(f"mead: row {check.broken} is not as it was written; what follows it may not be either")
    if check.broken is not None:
        sys.exit(_BROKEN)


def _row_json(row: AuditRow) -> dict[str, object]:
    entry = row.entry
    return {
        "number": row.number,
        "at": entry.at,
        "owner": entry.owner,
        "action": entry.action,
        "subject": entry.subject,
        "details": entry.details,
        "hash": row.hash,
    }
