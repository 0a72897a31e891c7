"""What `--json` writes: a stable form (`docs/cli.md`), one object a line."""

from __future__ import annotations

import re

import msgspec

from mead.cli._terminal import write
from mead.core.reasons import Reason
from mead.core.turns import Answer, Decision
from mead.router.decide import Refused

# JSON itself leaves these as they are, and a terminal would act on them.
_UNESCAPED = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def write_json(value: object) -> None:
    """One JSON object on a line of its own."""
    write(json_text(msgspec.json.encode(value).decode()))


def json_text(text: str) -> str:
    """JSON with what a terminal would act on as escapes; it means the same."""
    return _UNESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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
        "left_out": answer.left_out,
        "warnings": answer.warnings,
        "decision": None if answer.decision is None else _decision_json(answer.decision),
        "session_id": session_id,
    }


def reason_json(reason: Reason, session_id: str | None = None) -> dict[str, object]:
    """A turn that failed, or could not be explained."""
    return {"ok": False, "reason": reason, "session_id": session_id}


def explanation_json(decision: Decision | Refused) -> dict[str, object]:
    """Where a turn would go. `refused` is the reason if it would be refused there."""
    if isinstance(decision, Refused):
        return {"ok": True, "decision": _decision_json(decision.decision), "refused": decision.reason}
    return {"ok": True, "decision": _decision_json(decision), "refused": None}


def _decision_json(decision: Decision) -> dict[str, object]:
    return {
        "route": decision.route,
        "source": decision.source,
        "provider": decision.provider,
        "model": decision.model,
        "causes": decision.causes,
        "label": decision.label,
        "private": decision.private,
        "findings": decision.findings,
        "score": None if decision.score is None else round(decision.score, 4),
        "threshold": None if decision.threshold is None else round(decision.threshold, 4),
        "contributions": decision.contributions,
        "version": decision.version,
        "may_escalate": decision.may_escalate,
        "withheld": decision.withheld,
        "tools": decision.tools,
        "emulates_tools": decision.emulates_tools,
        "not_known": decision.not_known,
    }
