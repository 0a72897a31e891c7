"""`mead eval`: how well `route="auto"` decides, replayed on rows with known scores. No model is called."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import click

from mead.cli._json import write_json
from mead.cli._plots import Line, Plot, check_ending, draw_file, draw_text
from mead.cli._terminal import fail_usage, safe, say, write
from mead.router.evaluation import privacy, routing
from mead.router.evaluation.rows import DataError

_NONE = "-"
_WIDTH = 400

_data = click.argument("data", type=click.Path(path_type=Path))
_json = click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
_curve = click.option("--curve", "with_curve", is_flag=True, help="Draw the curve under the table.")
_plot = click.option(
    "--plot",
    "plot_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw the curve into FILE (.png or .svg), and under the table.",
)


@click.group("eval")
def command() -> None:
    """Measure how well the router decides. No model is called."""


@command.command("routing")
@_data
@_json
@_plot
@_curve
def routing_command(data: Path, as_json: bool, plot_file: Path | None, with_curve: bool) -> None:
    """Measure the difficulty score on rows with both models' scores."""
    from mead.router.classifier.difficulty import DifficultyModel

    _check(as_json=as_json, with_curve=with_curve, plot_file=plot_file)
    model = DifficultyModel.load()
    try:
        rows = routing.load(data)
    except DataError as error:
        fail_usage(str(error))
    report = routing.evaluate(rows, lambda row: model.judge(row.prompt, tools=row.tools).gain)
    if as_json:
        write_json({"ok": True, "version": model.version, **report.to_json()})
    else:
        write(safe(_table(_ROUTING_HEADER, _routing_cells(report))))
        say(f"APGR: more is better, random has .500. CPT: less is better. Weights {model.version}.")
    _draw(routing_plot(report), as_json=as_json, plot_file=plot_file, with_curve=with_curve)


@command.command("privacy")
@_data
@_json
@_plot
@_curve
def privacy_command(data: Path, as_json: bool, plot_file: Path | None, with_curve: bool) -> None:
    """Measure the privacy gate on texts that are labelled private or public."""
    from mead.router.classifier.gate import PrivacyGate

    _check(as_json=as_json, with_curve=with_curve, plot_file=plot_file)
    gate = PrivacyGate()
    try:
        report = privacy.evaluate(privacy.load(data), gate)
    except DataError as error:
        fail_usage(str(error))
    if as_json:
        write_json({"ok": True, "version": gate.version, **report.to_json()})
    else:
        write(safe(_table(_PRIVACY_HEADER, _privacy_cells(report))))
        say(f"Profile balanced. Weights {gate.version}.")
    _draw(privacy_plot(report), as_json=as_json, plot_file=plot_file, with_curve=with_curve)


def _check(*, as_json: bool, with_curve: bool, plot_file: Path | None) -> None:
    if as_json and with_curve:
        fail_usage("--json and --curve exclude each other")
    if plot_file is not None:
        check_ending(plot_file)


def _draw(plot: Plot, *, as_json: bool, plot_file: Path | None, with_curve: bool) -> None:
    if plot_file is not None:
        draw_file(plot, plot_file)
    if with_curve or (plot_file is not None and not as_json):
        write(safe(draw_text(plot)))


# How it is written

_ROUTING_HEADER = ("set", "rows", "APGR", "CPT50", "CPT80", "APGR by length")
_PRIVACY_HEADER = ("set", "tier", "private", "public", "precision", "recall", "false alarms")


def _routing_cells(report: routing.RoutingReport) -> list[list[str]]:
    rows = [
        [name, *_metrics_cells(metrics), _share(report.length.sets[name].apgr)]
        for name, metrics in report.sets.items()
    ]
    return [*rows, ["mixed", *_metrics_cells(report.mixed), _share(report.length.mixed.apgr)]]


def _metrics_cells(metrics: routing.Metrics) -> list[str]:
    return [
        f"{metrics.rows:,}",
        _share(metrics.apgr),
        *[_NONE if value is None else f"{value:.1f} %" for value in (metrics.cpt50, metrics.cpt80)],
    ]


def _privacy_cells(report: privacy.PrivacyReport) -> list[list[str]]:
    rows = []
    for name, counts in report.sets.items():
        rows.append([name, "", *_counts_cells(counts)])
        rows += [["", tier, *_counts_cells(counts)] for tier, counts in report.tiers[name].items()]
    return [
        *rows,
        ["pooled", "", *_counts_cells(report.pooled)],
        ["rules alone", "", *_counts_cells(report.baseline)],
    ]


def _counts_cells(counts: privacy.Counts) -> list[str]:
    return [
        f"{counts.private:,}",
        f"{counts.public:,}",
        *[_share(value) for value in (counts.precision, counts.recall, counts.false_alarm_rate)],
    ]


def _share(value: float | None) -> str:
    return _NONE if value is None else f"{value:.3f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="")
    for number, name in enumerate(header):
        words = number == 0 or name == "tier"
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    # Wide, into a string: a table that is piped on must not be cut to some terminal's width.
    console = Console(file=io.StringIO(), width=_WIDTH, color_system=None)
    with console.capture() as captured:
        console.print(table)
    return "\n".join([line.rstrip() for line in captured.get().splitlines()])


def routing_plot(report: routing.RoutingReport) -> Plot:
    """The curve of a routing report, with what it is compared with."""
    return Plot(
        title="Cost and quality of mixed traffic",
        x_name="share of turns for the strong model (%)",
        y_name="gap recovered (%)",
        lines=(
            _line("difficulty score", report.curve),
            _line("prompt length", report.length.curve, plain=True),
            Line(name="random", x=(0, 100), y=(0, 100), plain=True),
        ),
    )


def _line(name: str, points: Sequence[routing.Point], *, plain: bool = False) -> Line:
    x, y = [100 * point.share for point in points], [100 * point.pgr for point in points]
    return Line(name=name, x=x, y=y, plain=plain)


def privacy_plot(report: privacy.PrivacyReport) -> Plot:
    """The curve of a privacy report."""
    return Plot(
        title="Precision and recall of the privacy gate",
        x_name="recall (%)",
        y_name="precision (%)",
        lines=(
            Line(
                name="gate, by threshold",
                x=[100 * point.recall for point in report.curve],
                y=[100 * point.precision for point in report.curve],
            ),
        ),
    )
