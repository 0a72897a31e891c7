"""Real servers: the official ones in Python, and those from npm, over stdio and over HTTP.

All of them annotate their tools. Those from npm speak the protocol of 2025-11-25, those in Python that of
2026-07-28.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

import pytest
from servers import call, hub_of, names, watching

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


async def test_the_time_server_answers_and_its_mistakes_are_error_results() -> None:
    async with hub_of(python_server("time", "mcp_server_time")) as hub:
        right = await call(hub, "time__get_current_time", PLAIN, timezone="Europe/Oslo")
        wrong = await call(hub, "time__get_current_time", PLAIN, timezone="Nowhere/Atlantis")

    assert "Europe/Oslo" in right.content
    assert not right.is_error
    assert wrong.is_error


async def test_server_everything_over_stdio(node: str) -> None:
    async with hub_of(npm_server(node, "everything", "stdio")) as hub:
        echo = await call(hub, "everything__echo", PLAIN, message="hé😀")
        health = hub.connection("everything").health()

    assert "hé😀" in echo.content
    assert health.protocol == "2025-11-25"
    assert (health.noise, health.notes) == (0, ())


RESULTS = {
    "get-structured-content": ({"location": "Chicago"}, '"temperature":36'),
    "get-tiny-image": ({}, "[image image/png, 4,033 bytes]"),
    "get-resource-links": ({"count": 1}, "<demo://resource/dynamic/blob/1> (text/plain)"),
    "get-resource-reference": ({"resourceType": "Text"}, "Resource 1: This is a plaintext resource"),
    "get-annotated-message": ({"messageType": "success"}, "success"),
    "get-sum": ({"a": 2, "b": 3}, "The sum of 2 and 3 is 5."),
}


async def test_results_of_every_kind_become_text(node: str) -> None:
    async with hub_of(npm_server(node, "everything", "stdio")) as hub:
        for tool, (arguments, expected) in RESULTS.items():
            output = await call(hub, f"everything__{tool}", PLAIN, **arguments)
            assert expected in output.content, tool
            assert not output.is_error


async def test_a_server_is_not_given_the_environment(node: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    async with hub_of(npm_server(node, "everything", "stdio", env={"GREETING": "hello"})) as hub:
        shown = await call(hub, "everything__get-env", PLAIN)

    assert "hello" in shown.content
    assert "sk-secret" not in shown.content


async def test_a_call_that_takes_too_long_leaves_the_others_alone(node: str) -> None:
    server = npm_server(node, "everything", "stdio", call_timeout_s=0.5)
    async with hub_of(server) as hub:
        slow = asyncio.create_task(call(hub, "everything__trigger-long-running-operation", duration=60))
        echo = await call(hub, "everything__echo", message="quick")
        output = await slow
        again = await call(hub, "everything__echo", message="again")

    assert (echo.is_error, again.is_error) == (False, False)
    assert output.is_error
    assert "did not answer within 0.5 s" in output.content


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


READS = {
    "everything": ("everything__get-env", "everything__toggle-simulated-logging"),
    "filesystem": ("filesystem__list_directory", "filesystem__write_file"),
    "git": ("git__git_log", "git__git_commit"),
    "time": ("time__get_current_time", None),
}


@pytest.mark.parametrize("name", READS)
async def test_the_hints_of_a_server_count_only_where_it_is_trusted(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def server(trusted: bool) -> McpServerSettings:
        if name in ("git", "time"):
            return python_server(name, f"mcp_server_{name}", trusted=trusted)
        arguments = ["stdio"] if name == "everything" else [str(tmp_path)]
        return npm_server(request.getfixturevalue("node"), name, *arguments, trusted=trusted)

    read, effect = READS[name]
    async with hub_of(server(True)) as hub:
        trusted = {tool.name: tool.effect for tool in hub.listing(PLAIN)}
        assert read in await names(hub, PLAIN)
        assert effect not in await names(hub, PLAIN)
    async with hub_of(server(False)) as hub:
        wild = {tool.name: tool.effect for tool in hub.listing(PLAIN)}
        assert await names(hub, PLAIN) == []
        refused = await call(hub, read, PLAIN)

    assert not trusted[read]
    assert effect is None or trusted[effect]
    assert all(wild.values())
    assert refused.is_error
    assert "did not opt in" in refused.content


class Everything:
    """server-everything over streamable HTTP, on one port of loopback. Use as `async with`."""

    def __init__(self, node: str) -> None:
        self._node = node
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.settings = McpServerSettings(name="far", url=f"http://127.0.0.1:{self.port}/mcp", trusted=True)

    async def __aenter__(self) -> Self:
        script = PACKAGES / "server-everything" / "dist" / "index.js"
        self._process = await asyncio.create_subprocess_exec(
            *(self._node, "--require", LOOPBACK, script, "streamableHttp"),
            env={**os.environ, "PORT": str(self.port)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert self._process.stderr is not None
        async with asyncio.timeout(30):
            while b"istening" not in (line := await self._process.stderr.readline()):
                assert line, "the server did not start"
        self._draining = asyncio.create_task(self._process.stderr.read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self._process.wait()
        await self._draining


async def test_server_everything_over_streamable_http(node: str) -> None:
    async with Everything(node) as server, hub_of(server.settings) as hub:
        one = await call(hub, "far__get-sum", PLAIN, a=2, b=3)
        many = await asyncio.gather(*[call(hub, "far__echo", message=str(number)) for number in range(20)])
        refused = await call(hub, "far__toggle-simulated-logging", PLAIN)
        with pytest.raises(OSError):  # it listens at 127.0.0.1 alone
            await asyncio.open_connection("127.0.0.2", server.port)

    assert one.content == "The sum of 2 and 3 is 5."
    assert [output.content for output in many] == [f"Echo: {number}" for number in range(20)]
    assert refused.is_error


async def test_a_server_over_http_that_is_started_anew_is_used_again(node: str) -> None:
    server = Everything(node)
    async with hub_of(server.settings) as hub:
        assert hub.connection("far").state == "down"
        with watching() as watch:
            ready = watch("far", "ready")
            async with server:
                hub.connection("far").retry()
                await ready.wait()
                slow = asyncio.create_task(call(hub, "far__trigger-long-running-operation", duration=60))
                first = await call(hub, "far__echo", message="first")
            lost = await slow
        with watching() as watch:
            again = watch("far", "ready")
            async with server:
                await call(hub, "far__echo", message="the session is gone")
                await again.wait()
                second = await call(hub, "far__echo", message="second")

    assert (first.content, second.content) == ("Echo: first", "Echo: second")
    assert lost.is_error
    assert "may have been carried out" in lost.content
