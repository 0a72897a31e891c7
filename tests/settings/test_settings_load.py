"""Which file is read, and what is told when it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mead.settings import ConfigError, Settings, load

TEXT = "[sessions]\nturn_timeout_s = {}\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a configuration folder of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def write(path: Path, seconds: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT.format(seconds))
    return path


def seconds_of(settings: Settings) -> float | None:
    return settings.sessions.turn_timeout_s


def test_the_named_file_wins_then_the_variable_then_the_folder_then_the_users(tmp_path: Path) -> None:
    users = write(tmp_path / "config" / "mead" / "mead.toml", 1)
    assert (seconds_of(load(environ={}, cwd=tmp_path)), load(environ={}, cwd=tmp_path).source) == (1, users)

    write(tmp_path / "mead.toml", 2)
    assert seconds_of(load(environ={}, cwd=tmp_path)) == 2

    environ = {"MEAD_CONFIG": str(write(tmp_path / "variable.toml", 3))}
    assert seconds_of(load(environ=environ, cwd=tmp_path)) == 3

    named = write(tmp_path / "named.toml", 4)
    assert seconds_of(load(named, environ=environ, cwd=tmp_path)) == 4


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    settings = load(environ={"MEAD_DATA_FOLDER": "/srv/mead", "MEAD_CONFIG": ""}, cwd=tmp_path)

    assert settings == Settings(data_folder=Path("/srv/mead"))


def test_a_relative_name_is_looked_up_in_the_given_folder(tmp_path: Path) -> None:
    write(tmp_path / "other.toml", 7)

    assert seconds_of(load(Path("other.toml"), environ={}, cwd=tmp_path)) == 7


def test_the_process_environment_and_folder_are_used_where_none_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEAD_CONFIG", raising=False)
    write(tmp_path / "mead.toml", 5)
    assert seconds_of(load()) == 5

    monkeypatch.setenv("MEAD_CONFIG", "~/mine.toml")
    write(tmp_path / "home" / "mine.toml", 6)
    assert seconds_of(load()) == 6


@pytest.mark.parametrize("by", ["path", "variable"])
def test_a_named_file_that_is_not_there_is_a_mistake(tmp_path: Path, by: str) -> None:
    gone = tmp_path / "gone.toml"

    with pytest.raises(ConfigError) as caught:
        load(gone if by == "path" else None, environ={"MEAD_CONFIG": str(gone)}, cwd=tmp_path)

    assert str(caught.value) == f"{gone}: there is no such file"
    assert caught.value.file == gone


def test_a_link_that_leads_nowhere_is_a_mistake_and_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "mead.toml").symlink_to(tmp_path / "gone.toml")

    with pytest.raises(ConfigError, match="there is no such file"):
        load(environ={}, cwd=tmp_path)


def test_a_folder_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"this is a folder; name the mead\.toml in it"):
        load(tmp_path, environ={})


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_a_name_that_no_file_can_have_is_a_mistake(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="the file cannot be read"):
        load(Path(name), environ={}, cwd=tmp_path)


def test_a_variable_with_an_unknown_home_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MEAD_CONFIG begins with a ~"):
        load(environ={"MEAD_CONFIG": "~nobody-has-this-name/m"}, cwd=tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_a_mistake(tmp_path: Path) -> None:
    file = write(tmp_path / "mead.toml", 1)
    file.chmod(0)

    with pytest.raises(ConfigError, match="the file cannot be read: Permission denied"):
        load(file, environ={})


@pytest.mark.parametrize(
    "data,line",
    [(b"[router]\n# caf\xe9\n", 2), ("[router]\n".encode("utf-16"), 1)],
    ids=["latin-1", "utf-16"],
)
def test_a_file_that_is_not_utf8_is_told_with_its_line(tmp_path: Path, data: bytes, line: int) -> None:
    file = tmp_path / "mead.toml"
    file.write_bytes(data)

    with pytest.raises(ConfigError) as caught:
        load(file, environ={})

    assert str(caught.value) == f"{file}, line {line}: this is not UTF-8 text; save the file as UTF-8"


def test_a_byte_order_mark_and_windows_line_ends_keep_the_lines_right(tmp_path: Path) -> None:
    file = tmp_path / "mead.toml"
    file.write_bytes(b"\xef\xbb\xbf[sessions]\r\nbusy = 'queue'\r\nbuzy = 1\r\n")

    with pytest.raises(ConfigError) as caught:
        load(file, environ={})

    assert (caught.value.line, caught.value.key) == (3, "sessions.buzy")


@pytest.mark.parametrize(
    "mode,slot,warned",
    [
        (0o644, 'api_key = "sk-abc"', True),
        (0o640, 'api_key = "${NONE:-sk-abc}"', True),
        (0o644, 'options = {auth_token = "sk-abc"}', True),
        (0o600, 'api_key = "sk-abc"', False),
        (0o644, 'api_key = "${KEY}"', False),
        (0o644, 'api_key = "${NONE:-}"', False),
        (0o644, "", False),
    ],
)
def test_a_key_in_a_file_that_others_may_read_is_warned_of(
    tmp_path: Path, mode: int, slot: str, warned: bool
) -> None:
    file = tmp_path / "mead.toml"
    file.write_text(f'[router.slots.cloud]\nprovider = "my.models:Mine"\n{slot}\n')
    file.chmod(mode)

    warnings = load(file, environ={"KEY": "sk-abc"}).warnings

    expected = (f"{file} holds an API key and others may read it: chmod 600 {file}",)
    assert warnings == (expected if warned else ())


@pytest.mark.parametrize(
    "server,warned",
    [
        ('url = "https://x.org"\nheaders = {Authorization = "Bearer abc"}', True),
        ('url = "https://x.org"\nheaders = {Authorization = "Bearer ${KEY}"}', False),
        ('url = "https://x.org"\nheaders = {x-api-key = "abc"}', True),
        ('url = "https://x.org"\nauth = "oauth"\nclient_secret = "abc"', True),
        ('command = "x"\nenv = {GITHUB_PAT = "abc"}', True),
        ('command = "x"\nenv = {API_TOKEN = "${KEY}", LANG = "C"}', False),
    ],
)
def test_a_secret_of_a_server_in_a_file_that_others_may_read_is_warned_of(
    tmp_path: Path, server: str, warned: bool
) -> None:
    file = tmp_path / "mead.toml"
    file.write_text(f"[mcp.servers.x]\n{server}\n")
    file.chmod(0o644)

    warnings = load(file, environ={"KEY": "abc"}).warnings

    expected = (f"{file} holds a secret of an MCP server and others may read it: chmod 600 {file}",)
    assert warnings == (expected if warned else ())


@pytest.mark.parametrize("by", ["folder", "path", "variable", "user"])
def test_only_a_file_of_the_working_folder_counts_as_found(tmp_path: Path, by: str) -> None:
    folder = tmp_path / "config" / "mead" if by == "user" else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "mead.toml"
    file.write_text('[mcp.servers.x]\ncommand = "x"\n')
    environ = {"MEAD_CONFIG": str(file)} if by == "variable" else {}

    settings = load(file if by == "path" else None, environ=environ, cwd=folder)

    assert settings.source == file
    assert settings.discovered == (by == "folder")
    assert settings.mcp.servers[0].found_in == (tmp_path if by == "folder" else None)


@pytest.mark.parametrize("provider", ["my.models:Mine", "os:system", "my.models.Mine"])
def test_a_file_that_was_found_brings_no_code(tmp_path: Path, provider: str) -> None:
    file = tmp_path / "mead.toml"
    file.write_text(f'[router.slots.local]\nprovider = "{provider}"\n')

    with pytest.raises(ConfigError, match="name it with --config") as caught:
        load(environ={}, cwd=tmp_path)

    assert (caught.value.line, caught.value.key) == (2, "router.slots.local.provider")
    assert load(file, environ={}).router.slots.local is not None
