"""The stdio transport, and what the SDK's own one does in the same place."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import IO

import anyio
import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCRequest

from mead.mcp.transports import ANSWER_LOST, TOO_LARGE, Wire, stdio
from mead.mcp.transports._messages import Lines, Skipped, answered_id, decode
from mead.mcp.transports.stdio import stdio_transport
from mead.testing.mcp import FaultyServer

LIMIT_S = 10.0


def nowhere() -> IO[str]:
    return open(os.devnull, "w")


async def stderr_holds(wire: Wire, part: str) -> None:
    while part not in wire.stderr_tail():  # noqa: ASYNC110  # stderr has no event, and needs none elsewhere
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def sdk_alone(mode: str):
    """A client over the SDK's own transport."""
    server = FaultyServer(mode)
    with nowhere() as errlog:
        parameters = StdioServerParameters(command=server.command, args=server.args)
        transport = stdio_client(parameters, errlog=errlog)
        async with Client(transport, mode="legacy", cache=None) as client:
            yield client


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers that do not leave are made to soon."""
    monkeypatch.setattr(stdio, "_GRACE_S", 0.1)


# Lines


def lines_of(chunks: list[bytes], limit: int = 100) -> list[bytes | Skipped]:
    lines = Lines(limit)
    return [line for chunk in chunks for line in lines.feed(chunk)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_mcp_d22_lines_do_not_depend_on_how_they_are_cut(size: int) -> None:
    sent = b'{"a":1}\r\n\n  \n{"b":"caf\xc3\xa9"}\n{"c":3'
    chunks = [sent[at : at + size] for at in range(0, len(sent), size)]

    assert lines_of(chunks) == [b'{"a":1}', b'{"b":"caf\xc3\xa9"}']


@pytest.mark.parametrize(
    "start, end, skipped",
    [
        (b'{"jsonrpc":"2.0","id":7,"result":{"x":"', b'"}}', Skipped(7)),
        (b'{"id": "seven", "jsonrpc": "2.0", "error": {"x":"', b'"}}', Skipped("seven")),
        (b'{"result":{"id":1,"x":"', b'"},"jsonrpc":"2.0","id":7}', Skipped(7)),
        (b'{"jsonrpc":"2.0","result":{"x":"', b'"}, "id": 7}', Skipped(7)),
        (b'{"jsonrpc":"2.0","result":{"x":"', b'","id":7}}', Skipped()),
        (b'{"jsonrpc":"2.0","method":"log","params":{"x":"', b'"}}', Skipped(harmless=True)),
        (b'{"jsonrpc":"2.0","id":7,"method":"ask","params":{"x":"', b'"}}', Skipped(harmless=True)),
        (b"loading ", b" done", Skipped()),
    ],
    ids=["id first", "text id", "id last", "id last, spaced", "id inside", "notice", "request", "noise"],
)
def test_mcp_d24_a_line_too_long_says_whom_it_answers(start: bytes, end: bytes, skipped: Skipped) -> None:
    sent = start + b"x" * 1000 + end + b'\n{"next":1}\n'
    chunks = [sent[at : at + 64] for at in range(0, len(sent), 64)]

    assert lines_of(chunks) == [skipped, b'{"next":1}']


@pytest.mark.parametrize(
    "start, skipped",
    [
        (b'{"jsonrpc":"2.0","result":{"x":"', [Skipped()]),
        (b'{"jsonrpc":"2.0","id":7,"result":{"x":"', [Skipped(7), Skipped()]),
    ],
    ids=["id last", "id first"],
)
def test_mcp_d24_a_line_without_end_is_given_up(start: bytes, skipped: list[Skipped]) -> None:
    assert lines_of([start, *[b"x" * 64] * 200]) == skipped


def test_a_method_name_inside_of_a_result_is_not_taken_for_a_request() -> None:
    assert answered_id(b'{"jsonrpc":"2.0","id":7,"result":{"method":"x"', b"}}") == 7


@pytest.mark.parametrize(
    "raw, text",
    [
        (b'"caf\xe9"', "caf\ufffd"),
        (rb'"cut \ud83d"', "cut \ufffd"),
        (rb'"\ude00 cut"', "\ufffd cut"),
        (rb'"\ud83d\ude00 whole, \ud83d half"', "\U0001f600 whole, \ufffd half"),
        (rb'"\\ud83d no escape, \ud83d half"', "\\ud83d no escape, \ufffd half"),
        ("\"a\u2028b\u0085c\"".encode(), "a\u2028b\u0085c"),
    ],
    ids=["bytes", "first half", "second half", "whole", "backslash", "d29 line ends"],
)  # fmt: skip
def test_broken_text_is_replaced(raw: bytes, text: str) -> None:
    message = decode(b'{"jsonrpc":"2.0","method":"m","params":{"text":%s}}' % raw)

    assert message.params == {"text": text}


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'{"jsonrpc":"2.0"}', b"{}", b"[" * 100_000], ids=range(6))
def test_what_is_no_message_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError):
        decode(raw)


# What servers write


async def test_mcp_d21_noise_is_skipped_and_counted(faulty, connect, text, wire) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("noise")) as client:
        assert text(await client.call_tool("echo", {"text": "hi"})) == "hi"

    assert wire.noise >= 4


async def test_mcp_d21_without_mead_each_line_of_noise_logs_a_traceback(text, caplog) -> None:
    async with asyncio.timeout(LIMIT_S), sdk_alone("noise") as client:
        assert text(await client.call_tool("echo", {"text": "hi"})) == "hi"

    assert caplog.text.count("Traceback") >= 4


async def test_mcp_d22_an_answer_may_come_byte_by_byte(faulty, connect, text) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("byte_by_byte")) as client:
        assert text(await client.call_tool("echo", {"text": "hi"})) == "hi"


async def test_mcp_d22_two_answers_may_come_at_once(faulty, connect, text) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("two_in_one")) as client:
        results = await asyncio.gather(client.call_tool("pair", {}), client.call_tool("pair", {}))

    assert [text(result) for result in results] == ["pair was called"] * 2


async def test_mcp_d29_line_ends_of_unicode_end_no_line(faulty, connect, text) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("lines")) as client:
        assert text(await client.call_tool("lines", {})) == "a\u2028b\u0085c\u2029d\x0be\x0cf"


async def test_mcp_d23_stderr_is_drained_and_its_end_kept(faulty, connect, text, wire) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("stderrflood")) as client:
        assert text(await client.call_tool("flood", {})) == "flood was called"

    assert wire.stderr_tail().endswith("xxx\nend of the flood\n")
    assert len(wire.stderr_tail()) == 8192


def test_stderr_that_is_cut_in_a_letter_is_still_text(wire) -> None:
    wire.add_stderr("é".encode() * 10_000 + b"!")

    assert wire.stderr_tail() == "\ufffd" + "é" * 4095 + "!"


@pytest.mark.parametrize(
    "mode, tool, expected",
    [
        ("badutf8", "bad", "caf\ufffd"),
        ("half_surrogate", "half", "cut \ufffd"),
        ("nan", "nan", "not a number"),
    ],
)
async def test_broken_text_costs_no_result(mode, tool, expected, faulty, connect, text) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty(mode)) as client:
        assert text(await client.call_tool(tool, {})) == expected


@pytest.mark.parametrize(
    "mode, tool", [("badutf8", "bad"), ("half_surrogate", "half"), ("broken_answer", "broken")]
)
async def test_without_mead_broken_text_hangs_the_call(mode, tool) -> None:
    # The first of them also ends the session with a group of errors.
    async with asyncio.timeout(LIMIT_S):
        with contextlib.suppress(ExceptionGroup):
            async with sdk_alone(mode) as client:
                with pytest.raises(MCPError, match="timed out"):
                    await client.call_tool(tool, {}, read_timeout_seconds=0.3)


async def test_an_answer_that_cannot_be_read_is_an_error_at_once(faulty, connect, text, wire) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("broken_answer")) as client:
        with pytest.raises(MCPError, match="no valid JSON-RPC message") as caught:
            await client.call_tool("broken", {})
        assert text(await client.call_tool("echo", {"text": "hi"})) == "hi"

    assert caught.value.error.code == ANSWER_LOST
    assert wire.noise == 0


# Size


@pytest.mark.parametrize("mode", ["big", "big_id_last"])
async def test_mcp_d24_a_result_over_the_limit_is_an_error_of_that_call(
    mode, faulty, connect, text, wire
) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty(mode, max_message_bytes=2**24)) as client:
        with pytest.raises(MCPError, match="the result is larger than 16,777,216 bytes") as caught:
            await client.call_tool("big", {})
        assert text(await client.call_tool("echo", {"text": "hi"})) == "hi"

    assert caught.value.error.code == TOO_LARGE
    assert not wire.lost.is_set()


async def test_mcp_d24_a_large_result_below_the_limit_is_whole(faulty, connect, text) -> None:
    async with asyncio.timeout(LIMIT_S):
        async with connect(faulty("big", 50_000_000, max_message_bytes=2**26)) as client:
            assert text(await client.call_tool("big", {})) == "x" * 50_000_000


@pytest.mark.parametrize(
    "mode, said", [("endless", "larger than 1,048,576 bytes"), ("endless_noise", "Connection closed")]
)
@pytest.mark.usefixtures("impatient")
async def test_mcp_d24_an_endless_line_drops_the_connection(mode, said, faulty, connect, wire) -> None:
    async with asyncio.timeout(LIMIT_S):
        async with connect(faulty(mode, max_message_bytes=2**20)) as client:
            with pytest.raises(MCPError, match=said):
                await client.call_tool("endless", {})
            await wire.lost.wait()

    assert wire.notes == ["The server sent a line of more than 1,048,576 bytes; the connection was dropped."]


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_does_not_read_is_dropped(faulty, wire) -> None:
    message = SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method="ping", params={"x": "x" * 2**16}))
    hello = {"protocolVersion": "2025-11-25"}
    async with asyncio.timeout(LIMIT_S), faulty("deaf", max_message_bytes=2**18) as (read, write):
        await write.send(
            SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=0, method="initialize", params=hello))
        )
        await read.receive()
        with pytest.raises(anyio.BrokenResourceError):
            for _ in range(20):
                await write.send(message)
        with pytest.raises(anyio.EndOfStream):
            await read.receive()

    assert wire.lost.is_set()


# The end of the process


async def test_mcp_d07_a_server_that_dies_in_a_call_fails_it_at_once(faulty, connect, wire) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("die_call")) as client:
        with pytest.raises(MCPError, match="Connection closed"):
            await client.call_tool("die", {})
        assert wire.lost.is_set()
        assert wire.exit_status == 1
        with pytest.raises(MCPError, match="Connection closed"):
            await client.call_tool("echo", {"text": "hi"})


async def test_mcp_d08_a_server_that_is_killed_is_noticed(faulty, connect, wire) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("plain")):
        os.kill(wire.pid, signal.SIGKILL)
        await wire.lost.wait()

        assert wire.exit_status == -signal.SIGKILL


@pytest.mark.usefixtures("impatient")
async def test_a_server_that_closes_stdout_and_stays_is_noticed(faulty, connect, wire, is_alive) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("close_stdout")) as client:
        with pytest.raises(MCPError, match="Connection closed"):
            await client.call_tool("close", {})
        assert wire.lost.is_set()
        assert wire.exit_status is None
        assert is_alive(wire.pid)

    assert not is_alive(wire.pid)


async def test_mcp_d09_the_reason_of_a_failed_start_is_known(faulty, connect, wire) -> None:
    async with asyncio.timeout(LIMIT_S):
        with pytest.raises((MCPError, ExceptionGroup)):
            async with connect(faulty("exit_at_start")):
                pass

    assert (wire.exit_status, wire.stderr_tail()) == (3, "missing API key\n")


async def test_mcp_d09_a_process_that_is_gone_at_once_is_noticed() -> None:
    async def one() -> tuple[int | None, str]:
        wire = Wire()
        script = "echo missing API key >&2; exit 3"
        async with stdio_transport("sh", ["-c", script], env={}, cwd=None, wire=wire) as (read, _):
            with pytest.raises(anyio.EndOfStream):
                await read.receive()
            return wire.exit_status, wire.stderr_tail()

    async with asyncio.timeout(LIMIT_S):
        assert await asyncio.gather(*[one() for _ in range(20)]) == [(3, "missing API key\n")] * 20


async def test_mcp_d12_a_command_that_does_not_exist_says_so(wire) -> None:
    with pytest.raises(
        FileNotFoundError, match="'no-such-server' cannot be started: there is no such command"
    ):
        async with stdio_transport("no-such-server", [], env={}, cwd=None, wire=wire):
            pass


async def test_a_file_that_is_no_program_says_so(wire, tmp_path) -> None:
    (tmp_path / "server").write_text("no program")
    with pytest.raises(PermissionError, match="cannot be started: Permission denied"):
        async with stdio_transport(str(tmp_path / "server"), [], env={}, cwd=None, wire=wire):
            pass


async def test_a_folder_that_does_not_exist_says_so(wire) -> None:
    with pytest.raises(FileNotFoundError, match="the server's folder '/no/such' cannot be entered"):
        async with stdio_transport(sys.executable, [], env={}, cwd="/no/such", wire=wire):
            pass


async def test_mcp_d25_no_child_is_left_of_servers_that_fail(faulty, connect, wire, is_alive) -> None:
    pids = []
    async with asyncio.timeout(LIMIT_S):
        for _ in range(5):
            with pytest.raises((MCPError, ExceptionGroup)):
                async with connect(faulty("die_init")):
                    pass
            pids.append(wire.pid)

    assert not any(map(is_alive, pids))


async def test_mcp_d02_a_connect_that_times_out_leaves_no_child(faulty, connect, wire, is_alive) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            async with connect(faulty("hang_init")):
                pass

    assert wire.exit_status is not None
    assert not is_alive(wire.pid)


async def test_mcp_d26_grandchildren_are_gone_too(faulty, connect, wire, is_alive) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("grandchild")):
        await stderr_holds(wire, "\n")
        grandchild = int(wire.stderr_tail().split()[1])
        assert is_alive(grandchild)

    assert not is_alive(wire.pid)
    assert not is_alive(grandchild)


async def test_mcp_d26_a_wrapper_that_leaves_a_helper_behind(wire, connect, is_alive) -> None:
    server = FaultyServer("plain")
    script = f"sleep 1000 & echo $! >&2; exec {server.command} {' '.join(server.args)}"
    async with asyncio.timeout(LIMIT_S):
        async with connect(stdio_transport("sh", ["-c", script], env={}, cwd=None, wire=wire)):
            helper = int(wire.stderr_tail())

    assert not is_alive(helper)


@pytest.mark.parametrize("mode, status", [("ignore_eof", -signal.SIGTERM), ("ignore_term", -signal.SIGKILL)])
@pytest.mark.usefixtures("impatient")
async def test_mcp_d27_a_server_that_does_not_leave_is_made_to(mode, status, faulty, connect, wire) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty(mode)):
        pass

    assert wire.exit_status == status


def test_mcp_d27_stopping_is_bounded_to_six_seconds() -> None:
    assert 2 * stdio._GRACE_S + stdio._KILL_S + 3 * stdio._LAST_WORDS_S < 6


@pytest.mark.usefixtures("impatient")
async def test_a_cancellation_does_not_keep_the_process_alive(faulty, connect, wire, is_alive) -> None:
    ready = asyncio.Event()

    async def use() -> None:
        async with connect(faulty("ignore_term")):
            ready.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(use())
    async with asyncio.timeout(LIMIT_S):
        await ready.wait()
        for _ in range(50):
            task.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await task

    assert not is_alive(wire.pid)


async def test_a_cancelled_scope_of_anyio_does_not_keep_the_process_alive(faulty, wire, is_alive) -> None:
    with anyio.CancelScope() as scope:
        async with faulty("plain"):
            scope.cancel()
            await anyio.sleep_forever()

    assert not is_alive(wire.pid)


async def test_mcp_d01_one_task_may_enter_and_another_leave(faulty, wire, is_alive) -> None:
    transport = faulty("plain")
    async with asyncio.timeout(LIMIT_S):
        await asyncio.create_task(transport.__aenter__())
        await transport.__aexit__(None, None, None)

    assert not is_alive(wire.pid)


async def test_mcp_d01_without_mead_that_is_an_error() -> None:
    server = FaultyServer("plain")
    with nowhere() as errlog:
        transport = stdio_client(
            StdioServerParameters(command=server.command, args=server.args), errlog=errlog
        )
        task = asyncio.create_task(transport.__aenter__())
        await task
        with pytest.raises(RuntimeError, match="cancel scope"):
            await transport.__aexit__(None, None, None)


# What servers are given


async def test_mcp_d28_the_environment_is_a_safe_one_with_additions(
    faulty, connect, text, monkeypatch
) -> None:
    monkeypatch.setenv("SECRET_KEY", "hidden")
    async with asyncio.timeout(LIMIT_S), connect(faulty("plain", env={"X": "1"})) as client:
        environment = json.loads(text(await client.call_tool("environment", {})))

    assert environment["X"] == "1"
    assert environment["PATH"] == os.environ["PATH"]
    assert "SECRET_KEY" not in environment


async def test_mcp_d20_a_cancelled_call_reaches_the_server(faulty, connect, text, wire) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("hang_call")) as client:
        call = asyncio.create_task(client.call_tool("hang", {}))
        await client.call_tool("echo", {"text": "after"})
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await stderr_holds(wire, "CANCELLED")
        assert text(await client.call_tool("echo", {"text": "hi"})) == "hi"


@pytest.mark.usefixtures("impatient")
async def test_a_call_to_a_server_that_does_not_read_is_cancelled_at_once(faulty, connect) -> None:
    """The SDK's own transport would wait 5 s here until its notice of the cancellation is taken."""
    async with asyncio.timeout(LIMIT_S), connect(faulty("deaf")) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await client.call_tool("echo", {"text": "x" * 2**20})


async def test_mcp_d50_sampling_inside_of_a_call_is_refused_at_once(faulty, connect, text) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("sampling")) as client:
        said = text(await client.call_tool("ask", {}))

    assert "Sampling not supported" in said


async def test_many_servers_start_side_by_side(connect) -> None:
    server = FaultyServer("plain")

    async def one() -> int | None:
        wire = Wire()
        async with connect(
            stdio_transport(server.command, server.args, env={}, cwd=None, wire=wire)
        ) as client:
            await client.list_tools()
        return wire.exit_status

    async with asyncio.timeout(LIMIT_S):
        assert await asyncio.gather(*[one() for _ in range(5)]) == [0] * 5
