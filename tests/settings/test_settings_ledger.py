"""Prices, budgets and the limits of slots."""

from __future__ import annotations

import datetime
import tomllib
from decimal import Decimal
from pathlib import Path

import pytest

from mead.settings import KEYS, ConfigError, SlotSettings
from mead.settings._read import read_budgets, read_prices, read_router
from mead.settings._reader import Reader
from mead.settings.values import BudgetSettings, PriceSettings


def reader(text: str, **environ: str) -> Reader:
    return Reader(tomllib.loads(text), keys=KEYS, text=text, file=Path("mead.toml"), environ=environ)


def mistake(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read = reader(text)
        read_prices(read)
        read_budgets(read)
        read_router(read)
    return str(caught.value)


def test_prices_are_read_by_model_exactly_as_they_are_written() -> None:
    text = """
        [prices."qwen3.5/large"]
        input = 0.1
        output = 15
        cached = 0.025
        cache_write = 0.3
        as_of = 2026-12-01
        [prices.small]
        input = 0
        output = 0
        as_of = "${DAY}"
    """

    assert read_prices(reader(text, DAY="2026-11-30")) == (
        PriceSettings(
            model="qwen3.5/large",
            input=Decimal("0.1"),
            output=Decimal(15),
            cached=Decimal("0.025"),
            cache_write=Decimal("0.3"),
            as_of=datetime.date(2026, 12, 1),
        ),
        PriceSettings(model="small", input=Decimal(0), output=Decimal(0), as_of=datetime.date(2026, 11, 30)),
    )


def test_budgets_are_read_by_name() -> None:
    text = """
        [budgets.daily]
        per = "day"
        tokens = 100_000
        [budgets.each_month]
        per = "month"
        usd = 2.50
        tag = "work"
        owner = "*"
    """

    assert read_budgets(reader(text)) == (
        BudgetSettings(name="daily", per="day", tokens=100_000),
        BudgetSettings(name="each_month", per="month", usd=Decimal("2.5"), tag="work", owner="*"),
    )


def test_without_tables_there_are_neither() -> None:
    assert (read_prices(reader("")), read_budgets(reader(""))) == ((), ())


def test_a_slot_without_limits_has_none() -> None:
    slot = SlotSettings(provider="echo")

    assert (slot.concurrency, slot.queue, slot.requests_per_minute) == (None, None, None)


PRICE = "[prices.m]\ninput = 1\noutput = 1\n"
BUDGET = '[budgets.b]\nper = "day"\n'
SLOT = '[router.slots.local]\nprovider = "echo"\n'


@pytest.mark.parametrize(
    "text,said",
    [
        ("[prices.m]\ninput = 1", "line 1: prices.m.output: this is missing"),
        ("[prices.m]\ninput = -1", "line 2: prices.m.input: input must be at least 0"),
        ('[prices.m]\ninput = "1"', "input must be a number, not text"),
        ("[prices.m]\ninput = 1e-13", "input must have at most 12 digits after the point"),
        ("[prices.m]\ninput = inf", "input must be at least 0"),
        (PRICE + "as_of = 2026", "line 4: prices.m.as_of: as_of must be a date, as 2026-12-31"),
        (PRICE + "as_of = 2026-12-01T10:00:00", "as_of must be a date"),
        (PRICE + 'as_of = "yesterday"', "as_of must be a date"),
        (PRICE + "chached = 1", "line 4: prices.m.chached: there is no such key; did you mean 'cached'?"),
        ("[prices]\nm = 1", "m must be a table, as [prices.m]"),
        ("[budgets.b]\ntokens = 1", "line 1: budgets.b.per: this is missing"),
        (BUDGET, "line 1: budgets.b: a budget is either in tokens or in usd"),
        (BUDGET + "tokens = 1\nusd = 1", "a budget is either in tokens or in usd; for both, make two"),
        (BUDGET + "tokens = 1.5", "line 3: budgets.b.tokens: tokens must be a whole number"),
        (BUDGET + "tokens = -1", "tokens must be at least 0"),
        ('[budgets.b]\nper = "week"', 'per must be one of "day", "month", "session"'),
        (BUDGET + 'usd = 1\nowner = ""', "owner must not be empty"),
        ('[budgets."a/b"]\nper = "day"', "a budget's name is 1 to 40 of a-z"),
        ("[[budgets]]\nper = 'day'", "budgets must be a table, as [budgets]"),
        (SLOT + "concurrency = 0", "concurrency must be at least 1"),
        (SLOT + "requests_per_minute = 0", "requests_per_minute must be at least 1"),
        (SLOT + "queue = 3", "line 3: router.slots.local.queue: nothing waits without a limit"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_key(text: str, said: str) -> None:
    assert said in mistake(text)
