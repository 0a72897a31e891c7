"""What the official conformance suite expects of a server: tools, resources and prompts of fixed names."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import struct
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from mcp import MCPError
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.message import ServerMessageMetadata
from mcp.types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CompleteRequestParams,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    GetPromptRequestParams,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    SamplingMessage,
    SetLevelRequestParams,
    SubscribeRequestParams,
    TextContent,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Context = ServerRequestContext[Any, Any]
Json = dict[str, Any]
Tool = Callable[[Context, CallToolRequestParams], Awaitable[Json]]
PAUSE_S = 0.05
"""What the suite asks for between two notifications."""
BUS = InMemorySubscriptionBus()
_KEY = secrets.token_bytes(32)


def _png() -> str:
    """One red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0")) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()


def _wav() -> str:
    """Eight samples of silence."""
    form = struct.pack("<4sIHHIIHH4sI", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", 8)
    return base64.b64encode(
        b"RIFF" + struct.pack("<I", 4 + len(form) + 8) + b"WAVE" + form + b"\x80" * 8
    ).decode()


def text(said: str) -> Json:
    return {"type": "text", "text": said}


def resource(uri: str, kind: str, said: str) -> Json:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": kind, "text": said}}


IMAGE = {"type": "image", "data": _png(), "mimeType": "image/png"}
MIXED = resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
RESULTS: Mapping[str, Json] = {
    "test_simple_text": {"content": [text("This is a simple text response for testing.")]},
    "test_image_content": {"content": [IMAGE]},
    "test_audio_content": {"content": [{"type": "audio", "data": _wav(), "mimeType": "audio/wav"}]},
    "test_embedded_resource": {
        "content": [
            resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")
        ]
    },
    "test_multiple_content_types": {"content": [text("Multiple content types test:"), IMAGE, MIXED]},
    "test_error_handling": {
        "content": [text("This tool intentionally returns an error for testing")],
        "isError": True,
    },
    "json_schema_2020_12_tool": {"content": [text("It fits.")]},
    "test_header_param": {"content": [text("The header fits.")]},
}
"""The results of the tools that always say the same."""

ADDRESS = {
    "$anchor": "addressDef",
    "type": "object",
    "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
}
SCHEMAS: Mapping[str, Json] = {
    "test_sampling": {"properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
    "test_elicitation": {"properties": {"message": {"type": "string"}}, "required": ["message"]},
    "test_header_param": {"properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
    "json_schema_2020_12_tool": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"address": ADDRESS},
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
}
"""The input schemas of the tools that take something."""


def form(message: str, properties: Json, required: list[str] | None = None) -> Json:
    """A question to a person."""
    schema: Json = {"type": "object", "properties": properties}
    if required:
        schema["required"] = required
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def sampling(prompt: str, max_tokens: int = 100) -> Json:
    """A question to the client's model."""
    messages = [{"role": "user", "content": text(prompt)}]
    return {"method": "sampling/createMessage", "params": {"messages": messages, "maxTokens": max_tokens}}


ROOTS: Json = {"method": "roots/list", "params": {}}
NAME = {"name": {"type": "string"}}


# Tools that talk to the client while they run


async def logging_tool(ctx: Context, params: CallToolRequestParams) -> Json:
    for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await ctx.session.send_log_message("info", said, related_request_id=ctx.request_id)
        await asyncio.sleep(PAUSE_S)
    return {"content": [text("It logged three times.")]}


async def progress_tool(ctx: Context, params: CallToolRequestParams) -> Json:
    for done in (0.0, 50.0, 100.0):
        await ctx.session.report_progress(done, 100.0)
        await asyncio.sleep(PAUSE_S)
    return {"content": [text("It is done.")]}


async def sampling_tool(ctx: Context, params: CallToolRequestParams) -> Json:
    prompt = str((params.arguments or {})["prompt"])
    asked = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    request = CreateMessageRequest(params=CreateMessageRequestParams(messages=[asked], max_tokens=100))
    metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
    answer = await ctx.session.send_request(request, CreateMessageResult, metadata=metadata)
    said = answer.content.text if isinstance(answer.content, TextContent) else ""
    return {"content": [text(f"LLM response: {said}")]}


def eliciting_tool(properties: Json, required: list[str], said: str, message: str | None = None) -> Tool:
    """A tool that asks the person for something, and tells what they said."""

    async def run(ctx: Context, params: CallToolRequestParams) -> Json:
        question = message or str((params.arguments or {})["message"])
        schema: Json = {"type": "object", "properties": properties, "required": required}
        answer = await ctx.session.elicit_form(question, schema, related_request_id=ctx.request_id)
        content = json.dumps(answer.content or {})
        return {"content": [text(said.format(action=answer.action, content=content))]}

    return run


COMPLETED = "Elicitation completed: action={action}, content={content}"
DEFAULTS: Json = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}


def titled(*titles: str) -> list[Json]:
    return [{"const": f"value{number}", "title": title} for number, title in enumerate(titles, 1)]


OPTIONS = ["option1", "option2", "option3"]
ENUMS: Json = {
    "untitledSingle": {"type": "string", "enum": OPTIONS},
    "titledSingle": {"type": "string", "oneOf": titled("First Option", "Second Option", "Third Option")},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": OPTIONS}},
    "titledMulti": {
        "type": "array",
        "items": {"anyOf": titled("First Choice", "Second Choice", "Third Choice")},
    },
}


async def change_tools(ctx: Context, params: CallToolRequestParams) -> Json:
    await BUS.publish(ToolsListChanged())
    return {"content": [text("The tools have changed.")]}


async def change_prompts(ctx: Context, params: CallToolRequestParams) -> Json:
    await BUS.publish(PromptsListChanged())
    return {"content": [text("The prompts have changed.")]}


async def missing_capability(ctx: Context, params: CallToolRequestParams) -> Json:
    capabilities = ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        needed = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(code=MISSING_REQUIRED_CLIENT_CAPABILITY, message="It needs sampling", data=needed)
    return {"content": [text("The client can sample.")]}


# Tools whose questions are a result (2026-07-28)


def seal(state: str) -> str:
    """A state for the client to bring back, which it cannot change."""
    return f"{state}.{hmac.new(_KEY, state.encode(), hashlib.sha256).hexdigest()}"


def unseal(sealed: str | None) -> str:
    """The state. Raises `MCPError` for one that was changed."""
    state, _, _ = (sealed or "").rpartition(".")
    if sealed is None or not hmac.compare_digest(sealed, seal(state)):
        raise MCPError(code=INVALID_PARAMS, message="The requestState is not as it was given")
    return state


def needs(requests: Json, state: str | None = None) -> Json:
    """A result that asks for input."""
    result: Json = {"resultType": "input_required", "inputRequests": requests}
    return result if state is None else {**result, "requestState": seal(state)}


def answers(params: CallToolRequestParams | GetPromptRequestParams) -> Json:
    """What the client has brought, as JSON."""
    given = params.input_responses or {}
    return {
        name: each.model_dump(mode="json", by_alias=True, exclude_none=True) for name, each in given.items()
    }


def asking(requests: Json, done: str, *, state: str | None = None) -> Tool:
    """A tool that asks for all of this, and is done when it has it; with a `state` to be brought back."""

    async def run(ctx: Context, params: CallToolRequestParams) -> Json:
        if params.request_state is not None and state is not None:
            unseal(params.request_state)
        given = answers(params)
        if state is not None and params.request_state is None:
            return needs(requests, state)
        if not all(name in given and _is_answer(given[name]) for name in requests):
            return needs(requests, state)
        return {"content": [text(f"{done} {json.dumps(given)}")]}

    return run


def _is_answer(given: Json) -> bool:
    """Whether it answers a question: a form that was filled in, a model's words, or roots."""
    return bool(given.get("content") or "roots" in given)


async def multi_round(ctx: Context, params: CallToolRequestParams) -> Json:
    first = {"step1": form("Step 1: What is your name?", NAME, ["name"])}
    color = {"color": {"type": "string"}}
    second = {"step2": form("Step 2: What is your favorite color?", color, ["color"])}
    if params.request_state is None:
        return needs(first, "1")
    given = answers(params)
    if unseal(params.request_state) == "1":
        return needs(second, "2") if "step1" in given else needs(first, "1")
    return {"content": [text("Both steps are done.")]} if "step2" in given else needs(second, "2")


async def only_what_the_client_can(ctx: Context, params: CallToolRequestParams) -> Json:
    can = ctx.session.client_capabilities
    requests: Json = {}
    if can is not None and can.sampling is not None:
        requests["capital"] = sampling("What is the capital of France?")
    if can is not None and can.elicitation is not None:
        requests["name"] = form("What is your name?", NAME, ["name"])
    return needs(requests) if requests else {"content": [text("The client can do nothing.")]}


async def streaming_elicitation(ctx: Context, params: CallToolRequestParams) -> Json:
    await ctx.session.report_progress(1.0, 2.0)
    return needs({"name": form("What is your name?", NAME, ["name"])})


CONFIRM = {"confirm": form("Please confirm", {"ok": {"type": "boolean"}}, ["ok"])}
WHO = {"user_name": form("What is your name?", NAME, ["name"])}
PREFIX = "test_input_required_result_"
TOOLS: Mapping[str, Tool] = {
    "test_tool_with_logging": logging_tool,
    "test_logging_tool": logging_tool,
    "test_tool_with_progress": progress_tool,
    "test_sampling": sampling_tool,
    "test_elicitation": eliciting_tool(
        {"username": {"type": "string"}, "email": {"type": "string"}},
        ["username", "email"],
        "User response: action={action}, content={content}",
    ),
    "test_elicitation_sep1034_defaults": eliciting_tool(DEFAULTS, [], COMPLETED, "Check these values"),
    "test_elicitation_sep1330_enums": eliciting_tool(ENUMS, [], COMPLETED, "Choose"),
    "test_trigger_tool_change": change_tools,
    "test_trigger_prompt_change": change_prompts,
    "test_missing_capability": missing_capability,
    "test_streaming_elicitation": streaming_elicitation,
    f"{PREFIX}elicitation": asking(WHO, "Hello!"),
    f"{PREFIX}sampling": asking({"capital_question": sampling("What is the capital of France?")}, "It says:"),
    f"{PREFIX}list_roots": asking({"client_roots": ROOTS}, "The roots are"),
    f"{PREFIX}request_state": asking(CONFIRM, "state-ok", state="confirm"),
    f"{PREFIX}tampered_state": asking(CONFIRM, "The state is whole.", state="whole"),
    f"{PREFIX}multiple_inputs": asking(
        {**WHO, "greeting": sampling("Generate a greeting", 50), "client_roots": ROOTS}, "All:", state="all"
    ),
    f"{PREFIX}multi_round": multi_round,
    f"{PREFIX}capabilities": only_what_the_client_can,
}

# Resources and prompts

RESOURCES: Mapping[str, Json] = {
    "test://static-text": {
        "mimeType": "text/plain",
        "text": "This is the content of the static text resource.",
    },
    "test://static-binary": {"mimeType": "image/png", "blob": _png()},
    "test://watched-resource": {"mimeType": "text/plain", "text": "Watch this."},
}
PROMPTS: Mapping[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    f"{PREFIX}prompt": (),
}
"""The prompts, and what they take."""


def prompt(name: str, given: Mapping[str, str], params: GetPromptRequestParams) -> Json:
    """What a prompt says."""
    match name:
        case "test_simple_prompt":
            contents = [text("This is a simple prompt for testing.")]
        case "test_prompt_with_arguments":
            said = f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"
            contents = [text(said)]
        case "test_prompt_with_embedded_resource":
            embedded = resource(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
            contents = [embedded, text("Please process the embedded resource above.")]
        case "test_prompt_with_image":
            contents = [IMAGE, text("Please analyze the image above.")]
        case _:
            if "user_context" not in answers(params):
                question = "What context should the prompt use?"
                context = form(question, {"context": {"type": "string"}}, ["context"])
                return needs({"user_context": context})
            contents = [text("Use the context that was given.")]
    return {"messages": [{"role": "user", "content": content} for content in contents]}


# The server


async def list_tools(ctx: Context, params: PaginatedRequestParams) -> Json:
    names = [*RESULTS, *TOOLS]
    tools = [
        {
            "name": name,
            "description": "A tool of the conformance suite.",
            "inputSchema": {"type": "object", **SCHEMAS.get(name, {})},
        }
        for name in names
    ]
    return {"tools": tools}


async def call_tool(ctx: Context, params: CallToolRequestParams) -> Json:
    if params.name in RESULTS:
        return RESULTS[params.name]
    if params.name not in TOOLS:
        raise MCPError(code=INVALID_PARAMS, message=f"There is no tool {params.name}")
    return await TOOLS[params.name](ctx, params)


async def list_resources(ctx: Context, params: PaginatedRequestParams) -> Json:
    found = [
        {"uri": uri, "name": uri[7:], "description": "A resource.", "mimeType": each["mimeType"]}
        for uri, each in RESOURCES.items()
    ]
    return {"resources": found}


async def list_templates(ctx: Context, params: PaginatedRequestParams) -> Json:
    template = {
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "A template.",
        "mimeType": "application/json",
    }
    return {"resourceTemplates": [template]}


async def read_resource(ctx: Context, params: ReadResourceRequestParams) -> Json:
    uri = str(params.uri)
    if uri in RESOURCES:
        return {"contents": [{"uri": uri, **RESOURCES[uri]}]}
    parts = uri.removeprefix("test://").split("/")
    if len(parts) != 3 or (parts[0], parts[2]) != ("template", "data"):
        raise MCPError(code=INVALID_PARAMS, message="Resource not found", data={"uri": uri})
    said = json.dumps({"id": parts[1], "templateTest": True, "data": f"Data for ID: {parts[1]}"})
    return {"contents": [{"uri": uri, "mimeType": "application/json", "text": said}]}


async def list_prompts(ctx: Context, params: PaginatedRequestParams) -> Json:
    prompts = [
        {
            "name": name,
            "description": "A prompt of the conformance suite.",
            "arguments": [{"name": each, "required": True} for each in arguments],
        }
        for name, arguments in PROMPTS.items()
    ]
    return {"prompts": prompts}


async def get_prompt(ctx: Context, params: GetPromptRequestParams) -> Json:
    given = params.arguments or {}
    if params.name not in PROMPTS or not set(PROMPTS[params.name]) <= set(given):
        raise MCPError(code=INVALID_PARAMS, message="There is no such prompt, or an argument is missing")
    return prompt(params.name, given, params)


async def complete(ctx: Context, params: CompleteRequestParams) -> Json:
    values = [each for each in ("paris", "park", "party") if each.startswith(params.argument.value)]
    return {"completion": {"values": values, "total": len(values), "hasMore": False}}


async def nothing(ctx: Context, params: object) -> Json:
    return {}


def whole(handler: Callable[[Context, Any], Awaitable[Json]]) -> Callable[[Context, Any], Awaitable[Json]]:
    """The handler, with what results of 2026-07-28 say of themselves."""

    async def run(ctx: Context, params: object) -> Json:
        result = await handler(ctx, params)
        is_modern = ctx.protocol_version in MODERN_PROTOCOL_VERSIONS
        return {"resultType": "complete", **result} if is_modern else result

    return run


def fixture_server() -> Server[Any]:
    """A server that offers all of it."""
    fresh = CacheHint(ttl_ms=1000, scope="private")
    cached = ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read")
    server: Server[Any] = Server(
        "fixtures",
        version="1",
        cache_hints=dict.fromkeys(cached, fresh),  # type: ignore[arg-type]  # the words are those it wants
        on_subscriptions_listen=ListenHandler(BUS),
    )
    server.add_request_handler("tools/list", PaginatedRequestParams, whole(list_tools))
    server.add_request_handler("tools/call", CallToolRequestParams, whole(call_tool))
    server.add_request_handler("resources/list", PaginatedRequestParams, whole(list_resources))
    server.add_request_handler("resources/templates/list", PaginatedRequestParams, whole(list_templates))
    server.add_request_handler("resources/read", ReadResourceRequestParams, whole(read_resource))
    server.add_request_handler("resources/subscribe", SubscribeRequestParams, whole(nothing))
    server.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, whole(nothing))
    server.add_request_handler("prompts/list", PaginatedRequestParams, whole(list_prompts))
    server.add_request_handler("prompts/get", GetPromptRequestParams, whole(get_prompt))
    server.add_request_handler("completion/complete", CompleteRequestParams, whole(complete))
    server.add_request_handler("logging/setLevel", SetLevelRequestParams, whole(nothing))
    return server
