"""Python functions as tools (S9).

    @mead.tool(effect=False)
    def weather(city: str) -> str:
        "Tells the weather in a city."
        ...

The function's signature gives the tool's schema and checks the arguments; its docstring describes it. The
effect class must be declared: a tool with side effects is shown only to turns that opt in.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from mead.core.messages import Tool

_Function = TypeVar("_Function", bound=Callable[..., object])
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MARK = "__mead_tool__"


class FunctionTool:
    """A function with what a model must know of it."""

    def __init__(self, function: Callable[..., object], *, effect: bool, name: str | None = None) -> None:
        self.function = function
        self.effect = effect
        name = name or function.__name__
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"a tool's name is 1 to 64 of a-z, A-Z, 0-9, _ and -, not {name!r}")
        self._arguments = _arguments_type(name, function)
        schema = msgspec.json.schema(self._arguments, ref_template="#/$defs/{name}")
        self.tool = Tool(name, inspect.getdoc(function), _inlined(schema))

    def check(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The arguments as the function takes them. Raises `ValueError` that says what is wrong."""
        parsed = msgspec.convert(arguments, self._arguments)
        return {name: getattr(parsed, name) for name in parsed.__struct_fields__}

    async def call(self, arguments: Mapping[str, object]) -> str:
        """Runs the function, one that is not a coroutine on a thread, and gives its result as text."""
        checked = self.check(arguments)
        if inspect.iscoroutinefunction(self.function):
            result = await self.function(**checked)
        else:
            result = await asyncio.to_thread(_run, self.function, checked)
        if isinstance(result, str):
            return result
        return "" if result is None else msgspec.json.encode(result, enc_hook=str).decode()


def tool(*, effect: bool, name: str | None = None) -> Callable[[_Function], _Function]:
    """Makes a function a tool; `effect` says whether calling it changes anything. The function stays as it
    is. Raises `ValueError` for a signature that JSON cannot fill (`*args`, parameters without a type …)."""

    def mark(function: _Function) -> _Function:
        setattr(function, _MARK, FunctionTool(function, effect=effect, name=name))
        return function

    return mark


def function_tool(function: Callable[..., object]) -> FunctionTool:
    """The tool that `@tool` made of the function. Raises `ValueError` if it was not marked."""
    found = getattr(function, _MARK, None)
    if not isinstance(found, FunctionTool):
        raise ValueError(f"{getattr(function, '__name__', function)!r} is not marked with @mead.tool")
    return found


def _run(function: Callable[..., object], arguments: Mapping[str, object]) -> object:
    """Calls a function on a thread. No future can carry a `StopIteration`, so that becomes another error."""
    try:
        return function(**arguments)
    except StopIteration as error:
        raise RuntimeError(f"StopIteration was raised: {error}") from error


def _arguments_type(name: str, function: Callable[..., object]) -> type[Any]:
    """A struct with the function's parameters for fields: it gives the schema and checks arguments."""
    hints = typing.get_type_hints(function, include_extras=True)
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"the tool {name!r} takes *args, **kwargs or positional-only parameters")
        if parameter.name not in hints:
            raise ValueError(f"the parameter {parameter.name!r} of the tool {name!r} needs a type")
        kind = hints[parameter.name]
        if parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind, parameter.default))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _inlined(schema: dict[str, Any]) -> dict[str, object]:
    """The schema of the struct itself instead of a reference to it; other definitions stay beside it."""
    definitions = dict(schema.get("$defs", {}))
    own = definitions.pop(str(schema.get("$ref", "")).rpartition("/")[2], schema)
    own = {key: value for key, value in own.items() if key not in ("title", "$ref")}
    return {**own, "$defs": definitions} if definitions else own
