"""`mead explain`: where a turn would go and why. Nothing is sent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from mead.cli._json import explanation_json, reason_json, write_json
from mead.cli._open import command_settings, open_runtime
from mead.cli._options import read_turn, turn_options
from mead.cli._terminal import TURN_FAILED, describe, fail_usage, safe, say, write
from mead.core.result import Err
from mead.core.turns import Decision
from mead.router.decide import Refused


@click.command("explain")
@click.argument("text", nargs=-1)
@turn_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def command(config: Path | None, /, text: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Say where a turn would go and why, without sending anything."""
    question, turn = read_turn(text, **options)
    settings = command_settings(config)
    if settings.router.handler == "echo":
        fail_usage('nothing is routed: with handler = "echo" under [router] every turn is echoed')
    with open_runtime(settings, keeps=False) as runtime:
        result = runtime.explain(question, **turn)
    if isinstance(result, Err):
        if as_json:
            write_json(reason_json(result.reason))
        say(f"mead: {describe(result.reason)}")
        sys.exit(TURN_FAILED)
    if as_json:
        write_json(explanation_json(result.value))
    else:
        write(safe("\n".join(lines_of(result.value))))


def lines_of(decision: Decision | Refused) -> list[str]:
    """A decision in lines for a person."""
    refused = decision.reason if isinstance(decision, Refused) else None
    if isinstance(decision, Refused):
        decision = decision.decision
    where = f"{decision.provider or 'nothing'}" + (f", model {decision.model}" if decision.model else "")
    lines = [f"route     {decision.route} ({decision.source}) → {where}"]
    lines += [f"because   {cause.text}" for cause in decision.causes]
    lines += [
        f"found     {finding.kind} at {finding.start}–{finding.end}: {finding.masked}"
        for finding in decision.findings
    ]
    lines += _score_lines(decision)
    lines += [f"not known {cause.text}" for cause in decision.not_known]
    if decision.may_escalate:
        lines.append("after     if the local answer is no good, the cloud model is asked too")
    lines.append(f"label     {decision.label}")
    if decision.withheld:
        lines.append(f"withheld  {decision.withheld} earlier turns, which are local_only")
    tools = "not known yet" if decision.tools is None else ", ".join(decision.tools) or "none"
    emulated = " (emulated: the model was not trained to use any)" if decision.emulates_tools else ""
    lines.append(f"tools     {tools}{emulated if decision.tools != () else ''}")
    if refused is not None:
        lines.append(f"refused   {describe(refused)}")
    return lines


def _score_lines(decision: Decision) -> list[str]:
    """The score with what moved it most; nothing where nobody asked for it."""
    if decision.score is None:
        return []
    lines = [f"score     {decision.score:.2f} (the share of ordinary turns that are easier)"]
    if decision.threshold is not None:
        lines.append(f"threshold {decision.threshold:.2f} (from here on the cloud model is asked)")
    if decision.contributions:
        moved = [f"{part.name} {part.value:+.3f}" for part in decision.contributions]
        lines.append(f"moved by  {', '.join(moved)} (model {decision.version})")
    return lines
