"""Going on from a summary: made by a turn of the same route, `local_only` if any part was (R10)."""

from __future__ import annotations

import pytest

import mead
from mead.core.reasons import HttpStatus, NoSuchSession
from mead.core.result import Err, Ok
from mead.sessions.keywords import TurnKeywords
from mead.storage.memory import MemoryStore
from mead.testing import ScriptedProvider
from support import slots


async def test_a_session_goes_on_from_a_summary_and_the_whole_one_stays() -> None:
    cloud = ScriptedProvider("good day", "They said hello.", "we greeted")
    async with mead.Runtime(slots=slots(None, cloud)) as runtime:
        whole = await runtime.start_session(system="Be brief.", tags=["garden"])
        await runtime.submit_turn(whole, "hello there", route="cloud")
        made = (await runtime.compact(whole)).unwrap()
        await runtime.submit_turn(made, "what did we do?", route="cloud")
        kept, short = await runtime.history(whole), await runtime.history(made)
        sessions = await runtime.sessions()

    asked, went_on = cloud.requests[1], cloud.requests[2]
    assert "hello there" in asked.text
    assert asked.tools == ()
    assert "They said hello." in went_on.text
    assert "hello there" not in went_on.text
    assert went_on.options.system == "Be brief."
    assert [turn.label for turn in short.unwrap()] == ["shareable", "shareable"]
    assert len(kept.unwrap()) == 1
    assert sessions == (whole, made)


async def test_r10_a_summary_of_a_local_only_turn_is_made_by_the_local_model_and_is_local_only() -> None:
    local, cloud = ScriptedProvider("noted", "A secret was told."), ScriptedProvider("hi", "what secret?")
    async with mead.Runtime(slots=slots(local, cloud)) as runtime:
        whole = await runtime.start_session()
        await runtime.submit_turn(whole, "my secret", route="local")
        await runtime.submit_turn(whole, "hello", route="cloud")
        made = (await runtime.compact(whole)).unwrap()
        history = (await runtime.history(made)).unwrap()
        await runtime.submit_turn(made, "go on", route="cloud")

    assert [turn.label for turn in history] == ["local_only"]
    assert all("secret" not in request.text for request in cloud.requests)


async def test_a_summary_that_fails_leaves_everything_as_it_was() -> None:
    cloud = ScriptedProvider("good day", HttpStatus(status=500))
    async with mead.Runtime(slots=slots(None, cloud)) as runtime:
        whole = await runtime.start_session()
        await runtime.submit_turn(whole, "hello", route="cloud")
        failed = await runtime.compact(whole)
        assert isinstance(failed, Err)
        assert await runtime.sessions() == (whole,)
        assert len((await runtime.history(whole)).unwrap()) == 1


async def test_a_summary_of_no_session_is_no_such_session() -> None:
    async with mead.Runtime(slots=slots(None, ScriptedProvider())) as runtime:
        result = await runtime.compact("nowhere")

    assert isinstance(result, Err)
    assert isinstance(result.reason, NoSuchSession)


async def test_l1_what_a_summary_took_stands_in_the_ledger() -> None:
    store = MemoryStore()
    cloud = ScriptedProvider("good day", "They said hello.")
    async with mead.Runtime(slots=slots(None, cloud), store=store) as runtime:
        whole = await runtime.start_session(title="Greetings")
        assert isinstance(await runtime.submit_turn(whole, "hello", route="cloud"), Ok)
        made = (await runtime.compact(whole)).unwrap()
        rows = await store.usage_rows()
        record = await store.get_session("local", made)

    assert len(rows) == 2
    assert record is not None
    assert record.title == "Greetings"


@pytest.mark.parametrize(
    "summary, turn, label",
    [
        ("They said hello.", {}, "shareable"),
        ("They said hello.", {"route": "local"}, "local_only"),
        ("The card is 4012 8888 8888 1881.", {}, "local_only"),
    ],
)
async def test_r16_a_summary_by_the_local_model_of_what_is_no_secret_is_none_unless_somebody_says_so(
    summary: str, turn: TurnKeywords, label: str
) -> None:
    local = ScriptedProvider("good day", summary)
    async with mead.Runtime(slots=slots(local, ScriptedProvider())) as runtime:
        whole = await runtime.start_session()
        first = (await runtime.submit_turn(whole, "Which birds stand on one leg?")).unwrap()
        made = (await runtime.compact(whole, **turn)).unwrap()
        (kept,) = (await runtime.history(made)).unwrap()

    assert (first.route, first.label) == ("local", "shareable")
    assert kept.label == label
