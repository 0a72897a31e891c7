"""`mead model`: the file of the embedded model."""

from __future__ import annotations

from pathlib import Path

import click

from mead.cli._embedded import install
from mead.cli._terminal import fail_usage, say, write
from mead.settings import ConfigError, load


@click.group("model")
def command() -> None:
    """Install the embedded model."""


@command.command("install")
@click.pass_obj
def install_command(config: Path | None) -> None:
    """Fetch the embedded model's file (98 MB) and check its hash."""
    from mead.providers.embedded.model import find_model

    try:
        folder = load(config).data_folder / "models"
    except ConfigError as error:
        fail_usage(str(error))
    found = find_model(folder)
    if found is None:
        found = install(folder)
        say("The embedded model is installed.")
    else:
        say("The embedded model is installed already.")
    write(str(found))
