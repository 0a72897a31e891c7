"""The turn handler that sends each turn to the local or the cloud model.

    result = await route([turn("hello")], None, TurnOptions(route="local"), Slots(local=slot), NoHub())

`route` touches no global state but the event bus; `Router` is the same with given slots and hub, as a handler
for sessions. Neither keeps anything between turns (R12).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import msgspec

from mead import telemetry
from mead.core.messages import Tool
from mead.core.options import TurnOptions
from mead.core.reasons import InvalidOptions, TurnReason
from mead.core.result import Err, Ok, Result
from mead.core.turns import Answer, Decision, Hub, Turn
from mead.core.usage import UsageTotal
from mead.ledger.accounts import Accounts
from mead.providers.protocol import can_converse
from mead.router.attempt import MAX_PROVIDER_CALLS, Attempt
from mead.router.classifier import Classifier, newest_input
from mead.router.classifier.rules import RuleClassifier
from mead.router.decide import Refused, decide
from mead.router.slots import Slot, Slots
from mead.router.views import cloud_view, local_view

_RULES = RuleClassifier()


async def route(
    turns: Sequence[Turn],
    state: object,
    options: TurnOptions,
    slots: Slots,
    hub: Hub,
    *,
    classifier: Classifier = _RULES,
    accounts: Accounts | None = None,
) -> Result[Answer, TurnReason]:
    """Routes the newest of `turns` through `slots`, with tools from `hub` (R15).

    `accounts` holds the budgets that its calls fall under; `None` is no budget.

    Answers with the model's text and all that is to be kept of the turn, or with the reason it failed.
    Emits one `mead.router.route`, also when it is cancelled, but none when a provider raises (R13, R14).
    """
    started = time.perf_counter()
    decision = _decide(turns, options, slots, classifier)
    if isinstance(decision, Refused):
        _tell(decision.decision, options, started, reason=decision.reason)
        return Err(decision.reason)
    attempt: Attempt | None = None
    try:
        slot = slots[decision.route]
        assert slot is not None  # `decide` refuses an empty slot
        tools = await _visible_tools(slot, options, hub)
        decision = msgspec.structs.replace(decision, tools=tuple([tool.name for tool in tools]))
        attempt = _prepare(decision, slot, turns, options, hub, classifier, accounts)
        result = await attempt.run(turns[-1].messages, tools)
    except asyncio.CancelledError as error:
        # A session says with the cancellation why it cancels.
        why = error.args[0] if error.args else "cancelled"
        _tell(decision, options, started, attempt=attempt, tag=str(why))
        raise
    reason = None if isinstance(result, Ok) else result.reason
    _tell(decision, options, started, attempt=attempt, reason=reason)
    return result


def explain(
    turns: Sequence[Turn],
    options: TurnOptions,
    slots: Slots,
    hub: Hub,
    *,
    classifier: Classifier = _RULES,
) -> Decision | Refused:
    """The decision that `route` would make, from what is known now; contacts nothing (R18)."""
    decision = _decide(turns, options, slots, classifier)
    plain = decision.decision if isinstance(decision, Refused) else decision
    slot = slots[plain.route]
    known = hub.known_tools(options) if slot is not None and _may_use_tools(slot, options) else ()
    plain = msgspec.structs.replace(
        plain, tools=None if known is None else tuple([tool.name for tool in known])
    )
    return Refused(plain, decision.reason) if isinstance(decision, Refused) else plain


class Router:
    """`route` with fixed slots, hub, classifier and accounts: the handler that sessions use."""

    def __init__(
        self,
        slots: Slots,
        hub: Hub,
        *,
        classifier: Classifier = _RULES,
        accounts: Accounts | None = None,
    ) -> None:
        self.slots = slots
        self.hub = hub
        self.classifier = classifier
        self.accounts = accounts

    async def handle_turn(
        self, turns: Sequence[Turn], state: object, options: TurnOptions
    ) -> Result[Answer, TurnReason]:
        """Routes the newest turn; see `route`."""
        return await route(
            turns,
            state,
            options,
            self.slots,
            self.hub,
            classifier=self.classifier,
            accounts=self.accounts,
        )

    def explain(self, turns: Sequence[Turn], options: TurnOptions) -> Decision | Refused:
        """What `handle_turn` would decide; see `explain`."""
        return explain(turns, options, self.slots, self.hub, classifier=self.classifier)


def _decide(
    turns: Sequence[Turn], options: TurnOptions, slots: Slots, classifier: Classifier
) -> Decision | Refused:
    verdict = None
    if options.route != "local":  # a turn that is forced local is private whatever it says
        verdict = classifier.classify(newest_input(turns[-1], options, slots))
    return decide(turns, options, slots, verdict)


def _may_use_tools(slot: Slot, options: TurnOptions) -> bool:
    return options.tools != "none" and can_converse(slot.provider)


async def _visible_tools(slot: Slot, options: TurnOptions, hub: Hub) -> Sequence[Tool]:
    return await hub.tools_for(options) if _may_use_tools(slot, options) else ()


def _prepare(
    decision: Decision,
    slot: Slot,
    turns: Sequence[Turn],
    options: TurnOptions,
    hub: Hub,
    classifier: Classifier,
    accounts: Accounts | None,
) -> Attempt:
    """The attempt for a decision. This is where the cloud model gets a `CloudView` and nothing else."""
    earlier = turns[:-1]
    view = local_view(earlier) if decision.route == "local" else cloud_view(earlier)
    call_options = slot.options_for(options.options)
    assert not isinstance(call_options, InvalidOptions)  # `decide` refuses a model that is not listed
    return Attempt(
        decision, slot, call_options, view, options, hub=hub, scan=classifier.scan, accounts=accounts
    )


_NOTHING = UsageTotal()


def _tell(
    decision: Decision,
    options: TurnOptions,
    started: float,
    *,
    attempt: Attempt | None = None,
    reason: TurnReason | None = None,
    tag: str | None = None,
) -> None:
    if not telemetry.listened(telemetry.ROUTE):
        return
    usage = attempt.usage if attempt else _NOTHING
    tag = reason.tag if reason is not None else tag
    telemetry.emit(
        telemetry.ROUTE,
        {
            "duration": time.perf_counter() - started,
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "tool_calls": attempt.tool_calls if attempt else 0,
        },
        {
            "route": decision.route,
            "route_source": decision.source,
            "provider": decision.provider,
            "status": "ok" if tag is None else "error",
            "session_id": options.session_id,
            "reason": tag,
            "tokens_unknown": usage.unknown,
            "withheld": decision.withheld,
            "withheld_results": attempt.withheld_results if attempt else 0,
            "left_out": attempt.left_out if attempt else 0,
        },
    )


__all__ = [
    "MAX_PROVIDER_CALLS",
    "Classifier",
    "Refused",
    "Router",
    "RuleClassifier",
    "Slot",
    "Slots",
    "decide",
    "explain",
    "route",
]
