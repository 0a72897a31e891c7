"""What left this machine, row by row and by host. The command and the native API show it."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence

from msgspec import Struct

from mead.sessions.shapes import SentShape
from mead.sessions.usage import day_of
from mead.storage import Store
from mead.storage.protocol import EgressRow, EgressSum

_PAGE = 1000
_STAYS = ("stays on this machine", "unix socket")


class HostTotal(Struct, frozen=True, kw_only=True):
    """All that went to one host. `left` is false for one that is this machine itself."""

    host: str
    left: bool
    requests: int
    bytes_sent: int
    first_at: float
    last_at: float


class EgressReport(Struct, frozen=True, kw_only=True):
    """What is shown: the newest rows, the oldest of them first, and totals of all rows."""

    session_id: str | None
    rows: tuple[EgressRow, ...]
    hosts: tuple[HostTotal, ...]


class EgressSize(Struct, frozen=True, kw_only=True):
    """How many requests, and how many bytes."""

    requests: int
    bytes_sent: int


class EgressShape(Struct, frozen=True, kw_only=True):
    """The report as JSON. `since` is the first day that counts."""

    ok: bool = True
    session: str | None
    since: str | None
    rows: tuple[SentShape, ...]
    hosts: tuple[HostTotal, ...]
    total: EgressSize
    stayed: EgressSize


async def egress_report(
    store: Store,
    owner: str | None,
    *,
    session_id: str | None = None,
    since: float | None = None,
    limit: int,
    with_stayed: bool,
) -> EgressReport:
    """What left for the turns of an owner, or of all of them: the newest `limit` rows, and all totals."""
    rows = await _newest(store, owner, session_id, since, limit, with_stayed=with_stayed)
    sums = await store.egress_sums(owner, session_id=session_id, since=since)
    return EgressReport(session_id=session_id, rows=rows, hosts=by_host(sums))


async def _newest(
    store: Store,
    owner: str | None,
    session_id: str | None,
    since: float | None,
    limit: int,
    *,
    with_stayed: bool,
) -> tuple[EgressRow, ...]:
    """The newest rows that are to be shown. Among many that stayed they may be few, so ever more are read."""
    page = max(_PAGE, limit)
    while True:
        found = await store.egress(owner, session_id=session_id, since=since, limit=page)
        wanted = [row for row in found if with_stayed or leaves(row.record.host, row.record.allowed_because)]
        if len(wanted) >= limit or len(found) < page:
            return tuple(wanted[-limit:])
        page *= 10


def leaves(host: str, allowed_because: str) -> bool:
    """Whether what is sent there leaves this machine: a socket, a child process and a loopback address are on
    it; any other address is taken to be elsewhere."""
    name = host.rpartition(":")[0].strip("[]")
    if allowed_because in _STAYS or host.startswith("/") or name == "localhost":
        return False
    try:
        return not ipaddress.ip_address(name).is_loopback
    except ValueError:
        return True


def by_host(sums: Sequence[EgressSum]) -> tuple[HostTotal, ...]:
    """The sums of each host, those that left first, then the largest first."""
    groups: dict[tuple[str, bool], list[EgressSum]] = {}
    for each in sums:
        groups.setdefault((each.host, leaves(each.host, each.allowed_because)), []).append(each)
    totals = [
        HostTotal(
            host=host,
            left=left,
            requests=sum([each.requests for each in of_host]),
            bytes_sent=sum([each.bytes_sent for each in of_host]),
            first_at=min([each.first_at for each in of_host]),
            last_at=max([each.last_at for each in of_host]),
        )
        for (host, left), of_host in groups.items()
    ]
    return tuple(sorted(totals, key=lambda each: (not each.left, -each.bytes_sent, each.host)))


def egress_shape(report: EgressReport, since: datetime.date | None) -> EgressShape:
    """The report as JSON has it."""
    return EgressShape(
        session=report.session_id,
        since=None if since is None else day_of(since),
        rows=tuple([sent_shape(row) for row in report.rows]),
        hosts=report.hosts,
        total=egress_size(report.hosts, left=True),
        stayed=egress_size(report.hosts, left=False),
    )


def sent_shape(row: EgressRow) -> SentShape:
    """One row as JSON has it."""
    record = row.record
    return SentShape(
        at=record.at,
        owner=row.owner,
        session_id=row.session_id,
        turn=row.turn,
        destination=record.destination,
        slot=record.slot,
        route=record.route,
        host=record.host,
        path=record.path,
        bytes_sent=record.bytes_sent,
        allowed_because=record.allowed_because,
        left=leaves(record.host, record.allowed_because),
    )


def egress_size(hosts: Sequence[HostTotal], *, left: bool) -> EgressSize:
    """All that left, or all that stayed."""
    of_kind = [each for each in hosts if each.left == left]
    return EgressSize(
        requests=sum([each.requests for each in of_kind]),
        bytes_sent=sum([each.bytes_sent for each in of_kind]),
    )
