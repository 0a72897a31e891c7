"""The ledger, added up: what the provider calls took and cost. The command and the native API show it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from mead.ledger.money import NANO
from mead.storage.protocol import CallRow, UsageFilter, UsageGroup, UsageSum

_NEWEST = 1000
"""How many calls are looked at to say of when their prices are."""
_COUNTS = ("input_tokens", "output_tokens", "cached_tokens", "cache_write_tokens", "reasoning_tokens")
COLUMNS = ("calls", "unknown_calls", *_COUNTS, "cost_usd", "unpriced_calls")


class UsageStore(Protocol):
    """The part of a store that the ledger is read from; see `mead.storage.Store`."""

    async def usage_sums(
        self, by: UsageGroup, which: UsageFilter, *, utc_offset_s: int = 0
    ) -> Sequence[UsageSum]: ...

    async def usage_rows(self, which: UsageFilter, *, limit: int) -> Sequence[CallRow]: ...


class UsageLine(Struct, frozen=True, kw_only=True):
    """The calls of one group. Where there are `unknown_calls` the counts are lower bounds, where there are
    `unpriced_calls` the cost is one; the cost is `None` if no call has one."""

    key: str
    calls: int
    unknown_calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    nano_usd: int | None
    unpriced_calls: int

    @property
    def cost_usd(self) -> float | None:
        """The cost in USD."""
        return None if self.nano_usd is None else self.nano_usd / NANO


class UsageReport(Struct, frozen=True, kw_only=True):
    """What is shown: a line for each group, and all calls together, each once. `prices` are the oldest and
    the newest day that the costs' prices are of; `None` where they have none."""

    by: UsageGroup
    lines: tuple[UsageLine, ...]
    total: UsageLine
    prices: tuple[str, str] | None


class UsageFigures(Struct, frozen=True, kw_only=True):
    """The figures of some calls, as JSON."""

    calls: int
    unknown_calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_usd: float | None
    unpriced_calls: int


class UsageRow(Struct, frozen=True, kw_only=True):
    """The figures of one group, as JSON."""

    key: str
    calls: int
    unknown_calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_usd: float | None
    unpriced_calls: int


class PriceDays(Struct, frozen=True, kw_only=True):
    """The oldest and the newest day that prices are of."""

    oldest: str | None
    newest: str | None


class UsageShape(Struct, frozen=True, kw_only=True):
    """The report as JSON. `since` and `until` are the first and the last day that count."""

    ok: bool = True
    by: UsageGroup
    since: str | None
    until: str | None
    rows: tuple[UsageRow, ...]
    total: UsageFigures
    prices: PriceDays


def no_usage(by: UsageGroup) -> UsageReport:
    """The report of a ledger without calls."""
    return UsageReport(by=by, lines=(), total=_total(()), prices=None)


async def usage_rows(
    store: UsageStore,
    by: UsageGroup = "day",
    *,
    since: datetime.date | None = None,
    until: datetime.date | None = None,
    owner: str | None = None,
    session_id: str | None = None,
) -> UsageReport:
    """The ledger's sums, of one owner or of all. `since` and `until` are days in UTC, and the last one counts
    too."""
    which = UsageFilter(
        owner=owner,
        session_id=session_id,
        since=None if since is None else begin_of(since),
        until=None if until is None else begin_of(until) + 86_400,
    )
    sums = await store.usage_sums(by, which)
    # A call has one route, but may have several tags: so this adds up every call once.
    once = sums if by == "route" else await store.usage_sums("route", which)
    newest = await store.usage_rows(which, limit=_NEWEST)
    days = sorted({call.price_date for call in newest if call.price_date is not None})
    return UsageReport(
        by=by,
        lines=tuple([_line(each) for each in sums]),
        total=_total([_line(each) for each in once]),
        prices=(days[0], days[-1]) if days else None,
    )


def begin_of(day: datetime.date) -> float:
    """When a day begins in UTC, in seconds since the epoch."""
    return datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC).timestamp()


def day_of(day: datetime.date) -> str:
    """A day, or that of a time, as it is written."""
    return datetime.date(day.year, day.month, day.day).isoformat()


def _line(found: UsageSum) -> UsageLine:
    counts = {name: getattr(found, name) for name in ("key", "calls", "unknown_calls", *_COUNTS)}
    unpriced = found.unpriced_calls
    nano_usd = None if unpriced == found.calls else round(found.cost_usd * NANO)
    return UsageLine(**counts, nano_usd=nano_usd, unpriced_calls=unpriced)


def _total(lines: Sequence[UsageLine]) -> UsageLine:
    counts = {
        name: sum([getattr(line, name) for line in lines])
        for name in ("calls", "unknown_calls", *_COUNTS, "unpriced_calls")
    }
    costs = [line.nano_usd for line in lines if line.nano_usd is not None]
    return UsageLine(key="total", nano_usd=sum(costs) if costs or not lines else None, **counts)


def usage_shape(report: UsageReport, since: datetime.date | None, until: datetime.date | None) -> UsageShape:
    """The report as JSON has it."""
    oldest, newest = report.prices or (None, None)
    return UsageShape(
        by=report.by,
        since=None if since is None else day_of(since),
        until=None if until is None else day_of(until),
        rows=tuple([UsageRow(key=line.key, **_figures(line)) for line in report.lines]),
        total=UsageFigures(**_figures(report.total)),
        prices=PriceDays(oldest=oldest, newest=newest),
    )


def _figures(line: UsageLine) -> dict[str, Any]:
    return {name: getattr(line, name) for name in COLUMNS}
