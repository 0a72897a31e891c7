"""Faults that the proof has found."""

from __future__ import annotations

import asyncio
from pathlib import Path

import mead
from mead.core.options import Options, TurnOptions
from mead.core.reasons import ShuttingDown
from mead.core.result import Err, Ok
from mead.core.turns import NoHub, turn
from mead.providers.http import HttpClient
from mead.providers.ollama import Ollama
from mead.router import Slot, Slots, route
from mead.storage import open_store
from mead.testing import Answer, FakeServer, ScriptedProvider, quote_everything
from mead.testing.canaries import Canaries, find


async def test_r16_a_turn_whose_model_was_told_a_note_is_local_only() -> None:
    """The note is for the local model alone; an answer that quotes it may not be shown to a cloud model."""
    note = Canaries("note").make("note")
    local = Slot(ScriptedProvider(otherwise=quote_everything))
    cloud = Slot(ScriptedProvider(otherwise="never"))
    options = TurnOptions(route="auto", note=f"It may have run: {note}.")

    answered = await route([turn("hello")], None, options, Slots(local=local, cloud=cloud), NoHub())

    answer = answered.unwrap()
    assert answer.told_note
    assert note.text in answer.text
    assert answer.label == "local_only"


async def test_t3_a_reason_holds_no_half_of_a_word_that_was_cut_off() -> None:
    """What is looked at of a server's words ends somewhere, and may end inside a word of the conversation."""
    canaries = Canaries("cut")
    filler, secret = canaries.make("filler"), canaries.make("text")
    for length in range(1, 22, 2):
        # The words before it are taken out, since they are the conversation's; 600 characters are looked at.
        said = "no " * (length % 9) + f"{filler} " * 23
        said = f"{said[: 600 - length - 1]} {secret} and more"
        async with FakeServer(Answer(status=500, body=b'{"error":"' + said.encode() + b'"}')) as server:
            slots = Slots(local=Slot(Ollama(HttpClient(server.url, slot="local")), Options(model="m")))
            async with mead.Runtime(slots=slots) as runtime:
                session_id = await runtime.start_session()
                result = await runtime.submit_turn(session_id, f"of {filler}: {secret}", route="local")

        assert isinstance(result, Err)
        assert find(str(result.reason), [secret]) == [], length


async def test_s2_a_turn_that_is_submitted_while_the_runtime_closes_is_shutting_down(tmp_path: Path) -> None:
    """Every failure is a reason in the result, also while a stored session is being looked for."""
    url = f"sqlite:///{tmp_path / 'mead.db'}"
    slots = Slots(local=Slot(ScriptedProvider(otherwise="hello")))
    async with mead.Runtime(slots=slots, store=open_store(url)) as runtime:
        session_id = await runtime.start_session()
    for rounds in range(4):
        runtime = mead.Runtime(slots=slots, store=open_store(url))
        async with runtime:
            submitted = asyncio.create_task(runtime.submit_turn(session_id, "hi", route="local"))
            for _ in range(rounds):
                await asyncio.sleep(0)
        result = await submitted

        assert isinstance(result, Ok) or result.reason == ShuttingDown(), rounds
