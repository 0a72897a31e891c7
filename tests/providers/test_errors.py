"""Error answers of every shape become reasons, and their details are clean."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.core.messages import (
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from mead.core.reasons import HttpStatus, InvalidOptions, ToolsUnsupported
from mead.providers._errors import MAX_DETAIL_CHARS, Sent, reason_in_body, reason_of
from mead.providers.http import HttpReply

KEY = "sk-proj-0123456789abcdef"
CARD = "4111-1111-1111-1111"
TALK = [
    Message("user", f'My card is "{CARD}",\nmy dog is Waldo the Great and I live at Elm Street 1428.'),
    Message("assistant", (TextBlock("I see."), ToolUseBlock("a", "pay", {"to": "Ms Eleanor Rigby"}))),
    Message("user", (ToolResultBlock("a", "paid; the code is QX-77-Z9, mail to jo@home.example"),)),
]


def sent(*, tools: bool = False, system: str | None = None) -> Sent:
    return Sent(TALK, system=system, secret=KEY, tools=tools)


def reply(body: object, status: int = 500, retry_after_s: float | None = None) -> HttpReply:
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return HttpReply(status=status, body=raw, retry_after_s=retry_after_s)


def cleaned(text: str) -> str:
    return sent(system="You are the butler of Castle Rackrent.").clean(text)


# Shapes


@pytest.mark.parametrize(
    "body, detail, code",
    [
        ({"error": {"message": "no", "type": "t", "code": "c"}}, "no", "c"),
        ({"error": {"message": "no", "type": "t", "code": 500}}, "no", "t"),
        ({"error": {"message": "no", "type": "t", "code": None}}, "no", "t"),
        ({"type": "error", "error": {"type": "t", "message": "no"}, "request_id": "r"}, "no", "t"),
        ({"error": "no"}, "no", None),
        ({"message": "no"}, "no", None),
        ({"detail": "no"}, "no", None),
        ({"detail": [{"loc": ["body"], "msg": "bad"}]}, '[{"loc":["body"],"msg":"bad"}]', None),
        ([{"error": {"message": "no", "code": 500}}], "no", None),
        ({"error": {"message": "no", "details": {"error_code": "spent"}, "type": "t"}}, "no", "spent"),
        (b"plain words", "plain words", None),
        (b"<html>big page</html>", None, None),
        (b"", None, None),
        (b"\xff\xfe", "\ufffd\ufffd", None),
        ({}, None, None),
        ([], None, None),
        ("no", None, None),
        (7, None, None),
        ({"error": 7}, None, None),
        ({"error": {"message": {"deep": "no"}}}, '{"deep":"no"}', None),
    ],
)
def test_every_shape_of_an_error_body_is_read(body: object, detail: str | None, code: str | None) -> None:
    assert reason_of(reply(body), sent()) == HttpStatus(status=500, detail=detail, code=code)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["error", "message", "type", "code", "details", "error_code", "status"]),
                inner,
            )
        ),
    ),
    st.sampled_from([400, 404, 429, 500]),
)
def test_no_body_makes_it_raise(body: Any, status: int) -> None:
    assert reason_of(reply(body, status), sent(tools=True)).tag in (
        "http_status",
        "invalid_options",
        "tools_unsupported",
    )
    assert reason_in_body(body, sent()).tag in ("http_status", "invalid_options")


@pytest.mark.parametrize(
    "error, status",
    [
        ({"message": "no", "code": 502}, 502),
        ({"message": "no", "code": "429"}, 429),
        ({"message": "no", "status": 503}, 503),
        ({"message": "no", "status_code": 401}, 401),
        ({"type": "overloaded_error"}, 529),
        ({"type": "rate_limit_error"}, 429),
        ({"type": "authentication_error"}, 401),
        ({"code": "insufficient_quota"}, 429),
        ({"type": "api_error"}, 500),
        ({"type": "never heard of", "code": 200}, 500),
        ({"code": True}, 500),
        ({"code": "²"}, 500),
        ({"code": "9" * 5000}, 500),
        ("it broke", 500),
        (None, 500),
    ],
)
def test_an_error_under_status_200_has_the_status_that_it_names(error: object, status: int) -> None:
    found = reason_in_body(error, sent())

    assert isinstance(found, HttpStatus)
    assert found.status == status


def test_an_invalid_request_under_status_200_is_invalid_options() -> None:
    found = reason_in_body({"type": "invalid_request_error", "message": "no"}, sent())

    assert found == InvalidOptions(detail="no", code="invalid_request_error")


@pytest.mark.parametrize(
    "message",
    [
        "registry.ollama.ai/library/gemma:latest does not support tools",
        "This model does not support function calling",
        "No endpoints found that support tool use. To learn more",
        '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        "Function calling and tools are not supported for this model",
        "tools param requires --jinja flag",
        "Tool use is not supported",
        "tool calling is not enabled on this server",
    ],
)
@pytest.mark.parametrize("status", [400, 404, 500])
def test_a_model_without_tools_is_known_by_the_servers_words(message: str, status: int) -> None:
    with_tools = reason_of(reply({"error": message}, status), sent(tools=True))
    without = reason_of(reply({"error": message}, status), sent())

    assert isinstance(with_tools, ToolsUnsupported)
    assert not isinstance(without, ToolsUnsupported)


@pytest.mark.parametrize(
    "message",
    ["the tool weather is not in the list", "tools[0].name: does not match", "does not support thinking"],
)
def test_other_complaints_about_tools_are_not_that(message: str) -> None:
    assert isinstance(reason_of(reply({"error": message}, 400), sent(tools=True)), InvalidOptions)


def test_retry_after_is_passed_on() -> None:
    assert reason_of(reply({}, 429, 12.5), sent()) == HttpStatus(status=429, retry_after_s=12.5)


def test_a_redirect_says_what_to_do() -> None:
    found = reason_of(reply(b"<html>", 308), sent())

    assert "base_url" in (found.detail or "")


# Clean details (T3)


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {KEY}.",
        f"Bearer {KEY}",
        f'{{"key":"{KEY}"}}',
        f"x{KEY}y",
        "z" * (MAX_DETAIL_CHARS - 10) + KEY,
        "z " * 1995 + KEY,
    ],
    ids=["sentence", "bearer", "json", "inside", "at the end", "far behind"],
)
def test_t3_no_detail_carries_the_key_or_half_of_it(text: str) -> None:
    for body in ({"error": text}, text.encode()):
        assert KEY[:10] not in (reason_of(reply(body), sent()).detail or "")


@pytest.mark.parametrize(
    "text",
    [
        f"bad input: {CARD}",
        f"value={CARD},",
        f"[{{'role': 'user', 'content': 'My card is \"{CARD}\"'}}]",
        'content: "My card is \\"4111-1111-1111-1111\\",\\nmy dog is Waldo the Great and"',
        "cannot parse <my dog is Waldo the Great and I live>",
        "near 'Elm Street 1428.'",
        "unknown person:Ms Eleanor Rigby!",
        "code=QX-77-Z9",
        "rejected (jo@home.example)",
        "prompt 'You are the butler of Castle Rackrent.' is too long",
        "the prompt was MY DOG, no: my   dog\tis\nWaldo the Great",
    ],
)
def test_t3_no_detail_quotes_the_conversation(text: str) -> None:
    detail = cleaned(text)

    for secret in ("4111", "Waldo", "Elm Street", "Rigby", "QX-77", "jo@home", "Rackrent"):
        assert secret not in detail
    assert "…" in detail


@pytest.mark.parametrize(
    "text",
    [
        "model 'llama3.1' not found, try pulling it first",
        "request (5031 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "Unsupported value: 'messages[0].role' does not support 'system' with this model.",
        "max_tokens: 9000 > 8192, which is the maximum for m",
        "You exceeded your current quota, please check your plan and billing details.",
    ],
)
def test_the_servers_own_words_stay(text: str) -> None:
    assert cleaned(text) == text


@given(
    st.lists(st.text("abcdeé世", min_size=3, max_size=8), min_size=4, max_size=12),
    st.sampled_from([" ", ", ", "\n", " = "]),
    st.sampled_from(["'", '"', "(", "x="]),
)
def test_t3_a_message_that_is_quoted_whole_never_shows(words: list[str], between: str, before: str) -> None:
    said = between.join(words)
    clean = Sent([Message("user", said)], system=None, secret=None, tools=False).clean(f"near {before}{said}")

    assert clean == f"near {before}…"


def test_t3_no_detail_quotes_what_was_attached() -> None:
    picture, paper = bytes(range(256)), b"The treasure is buried under the old oak."
    blocks = (TextBlock("Look."), ImageBlock("image/png", picture), DocumentBlock("text/plain", paper))
    clean = Sent([Message("user", blocks)], system=None, secret=None, tools=False).clean

    assert clean(f"bad image: {base64.b64encode(picture).decode()}") == "bad image: …"
    assert clean("bad document: 'treasure is buried under the old'") == "bad document: '…'"


@pytest.mark.parametrize("text", ["-" * 200_000, "a-" * 100_000, "a.b+" * 50_000, "\\" * 200_000])
def test_no_conversation_makes_cleaning_slow(text: str) -> None:
    started = time.process_time()
    Sent([Message("user", text)], system=None, secret=None, tools=False).clean("it broke " + text)

    assert time.process_time() - started < 2


def test_details_are_one_short_line() -> None:
    detail = cleaned("one\n\ttwo \x1b[31m three\x00 " + "word " * 2000)

    assert detail.startswith("one two [31m three word")
    assert len(detail) <= MAX_DETAIL_CHARS
    assert detail.isprintable()


def test_a_huge_error_is_cleaned_in_no_time() -> None:
    talk = [Message("user", "word " * 20_000)]
    detail = Sent(talk, system=None, secret=KEY, tools=False).clean("word " * 200_000)

    assert detail.strip() == "…"


@pytest.mark.parametrize(
    "code", [KEY, "x" * 65, "two words", "a\nb", "", "<b>", f"x{KEY}", "QX-77-Z9", "é"], ids=repr
)
def test_t3_a_code_is_a_short_word_of_the_server_or_none(code: str) -> None:
    for key in ("code", "type"):
        error = {"message": "no", key: code}

        assert getattr(reason_of(reply({"error": error}, 400), sent()), "code", "") is None
        assert getattr(reason_in_body({**error, "status": 500}, sent()), "code", "") is None


def test_cleaning_looks_at_a_long_conversation_once_for_text_and_code() -> None:
    asked = []

    class Counted(list[Message]):
        def __iter__(self) -> Iterator[Message]:
            asked.append(1)
            return super().__iter__()

    long = Sent(Counted(TALK), system=None, secret=KEY, tools=False)
    error = {"message": "bad input", "code": "bad_input"}

    assert reason_of(reply({"error": error}, 400), long) == InvalidOptions(
        detail="bad input", code="bad_input"
    )
    assert len(asked) == 1
