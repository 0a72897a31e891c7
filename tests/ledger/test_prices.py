"""What a call costs."""

from __future__ import annotations

import datetime
import subprocess
import sys
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.core.options import Route
from mead.core.usage import Usage
from mead.ledger import prices as prices_module
from mead.ledger.money import nano_usd, shown_usd, to_usd
from mead.ledger.prices import Cost, Price, Prices, Rates, cost_usd
from mead.settings import RouterSettings, Settings, SlotSettings, SlotsSettings
from mead.settings.values import PriceSettings

NOON = datetime.datetime(2026, 12, 1, 12, tzinfo=datetime.UTC)
DAY = datetime.date(2026, 11, 9)
GPT_4O = Rates(input=Decimal("2.5"), output=Decimal(10), cached=Decimal("1.25"))
SONNET = Rates(input=Decimal(3), output=Decimal(15), cached=Decimal("0.3"), cache_write=Decimal("3.75"))
COUNT = st.integers(0, 10**12)
PRICE = st.decimals(0, 10_000, places=6)
RATES = st.builds(Rates, input=PRICE, output=PRICE, cached=st.none() | PRICE, cache_write=st.none() | PRICE)


class FakeList:
    """Knows some models of one server."""

    def __init__(self, base_url: str, **rates: Rates) -> None:
        self._base_url = base_url
        self._rates = rates

    def find(self, model: str, *, base_url: str, at: datetime.datetime, input_tokens: int) -> Price | None:
        if base_url != self._base_url or model not in self._rates:
            return None
        return Price(rates=self._rates[model], source="a list 1.0", as_of=DAY)


OPENAI = "https://api.openai.com"
LIST = FakeList(OPENAI, gpt=GPT_4O)


def settings(*prices: PriceSettings, base_url: str | None = None) -> Settings:
    slot = SlotSettings(provider="openai", model="gpt", base_url=base_url)
    return Settings(prices=prices, router=RouterSettings(slots=SlotsSettings(cloud=slot)))


def cost(
    prices: Prices,
    usage: Usage | None,
    *,
    route: Route = "cloud",
    provider: str = "openai",
    model: str | None = "gpt",
) -> Cost | None:
    return prices.cost(usage, route=route, provider=provider, model=model, at=NOON)


# Counts and rates


def test_d16_cached_tokens_are_part_of_the_input_and_charged_once() -> None:
    usage = Usage(input_tokens=2006, cached_tokens=1920, output_tokens=300)

    # 86 at the full price, 1920 at the cached one
    assert cost_usd(usage, GPT_4O) == Decimal("0.000215") + Decimal("0.0024") + Decimal("0.003")


def test_d17_cache_written_tokens_are_part_of_the_input_and_charged_once() -> None:
    usage = Usage(input_tokens=12307, cache_write_tokens=12304, cached_tokens=0, output_tokens=550)

    assert cost_usd(usage, SONNET) == (3 * 3 + 12304 * Decimal("3.75") + 550 * 15) / Decimal(1_000_000)


def test_reasoning_tokens_are_part_of_the_output_and_charged_once() -> None:
    with_reasoning = Usage(input_tokens=0, output_tokens=100, reasoning_tokens=90)

    assert cost_usd(with_reasoning, GPT_4O) == Decimal("0.001")


def test_cached_tokens_without_a_price_of_their_own_cost_what_input_costs() -> None:
    usage = Usage(input_tokens=10, cached_tokens=4, cache_write_tokens=3, output_tokens=0)

    assert cost_usd(usage, Rates(input=Decimal(1), output=Decimal(1))) == Decimal("0.00001")


@pytest.mark.parametrize(
    "usage",
    [
        Usage(),
        Usage(input_tokens=5),
        Usage(output_tokens=5),
        Usage(input_tokens=5, cached_tokens=6, output_tokens=1),
        Usage(input_tokens=5, cached_tokens=3, cache_write_tokens=3, output_tokens=1),
    ],
)
def test_l1_counts_that_are_unknown_or_contradict_each_other_have_no_cost(usage: Usage) -> None:
    assert cost_usd(usage, GPT_4O) is None


@given(rates=RATES, plain=COUNT, cached=COUNT, written=COUNT, output=COUNT)
def test_l1_a_call_costs_the_same_as_its_parts_to_the_last_digit(
    rates: Rates, plain: int, cached: int, written: int, output: int
) -> None:
    whole = Usage(
        input_tokens=plain + cached + written,
        cached_tokens=cached,
        cache_write_tokens=written,
        output_tokens=output,
    )
    parts = [
        Usage(input_tokens=plain, output_tokens=0),
        Usage(input_tokens=cached, cached_tokens=cached, output_tokens=0),
        Usage(input_tokens=written, cache_write_tokens=written, output_tokens=0),
        Usage(input_tokens=0, output_tokens=output),
    ]

    costs = [cost_usd(part, rates) for part in parts]

    assert cost_usd(whole, rates) == sum([part for part in costs if part is not None])
    assert None not in costs


@given(rates=RATES, calls=st.lists(st.tuples(COUNT, COUNT), max_size=20))
def test_l1_the_sum_of_many_calls_is_exact(rates: Rates, calls: list[tuple[int, int]]) -> None:
    usages = [Usage(input_tokens=one, output_tokens=two) for one, two in calls]
    together = Usage(
        input_tokens=sum([one for one, _ in calls]), output_tokens=sum([two for _, two in calls])
    )

    in_nano = sum([nano_usd(cost_usd(usage, rates) or Decimal(0)) for usage in usages])
    exact = cost_usd(together, rates)

    assert exact is not None
    assert exact <= to_usd(in_nano) <= exact + to_usd(len(calls))


@pytest.mark.parametrize(
    "usd,nano,shown",
    [
        ("0", 0, "0.00 USD"),
        ("1.5", 1_500_000_000, "1.50 USD"),
        ("0.005615", 5_615_000, "0.005615 USD"),
        ("0.0000000001", 1, "0.000001 USD"),
        ("1234567.999999999", 1_234_567_999_999_999, "1,234,568.00 USD"),
    ],
)
def test_money_is_counted_in_whole_numbers_and_never_rounded_to_nothing(
    usd: str, nano: int, shown: str
) -> None:
    assert (nano_usd(Decimal(usd)), shown_usd(nano)) == (nano, shown)


# Which price


def test_a_price_of_the_settings_wins_and_has_the_day_they_say() -> None:
    own = PriceSettings(model="gpt", input=Decimal(1), output=Decimal(2), as_of=datetime.date(2026, 5, 1))

    found = cost(Prices(settings(own), price_list=LIST), Usage(input_tokens=1_000_000, output_tokens=0))

    assert found == Cost(nano_usd=1_000_000_000, source="settings", as_of=datetime.date(2026, 5, 1))
    assert found.usd == 1


def test_the_cloud_slot_costs_what_the_list_says_of_its_server() -> None:
    usage = Usage(input_tokens=2006, cached_tokens=1920, output_tokens=300)

    found = cost(Prices(settings(), price_list=LIST), usage)

    assert found == Cost(nano_usd=5_615_000, source="a list 1.0", as_of=DAY)
    assert (found.usd, found.price_date) == (Decimal("0.005615"), "2026-11-09")


@pytest.mark.parametrize("model,base_url", [("other", None), (None, None), ("gpt", "https://my.example/v1")])
def test_d19_a_missing_price_is_unknown_and_never_zero(model: str | None, base_url: str | None) -> None:
    prices = Prices(settings(base_url=base_url), price_list=LIST)

    assert cost(prices, Usage(input_tokens=1, output_tokens=1), model=model) is None


def test_a_provider_of_somebody_else_without_an_address_has_no_price() -> None:
    prices = Prices(settings(), price_list=LIST)

    assert cost(prices, Usage(input_tokens=1, output_tokens=1), provider="my.models:Mine") is None


@pytest.mark.parametrize("usage", [None, Usage(), Usage(input_tokens=5)])
def test_l1_a_call_that_did_not_tell_its_counts_has_no_cost(usage: Usage | None) -> None:
    assert cost(Prices(settings(), price_list=LIST), usage) is None


@pytest.mark.parametrize("usage", [None, Usage(input_tokens=5, output_tokens=5)])
@pytest.mark.parametrize("route,provider", [("local", "ollama"), ("cloud", "echo"), ("cloud", "embedded")])
def test_a_local_call_costs_nothing(usage: Usage | None, route: Route, provider: str) -> None:
    prices = Prices(settings(), price_list=LIST)

    assert cost(prices, usage, route=route, provider=provider) == Cost(nano_usd=0, source="local")


def test_a_local_model_costs_what_the_settings_say() -> None:
    own = PriceSettings(model="llama", input=Decimal(1), output=Decimal(1))
    usage = Usage(input_tokens=500_000, output_tokens=500_000)

    found = cost(Prices(settings(own)), usage, route="local", provider="ollama", model="llama")

    assert found == Cost(nano_usd=1_000_000_000, source="settings")


def test_the_most_that_a_call_may_cost_takes_the_dearest_input() -> None:
    prices = Prices(settings(), price_list=FakeList(OPENAI, gpt=SONNET))

    most = prices.most(
        input_tokens=1000, output_tokens=10, route="cloud", provider="openai", model="gpt", at=NOON
    )

    assert most == nano_usd((1000 * Decimal("3.75") + 10 * 15) / Decimal(1_000_000))


@given(rates=RATES, plain=COUNT, cached=COUNT, written=COUNT, output=COUNT)
def test_d19_no_call_costs_more_than_the_most(
    rates: Rates, plain: int, cached: int, written: int, output: int
) -> None:
    prices = Prices(settings(), price_list=FakeList(OPENAI, gpt=rates))
    counted = plain + cached + written
    usage = Usage(
        input_tokens=counted, cached_tokens=cached, cache_write_tokens=written, output_tokens=output
    )

    most = prices.most(
        input_tokens=counted, output_tokens=output, route="cloud", provider="openai", model="gpt", at=NOON
    )
    found = cost(prices, usage)

    assert found is not None
    assert most is not None
    assert found.nano_usd <= most


# The installed list


def anthropic(model: str) -> Prices:
    slot = SlotSettings(provider="anthropic", model=model)
    return Prices(Settings(router=RouterSettings(slots=SlotsSettings(cloud=slot))))


def find(prices: Prices, model: str, *, input_tokens: int = 0, at: datetime.datetime = NOON) -> Price | None:
    return prices.find(route="cloud", provider="anthropic", model=model, at=at, input_tokens=input_tokens)


def test_the_installed_list_knows_a_vendor_s_models_and_says_how_old_it_is() -> None:
    library = pytest.importorskip("genai_prices")
    prices = anthropic("claude-sonnet-4-5")

    price = find(prices, "claude-sonnet-4-5")

    assert price is not None
    assert price.rates == SONNET
    assert price.source == f"genai-prices {library.__version__}"
    assert price.as_of is not None
    assert datetime.date(2025, 1, 1) < price.as_of <= NOON.date()


def test_our_arithmetic_is_that_of_the_installed_list() -> None:
    library = pytest.importorskip("genai_prices")
    prices = anthropic("claude-sonnet-4-5")

    for size in (0, 5_000, 200_000, 200_001, 900_000):
        usage = Usage(
            input_tokens=size, cached_tokens=size // 2, cache_write_tokens=size // 4, output_tokens=70
        )
        theirs = library.calc_price(
            library.Usage(
                input_tokens=size,
                cache_read_tokens=size // 2,
                cache_write_tokens=size // 4,
                output_tokens=70,
            ),
            "claude-sonnet-4-5",
            provider_id="anthropic",
            genai_request_timestamp=NOON,
        )
        found = cost(prices, usage, provider="anthropic", model="claude-sonnet-4-5")
        assert found is not None
        assert found.nano_usd == nano_usd(theirs.total_price)


def test_a_model_that_the_installed_list_lacks_has_no_price() -> None:
    pytest.importorskip("genai_prices")

    assert find(anthropic("claude-of-my-own"), "claude-of-my-own") is None


def test_without_the_extra_there_is_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices_module, "_has_price_list", lambda: False)

    prices_module.load_price_list()

    assert find(anthropic("claude-sonnet-4-5"), "claude-sonnet-4-5") is None


def test_a_list_that_has_changed_its_shape_is_no_price(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Changed:
        def find_provider_model(self, *arguments: object) -> tuple[object, object]:
            return self, self

    monkeypatch.setattr(prices_module, "_has_price_list", lambda: True)
    monkeypatch.setattr(prices_module, "_load", lambda: (Changed(), "9"))

    assert find(anthropic("m"), "m") is None
    assert "cannot be read from the list" in caplog.text


def test_the_list_is_loaded_on_first_use_only() -> None:
    program = (
        "import sys, datetime, mead.ledger.prices as p, mead.settings as s; p.Prices(s.Settings());"
        "print('genai_prices' in sys.modules)"
    )

    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert said.stdout == "False\n"
