"""How well a privacy gate tells private texts from public ones, measured on labelled rows.

A row is private or public by its `private` (1 or 0; rows with `null` are not scored). A row with `messages`
is judged as a conversation: it is found private if any message is, or a value that two of them share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from mead.router.classifier.gate import PrivacyGate
from mead.router.classifier.patterns import find
from mead.router.evaluation.rows import DataError, RawRow, read_located


class PrivacyMessage(Struct, frozen=True):
    """A message of a conversation."""

    content: str


class PrivacyRow(Struct, frozen=True, kw_only=True):
    """A labelled text. `tier` says how plainly it is private: `hard`, `contextual` …"""

    id: str
    prompt: str
    private: Literal[0, 1] | None
    tier: str = ""
    kinds: tuple[str, ...] | None = ()
    messages: tuple[PrivacyMessage, ...] | None = ()

    @property
    def texts(self) -> tuple[str, ...]:
        """What is to be scanned: the messages, or the prompt where there are none."""
        return tuple([message.content for message in self.messages or ()]) or (self.prompt,)


class Counts(Struct, frozen=True, kw_only=True):
    """How many private and public rows there are, and how many of each were taken for private."""

    private: int
    found: int
    public: int
    false_alarms: int

    @property
    def recall(self) -> float | None:
        """The share of private rows that were found; `None` if there are none."""
        return self.found / self.private if self.private else None

    @property
    def precision(self) -> float | None:
        """The share of private rows among those taken for private; `None` if there are none."""
        taken = self.found + self.false_alarms
        return self.found / taken if taken else None

    @property
    def false_alarm_rate(self) -> float | None:
        """The share of public rows that were taken for private; `None` if there are none."""
        return self.false_alarms / self.public if self.public else None


class CurvePoint(Struct, frozen=True):
    """What a threshold of the evidence's probability gives."""

    threshold: float
    precision: float
    recall: float


class PrivacyReport(Struct, frozen=True, kw_only=True):
    """The figures: `tiers` by set and tier, `sets` by set, `pooled` over all; `baseline` is pooled, of the
    rules alone. `curve` goes from the highest threshold to the lowest."""

    sets: dict[str, Counts]
    tiers: dict[str, dict[str, Counts]]
    pooled: Counts
    baseline: Counts
    curve: tuple[CurvePoint, ...]

    def to_json(self) -> dict[str, object]:
        """The figures as plain values; a rate without rows to count is `None`."""
        return {
            "sets": {
                name: {
                    **_figures(counts),
                    "tiers": {tier: _figures(c) for tier, c in self.tiers[name].items()},
                }
                for name, counts in self.sets.items()
            },
            "pooled": _figures(self.pooled),
            "baselines": {"rules": _figures(self.baseline)},
        }


def _figures(counts: Counts) -> dict[str, float | int | None]:
    return {
        "precision": counts.precision,
        "recall": counts.recall,
        "false_alarm_rate": counts.false_alarm_rate,
        "private": counts.private,
        "public": counts.public,
    }


class Judgement(Struct, frozen=True):
    """What was found of a row: by the gate, by the rules alone, and how likely it is private (0 to 1)."""

    row: PrivacyRow
    found: bool
    by_rules: bool
    probability: float


def load(path: Path) -> dict[str, list[PrivacyRow]]:
    """The rows of a file, or of all `.jsonl` and `.jsonl.gz` files of a folder, by set (the file's name).

    Raises `DataError`, which names the file, the line and the field.
    """
    return {name: [_row(raw) for raw in rows] for name, rows in read_located(path).items()}


def _row(raw: RawRow) -> PrivacyRow:
    # A label that is left out is a mistake; `null` is none.
    if "private" not in raw.fields:
        raise raw.error("Object missing required field `private`")
    return raw.convert(PrivacyRow)


def judge(row: PrivacyRow, gate: PrivacyGate) -> Judgement:
    """What a gate and the rules alone say of a row."""
    texts = row.texts
    by_rules = any(find(text) for text in texts)
    at_seam = len(texts) > 1 and bool(gate.scan_joined(texts))
    found = at_seam or any(gate.scan(text) for text in texts)
    probability = 1.0 if at_seam else max([gate.probability(text) for text in texts])
    return Judgement(row, found, by_rules, probability)


def evaluate(rows_by_set: Mapping[str, Sequence[PrivacyRow]], gate: PrivacyGate) -> PrivacyReport:
    """Runs the gate over all rows that have a label. Raises `DataError` if none has one."""
    return report(
        {
            name: [judge(row, gate) for row in rows if row.private is not None]
            for name, rows in rows_by_set.items()
        }
    )


def report(judged: Mapping[str, Sequence[Judgement]]) -> PrivacyReport:
    """The figures of rows that were judged. Raises `DataError` if there are none."""
    everything = [judgement for of_set in judged.values() for judgement in of_set]
    if not everything:
        raise DataError("no row has a label: `private` is null in all of them")
    return PrivacyReport(
        sets={name: _count(of_set) for name, of_set in judged.items()},
        tiers={name: _by_tier(of_set) for name, of_set in judged.items()},
        pooled=_count(everything),
        baseline=_count(everything, by=lambda judgement: judgement.by_rules),
        curve=_curve(everything),
    )


def _count(
    judged: Sequence[Judgement], by: Callable[[Judgement], bool] = lambda judgement: judgement.found
) -> Counts:
    private = [by(judgement) for judgement in judged if judgement.row.private]
    public = [by(judgement) for judgement in judged if not judgement.row.private]
    return Counts(private=len(private), found=sum(private), public=len(public), false_alarms=sum(public))


def _by_tier(judged: Sequence[Judgement]) -> dict[str, Counts]:
    tiers: dict[str, list[Judgement]] = {}
    for judgement in judged:
        tiers.setdefault(judgement.row.tier or "none", []).append(judgement)
    return {tier: _count(tiers[tier]) for tier in sorted(tiers)}


def _curve(judged: Sequence[Judgement]) -> tuple[CurvePoint, ...]:
    private = sum([judgement.row.private or 0 for judgement in judged])
    points: list[CurvePoint] = []
    found = 0
    ranked = sorted(judged, key=lambda judgement: -judgement.probability)
    for taken, judgement in enumerate(ranked, 1):
        found += judgement.row.private or 0
        # Rows of one probability stand or fall together.
        if taken == len(ranked) or ranked[taken].probability != judgement.probability:
            recall = found / private if private else 0.0
            points.append(CurvePoint(judgement.probability, found / taken, recall))
    return tuple(points)
