"""Real servers: the official ones in Python, and those from npm, over stdio and over HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from servers import call, hub_of, names

from mead.core.options import TurnOptions
from mead.settings import McpServerSettings

ROOT = Path(__file__).parents[2]
NODE = ROOT / "node_modules" / ".bin" / "node"
PACKAGES = ROOT / "node_modules" / "@modelcontextprotocol"
LOOPBACK = ROOT / "tests" / "conformance" / "loopback.cjs"
PLAIN = TurnOptions()


@pytest.fixture(scope="session")
def node() -> str:
    """Node with the npm servers, installed now if they are not there."""
    done = subprocess.run([ROOT / "scripts" / "setup-node"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"the npm packages cannot be installed: {done.stderr.strip()[-200:]}")
    return str(NODE)


def python_server(name: str, module: str, **settings: object) -> McpServerSettings:
    chosen: dict[str, object] = {"name": name, "trusted": True, "reach": "machine", **settings}
    return McpServerSettings(command=sys.executable, args=("-m", module), **chosen)  # type: ignore[arg-type]  # by name


def npm_server(node: str, name: str, *arguments: str, **settings: object) -> McpServerSettings:
    script = str(PACKAGES / f"server-{name}" / "dist" / "index.js")
    chosen: dict[str, object] = {"name": name, "trusted": True, **settings}
    return McpServerSettings(command=node, args=(script, *arguments), **chosen)  # type: ignore[arg-type]  # by name


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "garden"
    author = ["-c", "user.name=Ada", "-c", "user.email=ada@example.com"]
    commit = ["commit", "--quiet", "--allow-empty", "--message", "Plant the first tulips"]
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    subprocess.run(["git", "-C", str(folder), *author, *commit], check=True)
    return folder


def branches(repository: Path) -> str:
    command = ["git", "-C", str(repository), "branch", "--list"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def test_the_git_server_reads_and_changes_only_for_a_turn_that_opts_in(repository: Path) -> None:
    branch = {"repo_path": str(repository), "branch_name": "roses"}
    async with hub_of(python_server("git", "mcp_server_git")) as hub:
        log = await call(hub, "git__git_log", PLAIN, repo_path=str(repository))
        refused = await call(hub, "git__git_create_branch", PLAIN, **branch)
        before = await asyncio.to_thread(branches, repository)
        done = await call(hub, "git__git_create_branch", **branch)
        after = await asyncio.to_thread(branches, repository)

    assert "Plant the first tulips" in log.content
    assert refused.is_error
    assert "did not opt in" in refused.content
    assert "roses" not in before
    assert not done.is_error
    assert "roses" in after


async def test_the_hints_of_the_git_server_count_only_where_it_is_trusted() -> None:
    trusted, wild = (
        python_server("git", "mcp_server_git"),
        python_server("wild", "mcp_server_git", trusted=False),
    )
    async with hub_of(trusted, wild) as hub:
        shown = await names(hub, PLAIN)

    assert "git__git_log" in shown
    assert "git__git_commit" not in shown
    assert not [name for name in shown if name.startswith("wild__")]


async def test_the_time_server_answers_and_its_mistakes_are_error_results() -> None:
    async with hub_of(python_server("time", "mcp_server_time")) as hub:
        right = await call(hub, "time__get_current_time", PLAIN, timezone="Europe/Oslo")
        wrong = await call(hub, "time__get_current_time", PLAIN, timezone="Nowhere/Atlantis")

    assert "Europe/Oslo" in right.content
    assert not right.is_error
    assert wrong.is_error


async def test_server_everything_over_stdio(node: str) -> None:
    async with hub_of(npm_server(node, "everything", "stdio")) as hub:
        shown = await names(hub)
        echo = await call(hub, "everything__echo", message="hé😀")
        health = hub.connection("everything").health()

    assert len(shown) >= 8
    assert "hé😀" in echo.content
    assert health.protocol in ("2025-11-25", "2025-06-18")


async def test_server_filesystem_over_stdio(node: str, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("buy two litres of milk")
    async with hub_of(npm_server(node, "filesystem", str(tmp_path), reach="machine")) as hub:
        read = await call(hub, "filesystem__read_text_file", PLAIN, path=str(tmp_path / "note.txt"))
        outside = await call(hub, "filesystem__read_text_file", PLAIN, path="/etc/hostname")
        refused = await call(
            hub, "filesystem__write_file", PLAIN, path=str(tmp_path / "new.txt"), content="x"
        )
        written = await call(hub, "filesystem__write_file", path=str(tmp_path / "new.txt"), content="x")

    assert "two litres" in read.content
    assert outside.is_error
    assert refused.is_error
    assert not written.is_error
    assert (tmp_path / "new.txt").read_text() == "x"


@pytest.fixture
async def everything_url(node: str) -> AsyncIterator[str]:
    """server-everything over streamable HTTP, on loopback only."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    script = str(PACKAGES / "server-everything" / "dist" / "index.js")
    process = await asyncio.create_subprocess_exec(
        *(node, "--require", str(LOOPBACK), script, "streamableHttp"),
        env={**os.environ, "PORT": str(port)},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while b"istening" not in (line := await process.stderr.readline()):
            assert line, "the server did not start"
    draining = asyncio.create_task(process.stderr.read())
    yield f"http://127.0.0.1:{port}/mcp"
    process.terminate()
    await process.wait()
    await draining


async def test_server_everything_over_streamable_http(everything_url: str) -> None:
    server = McpServerSettings(name="far", url=everything_url, trusted=True)
    async with hub_of(server) as hub:
        echo = await call(hub, "far__echo", message="hello")
        both = await asyncio.gather(*[call(hub, "far__echo", message=str(number)) for number in range(20)])

    assert "hello" in echo.content
    assert not any(output.is_error for output in both)
