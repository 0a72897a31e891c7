"""Trains the evidence classifier of the privacy gate, or measures it.

    python -m training.privacy [DATA]               writes the weights and their data statement
    python -m training.privacy --evaluate [DATA]    prints what cross-validation says

The same data give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import scipy.sparse as sp

from mead.router.classifier.evidence import BUCKETS, Evidence, EvidenceFile, decode, features
from mead.router.classifier.gate import PrivacyGate
from mead.router.evaluation.privacy import Counts, Judgement, PrivacyReport, PrivacyRow, judge, load, report
from mead.router.evaluation.rows import read_rows
from training.linear import indicator, ridge
from training.privacy_data import Example, Rows, examples, groups, written
from training.privacy_statement import statement

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data" / "privacy"
WEIGHTS = ROOT / "src" / "mead" / "router" / "classifier" / "weights"
FOLDS = 5
_PENALTY = 0.2
_NEWTON_STEPS = 12
# A feature seen in fewer groups than this says more of its row than of what is private.
_LEAST_GROUPS = 2
# How likely is likely enough; chosen on the cross-validated figures.
THRESHOLDS = {"balanced": 0.42, "strict": 0.28}


def fit(learned: Sequence[Example]) -> EvidenceFile:
    """Logistic regression with a ridge penalty, by Newton's method, its weights cut to 8 bits."""
    rows = [tuple(sorted(features(example.text))) or (0,) for example in learned]
    matrix = indicator(rows, BUCKETS) @ sp.diags(_common(rows, [example.group for example in learned]))
    private = np.array([float(example.private) for example in learned])
    counts = np.array([example.weight for example in learned])
    total = np.zeros(len(learned))
    weights, bias = np.zeros(BUCKETS), 0.0
    for _ in range(_NEWTON_STEPS):
        likely = 1 / (1 + np.exp(-np.clip(total, -12, 12)))
        curvature = np.maximum(likely * (1 - likely), 1e-3)
        weights, bias = ridge(matrix, total + (private - likely) / curvature, counts * curvature, _PENALTY)
        total = matrix @ weights + bias
    scale = float(np.round(np.abs(weights).max() / 127, 6))
    # Rounded first to what sums in another order cannot change.
    small = np.clip(np.rint(np.round(weights / scale, 4)), -127, 127).astype(np.int8)
    return EvidenceFile(
        buckets=BUCKETS,
        bias=round(float(bias), 4),
        scale=scale,
        thresholds=THRESHOLDS,
        weights=small.tobytes(),
    )


def _common(rows: Sequence[tuple[int, ...]], of_group: Sequence[str]) -> Sequence[float]:
    """One for each bucket that stands in enough groups, zero for the others."""
    seen: dict[int, set[str]] = {}
    for buckets, group in zip(rows, of_group, strict=True):
        for bucket in buckets:
            seen.setdefault(bucket, set()).add(group)
    return [float(len(seen.get(bucket, ())) >= _LEAST_GROUPS) for bucket in range(BUCKETS)]


def train(rows: Rows) -> EvidenceFile:
    """The weights from all rows and the written sentences."""
    return fit([*examples(rows), *written()])


def _evidence(stored: EvidenceFile) -> Evidence:
    return decode(msgspec.msgpack.encode(stored))


def fold_of(group: str) -> int:
    """Which fold a group is in."""
    return int.from_bytes(hashlib.sha256(group.encode("utf-8", "surrogatepass")).digest()[:4], "big") % FOLDS


def cross_validate(data: Path, *, aided: bool = True) -> dict[str, list[Judgement]]:
    """Each labelled row judged by a classifier that has learned from no row of its group.

    Unless `aided`, the written sentences are left out as well: whoever wrote them had read the rows. The
    rules are as they are, in every fold.
    """
    raw, rows = read_rows(data), load(data)
    of = groups(raw)
    everything, own = list(examples(raw)), list(written()) if aided else []
    judged: dict[str, list[Judgement]] = {name: [] for name in rows}
    for fold in range(FOLDS):
        learned = [example for example in everything if fold_of(example.group) != fold]
        gate = PrivacyGate(classifier=_evidence(fit([*learned, *own])))
        for name, of_set in rows.items():
            judged[name] += [
                judge(row, gate) for row in of_set if row.private is not None and fold_of(of[row.id]) == fold
            ]
    return judged


def leave_kind_out(data: Path, set_name: str = "synthetic") -> dict[str, tuple[Counts, Counts]]:
    """For each kind of a set what the gate and the evidence alone find of it, if it was not learned."""
    raw, rows = read_rows(data), load(data)
    kinds = sorted({kind for row in rows.get(set_name, ()) for kind in row.kinds or ()})
    found = {}
    for kind in kinds:
        others = {name: [row for row in of if not _is_of(row, kind)] for name, of in raw.items()}
        gate = PrivacyGate(classifier=_evidence(train(others)))
        judged = [judge(row, gate) for row in rows[set_name] if kind in (row.kinds or ())]
        least = THRESHOLDS["balanced"]
        alone = [msgspec.structs.replace(j, found=_evidence_alone(gate, j.row) >= least) for j in judged]
        found[kind] = (report({kind: judged}).pooled, report({kind: alone}).pooled)
    return found


def _is_of(row: Mapping[str, object], kind: str) -> bool:
    kinds = row.get("kinds")
    return isinstance(kinds, list) and kind in kinds


def _evidence_alone(gate: PrivacyGate, row: PrivacyRow) -> float:
    return max(
        [window.probability for text in row.texts for window in gate.classifier.judge(text)], default=0.0
    )


def at(judged: dict[str, list[Judgement]], least: float) -> PrivacyReport:
    """The report that another threshold would have given."""
    return report(
        {
            name: [
                msgspec.structs.replace(judgement, found=judgement.probability >= least) for judgement in rows
            ]
            for name, rows in judged.items()
        }
    )


def _rate(value: float | None) -> str:
    return "   – " if value is None else f"{value:.3f}"


def _lines(figures: PrivacyReport) -> Iterable[str]:
    rows = [("pooled", figures.pooled), ("rules alone", figures.baseline)]
    for name, counts in figures.sets.items():
        rows.append((name, counts))
        rows += [(f"  {tier}", of_tier) for tier, of_tier in figures.tiers[name].items()]
    for name, counts in rows:
        shares = " ".join([_rate(v) for v in (counts.precision, counts.recall, counts.false_alarm_rate)])
        yield f"{name:20} {shares}  {counts.private:5} {counts.public:5}"


def evaluate(data: Path, say: Callable[[str], None]) -> None:
    """Says the cross-validated figures: by profile, the whole curve, and with each kind left out."""
    judged = cross_validate(data)
    for profile, least in THRESHOLDS.items():
        say(
            f"\n{profile} (threshold {least}), {FOLDS} folds by template:"
            " precision, recall, false alarms, rows"
        )
        for line in _lines(at(judged, least)):
            say(line)
    unaided = cross_validate(data, aided=False)
    for profile, least in THRESHOLDS.items():
        say(f"\n{profile}, without the written sentences (their author had read the rows)")
        for line in _lines(at(unaided, least)):
            say(line)
    say("\nThe rules were mended on these rows: only the evidence is cross-validated.")
    say(
        "\nthreshold: precision, recall (pooled),"
        " false alarms on natural_negatives and on public synthetic rows"
    )
    for step in range(19, 0, -1):
        figures = at(judged, step / 20)
        false_alarms = [
            figures.sets[name].false_alarm_rate
            for name in ("natural_negatives", "synthetic")
            if name in figures.sets
        ]
        shown = [figures.pooled.precision, figures.pooled.recall, *false_alarms]
        say(f"  {step / 20:.2f}  " + " ".join([_rate(value) for value in shown]))
    say(
        "\nkinds of `synthetic` that were not learned:"
        " share found (false alarms where public), and that by the evidence alone"
    )
    for kind, (whole, alone) in leave_kind_out(data).items():
        both = [c.recall if c.private else c.false_alarm_rate for c in (whole, alone)]
        say(f"  {kind:24} {_rate(both[0])} {_rate(both[1])}  {whole.private + whole.public:4}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m training.privacy", description=__doc__)
    parser.add_argument("data", type=Path, nargs="?", default=DATA)
    parser.add_argument("--evaluate", action="store_true", help="print figures, write nothing")
    arguments = parser.parse_args()
    if arguments.evaluate:
        evaluate(arguments.data, print)
        return
    stored = train(read_rows(arguments.data))
    WEIGHTS.mkdir(exist_ok=True)
    WEIGHTS.joinpath("privacy.bin").write_bytes(msgspec.msgpack.encode(stored))
    aided, unaided = cross_validate(arguments.data), cross_validate(arguments.data, aided=False)
    figures = {profile: at(aided, least) for profile, least in THRESHOLDS.items()}
    fairer = {profile: at(unaided, least) for profile, least in THRESHOLDS.items()}
    unlearned = {kind: whole for kind, (whole, _) in leave_kind_out(arguments.data).items()}
    WEIGHTS.joinpath("PRIVACY.md").write_text(statement(stored, figures, fairer, unlearned), encoding="utf-8")


if __name__ == "__main__":
    main()
