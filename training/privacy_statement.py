"""Writes the data statement of the evidence classifier's weights."""

from __future__ import annotations

from collections.abc import Mapping

from mead.router.classifier.evidence import EvidenceFile
from mead.router.evaluation.privacy import Counts, PrivacyReport

_TEMPLATE = """# privacy.bin

Weights of the evidence classifier: the layer of the privacy gate that judges what a text says, where no
rule finds a value. Logistic regression with a ridge penalty on {buckets:,} hashed features (words with
digits masked, pairs of words with names masked, shapes of words; pairs of characters for scripts without
spaces), 8 bits a weight, {used:,} of them not zero. Made by `python -m training.privacy`; the same data
give the same bytes.

## Data

| set | private / public rows | origin | licence |
| --- | --- | --- | --- |
{sets}

The identifiers and secrets in `presidio_synth` and `synthetic` are generated; none is real. Rows without a
label are not used. Added to them: each private row with its value called by name only ("my card", "an
address") or its owner taken away ("our internal" becomes "a public"), as public; and the sentences of
`training/privacy_sentences.py`, written for this project in ten languages, each private one with a public
one that says nearly the same. Rows in which a rule finds a value weigh 1/50, so that the classifier does
not learn numbers: those are for the rules.

## Figures

Five-fold cross-validation, grouped by template, of the whole gate (rules and evidence). Thresholds:
{thresholds}.

| | precision | recall | false alarms |
| --- | --- | --- | --- |
{figures}

How far to trust them:

- Only the evidence classifier is cross-validated. The rules were written and mended while looking at these
  very rows, so what is said of rules, and of `hard` rows, is measured on known data. False alarms were
  mended on the other prompts of the routing sets, too.
- The written sentences were made by people who had read the rows, and some are worded like them (salaries,
  diagnoses, company internals). They are in every fold, so `contextual` rows look easier than new ones will
  be. The lines "without the written sentences" are the fairer ones for that, at the same thresholds.
- A kind that was not learned at all and has no rule is found far less often. With all rows of one kind of
  `synthetic` left out: {unlearned}.
- Features, penalty, row weights and thresholds were chosen on these figures.

## What it is not good at

- What is private by its meaning only (`contextual`) is found less surely than values are, above all in
  short requests, in languages other than English and Chinese, and where nothing says whose text it is ("the
  acquisition report").
- Names alone are no evidence, by design. Nor is it told apart whether a person is in public life.
- Everyday sentences in the first person ("we moved here from …") are sometimes taken for private, as are
  stories and exam questions about people's health, money or law.
- It judges windows of about 300 characters: what is private only over several paragraphs is not seen.
- It knows no secret values at all. A kind of value without a rule is found only if the words beside it give
  it away.
"""

_ORIGINS = {
    "presidio_synth": ("microsoft/presidio-research 7622dec", "MIT"),
    "vllm_sr_kb": ("vllm-project/semantic-router 3d48f8c, `config/knowledge_bases/privacy`", "Apache-2.0"),
    "leakbench": ("PyPI package endorouter 0.2.0", "Apache-2.0"),
    "natural_negatives": (
        "prompts of the routing sets (Arena, GSM8K, LLMRouter, MMLU, MT-Bench)",
        "those sets' own",
    ),
    "synthetic": ("generated for this project with Faker and own templates", "this project's"),
}


def statement(
    stored: EvidenceFile,
    figures: Mapping[str, PrivacyReport],
    unaided: Mapping[str, PrivacyReport],
    unlearned: Mapping[str, Counts],
) -> str:
    """The statement, with the figures of each profile; `unaided` are those without the written sentences, and
    `unlearned` what is found of each kind if it was left out."""
    any_report = next(iter(figures.values()))
    return _TEMPLATE.format(
        buckets=stored.buckets,
        used=sum([byte != 0 for byte in stored.weights]),
        sets="\n".join([_set_line(name, counts) for name, counts in any_report.sets.items()]),
        thresholds=", ".join([f"{least} ({profile})" for profile, least in stored.thresholds.items()]),
        unlearned=", ".join(
            [
                f"{kind.partition(':')[2]} {_rate(counts.recall)}"
                for kind, counts in unlearned.items()
                if counts.private and counts.found < counts.private
            ]
        ),
        figures="\n".join(_figure_lines(figures, unaided)),
    )


def _set_line(name: str, counts: Counts) -> str:
    origin, licence = _ORIGINS.get(name, ("not known", "not known"))
    return f"| `{name}` | {counts.private:,} / {counts.public:,} | {origin} | {licence} |"


def _figure_lines(figures: Mapping[str, PrivacyReport], unaided: Mapping[str, PrivacyReport]) -> list[str]:
    lines = [_line("rules alone, pooled", next(iter(figures.values())).baseline)]
    for profile, report in figures.items():
        lines.append(_line(f"{profile}, pooled", report.pooled))
        for name, tiers in report.tiers.items():
            lines += [_line(f"{profile}, `{name}`, {tier}", counts) for tier, counts in tiers.items()]
    for profile, report in unaided.items():
        named = f"{profile}, without the written sentences"
        lines.append(_line(f"{named}, pooled", report.pooled))
        lines += [
            _line(f"{named}, `{name}`, contextual", tiers["contextual"])
            for name, tiers in report.tiers.items()
            if "contextual" in tiers
        ]
    return lines


def _line(name: str, counts: Counts) -> str:
    precision = counts.precision if counts.private and counts.public else None
    values = [_rate(value) for value in (precision, counts.recall, counts.false_alarm_rate)]
    return f"| {name} | {' | '.join(values)} |"


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
