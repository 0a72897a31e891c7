"""The request of an Anthropic client, and what mead makes of it: messages, options, the client's tools.

Format: the Anthropic API reference, "Messages", version 2026-10-21; sampling options as in the versions
before. A field that is not listed here is refused by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from mead.core.messages import Message, Tool
from mead.core.options import Options, ResponseFormat
from mead.serve._anthropic_content import Contents, Hint, Text, WireMessage, not_taken
from mead.serve.chat import Wishes
from mead.serve.errors import invalid

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "container": (),
    "context_management": ({}, {"edits": []}),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "service_tier": ("auto",),
    "speed": ("standard",),
}
"""Fields that mead has nothing for, with the values that ask for nothing."""
_EFFORTS: dict[str, Literal["low", "medium", "high"]] = {
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
_Display: TypeAlias = Literal["summarized", "omitted"] | None
_Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class _Tool(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool of the client's own. A schema or a name that some vendor does not take, that vendor refuses."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    input_schema: dict[str, Any]
    description: str | None = None
    type: Literal["custom"] | None = None
    cache_control: Hint = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    input_examples: list[Any] | None = None
    defer_loading: bool | None = None
    allowed_callers: list[str] | None = None


class _Choice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Enabled(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="enabled"
):
    budget_tokens: Annotated[int, Meta(ge=1)]
    display: _Display = None


class _Adaptive(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="adaptive"):
    display: _Display = None


class _Disabled(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="disabled"):
    pass


class _Format(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class _Output(Struct, frozen=True, forbid_unknown_fields=True):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: _Format | None = None
    task_budget: Any = None


class _Metadata(Struct, frozen=True, forbid_unknown_fields=True):
    user_id: str | None = None


class CountRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be counted: the part of a request that makes up its prompt."""

    model: str
    messages: Annotated[tuple[WireMessage, ...], Meta(min_length=1)]
    system: str | tuple[Text, ...] | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: _Choice | None = None
    thinking: _Enabled | _Adaptive | _Disabled | None = None
    output_config: _Output | None = None
    cache_control: Hint = None
    container: Any = None
    context_management: Any = None
    diagnostics: Any = None
    inference_geo: Any = None
    mcp_servers: Any = None
    service_tier: Any = None
    speed: Any = None
    mead: Wishes | None = None


class MessagesRequest(CountRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for an answer."""

    max_tokens: Annotated[int, Meta(ge=1, le=100_000_000)]
    stream: bool | None = None
    stop_sequences: tuple[Annotated[str, Meta(min_length=1)], ...] | None = None
    temperature: _Share | None = None
    top_p: _Share | None = None
    top_k: Annotated[int, Meta(ge=1, le=100_000_000)] | None = None
    metadata: _Metadata | None = None


class Asked(Struct, frozen=True, kw_only=True):
    """A request in mead's words. `warnings` tell of what mead makes no use of."""

    messages: Sequence[Message]
    options: Options
    tools: Sequence[Tool]
    wishes: Wishes
    warnings: tuple[str, ...] = ()


def read(request: CountRequest) -> Asked:
    """The request in mead's words. Raises `Problem` that names the field which mead does not take."""
    for name, neutral in _NEUTRAL.items():
        if (value := getattr(request, name)) is not None and value not in neutral:
            raise not_taken(name)
    contents = Contents()
    if request.cache_control is not None:
        contents.unused["cache_control"] = None
    system = _system(request, contents)
    messages = contents.read(request.messages)
    options = Options(
        system="\n\n".join([text for text in (*system, *contents.system) if text.strip()]) or None,
        **_generation(request, contents.unused),
    )
    tools = _tools(request.tools or (), contents.unused)
    options, tools, wishes = _tool_use(request, options, tools)
    return Asked(
        messages=messages,
        options=options,
        tools=tools,
        wishes=wishes,
        warnings=(f"mead makes no use of: {', '.join(contents.unused)}",) if contents.unused else (),
    )


def _system(request: CountRequest, contents: Contents) -> list[str]:
    if request.system is None or isinstance(request.system, str):
        return [request.system or ""]
    return [contents.text(block) for block in request.system]


def _generation(request: CountRequest, unused: dict[str, None]) -> dict[str, Any]:
    """The options that say how an answer is made, by name."""
    made: dict[str, Any] = {"thinking": _thinking(request, unused)}
    output = request.output_config
    if output is not None and output.task_budget is not None:
        raise not_taken("output_config.task_budget")
    if output is not None and output.format is not None:
        made["response_format"] = ResponseFormat(schema=output.format.schema)
    if isinstance(request, MessagesRequest):
        made["max_tokens"] = request.max_tokens
        made["temperature"] = request.temperature
        made["top_p"] = request.top_p
        made["top_k"] = request.top_k
        made["stop"] = request.stop_sequences or None
        if request.metadata is not None and request.metadata.user_id is not None:
            unused["metadata.user_id"] = None
    return made


def _thinking(
    request: CountRequest, unused: dict[str, None]
) -> bool | Literal["low", "medium", "high"] | None:
    """Whether the model is to think, and how hard. What it thinks is never shown."""
    thinking, effort = request.thinking, request.output_config.effort if request.output_config else None
    if isinstance(thinking, _Disabled):
        if effort is not None:
            unused["output_config.effort"] = None
        return False
    if isinstance(thinking, _Enabled):
        unused["thinking.budget_tokens"] = None
    if thinking is not None and thinking.display == "summarized":
        unused["thinking.display"] = None
    if effort is not None:
        if _EFFORTS[effort] != effort:
            unused[f"output_config.effort above high ({effort})"] = None
        return _EFFORTS[effort]
    return None if thinking is None else True


def _tools(wires: Sequence[dict[str, Any]], unused: dict[str, None]) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for number, wire in enumerate(wires):
        at = f"tools[{number}]"
        if (kind := wire.get("type")) not in (None, "custom"):
            raise invalid(f"mead has no tools of the vendor's: {str(kind)[:64]!r}", param=at)
        tool = _tool(wire, at)
        if tool.name in tools:
            raise invalid("two tools have the same name", param=f"{at}.name")
        tools[tool.name] = Tool(tool.name, tool.description, tool.input_schema)
        for name in ("cache_control", "strict", "eager_input_streaming", "input_examples"):
            if getattr(tool, name):
                unused[name if name == "cache_control" else f"tools.{name}"] = None
    return tuple(tools.values())


def _tool(wire: dict[str, Any], at: str) -> _Tool:
    try:
        tool = msgspec.convert(wire, _Tool)
    except msgspec.ValidationError as error:
        said, _, path = str(error).partition(" - at `$")
        raise invalid(said, param=at + path.rstrip("`")) from None
    if tool.input_schema.get("type", "object") != "object":
        raise invalid("must be object", param=f"{at}.input_schema.type")
    if tool.defer_loading:
        raise not_taken(f"{at}.defer_loading")
    if tool.allowed_callers not in (None, [], ["direct"]):
        raise not_taken(f"{at}.allowed_callers")
    return tool


def _tool_use(
    request: CountRequest, options: Options, tools: tuple[Tool, ...]
) -> tuple[Options, tuple[Tool, ...], Wishes]:
    """What `tool_choice` makes of the options and of the tools that are shown."""
    choice, wishes = request.tool_choice, request.mead or Wishes()
    if choice is None:
        return options, tools, wishes
    if choice.name is not None and choice.type != "tool":
        raise invalid("belongs to the type tool alone", param="tool_choice.name")
    if choice.type == "none":
        return options, (), msgspec.structs.replace(wishes, tools="none")
    required = None
    if choice.type != "auto":
        required = "required" if choice.type == "any" else choice.name or ""
        of_hub = wishes.tools != "none"
        if not tools and not of_hub:
            raise invalid("there are no tools to choose from", param="tool_choice")
        if choice.type == "tool" and not of_hub and all(tool.name != required for tool in tools):
            raise invalid("names none of the tools", param="tool_choice.name")
    parallel = False if choice.disable_parallel_tool_use else None
    return msgspec.structs.replace(options, tool_choice=required, parallel_tools=parallel), tools, wishes
