"""A turn may be cancelled at any moment: the history stays well-formed and the session goes on (S4, S7)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mead
from mead.core.result import Ok
from mead.storage import open_store
from mead.testing import ProviderRequest, ScriptedProvider, calls
from support import slots
from torture.judge import faults_on_the_wire

Way = Literal["turn", "caller", "deadline"]


class Model:
    """Asks for the bell, then answers; each step takes some rounds of the event loop."""

    def __init__(self) -> None:
        self.rung = 0
        self.provider = ScriptedProvider(*[self._reply] * 40)

        @mead.tool(effect=True)
        async def ring() -> str:
            "Rings the bell."
            await _rounds(2)
            self.rung += 1
            await _rounds(2)
            return "rung"

        self.tool = ring

    async def _reply(self, request: ProviderRequest) -> object:
        await _rounds(3)
        asked = request.messages[-1]
        return calls("ring") if isinstance(asked.content, str) and "ring" in asked.content else "done"


async def _rounds(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def _stop(runtime: mead.Runtime, session_id: str, way: Way, task: asyncio.Task[object]) -> None:
    if way == "caller":
        task.cancel()
    elif way == "turn":
        await runtime.cancel_turn(session_id)
    else:
        running = runtime._shared.sessions[session_id]._running
        if running is not None:
            running.end("timeout")
    await asyncio.wait([task])


async def _run(url: str, stops: list[tuple[int, Way]]) -> None:
    model = Model()
    async with mead.Runtime(
        slots=slots(model.provider), store=open_store(url), tools=[model.tool]
    ) as runtime:
        session_id = await runtime.start_session()
        for rounds, way in stops:
            before = model.rung
            task = asyncio.ensure_future(
                runtime.submit_turn(session_id, "ring", route="local", tools="effect")
            )
            await _rounds(rounds)
            await _stop(runtime, session_id, way, task)
            assert model.rung - before <= 1

        after = await runtime.submit_turn(session_id, "hello", route="local")
        assert isinstance(after, Ok), after
        history = (await runtime.history(session_id)).unwrap()
        assert await faults_on_the_wire(history) == []
        assert runtime.store is not None
        kept = [stored.turn().decode() for stored in await runtime.store.turns_of(session_id)]
        assert kept == [turn.decode() for turn in history]
        assert all(row.status != "open" for row in await runtime.store.usage_rows())
        assert all(row.status != "started" for row in await runtime.store.tools_of(session_id))


_STOPS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from(["turn", "caller", "deadline"])), min_size=1, max_size=4
)


@settings(max_examples=60, deadline=None)
@given(_STOPS)
def test_s4_s7_a_turn_that_is_cancelled_at_any_await_leaves_a_session_that_goes_on(
    stops: list[tuple[int, Way]],
) -> None:
    asyncio.run(_run("memory://", stops))


@pytest.mark.parametrize("way", ["turn", "caller", "deadline"])
async def test_s4_s7_so_it_is_with_a_file(way: Way, tmp_path: Path) -> None:
    await _run(f"sqlite:///{tmp_path}/mead.db", [(rounds, way) for rounds in range(0, 40, 2)])
