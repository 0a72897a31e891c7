"""The privacy gate: rules, the person's lists and evidence decide together, quote nothing, and never fail."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mead.router.classifier.gate import EVIDENCE_MASK, PrivacyGate

GATE = PrivacyGate()
OWN = PrivacyGate(
    words=["Project Heron", "Ana", "张伟", "diagnosis"],
    paths=["~/clients/", "/srv/secret", "*.kdbx", r"C:\Work\*\plans"],
    patterns=[r"HRN-\d{4}"],
    prefixes=["local:", "geheim"],
)
CARD = "4012 8888 8888 1881"
KEY = "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"


@pytest.mark.parametrize(
    "kind,text",
    [
        ("private_word", "what about project heron?"),
        ("private_word", "what about PROJECT_HERON?"),
        ("private_word", "p r o j e c t h e r o n"),
        ("private_word", "Pro\u200bject Her\u00adon"),
        ("private_word", "ｐｒｏｊｅｃｔ ｈｅｒｏｎ"),
        ("private_word", "myProjectHeronFile.txt"),
        ("private_word", "ask ANA about it"),
        ("private_word", "A-N-A said so"),
        ("private_word", "我和张伟见面"),
        ("private_word", "the dia gnosis"),
        ("private_path", "open ~/clients/meier.txt"),
        ("private_path", "open /home/bo/clients/meier.txt"),
        ("private_path", r"open C:\Users\bo\clients\meier.txt"),
        ("private_path", "cat /srv/secret/a /tmp/b"),
        ("private_path", "cat /SRV/secret"),
        ("private_path", "unlock keys.kdbx"),
        ("private_path", r"C:\work\2026\plans"),
        ("private_pattern", "ticket hrn-1234"),
        ("marker", "  Local: what is this?"),
        ("marker", "GEHEIM was ist das?"),
    ],
)
def test_r16_the_persons_lists_are_found_however_they_are_written(kind: str, text: str) -> None:
    assert kind in {finding.kind for finding in OWN.scan(text)}
    assert OWN.probability(text) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "the annual banana plan",
        "an apple",
        "cat /srv/secretary",
        "cat /var/srv.secret",
        "it is a local: matter",
        "HRN-12",
        "the project of the week",
    ],
)
def test_what_only_resembles_the_lists_is_passed_over(text: str) -> None:
    assert OWN.scan(text) == ()


def test_a_bad_pattern_is_a_mistake_that_is_named() -> None:
    with pytest.raises(ValueError, match=r"\(unclosed"):
        PrivacyGate(patterns=["fine", "(unclosed"])
    with pytest.raises(ValueError, match="profile"):
        PrivacyGate(profile="lax")  # type: ignore[arg-type]  # on purpose


def test_empty_entries_of_the_lists_match_nothing() -> None:
    gate = PrivacyGate(words=["", " "], paths=[""], patterns=["", "x*"], prefixes=["", " "])

    assert gate.scan("hello there") == ()


def test_evidence_covers_its_window_and_quotes_nothing() -> None:
    text = (
        "Rivers are long. " * 40
        + "Summarize our internal confidential board minutes on the planned layoffs. "
    )

    found = GATE.scan(text)

    assert [finding.kind for finding in found] == ["evidence"]
    assert found[0].masked == EVIDENCE_MASK
    assert found[0].start <= text.index("Summarize") < found[0].end


def test_strict_finds_all_that_balanced_finds() -> None:
    strict = PrivacyGate(profile="strict")
    texts = ["our quarterly numbers for the board", "I feel ill since Monday", "sort a list", KEY]

    for text in texts:
        assert len(strict.scan(text)) >= len(GATE.scan(text))


def test_the_version_is_a_short_hash() -> None:
    assert len(GATE.version) == 12
    assert int(GATE.version, 16) >= 0


@pytest.mark.parametrize(
    "kind,texts",
    [
        ("api_key", ["First half of the key: AKIAQX7Z", "Got it.", "Second half: P2MWV4TB6RND. Join them."]),
        ("api_key", ["look: ghp_16C7e42F292c69", "12E7710c838347Ae178B4a"]),
        ("card", ["Card starts 4012 8888", "and ends 8888 1881, expiry 12/29."]),
        ("card", ["4012 8888 ", " 8888 1881"]),
        ("iban", ["it begins DE89 3704 0044", "and goes on 0532 0130 00"]),
        ("password", ["my password is", "hunter2!"]),
    ],
)
def test_r16_a_value_split_over_messages_is_found(kind: str, texts: list[str]) -> None:
    assert kind not in {finding.kind for text in texts for finding in GATE.scan(text)}

    found = GATE.scan_joined(texts)

    assert kind in {finding.kind for finding in found}
    for finding in found:
        assert 0 <= finding.start < finding.end <= len(texts[-1])
    assert GATE.scan_joined(texts) == found, "the same when it is remembered"


def test_ordinary_messages_have_nothing_at_their_seams() -> None:
    assert GATE.scan_joined(["I have 12 apples", "and 30 pears", "first sort them, then add 4012 8888"]) == ()
    assert GATE.scan_joined([]) == GATE.scan_joined(["hello"]) == ()
    assert GATE.scan_joined([CARD, "thanks"]) == (), "what one message holds is for scan"


def test_an_old_seam_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    monkeypatch.setattr(
        "mead.router.classifier.gate.find_at_seam", lambda tail, head: looked.append(head) or ()
    )
    gate = PrivacyGate()
    texts = [f"message {number}" for number in range(20)]

    gate.scan_joined(texts)
    before = len(looked)
    gate.scan_joined([*texts, "one more"])

    assert (before, len(looked) - before) == (19 + 18, 2)


@given(st.text(st.characters(), max_size=2_000))
def test_any_text_is_scanned_and_offsets_lie_inside_it(text: str) -> None:
    found = OWN.scan(text)

    assert 0 <= OWN.probability(text) <= 1
    assert [finding.start for finding in found] == sorted([finding.start for finding in found])
    for finding in found:
        assert 0 <= finding.start < finding.end <= len(text)
    OWN.scan_joined([text[: len(text) // 2], text[len(text) // 2 :]])


@pytest.mark.parametrize(
    "text", ["\ud800", "\udfff card \ud800" + CARD, "a\udc00@b.com", "\x00", "%ff%d8%00"]
)
def test_broken_unicode_is_scanned_too(text: str) -> None:
    assert (CARD in text) == ("card" in {finding.kind for finding in GATE.scan(text)})


@settings(deadline=None)
@given(
    st.text(st.sampled_from("abc xyz .,\n字é"), max_size=3_000),
    st.text(st.sampled_from("abc xyz .,\n字é"), max_size=3_000),
    st.sampled_from([("card", CARD), ("api_key", KEY)]),
)
def test_r16_what_is_planted_is_found_wherever_it_stands(
    before: str, after: str, planted: tuple[str, str]
) -> None:
    kind, value = planted

    found = GATE.scan(f"{before}\n{value}\n{after}")

    assert any(
        finding.kind == kind
        and (finding.start, finding.end) == (len(before) + 1, len(before) + 1 + len(value))
        for finding in found
    )


@pytest.mark.parametrize("value", [CARD, KEY, "ada.lovelace@somewhere.org", "+49 30 901820", "hunter2!x"])
def test_t3_findings_quote_nothing(value: str) -> None:
    found = GATE.scan(f"my password is {value} today")

    assert found
    for finding in found:
        assert value not in repr(finding)
        assert len(finding.masked) == finding.end - finding.start
        assert set(finding.masked[:-2]) == {"•"}
