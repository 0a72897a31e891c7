"""Results become text in a budget; nothing is lost in silence (D31–D34)."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from mead.mcp.results import NOTHING, cut, text_of_result


def text_of(*content: object, structured: object = None, max_chars: int = 1000) -> str:
    keywords = {} if structured is None else {"structured_content": structured}
    result = CallToolResult(content=list(content), **keywords)  # type: ignore[arg-type]  # blocks
    return text_of_result(result, max_chars=max_chars)


def text(value: str) -> TextContent:
    return TextContent(type="text", text=value)


def test_texts_are_joined_and_an_empty_result_says_so() -> None:
    assert text_of(text("one"), text("two")) == "one\ntwo"
    assert text_of() == NOTHING
    assert text_of(text("  ")) == NOTHING


def test_mcp_d31_an_embedded_text_is_inline_with_its_address() -> None:
    resource = TextResourceContents(uri="file:///a.txt", text="the file's text")

    said = text_of(text("downloaded"), EmbeddedResource(type="resource", resource=resource))

    assert said == "downloaded\n[file:///a.txt]\nthe file's text"


def test_mcp_d32_d33_what_is_binary_is_a_note() -> None:
    data = base64.b64encode(bytes(1_000_000)).decode()
    image = ImageContent(type="image", data=data, mime_type="image/png")
    blob = BlobResourceContents(uri="file:///b.zip", blob=data, mime_type="application/zip")

    assert text_of(image) == "[image image/png, 1,000,000 bytes]"
    assert text_of(EmbeddedResource(type="resource", resource=blob)) == (
        "[resource file:///b.zip, application/zip, 1,000,000 bytes]"
    )


def test_a_link_to_a_resource_is_named_and_never_fetched() -> None:
    link = ResourceLink(
        type="resource_link", name="report", uri="https://h/r.pdf", mime_type="application/pdf"
    )

    assert text_of(link) == "report <https://h/r.pdf> (application/pdf)"


def test_mcp_d34_one_budget_for_all_blocks_with_a_notice_at_the_cut() -> None:
    said = text_of(text("a" * 5000), text("z" * 5000), max_chars=1000)

    assert said.startswith("a" * 700)
    assert said.endswith("z" * 300)
    assert "[… 9,001 characters left out …]" in said


@pytest.mark.parametrize(
    "content,structured,said",
    [
        ([], {"a": 1}, '{"a":1}'),
        ([text("see below")], {"a": 1}, 'see below\n{"a":1}'),
        ([text('{"a": 1}')], {"a": 1}, '{"a": 1}'),
        ([text("noon")], {"result": "noon"}, "noon"),
    ],
)
def test_structured_content_is_not_lost_and_not_said_twice(
    content: list[object], structured: object, said: str
) -> None:
    assert text_of(*content, structured=structured) == said


def test_control_characters_go_and_line_ends_stay() -> None:
    assert text_of(text("a\x00b\x1b[31mc\td\ne\u2028f")) == "ab[31mc\td\ne\u2028f"


@given(st.text(max_size=300), st.integers(min_value=10, max_value=100))
def test_a_cut_keeps_head_and_tail(value: str, limit: int) -> None:
    shown = cut(value, limit)

    if len(value) <= limit:
        assert shown == value
    else:
        assert shown.startswith(value[: int(limit * 0.7)])
        assert shown.endswith(value[len(value) - (limit - int(limit * 0.7)) :])
