"""The turn handler that sends each turn to the local or the cloud model.

    result = await route([turn("hello")], None, TurnOptions(route="local"), Slots(local=slot), NoHub())

`route` touches no global state but the event bus; `Router` is the same with given slots and hub, as a handler
for sessions. Neither keeps anything between turns (R12): what is remembered belongs to slots, hub and
classifier.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import traceback
from collections.abc import Sequence

import msgspec

from mead import telemetry
from mead.core.messages import Tool
from mead.core.options import TurnOptions
from mead.core.reasons import Crashed, Timeout, TurnReason
from mead.core.result import Err, Ok, Result
from mead.core.turns import Answer, Decision, Hub, Turn, Verdict
from mead.core.usage import UsageTotal
from mead.ledger.accounts import Accounts
from mead.router.attempt import MAX_PROVIDER_CALLS, Attempt
from mead.router.classifier import Classifier, scanner
from mead.router.classifier.auto import AutoClassifier
from mead.router.decide import Refused, decide
from mead.router.escalate import why_disagreement, why_escalate, with_warning
from mead.router.facts import (
    Decided,
    decide_now,
    escalated,
    get_to_know,
    may_use_tools,
    not_known,
    shown_tools,
)
from mead.router.slots import Backend, Slot, Slots
from mead.router.views import cloud_view, local_view
from mead.settings.values import EscalationSettings

_log = logging.getLogger("mead.router")
_AUTO = AutoClassifier()
_NEVER = EscalationSettings()
_ASKED = "This is the cloud model's answer."
_NOT_ASKED = "The cloud model cannot be asked ({})."
_KEPT_S, _KEPT_SHARE = 0.5, 0.05
"""What is kept of the time that is left, so that a local answer can be given after the cloud model failed."""
_STOPPED = frozenset(("cancelled", "interrupted", "timeout", "shutting_down", "queue_timeout"))
_FAILED = "The cloud model was asked too and failed ({}); this is the local answer."


async def route(
    turns: Sequence[Turn],
    state: object,
    options: TurnOptions,
    slots: Slots,
    hub: Hub,
    *,
    classifier: Classifier = _AUTO,
    accounts: Accounts | None = None,
    escalation: EscalationSettings = _NEVER,
) -> Result[Answer, TurnReason]:
    """Routes the newest of `turns` through `slots`, with tools from `hub` (R15).

    `accounts` holds the budgets that its calls fall under; `None` is no budget. `escalation` says whether the
    cloud model is asked too where a local answer is no good.

    Answers with the model's text and all that is to be kept of the turn, or with the reason it failed.
    Emits one `mead.router.route`, also when it is cancelled, but none when a provider raises (R13, R14).
    """
    routing = _Routing(turns, options, slots, hub, classifier, accounts, escalation)
    try:
        result = await routing.run()
    except asyncio.CancelledError as error:
        # A session says with the cancellation why it cancels; what others say may quote anything.
        said = error.args[0] if error.args else None
        routing.tell(tag=said if isinstance(said, str) and said in _STOPPED else "cancelled")
        raise
    routing.tell(tag=None if isinstance(result, Ok) else result.reason.tag)
    return result


def explain(
    turns: Sequence[Turn],
    options: TurnOptions,
    slots: Slots,
    hub: Hub,
    *,
    classifier: Classifier = _AUTO,
    escalation: EscalationSettings = _NEVER,
) -> Decision | Refused:
    """The decision that `route` would make, from what is known now; contacts nothing (R18)."""
    decided = decide_now(turns, options, slots, hub, classifier, escalation)
    slot = decided.slots[decided.decision.route]
    known = hub.known_tools(options) if slot is not None and may_use_tools(slot, options) else ()
    names = None if known is None else tuple([tool.name for tool in shown_tools(known, options)])
    unknown = not_known(decided, options, hub)
    plain = msgspec.structs.replace(decided.decision, tools=names, not_known=unknown)
    return plain if decided.reason is None else Refused(plain, decided.reason)


class Router:
    """`route` with fixed slots, hub, classifier, accounts and escalation: the handler that sessions use."""

    def __init__(
        self,
        slots: Slots,
        hub: Hub,
        *,
        classifier: Classifier = _AUTO,
        accounts: Accounts | None = None,
        escalation: EscalationSettings = _NEVER,
    ) -> None:
        self.slots = slots
        self.hub = hub
        self.classifier = classifier
        self.accounts = accounts
        self.escalation = escalation

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
            escalation=self.escalation,
        )

    def explain(self, turns: Sequence[Turn], options: TurnOptions) -> Decision | Refused:
        """What `handle_turn` would decide; see `explain`."""
        return explain(
            turns, options, self.slots, self.hub, classifier=self.classifier, escalation=self.escalation
        )


class _Routing:
    """One turn on its way through the router: its decision, its attempts, and what is told of them."""

    def __init__(
        self,
        turns: Sequence[Turn],
        options: TurnOptions,
        slots: Slots,
        hub: Hub,
        classifier: Classifier,
        accounts: Accounts | None,
        escalation: EscalationSettings,
    ) -> None:
        self._started = time.perf_counter()
        self._turns = turns
        self._options = options
        self._slots = slots
        self._hub = hub
        self._classifier = classifier
        self._accounts = accounts
        self._escalation = escalation
        self._decided: Decided | None = None
        self._attempts: list[Attempt] = []

    async def run(self) -> Result[Answer, TurnReason]:
        """Decides the turn and carries the decision out."""
        if self._options.route == "auto":
            await get_to_know(self._turns, self._options, self._slots, self._hub)
        decided = self._decide()
        if decided.reason is not None:
            return Err(decided.reason)
        if self._options.route == "auto" and decided.verdict is not None:
            _observe(self._classifier, decided.verdict)
        result = await self._attempt(decided)
        if not (decided.decision.may_escalate and isinstance(result, Ok)):
            return result
        answer = await self._escalated(decided, result.value)
        if self._options.stream and answer.text:
            self._options.scope.delta(answer.text)  # it was held back until it was judged
        return Ok(answer)

    def tell(self, *, tag: str | None) -> None:
        """Emits the event of the turn (R13)."""
        if not telemetry.listened(telemetry.ROUTE):
            return
        decided = self._decided or self._decide()
        decision = decided.decision
        attempts = self._attempts
        usage = attempts[-1].usage if attempts else UsageTotal()
        telemetry.emit(
            telemetry.ROUTE,
            {
                "duration": time.perf_counter() - self._started,
                "deciding": decided.took_s,
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
                "tool_calls": attempts[-1].tool_calls if attempts else 0,
            },
            {
                "route": decision.route,
                "route_source": decision.source,
                "provider": attempts[-1].provider_name if attempts else decision.provider,
                "status": "ok" if tag is None else "error",
                "session_id": self._options.session_id,
                "turn": self._options.turn or None,
                "owner": self._options.owner,
                "reason": tag,
                "causes": ",".join([cause.code for cause in decision.causes]),
                "tokens_unknown": usage.unknown,
                "withheld": decision.withheld,
                "withheld_results": sum([attempt.withheld_results for attempt in attempts]),
                "left_out": attempts[-1].left_out if attempts else 0,
            },
        )

    def _decide(self) -> Decided:
        self._decided = decide_now(
            self._turns, self._options, self._slots, self._hub, self._classifier, self._escalation
        )
        return self._decided

    async def _attempt(self, decided: Decided) -> Result[Answer, TurnReason]:
        """Carries a decision out. This is where the cloud model gets a `CloudView` and nothing else."""
        options, earlier, slot = self._options, decided.turns[:-1], decided.slot
        tools: Sequence[Tool] = ()
        if may_use_tools(slot, options):
            tools = shown_tools(await self._hub.tools_for(options), options)
        attempt = Attempt(
            msgspec.structs.replace(decided.decision, tools=tuple([tool.name for tool in tools])),
            slot,
            local_view(earlier) if decided.decision.route == "local" else cloud_view(earlier),
            options,
            hub=self._hub,
            scan=scanner(self._classifier),
            accounts=self._accounts,
            after=self._attempts[-1] if self._attempts else None,
        )
        self._attempts.append(attempt)
        return await attempt.run(decided.turns[-1].messages, tools)

    async def _escalated(self, decided: Decided, answer: Answer) -> Answer:
        """The answer, or the cloud model's where there is reason to ask that and it has one."""
        when, newest = self._escalation.when, decided.turns[-1].messages
        if answer.label != "shareable":
            return answer  # something private came into it on its way
        cause = why_escalate(answer, self._options.options, when)
        if cause is None and "disagreement" in when and not answer.tool_calls:
            sample = await self._attempts[-1].sample(newest)
            answer = msgspec.structs.replace(answer, usage=self._attempts[-1].usage)
            cause = None if sample is None else why_disagreement(answer.text, sample)
        if cause is None:
            return answer
        again = escalated(decided, self._options, cause)
        if again.reason is not None:
            return with_warning(answer, f"{cause.text} {_NOT_ASKED.format(again.reason.tag)}")
        self._decided = again
        result = await self._asked_too(again)
        if isinstance(result, Err):
            self._decided = decided
            answer = msgspec.structs.replace(answer, usage=self._attempts.pop().usage)
            return with_warning(answer, f"{cause.text} {_FAILED.format(result.reason.tag)}")
        return with_warning(result.value, f"{cause.text} {_ASKED}")

    async def _asked_too(self, again: Decided) -> Result[Answer, TurnReason]:
        """The cloud model's attempt at a turn that has an answer already: whatever becomes of it, it ends a
        little before the turn must, so that the answer can still be given."""
        scope, loop = self._options.scope, asyncio.get_running_loop()
        left_s = math.inf if scope.deadline is None else max(0.0, scope.deadline - loop.time())
        kept_s = min(_KEPT_S, left_s * _KEPT_SHARE)
        attempt = asyncio.create_task(self._attempt(again))
        try:
            while not attempt.done():  # the deadline moves while a person is asked
                wait_s = None if scope.deadline is None else scope.deadline - kept_s - loop.time()
                if wait_s is not None and wait_s <= 0:
                    return Err(Timeout())
                await asyncio.wait((attempt,), timeout=wait_s)
            return attempt.result()
        except Exception as error:
            # The exception's message is left out: it may quote the conversation.
            stack = "".join(traceback.format_tb(error.__traceback__))
            _log.error("the cloud model that was asked too crashed with %s\n%s", type(error).__name__, stack)
            return Err(Crashed(error=type(error).__name__), cause=error)
        finally:
            if attempt.cancel("timeout"):
                await asyncio.wait((attempt,))
                if not attempt.cancelled():
                    attempt.exception()  # it is too late for what became of it, and asyncio would log it


def _observe(classifier: Classifier, verdict: Verdict) -> None:
    """Tells a classifier that learns what was decided."""
    observe = getattr(classifier, "observe", None)
    if callable(observe):
        observe(verdict)


__all__ = [
    "MAX_PROVIDER_CALLS",
    "AutoClassifier",
    "Backend",
    "Classifier",
    "Refused",
    "Router",
    "Slot",
    "Slots",
    "decide",
    "explain",
    "route",
]
