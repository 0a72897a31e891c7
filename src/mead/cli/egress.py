"""`mead egress`: what left this machine, where it went, and why it might."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import click

from mead.cli._json import write_json
from mead.cli._store import find_session, not_one, one_line, store_settings, with_store
from mead.cli._terminal import fail_usage, safe, say, write
from mead.sessions.requests import PREFIX
from mead.sessions.sent import EgressReport, egress_report, egress_shape, egress_size, leaves
from mead.storage import Store
from mead.storage.protocol import EgressRow


@click.command("egress")
@click.argument("session", required=False)
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE", help="From this day (UTC) on.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="How many.")
@click.option("--all", "with_stayed", is_flag=True, help="Also what was sent, but stayed on this machine.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def command(
    config: Path | None,
    /,
    session: str | None,
    since: datetime.datetime | None,
    limit: int,
    with_stayed: bool,
    as_json: bool,
) -> None:
    """Show what left this machine, where it went, and why it might.

    SESSION is an id, its beginning, or `last`; without it, everything is meant.
    """
    since_at = None if since is None else since.replace(tzinfo=datetime.UTC).timestamp()

    async def look(store: Store) -> EgressReport:
        session_id = None if session is None else await _session_id(store, session)
        return await egress_report(
            store, None, session_id=session_id, since=since_at, limit=limit, with_stayed=with_stayed
        )

    report = with_store(store_settings(config), look)
    if as_json:
        write_json(egress_shape(report, since))
        return
    for line in lines_of(report):
        write(safe(line))
    for line in notes_of(report, since):
        say(line)


async def _session_id(store: Store, wanted: str) -> str:
    """The session that a word means; also one that was deleted, by its whole id: its records are kept. Ends
    the program with a sentence where it means none."""
    record = await find_session(store, wanted)
    if record is not None:
        return record.session_id
    if not await store.egress(None, session_id=wanted, limit=1):
        fail_usage(not_one(wanted))
    return wanted


# How it is written


def lines_of(report: EgressReport) -> list[str]:
    """The rows, one below the other, then the totals by host."""
    cells = [_cells(row) for row in report.rows]
    hosts = [each for each in report.hosts if each.left]
    totals = [[one_line(each.host), _requests(each.requests), _bytes(each.bytes_sent)] for each in hosts]
    if len(totals) > 1:
        total = egress_size(hosts, left=True)
        totals.append(["total", _requests(total.requests), _bytes(total.bytes_sent)])
    rows = _aligned(cells, right=(3,))
    return [*rows, *([""] if rows and totals else []), *_aligned(totals, right=(1, 2))]


def _cells(row: EgressRow) -> list[str]:
    record = row.record
    at = datetime.datetime.fromtimestamp(record.at).astimezone()
    what = record.slot if record.destination == "provider" else f"mcp {record.slot}"
    turn = "request" if row.session_id.startswith(PREFIX) else f"{row.session_id} {row.turn}"
    path = record.path if record.path.startswith("/") else f" {record.path}"
    where = one_line(record.host + path)
    return [
        f"{at:%Y-%m-%d %H:%M}",
        one_line(f"{what} ({record.route or 'no'} turn)"),
        where,
        _bytes(record.bytes_sent),
        one_line(record.allowed_because),
        turn,
    ]


def _aligned(cells: Sequence[Sequence[str]], *, right: Sequence[int]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            [
                text.rjust(width) if column in right else text.ljust(width)
                for column, (text, width) in enumerate(zip(row, widths, strict=True))
            ]
        ).rstrip()
        for row in cells
    ]


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _bytes(count: int) -> str:
    return "1 byte" if count == 1 else f"{count:,} bytes"


def notes_of(report: EgressReport, since: datetime.datetime | None) -> list[str]:
    """What is said besides: that nothing left, how much is not shown, and what stayed."""
    left, stayed = egress_size(report.hosts, left=True), egress_size(report.hosts, left=False)
    span = "" if since is None else f" since {since:%Y-%m-%d}"
    whose = "" if report.session_id is None else " in this session"
    notes: list[str] = []
    if not left.requests:
        notes.append(f"Nothing has left this machine{span}{whose}.")
    shown = sum([leaves(row.record.host, row.record.allowed_because) for row in report.rows])
    if left.requests > shown:
        notes.append(f"{_requests(left.requests - shown)} are not shown (--limit).")
    if stayed.requests:
        verb = "was" if stayed.requests == 1 else "were"
        notes.append(f"{_requests(stayed.requests)} {verb} sent to this machine itself (--all).")
    return notes
