"""The evidence classifier: windows cover the text, digits are masked, training gives the same bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.router.classifier.evidence import (
    BUCKETS,
    WINDOW_CHARS,
    EvidenceFile,
    decode,
    features,
    load,
    windows,
)

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "privacy"
WEIGHTS = ROOT / "src" / "mead" / "router" / "classifier" / "weights"

needs_data = pytest.mark.skipif(not DATA.exists(), reason="the privacy data are not at hand")


@given(st.text(st.sampled_from("ab .!?\n。字1"), max_size=2_000))
def test_windows_are_short_and_leave_out_nothing_but_spaces(text: str) -> None:
    parts = list(windows(text))

    seen = set()
    for start, end in parts:
        assert 0 <= start < end <= len(text)
        assert end - start <= WINDOW_CHARS
        seen.update(range(start, end))
    assert not "".join([ch for place, ch in enumerate(text) if place not in seen]).strip()
    assert sum([end - start for start, end in parts]) <= 2 * len(text)


def test_which_digits_stand_in_a_text_makes_no_difference() -> None:
    assert features("call 4831 at 12:30") == features("call 9027 at 45:11")
    assert features("key a8f3c9") == features("key 77zz0b")


def test_names_are_masked_in_pairs_of_words() -> None:
    one, other = features("yesterday Anna was ill"), features("yesterday Farid was ill")

    assert len(one & other) == len(one) - 1


def test_scripts_without_spaces_count_by_pairs_of_characters() -> None:
    assert len(features("请总结内部会议") & features("总结内部报告")) >= 3


def test_evidence_tells_what_is_private_by_its_meaning() -> None:
    evidence, _ = load()
    private = "Summarize the confidential minutes of our last board meeting for the executives"
    public = "Summarize the plot of the last novel by Jane Austen for my class"

    assert evidence.probability(private) > 0.6
    assert evidence.probability(public) < evidence.thresholds["balanced"]
    assert evidence.probability("How do I sort a list of numbers in Python?") < 0.2
    assert evidence.probability("") == 0


def test_a_private_sentence_is_found_in_the_middle_of_a_long_text() -> None:
    evidence, _ = load()
    filler = "The river rises in the hills and reaches the sea after two hundred miles. " * 40
    private = "Marta Riva was diagnosed with breast cancer in 2021. "

    likely = [w for w in evidence.judge(filler + private + filler) if w.probability > 0.42]

    assert likely
    assert all(w.start <= len(filler) + len(private) and w.end >= len(filler) for w in likely)


def test_weights_of_another_size_are_turned_down() -> None:
    stored = EvidenceFile(buckets=2, bias=0.0, scale=1.0, thresholds={}, weights=b"\0\0")

    with pytest.raises(ValueError, match=str(BUCKETS)):
        decode(msgspec.msgpack.encode(stored))


def test_the_weights_are_small() -> None:
    assert sum([WEIGHTS.joinpath(name).stat().st_size for name in ("privacy.bin", "PRIVACY.md")]) <= 34 * 1024


def test_no_numpy_is_needed_to_judge() -> None:
    program = (
        "import sys; from mead.router.classifier.gate import PrivacyGate; PrivacyGate().scan('hello there');"
        "sys.exit(any(name in sys.modules for name in ('numpy', 'scipy', 'training')))"
    )

    ran = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)

    assert (ran.returncode, ran.stderr) == (0, "")


@needs_data
def test_training_gives_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy", reason="training needs scipy")
    monkeypatch.syspath_prepend(str(ROOT))
    from training.privacy import train

    from mead.router.evaluation.rows import read_rows

    assert msgspec.msgpack.encode(train(read_rows(DATA))) == WEIGHTS.joinpath("privacy.bin").read_bytes()
