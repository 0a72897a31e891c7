"""US dollars as whole numbers of 1e-9 USD, so that sums are exact and every store can hold them."""

from __future__ import annotations

from decimal import ROUND_CEILING, Context, Decimal

NANO = 1_000_000_000
# Wide enough for any count of tokens at any price: nothing is rounded by the way.
EXACT = Context(prec=100)


def nano_usd(usd: Decimal) -> int:
    """An amount in 1e-9 USD. What is finer is rounded up: a sum is never too small."""
    return int(EXACT.multiply(usd, Decimal(NANO)).to_integral_value(ROUND_CEILING))


def to_usd(nano: int) -> Decimal:
    """An amount in USD, exactly."""
    return Decimal(nano).scaleb(-9, EXACT)


def shown_usd(nano: int) -> str:
    """An amount for a person: two digits after the point, more where it has them, six at most.

    What is smaller than that is rounded up, so that something is never shown as nothing.

    >>> shown_usd(1_500_000_000), shown_usd(123_456_789), shown_usd(1)
    ('1.50 USD', '0.123457 USD', '0.000001 USD')
    """
    micro = -(-nano // 1000)
    whole, rest = divmod(micro, 1_000_000)
    digits = f"{rest:06}".rstrip("0").ljust(2, "0")
    return f"{whole:,}.{digits} USD"
