"""The servers with a fault: each mode does what it says, and mead outlives each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys

import pytest
from mcp import MCPError
from mcp.types import ToolListChangedNotification

from mead.mcp.transports import stdio
from mead.testing._faulty_server import OWN_TOOLS, RESULTS
from mead.testing.mcp import EFFECTS_FILE, MODES, FaultyHttpServer, FaultyServer

LIMIT_S = 10.0
NO_HANDSHAKE = ("hang_init", "die_init", "exit_at_start")
BRIEF = {"big": 1000, "big_id_last": 1000, "slow_call": 0}


def test_the_help_text_lists_the_modes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mead.testing.mcp", "--help"], capture_output=True, text=True, check=True
    )

    for mode, text in MODES.items():
        assert f"{mode} " in done.stdout
        assert text in done.stdout


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no mode 'nothing'"):
        FaultyServer("nothing")


def test_a_server_is_started_without_the_packages_around_it() -> None:
    server = FaultyServer("big", 10)
    script = (
        f"import sys; sys.argv = {[*server.args[1:]]!r}; exec(open(sys.argv[0]).read()); print(*sys.modules)"
    )
    done = subprocess.run(
        [server.command, "-I", "-c", script], capture_output=True, text=True, check=True, input=""
    )

    assert not {"mead", "mcp", "msgspec", "asyncio"} & set(done.stdout.split())


@pytest.mark.parametrize("mode", MODES)
async def test_each_fault_ends_in_time_and_leaves_no_process(
    mode, faulty, connect, wire, is_alive, monkeypatch
) -> None:
    monkeypatch.setattr(stdio, "_GRACE_S", 0.2)
    tools = {*OWN_TOOLS.get(mode, ()), *RESULTS.get(mode, ())} or {"echo"}
    async with asyncio.timeout(LIMIT_S):
        if mode in NO_HANDSHAKE:
            with pytest.raises((TimeoutError, MCPError, ExceptionGroup)):
                async with asyncio.timeout(0.3), connect(faulty(mode)):
                    pass
        else:
            transport = faulty(mode, BRIEF.get(mode), max_message_bytes=2**20)
            async with connect(transport) as client:
                for tool in tools:
                    try:
                        async with asyncio.timeout(0.3):
                            await client.list_tools()
                            await client.session.call_tool(tool, {})
                    except (MCPError, TimeoutError):
                        pass

    assert not is_alive(wire.pid)


async def test_every_tool_of_a_mode_is_listed(faulty, connect) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("missing_content")) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]

    assert names == ["echo", "pid", "environment", "empty", "structured", "old"]


async def test_mcp_d37_pages(faulty, connect) -> None:
    names, cursor = [], None
    async with asyncio.timeout(LIMIT_S), connect(faulty("page")) as client:
        for _ in range(3):
            page = await client.list_tools(cursor=cursor)
            names += [tool.name for tool in page.tools]
            cursor = page.next_cursor

    assert (names, cursor) == (["p0", "p1", "p2"], None)


async def test_mcp_d38_a_cursor_that_loops(faulty, connect) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("loopcursor")) as client:
        first = await client.list_tools()
        second = await client.list_tools(cursor=first.next_cursor)

    assert first.next_cursor == second.next_cursor == "again"


async def test_mcp_d39_a_changed_list_is_announced(faulty, connect) -> None:
    changed = asyncio.Event()

    async def handle(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            changed.set()

    async with asyncio.timeout(LIMIT_S), connect(faulty("changing"), message_handler=handle) as client:
        before = [tool.name for tool in (await client.list_tools()).tools]
        await client.session.call_tool("change", {})
        await changed.wait()
        after = [tool.name for tool in (await client.list_tools()).tools]

    assert (before, after) == (["change", "before"], ["change", "after"])


async def test_mcp_d47_a_description_is_what_the_argument_says(faulty, connect) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("described", "Reads a file.")) as client:
        [tool] = (await client.list_tools()).tools

    assert tool.description == "Reads a file."


@pytest.mark.parametrize(
    "mode, tool", [("count", "echo"), ("rpc_error", "fail"), ("effect_then_die", "effect")]
)
async def test_mcp_d17_d18_each_call_leaves_a_line(mode, tool, faulty, connect, tmp_path) -> None:
    effects = tmp_path / "effects"
    async with asyncio.timeout(LIMIT_S):
        async with connect(faulty(mode, env={EFFECTS_FILE: str(effects)})) as client:
            with contextlib.suppress(MCPError):
                await client.session.call_tool(tool, {})

    assert effects.read_text() == f"{tool}\n"


async def test_mcp_d32_an_image_has_the_size_of_the_argument(faulty, connect) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("image_only", 3000)) as client:
        [image] = (await client.session.call_tool("image", {})).content

    assert (image.type, len(image.data)) == ("image", 4000)


async def test_mcp_d48_a_lying_hint_is_there(faulty, connect) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("annotations")) as client:
        hints = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}

    assert hints["delete_all"].read_only_hint is True
    assert hints["bare"] is None


async def test_the_http_server_forgets_a_session_and_takes_a_new_one() -> None:
    async with FaultyHttpServer(answers="json") as server:
        first = await post(server, {"id": 1, "method": "initialize"})
        server.expire()
        refused = await post(server, {"id": 2, "method": "tools/list"}, session=first[1])
        second = await post(server, {"id": 3, "method": "initialize"})
        listed = await post(server, {"id": 4, "method": "tools/list"}, session=second[1])

    assert (first[0], refused[0], second[0]) == (200, 404, 200)
    assert first[1] != second[1]
    assert "echo" in [tool["name"] for tool in json.loads(listed[2])["result"]["tools"]]


async def post(
    server: FaultyHttpServer, message: dict[str, object], *, session: str = ""
) -> tuple[int, str, str]:
    """Status, session id and body of the answer to a message."""
    import httpx2

    headers = {"mcp-session-id": session} if session else {}
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(server.url, json={"jsonrpc": "2.0", **message}, headers=headers)
    return answer.status_code, answer.headers.get("mcp-session-id", ""), answer.text
