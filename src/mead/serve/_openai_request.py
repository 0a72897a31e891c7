"""A chat completion request as OpenAI's clients send it, typed, and in mead's words.

Format: the OpenAI API reference, "Create chat completion", as openai 3.57 sends it. A field that mead cannot
honour is refused, also one that nobody knows; a value that changes nothing is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from mead.core.messages import Tool
from mead.core.options import Options, ResponseFormat
from mead.serve._openai_messages import AnyMessage, read_messages
from mead.serve.chat import Chat, Wishes
from mead.serve.endpoint import Call
from mead.serve.errors import invalid, unsupported

_Count: TypeAlias = Annotated[int, Meta(ge=1, le=2**31 - 1)]
_Int64: TypeAlias = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_ToolName: TypeAlias = Annotated[str, Meta(pattern=r"\A[a-zA-Z0-9_-]{1,64}\Z")]
_Stop: TypeAlias = Annotated[str, Meta(min_length=1)]
_NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}}
_EFFORTS: Mapping[str, bool | Literal["low", "medium", "high"]] = {
    "none": False,
    "low": "low",
    "medium": "medium",
    "high": "high",
}


class _Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class _Function(_Strict, frozen=True):
    name: _ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _FunctionTool(_Strict, frozen=True, tag_field="type", tag="function"):
    function: _Function


class _CustomTool(Struct, frozen=True, tag_field="type", tag="custom"):
    pass


class _Named(_Strict, frozen=True):
    name: str


class _NamedChoice(_Strict, frozen=True, tag_field="type", tag="function"):
    function: _Named


class _AllowedTools(Struct, frozen=True, tag_field="type", tag="allowed_tools"):
    pass


class _CustomChoice(Struct, frozen=True, tag_field="type", tag="custom"):
    pass


class _TextFormat(_Strict, frozen=True, tag_field="type", tag="text"):
    pass


class _JsonObject(_Strict, frozen=True, tag_field="type", tag="json_object"):
    pass


class _Schema(_Strict, frozen=True):
    name: _ToolName
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class _JsonSchema(_Strict, frozen=True, tag_field="type", tag="json_schema"):
    json_schema: _Schema


class _StreamOptions(_Strict, frozen=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(_Strict, frozen=True):
    """The body of `/v1/chat/completions`. What stands after `metadata` is taken where it changes nothing."""

    model: str
    messages: Annotated[list[AnyMessage], Meta(min_length=1)]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: _Count | None = None
    max_completion_tokens: _Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: _Count | None = None
    seed: _Int64 | None = None
    stop: _Stop | Annotated[list[_Stop], Meta(max_length=64)] | None = None
    response_format: _TextFormat | _JsonObject | _JsonSchema | None = None
    reasoning_effort: str | None = None
    tools: list[_FunctionTool | _CustomTool] | None = None
    tool_choice: str | _NamedChoice | _AllowedTools | _CustomChoice | None = None
    parallel_tool_calls: bool | None = None
    mead: Wishes | None = None

    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    metadata: dict[str, str] | None = None

    n: Any = None
    store: Any = None
    logprobs: Any = None
    top_logprobs: Any = None
    logit_bias: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    service_tier: Any = None
    modalities: Any = None
    verbosity: Any = None
    audio: Any = None
    prediction: Any = None
    web_search_options: Any = None
    functions: Any = None
    function_call: Any = None


_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "n": (1,),
    "store": (False,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "verbosity": ("medium",),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "functions": (),
    "function_call": (),
}
"""Fields that mead cannot honour, with the values that change nothing."""
_INSTEAD = {"functions": "send them as tools", "function_call": "send tool_choice"}


class Asked(Struct, frozen=True):
    """A request in mead's words. `notes` say what of it is not passed on to the model."""

    chat: Chat
    notes: tuple[str, ...] = ()


async def read_request(call: Call, request: ChatRequest) -> Asked:
    """The request in mead's words. Raises `Problem` that names the field which cannot be honoured."""
    for name, neutral in _NEUTRAL.items():
        value = getattr(request, name)
        if value is not None and value not in neutral:
            raise unsupported(name, _INSTEAD.get(name, ""))
    read = read_messages(request.messages)
    tools, wishes = _tools(request), request.mead or Wishes()
    if request.tool_choice == "none":
        tools, wishes = (), msgspec.structs.replace(wishes, tools="none")
    has_tools = bool(tools) or wishes.tools != "none"
    chat = Chat.of(
        call.request.headers,
        await call.request.body(),
        model=request.model,
        messages=read.messages,
        options=Options(
            system=read.system,
            max_tokens=_max_tokens(request),
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            seed=request.seed,
            stop=_stop(request),
            response_format=_response_format(request),
            tool_choice=_tool_choice(request, tools, has_tools=has_tools),
            # Several at once is how models are without a word.
            parallel_tools=False if request.parallel_tool_calls is False and has_tools else None,
            thinking=_thinking(request),
        ),
        client_tools=tools,
        wishes=wishes,
    )
    notes = list(read.notes)
    if any(isinstance(tool, _FunctionTool) and tool.function.strict for tool in request.tools or ()):
        notes.append("That tool calls fit their schema (strict) is left to the model: check the arguments.")
    return Asked(chat, tuple(notes))


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise invalid("max_tokens and max_completion_tokens differ; send one of them", param="max_tokens")
    return old if new is None else new


def _stop(request: ChatRequest) -> tuple[str, ...] | None:
    stop = request.stop
    return (stop,) if isinstance(stop, str) else tuple(stop) if stop else None


def _response_format(request: ChatRequest) -> ResponseFormat | None:
    wanted = request.response_format
    if isinstance(wanted, _JsonObject):
        return ResponseFormat()
    if not isinstance(wanted, _JsonSchema):
        return None
    asked = wanted.json_schema
    schema: dict[str, object] = asked.schema if asked.schema is not None else {"type": "object"}
    if asked.description and "description" not in schema:
        schema = {"description": asked.description, **schema}
    return ResponseFormat(schema, asked.name)


def _thinking(request: ChatRequest) -> bool | Literal["low", "medium", "high"] | None:
    effort = request.reasoning_effort
    if effort is None:
        return None
    if effort not in _EFFORTS:
        raise invalid(f"mead knows the efforts {', '.join(_EFFORTS)}", param="reasoning_effort")
    return _EFFORTS[effort]


def _tools(request: ChatRequest) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for index, each in enumerate(request.tools or ()):
        if isinstance(each, _CustomTool):
            raise unsupported(f"tools[{index}].type", "a custom tool has no schema; send a function")
        function = each.function
        if function.name in tools:
            raise invalid("two tools have this name", param=f"tools[{index}].function.name")
        parameters = _NO_PARAMETERS if function.parameters is None else function.parameters
        tools[function.name] = Tool(function.name, function.description, parameters)
    return tuple(tools.values())


def _tool_choice(request: ChatRequest, tools: tuple[Tool, ...], *, has_tools: bool) -> str | None:
    choice = request.tool_choice
    if choice is None or choice in ("none", "auto"):
        return None
    if isinstance(choice, (_AllowedTools, _CustomChoice)):
        raise unsupported("tool_choice.type", "send only the tools that may be called")
    if not has_tools:
        raise invalid("there are no tools to choose from", param="tool_choice")
    if isinstance(choice, str):
        if choice != "required":
            raise invalid("must be none, auto, required, or name a function", param="tool_choice")
        return choice
    name = choice.function.name
    of_hub = request.mead is not None and request.mead.tools != "none"
    if name == "required" or not (of_hub or any(tool.name == name for tool in tools)):
        raise invalid("names none of the tools", param="tool_choice.function.name")
    return name
