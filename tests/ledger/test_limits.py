"""Calls of a slot at the same time and in a minute."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledger.clock import run
from mead.core.reasons import SlotBusy, Timeout
from mead.core.result import Err, Ok
from mead.ledger.limits import Permit, SlotLimiter
from mead.settings import SlotSettings


def now() -> float:
    return asyncio.get_running_loop().time()


async def entered(limiter: SlotLimiter, owner: str = "local", deadline: float | None = None) -> Permit:
    return (await limiter.enter(owner=owner, deadline=deadline)).unwrap()


async def settle_down() -> None:
    """Lets every task go as far as it can at this moment."""
    for _ in range(20):
        await asyncio.sleep(0)


async def call(limiter: SlotLimiter, name: str, done: list[str], *, takes_s: float = 1.0) -> None:
    """A call of the owner that its name begins with."""
    with await entered(limiter, name[0]):
        done.append(name)
        await asyncio.sleep(takes_s)


async def calls(limiter: SlotLimiter, names: str, *, takes_s: float = 1.0) -> list[str]:
    """Makes calls in the order of `names`, all at once; gives the order in which they began."""
    done: list[str] = []
    await asyncio.gather(*[call(limiter, name, done, takes_s=takes_s) for name in names.split()])
    return done


def test_without_limits_nobody_waits() -> None:
    async def work() -> float:
        await calls(SlotLimiter(), " ".join(["a"] * 100))
        return now()

    assert run(work()) == 1.0


def test_the_limits_of_a_slot_are_those_of_its_settings() -> None:
    async def work() -> float:
        slot = SlotSettings(provider="echo", concurrency=2, queue=50, requests_per_minute=100)
        await calls(SlotLimiter.of(slot), " ".join(["a"] * 10))
        return now()

    assert run(work()) == 5.0


def test_calls_of_one_owner_begin_in_the_order_in_which_they_came() -> None:
    names = " ".join([f"a{number}" for number in range(20)])

    assert run(calls(SlotLimiter(concurrency=3), names)) == names.split()


def test_s10_owners_who_wait_take_turns() -> None:
    begun = run(calls(SlotLimiter(concurrency=1), "a1 a2 a3 a4 b1 b2 c1"))

    assert begun == ["a1", "a2", "b1", "c1", "a3", "b2", "a4"]


def test_no_more_calls_begin_in_any_minute_than_may() -> None:
    async def work() -> list[float]:
        limiter, begun = SlotLimiter(requests_per_minute=3), list[float]()

        async def one() -> None:
            with await entered(limiter):
                begun.append(now())

        await asyncio.gather(*[one() for _ in range(7)])
        return begun

    assert run(work()) == [0.0, 0.0, 0.0, 60.0, 60.0, 60.0, 120.0]


# A full queue


def test_slot_busy_comes_at_once_and_says_how_long_a_place_would_take() -> None:
    async def work() -> tuple[object, float]:
        limiter = SlotLimiter(concurrency=2, queue=1)
        await calls(limiter, "a a", takes_s=4.0)
        tasks = [asyncio.create_task(call(limiter, "a", [], takes_s=4.0)) for _ in range(3)]
        await settle_down()
        before = now()
        result = await limiter.enter(owner="a")
        waited_s = now() - before
        await asyncio.gather(*tasks)
        return result, waited_s

    result, waited_s = run(work())

    assert result == Err(
        SlotBusy(
            detail="the slot's queue is full (1 waiting); a place would take about 4 s", retry_after_s=4.0
        )
    )
    assert waited_s == 0.0


def test_slot_busy_before_any_call_has_ended_goes_by_the_oldest() -> None:
    async def work() -> object:
        limiter = SlotLimiter(concurrency=1, queue=0)
        with await entered(limiter):
            await asyncio.sleep(7.0)
            return await limiter.enter()

    result = run(work())

    assert isinstance(result, Err)
    assert isinstance(result.reason, SlotBusy)
    assert result.reason.retry_after_s == 7.0


def test_slot_busy_by_the_limit_per_minute_says_when_the_next_may_begin() -> None:
    async def work() -> list[float | None]:
        limiter = SlotLimiter(requests_per_minute=2, queue=1)
        told = []
        for wait_s in (0.0, 10.0):
            await asyncio.sleep(wait_s)
            await entered(limiter)
        tasks = [asyncio.create_task(entered(limiter, owner)) for owner in "ab"]
        await settle_down()
        for owner in "ac":
            result = await limiter.enter(owner=owner)
            if isinstance(result, Err) and isinstance(result.reason, SlotBusy):
                told.append(result.reason.retry_after_s)
        await asyncio.gather(*tasks)
        return told

    # The places of 60 s and 70 s go to a and b; the next is that of 120 s. c is let into the queue.
    assert run(work()) == [110.0]


def test_s10_a_full_queue_of_one_owner_keeps_no_other_out() -> None:
    async def work() -> list[str]:
        limiter, done = SlotLimiter(concurrency=1, queue=2), list[str]()
        tasks = [asyncio.create_task(call(limiter, name, done)) for name in ("a1", "a2", "a3", "b1")]
        await settle_down()
        assert isinstance(await limiter.enter(owner="a"), Err)
        await asyncio.gather(*tasks)
        return done

    assert run(work()) == ["a1", "a2", "b1", "a3"]


# Deadlines and cancelling


def test_s03_the_wait_counts_against_the_turn_s_deadline() -> None:
    async def work() -> tuple[object, float, int]:
        limiter = SlotLimiter(concurrency=1)
        with await entered(limiter):
            result = await limiter.enter(deadline=5.0)
            return result, now(), limiter.waiting

    result, at, waiting = run(work())

    assert result == Err(Timeout(detail="the call waited for its slot until the turn's deadline"))
    assert (at, waiting) == (5.0, 0)


def test_cancelling_a_call_that_waits_frees_its_place() -> None:
    async def work() -> list[str]:
        limiter, done = SlotLimiter(concurrency=1, queue=1), list[str]()
        first, second = [asyncio.create_task(call(limiter, name, done)) for name in ("a1", "a2")]
        await settle_down()
        second.cancel()
        await settle_down()
        await asyncio.gather(first, call(limiter, "a3", done))
        return done

    assert run(work()) == ["a1", "a3"]


def test_a_call_that_is_cancelled_as_it_is_let_in_gives_its_permit_on() -> None:
    async def work() -> list[str]:
        limiter, done = SlotLimiter(concurrency=1), list[str]()
        permit = await entered(limiter)
        second, third = [asyncio.create_task(call(limiter, name, done)) for name in ("a2", "a3")]
        await settle_down()
        permit.leave()  # resolves the place of the second, which has not run yet
        second.cancel()
        await third
        assert (limiter.running, limiter.waiting) == (0, 0)
        return done

    assert run(work()) == ["a3"]


def test_a_permit_that_is_given_back_twice_counts_once() -> None:
    async def work() -> tuple[int, int]:
        limiter = SlotLimiter(concurrency=2)
        first, _ = await entered(limiter), await entered(limiter)
        first.leave()
        first.leave()
        return limiter.running, limiter.waiting

    assert run(work()) == (1, 0)


# Any order of events


class Plan(NamedTuple):
    """A call: when it comes, whose it is, how long it takes, when its caller gives up, and how."""

    at: float
    owner: str
    takes_s: float
    patience_s: float | None
    cancels: bool


PLANS = st.lists(
    st.builds(
        Plan,
        at=st.integers(0, 40).map(float),
        owner=st.sampled_from("abc"),
        takes_s=st.sampled_from([0.0, 0.5, 3.0, 30.0]),
        patience_s=st.none() | st.sampled_from([0.0, 1.0, 20.0]),
        cancels=st.booleans(),
    ),
    max_size=25,
)
LIMITS = st.none() | st.integers(1, 4)


class Watch:
    """What the limiter let in, as a world outside it sees it."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.begun: list[float] = []
        self.outcomes: list[str] = []


async def carry_out(limiter: SlotLimiter, plan: Plan, watch: Watch) -> None:
    await asyncio.sleep(plan.at)
    deadline = None if plan.patience_s is None or plan.cancels else now() + plan.patience_s
    try:
        async with asyncio.timeout(plan.patience_s if plan.cancels else None):
            result = await limiter.enter(owner=plan.owner, deadline=deadline)
            if isinstance(result, Err):
                watch.outcomes.append(result.reason.tag)
                return
            with result.value:
                watch.begun.append(now())
                watch.running += 1
                watch.most = max(watch.most, watch.running)
                try:
                    await asyncio.sleep(plan.takes_s)
                finally:
                    watch.running -= 1
            watch.outcomes.append("ok")
    except TimeoutError:
        watch.outcomes.append("cancelled")


@settings(max_examples=150, deadline=None)
@given(plans=PLANS, concurrency=LIMITS, queue=st.none() | st.integers(0, 3), per_minute=LIMITS)
def test_the_limits_hold_and_everybody_is_answered_whatever_happens(
    plans: Sequence[Plan], concurrency: int | None, queue: int | None, per_minute: int | None
) -> None:
    async def work() -> tuple[Watch, SlotLimiter]:
        limiter = SlotLimiter(concurrency=concurrency, queue=queue, requests_per_minute=per_minute)
        watch = Watch()
        await asyncio.gather(*[carry_out(limiter, plan, watch) for plan in plans])
        return watch, limiter

    watch, limiter = run(work())  # a deadlock raises

    assert len(watch.outcomes) == len(plans)
    assert (limiter.running, limiter.waiting) == (0, 0)
    assert concurrency is None or watch.most <= concurrency
    if per_minute is not None:
        pairs = zip(watch.begun, watch.begun[per_minute:], strict=False)
        assert all(later - earlier >= 60.0 for earlier, later in pairs)


@settings(max_examples=60, deadline=None)
@given(greedy=st.integers(1, 40), others=st.integers(1, 6), concurrency=st.integers(1, 3))
def test_s10_no_owner_starves(greedy: int, others: int, concurrency: int) -> None:
    names = ["a"] * greedy + [chr(ord("b") + number) for number in range(others)]

    begun = run(calls(SlotLimiter(concurrency=concurrency), " ".join(names)))

    # Those that run at once are the greedy one's; then each round lets one call of every owner in.
    assert set(begun[: concurrency + others + 1]) >= set(names) - {"a"}


@pytest.mark.parametrize("patience_s", [0.0, 2.0])
def test_a_crowd_that_gives_up_leaves_the_slot_free(patience_s: float) -> None:
    async def work() -> object:
        limiter = SlotLimiter(concurrency=1)
        with await entered(limiter):
            await asyncio.gather(*[limiter.enter(deadline=now() + patience_s) for _ in range(50)])
        return await limiter.enter()

    assert isinstance(run(work()), Ok)
