"""mead's tools and sessions as a server of the official MCP SDK, for both protocol eras."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import msgspec
from mcp import MCPError
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server as LowlevelServer
from mcp.types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)
from starlette.requests import Request

import mead
from mead.serve.endpoint import Call, Server
from mead.serve.errors import Problem, native_shape
from mead.serve.mcp_handles import Tell
from mead.serve.mcp_sessions import session_list, transcript
from mead.serve.mcp_shapes import schema_of
from mead.serve.mcp_tools import Given, McpTools, ToolSpec, TurnFailed, Used
from mead.serve.tokens import Principal

PRINCIPAL = "mead.principal"
"""Where the scope of an HTTP request says who calls."""
SESSION_URI = "mead://sessions/"
_PAGE = 50
_READ_TURNS = 1_000
_JSON = "application/json"
_DAY_MS = 86_400_000
_log = logging.getLogger("mead.serve")

INSTRUCTIONS = (
    "mead answers questions with a local or a cloud model, and keeps what must stay on its machine from the "
    "cloud model. `ask` starts a session, or goes on with one by its session_id. Sessions can be read as "
    "resources mead://sessions/{session_id}."
)

Context: TypeAlias = ServerRequestContext[Any, Any]
CallOf: TypeAlias = Callable[[Context], Call]
"""Says who calls."""


def lowlevel_server(
    server: Server, tools: McpTools, principal: Principal | None = None
) -> LowlevelServer[Any]:
    """The SDK's server. Without a `principal` each request says who calls, as `PRINCIPAL` in its scope."""
    _quieten()

    def call_of(ctx: Context) -> Call:
        request = ctx.request
        if principal is not None:
            return Call(request or Request({"type": "http"}), server, principal)
        if not isinstance(request, Request) or not isinstance(request.scope.get(PRINCIPAL), Principal):
            raise MCPError(code=INTERNAL_ERROR, message="nobody said who calls")
        return Call(request, server, request.scope[PRINCIPAL])

    handlers = _Handlers(tools, call_of)
    made: LowlevelServer[Any] = LowlevelServer(
        "mead",
        version=mead.__version__,
        title="mead",
        instructions=INSTRUCTIONS,
        # The tools are the same for everyone until mead is another version; sessions change with each turn.
        cache_hints={
            "tools/list": CacheHint(ttl_ms=_DAY_MS, scope="public"),
            "resources/templates/list": CacheHint(ttl_ms=_DAY_MS, scope="public"),
        },
        get_tool_input_schema=handlers.input_schema,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
    )
    # The SDK's own spans would record an exception's message, which may quote the conversation (T3).
    made.middleware.clear()
    return made


class _Handlers:
    """What the SDK calls."""

    def __init__(self, tools: McpTools, call_of: CallOf) -> None:
        self._tools = tools
        self._call_of = call_of
        self._listed = [_tool(spec) for spec in tools.specs]

    async def list_tools(self, ctx: Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=self._listed)

    def input_schema(self, name: str) -> dict[str, Any] | None:
        return next((tool.input_schema for tool in self._listed if tool.name == name), None)

    async def call_tool(self, ctx: Context, params: CallToolRequestParams) -> CallToolResult:
        spec = self._tools.find(params.name)
        if spec is None:
            raise MCPError(code=INVALID_PARAMS, message=f"there is no tool {params.name[:100]!r}")
        try:
            given = await spec.use(Used(self._call_of(ctx), _teller(ctx)), params.arguments or {})
        except Problem as problem:
            return _failed(problem)
        except TurnFailed as failed:
            return _failed(failed.problem, failed.session_id)
        except MCPError:
            raise
        except Exception as error:
            return _failed(_crash(f"the tool {spec.name}", error))
        return _result(given)

    async def list_resources(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        cursor = None if params is None else params.cursor
        try:
            page = await session_list(self._call_of(ctx), _PAGE, cursor)
        except Exception as error:
            raise _protocol_error(error) from None
        resources = [
            Resource(
                name=entry.session_id,
                title=entry.title,
                uri=SESSION_URI + quote(entry.session_id, safe=""),
                description="The transcript of a session.",
                mime_type=_JSON,
            )
            for entry in page.sessions
        ]
        return ListResourcesResult(resources=resources, next_cursor=page.next)

    async def list_templates(
        self, ctx: Context, params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        template = ResourceTemplate(
            name="session",
            title="A session",
            uri_template=f"{SESSION_URI}{{session_id}}",
            description="The transcript of a session. Turns that must not leave the machine are withheld.",
            mime_type=_JSON,
        )
        return ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(self, ctx: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        uri = str(params.uri)
        if not uri.startswith(SESSION_URI):
            raise MCPError(code=INVALID_PARAMS, message="Resource not found", data={"uri": uri})
        try:
            session_id = unquote(uri.removeprefix(SESSION_URI))
            found = await transcript(self._call_of(ctx), session_id, limit=_READ_TURNS)
        except Exception as error:
            raise _protocol_error(error, uri) from None
        text = msgspec.json.encode(found).decode()
        return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type=_JSON, text=text)])


def _tool(spec: ToolSpec[Any]) -> Tool:
    hints = spec.hints
    return Tool(
        name=spec.name,
        title=spec.title,
        description=spec.description,
        input_schema=schema_of(spec.input),
        output_schema=schema_of(spec.output),
        annotations=ToolAnnotations(
            title=spec.title,
            read_only_hint=hints.reads_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=hints.open_world,
        ),
    )


def _teller(ctx: Context) -> Tell:
    """Tells the client of progress, if it has asked for that."""

    async def tell(steps: int, doing: str) -> None:
        await ctx.session.report_progress(float(steps), message=doing)

    return tell


def _result(given: Given) -> CallToolResult:
    texts = given.texts or (msgspec.json.encode(given.output).decode(),)
    return CallToolResult(
        content=[TextContent(type="text", text=text) for text in texts],
        structured_content=msgspec.to_builtins(given.output),
    )


def _failed(problem: Problem, session_id: str | None = None) -> CallToolResult:
    """A result that tells of an error: for a model as text, for a program in `_meta`."""
    where = f"{problem.param}: " if problem.param else ""
    go_on = "" if session_id is None else f" (session_id: {session_id})"
    return CallToolResult(
        content=[TextContent(type="text", text=f"{problem.tag}: {where}{problem.message}{go_on}")],
        is_error=True,
        _meta={
            "mead/error": msgspec.to_builtins(native_shape(problem))["error"],
            "mead/session_id": session_id,
        },
    )


def _protocol_error(error: Exception, uri: str | None = None) -> MCPError:
    """The error of a request that is no call of a tool."""
    if isinstance(error, MCPError):
        return error
    problem = error if isinstance(error, Problem) else _crash("a resource", error)
    if uri is not None and problem.tag == "no_such_session":
        data = {"uri": uri, "tag": problem.tag}
        return MCPError(code=INVALID_PARAMS, message="Resource not found", data=data)
    code = INVALID_PARAMS if problem.status < 500 else INTERNAL_ERROR
    return MCPError(code=code, message=problem.message, data={"tag": problem.tag, "param": problem.param})


def _crash(what: str, error: Exception) -> Problem:
    # The exception's message is left out: it may quote the conversation (T3).
    stack = "".join(traceback.format_tb(error.__traceback__))
    _log.error("%s raised %s\n%s", what, type(error).__name__, stack)
    return Problem(500, "crashed", "the server made a mistake; its log says where")


def _quieten() -> None:
    """Keeps messages of exceptions, which quote what a client has sent, out of the SDK's log lines (T3)."""
    for name in ("server.streamable_http", "server.runner", "shared.jsonrpc_dispatcher"):
        logger = logging.getLogger(f"mcp.{name}")
        if _without_message not in logger.filters:
            logger.addFilter(_without_message)


def _without_message(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        stack = "".join(traceback.format_tb(error.__traceback__))
        record.msg = f"{record.getMessage()}: {type(error).__name__}\n{stack}"
        record.args, record.exc_info, record.exc_text = (), None, None
    return True
