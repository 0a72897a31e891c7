"""Decides a turn from what is known now: the same for a turn that is routed and for one that is explained.

Nothing here contacts anything but `get_to_know`, which only a turn that is routed waits for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from mead.core.messages import Tool
from mead.core.options import TurnOptions
from mead.core.reasons import InvalidOptions, TurnReason
from mead.core.turns import Cause, Decision, Hub, Turn, Verdict
from mead.providers.protocol import WORTH_ASKING_BYTES, can_converse, context_tokens_of, known_of
from mead.router.capability import local_lacks
from mead.router.classifier import Classifier, judge, newest_input
from mead.router.decide import Refused, decide
from mead.router.history import gated
from mead.router.slots import Slot, Slots
from mead.router.views import local_view
from mead.router.window import prompt_bytes
from mead.settings.values import EscalationSettings


class Decided(Struct, frozen=True, kw_only=True):
    """A decision with what it was made of. `turns` carry the labels that it went by, `slots` are in the order
    in which their providers are asked. `verdict` is `None` where no classifier was asked. `took_s` is how
    long the deciding took, in seconds."""

    outcome: Decision | Refused
    turns: Sequence[Turn]
    slots: Slots
    verdict: Verdict | None
    took_s: float

    @property
    def decision(self) -> Decision:
        """The decision, also of a turn that is refused."""
        return self.outcome.decision if isinstance(self.outcome, Refused) else self.outcome

    @property
    def reason(self) -> TurnReason | None:
        """Why the turn is refused; `None` for one that is not."""
        return self.outcome.reason if isinstance(self.outcome, Refused) else None

    @property
    def slot(self) -> Slot:
        """The slot of a turn that is not refused."""
        slot = self.slots[self.decision.route]
        assert slot is not None  # `decide` refuses an empty slot
        return slot


def decide_now(
    turns: Sequence[Turn],
    options: TurnOptions,
    slots: Slots,
    hub: Hub,
    classifier: Classifier,
    escalation: EscalationSettings,
) -> Decided:
    """Decides the newest of `turns` from what is known at this moment."""
    started = time.perf_counter()
    slots = slots.ready(options.options)
    if slots.cloud is not None and options.route != "local":
        turns = [*gated(turns[:-1], classifier), turns[-1]]
    verdict = None
    if options.route != "local":  # a turn that is forced local is private whatever it says
        tools, lacks = _known_tools(slots.local, options, hub), None
        if options.route == "auto" and slots.cloud is not None:
            lacks = local_lacks(slots.local, turns, options, tools)
        verdict = judge(classifier, newest_input(turns, options, slots, tools=tools, lacks=lacks))
    outcome = decide(turns, options, slots, verdict, escalates=escalation.to is not None)
    took_s = time.perf_counter() - started
    return Decided(outcome=outcome, turns=turns, slots=slots, verdict=verdict, took_s=took_s)


async def get_to_know(turns: Sequence[Turn], options: TurnOptions, slots: Slots, hub: Hub) -> None:
    """Asks for what the decision of an `auto` turn needs and nobody knows yet: which tools there are, and
    where the turn is long, how much the local model's context holds. All of it is remembered by hub and
    provider, where `decide_now` finds it."""
    local = slots.local
    if local is None or slots.cloud is None:
        return
    if may_use_tools(local, options) or may_use_tools(slots.cloud, options):
        await hub.tools_for(options)
    chosen = local.options_for(options.options)
    if isinstance(chosen, InvalidOptions):
        return
    size = prompt_bytes(local_view(turns[:-1]).history, turns[-1].messages, 0)
    asked = msgspec.structs.replace(
        chosen, deadline=options.scope.deadline, route="local", scope=options.scope
    )
    await context_tokens_of(local.provider, asked, size)


def not_known(decided: Decided, options: TurnOptions, hub: Hub) -> tuple[Cause, ...]:
    """What `get_to_know` would ask for and nobody knows yet, where the turn's route may depend on it."""
    local, verdict = decided.slots.local, decided.verdict
    if options.route != "auto" or verdict is None or verdict.private:
        return ()
    if local is None or decided.slots.cloud is None or any(c.code == "marker" for c in verdict.causes):
        return ()
    chosen = local.options_for(options.options)
    if isinstance(chosen, InvalidOptions):
        return ()
    unknown = []
    known, tools = known_of(local.provider, chosen), hub.known_tools(options)
    may_use = may_use_tools(local, options) or may_use_tools(decided.slots.cloud, options)
    if tools is None and may_use:
        unknown.append(_TOOLS)
    size = prompt_bytes(local_view(decided.turns[:-1]).history, decided.turns[-1].messages, 0)
    asks = callable(getattr(local.provider, "context_tokens", None)) and size >= WORTH_ASKING_BYTES
    if asks and known.context_tokens is None:
        unknown.append(_CONTEXT)
    if asks and known.tools is None and may_use and shown_tools(tools or (), options):
        unknown.append(_USE_OF_TOOLS)
    return tuple(unknown)


_TOOLS = Cause("tools_not_known", "Which tools there are is not known yet; the turn itself asks.")
_USE_OF_TOOLS = Cause("use_of_tools_not_known", "Whether the local model can use tools is not known yet.")
_CONTEXT = Cause(
    "context_not_known",
    "How much the local model's context holds is not known yet; the turn itself asks, and goes to the cloud "
    "model if it does not fit.",
)


def escalated(decided: Decided, options: TurnOptions, cause: Cause) -> Decided:
    """The decision of a shareable turn for the cloud model, because of what became of it on the local one."""
    verdict = decided.verdict
    assert verdict is not None  # only a turn on `auto` escalates
    verdict = msgspec.structs.replace(verdict, route="cloud", causes=(*verdict.causes, cause))
    outcome = decide(decided.turns, options, decided.slots, verdict)
    return msgspec.structs.replace(decided, outcome=outcome, verdict=verdict)


def may_use_tools(slot: Slot, options: TurnOptions) -> bool:
    """Whether the slot's model is shown tools at all."""
    wanted = options.tools != "none" or bool(options.client_tools)
    return wanted and can_converse(slot.provider)


def shown_tools(of_hub: Sequence[Tool], options: TurnOptions) -> Sequence[Tool]:
    """The tools that a turn is shown: the caller's own hide those of the hub that have the same names."""
    if not options.client_tools:
        return of_hub
    own = {tool.name for tool in options.client_tools}
    return [*[tool for tool in of_hub if tool.name not in own], *options.client_tools]


def _known_tools(local: Slot | None, options: TurnOptions, hub: Hub) -> Sequence[Tool]:
    """The tools that the turn may be shown, as far as they are known."""
    if local is None:
        return ()
    return shown_tools(hub.known_tools(options) or (), options)
