"""Fits the difficulty model, and says how good it is on data that it was not fitted to.

    python -m training.difficulty DATA              writes the weights and their data statement
    python -m training.difficulty --evaluate DATA   prints the figures

What is predicted is the gain of the strong model over the weak one. Where other models' scores of a prompt
are known too, half of the target is the mean gain of the large ones over the small ones: a prompt's
difficulty shows more clearly in many models than in two.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec
import numpy as np
import scipy.sparse as sp

from mead.router.classifier._features import BUCKETS, KNOWN_BITS, Features, features_of, known_bit, mask
from mead.router.classifier.difficulty import CLIP, WEIGHTS, SurfaceWeight, Weights
from mead.router.evaluation.routing import RoutingRow, load, to_unit_scale
from mead.router.evaluation.rows import read_located
from training.linear import Array, indicator, ridge
from training.wrappers import TRAINED, wrap

FOLDS, DOMAIN_FOLDS = 10, 5
REPEATS = 3
"""How often cross-validation is made, with other folds each time: its figures are the mean."""
# Chosen by cross-validation; see training/README.md.
PENALTY = 20.0
BALANCE = 0.1
"""A set of n rows has the weight n^(1 - BALANCE): 0 would count each row the same, 1 each set."""
SMALLEST = 300
"""A set counts as having so many rows at least, so that no handful of rows weighs like a set."""
SHARED = 0.5
"""How much of the target is the gain of many models, where their scores are known."""
WRAPPED = 0.3
"""How much of a row's weight goes to its copy in a wrapper."""
KNOWN_FROM = 10
"""In how many prompts a word must stand to be a known one."""
COVERAGE = 0.45
"""The share of known words under which a text is uncertain."""
QUANTILES = 101
_JUDGED = 1e-4
"""How exactly a model is fitted that only serves to judge: one weight in a hundred is off by its last bit."""

_SMALL = (
    "mixtral-8x7b-instruct-v0.1",
    "mistral-7b-instruct-v0.1",
    "mistral-7b-instruct-v0.3",
    "qwen2.5-7b-instruct",
    "llama-3.1-8b-instruct",
    "llama-3-8b-instruct",
    "gemma-2-9b-it",
    "hermes-2-pro-llama-3-8b",
    "mistral-nemo",
    "starling-lm-7b-alpha",
    "llama-2-70b-chat",
)
_LARGE = (
    "gpt-4-1106-preview",
    "claude-3.5-sonnet",
    "llama-3.1-nemotron-51b-instruct",
    "llama-3.3-nemotron-super-49b-v1",
)
_FOLDER = Path(__file__).parents[1] / "src" / "mead" / "router" / "classifier" / "weights"


class Example(NamedTuple):
    """A row with what the model sees of it, as it is and in a wrapper, and the gain that it is to predict."""

    set: str
    row: RoutingRow
    target: float
    question: str
    features: Features
    wrapped: Features


def read_examples(data: Path) -> list[Example]:
    """All rows of a folder, in the order of files and lines."""
    rows_by_set = load(data)
    raw_by_set = read_located(data)
    examples = []
    for name, rows in rows_by_set.items():
        scaled = to_unit_scale(rows)
        scale = 1.0 if scaled == rows else 10.0
        for row, raw in zip(scaled, raw_by_set[name], strict=True):
            examples.append(
                Example(
                    set=name,
                    row=row,
                    target=_target(row, raw.fields.get("scores"), scale),
                    question=re.sub(r"\W+", "", mask(row.prompt)[0].lower()),
                    features=features_of(row.prompt, row.tools),
                    wrapped=features_of(wrap(row.prompt, row.id, TRAINED), row.tools),
                )
            )
    return examples


def _target(row: RoutingRow, scores: object, scale: float) -> float:
    if not isinstance(scores, Mapping):
        return row.gain
    small = [scores[name] / scale for name in _SMALL if name in scores]
    large = [scores[name] / scale for name in _LARGE if name in scores]
    if not small or not large:
        return row.gain
    shared = sum(large) / len(large) - sum(small) / len(small)
    return (1 - SHARED) * row.gain + SHARED * shared


# Fitting


class Matrix(NamedTuple):
    """The examples as numbers: those as they are, then their wrapped copies."""

    words: Any
    grams: Any
    surface: Array
    targets: Array
    weights: Array
    count: int


def matrix_of(examples: Sequence[Example]) -> Matrix:
    """The examples as numbers."""
    seen = [each.features for each in examples] + [each.wrapped for each in examples]
    sizes = Counter([each.set for each in examples])
    weights = np.array([max(sizes[each.set], SMALLEST) ** -BALANCE for each in examples])
    weights /= weights.mean()
    targets = np.array([each.target for each in examples])
    return Matrix(
        words=indicator([each.words for each in seen], BUCKETS),
        grams=indicator([each.grams for each in seen], BUCKETS),
        surface=np.array([each.surface for each in seen]),
        targets=np.concatenate([targets, targets]),
        weights=np.concatenate([weights * (1 - WRAPPED), weights * WRAPPED]),
        count=len(examples),
    )


def fit(matrix: Matrix, chosen: Array, *, tolerance: float = 1e-10) -> Weights:
    """The model of the chosen examples (a mask), without its quantiles and its known words."""
    both = np.concatenate([chosen, chosen]).astype(bool)
    weights = matrix.weights[both]
    surface = matrix.surface[both]
    total = weights.sum()
    means = (surface * weights[:, None]).sum(0) / total
    deviations = np.sqrt(((surface - means) ** 2 * weights[:, None]).sum(0) / total)
    deviations[deviations < 1e-9] = 1.0
    rarity = [_rarity(block[both]) for block in (matrix.words, matrix.grams)]
    rows = sp.csr_matrix(
        sp.hstack(
            [
                matrix.words[both] @ sp.diags(rarity[0]),
                matrix.grams[both] @ sp.diags(rarity[1]),
                sp.csr_matrix(np.clip((surface - means) / deviations, -CLIP, CLIP)),
            ]
        )
    )
    found, intercept = ridge(rows, matrix.targets[both], weights, PENALTY, tolerance=tolerance)
    words, words_scale = _to_bytes(found[:BUCKETS] * rarity[0])
    grams, grams_scale = _to_bytes(found[BUCKETS : 2 * BUCKETS] * rarity[1])
    share = weights / total
    words_mean = float((share * (matrix.words[both] @ _from_bytes(words, words_scale))).sum())
    grams_mean = float((share * (matrix.grams[both] @ _from_bytes(grams, grams_scale))).sum())
    return Weights(
        intercept=_short(intercept + words_mean + grams_mean),
        words=words,
        words_scale=words_scale,
        words_mean=_short(words_mean),
        grams=grams,
        grams_scale=grams_scale,
        grams_mean=_short(grams_mean),
        surface=tuple(
            [
                SurfaceWeight(_short(mean), _short(deviation), _short(weight))
                for mean, deviation, weight in zip(means, deviations, found[2 * BUCKETS :], strict=True)
            ]
        ),
        quantiles=(),
        known=b"",
        coverage=COVERAGE,
    )


def _rarity(block: Any) -> Array:
    """How much a bucket may say: the logarithm of how rare it is, 1 on the average."""
    counts = np.asarray((block > 0).sum(0), dtype=float).ravel()
    rarity = np.maximum(np.log(block.shape[0] / (counts + 1)), 0.1)
    scaled: Array = rarity / np.sqrt((rarity**2 * counts).sum() / counts.sum())
    return scaled


def _to_bytes(values: Array) -> tuple[bytes, float]:
    scale = _short(float(np.abs(values).max()) / 127) or 1.0
    return np.clip(np.rint(values / scale), -127, 127).astype(np.int8).tobytes(), scale


def _from_bytes(data: bytes, scale: float) -> Array:
    return np.frombuffer(data, dtype=np.int8).astype(float) * scale


def _short(value: float) -> float:
    """Six digits: fewer than any difference that another processor's arithmetic could make."""
    return float(f"{value:.6g}")


def predict(weights: Weights, matrix: Matrix) -> Array:
    """The gains of the examples, from the bytes that a file of weights holds."""
    rows = slice(matrix.count)
    means = np.array([each.mean for each in weights.surface])
    deviations = np.array([each.deviation for each in weights.surface])
    away = np.clip((matrix.surface[rows] - means) / deviations, -CLIP, CLIP)
    gains: Array = (
        weights.intercept
        - weights.words_mean
        - weights.grams_mean
        + matrix.words[rows] @ _from_bytes(weights.words, weights.words_scale)
        + matrix.grams[rows] @ _from_bytes(weights.grams, weights.grams_scale)
        + (away * np.array([each.weight for each in weights.surface])).sum(1)
    )
    return gains


# Fitting without what is judged


def folds_of(keys: Iterable[str], folds: int) -> Array:
    """A fold for each key; equal keys share one, in whichever sets they stand."""
    digests = [hashlib.sha256(key.encode()).digest() for key in keys]
    return np.array([int.from_bytes(digest[:8], "big") % folds for digest in digests])


def by_question(examples: Sequence[Example], repeat: int = 0) -> Array:
    """Folds for cross-validation: a question is in one of them, though it stand in two sets. Each repeat has
    other folds."""
    return folds_of([f"{repeat} {each.question}" for each in examples], FOLDS)


def by_domain(examples: Sequence[Example]) -> Array:
    """Folds of whole categories (subjects, tasks), each judged by a model that has seen none of its rows."""
    return folds_of([f"{each.set} {each.row.category}" for each in examples], DOMAIN_FOLDS)


def by_set(examples: Sequence[Example]) -> Array:
    """A fold for each set."""
    names = sorted({each.set for each in examples})
    return np.array([names.index(each.set) for each in examples])


def held_out_gains(
    examples: Sequence[Example], matrix: Matrix, folds: Array, *, judged: Matrix | None = None
) -> Array:
    """Each example's gain, predicted by a model that was fitted to no example of its fold, nor to its
    question anywhere else. `judged` are the examples as they are to be judged, if other than as they are."""
    gains = np.zeros(len(examples))
    for fold in np.unique(folds):
        left_out = folds == fold
        asked = {each.question for each, out in zip(examples, left_out, strict=True) if out}
        chosen = np.array([each.question not in asked for each in examples]) & ~left_out
        gains[left_out] = predict(fit(matrix, chosen, tolerance=_JUDGED), judged or matrix)[left_out]
    return gains


def known_words(examples: Iterable[Example]) -> bytes:
    """The filter of the words that stand in several prompts."""
    counts = Counter([value for each in examples for value in sorted(set(each.features.hashes))])
    bits = bytearray(KNOWN_BITS // 8)
    for value, count in counts.items():
        if count >= KNOWN_FROM:
            bit = known_bit(value)
            bits[bit >> 3] |= 1 << (bit & 7)
    return bytes(bits)


def quantiles_of(examples: Sequence[Example], gains: Array) -> tuple[float, ...]:
    """The quantiles of gains, each set counting the same."""
    sizes = Counter([each.set for each in examples])
    order = np.argsort(gains, kind="stable")
    shares = np.array([1 / sizes[each.set] / len(sizes) for each in examples])[order]
    middles = np.cumsum(shares) - shares / 2
    wanted = np.linspace(0, 1, QUANTILES)
    found = [_short(float(value)) for value in np.interp(wanted, middles, gains[order])]
    for at in range(1, len(found)):
        found[at] = max(found[at], found[at - 1] + 1e-6)
    return tuple(found)


def train(examples: Sequence[Example], matrix: Matrix, cross_validated: Array) -> bytes:
    """The file of weights, fitted to all examples. `cross_validated` are their gains as models without them
    predict them: what was fitted would flatter itself."""
    weights = msgspec.structs.replace(
        fit(matrix, np.ones(len(examples))),
        quantiles=quantiles_of(examples, cross_validated),
        known=known_words(examples),
    )
    return msgspec.msgpack.encode(weights)


@click.command()
@click.argument("data", type=click.Path(path_type=Path, exists=True), default=Path("../shared/data/routing"))
@click.option("--evaluate", "only_evaluate", is_flag=True, help="Print the figures and write nothing.")
@click.option("--out", type=click.Path(path_type=Path), default=_FOLDER, help="The folder to write into.")
def main(data: Path, only_evaluate: bool, out: Path) -> None:
    """Fit the difficulty model to the rows of DATA."""
    from training.difficulty_report import figures_of, statement, strange_wrappers, table

    examples = read_examples(data)
    matrix = matrix_of(examples)
    figures = figures_of(examples, matrix)
    if only_evaluate:
        click.echo(table(figures))
        click.echo(strange_wrappers(examples, matrix))
        return
    weights = train(examples, matrix, figures.gains)
    out.mkdir(parents=True, exist_ok=True)
    (out / WEIGHTS).write_bytes(weights)
    (out / "DIFFICULTY.md").write_text(statement(examples, figures, weights), encoding="utf-8")
    click.echo(f"{out / WEIGHTS}: {len(weights):,} bytes")


if __name__ == "__main__":
    main()
