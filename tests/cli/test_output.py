"""What the commands write: made safe for a terminal, reasons as sentences, the line under an answer."""

from __future__ import annotations

import unicodedata
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.cli._terminal import describe, facts_of, safe
from mead.core.conversation import encode_user
from mead.core.reasons import (
    Cancelled,
    CloudUnavailable,
    Crashed,
    HttpStatus,
    MalformedResponse,
    MissingApiKey,
    Reason,
    Timeout,
    ToolsUnsupported,
    Transport,
    TurnReason,
)
from mead.core.turns import Answer, Decision
from mead.core.usage import UsageTotal

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
DECISION = Decision(
    route="local", source="forced", provider="ollama", model="llama3.1", causes=(), label="local_only"
)


def answer(text: str = "Hello.", **fields: object) -> Answer:
    return Answer(text=text, messages=encode_user("hi"), **fields)  # type: ignore[arg-type]  # by name


# safe


@pytest.mark.parametrize(
    "dangerous,shown",
    [
        ("\x1b[2J\x1b[Hgone", "[2J[Hgone"),
        ("\x1b]0;title\x07text", "]0;titletext"),
        ("\x1b]52;c;aGk=\x07", "]52;c;aGk="),
        ("\x9b2Jgone", "2Jgone"),
        ("secret\rpublic", "secretpublic"),
        ("a\b\b\bb", "ab"),
        ("a\0b\x7fc", "abc"),
        ("access\u202e txt.exe", "access txt.exe"),
        (f"a{BIDI}b", "ab"),
        ("half \ud83d of a pair", "half  of a pair"),
    ],
)
def test_what_a_terminal_acts_on_is_taken_out(dangerous: str, shown: str) -> None:
    assert safe(dangerous) == shown


@pytest.mark.parametrize(
    "text", ["plain", "two\nlines\twith a tab", "naïve — 日本語 שלום", "👩‍👩‍👧 🏳️‍🌈", "a\u00adb"]
)
def test_what_people_write_stays(text: str) -> None:
    assert safe(text) == text


@given(st.text())
def test_nothing_dangerous_is_ever_left_and_nothing_else_is_taken(text: str) -> None:
    def dangerous(ch: str) -> bool:
        return ch in BIDI or (unicodedata.category(ch) in ("Cc", "Cs") and ch not in "\n\t")

    assert safe(text) == "".join([ch for ch in text if not dangerous(ch)])


# describe


def reasons() -> list[Reason]:
    """One of every kind, with nothing said but what must be."""
    needed = {"status": 500, "cause": "refused", "error": "ValueError"}
    kinds = get_args(TurnReason)
    return [
        kind(**{name: needed[name] for name in kind.__struct_fields__ if name in needed}) for kind in kinds
    ]


@pytest.mark.parametrize("reason", reasons(), ids=lambda reason: reason.tag)
def test_every_reason_is_one_line_that_begins_with_its_tag(reason: Reason) -> None:
    line = describe(reason)

    assert line.startswith(reason.tag)
    assert line.endswith(".")
    assert "\n" not in line
    assert ".." not in line
    assert ": ." not in line


@pytest.mark.parametrize(
    "reason,line",
    [
        (
            Transport(cause="refused", detail="nothing accepts connections at 127.0.0.1:1"),
            "transport: nothing accepts connections at 127.0.0.1:1. Start the server, or correct base_url in "
            "mead.toml.",
        ),
        (
            HttpStatus(status=404, detail='model "x" not found, try pulling it first'),
            'http_status: the server answered 404 (model "x" not found, try pulling it first). Correct model '
            "or base_url in mead.toml; `mead doctor` says which models there are.",
        ),
        (
            HttpStatus(status=429, retry_after_s=7.2, detail="slow down."),
            "http_status: the server answered 429 (slow down). Try again in 7 s.",
        ),
        (
            HttpStatus(status=401),
            "http_status: the server answered 401. Check api_key in mead.toml.",
        ),
        (
            MissingApiKey(detail="anthropic needs an API key: set api_key in its slot"),
            "missing_api_key: anthropic needs an API key: set api_key in its slot. For anthropic and openai "
            "the variable ANTHROPIC_API_KEY or OPENAI_API_KEY will do.",
        ),
        (
            MalformedResponse(detail="the server's answer is no JSON"),
            "malformed_response: the server's answer is no JSON. Check provider and base_url in mead.toml.",
        ),
        (
            ToolsUnsupported(detail="it has no tools"),
            "tools_unsupported: it has no tools. Use --route cloud, another model, or --tools none.",
        ),
        (
            Timeout(limit="idle", detail="the server went silent"),
            "timeout: the server went silent. If the model may be silent for longer, raise idle_timeout_s in "
            "mead.toml.",
        ),
        (CloudUnavailable(detail="add a slot"), "cloud_unavailable: add a slot."),
        (Cancelled(), "cancelled: nothing of the turn was kept."),
        (
            Crashed(error="KeyError"),
            "crashed: KeyError was raised. This is a mistake in mead or in a provider; the lines above say "
            "where.",
        ),
    ],
    ids=lambda value: value.tag if isinstance(value, Reason) else "",
)
def test_a_reason_says_what_happened_and_what_to_do(reason: Reason, line: str) -> None:
    assert describe(reason) == line


def test_the_words_of_a_server_are_made_safe() -> None:
    assert "\x1b" not in describe(HttpStatus(status=500, detail="\x1b[2Jgone"))


# The line under an answer


def test_the_facts_are_route_model_tokens_and_time() -> None:
    usage = UsageTotal(input_tokens=12, output_tokens=3, provider_calls=1)

    assert facts_of(answer(usage=usage, decision=DECISION), 1.26) == (
        "local · llama3.1 · 12 tokens in, 3 out · 1.3 s"
    )


def test_tokens_that_are_unknown_are_not_told_as_zero() -> None:
    some = UsageTotal(input_tokens=12, provider_calls=2, unknown=True)
    none = UsageTotal(provider_calls=1, unknown=True)

    assert facts_of(answer(usage=some)) == "at least 12 tokens in, 0 out"
    assert facts_of(answer(usage=none)) == "tokens unknown"


def test_what_was_withheld_cut_off_or_empty_is_told() -> None:
    withheld = Decision(
        route="cloud", source="forced", provider="p", model=None, causes=(), label="shareable", withheld=2
    )

    assert facts_of(answer(" ", decision=withheld, stop_reason="max_tokens")) == (
        "cloud · p · 2 local turns withheld · cut off by the token limit · the answer is empty"
    )


def test_an_answer_without_a_decision_has_no_facts() -> None:
    assert facts_of(answer()) == ""
