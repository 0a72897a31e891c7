"""The difficulty score: what it sees, what it says, and how good it is on what it was not fitted to."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.core.messages import Tool
from mead.router.classifier._features import BUCKETS, HEAD, SURFACE, TAIL, features_of, mask
from mead.router.classifier.difficulty import TOLD, WEIGHTS, DifficultyModel, Weights, quantile_of
from mead.router.evaluation.routing import RoutingReport

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "routing"
FOLDER = ROOT / "src" / "mead" / "router" / "classifier" / "weights"
MODEL = DifficultyModel.load()
CAPITAL = "What is the capital of France?"
CODE = "Write a python function that merges two sorted linked lists, and explain its complexity."
TOOL = Tool("find", "Finds things.", {"type": "object", "properties": {"a": {}, "b": {}}})


def surface(text: str, *tools: Tool) -> dict[str, float]:
    return dict(zip(SURFACE, features_of(text, tools).surface, strict=True))


# What it sees


def test_a_multiple_choice_is_seen_without_its_letters() -> None:
    question, options = mask("Which one is a bird?\nA. heron\nB. otter\nC. newt\nAnswer:")

    assert (question, options) == ("Which one is a bird?", ["heron", "otter", "newt"])


@pytest.mark.parametrize("form", ["{}. {}", "({}) {}", "{}) {}", "  {}: {}"])
def test_the_form_of_the_letters_does_not_matter(form: str) -> None:
    plain = "Which one is a bird?\nA. heron\nB. otter"
    other = "\n".join(["Which one is a bird?", form.format("a", "heron"), form.format("b", "otter")])

    assert features_of(other) == features_of(plain)


@pytest.mark.parametrize(
    "wrapper",
    [
        "Answer the following question.\n{}",
        "Question: {}\nAnswer:",
        "{}\nPlease think step by step.",
        "You are a helpful assistant. {}",
        "{} Respond with only the letter of the right option.",
    ],
)
def test_usual_wrappers_are_masked(wrapper: str) -> None:
    assert mask(wrapper.format(CAPITAL))[0] == CAPITAL


def test_a_prompt_that_is_all_wrapper_is_left_as_it_is() -> None:
    assert mask("Your final answer?")[0] == "Your final answer?"


def test_the_surface_is_seen() -> None:
    found = surface("Do not prove that 3 + 4 = 7.\n```\nreturn 7\n```", TOOL, TOOL)

    assert found["negations"] > 0
    assert found["orders"] > 0
    assert found["code"] > 0
    assert found["mathematics"] > 0
    assert found["tools"] == 1
    assert found["tools: parameters"] > found["tools: how many"] > 0
    assert surface("heron")["tools"] == surface("heron")["options"] == 0


def test_a_number_is_known_by_its_length_only() -> None:
    assert features_of("Add 12 to 345.") == features_of("Add 98 to 761.")


@given(st.text(max_size=300), st.sampled_from(["", "A. {}\nB. {}", "Question: {}", "{}"]))
def test_any_text_can_be_judged(text: str, form: str) -> None:
    text = form.replace("{}", text) + text
    features = features_of(text)
    found = MODEL.judge(text)

    assert all(0 <= bucket < BUCKETS for bucket in (*features.words, *features.grams))
    assert len(features.surface) == len(SURFACE)
    assert 0 <= found.score <= 1
    assert len(found.contributions) <= TOLD


@pytest.mark.parametrize("text", ["", " ", "\ud83d", "\x00", "__", "?" * 50])
def test_odd_texts_are_uncertain_and_do_no_harm(text: str) -> None:
    assert MODEL.judge(text).uncertain


# What it says


def test_code_is_harder_than_trivia() -> None:
    assert MODEL.judge(CODE).score > 0.7 > 0.4 > MODEL.judge(CAPITAL).score


def test_the_same_prompt_has_the_same_score() -> None:
    assert MODEL.judge(CODE) == DifficultyModel((FOLDER / WEIGHTS).read_bytes()).judge(CODE)


def test_the_tools_that_are_offered_count() -> None:
    assert MODEL.judge(CAPITAL, tools=[TOOL]).gain != MODEL.judge(CAPITAL).gain


def test_contributions_are_the_greatest_first_and_quote_nothing() -> None:
    found = MODEL.judge(CODE, tools=[TOOL])
    sizes = [abs(each.value) for each in found.contributions]

    assert sizes == sorted(sizes, reverse=True)
    assert len({each.name for each in found.contributions}) == len(sizes) == TOLD
    allowed = {"words", "characters", *[name.partition(":")[0] for name in SURFACE]}
    assert {each.name for each in found.contributions} <= allowed


@pytest.mark.parametrize(
    "text",
    [
        "Erkläre mir bitte, warum ein Verbrennungsmotor so laut ist.",
        "Pourquoi le ciel est-il bleu pendant la journée ?",
        "请解释一下量子力学的基本原理",
        "Объясни, как работает двигатель внутреннего сгорания",
        "asdkjh qwpeoi zxmcn lksdjf",
        "hi",
    ],
)
def test_what_is_strange_to_it_is_uncertain(text: str) -> None:
    assert MODEL.judge(text).uncertain


@pytest.mark.parametrize("text", [CODE, CAPITAL, "If a train goes 60 miles in an hour, how far in two?"])
def test_plain_english_is_certain(text: str) -> None:
    assert not MODEL.judge(text).uncertain


def test_the_score_is_a_quantile_of_the_gain() -> None:
    quantiles = msgspec.msgpack.decode((FOLDER / WEIGHTS).read_bytes(), type=Weights).quantiles
    found = MODEL.judge(CODE)

    assert list(quantiles) == sorted(set(quantiles))
    assert found.score == quantile_of(found.gain, quantiles)
    assert [quantile_of(quantiles[at], quantiles) for at in (0, 30, 100)] == [0.0, 0.3, 1.0]
    assert (quantile_of(-9, quantiles), quantile_of(9, quantiles)) == (0.0, 1.0)


def test_the_weights_are_named_by_their_content() -> None:
    data = (FOLDER / WEIGHTS).read_bytes()
    weights = msgspec.msgpack.decode(data, type=Weights)
    other = DifficultyModel(msgspec.msgpack.encode(msgspec.structs.replace(weights, intercept=0.0)))

    assert len(MODEL.version) == 12
    assert other.version != MODEL.version
    assert MODEL.version in (FOLDER / "DIFFICULTY.md").read_text(encoding="utf-8")


def test_other_bytes_are_no_weights() -> None:
    weights = msgspec.msgpack.decode((FOLDER / WEIGHTS).read_bytes(), type=Weights)
    fewer = msgspec.structs.replace(weights, surface=weights.surface[1:])

    with pytest.raises(ValueError):
        DifficultyModel(b"heron")
    with pytest.raises(ValueError, match=r"scripts/train"):
        DifficultyModel(msgspec.msgpack.encode(fewer))


# What it costs


def test_the_weights_are_small() -> None:
    statement = (FOLDER / "DIFFICULTY.md").stat().st_size

    assert statement <= 4 * 1024
    assert (FOLDER / WEIGHTS).stat().st_size + statement <= 28 * 1024


def test_nothing_of_the_training_is_imported_at_run_time() -> None:
    asked = (
        "import sys; from mead.router.classifier.difficulty import DifficultyModel; "
        "DifficultyModel.load().judge('a heron'); "
        "import mead.router.evaluation.routing, mead.cli.eval; "
        "print([name for name in sys.modules if name.split('.')[0] in "
        "('numpy', 'scipy', 'training', 'matplotlib', 'plotext')])"
    )

    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)

    assert told.stdout == "[]\n"


def test_only_so_much_of_a_long_text_is_looked_at() -> None:
    head, tail = "a heron " * (HEAD // 8), "is a bird " * (TAIL // 10)

    assert features_of(head + "x" * 100_000 + tail) == features_of(head + "y" * 1_000_000 + tail)


@pytest.mark.parametrize(
    "piece",
    ["a", " ", "\n", "a ", ". ", ".a", "((", "A. b\n", "{ ", "a(", "12", "\t:", "answer with ", "=", "Q: "],
)
def test_the_time_grows_in_proportion_to_the_text(piece: str) -> None:
    def seconds(length: int) -> float:
        text = (piece * length)[:length]
        spent = []
        for _ in range(3):
            began = time.process_time()
            for _ in range(5):
                features_of(text)
            spent.append(time.process_time() - began)
        return min(spent)

    longest = HEAD + TAIL

    # Eight times the text: a quadratic time would be 64 times as long.
    assert seconds(longest) < 30 * max(seconds(longest // 8), 1e-4)


# How good it is, by models that have not seen what they judge


class Trained(NamedTuple):
    weights: bytes
    cross_validated: RoutingReport
    set_left_out: RoutingReport


@pytest.fixture(scope="module")
def trained() -> Trained:
    """The weights, fitted again from the data, with one cross-validation of the three."""
    if not DATA.is_dir():
        pytest.skip("the routing data are not at hand")
    pytest.importorskip("scipy", reason="training needs scipy")
    sys.path.insert(0, str(ROOT))
    try:
        from training import difficulty
        from training.difficulty_report import report_of
    finally:
        sys.path.remove(str(ROOT))
    examples = difficulty.read_examples(DATA)
    matrix = difficulty.matrix_of(examples)
    gains = difficulty.held_out_gains(examples, matrix, difficulty.by_question(examples))
    left_out = difficulty.held_out_gains(examples, matrix, difficulty.by_set(examples))
    return Trained(
        weights=difficulty.train(examples, matrix, gains),
        cross_validated=report_of(examples, gains),
        set_left_out=report_of(examples, left_out),
    )


def test_training_gives_the_same_bytes_again(trained: Trained) -> None:
    assert trained.weights == (FOLDER / WEIGHTS).read_bytes()


def test_mixed_traffic_is_ordered_well(trained: Trained) -> None:
    mixed = trained.cross_validated.mixed

    assert mixed.apgr is not None
    assert mixed.cpt50 is not None
    assert mixed.apgr >= 0.63
    assert mixed.cpt50 <= 32
    assert mixed.apgr > (trained.cross_validated.length.mixed.apgr or 0) + 0.1


@pytest.mark.parametrize(
    "name, least",
    # A little under the means of the three cross-validations, as one alone moves about them.
    [("routellm_mmlu", 0.635), ("routellm_gsm8k", 0.60), ("llmrouter_mix", 0.69), ("bfcl_v2", 0.50)],
)
def test_each_set_is_ordered_well(trained: Trained, name: str, least: float) -> None:
    assert (trained.cross_validated.sets[name].apgr or 0) >= least


@pytest.mark.parametrize(
    "name, noise",
    # Two standard errors of an APGR on so few rows.
    [("arena300", 0.10), ("bfcl_v2", 0.05), ("routellm_mtbench", 0.15), ("routellm_gsm8k", 0.05)],
)
def test_a_set_never_seen_is_no_worse_than_random_but_for_noise(
    trained: Trained, name: str, noise: float
) -> None:
    assert (trained.set_left_out.sets[name].apgr or 0) > 0.5 - noise


@pytest.mark.parametrize("least", [0.54])
def test_mixed_traffic_of_sets_never_seen_is_better_than_by_length(trained: Trained, least: float) -> None:
    found = trained.set_left_out.mixed.apgr or 0

    assert found > max(least, trained.set_left_out.length.mixed.apgr or 0)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the file of weights was read."""
    reads = 0
    read_bytes = Path.read_bytes

    def count(path: Path) -> bytes:
        nonlocal reads
        reads += path.name == WEIGHTS
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", count)
    return lambda: reads


def test_the_packaged_weights_are_read_once(counted: Callable[[], int]) -> None:
    from mead.router.classifier import difficulty

    difficulty._packaged.cache_clear()

    assert DifficultyModel.load() is DifficultyModel.load()
    assert counted() == 1
