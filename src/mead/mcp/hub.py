"""The hub: one place that says which tools a turn sees, and runs them (H1)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

import msgspec

from mead import telemetry
from mead.core.messages import Tool
from mead.core.options import TurnOptions
from mead.core.turns import ToolOutput
from mead.mcp.functions import FunctionTool, function_tool
from mead.mcp.policy import Policy

_log = logging.getLogger("mead.mcp")


class ToolHub:
    """Tools made of Python functions, under one policy. Each call is checked again when it is made."""

    def __init__(
        self, functions: Sequence[Callable[..., object]] = (), *, policy: Policy | None = None
    ) -> None:
        self._policy = policy or Policy()
        self._tools: dict[str, FunctionTool] = {}
        # What a turn sees depends on its choice alone, so each list is made once; an adapter then knows an
        # unchanged list by its identity and does not encode it again.
        self._visible: dict[str | None, tuple[Tool, ...]] = {}
        for function in functions:
            self.add(function)

    def add(self, function: Callable[..., object]) -> None:
        """Offers a function marked with `@mead.tool`. Raises `ValueError` for a name that is taken."""
        entry = function_tool(function)
        if entry.tool.name in self._tools:
            raise ValueError(f"there is a tool named {entry.tool.name!r} already")
        self._tools[entry.tool.name] = entry
        self._visible.clear()

    async def tools_for(self, options: TurnOptions) -> Sequence[Tool]:
        """The tools that the turn may see, in the order they were added."""
        return self.known_tools(options)

    def known_tools(self, options: TurnOptions) -> Sequence[Tool]:
        """The same: nothing has to be asked."""
        visible = self._visible.get(options.tools)
        if visible is None:
            visible = tuple(
                [
                    entry.tool
                    for name, entry in self._tools.items()
                    if self._policy.judge(name, effect=entry.effect, options=options).allowed
                ]
            )
            self._visible[options.tools] = visible
        return visible

    async def call_tool(self, name: str, input: dict[str, object], options: TurnOptions) -> ToolOutput:
        """Runs one tool, once. A refusal, bad arguments and a tool that raises are outputs for the model."""
        entry = self._tools.get(name)
        if entry is None:
            return ToolOutput(f"There is no tool named {name!r}.", is_error=True)
        verdict = self._policy.judge(name, effect=entry.effect, options=options)
        if not verdict.allowed:
            return ToolOutput(f"{name} may not be called: {verdict.reason}.", is_error=True)
        call_id = f"{options.session_id}/{options.turn}/{name}"
        await options.scope.tool_started(call_id, name, effect=entry.effect)
        started = time.perf_counter()
        output = ToolOutput("The call was broken off. It may have been carried out.", is_error=True)
        try:
            output = await _run(entry, input)
        finally:
            await options.scope.tool_finished(call_id, name, is_error=output.is_error)
            telemetry.emit(
                telemetry.TOOL_CALL,
                {"duration": time.perf_counter() - started},
                {
                    "tool": name,
                    "effect": entry.effect,
                    "status": "error" if output.is_error else "ok",
                    "session_id": options.session_id,
                },
            )
        return output


async def _run(entry: FunctionTool, input: dict[str, object]) -> ToolOutput:
    try:
        return ToolOutput(await entry.call(input))
    except msgspec.ValidationError as error:
        return ToolOutput(f"The arguments do not fit, so the tool was not run: {error}", is_error=True)
    except asyncio.CancelledError:
        raise
    except Exception as error:
        # Its message is for the model, which sent the arguments; the log holds none of it.
        _log.warning("the tool %s raised %s", entry.tool.name, type(error).__name__)
        what = f"{type(error).__name__}: {error}"
        return ToolOutput(f"The tool failed ({what}). The call may have been carried out.", is_error=True)
