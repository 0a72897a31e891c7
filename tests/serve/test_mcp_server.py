"""mead as an MCP server (M1), as the official client sees it in both protocol eras, in this process."""

from __future__ import annotations

import asyncio
import datetime
import json
import logging

import pytest
from mcp import Client, MCPError
from mcp.types import TextResourceContents

import mead
from mead.core.reasons import HttpStatus
from mead.serve import mcp_handles
from mead.storage import open_store
from mead.testing import ScriptedProvider, calls
from serve.mcp_client import (
    ERAS,
    Era,
    Held,
    data_of,
    error_of,
    kept,
    opened,
    principal,
    soon,
    text_of,
)
from support import runtime, two_models

both_eras = pytest.mark.parametrize("era", ERAS)


async def ask(client: Client, text: str = "hello", **arguments: object) -> dict[str, object]:
    return data_of(await client.call_tool("ask", {"text": text, **arguments}))


# What is offered


@both_eras
async def test_m1_everyone_is_offered_the_same_tools_with_hints_and_schemas(era: Era) -> None:
    async with opened(kept()) as door:
        async with door.client(era=era) as one, door.client(principal("admin", token="b2"), era=era) as other:
            tools = (await one.list_tools()).tools
            assert (await other.list_tools()).tools == tools
            assert (await one.list_tools()).tools == tools

    assert [tool.name for tool in tools] == [
        *("ask", "result", "cancel", "sessions", "history", "stop", "usage")
    ]
    hints = {tool.name: tool.annotations for tool in tools}
    assert {name for name, hint in hints.items() if hint and hint.read_only_hint} == {
        *("result", "sessions", "history", "usage")
    }
    assert {name for name, hint in hints.items() if hint and hint.destructive_hint} == {"ask", "stop"}
    for tool in tools:
        assert tool.input_schema["type"] == "object"
        assert tool.input_schema["additionalProperties"] is False
        assert tool.output_schema is not None
        assert tool.output_schema["type"] == "object"


async def test_the_hub_s_tools_are_not_offered() -> None:
    @mead.tool(effect=False)
    def clock() -> str:
        """Tells the time."""
        return "noon"

    async with opened(kept(tools=[clock])) as door, door.client() as client:
        assert "clock" not in [tool.name for tool in (await client.list_tools()).tools]
        with pytest.raises(MCPError, match="no tool 'clock'"):
            await client.call_tool("clock")


# Asking


@both_eras
async def test_m1_a_session_is_started_talked_to_read_and_stopped(era: Era) -> None:
    local, cloud = two_models()
    async with opened(kept(local, cloud)) as door, door.client(era=era) as client:
        first = await client.call_tool("ask", {"text": "hello", "route": "cloud"})
        session_id = data_of(first)["session_id"]
        second = await ask(client, "and more", session_id=session_id, route="cloud")
        history = data_of(await client.call_tool("history", {"session_id": session_id}))
        stopped = data_of(await client.call_tool("stop", {"session_id": session_id}))
        after = await client.call_tool("history", {"session_id": session_id})

    assert text_of(first) == "from cloud"
    assert {**data_of(first), "usage": None} == {
        "status": "done",
        "session_id": session_id,
        "handle": None,
        "text": "from cloud",
        "route": "cloud",
        "provider": "cloud-model",
        "model": None,
        "label": "shareable",
        "stop_reason": "end_turn",
        "withheld": 0,
        "tool_calls": 0,
        "warnings": [],
        "usage": None,
    }
    assert session_id in first.content[1].model_dump()["text"]
    assert second["session_id"] == session_id
    assert "hello" in cloud.requests[1].text
    assert [(turn["question"], turn["answer"]) for turn in history["turns"]] == [
        ("hello", "from cloud"),
        ("and more", "from cloud"),
    ]
    assert stopped == {"session_id": session_id, "stopped": True}
    assert error_of(after) == "no_such_session"
    assert local.requests == []


async def test_a_forced_route_a_system_prompt_and_a_deadline_are_taken() -> None:
    local, cloud = two_models()
    async with opened(kept(local, cloud)) as door, door.client() as client:
        answer = await ask(client, route="local", system="Be brief.", timeout_s=60, tools="none")

    assert (answer["route"], answer["label"], answer["text"]) == ("local", "local_only", "from local")
    assert local.requests[0].options.system == "Be brief."
    assert cloud.requests == []


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": "x", "route": "moon"}, "route"),
        ({"text": "x", "wait_s": -1}, "wait_s"),
        ({"text": "x", "nonsense": 1}, "nonsense"),
        ({"text": 5}, "text"),
    ],
)
async def test_arguments_that_are_wrong_are_named(arguments: dict[str, object], said: str) -> None:
    async with opened(kept()) as door, door.client() as client:
        result = await client.call_tool("ask", arguments)

    assert error_of(result) == "invalid_request"
    assert said in text_of(result)


async def test_a_turn_that_fails_is_an_error_with_its_tag_and_its_session() -> None:
    cloud = ScriptedProvider(HttpStatus(status=500, detail="out of order"), "again")
    async with opened(kept(cloud=cloud)) as door, door.client() as client:
        failed = await client.call_tool("ask", {"text": "hello", "route": "cloud"})
        assert error_of(failed) == "http_status"
        assert failed.meta is not None
        assert failed.meta["mead/error"]["status"] == 500
        session_id = failed.meta["mead/session_id"]
        again = await ask(client, session_id=session_id, route="cloud")
        history = data_of(await client.call_tool("history", {"session_id": session_id}))

    assert "out of order" in text_of(failed)
    assert again["text"] == "again"
    assert len(history["turns"]) == 1


async def test_without_a_store_a_question_is_answered_and_nothing_is_kept() -> None:
    local, cloud = two_models()
    async with opened(runtime(local, cloud)) as door, door.client() as client:
        answer = await ask(client, route="cloud")
        listed = await client.call_tool("sessions")
        known = await door.runtime.sessions()

    assert (answer["text"], answer["session_id"]) == ("from cloud", None)
    assert error_of(listed) == "no_store"
    assert known == ()


# Scopes


@mead.tool(effect=True)
def delete(name: str) -> str:
    """Deletes something."""
    return f"deleted {name}"


async def test_r08_tools_with_side_effects_need_their_scope() -> None:
    cloud = ScriptedProvider(calls("delete", name="it"), "gone")
    async with opened(kept(cloud=cloud, tools=[delete])) as door:
        async with door.client() as client:
            refused = await client.call_tool("ask", {"text": "x", "route": "cloud", "tools": "effect"})
            assert data_of(await client.call_tool("sessions"))["sessions"] == []
        async with door.client(principal("tools:effect")) as client:
            done = await ask(client, route="cloud", tools="effect")

    assert error_of(refused) == "forbidden"
    assert "tools:effect" in text_of(refused)
    assert (done["text"], done["tool_calls"]) == ("gone", 1)


async def test_r08_without_the_word_no_tool_with_side_effects_is_shown() -> None:
    local, cloud = two_models()
    async with opened(kept(local, cloud, tools=[delete])) as door:
        async with door.client(principal("tools:effect")) as client:
            await ask(client, route="cloud")

    assert cloud.requests[0].tools == ()


async def test_r16_private_content_goes_to_the_cloud_by_its_scope_only() -> None:
    local, cloud = two_models()
    card = {"text": "My card is 4111 1111 1111 1111.", "route": "cloud"}
    async with opened(kept(local, cloud)) as door:
        async with door.client() as client:
            refused = await client.call_tool("ask", {**card, "allow_private": True})
            without = await client.call_tool("ask", card)
        async with door.client(principal("private:send")) as client:
            sent = data_of(await client.call_tool("ask", {**card, "allow_private": True}))

    assert error_of(refused) == "forbidden"
    assert error_of(without) == "private_content"
    assert sent["route"] == "cloud"
    assert len(cloud.requests) == 1


async def test_a_token_is_held_to_its_models() -> None:
    async with opened(kept()) as door, door.client(principal(models=("mead-local",))) as client:
        refused = await client.call_tool("ask", {"text": "x", "route": "cloud"})
        answer = await ask(client, route="local")

    assert error_of(refused) == "forbidden"
    assert answer["route"] == "local"


# Handles


@both_eras
async def test_an_answer_that_takes_its_time_is_fetched_by_its_handle(era: Era) -> None:
    held = Held()
    async with opened(kept(cloud=ScriptedProvider(held))) as door, door.client(era=era) as client:
        asked = await ask(client, route="cloud", wait_s=0)
        handle = asked["handle"]
        still = data_of(await client.call_tool("result", {"handle": handle, "wait_s": 0}))
        held.let_go.set()
        done = data_of(await client.call_tool("result", {"handle": handle}))
        again = data_of(await client.call_tool("result", {"handle": handle}))

    assert (asked["status"], still["status"]) == ("running", "running")
    assert (done["status"], done["text"]) == ("done", "at last")
    assert done["session_id"] == asked["session_id"]
    assert again == done


@pytest.mark.parametrize(
    "who", [principal(token="b2"), principal(owner="eve")], ids=["another token", "another owner"]
)
async def test_s10_a_handle_is_its_asker_s_alone(who: mead.serve.tokens.Principal) -> None:
    held = Held()
    async with opened(kept(cloud=ScriptedProvider(held))) as door, door.client() as client:
        handle = (await ask(client, route="cloud", wait_s=0))["handle"]
        async with door.client(who) as other:
            result = await other.call_tool("result", {"handle": handle})
            cancelled = await other.call_tool("cancel", {"handle": handle})
        held.let_go.set()
        done = data_of(await client.call_tool("result", {"handle": handle}))

    assert (error_of(result), error_of(cancelled)) == ("no_such_turn", "no_such_turn")
    assert done["text"] == "at last"


async def test_a_turn_is_cancelled_by_its_handle_and_leaves_nothing() -> None:
    held = Held()
    async with opened(kept(cloud=ScriptedProvider(held))) as door, door.client() as client:
        asked = await ask(client, route="cloud", wait_s=0)
        await soon(held.begun)
        first = data_of(await client.call_tool("cancel", {"handle": asked["handle"]}))
        second = data_of(await client.call_tool("cancel", {"handle": asked["handle"]}))
        result = await client.call_tool("result", {"handle": asked["handle"]})
        history = data_of(await client.call_tool("history", {"session_id": asked["session_id"]}))

    assert (first, second) == ({"cancelled": True}, {"cancelled": False})
    assert held.cancelled.is_set()
    assert error_of(result) == "cancelled"
    assert history["turns"] == []


@both_eras
async def test_a_request_that_is_cancelled_takes_its_turn_along(era: Era) -> None:
    held = Held()
    async with opened(kept(cloud=ScriptedProvider(held))) as door, door.client(era=era) as client:
        asking = asyncio.create_task(client.call_tool("ask", {"text": "x", "route": "cloud"}))
        await soon(held.begun)
        asking.cancel()
        await soon(held.cancelled)
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_a_cancelled_wait_for_a_result_leaves_the_turn_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    held, waits = Held(), asyncio.Event()
    wait = mcp_handles.Asked.wait

    async def noted(asked: mcp_handles.Asked, limit_s: float, tell: mcp_handles.Tell) -> None:
        if limit_s:
            waits.set()
        await wait(asked, limit_s, tell)

    monkeypatch.setattr(mcp_handles.Asked, "wait", noted)
    async with opened(kept(cloud=ScriptedProvider(held))) as door, door.client() as client:
        handle = (await ask(client, route="cloud", wait_s=0))["handle"]
        await soon(held.begun)
        waiting = asyncio.create_task(client.call_tool("result", {"handle": handle}))
        await soon(waits)
        waiting.cancel()
        await asyncio.wait((waiting,))
        held.let_go.set()
        done = data_of(await client.call_tool("result", {"handle": handle}))

    assert done["text"] == "at last"


async def test_results_are_kept_for_a_limited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_handles, "KEPT_S", 0)
    held = Held()
    async with opened(kept(cloud=ScriptedProvider(held))) as door, door.client() as client:
        asked = await ask(client, route="cloud", wait_s=0)
        held.let_go.set()
        done = data_of(await client.call_tool("result", {"handle": asked["handle"]}))
        gone = await client.call_tool("result", {"handle": asked["handle"]})

    assert done["status"] == "done"
    assert error_of(gone) == "no_such_turn"


async def test_results_are_kept_in_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_handles, "MAX_KEPT", 2)
    async with opened(kept()) as door, door.client() as client:
        handles = []
        for _ in range(3):
            handles.append((await ask(client, route="cloud", wait_s=0))["handle"])
            await client.call_tool("result", {"handle": handles[-1]})  # so that they end one after another
        results = [await client.call_tool("result", {"handle": handle}) for handle in reversed(handles)]

    assert [result.is_error for result in results] == [False, False, True]


async def test_a_caller_has_a_limited_number_of_turns_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_handles, "MAX_RUNNING", 1)
    held = Held()
    async with opened(kept(cloud=ScriptedProvider(held, "other", "next"))) as door, door.client() as client:
        handle = (await ask(client, route="cloud", wait_s=0))["handle"]
        await soon(held.begun)
        refused = await client.call_tool("ask", {"text": "x", "route": "cloud"})
        async with door.client(principal(token="b2")) as other:
            assert (await ask(other, route="cloud"))["text"] == "other"
        held.let_go.set()
        await client.call_tool("result", {"handle": handle})
        assert (await ask(client, route="cloud"))["text"] == "next"

    assert error_of(refused) == "too_many_turns"


@both_eras
async def test_progress_tells_how_far_a_turn_is_and_quotes_nothing(
    era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_handles, "PROGRESS_S", 0.01)
    told: list[tuple[float, str]] = []
    heard = asyncio.Event()

    @mead.tool(effect=False)
    async def look() -> str:
        """Looks."""
        await soon(heard)
        return "secret result"

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, message or ""))
        heard.set()

    cloud = ScriptedProvider(calls("look"), ["secret ", "answer"])
    async with opened(kept(cloud=cloud, tools=[look])) as door, door.client(era=era) as client:
        arguments = {"text": "secret question", "route": "cloud"}
        result = await client.call_tool("ask", arguments, progress_callback=hear)

    assert data_of(result)["text"] == "secret answer"
    assert told[0][1] == "calling the tool look"
    assert "secret" not in str(told)
    assert [step for step, _ in told] == sorted({step for step, _ in told})


# What may be read


async def test_s10_another_owner_s_session_is_no_such_session() -> None:
    async with opened(kept()) as door, door.client() as client:
        session_id = (await ask(client, route="cloud"))["session_id"]
        async with door.client(principal("admin", "private:send", owner="eve", token="e1")) as eve:
            results = [
                await eve.call_tool("ask", {"text": "x", "session_id": session_id}),
                await eve.call_tool("history", {"session_id": session_id}),
                await eve.call_tool("stop", {"session_id": session_id}),
            ]
            listed = data_of(await eve.call_tool("sessions"))
            resources = (await eve.list_resources()).resources
            with pytest.raises(MCPError, match="Resource not found"):
                await eve.read_resource(f"mead://sessions/{session_id}")

    assert [error_of(result) for result in results] == ["no_such_session"] * 3
    assert listed["sessions"] == []
    assert resources == []


@both_eras
async def test_m1_sessions_are_resources_page_by_page(era: Era, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mead.serve.mcp_protocol._PAGE", 2)
    async with opened(kept()) as door, door.client(era=era) as client:
        made = [(await ask(client, f"question {number}", route="cloud"))["session_id"] for number in range(3)]
        first = await client.list_resources()
        second = await client.list_resources(cursor=first.next_cursor)
        (template,) = (await client.list_resource_templates()).resource_templates
        (content,) = (await client.read_resource(first.resources[0].uri)).contents
        with pytest.raises(MCPError, match="no cursor"):
            await client.list_resources(cursor="nonsense")
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource("mead://sessions/none")
        with pytest.raises(MCPError, match="Resource not found"):
            await client.read_resource("file:///etc/passwd")

    listed = [resource.uri for page in (first, second) for resource in page.resources]
    assert sorted(listed) == sorted(f"mead://sessions/{each}" for each in made)
    assert second.next_cursor is None
    assert template.uri_template == "mead://sessions/{session_id}"
    assert isinstance(content, TextResourceContents)
    assert content.mime_type == "application/json"
    transcript = json.loads(content.text)
    assert content.uri == f"mead://sessions/{transcript['session_id']}"
    assert transcript["turns"][0]["question"].startswith("question ")


async def test_sessions_are_listed_page_by_page() -> None:
    async with opened(kept()) as door, door.client() as client:
        made = [(await ask(client, route="cloud"))["session_id"] for _ in range(3)]
        first = data_of(await client.call_tool("sessions", {"limit": 2}))
        second = data_of(await client.call_tool("sessions", {"limit": 2, "cursor": first["next"]}))
        wrong = await client.call_tool("sessions", {"cursor": "!"})

    entries = [*first["sessions"], *second["sessions"]]
    assert sorted(entry["session_id"] for entry in entries) == sorted(made)
    assert all(entry["started_here"] and not entry["running"] for entry in entries)
    assert second["next"] is None
    assert error_of(wrong) == "invalid_request"


async def test_a_history_is_read_from_its_end() -> None:
    async with opened(kept()) as door, door.client() as client:
        session_id = (await ask(client, "turn 1", route="cloud"))["session_id"]
        for number in (2, 3):
            await ask(client, f"turn {number}", session_id=session_id, route="cloud")
        newest = data_of(await client.call_tool("history", {"session_id": session_id, "limit": 2}))
        before = newest["turns"][0]["number"]
        rest = data_of(await client.call_tool("history", {"session_id": session_id, "before": before}))

    assert [turn["question"] for turn in newest["turns"]] == ["turn 2", "turn 3"]
    assert (newest["earlier"], rest["earlier"]) == (1, 0)
    assert [turn["question"] for turn in rest["turns"]] == ["turn 1"]


async def test_r10_a_history_names_tools_and_leaves_out_what_they_said() -> None:
    @mead.tool(effect=False)
    def look() -> str:
        """Looks."""
        return "what it saw"

    cloud = ScriptedProvider(calls("look"), "done")
    async with opened(kept(cloud=cloud, tools=[look])) as door, door.client() as client:
        session_id = (await ask(client, route="cloud"))["session_id"]
        history = await client.call_tool("history", {"session_id": session_id})

    assert data_of(history)["turns"][0]["tools"] == ["look"]
    assert "what it saw" not in history.model_dump_json()


async def test_only_sessions_of_this_door_are_stopped_without_the_scope_admin() -> None:
    async with opened(kept()) as door:
        session_id = await door.runtime.start_session()
        async with door.client() as client:
            refused = await client.call_tool("stop", {"session_id": session_id})
        async with door.client(principal("admin")) as client:
            stopped = data_of(await client.call_tool("stop", {"session_id": session_id}))
        assert door.runtime.store is not None
        rows = await door.runtime.store.audit_rows()

    assert error_of(refused) == "forbidden"
    assert stopped["stopped"] is True
    assert [(row.entry.action, row.entry.subject) for row in rows][-1] == ("session.delete", session_id)


async def test_usage_is_the_owner_s_ledger() -> None:
    async with opened(kept()) as door, door.client() as client:
        await ask(client, route="cloud")
        async with door.client(principal(owner="eve")) as eve:
            hers = data_of(await eve.call_tool("usage", {"by": "model"}))
        by_route = data_of(await client.call_tool("usage", {"by": "route"}))
        today = datetime.datetime.now(datetime.UTC).date()
        wrong = await client.call_tool(
            "usage", {"since": f"{today}", "until": f"{today - datetime.timedelta(days=9)}"}
        )

    assert [(row["key"], row["calls"]) for row in by_route["rows"]] == [("cloud", 1)]
    assert hers["total"]["calls"] == 0
    assert error_of(wrong) == "invalid_request"


async def test_t3_a_crash_is_logged_without_what_was_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, said = open_store("memory://"), " ".join(["secret", "words"])

    async def broken(*arguments: object, **keywords: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr(store, "list_sessions", broken)
    made = mead.Runtime(mead.Settings(), store=store)
    with caplog.at_level(logging.DEBUG):
        async with opened(made) as door, door.client() as client:
            result = await client.call_tool("sessions")
            with pytest.raises(MCPError, match="its log says where"):
                await client.list_resources()

    assert error_of(result) == "crashed"
    assert "RuntimeError" in caplog.text
    assert said not in caplog.text


async def test_t3_the_sdk_s_log_lines_lose_the_messages_of_exceptions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = " ".join(["secret", "words"])
    async with opened(kept()) as door, door.client():
        try:
            raise ValueError(said)
        except ValueError:
            logging.getLogger("mcp.server.runner").exception("a handler for %r raised", "tools/call")

    assert "a handler for 'tools/call' raised: ValueError" in caplog.text
    assert said not in caplog.text
