"""`mead mcp-server`: the official client starts it as a program and speaks to it over stdio (M1)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
from mcp import Client, StdioServerParameters

from cli.commands import PATIENCE_S, command_line, run, run_json

pytestmark = pytest.mark.usefixtures("echoing")
both_eras = pytest.mark.parametrize("era", ["legacy", "auto"])
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


@asynccontextmanager
async def client(*arguments: str, era: Literal["legacy", "auto"] = "auto") -> AsyncIterator[Client]:
    line = command_line("mcp-server", *arguments)
    server = StdioServerParameters(command=line[0], args=line[1:], env=dict(os.environ))
    async with Client(server, mode=era, read_timeout_seconds=PATIENCE_S) as made:
        yield made


async def call(made: Client, tool: str, **arguments: object) -> Any:
    result = await made.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


@both_eras
async def test_m1_a_host_starts_it_and_talks_to_it(era: Literal["legacy", "auto"]) -> None:
    async with client(era=era) as made:
        answer = await call(made, "ask", text="hello", route="local")
        history = await call(made, "history", session_id=answer["session_id"])
        version = made.protocol_version

    assert version == {"legacy": "2025-11-25", "auto": "2026-07-28"}[era]
    assert answer["text"] == "hello"
    assert history["turns"][0]["question"] == "hello"
    listed, _ = await asyncio.to_thread(run_json, "sessions", "list")
    assert [each["session_id"] for each in listed["sessions"]] == [answer["session_id"]]


async def test_r16_what_the_terminal_said_to_the_local_model_is_withheld() -> None:
    said, status = await asyncio.to_thread(run_json, "ask", "--route", "local", "secret")
    assert status == 0
    async with client() as made:
        history = await call(made, "history", session_id=said["session_id"])
    async with client("--scope", "private:send") as made:
        shown = await call(made, "history", session_id=said["session_id"])

    assert (history["turns"], history["withheld"]) == ([], 1)
    assert shown["turns"][0]["question"] == "secret"


async def test_r16_a_client_s_own_turns_are_shown_to_clients_of_its_name() -> None:
    async with client("--client", "one") as made:
        session_id = (await call(made, "ask", text="secret", route="local"))["session_id"]
    async with client("--client", "one") as made:
        own = await call(made, "history", session_id=session_id)
    async with client("--client", "other") as made:
        others = await call(made, "history", session_id=session_id)

    assert (len(own["turns"]), len(others["turns"])) == (1, 0)


async def test_effects_need_their_scope() -> None:
    async with client() as made:
        refused = await made.call_tool("ask", {"text": "x", "tools": "effect"})
    async with client("--scope", "tools:effect") as made:
        answer = await call(made, "ask", text="x", tools="effect")

    assert refused.is_error
    assert answer["text"] == "x"


def test_nothing_but_the_protocol_is_on_standard_output() -> None:
    done = subprocess.run(
        command_line("mcp-server"),
        input=(json.dumps(INITIALIZE) + "\nnoise\n").encode(),
        capture_output=True,
        timeout=PATIENCE_S,
    )

    assert done.returncode == 0
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert messages[0]["result"]["serverInfo"]["name"] == "mead"
    assert all(message["jsonrpc"] == "2.0" for message in messages)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are a matter of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_though_it_reads(number: signal.Signals) -> None:
    with subprocess.Popen(
        command_line("mcp-server"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
            process.stdin.flush()
            assert b"serverInfo" in process.stdout.readline()
            process.send_signal(number)
            assert process.wait(PATIENCE_S) == 0
            assert process.stderr.read() == b""
        finally:
            process.kill()


def test_wrong_usage_is_said_before_anything_is_served() -> None:
    wrong = [run("mcp-server", "--scope", "chat"), run("mcp-server", "--client", "a b")]

    assert [result.exit_code for result in wrong] == [2, 2]
    assert [result.stdout for result in wrong] == ["", ""]
    assert "--client" in wrong[1].stderr
