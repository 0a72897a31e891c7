"""Python functions as tools: whatever one raises is its own failure, and harms no turn."""

from __future__ import annotations

import asyncio
import sys

import pytest
from servers import EFFECT

import mead
from mead.mcp.hub import ToolHub


@mead.tool(effect=False)
async def exits() -> str:
    "Leaves."
    sys.exit(3)


@mead.tool(effect=False)
def exits_on_a_thread() -> str:
    "Leaves."
    raise SystemExit("bye")


@mead.tool(effect=False)
def stops() -> str:
    "Asks an iterator for more than it has."
    return str(next(iter([])))


@mead.tool(effect=False)
async def waits_for_what_was_cancelled() -> str:
    "Waits for a task that was cancelled."
    task = asyncio.ensure_future(asyncio.sleep(60))
    task.cancel()
    await task
    return "never"


@mead.tool(effect=False)
async def sleeps() -> str:
    "Sleeps."
    await asyncio.sleep(60)
    return "never"


@pytest.mark.parametrize(
    "function,said",
    [
        (exits, "SystemExit"),
        (exits_on_a_thread, "SystemExit: bye"),
        (stops, "StopIteration"),
        (waits_for_what_was_cancelled, "CancelledError"),
    ],
)
async def test_whatever_a_function_raises_is_an_error_result(function: object, said: str) -> None:
    hub = ToolHub([function])  # type: ignore[list-item]  # they are functions

    async with asyncio.timeout(5):
        output = await hub.call_tool(function.__name__, {}, EFFECT)  # type: ignore[attr-defined]

    assert output.is_error
    assert said in output.content


async def test_a_cancelled_turn_is_no_failure_of_the_tool() -> None:
    task = asyncio.ensure_future(ToolHub([sleeps]).call_tool("sleeps", {}, EFFECT))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
