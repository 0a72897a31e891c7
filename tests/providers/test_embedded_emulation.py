"""How tools are emulated: which one fits, and what may stand in its arguments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.core.messages import Message, TextBlock, Tool, ToolResultBlock, ToolUseBlock
from mead.providers.embedded.emulation import (
    arguments_schema,
    call_in,
    fitting_tool,
    request_in,
    without_tool_blocks,
)


def tool(name: str, description: str, required: dict[str, object], **optional: object) -> Tool:
    schema = {"type": "object", "properties": {**required, **optional}, "required": list(required)}
    return Tool(f"git__{name}", f"[git] {description}", schema)


TEXT = {"type": "string"}
TOOLS = [
    tool("git_status", "Shows the working tree status", {"repo_path": TEXT}),
    tool("git_log", "Shows the commit logs", {"repo_path": TEXT}, max_count={"type": "integer"}),
    tool("git_commit", "Records changes to the repository", {"repo_path": TEXT, "message": TEXT}),
    tool("git_create_branch", "Creates a new branch", {"repo_path": TEXT, "branch_name": TEXT}),
    tool("git_checkout", "Switches branches", {"repo_path": TEXT, "branch_name": TEXT}),
]


@pytest.mark.parametrize(
    "request_text,wanted",
    [
        ("What is the status of the repository /tmp/demo?", "git_status"),
        ("Show the log of /tmp/demo.", "git_log"),
        ("Create a branch called feature-x in /tmp/demo.", "git_create_branch"),
        ("Commit the changes in /srv/app with the message 'fix typo'.", "git_commit"),
        ("Switch to the branch main in /srv/app.", "git_checkout"),
        ("What time is it?", None),
        ("Tell me a joke.", None),
    ],
)
def test_the_tool_is_found_by_shared_words(request_text: str, wanted: str | None) -> None:
    found = fitting_tool(request_text, TOOLS)

    assert (found.name if found else None) == (wanted and f"git__{wanted}")


def choices(request: str, number: int) -> dict[str, object]:
    properties = arguments_schema(TOOLS[number], request)["properties"]
    assert isinstance(properties, dict)
    return {name: schema.get("enum") for name, schema in properties.items()}


def test_a_text_must_be_a_piece_of_the_request() -> None:
    assert choices("Create a branch called feature-x in /tmp/demo.", 3) == {
        "repo_path": ["/tmp/demo"],
        "branch_name": ["called", "feature-x"],
    }


def test_what_is_quoted_is_meant() -> None:
    assert choices("Commit the changes in /srv/app with the message 'fix typo'.", 2) == {
        "repo_path": ["/srv/app"],
        "message": ["fix typo"],
    }


def test_optional_arguments_are_left_to_the_tool() -> None:
    assert list(choices("Show the log of /tmp/demo.", 1)) == ["repo_path"]


def test_other_types_keep_their_schema() -> None:
    add = tool(
        "add", "Adds", {"numbers": {"type": "array", "items": TEXT}, "n": {"type": "integer"}, "any": True}
    )

    properties = arguments_schema(add, "Add 3 to x-1")["properties"]

    assert properties == {
        "numbers": {"type": "array", "items": {"enum": ["3", "x-1"]}},
        "n": {"type": "integer"},
        "any": True,
    }


def test_a_request_without_pieces_leaves_the_text_free() -> None:
    note = tool("note", "Notes", {"text": TEXT})

    assert arguments_schema(note, "note")["properties"] == {"text": {"type": "string", "maxLength": 200}}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"repo_path": "/x"}', '"x"'])
def test_a_call_that_is_not_whole_is_none(text: str) -> None:
    assert call_in(text, TOOLS[3]) is None


def test_one_call_a_turn() -> None:
    result = Message("user", (ToolResultBlock("a", "noon"), TextBlock("and?")))

    assert request_in([Message("user", "what time is it?")]) == "what time is it?"
    assert request_in([Message("user", "x"), result]) is None
    assert request_in([Message("assistant", "x")]) is None
    assert request_in([]) is None


def test_tool_traffic_is_told_in_words() -> None:
    told = without_tool_blocks(
        [
            Message("user", "what time is it?"),
            Message("assistant", (ToolUseBlock("a", "clock", {}),)),
            Message("user", (ToolResultBlock("a", "n" * 5000, is_error=True),)),
            Message("assistant", "noon"),
        ]
    )

    assert [message.role for message in told] == ["user", "user", "assistant"]
    assert "failed" in str(told[1].content)
    assert len(str(told[1].content)) < 2_200


@given(st.text(), st.sampled_from(TOOLS))
def test_any_request_makes_a_schema(request: str, wanted: Tool) -> None:
    schema = arguments_schema(wanted, request)

    assert schema["required"] == wanted.input_schema["required"]
    fitting_tool(request, TOOLS)
