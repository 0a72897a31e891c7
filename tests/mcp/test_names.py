"""Names that every vendor takes, the same after a restart (D41, D42)."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from mead.core.messages import Tool
from mead.mcp.names import public_name, unknown_tool

SAFE = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
SERVERS = st.from_regex(r"[a-z][a-z0-9-]{0,23}", fullmatch=True)


def test_a_plain_name_stays_readable() -> None:
    assert public_name("git", "git_log") == "git__git_log"


@given(SERVERS, st.text())
def test_mcp_d41_d42_any_name_becomes_one_that_every_vendor_takes(server: str, tool: str) -> None:
    assert SAFE.fullmatch(public_name(server, tool))
    assert public_name(server, tool) == public_name(server, tool)


@given(st.lists(st.tuples(SERVERS, st.text(min_size=1)), unique=True, max_size=30))
def test_mcp_d40_two_tools_never_share_a_name(tools: list[tuple[str, str]]) -> None:
    plain = {f"{server}__{tool}" for server, tool in tools}
    if len(plain) == len(tools):  # "a__b" + "c" and "a" + "b__c" are told apart by nobody
        assert len({public_name(server, tool) for server, tool in tools}) == len(tools)


def test_names_that_differ_only_in_what_is_unsafe_stay_apart() -> None:
    assert len({public_name("s", name) for name in ("a.b", "a/b", "a b", "a_b", "aüb")}) == 5


def test_an_unknown_name_gets_the_nearest_visible_ones() -> None:
    tools = [Tool(name, None, {}) for name in ("git__log", "git__status", "time__now")]

    assert "mean git__log" in unknown_tool("git__lgo", tools)
    assert "time__now" in unknown_tool("zzz", tools), "with nothing near, what there is"
    assert unknown_tool("x", []) == "There is no tool named 'x'."
    assert len(unknown_tool("x" * 10_000, tools)) < 400
