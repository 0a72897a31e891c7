"""`mead usage`: what the provider calls took and cost, from the ledger."""

from __future__ import annotations

import asyncio
import csv
import datetime
import io
import shutil
from pathlib import Path
from typing import Literal, TypeAlias, cast, get_args

import click

from mead.cli._json import write_json
from mead.cli._store import is_there, store_url
from mead.cli._terminal import fail_usage, safe, say, write
from mead.ledger.money import shown_usd
from mead.sessions.usage import COLUMNS, UsageLine, UsageReport, no_usage, usage_rows, usage_shape
from mead.settings import ConfigError, Settings, load
from mead.storage import StoreError, open_store
from mead.storage.protocol import UsageGroup

_NAMELESS = {"model": "(unknown)", "tag": "(no tag)"}
_FULL, _EIGHTHS = "█", " ▏▎▍▌▋▊▉"
_Form: TypeAlias = Literal["table", "json", "csv", "plot"]


@click.command("usage")
@click.option(
    "--by",
    type=click.Choice(get_args(UsageGroup)),
    default="day",
    show_default=True,
    help="What the calls are added up by.",
)
@click.option("--since", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE", help="From this day (UTC) on.")
@click.option(
    "--until", type=click.DateTime(["%Y-%m-%d"]), metavar="DATE", help="Up to this day (UTC), it included."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values instead of a table.")
@click.option("--plot", "as_plot", is_flag=True, help="Bars instead of a table.")
@click.pass_obj
def command(
    config: Path | None,
    /,
    by: str,
    since: datetime.datetime | None,
    until: datetime.datetime | None,
    as_json: bool,
    as_csv: bool,
    as_plot: bool,
) -> None:
    """Show how many tokens the provider calls took, and what they cost."""
    form = _form(as_json=as_json, as_csv=as_csv, as_plot=as_plot)
    if since is not None and until is not None and since > until:
        fail_usage("--since is later than --until")
    try:
        settings = load(config)
        report = asyncio.run(_report(settings, cast(UsageGroup, by), since, until))
    except (ConfigError, StoreError) as error:
        fail_usage(str(error))
    if form == "json":
        write_json(usage_shape(report, since, until))
    elif form == "csv":
        write(report_csv(report), newline=False)
    elif not report.lines:
        say(f"The ledger has no calls{_span(since, until)}.")
    else:
        shown = plot_of(report, shutil.get_terminal_size().columns) if form == "plot" else table_of(report)
        write(safe("\n".join(shown)))
        for note in notes_of(report):
            say(note)


def _form(*, as_json: bool, as_csv: bool, as_plot: bool) -> _Form:
    wanted: list[_Form] = []
    if as_json:
        wanted.append("json")
    if as_csv:
        wanted.append("csv")
    if as_plot:
        wanted.append("plot")
    if len(wanted) > 1:
        fail_usage(f"--{wanted[0]} and --{wanted[1]} exclude each other")
    return wanted[0] if wanted else "table"


async def _report(
    settings: Settings, by: UsageGroup, since: datetime.datetime | None, until: datetime.datetime | None
) -> UsageReport:
    if not is_there(settings):
        return no_usage(by)
    store = open_store(store_url(settings))
    await store.open()
    try:
        return await usage_rows(store, by, since=since, until=until)
    finally:
        await store.aclose()


# How it is written


def report_csv(report: UsageReport) -> str:
    """The report as `--csv` writes it: a line of names, then one for each group. Unknown is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([report.by, *COLUMNS])
    writer.writerows([[line.key, *_values(line).values()] for line in report.lines])
    return text.getvalue()


def _values(line: UsageLine) -> dict[str, object]:
    return {name: getattr(line, name) for name in COLUMNS}


def table_of(report: UsageReport) -> list[str]:
    """The report as lines of text, its columns one below the other."""
    header = [report.by, "calls", "input", "cached", "output", "cost"]
    cells = [header, *[_cells(line, report.by) for line in (*report.lines, report.total)]]
    widths = [max([len(row[column]) for row in cells]) for column in range(len(header))]
    return [
        "  ".join([name.ljust(widths[0]), *[cell.rjust(n) for cell, n in zip(rest, widths[1:], strict=True)]])
        for name, *rest in cells
    ]


def _cells(line: UsageLine, by: UsageGroup) -> list[str]:
    return [
        _name(line, by),
        f"{line.calls:,}",
        _tokens(line.input_tokens, line),
        f"{line.cached_tokens:,}",
        _tokens(line.output_tokens, line),
        _cost(line),
    ]


def _name(line: UsageLine, by: UsageGroup) -> str:
    return safe(line.key) or _NAMELESS.get(by, "(none)")


def _tokens(count: int, line: UsageLine) -> str:
    if not line.unknown_calls:
        return f"{count:,}"
    return f"at least {count:,}" if count else "unknown"


def _cost(line: UsageLine) -> str:
    if line.nano_usd is None:
        return "unknown"
    return f"at least {shown_usd(line.nano_usd)}" if line.unpriced_calls else shown_usd(line.nano_usd)


def plot_of(report: UsageReport, columns: int) -> list[str]:
    """The report as bars: each as long as the group's tokens, the longest as the room of so many columns."""
    names = [_name(line, report.by) for line in report.lines]
    said = [f"{_tokens(_both(line), line)} tokens, {_cost(line)}" for line in report.lines]
    most = max([_both(line) for line in report.lines]) or 1
    left = max([len(name) for name in names])
    room = max(8, columns - left - max([len(text) for text in said]) - 3)
    return [
        f"{name.ljust(left)} {_bar(_both(line), most, room)} {text}"
        for name, line, text in zip(names, report.lines, said, strict=True)
    ]


def _both(line: UsageLine) -> int:
    return line.input_tokens + line.output_tokens


def _bar(count: int, most: int, room: int) -> str:
    """A bar of `room` cells at most, in eighths of a cell. What is not nothing is seen."""
    eighths = max(count * room * 8 // most, 1 if count else 0)
    rest = _EIGHTHS[eighths % 8].strip()
    return (_FULL * (eighths // 8) + rest).ljust(room)


def notes_of(report: UsageReport) -> list[str]:
    """What must be known to read the figures."""
    notes = []
    total = report.total
    if total.unknown_calls:
        they = "it" if total.unknown_calls == 1 else "they"
        notes.append(
            f"{_calls(total.unknown_calls)} did not say how many tokens {they} took; what {they} took is not "
            "in the sums."
        )
    if total.unpriced_calls:
        have = "has" if total.unpriced_calls == 1 else "have"
        notes.append(f"{_calls(total.unpriced_calls)} {have} no known cost (docs/ledger.md).")
    if report.prices is not None:
        oldest, newest = report.prices
        notes.append(f"Prices of {oldest}." if oldest == newest else f"Prices of {oldest} to {newest}.")
    if report.by == "tag":
        notes.append("A call with several tags stands under each of them, and once in the total.")
    return notes


def _calls(number: int) -> str:
    return "1 call" if number == 1 else f"{number:,} calls"


def _span(since: datetime.datetime | None, until: datetime.datetime | None) -> str:
    parts = []
    if since is not None:
        parts.append(f" from {since:%Y-%m-%d} on")
    if until is not None:
        parts.append(f" up to {until:%Y-%m-%d}")
    return "".join(parts)
