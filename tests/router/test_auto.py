"""The classifier of `auto`: privacy decides alone, then what there is and lacks, then the difficulty."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.core.conversation import encode, encode_open
from mead.core.messages import (
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
)
from mead.core.options import Options, ResponseFormat, TurnOptions
from mead.core.turns import Cause, Finding, Turn, Verdict
from mead.router import AutoClassifier
from mead.router.classifier import ClassifierInput, judge, newest_input, scanner, texts_of
from mead.router.classifier.difficulty import Difficulty, DifficultyModel
from mead.router.classifier.gate import PrivacyGate
from mead.router.classifier.make import make_classifier
from mead.router.classifier.traffic import ORDINARY_TURNS, REMEMBERED_TURNS, Traffic
from mead.settings import ClassifierSettings, Settings
from support import newest, past, slots

CLASSIFIER = AutoClassifier(gate=PrivacyGate(words=["Project Heron", "diagnosis"]))
CARD = "4012 8888 8888 1881"
EASY = "hello, how are you?"
HARD = (
    "Write a Python function that merges overlapping intervals, analyse its complexity, and prove that it is "
    "correct:\n```python\ndef merge(intervals):\n    ...\n```"
)


def verdict(*texts: str, **facts: object) -> Verdict:
    return CLASSIFIER.classify(ClassifierInput(question=texts[0], texts=texts, **facts))  # type: ignore[arg-type]  # by name


PRIVATE = [
    ("card", f"my card is {CARD}"),
    ("iban", "pay to DE89 3704 0044 0532 0130 00 please"),
    ("ssn", "her number is 078-05-1120"),
    ("email", "write to ada.lovelace@somewhere.org"),
    ("phone", "call +49 30 901820"),
    ("private_key", "-----BEGIN OPENSSH PRIVATE KEY-----\nabc"),
    ("api_key", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"),
    ("password", "the password is hunter2!"),
    ("private_word", "what about project heron?"),
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
        assert text[finding.start : finding.end] not in repr(found)


@pytest.mark.parametrize("marker", ["private:", "[local]", "Confidential: ", "[PRIVATE]"])
def test_r01_a_marker_keeps_a_turn_local(marker: str) -> None:
    assert verdict(marker + HARD).private


def test_a_part_of_a_class_is_no_marker() -> None:
    code = "Explain this.\n\nclass A {\npublic:\n  int a();\n\nprivate:\n  int b;\n};"

    assert not verdict(code).private
    assert verdict("Explain this.\n\nprivate: my plan").private


def test_r01_a_marker_sends_a_turn_to_the_cloud() -> None:
    assert verdict("[cloud] hello").route == "cloud"
    assert verdict(f"[cloud] hello {CARD}").route == "local", "privacy comes first"


def test_r01_small_talk_is_local_and_hard_work_is_for_the_cloud() -> None:
    easy, hard = verdict(EASY), verdict(HARD)

    assert (easy.route, hard.route) == ("local", "cloud")
    assert hard.score is not None
    assert hard.threshold is not None
    assert hard.score >= hard.threshold == 0.7
    assert hard.causes[0].code == "difficulty"
    assert hard.contributions
    assert hard.version


def test_a_share_of_nothing_is_local_and_of_everything_is_cloud() -> None:
    never, always = AutoClassifier(cloud_share=0), AutoClassifier(cloud_share=1)
    turn = ClassifierInput(question=HARD, texts=(HARD,))

    assert never.classify(turn).route == "local"
    assert always.classify(turn).route == "cloud"


def test_a_share_of_nothing_is_local_whatever_the_score(monkeypatch: pytest.MonkeyPatch) -> None:
    hardest = Difficulty(gain=1.0, score=1.0, uncertain=False, contributions=())
    monkeypatch.setattr(DifficultyModel, "judge", lambda *_, **__: hardest)
    turn = ClassifierInput(question=HARD, texts=(HARD,))

    assert AutoClassifier(cloud_share=0).classify(turn).route == "local"
    assert AutoClassifier(cloud_share=0.01).classify(turn).route == "cloud"


def test_a_turn_that_cannot_be_judged_stays_local() -> None:
    text = "ξψζ θγλ ωφχ"
    found = AutoClassifier(cloud_share=1).classify(ClassifierInput(question=text, texts=(text,)))

    assert found.route == "local"
    assert found.causes[0].code == "uncertain"
    assert not found.private


def test_r03_auto_takes_the_slot_that_there_is() -> None:
    assert verdict(EASY, has_local=False).route == "cloud"
    assert verdict(EASY, has_local=False).causes[0].code == "only_cloud"
    assert verdict(HARD, has_cloud=False).route == "local"
    assert verdict(CARD, has_local=False).route == "local", "private: never by default"


def test_what_the_local_model_lacks_comes_before_the_score_and_after_privacy() -> None:
    lacks = Cause("local_tools", "It cannot use tools.")

    assert verdict(EASY, lacks=lacks).causes == (lacks,)
    assert verdict(EASY, lacks=lacks).route == "cloud"
    assert verdict(CARD, lacks=lacks).route == "local"


def test_r16_what_is_known_to_be_private_needs_no_rule() -> None:
    found = verdict("the weather is fine", known_private=(Finding("local_text", 0, 0, "•••"),))

    assert found.private
    assert "only the local model has seen" in found.causes[0].text


def test_r16_a_secret_in_two_messages_is_found_where_they_meet() -> None:
    first, second = "First half of the key: AKIAIOSF", "and the second half: ODNN7EXAMPLE"

    kinds = {finding.kind for finding in verdict(second, earlier=(first,)).findings}

    assert "api_key" in kinds
    assert "api_key" not in {
        finding.kind for finding in (*verdict(first).findings, *verdict(second).findings)
    }


@pytest.mark.parametrize(
    "first,second",
    [
        ("Number part one: 4012 8888", "Second part: 8888 1881. Is the checksum right?"),
        ("Use key AKIAIOSFOD", "NN7QPLMXZK please"),
    ],
)
def test_r16_a_secret_in_two_messages_of_one_request_is_found(first: str, second: str) -> None:
    asked = [Message("user", first), Message("assistant", "ok"), Message("user", second)]
    told = [
        Message("user", first),
        Message("assistant", (ToolUseBlock("c1", "next", {}),)),
        Message("user", (ToolResultBlock("c1", second),)),
    ]

    put_together = [Message("user", first), Message("user", second)]

    for messages in (asked, told, put_together):
        turn = Turn(messages=encode(messages))
        assert CLASSIFIER.classify(newest_input([turn], TurnOptions(), slots())).private


@pytest.mark.parametrize("prefix", ["", "\ufeff", "\u200b", "Some context.\n\n", "Some context.\r\n \r\n  "])
@pytest.mark.parametrize(
    "marker", ["private: ", "[Local] ", "confidential\uff1a", "\uff50rivate:", "ACME-only "]
)
def test_r16_a_marker_counts_at_the_start_of_every_paragraph(prefix: str, marker: str) -> None:
    classifier = AutoClassifier(gate=PrivacyGate(prefixes=["acme-only"]))
    text = f"{prefix}{marker}the picnic is on Friday"

    assert classifier.classify(ClassifierInput(question=text, texts=(text,))).private


@pytest.mark.parametrize("text", ["it is private: no", "a list:\nprivate: no", "a list:\r\nlocal: no"])
def test_a_marker_inside_a_paragraph_is_none(text: str) -> None:
    assert "marker" not in {cause.code for cause in verdict(text).causes}


def test_r16_a_marker_survives_that_messages_are_put_together() -> None:
    brought = [Message("user", "Some context."), Message("user", "private: say hello")]

    found = CLASSIFIER.classify(newest_input([Turn(messages=encode(brought))], TurnOptions(), slots()))

    assert found.private


def test_the_marker_for_the_cloud_counts_at_the_start_of_the_question_only() -> None:
    assert verdict("\ufeffcloud: hello").causes[0].code == "marker"
    assert verdict(f"{EASY}\n\ncloud: hello").causes[0].code != "marker"
    assert verdict(EASY, "cloud: hello").causes[0].code != "marker"


@pytest.mark.parametrize(
    "call_id",
    ["call_4012888888881881", "4012-8888-8888-1881", "call_4012-8888-8888-1881", "ada@somewhere.org"],
)
def test_r16_an_id_of_a_call_is_looked_at(call_id: str) -> None:
    messages = [
        Message("user", EASY),
        Message("assistant", (ToolUseBlock(call_id, "clock", {}),)),
        Message("user", (ToolResultBlock(call_id, "noon"),)),
    ]

    looked_at = newest_input([Turn(messages=encode(messages))], TurnOptions(), slots())

    assert CLASSIFIER.classify(looked_at).private


@pytest.mark.parametrize(
    "call_id",
    [
        *(
            "toolu_01A09q90qw90lq917835lq9X",
            "call_62136355",
            "call_1",
            "call_abcdefghijKLMNOP12345678",
            "a1b2C3d4E",
        ),
        *(
            "fc_68a1b2c3d4e5f60718293a4b5c6d7e8f9012345678901234",
            "chatcmpl-tool-0123456789abcdef0123456789abcdef",
        ),
        *("functions.clock:0", "0b7f9a52-3c1d-4e8f-9a6b-1c2d3e4f5a6b", "function-call-4012888888881881234"),
    ],
)
def test_the_ids_that_services_make_are_not_private(call_id: str) -> None:
    messages = [Message("assistant", (ToolUseBlock(call_id, "clock", {}),))]

    assert texts_of(messages)[0] == ["clock", "{}"]


def test_an_attachment_that_cannot_be_looked_into_is_private() -> None:
    found = verdict("what is this?", unreadable=1)

    assert found.private
    assert found.causes[0].code == "unreadable"


def test_a_picture_is_counted_and_a_text_that_is_attached_is_read() -> None:
    blocks = (
        ImageBlock("image/png", b"x"),
        DocumentBlock("text/plain", CARD.encode()),
        TextBlock("what?"),
    )
    turn = Turn(messages=encode([Message("user", blocks)]))

    looked_at = newest_input([turn], TurnOptions(), slots())

    assert (looked_at.texts, looked_at.unreadable) == ((CARD, "what?"), 1)
    assert looked_at.question == "what?"


def test_of_a_history_that_a_client_brings_the_last_question_is_judged_and_all_of_it_scanned() -> None:
    messages = [Message("user", f"my card is {CARD}"), Message("assistant", "Noted."), Message("user", EASY)]

    looked_at = newest_input([Turn(messages=encode(messages))], TurnOptions(), slots())

    assert looked_at.question == EASY
    assert CLASSIFIER.classify(looked_at).private
    marked = [Message("user", "private: hello"), Message("assistant", "Hi."), Message("user", HARD)]
    assert CLASSIFIER.classify(newest_input([Turn(messages=encode(marked))], TurnOptions(), slots())).private


def test_the_turns_own_system_prompt_is_looked_at_too() -> None:
    options = TurnOptions(options=Options(system="the patient's diagnosis is in the file"))

    assert CLASSIFIER.classify(newest_input([newest("hello")], options, slots())).private


def test_only_messages_that_a_cloud_model_may_see_are_given_as_earlier_ones() -> None:
    turns = [past("one", "1"), past("two", "2", label="local_only"), newest("three")]

    assert newest_input(turns, TurnOptions(), slots()).earlier == ("one",)


IBAN = "DE89 3704 0044 0532 0130 00"


@pytest.mark.parametrize(
    "messages,options",
    [
        ([Message("assistant", (ToolUseBlock("1", "pay", {"to": [{"iban": IBAN}]}),))], {}),
        ([Message("assistant", (ToolUseBlock("1", "pay", {IBAN: 1}),))], {}),
        ([Message("assistant", (ToolUseBlock("1", "pay", {}, malformed=IBAN),))], {}),
        ([Message("user", (DocumentBlock("text/plain", b"hello", name=f"{IBAN}.txt"),))], {}),
        ([], {"client_tools": (Tool("pay", f"Pays to {IBAN}.", {"type": "object"}),)}),
        ([], {"client_tools": (Tool("pay", None, {"type": "object", "default": IBAN}),)}),
        ([], {"options": Options(stop=(IBAN,))}),
        ([], {"options": Options(response_format=ResponseFormat(schema={"const": IBAN}))}),
        ([], {"options": Options(extra={"metadata": {"account": IBAN}})}),
    ],
)
def test_r16_whatever_would_be_sent_besides_words_is_looked_through_too(
    messages: list[Message], options: dict[str, object]
) -> None:
    brought = [Message("user", "hello"), *messages, Message("user", "go on")]
    turn = Turn(messages=encode_open(brought))

    looked_at = newest_input([turn], TurnOptions(**options), slots())  # type: ignore[arg-type]  # by name

    assert CLASSIFIER.classify(looked_at).private
    assert not CLASSIFIER.classify(newest_input([newest("go on")], TurnOptions(), slots())).private


class Counting(PrivacyGate):
    """Counts what it is given to scan."""

    def __init__(self) -> None:
        super().__init__()
        self.scanned: list[str] = []

    def scan(self, text: str) -> tuple[Finding, ...]:
        self.scanned.append(text)
        return super().scan(text)


def test_each_text_is_scanned_once() -> None:
    gate = Counting()
    classifier = AutoClassifier(gate=gate)

    for text in ("one", "two", "one", "one"):
        classifier.scan(text)

    assert gate.scanned == ["one", "two"]


class Broken(PrivacyGate):
    def scan(self, text: str) -> tuple[Finding, ...]:
        raise RecursionError("too deep: " + text)


def test_r16_a_scan_that_raises_has_found_something(caplog: pytest.LogCaptureFixture) -> None:
    classifier = AutoClassifier(gate=Broken())

    found = judge(classifier, ClassifierInput(question="", texts=("something private",)))

    assert found.private
    assert found.route == "local"
    assert scanner(classifier)("something private")
    assert "something" not in caplog.text
    assert "RecursionError" in caplog.text


def test_a_share_out_of_range_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="cloud_share"):
        AutoClassifier(cloud_share=1.5)


@given(st.text(max_size=2000))
def test_any_text_gets_a_verdict(text: str) -> None:
    found = verdict(text)

    assert found.score is None or 0 <= found.score <= 1
    assert found.causes
    assert not found.private or found.route == "local"


# What it learns


def test_the_threshold_follows_the_persons_own_turns() -> None:
    traffic = Traffic("v1")
    assert traffic.threshold(0.3) == pytest.approx(0.7)

    for _ in range(1000):
        traffic.note(0.9)

    assert 0.9 < traffic.threshold(0.3) < 0.91
    assert traffic.threshold(0) == 1.0
    assert traffic.threshold(1) == pytest.approx(0.0)


@given(st.lists(st.floats(0, 1), max_size=300), st.floats(0, 1))
def test_about_the_wanted_share_is_over_the_threshold(scores: list[float], share: float) -> None:
    traffic = Traffic("v1")
    for score in scores:
        traffic.note(score)

    threshold = traffic.threshold(share)

    # Scores of one step of a hundred cannot be told apart, and ordinary turns count beside these.
    over = sum([score >= threshold + 0.01 for score in scores])
    assert over <= share * (len(scores) + ORDINARY_TURNS) + 1e-6


def test_older_turns_fade() -> None:
    traffic = Traffic("v1")
    for _ in range(REMEMBERED_TURNS):
        traffic.note(0.1)
    before = traffic.threshold(0.3)
    for _ in range(3 * REMEMBERED_TURNS):
        traffic.note(0.9)

    assert before < 0.2
    assert traffic.threshold(0.3) > 0.9


def test_older_turns_fade_in_the_file_too(tmp_path: Path) -> None:
    traffic = Traffic("v1", file := tmp_path / "traffic.json")
    for _ in range(5 * REMEMBERED_TURNS):
        traffic.note(0.1)
    for _ in range(3 * REMEMBERED_TURNS):
        traffic.note(0.9)
    traffic.save()

    assert sum(msgspec.json.decode(file.read_bytes())["counts"]) < REMEMBERED_TURNS
    assert Traffic("v1", file).threshold(0.3) > 0.9


def test_what_was_learned_is_kept_and_shared(tmp_path: Path) -> None:
    file = tmp_path / "data" / "traffic.json"
    first, second = Traffic("v1", file), Traffic("v1", file)
    for _ in range(20):
        first.note(0.95)
        second.note(0.95)
    first.save()
    second.save()

    again = Traffic("v1", file)

    assert again.threshold(0.1) == second.threshold(0.1) > Traffic("v1").threshold(0.1)
    assert sum(msgspec.json.decode(file.read_bytes())["counts"]) == 40
    assert file.stat().st_mode & 0o777 == 0o600
    assert Traffic("v2", file).threshold(0.1) == pytest.approx(0.9), "other weights, other scores"


@pytest.mark.parametrize(
    "data", [b"", b"{", b'{"version":"v1","counts":[1]}', b'{"version":"v1","counts":[-1]}']
)
def test_a_broken_file_is_no_file(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "traffic.json"
    file.write_bytes(data)

    assert Traffic("v1", file).threshold(0.3) == pytest.approx(0.7)


async def test_the_settings_make_the_classifier(tmp_path: Path) -> None:
    chosen = ClassifierSettings(cloud_share=1, private_prefixes=("home:",), private_words=("heron",))
    settings = Settings(classifier=chosen, data_folder=tmp_path)
    classifier = make_classifier(settings, keeps=True)

    found = classifier.classify(ClassifierInput(question=HARD, texts=(HARD,)))
    classifier.observe(found)
    await classifier.aclose()

    assert found.route == "cloud"
    assert classifier.scan("home: what is for dinner?")
    assert classifier.scan("the HERON plan")
    assert (tmp_path / "traffic.json").exists()
    await make_classifier(settings).aclose()
