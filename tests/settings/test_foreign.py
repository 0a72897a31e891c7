"""Servers of other programs' configuration files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mead.settings import ConfigError, load, read_foreign
from mead.settings.foreign import SERVER_NAME, ignored_approvals


def write(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


VARIABLES = {"KEY": "${KEY}", "X": "${NO:-y}"}
STDIO = {"command": "npx", "args": ["-y", "server"], "env": VARIABLES, "timeout": 5000}


@pytest.mark.parametrize(
    "document",
    [
        {"mcpServers": {"files": STDIO}},
        {"servers": {"files": {"type": "stdio", **STDIO}}, "inputs": []},
        {"mcp": {"servers": {"files": STDIO}}},
    ],
)
def test_the_shapes_in_use_are_read(tmp_path: Path, document: object) -> None:
    (server,) = read_foreign(write(tmp_path / "mcp.json", document), environ={"KEY": "hunter2"})

    assert (server.name, server.command, server.args) == ("files", "npx", ("-y", "server"))
    assert dict(server.env) == {"KEY": "hunter2", "X": "y"}
    assert server.call_timeout_s == 5.0
    assert not server.trusted
    assert server.problem is None
    assert "hunter2" not in repr(server)


def test_a_remote_server_is_read(tmp_path: Path) -> None:
    entry = {"type": "http", "url": "https://${HOST}/mcp", "headers": {"authorization": "Bearer ${T}"}}

    (server,) = read_foreign(
        write(tmp_path / "mcp.json", {"mcpServers": {"far": entry}}), environ={"HOST": "h.test", "T": "t"}
    )

    assert server.url == "https://h.test/mcp"
    assert dict(server.headers) == {"authorization": "Bearer t"}


@pytest.mark.parametrize(
    "entry,said",
    [
        ({"type": "sse", "url": "https://h.test/sse"}, "SSE"),
        ({"command": "x", "args": ["${input:token}"]}, "${input:token}"),
        ({"command": "x", "env": {"K": "${UNSET}"}}, "UNSET is not set"),
        ({"url": "ftp://h.test"}, "no http"),
        ({"command": "x", "args": "y"}, "args is no list"),
        ({"command": "x", "env": {"K": 5}}, "no text"),
        ({}, "neither a command nor a url"),
    ],
)
def test_a_server_that_cannot_be_started_says_why(tmp_path: Path, entry: object, said: str) -> None:
    good = {"command": "y"}
    path = write(tmp_path / "mcp.json", {"mcpServers": {"bad": entry, "good": good}})

    bad, other = read_foreign(path, environ={})

    assert said in (bad.problem or "")
    assert other.problem is None


def test_a_server_that_is_switched_off_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "mcp.json", {"mcpServers": {"off": {"command": "x", "disabled": True}}})

    assert read_foreign(path, environ={}) == []


def test_names_become_mead_s_and_stay_apart(tmp_path: Path) -> None:
    entries = {
        name: {"command": "x"} for name in ("My Files", "my_files", "MY-FILES", "ünï", "9lives", "x" * 40)
    }

    servers = read_foreign(write(tmp_path / "mcp.json", {"mcpServers": entries}), environ={})

    names = [server.name for server in servers]
    assert names[:3] == ["my-files", "my-files-2", "my-files-3"]
    assert len(set(names)) == 6
    assert all(SERVER_NAME.fullmatch(name) for name in names)


def test_what_a_file_says_about_approvals_is_named(tmp_path: Path) -> None:
    entries = {"a": {"command": "x", "autoApprove": ["y"]}, "b": {"command": "x", "alwaysAllow": []}}

    assert ignored_approvals(write(tmp_path / "mcp.json", {"mcpServers": entries})) == ["a.autoApprove"]
    assert ignored_approvals(tmp_path / "nothing.json") == []


@pytest.mark.parametrize(
    "text,said",
    [
        (None, "cannot be read"),
        ("{", "is no JSON"),
        ("{}", "neither mcpServers nor servers"),
        ("[]", "neither"),
    ],
)
def test_a_file_that_is_none_is_a_mistake_with_its_line(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "mcp.json").write_text(text)
    (tmp_path / "mead.toml").write_text(f'[mcp]\nconfig = "{tmp_path}/mcp.json"\n')

    with pytest.raises(ConfigError, match=f"line 2: mcp.config: .*{said}"):
        load(environ={}, cwd=tmp_path)


def test_meads_own_servers_come_first_and_win(tmp_path: Path) -> None:
    write(tmp_path / "mcp.json", {"mcpServers": {"files": STDIO, "more": {"command": "z"}}})
    (tmp_path / "mead.toml").write_text(
        f'[mcp]\nconfig = "{tmp_path}/mcp.json"\n[mcp.servers.files]\ncommand = "mine"\ntrusted = true\n'
    )

    servers = load(environ={"KEY": "k"}, cwd=tmp_path).mcp.servers

    assert [(server.name, server.command) for server in servers] == [("files", "mine"), ("more", "z")]
