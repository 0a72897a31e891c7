"""What every room's tests share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mead.providers.embedded.model import find_model, install_model

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session", autouse=True)
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a test keeps in the data folder is not kept in that of whoever runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("share")))
        yield


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The folder with the embedded model's file, fetched now if it is not there yet: the demo's own."""
    folder = Path(os.environ.get("MEAD_DATA_FOLDER") or ROOT / ".mead") / "models"
    if find_model(folder) is None:
        asyncio.run(install_model(folder))
    return folder
