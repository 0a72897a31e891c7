"""The fixtures of the tests of the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.commands import ECHO, Servers, Terminal


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is home, working folder and all else where mead looks or keeps things."""
    for name in (
        "MEAD_CONFIG",
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "PYTHONUNBUFFERED",
        "PYTHONIOENCODING",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    monkeypatch.setenv("MEAD_DATA_FOLDER", str(tmp_path / "data"))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("PYTHONUTF8", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def configure(home: Path) -> Callable[..., None]:
    """Writes the mead.toml of the working folder."""

    def write(*parts: str) -> None:
        (home / "mead.toml").write_text("".join(parts), encoding="utf-8")

    return write


@pytest.fixture
def echoing(configure: Callable[..., None]) -> None:
    """The local slot repeats what it is told."""
    configure(ECHO)


@pytest.fixture
def servers() -> Iterator[Servers]:
    """Starts servers: `servers.start(Answer(…))`."""
    started = Servers()
    yield started
    started.close()


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Runs mead at a terminal: `terminal("chat")`."""
    opened: list[Terminal] = []

    def start(*arguments: str, stdout: int | None = None) -> Terminal:
        opened.append(Terminal(*arguments, stdout=stdout))
        return opened[-1]

    yield start
    for each in opened:
        each.close()
