"""`mead usage`: what the ledger holds, as a table, as JSON, as CSV and as bars."""

from __future__ import annotations

import csv
import datetime
import io
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.commands import run, run_json
from ledger.clock import run as run_loop
from mead.cli import usage as usage_module
from mead.cli.usage import UsageReport, plot_of, table_of, usage_rows
from mead.core.usage import Usage
from mead.storage import StoreError
from mead.storage.memory import MemoryStore
from mead.storage.protocol import Begun, CallRow, SessionRecord, TurnEnd, TurnStart, UsageGroup

GROUPS: tuple[UsageGroup, ...] = ("day", "session", "route", "model", "tag")


def at(day: str, hour: int = 12) -> float:
    return datetime.datetime.fromisoformat(f"{day}T{hour:02}:00+00:00").timestamp()


def call(
    session_id: str = "s1",
    *,
    opened_at: float = at("2026-12-01"),
    counts: tuple[int | None, int | None] = (100, 20),
    cost_usd: float | None = 0.005,
    price_date: str | None = "2026-11-09",
    tags: tuple[str, ...] = (),
    model: str | None = "gpt",
) -> CallRow:
    return CallRow(
        session_id=session_id,
        turn=0,
        number=1,
        route="cloud" if price_date else "local",
        provider="openai",
        model=model,
        opened_at=opened_at,
        closed_at=opened_at + 1,
        status="closed",
        outcome="ok",
        tags=tags,
        usage=Usage(input_tokens=counts[0], output_tokens=counts[1], cached_tokens=10),
        cost_usd=cost_usd,
        price_date=price_date,
    )


class FilledStore(MemoryStore):
    """A store with some calls, each in a turn of its own."""

    def __init__(self, calls: Sequence[CallRow]) -> None:
        super().__init__()
        self._to_fill = list(calls)

    async def open(self) -> None:
        await super().open()
        known: set[str] = set()
        for number, row in enumerate(self._to_fill, start=1):
            at, session_id = row.opened_at, row.session_id
            if session_id not in known:
                known.add(session_id)
                await self.create_session(
                    SessionRecord(session_id=session_id, created_at=at, updated_at=at, turn_timeout_s=30)
                )
            begun = await self.begin_turn(
                TurnStart(session_id=session_id, number=number, question=b"{}", started_at=at)
            )
            assert isinstance(begun, Begun)
            row = msgspec.structs.replace(row, turn=begun.number)
            await self.open_call(row, epoch=begun.epoch)
            await self.close_call(row)
            end = TurnEnd(session_id=session_id, number=begun.number, status="failed", finished_at=at)
            await self.end_turn(end, epoch=begun.epoch)


Fill = Callable[..., None]


@pytest.fixture
def fill(home: Path, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Gives the command a ledger with these calls."""

    def write(*calls: CallRow) -> None:
        (home / "data").mkdir(exist_ok=True)
        (home / "data" / "mead.db").touch()
        monkeypatch.setattr(usage_module, "open_store", lambda url: FilledStore(calls))

    return write


def report(calls: Sequence[CallRow], by: UsageGroup) -> UsageReport:
    async def work() -> UsageReport:
        store = FilledStore(calls)
        await store.open()
        return await usage_rows(store, by)

    return run_loop(work())


# The table


def test_l1_a_table_adds_up_by_day_with_the_date_of_the_prices(fill: Fill) -> None:
    fill(
        call(opened_at=at("2026-11-30"), counts=(1_000, 200), price_date="2026-11-03"),
        call(opened_at=at("2026-12-01")),
        call(opened_at=at("2026-12-01", 23), cost_usd=0.02),
    )

    result = run("usage")

    assert result.stdout.splitlines() == [
        "day         calls  input  cached  output       cost",
        "2026-11-30      1  1,000      10     200  0.005 USD",
        "2026-12-01      2    200      20      40  0.025 USD",
        "total           3  1,200      30     240   0.03 USD",
    ]
    assert result.stderr == "Prices of 2026-11-03 to 2026-11-09.\n"
    assert result.exit_code == 0


def test_l1_unknown_counts_and_costs_are_lower_bounds_and_never_zero(fill: Fill) -> None:
    fill(
        call("known"),
        call("partly"),
        call("partly", counts=(None, None), cost_usd=None),
        call("unknown", counts=(None, None), cost_usd=None),
    )

    result = run("usage", "--by", "session")

    cells = [line.split("  ") for line in result.stdout.splitlines()]
    shown = [[cell.strip() for cell in line if cell] for line in cells]
    assert shown[1:] == [
        ["known", "1", "100", "10", "20", "0.005 USD"],
        ["partly", "2", "at least 100", "20", "at least 20", "at least 0.005 USD"],
        ["unknown", "1", "unknown", "10", "unknown", "unknown"],
        ["total", "4", "at least 200", "40", "at least 40", "at least 0.01 USD"],
    ]
    assert result.stderr.splitlines()[:2] == [
        "2 calls did not say how many tokens they took; what they took is not in the sums.",
        "2 calls have no known cost (docs/ledger.md).",
    ]


def test_local_calls_cost_nothing_which_is_known(fill: Fill) -> None:
    fill(call(cost_usd=0.0, price_date=None))

    result = run("usage", "--by", "route")

    assert result.stdout.splitlines()[1].split() == ["local", "1", "100", "10", "20", "0.00", "USD"]
    assert result.stderr == ""


def test_a_call_with_two_tags_counts_in_both_and_once_in_the_total(fill: Fill) -> None:
    fill(call(tags=("a", "b")), call())

    result = run("usage", "--by", "tag")

    assert [line.split()[:4] for line in result.stdout.splitlines()[1:]] == [
        ["(no", "tag)", "1", "100"],
        ["a", "1", "100", "10"],
        ["b", "1", "100", "10"],
        ["total", "2", "200", "20"],
    ]
    assert "once in the total" in result.stderr


def test_names_that_would_act_on_the_terminal_are_made_safe(fill: Fill) -> None:
    fill(call(model="\x1b[2Jgpt"), call(model=None))

    shown = run("usage", "--by", "model").stdout

    assert "\x1b" not in shown
    assert "(unknown)" in shown


def test_days_can_be_chosen_and_the_last_one_counts_too(fill: Fill) -> None:
    fill(*[call(opened_at=at(f"2026-12-0{day}", hour)) for day in (1, 2, 3) for hour in (0, 23)])

    told, status = run_json("usage", "--since", "2026-12-02", "--until", "2026-12-02")

    assert status == 0
    assert [(row["key"], row["calls"]) for row in told["rows"]] == [("2026-12-02", 2)]
    assert (told["since"], told["until"], told["total"]["calls"]) == ("2026-12-02", "2026-12-02", 2)


# Nothing there, and mistakes


def test_without_a_ledger_there_is_a_sentence_and_no_file_is_made(home: Path) -> None:
    result = run("usage", "--since", "2026-12-01")

    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "The ledger has no calls from 2026-12-01 on.\n"
    assert not (home / "data").exists()


def test_an_empty_ledger_has_a_form_for_programs_too() -> None:
    told, status = run_json("usage")

    assert status == 0
    assert (told["rows"], told["total"]["calls"], told["total"]["cost_usd"]) == ([], 0, 0.0)
    assert run("usage", "--csv").stdout.startswith("day,calls,unknown_calls,")


@pytest.mark.parametrize(
    "arguments,said",
    [
        (("--json", "--csv"), "--json and --csv exclude each other"),
        (("--csv", "--plot"), "--csv and --plot exclude each other"),
        (("--since", "2026-12-02", "--until", "2026-12-01"), "--since is later than --until"),
        (("--since", "yesterday"), "does not match the format"),
        (("--by", "week"), "is not one of"),
    ],
)
def test_mistakes_get_a_sentence(arguments: tuple[str, ...], said: str) -> None:
    result = run("usage", *arguments)

    assert result.exit_code == 2
    assert said in result.stderr


def test_a_store_that_cannot_be_read_gets_a_sentence(fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(MemoryStore):
        async def open(self) -> None:
            raise StoreError("corrupt", "the file is no database")

    fill()
    monkeypatch.setattr(usage_module, "open_store", lambda url: Broken())

    result = run("usage")

    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "mead: the file is no database\n")


# The other forms


def test_json_holds_the_rows_the_total_and_the_age_of_the_prices(fill: Fill) -> None:
    fill(call(), call("s2", counts=(None, 3), cost_usd=None, price_date=None))

    told, status = run_json("usage", "--by", "session")

    counted = {"cached_tokens": 10, "cache_write_tokens": 0, "reasoning_tokens": 0}
    assert status == 0
    assert told == {
        "ok": True,
        "by": "session",
        "since": None,
        "until": None,
        "rows": [
            {
                "key": "s1",
                "calls": 1,
                "unknown_calls": 0,
                "input_tokens": 100,
                "output_tokens": 20,
                **counted,
                "cost_usd": 0.005,
                "unpriced_calls": 0,
            },
            {
                "key": "s2",
                "calls": 1,
                "unknown_calls": 1,
                "input_tokens": 0,
                "output_tokens": 3,
                **counted,
                "cost_usd": None,
                "unpriced_calls": 1,
            },
        ],
        "total": {
            "calls": 2,
            "unknown_calls": 1,
            "input_tokens": 100,
            "output_tokens": 23,
            **counted,
            "cached_tokens": 20,
            "cost_usd": 0.005,
            "unpriced_calls": 1,
        },
        "prices": {"oldest": "2026-11-09", "newest": "2026-11-09"},
    }


def test_csv_can_be_read_again(fill: Fill) -> None:
    fill(call(model='a "model", or two'), call(model="b", counts=(None, None), cost_usd=None))

    rows = list(csv.DictReader(io.StringIO(run("usage", "--by", "model", "--csv").stdout)))

    assert [(row["model"], row["input_tokens"], row["unknown_calls"], row["cost_usd"]) for row in rows] == [
        ('a "model", or two', "100", "0", "0.005"),
        ("b", "0", "1", ""),
    ]


def test_plot_draws_bars_as_long_as_their_tokens(fill: Fill) -> None:
    fill(
        call("long", counts=(60, 20)),
        call("half", counts=(40, 0)),
        call("tiny", counts=(1, 0)),
        call("none", counts=(0, 0)),
    )

    shown = run("usage", "--by", "session", "--plot").stdout.splitlines()

    bars = {line.split()[0]: line.count("█") for line in shown}
    assert bars["long"] > 10
    assert abs(bars["long"] - 2 * bars["half"]) <= 1  # the other half is an eighth of a cell, or some
    assert (bars["tiny"], bars["none"]) == (0, 0)
    assert any(mark in shown[-1] for mark in "▏▎▍▌▋▊▉")
    assert shown[1].startswith("long ██")
    assert shown[1].endswith("█ 80 tokens, 0.005 USD")


# Sums

COUNT = st.none() | st.integers(0, 10**9)
CALLS = st.lists(
    st.builds(
        call,
        st.sampled_from(["s1", "s2", "s3"]),
        opened_at=st.integers(int(at("2026-11-28")), int(at("2026-12-02"))).map(float),
        counts=st.tuples(COUNT, COUNT),
        cost_usd=st.none() | st.integers(0, 10**12).map(lambda nano: nano / 10**9),
        price_date=st.none() | st.sampled_from(["2026-11-09", "2026-12-01"]),
        tags=st.sampled_from([(), ("a",), ("a", "b")]),
        model=st.none() | st.sampled_from(["gpt", "claude"]),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(calls=CALLS, by=st.sampled_from(GROUPS))
def test_l1_no_token_is_lost_or_counted_twice(calls: list[CallRow], by: UsageGroup) -> None:
    found = report(calls, by)

    priced = [round(row.cost_usd * 10**9) for row in calls if row.cost_usd is not None]
    assert found.total.calls == len(calls)
    assert found.total.input_tokens == sum([row.usage.input_tokens or 0 for row in calls])
    assert found.total.output_tokens == sum([row.usage.output_tokens or 0 for row in calls])
    assert found.total.unknown_calls == sum(
        [None in (row.usage.input_tokens, row.usage.output_tokens) for row in calls]
    )
    assert (found.total.nano_usd or 0) == sum(priced)
    if by != "tag":
        assert sum([line.input_tokens for line in found.lines]) == found.total.input_tokens
        assert sum([line.nano_usd or 0 for line in found.lines]) == sum(priced)


@settings(max_examples=60, deadline=None)
@given(calls=CALLS.filter(bool), by=st.sampled_from(GROUPS), columns=st.integers(0, 300))
def test_tables_are_aligned_and_bars_keep_to_their_room(
    calls: list[CallRow], by: UsageGroup, columns: int
) -> None:
    found = report(calls, by)

    assert len({len(line) for line in table_of(found)}) == 1
    assert max([len(line) for line in plot_of(found, columns)]) <= max(columns, 120)


# The page


PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def shape(value: object) -> object:
    """The keys of a JSON value, in their order."""
    if isinstance(value, dict):
        return [(key, shape(inner)) for key, inner in value.items()]
    return [shape(inner) for inner in value] if isinstance(value, list) else None


def test_json_has_the_form_of_the_page(fill: Fill) -> None:
    fill(call())
    part = PAGE.read_text(encoding="utf-8").partition("### `mead usage --json`")[2]
    example = msgspec.json.decode(part.partition("```json\n")[2].partition("```")[0])

    told, _ = run_json("usage")

    assert shape(told) == shape(example)
