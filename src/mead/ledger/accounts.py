"""What the calls of one runtime may take of the budgets, and what they have cost."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence

from mead.core.conversation import Conversation
from mead.core.options import TurnOptions
from mead.core.reasons import BudgetExceeded, TurnReason
from mead.core.result import Result
from mead.core.scope import CallRecord
from mead.core.unbroken import unbroken
from mead.core.usage import Usage
from mead.ledger.budgets import PlannedCall, estimate, nothing_was_spent
from mead.ledger.guard import BudgetGuard, Held, MemoryReservations, Reservations
from mead.ledger.prices import Prices
from mead.settings import Settings
from mead.settings.values import BudgetSettings

Clock = Callable[[], datetime.datetime]


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Accounts:
    """Prices and budgets of one configuration. `reservations` keeps what of the budgets is used; without one
    that ends with the process. `clock` gives the time, aware."""

    def __init__(
        self, settings: Settings, *, reservations: Reservations | None = None, clock: Clock = _now
    ) -> None:
        self.prices = Prices(settings)
        self._settings = settings.budgets
        self._reservations = reservations or MemoryReservations()
        self._clock = clock
        self.add_budgets(())

    def add_budgets(self, more: Sequence[BudgetSettings]) -> None:
        """Has `more` budgets hold beside those of the settings, in place of those that were added before."""
        budgets = (*self._settings, *more)
        self._has_budgets = bool(budgets)
        self._guard = BudgetGuard(budgets, self._reservations)

    def cost(self, call: CallRecord, usage: Usage | None) -> tuple[float | None, str | None]:
        """What a call cost in USD, and of when its price is; `None` is not known."""
        cost = self.prices.cost(
            usage, route=call.route, provider=call.provider, model=call.model, at=self._clock()
        )
        return (None, None) if cost is None else (float(cost.usd), cost.price_date)

    async def reserve(
        self,
        call: CallRecord,
        conversation: Conversation,
        options: TurnOptions,
        *,
        extra_bytes: int,
        max_tokens: int | None,
    ) -> Result[Held, BudgetExceeded] | None:
        """Reserves the most that a call may take; `None` where no budget can be meant. `extra_bytes` is what
        is sent besides the conversation: system prompt and tools. Whatever becomes of a call with something
        held, it ends with `conclude`."""
        if not self._has_budgets or call.route != "cloud":
            return None
        text_bytes, images = _size(conversation)
        most = estimate(text_bytes + extra_bytes, images=images, max_tokens=max_tokens)
        now = self._clock()
        planned = PlannedCall(
            route=call.route,
            at=now,
            tokens=most.tokens,
            nano_usd=self.prices.most(
                input_tokens=most.input_tokens,
                output_tokens=most.output_tokens,
                route=call.route,
                provider=call.provider,
                model=call.model,
                at=now,
            ),
            model=call.model,
            owner=options.owner,
            session_id=options.session_id,
            tags=options.tags,
        )
        # A turn that was let in is not cut in the middle.
        return await self._guard.reserve(planned, running=call.number > 1)

    async def conclude(
        self, held: Held, call: CallRecord, usage: Usage | None, reason: TurnReason | None
    ) -> None:
        """The call is over, with `usage` or for a `reason` (neither, if it was broken off). What it may have
        cost counts as spent: nothing only where that is certain. A cancel does not break it off."""
        if not held.claims:
            return
        if reason is not None and nothing_was_spent(reason):
            await unbroken(self._guard.release(held))
            return
        tokens = nano_usd = None
        if usage is not None and usage.input_tokens is not None and usage.output_tokens is not None:
            tokens = usage.input_tokens + usage.output_tokens
            cost = self.prices.cost(
                usage, route=call.route, provider=call.provider, model=call.model, at=self._clock()
            )
            nano_usd = None if cost is None else cost.nano_usd
        await unbroken(self._guard.settle(held, tokens=tokens, nano_usd=nano_usd))


def _size(conversation: Conversation) -> tuple[int, int]:
    """The bytes of a conversation's text and documents, and how many images it shows."""
    sizes = [piece.size for piece in conversation.pieces]
    text_bytes = sum([size.text_bytes + size.document_bytes for size in sizes])
    return text_bytes, sum([size.images for size in sizes])
