"""Whole turns with MCP servers: what a model is told, and that no server's end is a turn's end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from servers import EFFECT, call, changed, faulty, hub_of, names, plain

import mead
from mead.core.messages import ToolResultBlock, ToolUseBlock, blocks_of
from mead.core.options import TurnOptions
from mead.mcp.hub import McpHub
from mead.providers.protocol import Reply
from mead.settings import McpServerSettings, McpSettings
from mead.testing import ProviderRequest, ScriptedProvider, calls
from support import slots

SDK_SERVER = str(Path(__file__).with_name("sdk_server.py"))


def sdk(name: str = "changer", *arguments: str, **settings: object) -> McpServerSettings:
    chosen: dict[str, object] = {"name": name, "trusted": True, "read": ("*",), **settings}
    return McpServerSettings(command=sys.executable, args=(SDK_SERVER, *arguments), **chosen)  # type: ignore[arg-type]  # by name


def results(request: ProviderRequest) -> list[ToolResultBlock]:
    return [block for m in request.messages for block in blocks_of(m) if isinstance(block, ToolResultBlock)]


async def turn(hub: McpHub, provider: ScriptedProvider, **keywords: object) -> mead.Answer:
    async with mead.Runtime(slots=slots(provider), hub=hub) as opened:
        session_id = await opened.start_session()
        return (await opened.submit_turn(session_id, "go", route="local", **keywords)).unwrap()  # type: ignore[arg-type]  # by name


async def test_mcp_d39_a_change_of_the_tools_is_noticed_in_the_2026_era() -> None:
    async with hub_of(sdk()) as hub:
        assert hub.connection("changer").health().protocol == "2026-07-28"
        await call(hub, "changer__change")
        await changed(hub, lambda: any(d.name == "after" for d in hub.connection("changer").definitions))

        assert "changer__after" in await names(hub)


async def test_a_server_that_is_mead_itself_is_refused() -> None:
    async with hub_of(sdk("self", "mead")) as hub:
        (health,) = hub.health()

    assert health.state == "misconfigured"
    assert "mead itself" in (health.error or "")


async def test_a_model_on_either_route_uses_the_tools_of_a_server() -> None:
    for route in ("local", "cloud"):
        provider = ScriptedProvider(calls("adder__add", a=2, b=3), "five")
        async with hub_of(sdk("adder")) as hub:
            async with mead.Runtime(slots=slots(provider, provider), hub=hub) as opened:
                session_id = await opened.start_session()
                answer = (await opened.submit_turn(session_id, "2 and 3?", route=route)).unwrap()  # type: ignore[arg-type]  # a word

        assert answer.text == "five"
        assert results(provider.requests[1])[0].content == "5"


async def test_r10_the_egress_of_a_turn_holds_its_sends_to_servers() -> None:
    settings = mead.Settings(mcp=McpSettings(servers=(sdk("adder"),)), data_folder=Path("/nonexistent"))
    provider = ScriptedProvider(calls("adder__add", a=2, b=3), "five")
    hub = McpHub(settings.mcp.servers, settings=settings.mcp)
    async with mead.Runtime(settings, slots=slots(provider), hub=hub) as opened:
        session_id = await opened.start_session()
        (await opened.submit_turn(session_id, "2 and 3?", route="local")).unwrap()
        sent = await opened.egress(session_id)

    (record,) = [one.record for one in sent]
    assert (record.destination, record.slot, record.path) == ("mcp", "adder", "add")
    assert hub.connection("adder").state == "stopped", "a runtime ends its hub"


MOMENTS = ("before", "in the call", "between the calls", "before the answer")


@pytest.mark.parametrize("moment", MOMENTS)
async def test_h1_killing_a_server_at_any_moment_never_fails_the_turn(moment: str) -> None:
    async with hub_of(plain("one"), faulty("hang_call", name="two", call_timeout_s=5.0)) as hub:

        def kill(name: str) -> None:
            pid = hub.connection(name).health().pid
            if pid is not None:
                os.kill(pid, signal.SIGKILL)

        provider = ScriptedProvider(*script(moment, kill))
        if moment == "before":
            kill("one")
        answer = await turn(hub, provider, tools="effect")

    assert answer.text == "done"
    assert len(provider.requests) == 3


def script(moment: str, kill: Callable[[str], None]) -> list[object]:
    """A turn of three provider calls, in which a server is killed."""

    def first(request: ProviderRequest) -> object:
        if moment == "in the call":
            asyncio.get_running_loop().call_later(0.05, kill, "two")
            return calls("two__hang")
        return calls("one__echo", text="x")

    def second(request: ProviderRequest) -> object:
        if moment == "between the calls":
            kill("one")
        return calls("one__echo", _id="second", text="y")

    def third(request: ProviderRequest) -> object:
        if moment == "before the answer":
            kill("one")
        return "done"

    return [first, second, third]


async def test_r06_side_by_side_calls_of_several_servers_keep_their_order() -> None:
    three = Reply(
        content=tuple(ToolUseBlock(str(n), f"s{n}__echo", {"text": str(n)}) for n in range(3)),
        stop_reason="tool_use",
    )
    provider = ScriptedProvider(three, "done")
    async with hub_of(plain("s0"), plain("s1"), plain("s2")) as hub:
        await turn(hub, provider, tools="effect")

    assert [block.tool_use_id for block in results(provider.requests[1])] == ["0", "1", "2"]
    assert [block.is_error for block in results(provider.requests[1])] == [False] * 3


async def test_null_for_an_argument_that_may_be_left_out_is_left_out() -> None:
    async with hub_of(sdk("adder")) as hub:
        right = await call(hub, "adder__add", a=1, b=2)
        nulls = await hub.call_tool("adder__change", {"nothing": None}, EFFECT)
        wrong = await call(hub, "adder__add", a=1, b=None)

    assert right.content == "3"
    assert not nulls.is_error
    assert wrong.is_error
    assert "b" in wrong.content


async def test_t3_no_event_of_a_turn_with_tools_holds_text(caplog: pytest.LogCaptureFixture) -> None:
    from support import heard

    caplog.set_level("DEBUG", logger="mead")
    provider = ScriptedProvider(calls("one__echo", text="SECRET-ARGUMENT"), "SECRET-ANSWER")
    with heard() as events:
        async with hub_of(plain("one")) as hub:
            await turn(hub, provider, tools="effect")

    assert "SECRET" not in repr(events)
    assert "SECRET" not in caplog.text
    assert any(event.name == "mead.mcp.call" for event in events)


async def test_a_hub_without_the_turns_tools_shows_none() -> None:
    async with hub_of(plain("one")) as hub:
        assert list(await hub.tools_for(TurnOptions(tools="none"))) == []
        assert list(hub.known_tools(TurnOptions(tools="none")) or ()) == []
