"""How much better a strong model would answer a prompt than a weak one: a linear model in plain Python.

It was fitted to the recorded scores of pairs of models (`weights/DIFFICULTY.md` says to which) and looks at
the prompt only. It contacts nothing, and what it gives quotes nothing of the text.
"""

from __future__ import annotations

import functools
import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from importlib import resources
from math import sqrt

import msgspec
from msgspec import Struct

from mead.core.messages import Tool
from mead.core.turns import Contribution
from mead.router.classifier._features import SURFACE, Features, coverage, features_of

WEIGHTS = "difficulty.bin"
TOLD = 5
"""How many contributions are told of a prompt."""
FEWEST_WORDS = 2
"""A text with fewer known words than this says too little."""
CLIP = 3.0
"""How many standard deviations a surface feature counts for at most."""

# Several features of one thing are told as one: alone they often cancel each other out.
_TOLD_AS = tuple([name.partition(":")[0] for name in SURFACE])


class Difficulty(Struct, frozen=True, kw_only=True):
    """How hard a prompt is for a small model.

    `gain` is what the strong model is expected to add, in points of a score between 0 and 1. `score` is the
    share of ordinary traffic with a smaller gain: 0 is the easiest, 1 the hardest. `uncertain` says that too
    few of the text's words are known to go by either. `contributions` are the greatest, by magnitude, in
    points of the gain and in comparison with average traffic. What belongs together (all of the words, all of
    the tools) is told as one, and no word of the prompt is named.
    """

    score: float
    gain: float
    uncertain: bool
    contributions: tuple[Contribution, ...]


class SurfaceWeight(Struct, frozen=True, array_like=True, gc=False):
    """A surface feature: its mean and standard deviation in the training data, and its weight."""

    mean: float
    deviation: float
    weight: float


class Weights(Struct, frozen=True, kw_only=True, array_like=True):
    """The file of weights, as MessagePack.

    `words` and `grams` hold a signed byte for each bucket, to be multiplied by their scale; the sum over a
    text is divided by the root of how many buckets it has, and `words_mean` and `grams_mean` are what average
    traffic has there. `quantiles` are those of the gain, in equal steps. `known` is a bit for each known
    word; a text with a smaller share of them than `coverage` is uncertain.
    """

    intercept: float
    words: bytes
    words_scale: float
    words_mean: float
    grams: bytes
    grams_scale: float
    grams_mean: float
    surface: tuple[SurfaceWeight, ...]
    quantiles: tuple[float, ...]
    known: bytes
    coverage: float


class DifficultyModel:
    """The model. `version` names its weights: the first 12 hex digits of their SHA-256."""

    def __init__(self, data: bytes) -> None:
        """The model of a file of weights. Raises `ValueError` for anything else."""
        weights = msgspec.msgpack.decode(data, type=Weights)
        if len(weights.surface) != len(SURFACE):
            raise ValueError("the weights are for other features; run scripts/train")
        self.version = hashlib.sha256(data).hexdigest()[:12]
        self._weights = weights
        self._words = memoryview(weights.words).cast("b").tolist()
        self._grams = memoryview(weights.grams).cast("b").tolist()

    @staticmethod
    def load() -> DifficultyModel:
        """The model that comes with mead. It is read at the first call, and kept."""
        return _packaged()

    def judge(self, text: str, *, tools: Sequence[Tool] = ()) -> Difficulty:
        """How hard a prompt is; `tools` are those that are offered with it.

        Looks at the first 6,000 and the last 2,000 characters of a longer text.
        """
        features = features_of(text, tools)
        parts = self._parts(features)
        gain = self._weights.intercept + sum([part.value for part in parts])
        told = sorted(parts, key=lambda part: -abs(part.value))[:TOLD]
        return Difficulty(
            score=quantile_of(gain, self._weights.quantiles),
            gain=gain,
            uncertain=self._is_uncertain(features),
            contributions=tuple([part for part in told if part.value]),
        )

    def _parts(self, features: Features) -> list[Contribution]:
        weights = self._weights
        parts = {
            "words": _mean_weight(self._words, features.words) * weights.words_scale - weights.words_mean,
            "characters": _mean_weight(self._grams, features.grams) * weights.grams_scale
            - weights.grams_mean,
        }
        for name, value, fitted in zip(_TOLD_AS, features.surface, weights.surface, strict=True):
            away = max(-CLIP, min(CLIP, (value - fitted.mean) / fitted.deviation))
            parts[name] = parts.get(name, 0.0) + fitted.weight * away
        return [Contribution(name, value) for name, value in parts.items()]

    def _is_uncertain(self, features: Features) -> bool:
        found, share = coverage(features.hashes, self._weights.known)
        return found < FEWEST_WORDS or share < self._weights.coverage


@functools.cache
def _packaged() -> DifficultyModel:
    file = resources.files("mead.router.classifier").joinpath("weights").joinpath(WEIGHTS)
    return DifficultyModel(file.read_bytes())


def _mean_weight(weights: Sequence[int], buckets: Sequence[int]) -> float:
    return sum([weights[bucket] for bucket in buckets]) / sqrt(len(buckets) or 1)


def quantile_of(gain: float, quantiles: Sequence[float]) -> float:
    """Where a gain stands among quantiles in equal steps: 0 at or below the first, 1 at or above the last.

    >>> quantile_of(2.5, [0.0, 2.0, 3.0])
    0.75
    """
    at = bisect_right(quantiles, gain)
    if at == 0:
        return 0.0
    if at == len(quantiles):
        return 1.0
    low, high = quantiles[at - 1], quantiles[at]
    return (at - 1 + (gain - low) / (high - low)) / (len(quantiles) - 1)
