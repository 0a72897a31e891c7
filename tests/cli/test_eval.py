"""`mead eval`: the figures as a table, as JSON and as a curve, and the sentences where there are none."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from cli.commands import run, run_json
from cli.test_cli_page import example, shape
from mead.router.classifier.difficulty import DifficultyModel
from mead.router.classifier.gate import PrivacyGate

CARD = "Is my card 4111 1111 1111 1111 still good?"


def write_rows(file: Path, *rows: Mapping[str, object]) -> str:
    file.write_bytes(b"\n".join([msgspec.json.encode(each) for each in rows]))
    return str(file)


@pytest.fixture
def rows(home: Path) -> str:
    """A set in which only code needs the strong model."""
    easy = [
        {"prompt": prompt, "weak_score": 1, "strong_score": 1}
        for prompt in (
            "When was the first bridge over the river built, and which king of that time opened it to all?",
            "What is the capital of France?",
            "Who wrote the play about the prince of Denmark?",
        )
    ]
    hard = {
        "prompt": "Write a python function that sorts a linked list.",
        "weak_score": 0,
        "strong_score": 1,
    }
    return write_rows(home / "mine.jsonl", *easy, hard)


@pytest.fixture
def labelled(home: Path) -> str:
    """A set with a private text and a public one."""
    return write_rows(
        home / "mine.jsonl",
        {"id": "a", "prompt": CARD, "private": 1, "tier": "hard"},
        {"id": "b", "prompt": "What is the capital of France?", "private": 0, "tier": "none"},
    )


def test_routing_tells_the_figures_of_each_set_and_of_all(rows: str) -> None:
    result = run("eval", "routing", rows)

    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["set", "rows", "APGR", "CPT50", "CPT80", "APGR", "by", "length"]
    assert lines[1][:7] == ["mine", "4", "0.875", "25.0", "%", "25.0", "%"]
    assert lines[2] == ["mixed", *lines[1][1:]]
    assert float(lines[1][7]) < 0.875, "the hard prompt is not the longest"
    assert DifficultyModel.load().version in result.stderr
    assert result.exit_code == 0


def test_routing_json_has_the_form_of_the_page(rows: str) -> None:
    told, status = run_json("eval", "routing", rows)

    assert status == 0
    assert shape(told) == shape(example("mead eval routing --json"))
    assert told["version"] == DifficultyModel.load().version
    assert told["sets"] == {"mine": {"apgr": 0.875, "cpt50": 25.0, "cpt80": 25.0, "rows": 4}}
    assert told["mixed"] == told["sets"]["mine"]


def test_a_set_without_a_gap_has_no_figures(home: Path) -> None:
    file = write_rows(home / "even.jsonl", {"prompt": "p", "weak_score": 1, "strong_score": 1})

    assert run_json("eval", "routing", file)[0]["sets"]["even"]["apgr"] is None
    assert run("eval", "routing", file).stdout.splitlines()[1].split() == ["even", "1", "-", "-", "-", "-"]


def test_privacy_tells_the_figures_by_tier_and_pooled(labelled: str) -> None:
    result = run("eval", "privacy", labelled)

    lines = [line.split() for line in result.stdout.splitlines()]
    assert [line[0] for line in lines] == ["set", "mine", "hard", "none", "pooled", "rules"]
    assert lines[4] == ["pooled", "1", "1", "1.000", "1.000", "0.000"]
    assert "4111" not in result.stdout + result.stderr
    assert PrivacyGate().version in result.stderr
    assert result.exit_code == 0


def test_privacy_json_has_what_the_page_says(labelled: str) -> None:
    told, status = run_json("eval", "privacy", labelled)

    assert status == 0
    assert set(told) == {"ok", "version", "sets", "pooled", "baselines"}
    assert told["pooled"] == {
        "precision": 1.0,
        "recall": 1.0,
        "false_alarm_rate": 0.0,
        "private": 1,
        "public": 1,
    }
    assert set(told["sets"]["mine"]["tiers"]) == {"hard", "none"}


@pytest.mark.parametrize("kind", ["routing", "privacy"])
def test_the_curve_is_drawn_in_the_terminal(kind: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("plotext", reason="drawing needs the extra plot")
    file = request.getfixturevalue("rows" if kind == "routing" else "labelled")

    result = run("eval", kind, file, "--curve")

    assert result.exit_code == 0
    assert re.search("[\u2801-\u28ff]", result.stdout)
    assert "\x1b" not in result.stdout
    assert "(%)" in result.stdout


@pytest.mark.parametrize("kind", ["routing", "privacy"])
@pytest.mark.parametrize("ending, begins", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("PNG", b"\x89PNG")])
def test_the_curve_is_drawn_into_a_file_by_its_ending(
    kind: str, ending: str, begins: bytes, home: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs the extra plot")
    pytest.importorskip("plotext", reason="drawing needs the extra plot")
    file = request.getfixturevalue("rows" if kind == "routing" else "labelled")

    result = run("eval", kind, file, "--plot", f"curve.{ending}")

    assert result.exit_code == 0
    assert (home / f"curve.{ending}").read_bytes().startswith(begins)
    assert "(%)" in result.stdout, "and into the terminal"


def test_with_json_a_plot_goes_to_its_file_only(rows: str, home: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs the extra plot")

    told, status = run_json("eval", "routing", rows, "--plot", "curve.svg")

    assert (status, told["ok"]) == (0, True)
    assert (home / "curve.svg").exists()


def test_the_same_figures_give_the_same_svg(rows: str, home: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs the extra plot")
    for name in ("a.svg", "b.svg"):
        run_json("eval", "routing", rows, "--plot", name)

    assert (home / "a.svg").read_bytes() == (home / "b.svg").read_bytes()


@pytest.mark.parametrize(
    "options, missing",
    [(("--curve",), "plotext"), (("--plot", "curve.png"), "matplotlib")],
)
def test_without_the_extra_a_sentence_names_it(
    rows: str, options: tuple[str, ...], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)

    result = run("eval", "routing", rows, *options)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        f"mead: drawing needs {missing}, of the extra plot: pip install 'mead-runtime[plot]'"
    )


@pytest.mark.parametrize("kind", ["routing", "privacy"])
def test_data_that_cannot_be_read_are_named(kind: str, home: Path) -> None:
    (home / "bad.jsonl").write_text('{"prompt": 7}')

    bad, none = run("eval", kind, "bad.jsonl"), run("eval", kind, "none.jsonl")

    assert (bad.exit_code, none.exit_code) == (2, 2)
    assert bad.stderr.startswith("mead: bad.jsonl, line 1: ")
    assert none.stderr == "mead: none.jsonl: there is no such file or folder\n"
    assert bad.stdout == none.stdout == ""


def test_what_cannot_work_is_said_before_the_work(rows: str) -> None:
    both = run("eval", "routing", rows, "--json", "--curve")
    ending = run("eval", "routing", rows, "--plot", "curve.pdf")

    assert (both.exit_code, ending.exit_code) == (2, 2)
    assert both.stderr == "mead: --json and --curve exclude each other\n"
    assert ending.stderr == "mead: curve.pdf: the name of a plot ends in .png or .svg\n"
    assert both.stdout == ending.stdout == ""


def test_a_plot_that_cannot_be_written_is_said(rows: str) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs the extra plot")

    result = run("eval", "routing", rows, "--plot", "no/such/folder/curve.png")

    assert result.exit_code == 2
    assert "curve.png cannot be written: No such file or directory" in result.stderr
