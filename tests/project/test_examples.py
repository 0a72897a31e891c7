"""The examples run as they are."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import httpx
import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks types up there
    spec.loader.exec_module(module)
    return module


async def test_the_fastapi_example_streams_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mead.toml").write_text('[router.slots.local]\nprovider = "echo"\n')
    monkeypatch.setenv("MEAD_CONFIG", str(tmp_path / "mead.toml"))
    app = load("fastapi_app").app
    transport = httpx.ASGITransport(app=app)

    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
            session_id = (await client.post("/sessions")).json()["session_id"]
            turn = {"text": "hello there", "route": "local"}
            answered = await client.post(f"/sessions/{session_id}/turns", json=turn)
            refused = await client.post(f"/sessions/{session_id}/turns", json={**turn, "route": "cloud"})
            unknown = await client.post("/sessions/nothing/turns", json=turn)

    lines = [json.loads(line) for line in answered.text.splitlines()]
    assert lines == [
        {"delta": "hello "},
        {"delta": "there"},
        {"answer": "hello there", "route": "local"},
    ]
    assert json.loads(refused.text)["error"] == "cloud_unavailable"
    assert unknown.status_code == 404


# nbclient opens its sockets on a loop of its own and leaves closing them to the garbage collector.
@pytest.mark.filterwarnings("default")
def test_the_notebook_runs_from_top_to_bottom() -> None:
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)

    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()

    outputs = [
        output.get("text") or output.get("data", {}).get("text/plain")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    ]
    assert outputs[0] == "What is a lighthouse? local shareable\n"
    assert "card" in outputs[2]
    assert outputs[-1] == "2"


def test_the_demo_shows_the_main_job(model_folder: Path, tmp_path: Path) -> None:
    data_folder = tmp_path / "data"
    data_folder.mkdir()
    (data_folder / "models").symlink_to(model_folder)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py")],
        capture_output=True,
        text=True,
        timeout=300,
        env={"MEAD_DATA_FOLDER": str(data_folder), "PATH": os.environ["PATH"]},
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"\[local, \d+ tokens in, \d+ out\]", done.stdout)) == 5
    assert "cloud_unavailable" in done.stdout
    assert "Requests that it sent: 0." in done.stdout
    assert "All 3 requests of this session went to 127.0.0.1:" in done.stdout
    assert "local, local_only: The text holds something of the kind 'card'." in done.stdout
    assert "3 turns are kept" in done.stdout
    assert "[calls git__git_log]" in done.stdout
    assert "Branches: master\n" in done.stdout or "Branches: main\n" in done.stdout
    assert "approve git__git_create_branch" in done.stdout
    assert re.search(r"Branches: \w+, roses\n", done.stdout)
    assert "Sent to the server: git_log, git_create_branch." in done.stdout


def test_the_readmes_example_runs_as_printed(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    configs = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert blocks

    for number, block in enumerate(blocks):
        program = tmp_path / f"example_{number}.py"
        program.write_text(block)
        done = subprocess.run(
            [sys.executable, str(program)],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env={"HOME": str(tmp_path), "PATH": ""},
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        expected = re.findall(r"# prints: (.*)", block)
        assert done.stdout.splitlines() == expected
    assert configs, "the README shows a configuration"


def test_the_readmes_configuration_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    from mead.settings import parse

    (config,) = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)

    settings = parse(config, environ={"ANTHROPIC_API_KEY": "k", "HOME": "/home/somebody"})

    assert settings.router.slots.local is not None
    assert settings.router.slots.cloud is not None
    assert asyncio.iscoroutinefunction(load("fastapi_app").start_session)
