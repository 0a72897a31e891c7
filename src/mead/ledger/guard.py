"""Reserves what a call may take of its budgets, and sets it right when the call is over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from mead.core.reasons import BudgetExceeded
from mead.core.result import Err, Ok, Result
from mead.ledger.budgets import Claim, PlannedCall, claims_for, exceeded
from mead.settings.values import BudgetSettings

_NO_LIMIT = 2**62  # fits every store, with room for what is spent already


class Shortage(Struct, frozen=True, kw_only=True):
    """Nothing was reserved: of `scope` so much is spent and reserved already, in the budget's unit."""

    scope: str
    spent: int
    reserved: int


class Reservations(Protocol):
    """Keeps what of each budget is spent and reserved; a store does it for all processes that share it."""

    async def reserve(self, claims: Sequence[Claim]) -> Shortage | None:
        """Sets all of it aside if each claim fits beside what is spent and reserved, else nothing. Two calls
        at the same time behave as one after the other. A caller that is cancelled has reserved nothing."""

    async def settle(self, spent: Mapping[str, int]) -> None:
        """Puts what was spent, by reservation, in the place of what was reserved; it may be more."""

    async def release(self, reservation_ids: Sequence[str]) -> None:
        """Gives reservations back. One that is not there any more is left alone."""


class Held(Struct, frozen=True):
    """What one call has reserved; nothing for a call that falls under no budget."""

    claims: tuple[Claim, ...] = ()

    @property
    def reservation_ids(self) -> tuple[str, ...]:
        """The reservations."""
        return tuple([claim.reservation_id for claim in self.claims])

    def spent(self, *, tokens: int | None, nano_usd: int | None) -> dict[str, int]:
        """What each reservation came to, for a call that took so many tokens and 1e-9 USD. Where that is
        unknown (`None`), all that was reserved counts as spent."""
        came_to = {"tokens": tokens, "usd": nano_usd}
        return {
            claim.reservation_id: claim.amount if (used := came_to[claim.unit]) is None else used
            for claim in self.claims
        }


class BudgetGuard:
    """Lets a call through if every budget that it falls under has room for the most that it may take."""

    def __init__(self, budgets: Sequence[BudgetSettings], reservations: Reservations) -> None:
        self._budgets = tuple(budgets)
        self._reservations = reservations

    async def reserve(self, call: PlannedCall, *, running: bool = False) -> Result[Held, BudgetExceeded]:
        """Reserves for a call, or says which budget has no room for it; then nothing is reserved.

        Whoever gets what is held settles or releases it, whatever becomes of the call. `running` is for the
        later calls of a turn: a turn that was let in is not cut, so they are counted and never refused.
        """
        wanted = claims_for(self._budgets, call)
        if isinstance(wanted, Err):
            return Ok(Held()) if running else wanted
        claims = wanted.value
        if not claims:
            return Ok(Held())
        asked = [msgspec.structs.replace(claim, limit=_NO_LIMIT) for claim in claims] if running else claims
        shortage = await self._reservations.reserve(asked)
        if shortage is None:
            return Ok(Held(claims))
        refused = next(claim for claim in claims if claim.scope == shortage.scope)
        return Err(exceeded(refused, shortage.spent + shortage.reserved))

    async def settle(self, held: Held, *, tokens: int | None, nano_usd: int | None) -> None:
        """The call is over and took so much; see `Held.spent`."""
        if held.claims:
            await self._reservations.settle(held.spent(tokens=tokens, nano_usd=nano_usd))

    async def release(self, held: Held) -> None:
        """The call was not made, or certainly cost nothing (`nothing_was_spent`)."""
        if held.claims:
            await self._reservations.release(held.reservation_ids)


class MemoryReservations:
    """`Reservations` of this process alone, which it forgets when it ends."""

    def __init__(self) -> None:
        self._spent: defaultdict[tuple[str, float], int] = defaultdict(int)
        self._held: dict[str, Claim] = {}

    async def reserve(self, claims: Sequence[Claim]) -> Shortage | None:
        for claim in claims:
            spent, reserved = self._spent[_place(claim)], self._reserved(claim)
            if spent + reserved + claim.amount > claim.limit:
                return Shortage(scope=claim.scope, spent=spent, reserved=reserved)
        self._held.update({claim.reservation_id: claim for claim in claims})
        return None

    async def settle(self, spent: Mapping[str, int]) -> None:
        for reservation_id, amount in spent.items():
            if (claim := self._held.pop(reservation_id, None)) is not None:
                self._spent[_place(claim)] += amount

    async def release(self, reservation_ids: Sequence[str]) -> None:
        for reservation_id in reservation_ids:
            self._held.pop(reservation_id, None)

    def _reserved(self, claim: Claim) -> int:
        return sum([held.amount for held in self._held.values() if _place(held) == _place(claim)])


def _place(claim: Claim) -> tuple[str, float]:
    return claim.scope, claim.window_start
