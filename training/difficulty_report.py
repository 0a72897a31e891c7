"""The figures of the difficulty model, for a person and for its data statement."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from mead.router.classifier._features import Features, coverage, features_of
from mead.router.classifier.difficulty import FEWEST_WORDS
from mead.router.evaluation.routing import RANDOM, Judged, Metrics, RoutingReport, RoutingRow, evaluate
from training.difficulty import (
    BALANCE,
    COVERAGE,
    FOLDS,
    PENALTY,
    REPEATS,
    SHARED,
    WRAPPED,
    Example,
    Matrix,
    by_domain,
    by_question,
    by_set,
    held_out_gains,
    known_words,
    matrix_of,
)
from training.linear import Array
from training.wrappers import UNSEEN, wrap


class Figures(NamedTuple):
    """How good the model is on what it was not fitted to.

    `gains` are the predictions of the first cross-validation, `repeats` the reports of all. `uncertain` is
    the share of rows on which the model says so, by set, the known words being those of the other folds.
    """

    gains: Array
    repeats: tuple[RoutingReport, ...]
    by_domain: RoutingReport
    by_set: RoutingReport
    uncertain: dict[str, float]


def figures_of(examples: Sequence[Example], matrix: Matrix) -> Figures:
    """Fits the model again and again, each time without a part, and judges that part."""
    folds = [by_question(examples, repeat) for repeat in range(REPEATS)]
    gains = [held_out_gains(examples, matrix, each) for each in folds]
    return Figures(
        gains=gains[0],
        repeats=tuple([report_of(examples, each) for each in gains]),
        by_domain=report_of(examples, held_out_gains(examples, matrix, by_domain(examples))),
        by_set=report_of(examples, held_out_gains(examples, matrix, by_set(examples))),
        uncertain=_uncertain(examples, folds[0]),
    )


def report_of(examples: Sequence[Example], gains: Array) -> RoutingReport:
    """How well gains order the examples."""
    rows: dict[str, list[RoutingRow]] = {}
    by_id: dict[str, float] = {}
    for each, gain in zip(examples, gains, strict=True):
        rows.setdefault(each.set, []).append(each.row)
        by_id[each.row.id] = float(gain)
    return evaluate(rows, lambda row: by_id[row.id])


def strange_wrappers(examples: Sequence[Example], matrix: Matrix) -> str:
    """What wrappers that no fitted row had do to the mixed traffic, by cross-validation."""
    wrapped = [each._replace(features=_in_strange_wrapper(each)) for each in examples]
    folds = by_question(examples)
    gains = held_out_gains(examples, matrix, folds, judged=matrix_of(wrapped))
    mixed = report_of(examples, gains).mixed
    return f"Mixed, each row in a wrapper never seen: {_cell([mixed])}."


def _in_strange_wrapper(example: Example) -> Features:
    return features_of(wrap(example.row.prompt, example.row.id, UNSEEN), example.row.tools)


def _uncertain(examples: Sequence[Example], folds: Array) -> dict[str, float]:
    sizes = Counter([each.set for each in examples])
    found: Counter[str] = Counter()
    for fold in np.unique(folds):
        left_out = folds == fold
        known = known_words([each for each, out in zip(examples, left_out, strict=True) if not out])
        for each, out in zip(examples, left_out, strict=True):
            words, share = coverage(each.features.hashes, known)
            found[each.set] += bool(out) and (words < FEWEST_WORDS or share < COVERAGE)
    return {name: found[name] / size for name, size in sizes.items()}


def table(figures: Figures) -> str:
    """The figures in columns: APGR, and CPT50/CPT80 in percent."""
    shown = {
        "cross-validated": [each.judged for each in figures.repeats],
        "unseen domains": [figures.by_domain.judged],
        "set left out": [figures.by_set.judged],
        "prompt length": [figures.by_set.length],
    }
    rows = ["| set | rows | " + " | ".join(shown) + " | random |", "|---|---|" + "---|" * (len(shown) + 1)]
    for name in (*figures.by_set.sets, "mixed"):
        cells = [_cell([_metrics(judged, name) for judged in each]) for each in shown.values()]
        count = _metrics(figures.by_set.judged, name).rows
        rows.append(f"| {name} | {count:,} | {' | '.join(cells)} | {_cell([RANDOM])} |")
    shares = ", ".join([f"{name} {share:.1%}" for name, share in figures.uncertain.items() if share])
    return "\n".join(
        [*rows, "", f"Called uncertain, cross-validated: {shares or 'none'}; of all other sets none."]
    )


def _metrics(judged: Judged, name: str) -> Metrics:
    return judged.mixed if name == "mixed" else judged.sets[name]


def _cell(metrics: Sequence[Metrics]) -> str:
    areas = [each.apgr for each in metrics if each.apgr is not None]
    halves = [each.cpt50 for each in metrics if each.cpt50 is not None]
    most = [each.cpt80 for each in metrics if each.cpt80 is not None]
    if not areas:
        return "no gap"
    return f"{fmean(areas):.3f} {fmean(halves):.0f}/{fmean(most):.0f}"


def statement(examples: Sequence[Example], figures: Figures, weights: bytes) -> str:
    """The data statement that stands beside the weights."""
    return _STATEMENT.format(
        version=hashlib.sha256(weights).hexdigest()[:12],
        rows=len(examples),
        table=table(figures),
        folds=FOLDS,
        repeats=REPEATS,
        penalty=PENALTY,
        balance=round(1 - BALANCE, 2),
        shared=SHARED,
        wrapped=WRAPPED,
    )


_STATEMENT = """\
# difficulty.bin, version {version}

**What it is.** A linear model of how much better a strong model answers a prompt than a weak one.
`route="auto"` uses it to choose between the local and the cloud model, after the privacy gate. It was fitted
for this only: it says nothing of a person, of quality in general, or of whether an answer is right.

**Data.** {rows:,} prompts with recorded scores of both models. No model was called; nobody's own traffic is
in it. MMLU, GSM8K, MT-bench: lm-sys/RouteLLM (Apache-2.0; prompts MIT and Apache-2.0), Mixtral 8x7B against
GPT-4. arena300: lmarena/arena-hard-auto (Apache-2.0), the same pair. llmrouter_mix: ulab-uiuc/LLMRouter
(MIT; prompts of open sets, some CC BY-SA), Mistral 7B against Nemotron 51B. bfcl_v2: Berkeley
Function-Calling Leaderboard (Apache-2.0), Llama 3 8B against GPT-4. The weights are sums over hashed words.

**Fitting** (`scripts/train`). Ridge regression, penalty {penalty:g}, on hashed words, hashed character
6-grams and surface features; labels, option letters and wrapper sentences masked; {wrapped:.0%} of a row's
weight goes to a copy in a strange wrapper; a set of n rows weighs n^{balance:g}. Where further models' scores
are known, {shared:.0%} of the target is large models against small ones. Weights are signed bytes. The same
data give the same bytes.

**Figures** on rows that the model was not fitted to: APGR, then CPT50/CPT80 in percent (docs/cli.md says
what they are). Cross-validated: {folds} folds, no question in two of them, the mean of {repeats} foldings;
the settings were chosen by such figures too. Unseen domains: whole categories left out. Mixed: at most 500
rows of each set, one threshold. Another folding moves MMLU and the mix by up to .005, the small sets by
.02 to .04.

{table}

**Weaknesses.** In kinds of traffic that it was not fitted to, much of the advantage goes (*set left out*),
and prompt length may do as well. Real chat and tool calls are near random: there the request hardly shows
the difficulty. English only: other languages come out as uncertain, as do texts with few known words. The
models are of 2023 and 2024. Some scores of llmrouter_mix are failures to extract an answer, so code looks
harder than it is.
"""
