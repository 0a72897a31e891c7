"""What is local_only and an MCP client: behind it there may be a cloud model (R16)."""

from __future__ import annotations

import asyncio
import json

import pytest
from mcp import Client
from mcp.types import TextResourceContents

from mead.core.result import Ok
from mead.serve.tokens import Scope
from mead.testing import ScriptedProvider
from serve.mcp_client import Door, Held, data_of, error_of, kept, opened, principal, soon
from support import two_models

SECRET = "The heron nests behind the mill."


async def secret_session(door: Door, title: str | None = None) -> str:
    """A session with a turn for a cloud model to see, and one that it must not, both asked elsewhere."""
    session_id = await door.runtime.start_session(title=title)
    for text, route in (("What is a heron?", "cloud"), (SECRET, "local")):
        answer = await door.runtime.submit_turn(session_id, text, route=route)
        assert isinstance(answer, Ok)
    return session_id


async def read(client: Client, session_id: str) -> dict[str, object]:
    (content,) = (await client.read_resource(f"mead://sessions/{session_id}")).contents
    assert isinstance(content, TextResourceContents)
    found = json.loads(content.text)
    assert isinstance(found, dict)
    return found


async def test_r16_local_only_turns_of_others_are_withheld_and_counted() -> None:
    async with opened(kept()) as door, door.client() as client:
        session_id = await secret_session(door)
        history = data_of(await client.call_tool("history", {"session_id": session_id}))
        transcript = await read(client, session_id)

    assert [turn["question"] for turn in history["turns"]] == ["What is a heron?"]
    assert history["withheld"] == 1
    assert transcript == history
    assert SECRET not in json.dumps([history, transcript])


async def test_r16_the_scope_private_send_shows_them() -> None:
    async with opened(kept()) as door, door.client(principal("private:send")) as client:
        session_id = await secret_session(door)
        history = data_of(await client.call_tool("history", {"session_id": session_id}))
        transcript = await read(client, session_id)
        answer = data_of(await client.call_tool("ask", {"text": "And?", "session_id": session_id}))

    assert [turn["question"] for turn in history["turns"]] == ["What is a heron?", SECRET]
    assert history["withheld"] == 0
    assert transcript == history
    assert answer["status"] == "done"


async def test_r16_an_asker_is_shown_its_own_local_only_turns_and_goes_on_with_them() -> None:
    local, cloud = two_models()
    async with opened(kept(local, cloud)) as door, door.client() as client:
        first = data_of(await client.call_tool("ask", {"text": SECRET, "route": "local"}))
        again = {"text": "Where?", "session_id": first["session_id"], "route": "local"}
        second = data_of(await client.call_tool("ask", again))
        history = data_of(await client.call_tool("history", {"session_id": first["session_id"]}))
        async with door.client(principal(token="b2")) as other:
            hidden = data_of(await other.call_tool("history", {"session_id": first["session_id"]}))

    assert (second["label"], second["text"]) == ("local_only", "from local")
    assert SECRET in local.requests[1].text
    assert [turn["question"] for turn in history["turns"]] == [SECRET, "Where?"]
    assert (hidden["turns"], hidden["withheld"]) == ([], 2)
    assert cloud.requests == []


@pytest.mark.parametrize("route", ["auto", "local"])
async def test_r16_no_local_model_is_made_to_quote_what_is_withheld(route: str) -> None:
    local, cloud = two_models()
    async with opened(kept(local, cloud)) as door, door.client() as client:
        session_id = await secret_session(door)
        asked = {"text": "What did I say?", "session_id": session_id, "route": route}
        refused = await client.call_tool("ask", asked)
        shown = data_of(await client.call_tool("ask", {**asked, "route": "cloud"}))

    assert error_of(refused) == "private_content"
    assert len(local.requests) == 1
    assert shown["withheld"] == 1
    assert SECRET not in cloud.requests[-1].text


async def test_r16_an_answer_is_withheld_when_a_local_only_turn_came_in_between() -> None:
    held = Held()
    local = ScriptedProvider(held, f"You said: {SECRET}")
    async with opened(kept(local)) as door, door.client() as client:
        session_id = await door.runtime.start_session()
        before = asyncio.create_task(door.runtime.submit_turn(session_id, SECRET, route="local"))
        await soon(held.begun)
        asked = {"text": "What did I say?", "session_id": session_id, "route": "local", "wait_s": 0}
        handle = data_of(await client.call_tool("ask", asked))["handle"]
        held.let_go.set()
        assert isinstance(await before, Ok)
        result = await client.call_tool("result", {"handle": handle})

    assert len(local.requests) == 2
    assert error_of(result) == "private_content"
    assert SECRET not in result.model_dump_json()


@pytest.mark.parametrize("scope, shown", [("chat", None), ("private:send", "Herons")])
async def test_titles_have_no_label_so_they_count_as_local_only(scope: Scope, shown: str | None) -> None:
    async with opened(kept()) as door, door.client(principal(scope)) as client:
        await secret_session(door, "Herons")
        listed = data_of(await client.call_tool("sessions"))
        (resource,) = (await client.list_resources()).resources

    assert listed["sessions"][0]["title"] == shown
    assert listed["titles_withheld"] == (shown is None)
    assert resource.title == shown


@pytest.mark.parametrize("way", ["text", "system"])
async def test_r16_text_of_a_local_turn_is_known_in_what_an_mcp_client_asks(way: str) -> None:
    told = "The heron nests behind the mill, in the third willow, and nobody but the miller knows of it."
    asked = {"text": "hello", "route": "cloud", way: told}
    async with opened(kept()) as door, door.client() as client:
        session_id = await door.runtime.start_session()
        assert isinstance(await door.runtime.submit_turn(session_id, told, route="local"), Ok)
        refused = error_of(await client.call_tool("ask", asked))

    assert refused == "private_content"
