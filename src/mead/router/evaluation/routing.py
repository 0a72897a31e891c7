"""How well a difficulty score picks between a weak and a strong model, from the recorded scores of both.

The metrics are those of RouteLLM (arXiv 2406.18665, section 4). The fraction f of the rows with the highest
difficulty goes to the strong model; q(f) is the mean score that comes of it, W and S are the means of all
weak and all strong.

- PGR(f) = (q(f) - W) / (S - W), the performance gap recovered.
- APGR is the area under PGR by the trapezoid rule over all cut-offs. Random has 0.5.
- CPT(x) is the least f, in percent, with PGR(f) >= x percent. Random has x.

Among rows of equal difficulty nobody can choose, so the strong model's share of them is spread evenly.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from mead.core.messages import Tool
from mead.router.evaluation.rows import RawRow, read_located

MIXED_LIMIT = 500
"""How many rows of a set the mixed traffic holds at most."""
_JUDGE_SCALE = 10.0
_EPSILON = 1e-12
_PLOTTED = 100


class RoutingRow(Struct, frozen=True, kw_only=True):
    """One prompt with both models' scores. A judge's scores stand between 1 and 10, all others between 0 and
    1. `tools` are those that were offered with it."""

    prompt: str
    weak_score: float
    strong_score: float
    id: str = ""
    category: str = ""
    tools: tuple[Tool, ...] = ()
    heldout_domain: bool = False

    @property
    def gain(self) -> float:
        """What the strong model adds."""
        return self.strong_score - self.weak_score


Score: TypeAlias = Callable[[RoutingRow], float]
"""How hard a row is; only the order counts."""


class Metrics(Struct, frozen=True, kw_only=True):
    """How well rows were ordered. All but `rows` are `None` where the strong model gains nothing over all:
    then there is no gap to recover. `cpt50` and `cpt80` are percents of the rows."""

    rows: int
    apgr: float | None
    cpt50: float | None
    cpt80: float | None


class Point(Struct, frozen=True):
    """A point of the cost-quality curve: the share of the rows that the strong model gets (0 to 1), and the
    performance gap recovered."""

    share: float
    pgr: float


RANDOM = Metrics(rows=0, apgr=0.5, cpt50=50.0, cpt80=80.0)
"""What choosing at random comes to, for any rows."""


class Judged(Struct, frozen=True, kw_only=True):
    """One score's metrics for each set and for the mixed traffic, and the curve of the mixed traffic."""

    sets: Mapping[str, Metrics]
    mixed: Metrics
    curve: tuple[Point, ...]


class RoutingReport(Struct, frozen=True, kw_only=True):
    """A score's metrics, and those of what needs no model: the prompt's length."""

    judged: Judged
    length: Judged

    @property
    def sets(self) -> Mapping[str, Metrics]:
        """The metrics of each set."""
        return self.judged.sets

    @property
    def mixed(self) -> Metrics:
        """The metrics of the mixed traffic: at most 500 rows of each set, one threshold for all."""
        return self.judged.mixed

    @property
    def curve(self) -> tuple[Point, ...]:
        """The cost-quality curve of the mixed traffic."""
        return self.judged.curve

    def to_json(self) -> dict[str, object]:
        """The report as JSON. `baselines` holds the same for random choice and for the prompt's length."""
        random = {**_metrics_json(RANDOM), "rows": self.mixed.rows}
        return {
            **_judged_json(self.judged),
            "baselines": {"random": {"mixed": random}, "length": _judged_json(self.length)},
        }


def _judged_json(judged: Judged) -> dict[str, object]:
    sets = {name: _metrics_json(metrics) for name, metrics in judged.sets.items()}
    return {"sets": sets, "mixed": _metrics_json(judged.mixed)}


def _metrics_json(metrics: Metrics) -> dict[str, object]:
    return {
        "apgr": metrics.apgr,
        "cpt50": metrics.cpt50,
        "cpt80": metrics.cpt80,
        "rows": metrics.rows,
    }


# Reading


class _Function(Struct):
    """A function's definition as the data has it: JSON Schema's `object` is called `dict` there."""

    name: str
    description: str | None = None
    parameters: dict[str, object] = {}


class _Fields(Struct, kw_only=True):
    prompt: str
    weak_score: Annotated[float, Meta(ge=0, le=10)]
    strong_score: Annotated[float, Meta(ge=0, le=10)]
    id: str = ""
    category: str = ""
    tools: object = None
    heldout_domain: bool = False


def load(path: Path) -> dict[str, list[RoutingRow]]:
    """The rows of a file or a folder (`.jsonl`, `.jsonl.gz`) by set; a set is a file.

    Each row needs `prompt`, `weak_score` and `strong_score`. `tools` is a list of function definitions, or
    one, as JSON or as a string of JSON. Raises `DataError`, naming file, line and field.
    """
    return {name: [_row(raw) for raw in rows] for name, rows in read_located(path).items()}


def _row(raw: RawRow) -> RoutingRow:
    fields = raw.convert(_Fields)
    return RoutingRow(
        prompt=fields.prompt,
        weak_score=fields.weak_score,
        strong_score=fields.strong_score,
        id=fields.id,
        category=fields.category,
        tools=_tools(raw, fields.tools),
        heldout_domain=fields.heldout_domain,
    )


def _tools(raw: RawRow, value: object) -> tuple[Tool, ...]:
    if value is None:
        return ()
    try:
        if isinstance(value, str):
            value = msgspec.json.decode(value)
        found = msgspec.convert([value] if isinstance(value, dict) else value, list[_Function])
    except msgspec.MsgspecError as error:
        raise raw.error(f"tools: {error}") from None
    return tuple([Tool(each.name, each.description, each.parameters) for each in found])


# Judging


def evaluate(rows_by_set: Mapping[str, Sequence[RoutingRow]], score: Score) -> RoutingReport:
    """How well `score` orders each set, and the mixed traffic of all. Scores of a judge are divided by 10."""
    scaled = {name: to_unit_scale(rows) for name, rows in rows_by_set.items()}
    return RoutingReport(judged=_judge(scaled, score), length=_judge(scaled, prompt_length))


def prompt_length(row: RoutingRow) -> float:
    """The baseline that needs nothing: the prompt's length in characters."""
    return len(row.prompt)


def to_unit_scale(rows: Sequence[RoutingRow]) -> list[RoutingRow]:
    """The rows with their scores between 0 and 1: a set with a score above 1 has a judge's."""
    if not any(max(row.weak_score, row.strong_score) > 1 for row in rows):
        return list(rows)
    return [
        msgspec.structs.replace(
            row, weak_score=row.weak_score / _JUDGE_SCALE, strong_score=row.strong_score / _JUDGE_SCALE
        )
        for row in rows
    ]


def drawn(rows: Sequence[RoutingRow]) -> list[int]:
    """The rows, by position, that stand for their set in the mixed traffic: at most 500, the first by the
    SHA-256 of their ids, so that they are the same each time."""
    return sorted(range(len(rows)), key=lambda at: _draw(rows[at]))[:MIXED_LIMIT]


def _draw(row: RoutingRow) -> bytes:
    return hashlib.sha256((row.id or row.prompt).encode("utf-8", "surrogatepass")).digest()


def _judge(rows_by_set: Mapping[str, Sequence[RoutingRow]], score: Score) -> Judged:
    sets: dict[str, Metrics] = {}
    pool: list[tuple[float, float]] = []
    for name, rows in rows_by_set.items():
        scored = [(float(score(row)), row.gain) for row in rows]
        sets[name] = metrics_of(scored)
        pool += [scored[at] for at in drawn(rows)]
    return Judged(sets=sets, mixed=metrics_of(pool), curve=_thinned(curve_of(pool)))


def metrics_of(scored: Sequence[tuple[float, float]]) -> Metrics:
    """The metrics of rows, each given as its difficulty and its gain."""
    points = curve_of(scored)
    if not points:
        return Metrics(rows=len(scored), apgr=None, cpt50=None, cpt80=None)
    area = sum([(right.share - left.share) * (left.pgr + right.pgr) / 2 for left, right in pairwise(points)])
    cpt50, cpt80 = [_reached(points, pgr, len(scored)) for pgr in (0.5, 0.8)]
    return Metrics(rows=len(scored), apgr=area, cpt50=cpt50, cpt80=cpt80)


def curve_of(scored: Sequence[tuple[float, float]]) -> list[Point]:
    """The curve's corners, from nothing to the strong model up to everything. Between two corners, that is
    within a tie, it is straight. Empty where the strong model gains nothing over all."""
    whole = sum([gain for _, gain in scored])
    if whole <= _EPSILON:
        return []
    ties: dict[float, list[float]] = {}
    for difficulty, gain in scored:
        ties.setdefault(difficulty, []).append(gain)
    points = [Point(0.0, 0.0)]
    count, gained = 0, 0.0
    for difficulty in sorted(ties, reverse=True):
        count += len(ties[difficulty])
        gained += sum(ties[difficulty])
        points.append(Point(count / len(scored), gained / whole))
    return points


def _reached(points: Sequence[Point], pgr: float, rows: int) -> float:
    """The least share, in percent, at which the curve reaches `pgr`: one of whole rows."""
    for left, right in pairwise(points):
        if right.pgr >= pgr - _EPSILON:
            part = max(0.0, (pgr - left.pgr) / (right.pgr - left.pgr))
            share = left.share + part * (right.share - left.share)
            return 100 * math.ceil(share * rows - 1e-6) / rows
    return 100.0


def _thinned(points: Sequence[Point]) -> tuple[Point, ...]:
    """About a hundred of the points, the first and the last among them."""
    step = max(1, len(points) // _PLOTTED)
    kept = list(points[::step])
    if points and kept[-1] != points[-1]:
        kept.append(points[-1])
    return tuple(kept)
