"""The guard: one bad tool costs one tool, one bad block one block."""

from __future__ import annotations

import asyncio
import copy
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.shared.message import SessionMessage
from mcp.types import (
    CallToolResult,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
)
from pydantic import ValidationError

from mead.mcp.guard import guarded
from mead.mcp.transports import ANSWER_LOST, Wire
from mead.testing._faulty_server import RESULTS, TOOLS

LIMIT_S = 10.0
LEGACY, MODERN = "2025-11-25", "2026-07-28"


async def through(
    method: str, result: dict[str, Any], wire: Wire, *, version: str = LEGACY, answer_id: int | str = 1
) -> dict[str, Any]:
    """The result as the guard hands it on, for a request of this method and version."""
    meta = {"_meta": {"io.modelcontextprotocol/protocolVersion": version}} if version == MODERN else {}
    async with by_hand(wire) as (ours, theirs):
        await ours[1].send(
            SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=1, method=method, params={**meta, "name": "x"}))
        )
        result = copy.deepcopy(result)
        await theirs.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=answer_id, result=result)))
        item = await ours[0].receive()
    return item.message.result


@asynccontextmanager
async def by_hand(wire: Wire):
    """The guard over a transport that the test plays: its streams, and the end that the server writes to."""
    to_us, from_them = anyio.create_memory_object_stream[SessionMessage | Exception](10)
    to_them, from_us = anyio.create_memory_object_stream[SessionMessage](10)

    @asynccontextmanager
    async def transport():
        with to_us, from_them, to_them, from_us:
            yield from_them, to_them

    async with guarded(transport(), wire) as streams:
        yield streams, to_us


def tool(name: str = "t", **fields: object) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object", "properties": {}}, **fields}


async def tools(listed: object, wire: Wire, *, version: str = LEGACY) -> Any:
    return (await through("tools/list", {"tools": listed}, wire, version=version))["tools"]


async def blocks(content: object, wire: Wire, *, version: str = LEGACY) -> Any:
    return (await through("tools/call", {"content": content}, wire, version=version))["content"]


def said(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


# Tools


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_good_tools_are_not_touched(wire, version) -> None:
    good = [tool("a", description="d", annotations={"readOnlyHint": True}, _meta={"x": 1}), tool("b")]

    assert await tools(good, wire, version=version) == good
    assert wire.notes == []


@pytest.mark.parametrize("mode", ["noschema", "nullschema"])
async def test_mcp_d43_a_tool_without_a_schema_takes_no_arguments(mode, wire) -> None:
    listed = await tools(TOOLS[mode], wire)

    assert [tool["name"] for tool in listed] == ["first", "bare", "last"]
    assert listed[1]["inputSchema"] == {"type": "object", "properties": {}}
    assert wire.notes == ["The tool 'bare' has no input schema; it is taken to need no arguments."]


@pytest.mark.parametrize("mode", ["noschema", "nullschema"])
async def test_mcp_d43_without_mead_all_tools_are_lost(mode, faulty) -> None:
    async with asyncio.timeout(LIMIT_S), Client(faulty(mode), mode="legacy", cache=None) as client:
        with pytest.raises(ValidationError):
            await client.list_tools()


async def test_mcp_d44_a_schema_without_a_type_is_one_of_an_object(wire) -> None:
    schemas = {tool["name"]: tool["inputSchema"] for tool in await tools(TOOLS["schemas"], wire)}

    assert schemas["any_of"] == {"type": "object", **TOOLS["schemas"][1]["inputSchema"]}
    assert schemas["nullable"] == {"type": "object", "properties": {}}


async def test_mcp_d45_definitions_are_passed_on_whole(wire) -> None:
    assert (await tools(TOOLS["schemas"], wire))[0] == TOOLS["schemas"][0]


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_mcp_d43_each_bad_tool_is_mended_or_left_out_by_itself(wire, version) -> None:
    listed = {tool["name"]: tool for tool in await tools(TOOLS["badtools"], wire, version=version)}

    assert list(listed) == [
        "good",
        "number",
        "list_schema",
        "list_properties",
        "required_flag",
        "bad_hints",
        "bad_icons",
    ]
    assert "description" not in listed["number"]
    assert listed["list_schema"]["inputSchema"] == {"type": "object", "properties": {}}
    assert listed["list_properties"]["inputSchema"] == {"type": "object", "properties": {}}
    assert "annotations" not in listed["bad_hints"]
    assert listed["bad_icons"].keys() == {"name", "description", "inputSchema"}
    assert "The tool 'text_schema' was left out: its input schema has the type 'string'." in wire.notes
    assert "A tool without a name was left out: 'not a tool'." in wire.notes


async def test_required_arguments_that_are_no_list_are_not_used(wire) -> None:
    [only] = await tools([tool(inputSchema={"type": "object", "required": True})], wire)

    assert only["inputSchema"] == {"type": "object"}
    assert wire.notes == ["The tool 't' has a list of required arguments that is none; it is not used."]


async def test_a_schema_that_is_nested_too_deeply_costs_its_tool(wire) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(150):
        schema = {"type": "object", "properties": {"x": schema}}

    listed = await tools([tool("good"), tool("deep", inputSchema=schema)], wire)

    assert [tool["name"] for tool in listed] == ["good"]


async def test_names_are_not_changed_and_an_empty_one_is_left_out(wire) -> None:
    names = [tool["name"] for tool in await tools(TOOLS["names"], wire)]

    assert names == ["a.b", "a/b", "x" * 80, "with space", "grün", "ok"]


async def test_a_note_holds_no_terminal_escapes(wire) -> None:
    await tools([tool("\x1b[2Jevil\u202e", inputSchema="none")], wire)

    assert wire.notes == [r"The tool '\x1b[2Jevil\u202e' was left out: its input schema is 'none'."]


@pytest.mark.parametrize("listed", [None, {}, "none"], ids=["null", "object", "text"])
async def test_a_list_that_is_none_is_empty(listed, wire) -> None:
    assert await tools(listed, wire) == []
    assert wire.notes == ["The server's list of tools is no list; it was taken for an empty one."]


async def test_a_cursor_stays_when_other_fields_are_wrong(wire) -> None:
    result = await through("tools/list", {"tools": [tool()], "nextCursor": "2", "_meta": "none"}, wire)

    assert (result["tools"], result["nextCursor"]) == ([tool()], "2")
    assert "_meta" not in result


async def test_a_modern_list_without_its_cache_fields_is_completed(wire) -> None:
    result = await through("tools/list", {"tools": [tool()]}, wire, version=MODERN)

    assert result == {"tools": [tool()], "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}


async def test_mcp_d46_five_hundred_tools_are_passed_on(faulty, connect) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("tools500")) as client:
        assert len((await client.list_tools()).tools) == 500


# Results


async def test_mcp_d35_a_result_that_does_not_keep_to_its_schema_is_handed_on(
    faulty, connect, text, wire
) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("badstruct")) as client:
        assert [tool.output_schema for tool in (await client.list_tools()).tools] == [None, None]
        result = await client.session.call_tool("bad", {})
        assert text(await client.session.call_tool("invalid", {})) == "the answer"

    assert (text(result), result.structured_content) == ("the answer", {"n": "no number"})
    assert wire.notes == []


async def test_mcp_d35_without_mead_it_is_lost(faulty) -> None:
    async with asyncio.timeout(LIMIT_S), Client(faulty("badstruct"), mode="legacy", cache=None) as client:
        with pytest.raises(RuntimeError, match="Invalid structured content"):
            await client.session.call_tool("bad", {})


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_mcp_d34_an_unknown_block_becomes_text(version, wire) -> None:
    content = await blocks(RESULTS["unknown_block"]["odd"]["content"], wire, version=version)

    assert content == [
        said("before"),
        said('[unsupported content] {"type":"hologram","data":"(5,000 characters)","angle":3}'),
        said("after"),
    ]
    assert wire.notes == ["A content block of the type 'hologram' was replaced by text."]


@pytest.mark.parametrize(
    "mode, tool", [("unknown_block", "odd"), ("malformed_block", "odd"), ("missing_content", "empty")]
)
async def test_mcp_d34_without_mead_the_whole_result_is_lost(mode, tool, faulty) -> None:
    async with asyncio.timeout(LIMIT_S), Client(faulty(mode), mode="legacy", cache=None) as client:
        with pytest.raises(ValidationError):
            await client.session.call_tool(tool, {})


@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_what_can_be_saved_of_a_malformed_block_is(version, wire) -> None:
    result = await through("tools/call", RESULTS["malformed_block"]["odd"], wire, version=version)

    assert result["content"] == [
        said("kept"),
        said("also kept"),
        said('[unsupported content] {"type":"image","data":"(5,000 characters)"}'),
        said("without an address"),
        said('[unsupported content] {"type":"text","text":5}'),
        said("bare text"),
        said("[unsupported content] null"),
    ]
    assert result["isError"] is False
    assert "_meta" not in result


async def test_mcp_d31_known_blocks_are_passed_on_as_they_are(faulty, connect) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("embedded_resource")) as client:
        result = await client.session.call_tool("read", {})

    assert [block.type for block in result.content] == ["text", "resource"]


@pytest.mark.parametrize(
    "result, content",
    [
        ({}, []),
        ({"content": None}, []),
        ({"content": "text"}, [said("text")]),
        ({"content": said("one")}, [said("one")]),
        ({"structuredContent": {"n": 1}}, []),
        ({"toolResult": 5}, [said('{"toolResult":5}')]),
    ],
    ids=["nothing", "null", "text", "block", "structured", "other"],
)
@pytest.mark.parametrize("version", [LEGACY, MODERN])
async def test_content_that_is_missing_is_filled_in(result, content, version, wire) -> None:
    repaired = await through("tools/call", result, wire, version=version)

    assert repaired["content"] == content
    assert wire.notes == ["A result came without a list of content blocks."]


@pytest.mark.parametrize("structured, text", [([1, 2], "[1,2]"), ("x" * 3000, '"' + "x" * 3000 + '"')])
async def test_structured_content_that_the_version_does_not_know_becomes_text(structured, text, wire) -> None:
    result = await through("tools/call", {"content": [], "structuredContent": structured}, wire)

    assert result == {"content": [said(text)], "isError": False}


async def test_structured_content_of_any_kind_stays_in_a_modern_result(wire) -> None:
    result = {"content": [], "structuredContent": [1, 2], "resultType": "complete"}

    assert await through("tools/call", result, wire, version=MODERN) == result


async def test_a_result_that_is_nested_too_deeply_costs_no_more_than_itself(wire) -> None:
    deep: dict[str, Any] = {}
    for _ in range(150):
        deep = {"x": {"x": deep}}

    result = await through("tools/call", {"content": [said("text")], "structuredContent": deep}, wire)

    assert result == {"content": [said("text")], "isError": False}


async def test_a_request_for_input_is_not_taken_for_a_result(wire) -> None:
    asks = {"resultType": "input_required", "inputRequests": {"a": {"method": "elicitation/create"}}}

    assert await through("tools/call", asks, wire, version=MODERN) == asks


async def test_an_id_may_come_back_as_text(wire) -> None:
    result = await through("tools/call", {"content": "text"}, wire, answer_id="1")

    assert result["content"] == [said("text")]


async def test_other_results_are_not_touched(wire) -> None:
    odd = {"tools": None, "content": None}

    assert await through("resources/list", odd, wire) == odd


async def test_what_the_guard_hands_on_is_what_the_sdk_takes(wire) -> None:
    for results in RESULTS.values():
        for result in results.values():
            CallToolResult.model_validate(await through("tools/call", result, wire), by_name=False)


# Errors and requests


@pytest.mark.parametrize("code", [-32000, -32001])
async def test_an_error_of_the_server_is_not_taken_for_the_end_of_the_connection(code, wire) -> None:
    async with by_hand(wire) as ((read, _), theirs):
        error = ErrorData(code=code, message="no such session")
        await theirs.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=1, error=error)))
        item = await read.receive()

    assert item.message.error == ErrorData(code=ANSWER_LOST, message="no such session")


async def test_mcp_d17_an_error_of_a_tool_is_passed_on(faulty, connect) -> None:
    async with asyncio.timeout(LIMIT_S), connect(faulty("rpc_error")) as client:
        with pytest.raises(MCPError, match="the disk is full") as caught:
            await client.session.call_tool("fail", {})

    assert caught.value.error.code == -32050


@pytest.mark.parametrize(
    "arguments", [{"x": float("nan")}, {"x": "\ud83d"}, {"x": object()}], ids=["nan", "half", "object"]
)
async def test_arguments_that_are_no_json_are_not_sent(arguments, wire) -> None:
    request = JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params={"arguments": arguments})
    async with by_hand(wire) as ((_, write), _):
        with pytest.raises(ValueError, match="cannot be sent as JSON"):
            await write.send(SessionMessage(request))


async def test_a_cancelled_request_is_forgotten(wire) -> None:
    request = JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/call", params={})
    cancel = JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params={"requestId": 1})
    async with by_hand(wire) as ((read, write), theirs):
        await write.send(SessionMessage(request))
        await write.send(SessionMessage(cancel))
        await theirs.send(SessionMessage(JSONRPCResponse(jsonrpc="2.0", id=1, result={"content": None})))

        assert (await read.receive()).message.result == {"content": None}


def test_notes_are_bounded_and_none_comes_twice(wire) -> None:
    for index in range(300):
        wire.note(f"note {index // 2}")

    assert wire.notes == [f"note {index}" for index in range(50, 150)]
