"""What of a history each model is shown (R10, R16)."""

from __future__ import annotations

import pytest

from mead.core.conversation import encode
from mead.core.messages import Message, TextBlock, ToolResultBlock, ToolUseBlock
from mead.core.options import Route
from mead.core.turns import Label, Turn
from mead.router.views import CloudView, ask, cloud_view, local_view
from support import newest, past

WITH_TOOLS = [
    Message("user", "what time is it?"),
    Message("assistant", (TextBlock("let me see"), ToolUseBlock("a", "clock", {}))),
    Message("user", (ToolResultBlock("a", "noon"),)),
    Message("assistant", "it is noon"),
]
WITHOUT_TOOLS = [Message("user", "what time is it?"), Message("assistant", "let me see\n\nit is noon")]


def used_tools(route: Route, label: Label = "shareable") -> Turn:
    return Turn(messages=encode(WITH_TOOLS), route=route, label=label)


def test_r16_a_cloud_view_can_be_made_in_one_place_only() -> None:
    with pytest.raises(TypeError, match="cloud_view"):
        CloudView([], proof=object())


def test_r16_no_local_only_turn_gets_into_a_cloud_view() -> None:
    turns = [past("a", "b", label="local_only", route="local"), past("c", "d"), past("e", "f", route="local")]

    shown = ask(cloud_view(turns), newest("hello").messages)

    assert [message.content for message in shown] == ["c", "d", "e", "f", "hello"]


def test_the_local_model_sees_everything() -> None:
    turns = [past("a", "b", label="local_only", route="local"), past("c", "d")]

    shown = ask(local_view(turns), newest("hello").messages)

    assert [message.content for message in shown] == ["a", "b", "c", "d", "hello"]


def test_r10_tool_traffic_goes_back_only_to_the_route_that_made_it() -> None:
    assert list(ask(local_view([used_tools("local")]), newest("x").messages))[:4] == WITH_TOOLS
    assert list(ask(cloud_view([used_tools("cloud")]), newest("x").messages))[:4] == WITH_TOOLS
    assert list(ask(local_view([used_tools("cloud")]), newest("x").messages))[:2] == WITHOUT_TOOLS
    assert list(ask(cloud_view([used_tools("local")]), newest("x").messages))[:2] == WITHOUT_TOOLS
