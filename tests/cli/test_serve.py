"""`mead serve`: a real process that serves, makes its first token, and ends when it is told to."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.commands import run

CHAT = {"model": "mead-auto", "messages": [{"role": "user", "content": "hello there"}]}
SETTINGS = '[router.slots.local]\nprovider = "echo"\n[telemetry]\nlog_format = "json"\n'


class Served:
    """A server's process, once it says where it serves."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        (folder / "mead.toml").write_text(SETTINGS)
        self.data = folder / "data"
        environ = {**os.environ, "MEAD_DATA_FOLDER": str(self.data), "MEAD_CONFIG": str(folder / "mead.toml")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mead", "serve", "--port", "0", *arguments],
            env=environ,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said = ""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line
            if found := re.search(r"mead serves at (http://127\.0\.0\.1:\d+)", line):
                self.url = found[1]
                break
        else:
            raise AssertionError(self.said)

    def post(self, token: str | None, body: object = CHAT) -> tuple[int, dict[str, object]]:
        headers = {"content-type": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        request = urllib.request.Request(
            f"{self.url}/v1/chat/completions", json.dumps(body).encode(), headers
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def end(self) -> int:
        assert self.process.stderr is not None
        if not self.process.stderr.closed:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            finally:
                self.process.kill()
            with self.process.stderr as rest:
                self.said += rest.read()
        return self.process.wait()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path)
    yield server
    server.end()


def test_it_serves_with_the_token_that_it_makes_and_ends_when_it_is_told_to(served: Served) -> None:
    file = served.data / "serve-token"
    token = file.read_text()

    status, answer = served.post(token)
    refused, said = served.post(None)

    assert status == 200
    assert answer["choices"][0]["message"]["content"] == "hello there"  # type: ignore[index]  # JSON
    assert (refused, said["error"]["code"]) == (401, "unauthorized")  # type: ignore[index]  # JSON
    assert file.stat().st_mode & 0o777 == 0o600
    assert token in served.said
    assert served.end() == 0


def test_a_token_that_is_revoked_while_it_runs_is_refused(served: Served) -> None:
    from mead.serve.tokens import Tokens

    tokens = Tokens(served.data)
    record, token = tokens.create("short")
    before, _ = served.post(token)
    tokens.revoke(record.token_id)

    assert (before, served.post(token)[0]) == (200, 401)


def test_it_asks_for_no_token_only_by_word(tmp_path: Path) -> None:
    server = Served(tmp_path, "--no-auth")

    status, _ = server.post(None)

    assert server.end() == 0
    assert status == 200
    assert "no token is asked for" in server.said
    assert not (server.data / "serve-token").exists()


@pytest.mark.usefixtures("echoing")
def test_without_tokens_it_listens_on_loopback_only() -> None:
    result = run("serve", "--no-auth", "--host", "0.0.0.0")

    assert result.exit_code == 2
    assert "loopback" in result.stderr


def test_a_port_that_is_taken_is_said(served: Served, tmp_path: Path) -> None:
    port = served.url.rpartition(":")[2]
    environ = {
        **os.environ,
        "MEAD_DATA_FOLDER": str(tmp_path / "other"),
        "MEAD_CONFIG": str(tmp_path / "mead.toml"),
    }

    ended = subprocess.run(
        [sys.executable, "-m", "mead", "serve", "--port", port],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert ended.returncode == 2
    assert f"127.0.0.1:{port}" in ended.stderr
    assert "Traceback" not in ended.stderr
