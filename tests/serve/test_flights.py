"""A flight has an end whatever becomes of it, and tells everyone all of its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from mead.serve.flights import Flight, Flights


async def numbers(until: int, gate: asyncio.Event | None = None) -> AsyncGenerator[int, None]:
    for number in range(until):
        if gate is not None and number == until - 1:
            await gate.wait()
        yield number


async def all_of(flight: Flight[int], after: int = 0) -> list[int]:
    return [event async for event in flight.follow(after)]


async def test_everyone_is_told_everything_from_where_they_left_off() -> None:
    flight = Flight(numbers(4))

    assert await asyncio.gather(all_of(flight), all_of(flight, 2)) == [[0, 1, 2, 3], [2, 3]]
    assert await all_of(flight, 3) == [3]
    assert await all_of(flight, 9) == []


async def test_a_flight_that_is_cancelled_before_it_begins_is_over() -> None:
    flight = Flight(numbers(4))
    flight.cancel()

    assert await asyncio.wait_for(all_of(flight), 5) == []
    assert flight.is_over


async def test_a_flight_that_nobody_follows_any_more_is_cancelled_where_that_is_wanted() -> None:
    flight, other = Flight(numbers(2, asyncio.Event())), Flight(numbers(2, asyncio.Event()))
    for one, grace_s in ((flight, 0.0), (other, None)):
        events = one.follow(grace_s=grace_s)
        assert await anext(events) == 0
        await events.aclose()

    await flight.wait()

    assert flight.is_over
    assert not other.is_over
    other.cancel()
    await other.wait()


async def test_a_follower_that_comes_in_time_keeps_it_alive() -> None:
    gate = asyncio.Event()
    flight = Flight(numbers(2, gate))
    events = flight.follow(grace_s=60)
    await anext(events)
    await events.aclose()

    following = asyncio.ensure_future(all_of(flight))
    gate.set()

    assert await following == [0, 1]


async def test_what_its_source_raises_is_raised_for_those_who_follow() -> None:
    async def fails() -> AsyncGenerator[int, None]:
        yield 1
        raise LookupError

    flight = Flight(fails())

    with pytest.raises(LookupError):
        await all_of(flight)


async def test_flights_are_found_by_their_key_as_long_as_they_run() -> None:
    flights: Flights[int] = Flights()
    flight = Flight(numbers(1, asyncio.Event()))
    flights.add("a", flight)

    assert flights.find("a") is flight
    assert flights.find("b") is None
    flight.cancel()
    await flight.wait()
