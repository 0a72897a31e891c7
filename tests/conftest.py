"""What every room's tests share."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from mead.providers.embedded.model import find_model, install_model

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """The folder with the embedded model's file, fetched now if it is not there yet: the demo's own."""
    folder = Path(os.environ.get("MEAD_DATA_FOLDER") or ROOT / ".mead") / "models"
    if find_model(folder) is None:
        asyncio.run(install_model(folder))
    return folder
