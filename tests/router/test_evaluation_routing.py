"""The metrics of routing, by hand-made rows whose figures can be worked out on paper."""

from __future__ import annotations

import gzip
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.core.messages import Tool
from mead.router.evaluation.routing import (
    MIXED_LIMIT,
    Metrics,
    Point,
    RoutingRow,
    curve_of,
    drawn,
    evaluate,
    load,
    metrics_of,
    to_unit_scale,
)
from mead.router.evaluation.rows import DataError, read_rows

GAINS = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([-1.0, 0.0, 0.5, 1.0])), min_size=1, max_size=30
)


def row(weak: float, strong: float, prompt: str = "x", id: str = "") -> RoutingRow:
    return RoutingRow(prompt=prompt, weak_score=weak, strong_score=strong, id=id)


def write_rows(file: Path, *rows: Mapping[str, object]) -> Path:
    file.write_bytes(b"\n".join([msgspec.json.encode(each) for each in rows]))
    return file


def test_the_best_order_recovers_the_whole_gap_at_once() -> None:
    found = metrics_of([(3, 1.0), (2, 0.0), (1, 0.0), (0, 0.0)])

    # The curve goes 0, 1, 1, 1, 1: four trapezoids a quarter wide.
    assert found == Metrics(rows=4, apgr=0.875, cpt50=25.0, cpt80=25.0)


def test_the_worst_order_recovers_nothing_until_the_end() -> None:
    found = metrics_of([(0, 1.0), (1, 0.0), (2, 0.0), (3, 0.0)])

    assert found == Metrics(rows=4, apgr=0.125, cpt50=100.0, cpt80=100.0)


def test_rows_of_equal_difficulty_share_the_strong_model_evenly() -> None:
    tied = metrics_of([(7, gain) for gain in (1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0)])

    assert tied.apgr == pytest.approx(0.5)
    assert (tied.cpt50, tied.cpt80) == (50.0, 80.0)


def test_a_threshold_is_reached_only_by_whole_rows() -> None:
    # After one of three rows 1/3 of the gap is recovered, after two 2/3.
    assert metrics_of([(3, 1.0), (2, 1.0), (1, 1.0)]).cpt50 == pytest.approx(200 / 3)


def test_a_row_that_the_weak_model_answers_better_lets_the_curve_fall() -> None:
    assert curve_of([(3, 1.0), (2, 1.0), (1, -1.0)]) == [
        Point(0.0, 0.0),
        Point(1 / 3, 1.0),
        Point(2 / 3, 2.0),
        Point(1.0, 1.0),
    ]


@pytest.mark.parametrize("gain", [0.0, -1.0])
def test_without_a_gap_there_are_no_figures(gain: float) -> None:
    assert metrics_of([(1, gain), (2, 0.0)]) == Metrics(rows=2, apgr=None, cpt50=None, cpt80=None)


@given(GAINS)
def test_an_order_and_its_reverse_average_to_random(scored: Sequence[tuple[int, float]]) -> None:
    forward, backward = metrics_of(scored), metrics_of([(-difficulty, gain) for difficulty, gain in scored])

    if forward.apgr is not None and backward.apgr is not None:
        assert forward.apgr + backward.apgr == pytest.approx(1.0)
    else:
        assert sum([gain for _, gain in scored]) <= 0


@given(GAINS, st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(
    scored: list[tuple[int, float]], shuffler: random.Random
) -> None:
    before = metrics_of(scored)
    shuffler.shuffle(scored)
    after = metrics_of(scored)

    assert after.apgr == pytest.approx(before.apgr)
    assert (after.cpt50, after.cpt80) == pytest.approx((before.cpt50, before.cpt80))


@given(GAINS)
def test_the_area_is_that_of_every_single_cut_off(scored: Sequence[tuple[int, float]]) -> None:
    whole = sum([gain for _, gain in scored])
    found = metrics_of(scored)
    if found.apgr is None:
        return
    # The definition, the slow way: within a tie each cut-off takes the tie's mean gain.
    means = {
        key: sum([gain for other, gain in scored if other == key])
        / len([other for other, _ in scored if other == key])
        for key, _ in scored
    }
    recovered = [0.0]
    for key, _ in sorted(scored, reverse=True):
        recovered.append(recovered[-1] + means[key] / whole)
    steps = pairwise(recovered)

    assert found.apgr == pytest.approx(sum([(a + b) / 2 for a, b in steps]) / len(scored))
    first = next(at for at, value in enumerate(recovered) if value >= 0.5 - 1e-9)
    assert found.cpt50 == pytest.approx(100 * first / len(scored))


def test_a_judge_s_scores_are_divided_by_ten() -> None:
    assert to_unit_scale([row(1, 10), row(0.5, 7)]) == [row(0.1, 1.0), row(0.05, 0.7)]
    assert to_unit_scale([row(1, 0), row(0.5, 1)]) == [row(1, 0), row(0.5, 1)]


def test_the_mixed_traffic_has_one_threshold_for_all_sets() -> None:
    easy = [row(1, 1, "a"), row(1, 1, "b")]
    hard = [row(0, 1, "ccc"), row(0, 1, "dddd")]

    report = evaluate({"easy": easy, "hard": hard}, lambda each: len(each.prompt))

    assert report.mixed == Metrics(rows=4, apgr=0.75, cpt50=25.0, cpt80=50.0)
    assert report.sets["easy"].apgr is None


def test_the_mixed_traffic_takes_the_same_five_hundred_of_a_large_set_each_time() -> None:
    rows = [row(0, 1, id=f"r{number}") for number in range(MIXED_LIMIT + 100)]
    first = {rows[at].id for at in drawn(rows)}
    rows.reverse()

    assert len(first) == MIXED_LIMIT
    assert {rows[at].id for at in drawn(rows)} == first
    assert evaluate({"large": rows, "small": rows[:10]}, lambda _: 0.0).mixed.rows == MIXED_LIMIT + 10


def test_the_report_holds_the_baselines_too() -> None:
    told = evaluate({"s": [row(0, 1, "long"), row(1, 1, "b")]}, lambda _: 1.0).to_json()

    assert told == {
        "sets": {"s": {"apgr": 0.5, "cpt50": 50.0, "cpt80": 100.0, "rows": 2}},
        "mixed": {"apgr": 0.5, "cpt50": 50.0, "cpt80": 100.0, "rows": 2},
        "baselines": {
            "random": {"mixed": {"apgr": 0.5, "cpt50": 50.0, "cpt80": 80.0, "rows": 2}},
            "length": {
                "sets": {"s": {"apgr": 0.75, "cpt50": 50.0, "cpt80": 50.0, "rows": 2}},
                "mixed": {"apgr": 0.75, "cpt50": 50.0, "cpt80": 50.0, "rows": 2},
            },
        },
    }


def test_a_curve_that_is_drawn_keeps_its_ends() -> None:
    rows = [row(0, number % 2, "x" * number) for number in range(1, 1000)]

    curve = evaluate({"s": rows}, lambda each: len(each.prompt)).curve

    assert (curve[0], curve[-1]) == (Point(0.0, 0.0), Point(1.0, 1.0))
    assert 50 <= len(curve) <= 200


def test_a_set_is_a_file_of_the_folder_plain_or_compressed(tmp_path: Path) -> None:
    line = b'{"id":"a","prompt":"p","weak_score":0,"strong_score":1,"other":[1]}\n'
    (tmp_path / "one.jsonl").write_bytes(line + b"\n" + line)
    (tmp_path / "two.jsonl.gz").write_bytes(gzip.compress(line))
    (tmp_path / "README.md").write_text("no rows")

    assert {name: len(rows) for name, rows in load(tmp_path).items()} == {"one": 2, "two": 1}
    assert load(tmp_path / "two.jsonl.gz") == {"two": [row(0, 1, "p", "a")]}
    assert read_rows(tmp_path / "one.jsonl")["one"][0]["other"] == [1]


@pytest.mark.parametrize("as_text", [True, False])
@pytest.mark.parametrize("as_list", [True, False])
def test_tools_are_read_in_each_of_their_forms(tmp_path: Path, as_text: bool, as_list: bool) -> None:
    definition = {"name": "f", "description": "d", "parameters": {"type": "dict", "properties": {"a": {}}}}
    value: object = [definition] if as_list else definition
    tools = msgspec.json.encode(value).decode() if as_text else value
    file = write_rows(
        tmp_path / "s.jsonl", {"prompt": "p", "weak_score": 0, "strong_score": 1, "tools": tools}
    )

    assert load(file)["s"][0].tools == (Tool("f", "d", {"type": "dict", "properties": {"a": {}}}),)


@pytest.mark.parametrize(
    "line, complaint",
    [
        (b'{"prompt": "p", "weak_score": 0}', "missing required field `strong_score`"),
        (b'{"prompt": "p", "weak_score": "0", "strong_score": 1}', "`$.weak_score`"),
        (b'{"prompt": "p", "weak_score": 11, "strong_score": 1}', "`$.weak_score`"),
        (b'{"prompt": 5, "weak_score": 0, "strong_score": 1}', "`$.prompt`"),
        (b'{"prompt": "p", "weak_score": 0, "strong_score": 1, "tools": "no"}', "tools: "),
        (b'{"prompt": "p", "weak_score": 0, "strong_score": 1, "tools": [{}]}', "tools: "),
        (b"[]", "no JSON object"),
        (b"\xff", "no JSON object"),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_field(tmp_path: Path, line: bytes, complaint: str) -> None:
    file = tmp_path / "s.jsonl"
    file.write_bytes(b'{"prompt": "p", "weak_score": 0, "strong_score": 1}\n\n' + line)

    with pytest.raises(DataError) as caught:
        load(file)

    assert f"{file}, line 3: " in str(caught.value)
    assert complaint in str(caught.value)


def test_data_that_are_not_there_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b"{}")[:-3])
    (tmp_path / "folder").mkdir()
    (tmp_path / "twice").mkdir()
    for name in ("a.jsonl", "a.jsonl.gz"):
        (tmp_path / "twice" / name).write_bytes(b"{}")

    for name, complaint in {
        "none": "no such file",
        "empty.jsonl": "no rows",
        "cut.jsonl.gz": "cannot be read",
        "folder": "no .jsonl or .jsonl.gz file",
        "twice": "two files are named 'a'",
    }.items():
        with pytest.raises(DataError, match=complaint):
            load(tmp_path / name)
