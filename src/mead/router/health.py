"""Which of a slot's providers have just failed, so that they are not asked first for a while."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mead.core.reasons import HttpStatus, Timeout, Transport, TurnReason

FIRST_COOLDOWN_S = 5.0
LONGEST_COOLDOWN_S = 120.0
OVERLOADED = 429


def is_passing(reason: TurnReason) -> bool:
    """Whether a failure is of the provider's service, so that another one may do better: no connection, a
    refusal for too many requests, or a fault of the server. A connection that mead itself refuses is not."""
    match reason:
        case Transport(cause=cause):
            return cause != "not_local"
        case Timeout(limit=limit):
            return limit == "connect"
        case HttpStatus(status=status):
            return status == OVERLOADED or status >= 500
        case _:
            return False


class Health:
    """How a slot's providers are, by their place in it. A provider that failed rests, twice as long each time
    that it fails again, or as long as it says itself; one that has worked is well. Times are in seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[int, int] = {}
        self._rests_until: dict[int, float] = {}

    def order(self, places: Sequence[int]) -> list[int]:
        """The places, those that rest behind the others, the one that has rested longest first among them."""
        now = self._clock()
        resting = {place: until for place, until in self._rests_until.items() if until > now}
        return sorted(places, key=lambda place: resting.get(place, 0.0))

    def rests_s(self, place: int) -> float:
        """How long the provider rests yet; 0 for one that is well."""
        return max(0.0, self._rests_until.get(place, 0.0) - self._clock())

    def failed(self, place: int, reason: TurnReason) -> None:
        """The provider failed: it rests."""
        failures = self._failures[place] = self._failures.get(place, 0) + 1
        rest_s = min(FIRST_COOLDOWN_S * 2.0 ** min(failures - 1, 10), LONGEST_COOLDOWN_S)
        if isinstance(reason, HttpStatus) and reason.retry_after_s is not None:
            rest_s = min(max(rest_s, reason.retry_after_s), LONGEST_COOLDOWN_S)
        self._rests_until[place] = self._clock() + rest_s

    def worked(self, place: int) -> None:
        """The provider answered."""
        if place in self._failures:
            del self._failures[place]
            del self._rests_until[place]
