"""What is reserved of budgets, kept in a store: for all processes that share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mead.ledger.budgets import Claim
from mead.ledger.guard import Shortage
from mead.storage import Store
from mead.storage.protocol import OverBudget, Reservation, Settlement


class StoreReservations:
    """`mead.ledger.guard.Reservations` in a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def reserve(self, claims: Sequence[Claim]) -> Shortage | None:
        wanted = [
            Reservation(
                reservation_id=claim.reservation_id,
                scope=claim.scope,
                window_start=claim.window_start,
                amount=claim.amount,
                limit=claim.limit,
                owner=claim.owner,
            )
            for claim in claims
        ]
        outcome = await self._store.reserve(wanted)
        if isinstance(outcome, OverBudget):
            return Shortage(scope=outcome.scope, spent=outcome.spent, reserved=outcome.reserved)
        return None

    async def settle(self, spent: Mapping[str, int]) -> None:
        await self._store.settle(
            [Settlement(reservation_id=key, spent=amount) for key, amount in spent.items()]
        )

    async def release(self, reservation_ids: Sequence[str]) -> None:
        await self._store.release(reservation_ids)
