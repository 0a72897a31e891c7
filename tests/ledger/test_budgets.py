"""Which budgets a call falls under, and that no interleaving spends more than they allow."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Mapping, Sequence
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.clock import run
from mead.core.reasons import (
    BudgetExceeded,
    Cancelled,
    Crashed,
    HttpStatus,
    MalformedResponse,
    MissingApiKey,
    Timeout,
    Transport,
    TurnReason,
)
from mead.core.result import Err, Ok
from mead.ledger.budgets import (
    Claim,
    PlannedCall,
    applies,
    claims_for,
    estimate,
    nothing_was_spent,
    window_of,
)
from mead.ledger.guard import BudgetGuard, Held, MemoryReservations, Shortage
from mead.settings.values import BudgetSettings

NOON = datetime.datetime(2026, 12, 31, 12, tzinfo=datetime.UTC)
CALL = PlannedCall(
    route="cloud",
    at=NOON,
    tokens=1_000,
    nano_usd=20_000_000,
    model="gpt",
    owner="u1",
    session_id="s1",
    tags=("work",),
)
DAILY = BudgetSettings(name="daily", per="day", tokens=10_000)
MONEY = BudgetSettings(name="money", per="month", usd=Decimal("0.05"))


def changed(budget: BudgetSettings, **fields: object) -> BudgetSettings:
    return msgspec.structs.replace(budget, **fields)


def planned(**fields: object) -> PlannedCall:
    return msgspec.structs.replace(CALL, **fields)


def claim(budget: BudgetSettings, call: PlannedCall = CALL) -> Claim:
    [only] = claims_for([budget], call).unwrap()
    return only


def place(budget: BudgetSettings, call: PlannedCall = CALL) -> tuple[str, float]:
    found = claim(budget, call)
    return found.scope, found.window_start


# Which


@pytest.mark.parametrize(
    "budget,call,applied",
    [
        (DAILY, CALL, True),
        (DAILY, planned(route="local"), False),
        (changed(DAILY, tag="work"), CALL, True),
        (changed(DAILY, tag="play"), CALL, False),
        (changed(DAILY, owner="u1"), CALL, True),
        (changed(DAILY, owner="u2"), CALL, False),
        (changed(DAILY, owner="*"), planned(owner="u2"), True),
        (changed(DAILY, per="session"), CALL, True),
        (changed(DAILY, per="session"), planned(session_id=None), False),
    ],
)
def test_a_budget_applies_to_the_calls_that_it_names(
    budget: BudgetSettings, call: PlannedCall, applied: bool
) -> None:
    assert applies(budget, call) is applied
    assert len(claims_for([budget], call).unwrap()) == applied


def test_s10_owners_share_a_budget_or_have_one_each() -> None:
    other = planned(owner="u2")

    assert place(DAILY) == place(DAILY, other)
    assert place(changed(DAILY, owner="*")) != place(changed(DAILY, owner="*"), other)


def test_sessions_have_one_each() -> None:
    budget = changed(DAILY, per="session")

    assert place(budget) == place(budget, planned(at=NOON + datetime.timedelta(days=400)))
    assert place(budget) != place(budget, planned(session_id="s2"))


@given(owner=st.text(), other=st.text(), session_id=st.text("ab", min_size=1))
def test_no_owner_can_name_himself_into_another_s_budget(owner: str, other: str, session_id: str) -> None:
    budget = changed(DAILY, owner="*", per="session")
    one, two = (place(budget, planned(owner=name, session_id=session_id)) for name in (owner, other))

    assert (one == two) is (owner == other)


def test_a_budget_that_changes_its_unit_begins_anew() -> None:
    in_usd = changed(DAILY, tokens=None, usd=Decimal(1))

    assert place(DAILY) != place(in_usd)


# When


@pytest.mark.parametrize(
    "at,day,month",
    [
        ("2026-12-31T23:59:59+00:00", "2027-01-01", "2027-01-01"),
        ("2027-01-01T00:00:00+00:00", "2027-01-02", "2027-02-01"),
        ("2027-01-01T00:30:00+01:00", "2027-01-01", "2027-01-01"),
        ("2028-02-28T20:00:00-05:00", "2028-03-01", "2028-03-01"),
        ("2028-01-31T00:00:00+00:00", "2028-02-01", "2028-02-01"),
    ],
)
def test_days_and_months_are_those_of_utc(at: str, day: str, month: str) -> None:
    ends = [window_of(per, datetime.datetime.fromisoformat(at))[1] for per in ("day", "month", "session")]

    assert ends == [
        datetime.datetime.fromisoformat(f"{day}T00:00+00:00"),
        datetime.datetime.fromisoformat(f"{month}T00:00+00:00"),
        None,
    ]


@given(
    at=st.datetimes(datetime.datetime(1970, 2, 1), datetime.datetime(9000, 1, 1), timezones=st.timezones())
)
@pytest.mark.parametrize("per", ["day", "month"])
def test_every_moment_is_in_one_window_that_the_next_one_follows(per: str, at: datetime.datetime) -> None:
    start, end = window_of(per, at)  # type: ignore[arg-type]  # one of the two

    assert end is not None
    assert start <= at.timestamp() < end.timestamp()
    assert window_of(per, end)[0] == end.timestamp()  # type: ignore[arg-type]  # as above


# How much


def test_the_estimate_is_on_the_safe_side() -> None:
    told = estimate(1_001, images=2, max_tokens=300)

    assert (told.input_tokens, told.output_tokens, told.tokens) == (501 + 10_000, 300, 10_801)
    assert estimate(0).tokens == 4_096


@pytest.mark.parametrize(
    "reason",
    [
        MissingApiKey(),
        HttpStatus(status=429),
        Timeout(limit="connect"),
        Transport(cause="refused"),
        Transport(cause="not_local"),
    ],
)
def test_d19_a_call_that_did_not_reach_the_model_gives_its_reservation_back(reason: TurnReason) -> None:
    assert nothing_was_spent(reason)


@pytest.mark.parametrize(
    "reason",
    [
        Timeout(),
        Timeout(limit="idle"),
        Transport(cause="cut"),
        Cancelled(),
        Transport(cause="reset"),
        MalformedResponse(),
        Crashed(error="ValueError"),
    ],
)
def test_l1_a_call_that_may_have_been_charged_for_is_not_taken_for_nothing(reason: TurnReason) -> None:
    assert not nothing_was_spent(reason)


# The refusal


def refusal(budget: BudgetSettings, *calls: PlannedCall) -> str:
    async def work() -> BudgetExceeded:
        guard = BudgetGuard([budget], MemoryReservations())
        for call in calls[:-1]:
            (await guard.reserve(call)).unwrap()
        result = await guard.reserve(calls[-1])
        assert isinstance(result, Err)
        return result.reason

    return run(work()).detail or ""


def test_a_refusal_says_which_budget_how_much_and_until_when() -> None:
    assert refusal(DAILY, planned(tokens=9_500), CALL) == (
        "the budget 'daily' (a day) allows 10,000 tokens; 9,500 tokens are used or reserved, and this call "
        "may take 1,000 tokens; it holds until 2027-01-01 00:00 UTC"
    )
    assert refusal(changed(MONEY, tag="work", owner="*"), CALL, CALL, CALL) == (
        "the budget 'money' (a month, tag 'work', for each owner) allows 0.05 USD; 0.04 USD are used or "
        "reserved, and this call may take 0.02 USD; it holds until 2027-01-01 00:00 UTC"
    )
    assert refusal(changed(DAILY, per="session", owner="u1"), planned(tokens=9_500), CALL).endswith(
        "'daily' (a session, owner 'u1') allows 10,000 tokens; 9,500 tokens are used or reserved, and this "
        "call may take 1,000 tokens; it holds until the session ends"
    )


def test_a_call_that_no_window_can_hold_says_so() -> None:
    assert refusal(DAILY, planned(tokens=10_001)).endswith(
        "more than all of it: lower max_tokens or shorten the text"
    )


def test_d19_a_budget_in_money_lets_nothing_through_whose_price_is_unknown() -> None:
    said = refusal(MONEY, planned(nano_usd=None, model="mine"))

    assert said.startswith(
        "the budget 'money' (a month) is in USD and the price of the model 'mine' is not known"
    )


# The guard


def test_what_is_unknown_counts_as_all_that_was_reserved() -> None:
    budgets = [DAILY, MONEY]
    claims = claims_for(budgets, CALL).unwrap()
    held = Held(claims)

    assert list(held.spent(tokens=700, nano_usd=None).values()) == [700, 20_000_000]
    assert list(held.spent(tokens=None, nano_usd=5).values()) == [1_000, 5]


def test_calls_under_no_budget_touch_no_store() -> None:
    async def work() -> list[object]:
        guard = BudgetGuard([DAILY], None)  # type: ignore[arg-type]  # it is never asked
        held = (await guard.reserve(planned(route="local"))).unwrap()
        await guard.settle(held, tokens=1, nano_usd=1)
        await guard.release(held)
        return list(held.claims)

    assert run(work()) == []


def test_a_refused_call_holds_nothing_of_its_other_budgets() -> None:
    async def work() -> object:
        reservations = MemoryReservations()
        both = BudgetGuard([DAILY, changed(DAILY, name="small", tokens=1_500)], reservations)
        await both.reserve(CALL)
        refused = await both.reserve(CALL)
        assert isinstance(refused, Err)
        # Of the daily budget only the first call is reserved.
        return await BudgetGuard([DAILY], reservations).reserve(planned(tokens=9_000))

    assert isinstance(run(work()), Ok)


def test_a_turn_that_runs_is_counted_but_not_cut() -> None:
    async def work() -> tuple[object, object]:
        guard = BudgetGuard([DAILY], MemoryReservations())
        await guard.reserve(planned(tokens=10_000))
        later = await guard.reserve(CALL, running=True)
        return later, await guard.reserve(planned(tokens=1))

    later, new = run(work())

    assert isinstance(later, Ok)
    assert isinstance(new, Err)
    assert "11,000 tokens are used or reserved" in str(new.reason)


def test_a_turn_that_runs_is_not_cut_for_a_missing_price() -> None:
    guard = BudgetGuard([MONEY], MemoryReservations())

    assert run(guard.reserve(planned(nano_usd=None), running=True)) == Ok(Held())


def test_d19_of_ten_turns_at_once_on_a_budget_for_one_exactly_one_calls() -> None:
    assert run(crowd(10, BudgetSettings(name="one", per="day", tokens=1_000)))[0] == 1


def test_d19_64_concurrent_turns_on_a_budget_for_10_never_spend_more_than_10() -> None:
    made, spent = run(crowd(64, BudgetSettings(name="ten", per="day", tokens=10_000)))

    assert (made, spent) == (10, 10_000)


async def crowd(turns: int, budget: BudgetSettings) -> tuple[int, int]:
    """How many of some turns at once make a call, and what they spend together."""
    guard = BudgetGuard([budget], SlowReservations([0, 3, 1, 2]))
    made: list[int] = []

    async def one_turn() -> None:
        held = await guard.reserve(CALL)
        if isinstance(held, Ok):
            await asyncio.sleep(0.1)
            made.append(CALL.tokens)
            await guard.settle(held.value, tokens=CALL.tokens, nano_usd=None)

    await asyncio.gather(*[one_turn() for _ in range(turns)])
    return len(made), sum(made)


class SlowReservations(MemoryReservations):
    """Answers after some turns of the event loop, as `steps` say, one after the other."""

    def __init__(self, steps: Sequence[int]) -> None:
        super().__init__()
        self._steps = list(steps) or [0]
        self._number = 0

    async def _wait(self) -> None:
        self._number += 1
        for _ in range(self._steps[self._number % len(self._steps)]):
            await asyncio.sleep(0)

    async def reserve(self, claims: Sequence[Claim]) -> Shortage | None:
        await self._wait()
        return await super().reserve(claims)

    async def settle(self, spent: Mapping[str, int]) -> None:
        await self._wait()
        await super().settle(spent)

    async def release(self, reservation_ids: Sequence[str]) -> None:
        await self._wait()
        await super().release(reservation_ids)


class Plan(msgspec.Struct, frozen=True):
    """A turn: what it reserves, what it takes in the end (`None`: unknown), and how it ends."""

    starts: int
    reserves: int
    takes: int | None
    ends: str


PLANS = st.lists(
    st.builds(
        Plan,
        starts=st.integers(0, 5),
        reserves=st.integers(1, 40),
        takes=st.none() | st.integers(0, 40),
        ends=st.sampled_from(["settled", "released", "cancelled"]),
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(plans=PLANS, limit=st.integers(0, 100), steps=st.lists(st.integers(0, 4), min_size=1, max_size=7))
def test_d19_no_interleaving_spends_more_than_the_budget(
    plans: list[Plan], limit: int, steps: list[int]
) -> None:
    reservations = SlowReservations(steps)
    guard = BudgetGuard([BudgetSettings(name="b", per="day", tokens=limit)], reservations)
    spent: list[int] = []

    async def one_turn(plan: Plan) -> None:
        for _ in range(plan.starts):
            await asyncio.sleep(0)
        held = await guard.reserve(planned(tokens=plan.reserves))
        if isinstance(held, Err):
            return
        await asyncio.sleep(0)
        if plan.ends == "released":
            await guard.release(held.value)
            return
        took = None if plan.takes is None else min(plan.takes, plan.reserves)
        spent.append(plan.reserves if took is None else took)
        assert sum(spent) <= limit
        await guard.settle(held.value, tokens=took, nano_usd=None)

    async def work() -> int:
        tasks = [asyncio.create_task(one_turn(plan)) for plan in plans]
        await asyncio.sleep(0)
        for task, plan in zip(tasks, plans, strict=True):
            if plan.ends == "cancelled" and plan.starts > 1:
                task.cancel()
        await asyncio.gather(*[task for task, plan in zip(tasks, plans, strict=True)], return_exceptions=True)
        [failed for task in tasks if not task.cancelled() and (failed := task.exception())]
        # What is left of the budget can be reserved to the last token, and not one more: nothing is lost, and
        # nothing counted twice.
        left = limit - sum(spent)
        if left:
            (await guard.reserve(planned(tokens=left))).unwrap()
        return left

    left = run(work())

    assert left >= 0
    assert isinstance(run(guard.reserve(planned(tokens=1))), Err)
