"""What a turn writes down: intents before effects, ends whole, and repeats answered from the first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import mead
from mead.core.reasons import (
    Crashed,
    HttpStatus,
    IdempotencyConflict,
    Interrupted,
    NoSuchSession,
    SessionBusy,
    Timeout,
)
from mead.core.result import Err, Ok
from mead.core.usage import Usage
from mead.providers.protocol import Completion
from mead.storage import Store, StoreError, open_store
from mead.storage.memory import MemoryStore
from mead.storage.protocol import CallRow, SessionRecord, StoredTurn, ToolRow, TurnStart
from mead.testing import ProviderRequest, ScriptedProvider, calls
from support import slots
from torture.judge import faults_on_the_wire

LOCAL: mead.core.options.RouteChoice = "local"


@asynccontextmanager
async def stored(
    local: object = None,
    cloud: object = None,
    *,
    store: Store | None = None,
    tools: list[Callable[..., object]] | None = None,
) -> AsyncIterator[tuple[mead.Runtime, Store]]:
    kept = store or MemoryStore()
    async with mead.Runtime(slots=slots(local, cloud), store=kept, tools=tools or []) as runtime:
        yield runtime, kept


class Bell:
    def __init__(self) -> None:
        self.rung = 0

        @mead.tool(effect=True)
        async def ring() -> str:
            "Rings the bell."
            self.rung += 1
            return "rung"

        self.tool = ring


async def test_l1_every_provider_call_has_its_row_with_what_it_cost() -> None:
    used = Usage(input_tokens=100, output_tokens=5, cached_tokens=80, reasoning_tokens=2)
    provider = ScriptedProvider(Completion(text="one", usage=used), HttpStatus(status=500), name="mine")
    async with stored(provider) as (runtime, store):
        session_id = await runtime.start_session(tags=["garden"])
        await runtime.submit_turn(session_id, "a", route=LOCAL, tags=["red"])
        await runtime.submit_turn(session_id, "b", route=LOCAL)
        failed, first = await store.usage_rows()

    assert (first.turn, first.number, first.status, first.outcome) == (1, 1, "closed", "ok")
    assert first.usage == used
    assert first.tags == ("garden", "red")
    assert (first.route, first.provider, first.cost_usd) == ("local", "mine", 0.0)
    assert (failed.turn, failed.status, failed.outcome) == (2, "unknown", "http_status")
    assert failed.usage == Usage(), "unknown is not zero"


async def test_l1_a_call_is_written_down_before_it_is_sent() -> None:
    seen: list[tuple[CallRow, ...]] = []

    async def look(request: ProviderRequest) -> str:
        seen.append(await store.usage_rows())
        return "ok"

    async with stored(ScriptedProvider(look)) as (runtime, store):
        await runtime.submit_turn(await runtime.start_session(), "a", route=LOCAL)

    assert [row.status for row in seen[0]] == ["open"]


async def test_s7_a_tool_is_written_down_before_it_is_run() -> None:
    seen: list[tuple[ToolRow, ...]] = []

    @mead.tool(effect=True)
    async def ring() -> str:
        "Rings."
        seen.append(await store.tools_of(session_id))
        return "rung"

    provider = ScriptedProvider(calls("ring"), "done")
    async with stored(provider, tools=[ring]) as (runtime, store):
        session_id = await runtime.start_session()
        await runtime.submit_turn(session_id, "a", route=LOCAL, tools="effect")
        after = await store.tools_of(session_id)

    assert [(row.name, row.effect, row.status) for row in seen[0]] == [("ring", True, "started")]
    assert [row.status for row in after] == ["done"]


async def test_a_tool_that_was_broken_off_has_an_unknown_outcome_and_the_model_is_told() -> None:
    begun = asyncio.Event()

    @mead.tool(effect=True)
    async def ring() -> str:
        "Rings."
        begun.set()
        await asyncio.Event().wait()
        return "rung"

    provider = ScriptedProvider(calls("ring"), "and now?", "fine", "calm")
    async with stored(provider, tools=[ring]) as (runtime, store):
        session_id = await runtime.start_session(system="be kind")
        task = asyncio.create_task(runtime.submit_turn(session_id, "a", route=LOCAL, tools="effect"))
        await begun.wait()
        await runtime.cancel_turn(session_id)
        await task
        rows = await store.tools_of(session_id)
        await runtime.submit_turn(session_id, "b", route=LOCAL, tools="none")
        await runtime.submit_turn(session_id, "c", route=LOCAL, tools="none")

    told, calm = provider.requests[1].options.system or "", provider.requests[2].options.system
    assert [row.status for row in rows] == ["unknown"]
    assert told.startswith("be kind")
    assert "ring (its outcome is unknown" in told
    assert calm == "be kind", "it is told once"


async def test_r18_effects_that_are_still_to_be_told_count_in_an_explanation() -> None:
    bell = Bell()
    local, cloud = ScriptedProvider(calls("ring"), HttpStatus(status=500), "calm"), ScriptedProvider()
    async with stored(local, cloud, tools=[bell.tool]) as (runtime, _):
        session_id = await runtime.start_session()
        await runtime.submit_turn(session_id, "a", route=LOCAL, tools="effect")
        told = (await runtime.explain("hello", session_id=session_id, tools="none")).unwrap()
        done = (await runtime.submit_turn(session_id, "hello", tools="none")).unwrap()

    assert done.decision is not None
    assert isinstance(told, mead.Decision)
    assert (told.route, told.label) == (done.decision.route, done.decision.label) == ("local", "local_only")


async def test_r16_the_cloud_model_is_not_told_of_local_effects() -> None:
    bell = Bell()
    local = ScriptedProvider(calls("ring"), HttpStatus(status=500))
    cloud = ScriptedProvider(otherwise="ok")
    async with stored(local, cloud, tools=[bell.tool]) as (runtime, store):
        session_id = await runtime.start_session()
        await runtime.submit_turn(session_id, "a", route=LOCAL, tools="effect")
        await runtime.submit_turn(session_id, "b", route="cloud", tools="none")
        untold = await store.untold_effects(session_id)

    assert bell.rung == 1
    assert "ring" not in cloud.requests[0].text
    assert len(untold) == 1, "it is still to be told"


async def test_s7_a_turn_that_fails_leaves_its_journal_and_no_history() -> None:
    async with stored(ScriptedProvider("one", HttpStatus(status=500), "three")) as (runtime, store):
        session_id = await runtime.start_session()
        for text in ("a", "b", "c"):
            await runtime.submit_turn(session_id, text, route=LOCAL)
        turns = await store.turns_of(session_id)
        (kept,) = [await runtime.history(session_id)]

    assert [turn.number for turn in turns] == [1, 3]
    assert tuple(turn.turn() for turn in turns) == kept.unwrap()


async def test_a_session_is_found_again_by_another_runtime() -> None:
    store = MemoryStore()
    async with stored(ScriptedProvider("one"), store=store) as (first, _):
        session_id = await first.start_session(system="be kind", turn_timeout_s=9, history=[])
        await first.submit_turn(session_id, "a", route=LOCAL)
        provider = ScriptedProvider("two")
        second = mead.Runtime(slots=slots(provider), store=store)
        answer = (await second.submit_turn(session_id, "b", route=LOCAL)).unwrap()
        again = await first.submit_turn(session_id, "c", route=LOCAL)

        assert answer.text == "two"
        assert [m.content for m in provider.requests[0].messages] == ["a", "one", "b"]
        assert provider.requests[0].options.system == "be kind"
        assert isinstance(again, Err), "its script is over"
        assert len((await first.history(session_id)).unwrap()) == 2, "it has loaded what the other one added"


async def test_s6_a_turn_of_another_process_makes_the_session_busy() -> None:
    async with stored(ScriptedProvider("one")) as (runtime, store):
        session_id = await runtime.start_session()
        start = TurnStart(session_id=session_id, number=1, question=b"{}", started_at=0.0)
        await store.begin_turn(start)
        result = await runtime.submit_turn(session_id, "a", route=LOCAL)

    assert isinstance(result, Err)
    assert isinstance(result.reason, SessionBusy)


# Idempotency keys


async def test_a_repeat_under_a_key_gives_the_first_result_and_runs_nothing() -> None:
    bell = Bell()
    provider = ScriptedProvider(calls("ring"), "done")
    async with stored(provider, tools=[bell.tool]) as (runtime, _):
        session_id = await runtime.start_session()

        async def ask(text: str = "ring") -> mead.Result[mead.Answer, object]:
            return await runtime.submit_turn(
                session_id, text, route=LOCAL, tools="effect", idempotency_key="k1"
            )

        first, second = await ask(), await ask()
        other = await ask("something else")
        history = (await runtime.history(session_id)).unwrap()

    assert first.unwrap() == second.unwrap()
    assert bell.rung == 1
    assert isinstance(other, Err)
    assert isinstance(other.reason, IdempotencyConflict)
    assert len(history) == 1


async def test_a_repeat_while_the_first_runs_joins_it() -> None:
    asked, go = asyncio.Event(), asyncio.Event()

    async def wait(request: ProviderRequest) -> str:
        asked.set()
        await go.wait()
        return "once"

    async with stored(ScriptedProvider(wait)) as (runtime, _):
        session_id = await runtime.start_session()
        first, second, third = [
            asyncio.create_task(runtime.submit_turn(session_id, text, route=LOCAL, idempotency_key="k"))
            for text in ("a", "a", "b")
        ]
        await asked.wait()
        conflict = await third
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        go.set()

        assert (await second).unwrap().text == "once", "who repeated it still waits for it"
        assert isinstance(conflict, Err)
        assert isinstance(conflict.reason, IdempotencyConflict)


async def test_a_failed_turn_leaves_its_key_free() -> None:
    async with stored(ScriptedProvider(HttpStatus(status=500), "ok")) as (runtime, _):
        session_id = await runtime.start_session()
        results = [
            await runtime.submit_turn(session_id, "a", route=LOCAL, idempotency_key="k") for _ in range(2)
        ]

    assert isinstance(results[0], Err)
    assert results[1].unwrap().text == "ok"


async def test_a_failed_turn_that_had_an_effect_is_not_run_again_under_its_key() -> None:
    bell = Bell()
    provider = ScriptedProvider(calls("ring"), HttpStatus(status=500))
    async with stored(provider, tools=[bell.tool]) as (runtime, _):
        session_id = await runtime.start_session()
        first, second = [
            await runtime.submit_turn(session_id, "ring", route=LOCAL, tools="effect", idempotency_key="k")
            for _ in range(2)
        ]

    assert isinstance(first, Err)
    assert first.reason == second.reason if isinstance(second, Err) else False
    assert bell.rung == 1
    assert len(provider.requests) == 2


async def test_another_route_under_the_key_of_a_turn_that_runs_is_a_conflict() -> None:
    entered, let_go = asyncio.Event(), asyncio.Event()

    async def hold(_: ProviderRequest) -> str:
        entered.set()
        await let_go.wait()
        return "done"

    async with stored(ScriptedProvider(hold), ScriptedProvider()) as (runtime, _):
        session_id = await runtime.start_session()
        first = asyncio.create_task(runtime.submit_turn(session_id, "a", route="local", idempotency_key="k"))
        await entered.wait()
        other = await runtime.submit_turn(session_id, "a", route="cloud", idempotency_key="k")
        let_go.set()
        done = await first

    assert isinstance(done, Ok)
    assert isinstance(other, Err)
    assert isinstance(other.reason, IdempotencyConflict)


async def test_without_a_store_a_key_is_refused_with_a_sentence() -> None:
    async with mead.Runtime(slots=slots(ScriptedProvider())) as runtime:
        result = await runtime.submit_turn(await runtime.start_session(), "a", idempotency_key="k")

    assert isinstance(result, Err)
    assert "needs a store" in str(result.reason)


# A store that fails, a session that is taken over


class Failing(MemoryStore):
    """A store that fails at one of its writes."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.failing = True
        original = getattr(self, method)

        async def fail(*arguments: object, **keywords: object) -> object:
            if self.failing:
                raise StoreError("disk_full", "the disk is full; free some space")
            return await original(*arguments, **keywords)

        setattr(self, method, fail)


@pytest.mark.parametrize("method", ["begin_turn", "open_call", "close_call", "end_turn", "start_tool"])
async def test_a_store_that_fails_fails_the_turn_with_its_sentence(method: str) -> None:
    bell, store = Bell(), Failing(method)
    provider = ScriptedProvider(calls("ring"), "done", otherwise="next")
    async with stored(provider, store=store, tools=[bell.tool]) as (runtime, _):
        session_id = await runtime.start_session()
        result = await runtime.submit_turn(session_id, "a", route=LOCAL, tools="effect")
        history = (await runtime.history(session_id)).unwrap()

        store.failing = False
        after = await runtime.submit_turn(session_id, "b", route=LOCAL, tools="none")

        assert isinstance(result, Err)
        assert result.reason == Crashed(error="StoreError", detail="the disk is full; free some space")
        assert history == ()
        assert isinstance(after, Ok), "the session takes its next turn"
        assert bell.rung == (0 if method in ("begin_turn", "open_call", "close_call", "start_tool") else 1)


async def test_a_turn_whose_session_was_taken_over_stops_before_its_next_effect() -> None:
    bell = Bell()

    async def steal(request: ProviderRequest) -> object:
        await store.delete_session("local", session_id)
        return calls("ring")

    async with stored(ScriptedProvider(steal, otherwise="done"), tools=[bell.tool]) as (runtime, store):
        session_id = await runtime.start_session()
        result = await runtime.submit_turn(session_id, "a", route=LOCAL, tools="effect")

    assert isinstance(result, Err)
    assert isinstance(result.reason, (Interrupted, NoSuchSession))
    assert bell.rung == 0


async def test_s3_a_turn_that_times_out_frees_the_session_in_the_store() -> None:
    async def hang(request: ProviderRequest) -> None:
        await asyncio.Event().wait()

    async with stored(ScriptedProvider(hang, "next")) as (runtime, store):
        session_id = await runtime.start_session()
        late = await runtime.submit_turn(session_id, "a", route=LOCAL, turn_timeout_s=0.02)
        record = await store.get_session("local", session_id)
        after = await runtime.submit_turn(session_id, "b", route=LOCAL)

    assert late == Err(Timeout())
    assert record is not None
    assert record.running is None
    assert after.unwrap().text == "next"


async def test_stopping_a_session_deletes_it() -> None:
    async with stored(ScriptedProvider("one")) as (runtime, store):
        session_id = await runtime.start_session()
        await runtime.submit_turn(session_id, "a", route=LOCAL)
        assert await runtime.stop_session(session_id)
        assert await store.get_session("local", session_id) is None
        assert isinstance(await runtime.history(session_id), Err)


# Audit and retention


async def test_l1_a_persons_approval_stands_in_the_audit_chain_without_the_arguments() -> None:
    @mead.tool(effect=True)
    async def pay(to: str) -> str:
        "Pays."
        return "paid"

    async def yes(request: mead.ApprovalRequest) -> mead.Approval:
        return mead.Approval(decision="once")

    store = MemoryStore()
    local = ScriptedProvider(calls("pay", to="Anna"), "paid")
    async with mead.Runtime(slots=slots(local), store=store, tools=[pay], approver=yes) as runtime:
        session_id = await runtime.start_session()
        await runtime.submit_turn(session_id, "pay Anna", route=LOCAL, tools="effect")
        rows = await store.audit_rows()
        check = await store.verify_audit()

    assert [(row.entry.action, row.entry.subject) for row in rows] == [("approval", "pay")]
    assert rows[0].entry.details == {"session": session_id, "turn": "1", "decision": "once"}
    assert check.broken is None


async def test_r16_a_turn_that_may_carry_private_content_to_the_cloud_stands_in_the_audit_chain() -> None:
    async with stored(None, ScriptedProvider("ok", "ok")) as (runtime, store):
        session_id = await runtime.start_session()
        card = "my card is 4012 8888 8888 1881"
        await runtime.submit_turn(session_id, card, route="cloud", allow_private=True)
        await runtime.submit_turn(session_id, "hello", route="cloud", allow_private=True)
        rows = await store.audit_rows()

    assert [(row.entry.action, row.entry.subject) for row in rows] == [("declassification", session_id)]
    assert "ada" not in str(rows)


async def test_sessions_that_were_not_used_for_the_days_of_retention_are_deleted_at_the_start(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/mead.db"
    store = open_store(url)
    await store.open()
    for session_id, at in (("old", 1.0), ("new", time.time())):
        record = SessionRecord(
            session_id=session_id, owner="local", created_at=at, updated_at=at, turn_timeout_s=1.0
        )
        await store.create_session(record)
    await store.aclose()
    settings = mead.settings.parse(f'[storage]\nurl = "{url}"\nretention_days = 1\n', environ={})

    async with mead.Runtime(settings) as runtime:
        assert runtime.store is not None
        kept = await runtime.store.list_sessions("local")

    assert [record.session_id for record in kept] == ["new"]


@pytest.mark.parametrize("kept", [True, False])
async def test_s10_an_owner_is_deleted_with_everything_and_nobody_else_is(kept: bool) -> None:
    store = MemoryStore() if kept else None
    local = ScriptedProvider("a", "b")
    async with mead.Runtime(slots=slots(local), store=store) as runtime:
        ada, bob = runtime.for_owner("ada"), runtime.for_owner("bob")
        hers, his = await ada.start_session(), await bob.start_session()
        await ada.submit_turn(hers, "mine", route=LOCAL)
        await bob.submit_turn(his, "his", route=LOCAL)

        assert await ada.delete_owner() == 1

        gone = await ada.submit_turn(hers, "again", route=LOCAL)
        assert isinstance(gone, Err)
        assert isinstance(gone.reason, NoSuchSession)
        assert len((await bob.history(his)).unwrap()) == 1
        if store is not None:
            assert [row.owner for row in await store.usage_rows()] == ["bob"]
            assert [row.entry.action for row in await store.audit_rows()] == ["owner.delete"]


async def test_a_change_of_the_settings_file_stands_in_the_audit_chain_and_not_what_it_says(
    tmp_path: Path,
) -> None:
    file, url = tmp_path / "mead.toml", f"sqlite:///{tmp_path}/mead.db"
    for text in ("", "", "[sessions]\nturn_timeout_s = 5\n"):
        file.write_text(f'{text}[storage]\nurl = "{url}"\n', encoding="utf-8")
        async with mead.Runtime(mead.settings.load(file)) as runtime:
            assert runtime.store is not None
            rows = await runtime.store.audit_rows()

    assert [(row.entry.action, row.entry.subject) for row in rows] == [("settings.change", str(file))] * 2
    assert "turn_timeout_s" not in str(rows)


@pytest.mark.parametrize(
    "messages",
    [
        b'{"role":"user","content":[{"type":"tool_result","tool_call_id":"a","content":"x"}]}',
        b'{"role":"assistant","content":"first"},{"role":"assistant","content":""}',
        b'{"role":"user","content":"a"},{"role":"assistant","content":'
        b'[{"type":"tool_use","id":"a","name":"b","input":{}}]}',
        b'{"role":"user","content":"cut o',
        b"\xff\xfe",
        b"",
    ],
)
async def test_s7_no_stored_history_can_make_a_turn_fail(messages: bytes) -> None:
    store = MemoryStore()
    await store.open()
    record = SessionRecord(session_id="s", owner="local", created_at=0, updated_at=0, turn_timeout_s=5.0)
    odd = StoredTurn(number=1, messages=messages, plain=True, closed=True, finished_at=0.0)
    sound = StoredTurn(
        number=2,
        messages=b'{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}',
        plain=True,
        closed=True,
        finished_at=0.0,
    )
    await store.create_session(record, [odd, sound])
    provider = ScriptedProvider("fine")
    async with mead.Runtime(slots=slots(provider), store=store) as runtime:
        result = await runtime.submit_turn("s", "go on", route=LOCAL)
        history = (await runtime.history("s")).unwrap()

    assert isinstance(result, Ok)
    assert "ho" in provider.requests[0].text
    assert await faults_on_the_wire(history) == []
