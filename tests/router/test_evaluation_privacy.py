"""The evaluation of the privacy gate: its counts are right, bad data are named, and the targets are met."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from mead.router.classifier.gate import PrivacyGate
from mead.router.evaluation.privacy import CurvePoint, Judgement, PrivacyRow, evaluate, load, report
from mead.router.evaluation.rows import DataError

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "privacy"


def row(private: int | None, *, prompt: str = "hello", tier: str = "hard", messages: object = None) -> str:
    return json.dumps(
        {"id": prompt, "prompt": prompt, "private": private, "tier": tier, "messages": messages}
    )


def judged(private: int, found: bool, probability: float, tier: str = "hard") -> Judgement:
    fields = PrivacyRow(id="x", prompt="x", private=private, tier=tier)  # type: ignore[arg-type]  # 0 or 1
    return Judgement(fields, found, by_rules=False, probability=probability)


def test_rates_are_counted_by_set_and_tier_and_pooled() -> None:
    figures = report(
        {
            "one": [judged(1, True, 0.9), judged(1, False, 0.2, "contextual"), judged(0, True, 0.8, "none")],
            "two": [judged(0, False, 0.1, "none")],
        }
    )

    assert (figures.pooled.recall, figures.pooled.precision, figures.pooled.false_alarm_rate) == (
        0.5,
        0.5,
        0.5,
    )
    assert figures.tiers["one"]["contextual"].recall == 0
    assert figures.sets["two"].recall is None
    assert figures.baseline.found == 0
    written = figures.to_json()
    assert written["pooled"] == {
        "precision": 0.5,
        "recall": 0.5,
        "false_alarm_rate": 0.5,
        "private": 2,
        "public": 2,
    }


def test_rows_of_one_probability_make_one_point_of_the_curve() -> None:
    figures = report({"one": [judged(1, True, 0.9), judged(0, True, 0.9), judged(1, False, 0.2)]})

    assert figures.curve == (CurvePoint(0.9, 0.5, 0.5), CurvePoint(0.2, 2 / 3, 1.0))


def test_a_conversation_is_private_if_a_message_or_a_seam_is(tmp_path: Path) -> None:
    halves = [
        {"role": "user", "content": "Card starts 4012 8888"},
        {"role": "user", "content": "ends 8888 1881"},
    ]
    plain = [{"role": "user", "content": "good morning"}, {"role": "assistant", "content": "good morning"}]
    lines = [
        row(1, messages=halves),
        row(0, messages=plain, tier="none"),
        row(None, prompt="4012888888881881"),
    ]
    tmp_path.joinpath("talk.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))

    figures = evaluate(load(tmp_path), PrivacyGate())

    assert (figures.pooled.private, figures.pooled.found) == (1, 1)
    assert (figures.pooled.public, figures.pooled.false_alarms) == (1, 0)


@pytest.mark.parametrize(
    "line,named",
    [
        ('{"id": "a", "prompt": "x", "private": 2}', "private"),
        ('{"id": "a", "prompt": "x"}', "private"),
        ('{"id": "a", "private": 1}', "prompt"),
        ('{"id": "a", "prompt": 7, "private": 1}', "prompt"),
        ('{"id": "a", "prompt": "x", "private": 1, "messages": [{"role": "user"}]}', "messages"),
        ("not JSON", "JSON"),
    ],
)
def test_a_bad_row_is_named_with_file_line_and_field(tmp_path: Path, line: str, named: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(f"{row(1)}\n{line}\n")

    with pytest.raises(DataError, match=rf"mine\.jsonl, line 2.*{named}"):
        load(file)


def test_rows_without_a_label_cannot_be_evaluated(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(row(None))

    with pytest.raises(DataError, match="label"):
        evaluate(load(file), PrivacyGate())


@pytest.mark.skipif(not DATA.exists(), reason="the privacy data are not at hand")
def test_the_cross_validated_figures_reach_the_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy", reason="training needs scipy")
    monkeypatch.syspath_prepend(str(ROOT))
    from training.privacy import THRESHOLDS, at, cross_validate

    # Without the sentences written for training: their author had read these rows.
    figures = at(cross_validate(DATA, aided=False), THRESHOLDS["balanced"])

    assert figures.pooled.recall is not None
    assert figures.pooled.recall >= 0.93
    assert figures.pooled.precision is not None
    assert figures.pooled.precision >= 0.90
    assert (figures.sets["natural_negatives"].false_alarm_rate or 0) <= 0.02
    assert (figures.sets["synthetic"].false_alarm_rate or 0) <= 0.10
    hard = [tiers["hard"] for tiers in figures.tiers.values() if "hard" in tiers]
    assert sum([counts.found for counts in hard]) >= 0.95 * sum([counts.private for counts in hard])
    assert figures.pooled.found > figures.baseline.found
