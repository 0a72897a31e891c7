"""Draws a curve: into a file with matplotlib, into the terminal with plotext. Both need the extra `plot`."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from mead.cli._terminal import fail_usage

ENDINGS = (".png", ".svg")
_DPI = 150
_WIDEST, _LINES = 100, 24


class Line(Struct, frozen=True, kw_only=True):
    """A line of a plot, from point to point. A `plain` one is there for comparison."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    plain: bool = False


class Plot(Struct, frozen=True, kw_only=True):
    """What is to be drawn."""

    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]


def check_ending(file: Path) -> None:
    """Ends the command if the file's ending is none that can be drawn."""
    if file.suffix.lower() not in ENDINGS:
        fail_usage(f"{file}: the name of a plot ends in .png or .svg")


def draw_file(plot: Plot, file: Path) -> None:
    """Writes the plot, as PNG or SVG by the file's ending. Ends the command if that cannot be done."""
    matplotlib = _needed("matplotlib")
    figure = _needed("matplotlib.figure").Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    for line in plot.lines:
        style = {"color": "0.6", "linestyle": "--"} if line.plain else {"linewidth": 2}
        axes.plot(line.x, line.y, label=line.name, **style)
    axes.set(title=plot.title, xlabel=plot.x_name, ylabel=plot.y_name)
    axes.grid(alpha=0.3)
    axes.legend()
    metadata = {"Date": None} if file.suffix.lower() == ".svg" else {}
    try:
        # Without a salt of our own the ids in an SVG would be other ones each time.
        with matplotlib.rc_context({"svg.hashsalt": "mead"}):
            figure.savefig(file, dpi=_DPI, metadata=metadata)
    except OSError as error:
        fail_usage(f"{file} cannot be written: {error.strerror}")


def draw_text(plot: Plot) -> str:
    """The plot in characters, as wide as the terminal but no wider than 100 columns, without colours."""
    figure = _needed("plotext").figure
    figure.clear()
    figure.plot_size(min(_WIDEST, shutil.get_terminal_size().columns), _LINES)
    for line in plot.lines:
        marker = "dot" if line.plain else "braille"
        figure.draw(figure.signal(list(line.x), list(line.y), marker=marker).lines().label(line.name))
    figure.title(plot.title)
    figure.label(plot.x_name, "x")
    figure.label(plot.y_name, "y")
    return str(figure.build().string(colorless=True))


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        fail_usage(f"drawing needs {name}, of the extra plot: pip install 'mead-runtime[plot]'")
