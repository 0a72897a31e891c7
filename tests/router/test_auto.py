"""The rule classifier: what is private stays local, placeholders do not count, and it says why."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.core.conversation import encode
from mead.core.messages import ImageBlock, Message, TextBlock
from mead.core.options import Options, TurnOptions
from mead.core.turns import Turn, Verdict
from mead.router import RuleClassifier
from mead.router.classifier import ClassifierInput, newest_input
from mead.router.classifier.patterns import find, mask
from mead.router.classifier.rules import difficulty
from support import newest, slots

CLASSIFIER = RuleClassifier(private_words=["Project Heron", "diagnosis"])


def verdict(*texts: str, **facts: object) -> Verdict:
    return CLASSIFIER.classify(ClassifierInput(texts=texts, **facts))  # type: ignore[arg-type]  # by name


PRIVATE = [
    ("card", "my card is 4012 8888 8888 1881"),
    ("card", "4012-8888-8888-1881"),
    ("iban", "pay to DE89 3704 0044 0532 0130 00 please"),
    ("ssn", "her number is 078-05-1120"),
    ("email", "write to ada.lovelace@somewhere.org"),
    ("phone", "call +49 30 901820"),
    ("private_key", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc"),
    ("api_key", "use sk-" + "live-4f9c2a7d81b6e035ad"),
    ("api_key", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
    ("password", "the password is hunter2!"),
    ("password", "api_key = 'f81d4fae7dec'"),
    ("private_word", "what about project heron?"),
]
HARMLESS = [
    "what is the capital of Norway?",
    "my password is wrong, what now?",
    "write to somebody@example.com",
    "card 4012 8888 8888 1882",
    "1234 5678 9012 3456 7890 1234",
    "set api_key=YOUR_API_KEY",
    "it was 2026-12-01 12:30:45.123456789",
    "version 1.2.3.4, build 20261201",
    "call 555-0100",
    "a key point is the token limit",
]


@pytest.mark.parametrize("kind,text", PRIVATE)
def test_r16_what_is_private_stays_local_and_the_kind_is_said(kind: str, text: str) -> None:
    found = verdict(text)

    assert found.private
    assert found.route == "local"
    assert kind in {finding.kind for finding in found.findings}
    assert any(kind in cause.text for cause in found.causes)


@pytest.mark.parametrize("kind,text", PRIVATE)
def test_t3_a_verdict_quotes_nothing(kind: str, text: str) -> None:
    found = verdict(text)

    for finding in found.findings:
        value = text[finding.start : finding.end]
        assert len(value) >= 4
        assert value not in repr(found)


@pytest.mark.parametrize("text", HARMLESS)
def test_what_only_looks_private_is_passed_over(text: str) -> None:
    assert not verdict(text).private, find(text)


@pytest.mark.parametrize("marker", ["private:", "[local]", "Confidential: ", "[PRIVATE]"])
def test_r01_a_marker_keeps_a_turn_local(marker: str) -> None:
    assert verdict(marker + " design a compiler, step by step, and prove it").private


def test_r01_a_marker_sends_a_turn_to_the_cloud() -> None:
    assert verdict("[cloud] hello").route == "cloud"
    assert verdict("[cloud] hello 4012 8888 8888 1881").route == "local", "privacy comes first"


def test_r01_small_talk_is_local_and_hard_work_is_for_the_cloud() -> None:
    easy = verdict("hello, how are you?")
    hard = verdict(
        "Analyse this code, explain why it is slow, and derive its complexity:\n```python\ndef f(n): ...\n```"
    )

    assert (easy.route, hard.route) == ("local", "cloud")
    assert easy.score < 0.5 <= hard.score
    assert "threshold" in hard.causes[0].text


def test_r03_auto_takes_the_slot_that_there_is() -> None:
    assert verdict("hello", has_local=False).route == "cloud"
    assert verdict("hello", has_local=False).causes[0].code == "only_cloud"
    assert verdict("x" * 5000, has_cloud=False).route == "local"
    assert verdict("4012 8888 8888 1881", has_local=False).route == "local", "private: never by default"


def test_an_attachment_cannot_be_looked_into_so_it_is_private() -> None:
    found = verdict("what is this?", unreadable=1)

    assert found.private
    assert found.causes[0].code == "unreadable"


def test_the_turns_own_system_prompt_is_looked_at_too() -> None:

    options = TurnOptions(options=Options(system="the patient's diagnosis is in the file"))

    assert CLASSIFIER.classify(newest_input(newest("hello"), options, slots())).private


def test_attachments_are_counted() -> None:

    turn = Turn(messages=encode([Message("user", (ImageBlock("image/png", b"x"), TextBlock("what?")))]))

    looked_at = newest_input(turn, TurnOptions(), slots())

    assert (looked_at.texts, looked_at.unreadable) == (("what?",), 1)


def test_a_threshold_out_of_range_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="threshold"):
        RuleClassifier(threshold=1.5)


@given(st.text(max_size=3000))
def test_any_text_gets_a_verdict(text: str) -> None:
    found = verdict(text)

    assert 0 <= found.score <= 1
    assert found.causes
    assert not found.private or found.route == "local"
    assert 0 <= difficulty(text) <= 1


@given(st.text(min_size=1))
def test_a_masked_value_keeps_its_length_and_hides_its_text(value: str) -> None:
    masked = mask(value)

    assert len(masked) == len(value)
    assert value[:-2] not in masked or not value[:-2] or set(value[:-2]) == {"•"}


REPEATED = [
    *("SELECT x ", "def a", "class ", "fn a", "private ", "`", "=", "#include", "[", " ", "?", "prove "),
    *("1 ", "1-", "1", "4111 1111 ", "AA11 ", "AA11 A ", "AB12" + 40 * "C" + " ", "111-11-", "+1 ", "+1(1)"),
    *("a@", "a.", "a@a.", "a.b@c", "(111) 111-", "@", "-----BEGIN A ", "-----BEGIN ", "-", "sk-", "sk-a-"),
    *("eyJ-", "eyJ", "eyJaaaaaaaaaa.", "eyJaaaaaaaaaa.eyJ", "xoxb-", "AIza-", "ghp_", "glpat-", "AKIA"),
    *("password ", "password:", "token is ", "secret key ", "pin = ", "pin", "hero", "Project "),
]


@pytest.mark.parametrize("before", ["", "a@", "password=1 "])
@pytest.mark.parametrize("repeated", REPEATED)
def test_no_text_makes_a_look_at_it_slow(before: str, repeated: str) -> None:
    text = before + repeated * (200_000 // len(repeated)) + "!"
    started = time.process_time()

    verdict(text)

    # It takes 0.1 s; a pattern whose time grows with the square of the length takes minutes.
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "kind,text",
    [
        ("iban", "PAY TO DE89370400440532013000 AND SAY THANKS"),
        ("iban", "DE89 3704 0044 0532 0130 00 I think"),
        ("iban", "it is CH9300762011623852957."),
        ("iban", "DE89 370400440532013000"),
        ("api_key", "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlMTIz"),
        ("api_key", "x-eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlMTIz"),
    ],
)
def test_r16_what_is_private_is_found_at_the_end_of_a_long_text_too(kind: str, text: str) -> None:
    assert kind in {finding.kind for finding in find("word " * 40_000 + text)}


def test_code_makes_a_text_harder() -> None:
    assert difficulty("SELECT name FROM people") > difficulty("choose a name among people")
    assert difficulty("word " * 3_000 + "SELECT name FROM people") > difficulty("word " * 3_000)
