"""The suite that any store must pass. Say where your store's data is, and pytest does the rest:

    class TestMine(StoreConformance):
        def url(self, folder: Path) -> str:
            return f"mine://{folder}/data"

The tests need no plugin: each runs its own event loop. Run as a program, the module is what the kill tests
kill: processes that take turns, and die in them.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec import Struct
from msgspec.structs import replace

from mead.core.conversation import encode_exchange, encode_user
from mead.core.options import Options
from mead.core.scope import EgressRecord
from mead.core.turns import Label, Turn
from mead.core.usage import Usage, UsageTotal
from mead.storage import Fenced, Store, StoreError, open_store
from mead.storage.protocol import (
    AlreadyRunning,
    AuditEntry,
    BeginOutcome,
    Begun,
    CallRow,
    EgressRow,
    InterruptedTurn,
    Joined,
    KeyConflict,
    NoSession,
    OverBudget,
    Replayed,
    Reservation,
    Reserved,
    SessionChange,
    SessionRecord,
    Settlement,
    StoredTurn,
    ToolRow,
    TurnEnd,
    TurnMarks,
    TurnStart,
    UnmarkedTurn,
    UsageFilter,
)

LIMIT_S = 60.0
"""A test that takes longer than this has failed: something waits that should not."""
QUESTION = encode_user("What is new?")

_Test = TypeVar("_Test", bound="StoreConformance")


# What the tests put into a store


def session(session_id: str = "s1", *, owner: str = "local", updated_at: float = 10.0) -> SessionRecord:
    """A session without turns."""
    return SessionRecord(
        session_id=session_id, owner=owner, created_at=10.0, updated_at=updated_at, turn_timeout_s=30.0
    )


def exchange(number: int, answer: str = "Nothing.", *, label: Label = "shareable") -> StoredTurn:
    """A turn that is done."""
    turn = Turn(
        messages=encode_exchange(QUESTION, answer),
        number=number,
        route="cloud",
        label=label,
        usage=UsageTotal(input_tokens=3, output_tokens=2, provider_calls=1),
    )
    return StoredTurn.of(turn, finished_at=20.0 + number, tags=("a", "b"))


def requests_session(session_id: str = "r1", *, owner: str = "local") -> SessionRecord:
    """A session for requests that bring their own history."""
    return replace(session(session_id, owner=owner), kind="requests")


def answered(number: int, session_id: str = "r1", **end: Any) -> TurnEnd:
    """The end of a request that was answered: nothing of it enters a history."""
    return TurnEnd(session_id=session_id, number=number, status="done", finished_at=20.0 + number, **end)


def start(
    session_id: str = "s1",
    *,
    number: int = 1,
    key: str | None = None,
    request: str = "r",
    owner: str = "local",
) -> TurnStart:
    """A turn that is to run."""
    return TurnStart(
        session_id=session_id,
        number=number,
        owner=owner,
        question=QUESTION.data,
        started_at=15.0,
        idempotency_key=key,
        request_hash=None if key is None else request,
    )


def done(number: int, session_id: str = "s1", **end: Any) -> TurnEnd:
    """The end of a turn that was answered."""
    return TurnEnd(
        session_id=session_id,
        number=number,
        status="done",
        finished_at=20.0 + number,
        turn=exchange(number),
        **end,
    )


def failed(number: int, session_id: str = "s1", *, answer: bytes | None = None) -> TurnEnd:
    """The end of a turn that was not."""
    return TurnEnd(
        session_id=session_id,
        number=number,
        status="failed",
        finished_at=20.0,
        reason="timeout",
        answer=answer,
    )


def call(number: int = 1, *, turn: int = 1, session_id: str = "s1") -> CallRow:
    """A provider call that is about to be made."""
    return CallRow(
        session_id=session_id,
        turn=turn,
        number=number,
        route="cloud",
        provider="p",
        model="m",
        opened_at=16.0,
    )


def closed(row: CallRow, *, cost_usd: float | None = None, **usage: int) -> CallRow:
    """The same call with its figures."""
    return replace(
        row, status="closed", outcome="ok", closed_at=17.0, usage=Usage(**usage), cost_usd=cost_usd
    )


def tool(index: int = 1, *, turn: int = 1, effect: bool = True, session_id: str = "s1") -> ToolRow:
    """A tool that is about to be run."""
    return ToolRow(session_id=session_id, turn=turn, index=index, name="send", effect=effect, server="mail")


def want(reservation_id: str, amount: int = 1, limit: int = 10, scope: str = "day") -> Reservation:
    """A reservation."""
    return Reservation(
        reservation_id=reservation_id, scope=scope, window_start=0.0, amount=amount, limit=limit
    )


async def begun(store: Store, session_id: str = "s1", *, number: int = 1) -> Begun:
    """Begins a turn, and insists that it runs."""
    outcome = await store.begin_turn(start(session_id, number=number))
    assert isinstance(outcome, Begun), outcome
    return outcome


async def take_turn(store: Store, session_id: str = "s1") -> int:
    """A whole turn without calls; gives its number."""
    turn = await begun(store, session_id)
    await store.end_turn(done(turn.number, session_id), epoch=turn.epoch)
    return turn.number


def _in_a_loop(test: Callable[[_Test, Path], Coroutine[Any, Any, None]]) -> Callable[[_Test, Path], None]:
    """Runs an async test in an event loop of its own, with a limit."""

    @functools.wraps(test)
    def run(self: _Test, tmp_path: Path) -> None:
        async def limited() -> None:
            async with asyncio.timeout(LIMIT_S):
                await test(self, tmp_path)

        asyncio.run(limited())

    return run


class StoreConformance(ABC):
    """The promises of `mead.storage.Store`, one test each. Subclass it as `Test…`, and supply `url`."""

    survives = True
    """False for a store whose data ends with its process: it is not opened again, and not killed."""
    kills = 20
    """How many processes the kill test kills."""

    @abstractmethod
    def url(self, folder: Path) -> str:
        """The URL of a store: the same for the same folder, and empty for a new one."""

    @asynccontextmanager
    async def opened(self, folder: Path) -> AsyncIterator[Store]:
        """The store, opened."""
        store = open_store(self.url(folder))
        await store.open()
        try:
            yield store
        finally:
            await store.aclose()

    @asynccontextmanager
    async def with_session(self, folder: Path) -> AsyncIterator[Store]:
        """The store, with the session `s1`."""
        async with self.opened(folder) as store:
            await store.create_session(session())
            yield store

    # Sessions

    @_in_a_loop
    async def test_a_session_comes_back_as_it_was(self, tmp_path: Path) -> None:
        options = Options(system="Be brief.", temperature=0.5, stop=("x",), extra={"a": [1, None]})
        record = replace(
            session(), title="é 😀", tags=("t",), options=options, state=b"\0{}", busy="reject", parent="s0"
        )
        turns = (exchange(1, label="local_only"), exchange(4))
        async with self.opened(tmp_path) as store:
            await store.create_session(record, turns)

            assert await store.get_session("local", "s1") == replace(record, last_number=4)
            assert await store.turns_of("s1") == turns
            assert (await store.turns_of("s1"))[0].turn().messages.plain

    @_in_a_loop
    async def test_what_belongs_to_a_single_call_is_not_kept(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.create_session(replace(session(), options=Options(deadline=1.0, route="local")))
            record = await store.get_session("local", "s1")

        assert record is not None
        assert record.options == Options()

    @_in_a_loop
    async def test_an_id_is_given_once(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            with pytest.raises(ValueError, match="s1"):
                await store.create_session(session(owner="other"))
            with pytest.raises(ValueError, match="ascend"):
                await store.create_session(session("s2"), [exchange(2), exchange(1)])

            assert await store.get_session("local", "s2") is None

    @_in_a_loop
    async def test_another_owner_has_no_such_session(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            assert await store.get_session("other", "s1") is None
            assert await store.list_sessions("other") == ()
            assert not await store.update_session("other", "s1", SessionChange(updated_at=1.0))
            assert not await store.delete_session("other", "s1")
            assert await store.fork("other", "s1", new_id="s2", at=1.0) is None
            assert await store.rewind("other", "s1", to=0, at=1.0) is None
            assert await store.begin_turn(start(owner="other")) == NoSession()
            assert await store.get_session("local", "s1") is not None

    @_in_a_loop
    async def test_sessions_are_listed_by_age_page_by_page(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            for name, at in (("a", 3.0), ("b", 1.0), ("c", 2.0), ("d", 2.0)):
                await store.create_session(replace(session(name, updated_at=at), state=b"1"))
            first = await store.list_sessions("local", limit=2)
            rest = await store.list_sessions("local", before=(first[-1].updated_at, first[-1].session_id))

        assert [record.session_id for record in (*first, *rest)] == ["a", "d", "c", "b"]
        assert first[0].state is None

    @_in_a_loop
    async def test_a_session_is_changed_in_what_is_set(self, tmp_path: Path) -> None:
        change = SessionChange(updated_at=30.0, title="new", state=b"2")
        async with self.with_session(tmp_path) as store:
            before = await store.get_session("local", "s1")
            assert await store.update_session("local", "s1", change)
            after = await store.get_session("local", "s1")

        assert before is not None
        assert after == replace(before, updated_at=30.0, title="new", state=b"2", version=1)

    @_in_a_loop
    async def test_a_session_can_be_changed_while_a_turn_runs(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            await store.update_session("local", "s1", SessionChange(updated_at=30.0, title="new"))
            await store.end_turn(done(turn.number), epoch=turn.epoch)
            record = await store.get_session("local", "s1")

        assert record is not None
        assert (record.title, record.running) == ("new", None)
        assert record.version == turn.version + 2

    @_in_a_loop
    async def test_a_deleted_session_leaves_its_figures_only(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            await store.open_call(call(), epoch=turn.epoch)
            await store.start_tool(tool(), epoch=turn.epoch)

            assert await store.delete_session("local", "s1")
            assert not await store.delete_session("local", "s1")
            assert await store.turns_of("s1") == ()
            assert await store.tools_of("s1") == ()
            assert await store.usage_rows() == (call(),)
            with pytest.raises(Fenced):
                await store.end_turn(done(1), epoch=turn.epoch)

    @_in_a_loop
    async def test_an_id_that_is_used_again_goes_on_counting(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store, number=5)
            await store.open_call(call(turn=5), epoch=turn.epoch)
            await store.delete_session("local", "s1")
            await store.create_session(session(), [exchange(1)])

            assert (await begun(store)).number == 6

    @_in_a_loop
    async def test_a_fork_has_the_turns_up_to_a_number(self, tmp_path: Path) -> None:
        turns = (exchange(1), exchange(2, label="local_only"), exchange(3))
        async with self.opened(tmp_path) as store:
            original = replace(session(), title="one", state=b"1")
            await store.create_session(original, turns)
            part = await store.fork("local", "s1", new_id="s2", at=40.0, up_to=2)
            whole = await store.fork("local", "s1", new_id="s3", at=40.0)

            expected = replace(original, parent="s1", created_at=40.0, updated_at=40.0)
            assert part == replace(expected, session_id="s2", state=None, last_number=2)
            assert whole == replace(expected, session_id="s3", last_number=3)
            assert await store.get_session("local", "s2") == part
            assert await store.turns_of("s2") == turns[:2]
            assert await store.turns_of("s3") == await store.turns_of("s1") == turns
            with pytest.raises(ValueError, match="s2"):
                await store.fork("local", "s1", new_id="s2", at=1.0)

    @_in_a_loop
    async def test_a_rewind_drops_turns_and_never_reuses_their_numbers(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.create_session(replace(session(), state=b"1"), [exchange(1), exchange(2)])
            record = await store.rewind("local", "s1", to=1, at=50.0)

            assert record == replace(session(), updated_at=50.0, last_number=2, version=1)
            assert await store.turns_of("s1") == (exchange(1),)
            assert (await begun(store, number=2)).number == 3
            assert await store.rewind("local", "s1", to=0, at=60.0) == AlreadyRunning(number=3)

    # Turns

    @_in_a_loop
    async def test_a_turn_that_is_done_enters_the_history(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            running = await store.get_session("local", "s1")
            await store.end_turn(done(1, state=b"2"), epoch=turn.epoch)

            assert running == replace(session(), running=1, last_number=1)
            assert await store.turns_of("s1") == (exchange(1),)
            assert await store.get_session("local", "s1") == replace(
                session(), updated_at=21.0, state=b"2", version=1, last_number=1
            )

    @_in_a_loop
    async def test_a_turn_without_a_state_leaves_that_as_it_was(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.create_session(replace(session(), state=b"1"))
            await take_turn(store)
            record = await store.get_session("local", "s1")

        assert record is not None
        assert record.state == b"1"

    @_in_a_loop
    async def test_a_turn_that_failed_leaves_the_history_as_it_was(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            await store.end_turn(failed(1), epoch=turn.epoch)

            assert await store.turns_of("s1") == ()
            assert await store.interrupted_turns("s1") == ()
            assert (await begun(store)).version == turn.version

    @_in_a_loop
    async def test_a_number_is_used_once(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            numbers = [await take_turn(store), await take_turn(store)]
            later = await begun(store, number=9)

        assert (*numbers, later.number) == (1, 2, 9)

    @_in_a_loop
    async def test_one_turn_at_a_time(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            outcomes = await asyncio.gather(*[store.begin_turn(start()) for _ in range(8)])

        kinds = [type(outcome) for outcome in outcomes]
        assert kinds.count(Begun) == 1
        assert [outcome for outcome in outcomes if not isinstance(outcome, Begun)] == [
            AlreadyRunning(number=1)
        ] * 7

    @_in_a_loop
    async def test_a_key_joins_while_its_turn_runs_and_replays_afterwards(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await store.begin_turn(start(key="k"))
            assert isinstance(turn, Begun)
            joined = await store.begin_turn(start(key="k"))
            other = await store.begin_turn(start(key="k", request="another"))
            await store.end_turn(done(1, answer=b"the answer"), epoch=turn.epoch)
            replayed = await store.begin_turn(start(key="k"))
            conflict = await store.begin_turn(start(key="k", request="another"))

        assert joined == Joined(number=1)
        assert replayed == Replayed(number=1, answer=b"the answer")
        assert other == conflict == KeyConflict()

    @_in_a_loop
    async def test_a_key_belongs_to_its_session(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            await store.create_session(session("s2", owner="other"))

            assert isinstance(await store.begin_turn(start(key="k")), Begun)
            assert isinstance(await store.begin_turn(start("s2", key="k", request="b", owner="other")), Begun)

    @_in_a_loop
    async def test_a_failure_without_an_answer_gives_its_key_free(self, tmp_path: Path) -> None:
        outcomes: list[BeginOutcome] = []
        async with self.with_session(tmp_path) as store:
            for answer in (None, b"a failure"):
                turn = await store.begin_turn(start(key="k"))
                assert isinstance(turn, Begun)
                await store.end_turn(failed(turn.number, answer=answer), epoch=turn.epoch)
            outcomes.append(await store.begin_turn(start(key="k")))

        assert outcomes == [Replayed(number=2, answer=b"a failure")]

    @_in_a_loop
    async def test_a_turn_that_is_over_is_fenced(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            await store.end_turn(failed(1), epoch=turn.epoch)
            newer = await begun(store)
            for write in (
                store.open_call(call(), epoch=turn.epoch),
                store.start_tool(tool(), epoch=turn.epoch),
                store.end_turn(done(1), epoch=turn.epoch),
                store.end_turn(done(2), epoch=turn.epoch),
            ):
                with pytest.raises(Fenced):
                    await write

            assert await store.tools_of("s1") == ()
            assert await store.usage_rows() == ()
            await store.end_turn(done(2), epoch=newer.epoch)

    @_in_a_loop
    async def test_facts_are_taken_of_a_turn_that_is_over(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            await store.open_call(call(), epoch=turn.epoch)
            await store.start_tool(tool(), epoch=turn.epoch)
            await store.end_turn(failed(1), epoch=turn.epoch)
            left = await store.usage_rows(), await store.tools_of("s1")
            await store.close_call(closed(call(), input_tokens=5))
            await store.finish_tool(replace(tool(), status="done"))

            assert left == ((replace(call(), status="unknown"),), (replace(tool(), status="unknown"),))
            assert await store.usage_rows() == (closed(call(), input_tokens=5),)
            assert await store.tools_of("s1", 1) == (replace(tool(), status="done"),)

    @_in_a_loop
    async def test_a_turn_may_begin_with_its_first_call(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            await store.end_turn(done(1), epoch=(await begun(store)).epoch)
            outcome = await store.begin_turn(replace(start(), call=call()))

            assert isinstance(outcome, Begun)
            assert await store.usage_rows() == (replace(call(), turn=2),)
            with pytest.raises(ValueError, match="call 1"):
                await store.open_call(replace(call(), turn=2), epoch=outcome.epoch)

    @_in_a_loop
    async def test_the_end_of_a_turn_brings_the_ends_of_its_calls(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            await store.open_call(call(), epoch=turn.epoch)
            end = replace(done(1), closed=(closed(call(), input_tokens=5),))
            await store.end_turn(end, epoch=turn.epoch)

            assert await store.usage_rows() == (closed(call(), input_tokens=5),)

    @_in_a_loop
    async def test_a_call_and_a_tool_are_begun_once(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            await store.open_call(call(), epoch=turn.epoch)
            await store.start_tool(tool(), epoch=turn.epoch)

            with pytest.raises(ValueError, match="call 1"):
                await store.open_call(call(), epoch=turn.epoch)
            with pytest.raises(ValueError, match="tool call 1"):
                await store.start_tool(tool(), epoch=turn.epoch)

    @_in_a_loop
    async def test_effects_that_the_history_does_not_show_are_to_be_told(self, tmp_path: Path) -> None:
        sent, lost, read = tool(1), tool(2), tool(3, effect=False)
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            for row in (sent, lost, read):
                await store.start_tool(row, epoch=turn.epoch)
            await store.finish_tool(replace(sent, status="done"))
            meanwhile = await store.untold_effects("s1")
            await store.end_turn(failed(1), epoch=turn.epoch)
            untold = await store.untold_effects("s1")
            telling = await begun(store)
            await store.start_tool(tool(turn=2), epoch=telling.epoch)
            await store.finish_tool(replace(tool(turn=2), status="done"))
            await store.end_turn(done(2, told_effects=True), epoch=telling.epoch)

            assert meanwhile == ()
            assert untold == (replace(sent, status="done"), replace(lost, status="unknown"))
            assert telling.untold == untold
            assert await store.untold_effects("s1") == ()

    @_in_a_loop
    async def test_an_effect_of_unknown_outcome_is_told_of_a_turn_that_is_done_too(
        self, tmp_path: Path
    ) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            await store.start_tool(tool(), epoch=turn.epoch)
            await store.end_turn(done(1), epoch=turn.epoch)
            untold = await store.untold_effects("s1")
            await store.acknowledge_effects("s1", before=1)
            still = await store.untold_effects("s1")
            await store.acknowledge_effects("s1", before=2)

            assert untold == still == (replace(tool(), status="unknown"),)
            assert await store.untold_effects("s1") == ()

    @_in_a_loop
    async def test_a_rewind_forgets_what_was_told_in_the_turns_it_drops(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            await store.start_tool(tool(), epoch=turn.epoch)
            await store.end_turn(failed(1), epoch=turn.epoch)
            telling = await begun(store)
            await store.start_tool(tool(turn=2), epoch=telling.epoch)
            await store.finish_tool(replace(tool(turn=2), status="done"))
            await store.end_turn(done(2, told_effects=True), epoch=telling.epoch)
            await store.rewind("local", "s1", to=1, at=50.0)

            assert [row.turn for row in await store.untold_effects("s1")] == [1, 2]

    @_in_a_loop
    async def test_a_caller_that_is_cancelled_has_begun_nothing(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            for _ in range(5):
                task = asyncio.create_task(store.begin_turn(start(key="k")))
                await asyncio.sleep(0)
                came_too_late = not task.cancel()
                outcome = (await asyncio.gather(task, return_exceptions=True))[0]
                if isinstance(outcome, Begun):
                    assert came_too_late
                    await store.end_turn(failed(outcome.number), epoch=outcome.epoch)

            assert isinstance(await store.begin_turn(start(key="k")), Begun)

    @_in_a_loop
    async def test_a_write_whose_caller_is_cancelled_happens_whole(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            await store.start_tool(tool(), epoch=turn.epoch)
            task = asyncio.create_task(store.end_turn(done(1, state=b"2"), epoch=turn.epoch))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            newer = await begun(store)

            assert (newer.number, newer.version) == (2, 1)
            assert await store.turns_of("s1") == (exchange(1),)
            assert await store.tools_of("s1") == (replace(tool(), status="unknown"),)

    # Requests that bring their own history, and fingerprints

    @_in_a_loop
    async def test_a_session_of_requests_is_nobodys_to_see(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.create_session(requests_session())
            turn = await begun(store, "r1")
            await store.open_call(call(session_id="r1"), epoch=turn.epoch)
            await store.end_turn(answered(1), epoch=turn.epoch)
            other = await store.begin_turn(start("r1", owner="other"))

            assert await store.list_sessions("local") == ()
            assert await store.get_session("local", "r1") is None
            assert not await store.update_session("local", "r1", SessionChange(updated_at=1.0))
            assert not await store.delete_session("local", "r1")
            assert await store.fork("local", "r1", new_id="s2", at=1.0) is None
            assert await store.rewind("local", "r1", to=0, at=1.0) is None
            assert await store.turns_of("r1") == ()
            assert other == NoSession()
            assert len(await store.usage_rows()) == 1
            assert (await begun(store, "r1")).version == turn.version
            with pytest.raises(ValueError, match="r1"):
                await store.create_session(requests_session())

    @_in_a_loop
    async def test_the_result_of_a_request_is_replayed_until_it_is_pruned(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            await store.create_session(requests_session())
            await store.create_session(requests_session("r2"))
            turn = await store.begin_turn(start("r1", key="k"))
            assert isinstance(turn, Begun)
            await store.end_turn(answered(1, answer=b"it", fingerprints=b"12345678"), epoch=turn.epoch)
            replayed = await store.begin_turn(start("r1", key="k"))
            await begun(store, "r2")
            early, late = await store.prune_requests(21.0), await store.prune_requests(100.0)

            assert replayed == Replayed(number=1, answer=b"it")
            assert (early, late) == (0, 1)
            assert await store.begin_turn(start("r1", key="k")) == NoSession()
            assert await store.begin_turn(start("r2")) == AlreadyRunning(number=1)
            assert await store.get_session("local", "s1") is not None
            assert (await store.fingerprints_since("local"))[0] == b"12345678", "they outlive their request"

    @_in_a_loop
    async def test_fingerprints_are_read_from_where_one_was(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            await store.create_session(session("s2", owner="other"))
            empty = await store.fingerprints_since("local")
            first = await begun(store)
            await store.end_turn(done(1, fingerprints=b"11111111"), epoch=first.epoch)
            one, cursor = await store.fingerprints_since("local")
            second = await begun(store)
            await store.end_turn(
                replace(failed(2), fingerprints=b"22222222" + b"33333333"), epoch=second.epoch
            )
            two, last = await store.fingerprints_since("local", cursor)

            assert empty == (b"", 0)
            assert (one, two) == (b"11111111", b"2222222233333333")
            assert await store.fingerprints_since("local", last) == (b"", last)
            assert (await store.fingerprints_since("other"))[0] == b""

    @_in_a_loop
    async def test_the_fingerprints_of_a_turn_that_is_fenced_are_not_kept(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            with pytest.raises(Fenced):
                await store.end_turn(done(1, fingerprints=b"11111111"), epoch=turn.epoch + 1)

            assert await store.fingerprints_since("local") == (b"", 0)

    @_in_a_loop
    async def test_fingerprints_go_with_their_turn_session_and_owner(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            await store.create_session(session("s2"))
            await store.create_session(requests_session())
            for name, end in (("s1", done), ("s1", done), ("s2", done), ("r1", answered)):
                turn = await begun(store, name)
                data = f"{name}-{turn.number}".encode().ljust(8)
                await store.end_turn(replace(end(turn.number, name), fingerprints=data), epoch=turn.epoch)
            everything, cursor = await store.fingerprints_since("local")
            await store.rewind("local", "s1", to=1, at=50.0)
            rewound, _ = await store.fingerprints_since("local")
            await store.delete_session("local", "s1")
            deleted, _ = await store.fingerprints_since("local")
            await store.delete_owner("local")

            assert everything == b"s1-1    s1-2    s2-1    r1-1    "
            assert rewound == b"s1-1    s2-1    r1-1    "
            assert deleted == b"s2-1    r1-1    "
            assert await store.fingerprints_since("local") == (b"", 0)
            await store.create_session(session("s3"))
            turn = await begun(store, "s3")
            await store.end_turn(done(1, "s3", fingerprints=b"newer one"[:8]), epoch=turn.epoch)
            assert (await store.fingerprints_since("local", cursor))[0] == b"newer on"

    @_in_a_loop
    async def test_old_fingerprints_go_but_those_of_conversations_that_stay(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            await store.create_session(requests_session())
            for name, end in (("s1", done), ("r1", answered)):
                turn = await begun(store, name)
                await store.end_turn(
                    replace(end(1, name), fingerprints=f"{name}-only".encode()[:8].ljust(8)), epoch=turn.epoch
                )
            await store.update_session("local", "s1", SessionChange(updated_at=100.0))

            assert await store.delete_older_than(50.0) == 0
            assert (await store.fingerprints_since("local"))[0] == b"s1-only "

    @_in_a_loop
    async def test_private_turns_without_fingerprints_get_them_once(self, tmp_path: Path) -> None:
        private = exchange(2, label="local_only")
        async with self.opened(tmp_path) as store:
            await store.create_session(session(), [exchange(1), private])
            await store.fork("local", "s1", new_id="s2", at=40.0)
            turn = await begun(store)
            end = replace(done(3, fingerprints=b""), turn=exchange(3, label="local_only"))
            await store.end_turn(end, epoch=turn.epoch)
            unmarked = await store.unmarked_turns("local")
            marks = [
                TurnMarks(session_id=each.session_id, number=2, fingerprints=b"12345678", at=30.0)
                for each in unmarked
            ]
            await store.mark_turns([*marks, replace(marks[0], session_id="unheard of")])
            await store.mark_turns(marks)

            assert sorted(unmarked, key=lambda each: each.session_id) == [
                UnmarkedTurn(owner="local", session_id="s1", turn=private),
                UnmarkedTurn(owner="local", session_id="s2", turn=private),
            ]
            assert await store.unmarked_turns("local") == ()
            assert (await store.fingerprints_since("local"))[0] == b"12345678" * 2

    # Ledger and budgets

    @_in_a_loop
    async def test_the_ledger_is_read_by_owner_time_and_session(self, tmp_path: Path) -> None:
        rows: list[CallRow] = []
        async with self.opened(tmp_path) as store:
            for number, (name, owner) in enumerate((("a", "local"), ("b", "local"), ("c", "other"))):
                await store.create_session(session(name, owner=owner))
                turn = await store.begin_turn(start(name, owner=owner))
                assert isinstance(turn, Begun)
                row = replace(call(session_id=name), owner=owner, opened_at=100.0 + number)
                await store.open_call(row, epoch=turn.epoch)
                rows.append(row)

            a, b, c = rows
            assert await store.usage_rows() == (c, b, a)
            assert await store.usage_rows(limit=1) == (c,)
            assert await store.usage_rows(UsageFilter(owner="local")) == (b, a)
            assert await store.usage_rows(UsageFilter(since=101.0, until=102.0)) == (b,)
            assert await store.usage_rows(UsageFilter(owner="local", session_id="a")) == (a,)

    @_in_a_loop
    async def test_sums_say_what_is_unknown(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            turn = await begun(store)
            rows = [
                closed(
                    replace(call(1), tags=("x", "y", "x")), cost_usd=0.25, input_tokens=5, output_tokens=2
                ),
                closed(replace(call(2), tags=("x",), opened_at=86_400.0), input_tokens=7),
                replace(call(3), model=None, route="local"),
            ]
            for row in rows:
                await store.open_call(row, epoch=turn.epoch)
            by_tag = await store.usage_sums("tag")
            by_day = await store.usage_sums("day")
            west = await store.usage_sums("day", utc_offset_s=-3600)
            by_model = await store.usage_sums("model")
            by_route = await store.usage_sums("route")
            by_session = await store.usage_sums("session", UsageFilter(until=20.0))

        figures = [(s.key, s.calls, s.unknown_calls, s.input_tokens, s.unpriced_calls) for s in by_tag]
        assert figures == [("", 1, 1, 0, 1), ("x", 2, 1, 12, 1), ("y", 1, 0, 5, 0)]
        assert [(s.key, s.calls) for s in by_day] == [("1970-01-01", 2), ("1970-01-02", 1)]
        assert [(s.key, s.calls) for s in west] == [("1969-12-31", 2), ("1970-01-01", 1)]
        assert [(s.key, s.calls) for s in by_model] == [("", 1), ("m", 2)]
        assert [(s.key, s.calls) for s in by_route] == [("cloud", 2), ("local", 1)]
        assert [(s.key, s.calls, s.output_tokens, s.cost_usd) for s in by_session] == [("s1", 2, 2, 0.25)]

    @_in_a_loop
    async def test_many_at_once_never_reserve_more_than_the_limit(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            outcomes = await asyncio.gather(*[store.reserve([want(f"r{n}")]) for n in range(64)])
            counts = await store.spent("day", 0.0)

        assert outcomes.count(Reserved()) == 10
        assert outcomes.count(OverBudget(scope="day", limit=10, spent=0, reserved=10)) == 54
        assert counts == (0, 10)

    @_in_a_loop
    async def test_several_budgets_are_reserved_together_or_not_at_all(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            over = await store.reserve([want("a", 4), want("b", 4, limit=3, scope="month")])
            nothing = await store.spent("day", 0.0)
            await store.reserve([want("a", 4), want("b", 3, limit=3, scope="month")])
            with pytest.raises(ValueError, match="'a'"):
                await store.reserve([want("c"), want("a")])

            assert over == OverBudget(scope="month", limit=3, spent=0, reserved=0)
            assert nothing == (0, 0)
            assert await store.spent("day", 0.0) == (0, 4)

    @_in_a_loop
    async def test_a_reservation_is_settled_or_released_once(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            await store.reserve([want("a", 4), want("b", 5)])
            turn = await begun(store)
            await store.open_call(call(), epoch=turn.epoch)
            for _ in range(2):
                await store.close_call(closed(call()), [Settlement(reservation_id="a", spent=6)])
                await store.release(["b", "unheard of"])
                await store.settle([Settlement(reservation_id="b", spent=100)])

            assert await store.spent("day", 0.0) == (6, 0)
            assert await store.spent("day", 1.0) == (0, 0)

    @_in_a_loop
    async def test_a_reservation_whose_caller_is_cancelled_is_released(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            task = asyncio.create_task(store.reserve([want("a", 10)]))
            await asyncio.sleep(0)
            if task.cancel():
                await asyncio.gather(task, return_exceptions=True)

                assert await store.reserve([want("b", 10)]) == Reserved()

    # Egress, audit, retention

    @_in_a_loop
    async def test_the_egress_log_keeps_its_order(self, tmp_path: Path) -> None:
        rows = [egress(n, "s1" if n % 2 else "s2") for n in range(6)]
        async with self.opened(tmp_path) as store:
            for row in rows:
                store.add_egress(row)

            assert await store.egress("local") == tuple(rows)
            assert await store.egress("local", limit=2) == tuple(rows[4:])
            assert await store.egress("local", session_id="s1") == tuple(rows[1::2])
            assert await store.egress("other") == ()
            assert await store.egress("local", since=4.0) == tuple(rows[4:])
            assert await store.egress(None) == tuple(rows)

    @_in_a_loop
    async def test_what_left_is_added_up_by_where_it_went(self, tmp_path: Path) -> None:
        elsewhere = replace(egress(5, "s1"), owner="other", record=replace(egress(5, "s1").record, host="x"))
        async with self.opened(tmp_path) as store:
            for row in (egress(1, "s1"), egress(3, "s2"), elsewhere):
                store.add_egress(row)
            sums = await store.egress_sums(None)

            assert [(each.host, each.requests, each.bytes_sent) for each in sums] == [
                ("h:443", 2, 2),
                ("x", 1, 1),
            ]
            assert (sums[0].first_at, sums[0].last_at) == (1.0, 3.0)
            assert [each.host for each in await store.egress_sums("other")] == ["x"]
            assert (await store.egress_sums("local", session_id="s1", since=1.0))[0].requests == 1
            assert await store.egress_sums("local", since=4.0) == ()

    @_in_a_loop
    async def test_the_audit_chain_is_verified(self, tmp_path: Path) -> None:
        entries = [
            AuditEntry(at=float(n), owner=f"o{n % 2}", action="export", subject="s1", details={"as": "md"})
            for n in range(4)
        ]
        async with self.opened(tmp_path) as store:
            rows = [await store.append_audit(entry) for entry in entries]
            check = await store.verify_audit()

            assert [row.number for row in rows] == [1, 2, 3, 4]
            assert [row.previous for row in rows] == ["", *[row.hash for row in rows[:-1]]]
            assert await store.audit_rows() == tuple(rows)
            assert await store.audit_rows(owner="o1", after=2, limit=1) == (rows[3],)
            assert await store.last_audit("export", "s1") == rows[3]
            assert await store.last_audit("export", "s2") is None
            assert await store.last_audit("import", "s1") is None
            assert (check.rows, check.head, check.broken) == (4, rows[-1].hash, None)

    @_in_a_loop
    async def test_everything_of_an_owner_is_deleted(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            await store.create_session(session("s2", owner="other"))
            turn = await begun(store)
            await store.open_call(call(), epoch=turn.epoch)
            store.add_egress(egress(1, "s1"))
            await store.reserve([want("a"), want("b")])
            await store.settle([Settlement(reservation_id="a", spent=1)])

            assert await store.delete_owner("local") == 1
            assert await store.list_sessions("local") == ()
            assert await store.usage_rows() == ()
            assert await store.egress("local") == ()
            assert await store.spent("day", 0.0) == (0, 0)
            assert len(await store.list_sessions("other")) == 1

    @_in_a_loop
    async def test_what_is_old_is_deleted(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            await store.create_session(session("s2", updated_at=100.0))
            await store.create_session(session("s3"))
            await begun(store, "s3")
            store.add_egress(egress(1, "s1"))
            store.add_egress(egress(100, "s1"))

            assert await store.delete_older_than(50.0) == 1
            assert [record.session_id for record in await store.list_sessions("local")] == ["s2", "s3"]
            assert await store.egress("local") == (egress(100, "s1"),)

    # Its life

    @_in_a_loop
    async def test_a_store_can_be_closed_twice_and_does_nothing_afterwards(self, tmp_path: Path) -> None:
        async with self.opened(tmp_path) as store:
            await store.aclose()
            await store.aclose()
            store.add_egress(egress(1, "s1"))

            with pytest.raises(StoreError) as raised:
                await store.create_session(session())
            assert raised.value.fault == "closed"

    @_in_a_loop
    async def test_a_store_that_is_in_order_has_no_faults(self, tmp_path: Path) -> None:
        async with self.with_session(tmp_path) as store:
            await take_turn(store)
            await begun(store)

            assert await store.check() == ()

    # Again, and after a kill

    @_in_a_loop
    async def test_it_is_all_there_again(self, tmp_path: Path) -> None:
        self._needs_to_survive()
        async with self.with_session(tmp_path) as store:
            await take_turn(store)
            await store.create_session(requests_session())
            request = await store.begin_turn(start("r1", key="k"))
            assert isinstance(request, Begun)
            await store.end_turn(answered(1, answer=b"it", fingerprints=b"12345678"), epoch=request.epoch)
            store.add_egress(egress(1, "s1"))
            row = await store.append_audit(AuditEntry(at=1.0, owner="local", action="a", subject="s"))
        async with self.opened(tmp_path) as store:
            assert await store.turns_of("s1") == (exchange(1),)
            assert (await store.fingerprints_since("local"))[0] == b"12345678"
            assert await store.begin_turn(start("r1", key="k")) == Replayed(number=1, answer=b"it")
            assert await store.egress("local") == (egress(1, "s1"),)
            assert await store.audit_rows() == (row,)
            assert await take_turn(store) == 2

    @_in_a_loop
    async def test_a_turn_that_runs_when_the_store_is_closed_is_interrupted(self, tmp_path: Path) -> None:
        self._needs_to_survive()
        async with self.with_session(tmp_path) as store:
            turn = await store.begin_turn(start(key="k"))
            assert isinstance(turn, Begun)
            await store.open_call(call(), epoch=turn.epoch)
            await store.start_tool(tool(), epoch=turn.epoch)
            await store.reserve([want("a")])
        async with self.opened(tmp_path) as store:
            assert await store.turns_of("s1") == ()
            assert await store.interrupted_turns("s1") == (
                InterruptedTurn(number=1, question=QUESTION.data, started_at=15.0),
            )
            assert await store.untold_effects("s1") == (replace(tool(), status="unknown"),)
            assert await store.usage_rows() == (replace(call(), status="unknown"),)
            # the call may have been made, so what it might take counts
            assert await store.spent("day", 0.0) == (1, 0)
            assert await store.begin_turn(start(key="k")) == Replayed(number=1, answer=None)
            again = await begun(store)
            assert (again.number, again.version) == (2, turn.version + 1)

    @_in_a_loop
    async def test_two_share_the_data_and_one_turn_at_a_time(self, tmp_path: Path) -> None:
        self._needs_to_survive()
        async with self.with_session(tmp_path) as one, self.opened(tmp_path) as two:
            turn = await begun(one)
            refused = await two.begin_turn(start())
            await one.end_turn(done(1), epoch=turn.epoch)
            outcomes = await asyncio.gather(
                *[s.reserve([want(f"{n}")]) for n in range(32) for s in (one, two)], return_exceptions=True
            )

            assert refused == AlreadyRunning(number=1)
            assert await two.turns_of("s1") == (exchange(1),)
            assert await take_turn(two) == 2
            assert (await begun(one)).version == 2
            assert outcomes.count(Reserved()) == 10

    @_in_a_loop
    async def test_killed_processes_lose_nothing_and_do_nothing_twice(self, tmp_path: Path) -> None:
        self._needs_to_survive()
        async with self.opened(tmp_path) as store:  # a process that lives beside those that die
            world = await asyncio.to_thread(kill, self.url(tmp_path), kills=self.kills)
            verdict = await judge(store, world)
        async with self.opened(tmp_path) as store:
            assert await store.check() == ()

        assert verdict == Verdict(turns=verdict.turns, kills=self.kills)
        assert verdict.turns > 0

    def _needs_to_survive(self) -> None:
        if not self.survives:
            pytest.skip("its data ends with it")


def egress(at: float, session_id: str) -> EgressRow:
    """A record of what left."""
    record = EgressRecord(
        at=at,
        destination="provider",
        slot="cloud",
        route="cloud",
        host="h:443",
        path="/v1",
        bytes_sent=1,
        allowed_because="slot",
    )
    return EgressRow(session_id=session_id, turn=1, record=record)


# The kill test: processes that take turns, what they did in the world, and the judge


class World(Struct, frozen=True, kw_only=True):
    """What really happened, as the processes wrote down themselves when it did: (session, turn) each."""

    kills: int
    tools_run: list[tuple[str, int]]
    calls_made: list[tuple[str, int]]
    turns_acknowledged: list[tuple[str, int]]


class Verdict(Struct, frozen=True, kw_only=True):
    """The world against the store. Everything but `turns` (acknowledged ones) and `kills` should be empty."""

    turns: int
    kills: int
    tools_run_twice: tuple[tuple[str, int], ...] = ()
    tools_not_written_down: tuple[tuple[str, int], ...] = ()
    calls_without_a_row: tuple[tuple[str, int], ...] = ()
    turns_lost: tuple[tuple[str, int], ...] = ()
    stuck_sessions: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


KILLED_SESSIONS = ("k1", "k2", "k3")


def kill(url: str, *, kills: int, seed: int = 0) -> World:
    """Starts processes, one after the other, that take turns on the store, and kills each at a random moment.

    Raises `subprocess.CalledProcessError` if one of them fails otherwise.
    """
    command = [sys.executable, "-m", "mead.testing.stores", url, str(kills), str(seed)]
    answer = subprocess.run(command, capture_output=True, check=True, text=True)
    found: dict[str, list[tuple[str, int]]] = {"tool": [], "call": [], "turn": []}
    for line in json.loads(answer.stdout):
        what, session_id, number = line.split()
        found[what].append((session_id, int(number)))
    return World(
        kills=kills,
        tools_run=found["tool"],
        calls_made=found["call"],
        turns_acknowledged=found["turn"],
    )


async def judge(store: Store, world: World) -> Verdict:
    """Holds the store against what really happened. Every session takes one more turn."""
    histories = {name: {turn.number for turn in await store.turns_of(name)} for name in KILLED_SESSIONS}
    journal = {(row.session_id, row.turn) for name in KILLED_SESSIONS for row in await store.tools_of(name)}
    rows = {(row.session_id, row.turn) for row in await store.usage_rows(limit=1_000_000)}
    run = world.tools_run
    stuck = [name for name in KILLED_SESSIONS if not isinstance(await store.begin_turn(start(name)), Begun)]
    return Verdict(
        turns=len(world.turns_acknowledged),
        kills=world.kills,
        tools_run_twice=tuple(sorted({at for at in run if run.count(at) > 1})),
        tools_not_written_down=tuple([at for at in run if at not in journal]),
        calls_without_a_row=tuple([at for at in world.calls_made if at not in rows]),
        turns_lost=tuple([at for at in world.turns_acknowledged if at[1] not in histories[at[0]]]),
        stuck_sessions=tuple(stuck),
        faults=await store.check(),
    )


def _kill_all(url: str, kills: int, seed: int) -> list[str]:
    """Forks, lets the child write some lines of what it does, and kills it: the lines of all of them."""
    chance = random.Random(seed)
    lines: list[str] = []
    for _ in range(kills):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            asyncio.run(_live(url, writing))
            os._exit(1)  # it does not end by itself
        os.close(writing)
        with open(reading, encoding="utf-8") as pipe:
            said = [pipe.readline() for _ in range(chance.randint(1, 60))]
            os.kill(child, signal.SIGKILL)
            said += pipe.readlines()
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise SystemExit(f"a process ended by itself, with status {status}")
        lines += [line for line in said if line]
    return lines


async def _live(url: str, world: int) -> None:
    """Takes turns in every session, and tells the world what it does at the moment of doing it."""
    store = open_store(url)
    await store.open()
    for name in KILLED_SESSIONS:
        if await store.get_session("local", name) is None:
            await store.create_session(session(name))
    await asyncio.gather(*[_live_in(store, name, world) for name in KILLED_SESSIONS])


async def _live_in(store: Store, name: str, world: int) -> None:
    def tell(what: str) -> None:
        os.write(world, f"{what} {name} {number}\n".encode())

    while True:
        turn = await begun(store, name)
        number = turn.number
        made = call(turn=number, session_id=name)
        await store.open_call(made, epoch=turn.epoch)
        tell("call")
        await store.close_call(closed(made, input_tokens=1, output_tokens=1))
        effect = tool(turn=number, session_id=name)
        await store.start_tool(effect, epoch=turn.epoch)
        tell("tool")
        await store.finish_tool(replace(effect, status="done"))
        await store.end_turn(done(number, name, told_effects=True), epoch=turn.epoch)
        tell("turn")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_kill_all(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
