"""Installs the embedded model for a person who watches: with a progress bar, before the first turn."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from mead.cli._found import has_engine
from mead.cli._terminal import fail_usage, is_terminal, say
from mead.settings import Settings


def ensure_model(settings: Settings) -> None:
    """Fetches the embedded model's file if a slot needs it and it is not there. Ends the program with a
    sentence if that fails."""
    local = settings.router.slots.local
    if local is None or local.provider != "embedded" or settings.embedded.model_path is not None:
        return
    if not has_engine():
        fail_usage("the engine of the embedded model is not installed: pip install 'mead-runtime[local]'")
    from mead.providers.embedded.model import find_model

    folder = settings.data_folder / "models"
    if find_model(folder) is None:
        say("The embedded model is not installed yet; fetching it (98 MB, once).")
        install(folder)


def install(folder: Path) -> Path:
    """Fetches the model's file into `folder`. Ends the program with a sentence if that fails."""
    from mead.providers.embedded.model import ModelInstallError, install_model

    try:
        if not is_terminal(sys.stderr):
            return asyncio.run(install_model(folder))
        return asyncio.run(_with_progress(folder))
    except ModelInstallError as error:
        fail_usage(str(error))
    except KeyboardInterrupt:
        fail_usage("the installation was broken off; `mead model install` begins again")


async def _with_progress(folder: Path) -> Path:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    from mead.providers.embedded.model import install_model

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("fetching the model", total=None)
        return await install_model(
            folder, on_progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
