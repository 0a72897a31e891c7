"""What `--json` writes: a stable form (`docs/cli.md`), one object a line."""

from __future__ import annotations

import click
import msgspec

from mead.core.reasons import Reason
from mead.core.turns import Answer, Decision
from mead.router.decide import Refused


def write(value: object) -> None:
    """One JSON object on a line of its own."""
    click.echo(msgspec.json.encode(value).decode())


def answer_json(answer: Answer, session_id: str) -> dict[str, object]:
    """A turn that succeeded."""
    return {
        "ok": True,
        "text": answer.text,
        "route": answer.route,
        "stop_reason": answer.stop_reason,
        "label": answer.label,
        "usage": answer.usage,
        "tool_calls": answer.tool_calls,
        "warnings": answer.warnings,
        "decision": None if answer.decision is None else decision_json(answer.decision),
        "session_id": session_id,
    }


def reason_json(reason: Reason, session_id: str | None = None) -> dict[str, object]:
    """A turn that failed."""
    return {"ok": False, "reason": msgspec.to_builtins(reason), "session_id": session_id}


def decision_json(decision: Decision | Refused) -> dict[str, object]:
    """A decision; one that was refused has its `reason` beside it."""
    if isinstance(decision, Refused):
        return {**decision_json(decision.decision), "refused": msgspec.to_builtins(decision.reason)}
    return {
        "route": decision.route,
        "source": decision.source,
        "provider": decision.provider,
        "model": decision.model,
        "causes": [{"code": cause.code, "text": cause.text} for cause in decision.causes],
        "label": decision.label,
        "private": decision.private,
        "findings": [msgspec.to_builtins(finding) for finding in decision.findings],
        "score": decision.score,
        "withheld": decision.withheld,
        "tools": decision.tools,
    }
