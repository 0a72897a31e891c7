"""Draws the cross-validated curves of both models for the documents: python -m training.curves DATA FOLDER.

`mead eval --plot` draws those of the weights as they are, which flatters them on the data of the training.
"""

from __future__ import annotations

from pathlib import Path

import click

from mead.cli._plots import draw_file
from mead.cli.eval import privacy_plot, routing_plot
from mead.router.evaluation.privacy import report
from training.difficulty import by_question, held_out_gains, matrix_of, read_examples
from training.difficulty_report import report_of
from training.privacy import cross_validate


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("folder", type=click.Path(path_type=Path))
def main(data: Path, folder: Path) -> None:
    """Writes routing.svg and privacy.svg, from the folders `routing` and `privacy` of DATA."""
    folder.mkdir(parents=True, exist_ok=True)
    examples = read_examples(data / "routing")
    gains = held_out_gains(examples, matrix_of(examples), by_question(examples))
    draw_file(routing_plot(report_of(examples, gains)), folder / "routing.svg")
    draw_file(privacy_plot(report(cross_validate(data / "privacy"))), folder / "privacy.svg")


if __name__ == "__main__":
    main()
