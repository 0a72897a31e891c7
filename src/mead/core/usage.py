"""Token counts. Unknown is `None`, never zero."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct


class Usage(Struct, frozen=True, kw_only=True, gc=False):
    """What one provider call cost, in tokens.

    `input_tokens` includes what the provider read from or wrote to its prompt cache; `cached_tokens` and
    `cache_write_tokens` say how many of them that were. `output_tokens` includes `reasoning_tokens`.
    `None` means that the provider did not say.
    """

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None
    reasoning_tokens: int | None = None


class UsageTotal(Struct, frozen=True, kw_only=True, gc=False):
    """The known tokens of several provider calls, added up.

    `unknown` is true when some call did not say its input or output count: then the sums are lower bounds.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    provider_calls: int = 0
    unknown: bool = False


def total(usages: Iterable[Usage]) -> UsageTotal:
    """Adds up what several calls cost."""
    sums = [0, 0, 0, 0, 0]
    calls, unknown = 0, False
    for usage in usages:
        calls += 1
        unknown = unknown or usage.input_tokens is None or usage.output_tokens is None
        sums[0] += usage.input_tokens or 0
        sums[1] += usage.output_tokens or 0
        sums[2] += usage.cached_tokens or 0
        sums[3] += usage.cache_write_tokens or 0
        sums[4] += usage.reasoning_tokens or 0
    return UsageTotal(
        input_tokens=sums[0],
        output_tokens=sums[1],
        cached_tokens=sums[2],
        cache_write_tokens=sums[3],
        reasoning_tokens=sums[4],
        provider_calls=calls,
        unknown=unknown,
    )
