"""The guard over a store's own reservations: the shapes fit, and the promise holds there too."""

from __future__ import annotations

import asyncio
import datetime

from ledger.clock import run
from mead.core.result import Err, Ok
from mead.ledger.budgets import PlannedCall
from mead.ledger.guard import BudgetGuard
from mead.sessions.reservations import StoreReservations
from mead.settings.values import BudgetSettings
from mead.storage.memory import MemoryStore

NOON = datetime.datetime(2026, 12, 31, 12, tzinfo=datetime.UTC)
CALL = PlannedCall(route="cloud", at=NOON, tokens=1_000, nano_usd=None)
TEN = BudgetSettings(name="ten", per="day", tokens=10_000)


def test_d19_64_concurrent_turns_on_a_stored_budget_for_10_never_spend_more_than_10() -> None:
    async def work() -> tuple[int, object]:
        store = MemoryStore()
        await store.open()
        guard = BudgetGuard([TEN], StoreReservations(store))
        made: list[int] = []

        async def one_turn() -> None:
            held = await guard.reserve(CALL)
            if isinstance(held, Ok):
                await asyncio.sleep(0.1)
                made.append(CALL.tokens)
                await guard.settle(held.value, tokens=CALL.tokens, nano_usd=None)

        await asyncio.gather(*[one_turn() for _ in range(64)])
        return len(made), await guard.reserve(CALL)

    made, refused = run(work())

    assert made == 10
    assert isinstance(refused, Err)
    assert "10,000 tokens are used or reserved" in str(refused.reason)


def test_a_turn_that_runs_is_counted_in_a_store_too() -> None:
    async def work() -> tuple[object, object]:
        store = MemoryStore()
        await store.open()
        guard = BudgetGuard([TEN], StoreReservations(store))
        first = (await guard.reserve(CALL)).unwrap()
        await guard.settle(first, tokens=10_000, nano_usd=None)
        later = await guard.reserve(CALL, running=True)
        released = (await guard.reserve(CALL, running=True)).unwrap()
        await guard.release(released)
        return later, await store.spent(first.claims[0].scope, first.claims[0].window_start)

    later, spent = run(work())

    assert isinstance(later, Ok)
    assert spent == (10_000, 1_000)
