"""Turns under budgets, limits and prices: what is refused is refused before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import mead
from mead.core.options import Options
from mead.core.reasons import BudgetExceeded, HttpStatus, SlotBusy, Timeout
from mead.core.result import Err, Ok
from mead.core.usage import Usage
from mead.ledger.limits import SlotLimiter
from mead.providers.protocol import Completion, Reply
from mead.router.slots import Slot, Slots
from mead.settings import Settings
from mead.settings.values import BudgetSettings, PriceSettings
from mead.storage import Store, open_store
from mead.storage.memory import MemoryStore
from mead.testing import ScriptedProvider, calls

USED = Usage(input_tokens=40, output_tokens=60)
ANSWER = Completion(text="yes", usage=USED)
HUNDRED = Options(max_tokens=100, model="m")
"""A turn of one word takes up to a little over 100 tokens under it."""


def day(tokens: int, **fields: Any) -> BudgetSettings:
    return BudgetSettings(name="day", per="day", tokens=tokens, **fields)


@asynccontextmanager
async def under(
    *budgets: BudgetSettings,
    cloud: object,
    local: object = None,
    limiter: SlotLimiter | None = None,
    store: Store | None = None,
    prices: tuple[PriceSettings, ...] = (),
    tools: list[Callable[..., object]] | None = None,
) -> AsyncIterator[mead.Runtime]:
    filled = Slots(
        local=None if local is None else Slot(local, HUNDRED),  # type: ignore[arg-type]  # a provider
        cloud=Slot(cloud, HUNDRED, (), limiter),  # type: ignore[arg-type]  # a provider
    )
    settings = Settings(budgets=budgets, prices=prices)
    async with mead.Runtime(settings, slots=filled, store=store, tools=tools or []) as runtime:
        yield runtime


async def ask(runtime: mead.Runtime, **turn: Any) -> mead.Ok[mead.Answer] | Err[Any]:
    return await runtime.submit_turn(await runtime.start_session(), "hi", route="cloud", **turn)


@pytest.mark.parametrize("kept", ["nowhere", "memory", "sqlite"])
async def test_d19_64_concurrent_turns_on_a_budget_for_10_never_spend_more_than_10(
    kept: str, tmp_path: Path
) -> None:
    urls = {"memory": "memory://", "sqlite": f"sqlite:///{tmp_path}/mead.db"}
    store = open_store(urls[kept]) if kept in urls else None
    provider = ScriptedProvider(*[ANSWER] * 64)
    async with under(day(1_000), cloud=provider, store=store) as runtime:
        results = await asyncio.gather(*[ask(runtime) for _ in range(64)])

    answered = [result for result in results if isinstance(result, Ok)]
    refused = [result.reason for result in results if isinstance(result, Err)]
    assert 0 < len(answered) <= 10
    assert len(provider.requests) == len(answered)  # what was refused was never sent
    assert all(isinstance(reason, BudgetExceeded) for reason in refused)


async def test_a_refusal_says_which_budget_how_much_and_until_when() -> None:
    provider = ScriptedProvider(ANSWER, ANSWER)
    store = MemoryStore()
    async with under(day(150), cloud=provider, store=store) as runtime:
        await ask(runtime)
        refused = await ask(runtime)
        rows = await store.usage_rows()

    assert isinstance(refused, Err)
    assert isinstance(refused.reason, BudgetExceeded)
    said = refused.reason.detail
    assert said is not None
    assert "'day'" in said
    assert "150 tokens" in said
    assert "100 tokens are used" in said
    assert "it holds until" in said
    assert len(rows) == 1  # no call, no row


async def test_a_turn_that_was_let_in_is_not_cut() -> None:
    @mead.tool(effect=False)
    def look() -> str:
        "Looks."
        return "seen"

    provider = ScriptedProvider(
        Reply(content=calls("look").content, stop_reason="tool_use", usage=USED),
        Reply(content=(mead.TextBlock("done"),), stop_reason="end_turn", usage=USED),
        ANSWER,
    )
    async with under(day(300), cloud=provider, tools=[look]) as runtime:
        first = await ask(runtime, tools=None)
        second = await ask(runtime)
        third = await ask(runtime, tools="none")

    assert isinstance(first, Ok)
    assert first.value.tool_calls == 1
    assert isinstance(second, Err)  # 200 are used: another may take too much
    assert isinstance(third, Err)


async def test_budgets_are_of_the_cloud_route_only() -> None:
    local = ScriptedProvider(ANSWER)
    async with under(day(1), cloud=ScriptedProvider(), local=local) as runtime:
        session_id = await runtime.start_session()
        result = await runtime.submit_turn(session_id, "hi", route="local")

    assert isinstance(result, Ok)


async def test_a_budget_of_a_tag_counts_session_and_turn_tags() -> None:
    provider = ScriptedProvider(*[ANSWER] * 64)
    async with under(day(1, tag="big"), cloud=provider) as runtime:
        plain = await ask(runtime)
        of_turn = await ask(runtime, tags=["big"])
        session_id = await runtime.start_session(tags=["big"])
        of_session = await runtime.submit_turn(session_id, "hi", route="cloud")

    assert isinstance(plain, Ok)
    assert isinstance(of_turn, Err)
    assert isinstance(of_session, Err)


async def test_a_budget_of_each_owner_is_their_own() -> None:
    provider = ScriptedProvider(*[ANSWER] * 64)
    async with under(day(150, owner="*"), cloud=provider) as runtime:
        ada, bob = runtime.for_owner("ada"), runtime.for_owner("bob")
        first, second, other = await ask(ada), await ask(ada), await ask(bob)

    assert isinstance(first, Ok)
    assert isinstance(second, Err)
    assert isinstance(other, Ok)


async def test_a_call_that_was_refused_costs_nothing_and_one_that_was_cut_off_all_it_might() -> None:
    entered = asyncio.Event()

    async def hang(_: object) -> Completion:
        entered.set()
        return await asyncio.Future()

    provider = ScriptedProvider(HttpStatus(status=503), hang, ANSWER)
    async with under(day(150), cloud=provider) as runtime:
        unavailable = await ask(runtime)
        task = asyncio.create_task(ask(runtime))
        await entered.wait()
        task.cancel()
        await asyncio.wait([task])
        refused = await ask(runtime)

    assert isinstance(unavailable, Err)
    assert len(provider.requests) == 2
    assert isinstance(refused, Err)
    assert isinstance(refused.reason, BudgetExceeded)


async def test_l1_a_price_of_the_settings_is_what_a_call_costs_and_its_row_says_of_when_it_is() -> None:
    price = PriceSettings(model="m", input=Decimal(3), output=Decimal(15))
    store = MemoryStore()
    async with under(cloud=ScriptedProvider(ANSWER), store=store, prices=(price,)) as runtime:
        await ask(runtime)
        (row,) = await store.usage_rows()

    assert row.cost_usd == pytest.approx((40 * 3 + 60 * 15) / 1e6)
    assert row.price_date is None


async def test_l1_a_model_without_a_price_has_no_cost_and_a_local_one_costs_nothing() -> None:
    store = MemoryStore()
    async with under(
        cloud=ScriptedProvider(ANSWER), local=ScriptedProvider(HttpStatus(status=500)), store=store
    ) as runtime:
        await ask(runtime)
        await runtime.submit_turn(await runtime.start_session(), "hi", route="local")
        local, cloud = await store.usage_rows()

    assert cloud.cost_usd is None
    assert local.cost_usd == 0.0


class Held:
    """A provider whose calls end when they are let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.let_go = asyncio.Event()
        self.provider = ScriptedProvider(self._hold, ANSWER)

    async def _hold(self, _: object) -> Completion:
        self.entered.set()
        await self.let_go.wait()
        return ANSWER


async def test_a_full_queue_is_slot_busy_at_once_and_says_how_long_a_place_would_take() -> None:
    held = Held()
    limiter = SlotLimiter(concurrency=1, queue=0)
    async with under(cloud=held.provider, limiter=limiter) as runtime:
        first = asyncio.create_task(ask(runtime))
        await held.entered.wait()
        second = await ask(runtime)
        held.let_go.set()
        done = await first

    assert isinstance(done, Ok)
    assert isinstance(second, Err)
    assert isinstance(second.reason, SlotBusy)
    assert second.reason.retry_after_s is not None
    assert limiter.running == 0


async def test_the_wait_for_a_slot_counts_against_the_turns_deadline() -> None:
    held = Held()
    limiter = SlotLimiter(concurrency=1)
    async with under(cloud=held.provider, limiter=limiter) as runtime:
        first = asyncio.create_task(ask(runtime))
        await held.entered.wait()
        late = await ask(runtime, turn_timeout_s=0.05)
        held.let_go.set()
        await first
        after = await ask(runtime)

    assert isinstance(late, Err)
    assert isinstance(late.reason, Timeout)
    assert isinstance(after, Ok)  # its place in the queue went with it
    assert limiter.waiting == 0


async def test_a_slots_settings_make_its_limits() -> None:
    settings = mead.settings.parse(
        '[router.slots.cloud]\nprovider = "echo"\nconcurrency = 2\n[router.slots.local]\nprovider = "echo"\n',
        environ={},
    )
    async with mead.Runtime(settings) as runtime:
        assert runtime.slots.cloud is not None
        assert runtime.slots.local is not None
        assert isinstance(runtime.slots.cloud.limiter, SlotLimiter)
        assert runtime.slots.local.limiter is None
