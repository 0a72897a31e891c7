"""What a provider call costs: from the settings' prices, or from the maintained list of `genai-prices`.

Unknown is `None`, never zero: a model without a price, a call without its counts. Cached and cache-written
tokens are part of the input (`mead.core.usage`), and each token is charged once, at the price of its kind.
"""

from __future__ import annotations

import datetime
import importlib
import importlib.util
import logging
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from mead.core.options import Route
from mead.core.usage import Usage
from mead.ledger.money import EXACT, nano_usd, to_usd
from mead.settings import Settings
from mead.settings.values import PriceSettings

_IN_THIS_PROCESS = ("echo", "embedded")
_OWN_SERVER = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com"}
_MTOK = Decimal(1_000_000)
_log = logging.getLogger("mead.ledger")


class Rates(Struct, frozen=True, kw_only=True):
    """Prices in USD per million tokens. `cached` and `cache_write` are those of input tokens that were read
    from or written to the provider's cache; `None` is the price of `input`."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None
    cache_write: Decimal | None = None

    @property
    def dearest_input(self) -> Decimal:
        """The most that an input token may cost."""
        return max([price for price in (self.input, self.cached, self.cache_write) if price is not None])


class Price(Struct, frozen=True, kw_only=True):
    """Rates, with where they come from and how old they are.

    `source` is `settings`, `local` (a local model costs nothing), or the price list with its version.
    `as_of` is the day that the price is from: the settings' own, or for the list the newest day on which one
    of its prices began. `None` is not known.
    """

    rates: Rates
    source: str
    as_of: datetime.date | None = None


class Cost(Struct, frozen=True, kw_only=True):
    """What a call cost, in 1e-9 USD, by which price (see `Price`)."""

    nano_usd: int
    source: str
    as_of: datetime.date | None = None

    @property
    def usd(self) -> Decimal:
        """The same in USD."""
        return to_usd(self.nano_usd)

    @property
    def price_date(self) -> str | None:
        """`as_of` as a row of the ledger keeps it: `2026-12-31`."""
        return None if self.as_of is None else self.as_of.isoformat()


FREE = Rates(input=Decimal(0), output=Decimal(0))
_LOCAL = Price(rates=FREE, source="local")


def cost_usd(usage: Usage, rates: Rates) -> Decimal | None:
    """What a call's tokens cost in USD, exactly.

    `None` if the input or the output count is unknown, or if the counts contradict each other. Cached or
    cache-written tokens that the provider does not tell of are charged as plain input.
    """
    if usage.input_tokens is None or usage.output_tokens is None:
        return None
    cached, written = usage.cached_tokens or 0, usage.cache_write_tokens or 0
    plain = usage.input_tokens - cached - written
    if min(plain, cached, written, usage.output_tokens) < 0:
        return None
    parts = (
        (plain, rates.input),
        (cached, rates.input if rates.cached is None else rates.cached),
        (written, rates.input if rates.cache_write is None else rates.cache_write),
        (usage.output_tokens, rates.output),
    )
    total = Decimal(0)
    for tokens, price in parts:
        total = EXACT.add(total, EXACT.multiply(Decimal(tokens), price))
    return EXACT.divide(total, _MTOK)


class PriceList(Protocol):
    """A maintained list of prices."""

    def find(self, model: str, *, base_url: str, at: datetime.datetime, input_tokens: int) -> Price | None:
        """The price of a model at a server for a request of so many input tokens; `None` if it is not in the
        list. Never raises."""


class Prices:
    """The prices of one configuration.

    A price in the settings wins. Else a call of the local slot, or of a provider that runs in mead itself,
    costs nothing, and one of the cloud slot what the list says. Without the extra `prices` there is no list.
    """

    def __init__(self, settings: Settings, *, price_list: PriceList | None = None) -> None:
        self._own = {price.model: _own_price(price) for price in settings.prices}
        slot = settings.router.slots.cloud
        self._cloud_url = slot.base_url if slot is not None else None
        self._list = price_list if price_list is not None else _InstalledList()

    def find(
        self,
        *,
        route: Route,
        provider: str,
        model: str | None,
        at: datetime.datetime,
        input_tokens: int = 0,
    ) -> Price | None:
        """The price of a call that begins `at` (an aware time) with so many input tokens; `None` if nobody
        knows it."""
        if model is not None and (own := self._own.get(model)) is not None:
            return own
        if route == "local" or provider in _IN_THIS_PROCESS:
            return _LOCAL
        base_url = self._cloud_url or _OWN_SERVER.get(provider)
        if model is None or base_url is None:
            return None
        return self._list.find(model, base_url=base_url, at=at, input_tokens=input_tokens)

    def cost(
        self, usage: Usage | None, *, route: Route, provider: str, model: str | None, at: datetime.datetime
    ) -> Cost | None:
        """What a call cost; `None` if its price or its counts are unknown. `usage` is `None` for a call whose
        provider did not get to say. A call that costs nothing costs nothing however many tokens it took."""
        counted = usage.input_tokens if usage is not None else None
        price = self.find(route=route, provider=provider, model=model, at=at, input_tokens=counted or 0)
        if price is None:
            return None
        usd = Decimal(0) if price.rates == FREE else cost_usd(usage or Usage(), price.rates)
        return None if usd is None else Cost(nano_usd=nano_usd(usd), source=price.source, as_of=price.as_of)

    def most(
        self,
        *,
        input_tokens: int,
        output_tokens: int,
        route: Route,
        provider: str,
        model: str | None,
        at: datetime.datetime,
    ) -> int | None:
        """The most that a call of so many tokens may cost, in 1e-9 USD; `None` if its price is unknown."""
        price = self.find(route=route, provider=provider, model=model, at=at, input_tokens=input_tokens)
        if price is None:
            return None
        dearest = msgspec.structs.replace(price.rates, input=price.rates.dearest_input)
        usd = cost_usd(Usage(input_tokens=input_tokens, output_tokens=output_tokens), dearest)
        return None if usd is None else nano_usd(usd)


def _own_price(price: PriceSettings) -> Price:
    rates = Rates(input=price.input, output=price.output, cached=price.cached, cache_write=price.cache_write)
    return Price(rates=rates, source="settings", as_of=price.as_of)


@cache
def _has_price_list() -> bool:
    """Whether the extra `prices` is installed. Loads nothing."""
    return importlib.util.find_spec("genai_prices") is not None


def load_price_list() -> None:
    """Loads the list now, where it is installed, which takes some tenths of a second. Call it on a thread
    before the first turn, so that no turn has to wait for it."""
    if _has_price_list():
        _load()


class _InstalledList:
    """The list of the library `genai-prices`, as it was installed: nothing is fetched."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, datetime.date], datetime.date | None] = {}

    def find(self, model: str, *, base_url: str, at: datetime.datetime, input_tokens: int) -> Price | None:
        if not _has_price_list():
            return None
        library, version = _load()
        try:
            provider, info = library.find_provider_model(model, None, None, base_url)
        except LookupError:
            return None
        try:
            rates = _rates(info.get_prices(at), input_tokens)
        except (AttributeError, TypeError, ValueError) as error:
            # A newer library may say it in another way. A cost that is unknown is better than a wrong one.
            _log.warning("the price of a model cannot be read from the list: %s", type(error).__name__)
            return None
        if rates is None:
            return None
        return Price(rates=rates, source=f"genai-prices {version}", as_of=self._as_of(provider, at))

    def _as_of(self, provider: Any, at: datetime.datetime) -> datetime.date | None:
        key = (provider.id, at.astimezone(datetime.UTC).date())
        if key not in self._newest:
            self._newest.clear()  # one server and one day at a time
            self._newest[key] = _newest(provider.models, key[1])
        return self._newest[key]


@cache
def _load() -> tuple[Any, str]:
    """The library's snapshot of prices, and its version."""
    version = str(importlib.import_module("genai_prices").__version__)
    return importlib.import_module("genai_prices.data_snapshot").get_snapshot(), version


def _rates(prices: Any, input_tokens: int) -> Rates | None:
    """The library's prices as ours; `None` where input or output has none."""
    read = {
        ours: _at_size(getattr(prices, theirs), input_tokens)
        for ours, theirs in (
            ("input", "input_mtok"),
            ("output", "output_mtok"),
            ("cached", "cache_read_mtok"),
            ("cache_write", "cache_write_mtok"),
        )
    }
    if read["input"] is None or read["output"] is None:
        return None
    return Rates(
        input=read["input"], output=read["output"], cached=read["cached"], cache_write=read["cache_write"]
    )


def _at_size(price: Any, input_tokens: int) -> Decimal | None:
    """A price for a request of a size: the last step that its input exceeds counts for all its tokens."""
    if price is None or isinstance(price, Decimal):
        return price
    chosen = price.base
    for step in price.tiers:
        if input_tokens > step.start:
            chosen = step.price
    if not isinstance(chosen, Decimal):
        raise TypeError("a price is no Decimal")
    return chosen


def _newest(models: Sequence[Any], day: datetime.date) -> datetime.date | None:
    """The newest day, up to `day`, on which a price of some models began: the list has no date of its own."""
    return max([start for start in _starts(models) if start <= day], default=None)


def _starts(models: Sequence[Any]) -> Iterator[datetime.date]:
    for model in models:
        for dated in (
            *(model.prices if isinstance(model.prices, list) else ()),
            *(model.price_variants or ()),
        ):
            start = getattr(dated.constraint, "start_date", None)
            if isinstance(start, datetime.date):
                yield start
