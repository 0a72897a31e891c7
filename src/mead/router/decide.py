"""Where a turn goes: a pure function. It looks at no clock, no network, no memory of the last call."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from mead.core.messages import Tool
from mead.core.options import Route, TurnOptions
from mead.core.reasons import (
    CloudUnavailable,
    InvalidOptions,
    LocalUnavailable,
    PrivateContent,
    ToolsUnsupported,
    TurnReason,
)
from mead.core.turns import Cause, Decision, Label, Turn, Verdict
from mead.providers.protocol import can_converse, name_of
from mead.router.slots import Slot, Slots

_FORCED = {
    "local": Cause("forced", "The turn asks for the local model."),
    "cloud": Cause("forced", "The turn asks for the cloud model."),
}


class Refused(Struct, frozen=True):
    """A decision that cannot be carried out, and why. Nothing is sent anywhere."""

    decision: Decision
    reason: TurnReason


def decide(
    turns: Sequence[Turn],
    options: TurnOptions,
    slots: Slots,
    verdict: Verdict | None,
    tools: Sequence[Tool] | None = None,
    *,
    escalates: bool = False,
) -> Decision | Refused:
    """Picks the slot of the newest of `turns`, and what the model may see.

    A forced route wins; otherwise `verdict`, the classifier's, decides, which only a turn forced to the local
    slot can do without. Refused with `LocalUnavailable` or `CloudUnavailable` for an empty slot, with
    `PrivateContent` for private content forced to the cloud without `allow_private`, and with
    `InvalidOptions` for a model that the slot does not list. `escalates` says that a local answer that is no
    good may be followed by one of the cloud model.
    """
    route: Route
    if options.route == "auto":
        if verdict is None:
            raise ValueError("a turn whose route is auto needs a verdict")
        route, causes = verdict.route, verdict.causes
    else:
        route, causes = options.route, (_FORCED[options.route], *(verdict.causes if verdict else ()))
    slot = slots[route]
    earlier = turns[:-1]
    private_turns = sum([turn.label == "local_only" for turn in earlier])
    private = verdict is not None and verdict.private
    # What a note tells is for the local model alone, and so is all that is made from it.
    sees_private = private_turns > 0 or options.note is not None
    label = _label(route, options, private=private, saw_private=sees_private)
    decision = Decision(
        route=route,
        source="classified" if options.route == "auto" else "forced",
        provider=name_of(slot.provider) if slot else None,
        model=(options.options.model or slot.options.model) if slot else None,
        causes=causes,
        label=label,
        withheld=private_turns if route == "cloud" else 0,
        tools=None if tools is None else tuple([tool.name for tool in tools]),
        emulates_tools=slot is not None and bool(getattr(slot.provider, "emulates_tools", False)),
        private=private,
        findings=verdict.findings if verdict else (),
        score=verdict.score if verdict else None,
        threshold=verdict.threshold if verdict else None,
        contributions=verdict.contributions if verdict else (),
        version=verdict.version if verdict else None,
        may_escalate=escalates
        and options.route == "auto"
        and route == "local"
        and label == "shareable"
        and slots.cloud is not None,
    )
    reason = _refusal(decision, slot, options)
    return decision if reason is None else Refused(decision, reason)


def _label(route: Route, options: TurnOptions, *, private: bool, saw_private: bool) -> Label:
    """A turn's label (R16): private, forced local, or made from what was."""
    if private or options.route == "local" or (route == "local" and saw_private):
        return "local_only"
    return "shareable"


def _refusal(decision: Decision, slot: Slot | None, options: TurnOptions) -> TurnReason | None:
    if decision.route == "cloud" and decision.private and not options.allow_private:
        kinds = tuple(dict.fromkeys([finding.kind for finding in decision.findings]))
        return PrivateContent(
            kinds=kinds,
            detail=f"the turn holds private content ({', '.join(kinds) or 'marked so'}) and asks for the "
            "cloud model; use the local one, or allow it for this turn",
        )
    if slot is None:
        hint = f"no {decision.route} model is configured: add a [router.slots.{decision.route}] to mead.toml"
        unavailable = LocalUnavailable if decision.route == "local" else CloudUnavailable
        return unavailable(detail=hint)
    fitting = slot.options_for(options.options)
    if isinstance(fitting, InvalidOptions):
        return fitting
    if options.client_tools and not can_converse(slot.provider):
        return ToolsUnsupported(
            detail=f"the request brings tools, and the {decision.route} model cannot use any; choose another "
            "model, or send no tools"
        )
    return None
