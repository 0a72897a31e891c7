"""No cloud model ever sees what a local turn saw or said (R4, R10, R16, D-83 to D-86).

The local model of these tests quotes all that it is shown in each answer, in its tool calls too. So whatever
follows from a local turn carries that turn's words, and a leak anywhere shows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Literal

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct

import mead
from mead.core.messages import Message, ToolResultBlock, ToolUseBlock, blocks_of
from mead.core.options import Options, RouteChoice
from mead.core.reasons import HttpStatus
from mead.core.result import Err, Ok
from mead.providers.protocol import Reply
from mead.testing import ProviderRequest, ScriptedProvider, quote_everything
from support import Easy, heard, runtime

CARD = "4012 8888 8888 1881"
HARD = (
    " Write a Python function that merges overlapping intervals, analyse its complexity, and prove that it "
    "is correct:\n```python\ndef merge(intervals):\n    ...\n```"
)


class Step(Struct, frozen=True):
    """One turn of a random conversation."""

    route: RouteChoice
    kind: Literal["easy", "hard", "private"]
    tools: bool
    end: Literal["ok", "error", "raise", "cancel"]
    streams: bool
    allow_private: bool = False


STEPS = st.lists(
    st.builds(
        Step,
        route=st.sampled_from(["auto", "local", "cloud"]),
        kind=st.sampled_from(["easy", "hard", "private"]),
        tools=st.booleans(),
        end=st.sampled_from(["ok", "ok", "ok", "error", "raise", "cancel"]),
        streams=st.booleans(),
    ),
    min_size=1,
    max_size=8,
)


class Model:
    """A model that quotes everything, uses a tool where it is shown one, and ends as the step says."""

    def __init__(self, name: str) -> None:
        self.provider = ScriptedProvider(otherwise=self._answer, name=name)
        self.step = Step("auto", "easy", False, "ok", False)
        self.asked = asyncio.Event()

    async def _answer(self, request: ProviderRequest) -> object:
        self.asked.set()
        used = any(isinstance(block, ToolResultBlock) for block in blocks_of(request.messages[-1]))
        if request.tools and not used:
            call = ToolUseBlock("look", "look", {"at": request.text})
            return Reply(content=(call,), stop_reason="tool_use")
        match self.step.end:
            case "error":
                return HttpStatus(status=500, detail="failed")
            case "raise":
                raise RuntimeError(request.text)
            case "cancel":
                await asyncio.Event().wait()
        return quote_everything(request)


@mead.tool(effect=False)
def look(at: str) -> str:
    "Looks something up; what it finds is private every other time."
    return f"FOUND {CARD}" if len(at) % 2 else f"found {at[:20]}"


async def converse(steps: Sequence[Step]) -> tuple[list[ProviderRequest], dict[str, str], list[str]]:
    """Runs the turns; gives the cloud's requests, each turn's canary by its end, and the events."""
    local, cloud = Model("local-model"), Model("cloud-model")
    ended: dict[str, str] = {}
    with heard() as events:
        async with runtime(local.provider, cloud.provider, tools=[look]) as opened:
            session_id = await opened.start_session(system="You quote.")
            for number, step in enumerate(steps):
                canary = f"canary-{number}-end"
                text = {"easy": canary, "hard": canary + HARD, "private": f"{canary} {CARD}"}[step.kind]
                for model in (local, cloud):
                    model.step = step
                    model.asked.clear()
                result = await run_turn(opened, session_id, text, step, (local, cloud))
                ended[canary] = result.value.label if isinstance(result, Ok) else result.reason.tag
    return cloud.provider.requests, ended, [repr(event) for event in events]


async def run_turn(
    opened: mead.Runtime, session_id: str, text: str, step: Step, models: tuple[Model, Model]
) -> mead.Result[mead.Answer, object]:
    keywords: dict[str, object] = {"route": step.route, "tools": None if step.tools else "none"}
    if step.end == "cancel":
        task = asyncio.create_task(opened.submit_turn(session_id, text, **keywords))  # type: ignore[arg-type]  # by name
        asked = [asyncio.create_task(model.asked.wait()) for model in models]
        await asyncio.wait([task, *asked], return_when=asyncio.FIRST_COMPLETED)
        await opened.cancel_turn(session_id)
        for waiting in asked:
            waiting.cancel()
        return await task
    if step.streams:
        async for event in opened.stream_turn(session_id, text, **keywords):  # type: ignore[arg-type]  # by name
            if isinstance(event, mead.Finished):
                return event.result
    return await opened.submit_turn(session_id, text, **keywords)  # type: ignore[arg-type]  # by name


def as_sent(request: ProviderRequest) -> str:
    """All of a request, in every form that it could be read in."""
    return request.text + repr(request.messages) + msgspec.json.encode(request.messages).decode()


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_r16_no_cloud_request_holds_a_word_of_a_local_turn(steps: list[Step]) -> None:
    requests, ended, events = asyncio.run(converse(steps))

    for number, step in enumerate(steps):
        canary = f"canary-{number}-end"
        if step.route == "local" or step.kind == "private" or ended[canary] == "local_only":
            for request in requests:
                assert canary not in as_sent(request), f"{canary} of {step} reached the cloud model"
    for request in requests:
        assert CARD not in as_sent(request)
        assert request.options.route == "cloud"
    for event in events:
        assert "canary" not in event
        assert CARD not in event


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_s7_whatever_happened_the_next_turn_works(steps: list[Step]) -> None:
    last = Step("local", "easy", True, "ok", False)

    _, ended, _ = asyncio.run(converse([*steps, last]))

    assert ended[f"canary-{len(steps)}-end"] == "local_only"


async def test_r04_d83_d84_d85_a_local_turn_that_fails_causes_no_traffic_to_the_cloud() -> None:
    cloud = ScriptedProvider(otherwise="never")
    failing = ScriptedProvider(otherwise=HttpStatus(status=500))
    async with runtime(failing, cloud) as opened:
        session_id = await opened.start_session()
        for route in ("local", "auto"):
            result = await opened.submit_turn(session_id, "hello", route=route)  # type: ignore[arg-type]  # a word
            assert isinstance(result, Err)

    assert len(failing.requests) == 2, "one call a turn: nothing is retried"
    assert cloud.requests == []


async def test_r16_an_auto_turn_after_a_local_one_is_answered_from_it_and_stays_local_only() -> None:
    local = ScriptedProvider(otherwise=quote_everything)
    cloud = ScriptedProvider(otherwise="cloud")
    async with runtime(local, cloud) as opened:
        session_id = await opened.start_session()
        await opened.submit_turn(session_id, "the vault is under the oak", route="local")
        easy = (await opened.submit_turn(session_id, "and where is it?")).unwrap()
        hard = (await opened.submit_turn(session_id, HARD.strip())).unwrap()

    assert (easy.route, easy.label) == ("local", "local_only")
    assert (hard.route, hard.label) == ("cloud", "shareable")
    assert hard.decision is not None
    assert hard.decision.withheld == 2
    assert "vault" not in as_sent(cloud.requests[0])


async def test_r16_a_private_tool_result_is_withheld_from_the_cloud_model_and_counted() -> None:
    @mead.tool(effect=False)
    def account() -> str:
        "Looks up the account."
        return f"card {CARD}"

    cloud = ScriptedProvider(
        Reply(content=(ToolUseBlock("a", "account", {}),), stop_reason="tool_use"), "I was not shown it."
    )
    with heard(mead.telemetry.ROUTE) as events:
        async with runtime(None, cloud, tools=[account]) as opened:
            session_id = await opened.start_session()
            (await opened.submit_turn(session_id, "what is my account?", route="cloud")).unwrap()
            (turn,) = (await opened.history(session_id)).unwrap()

    assert events[0].metadata["withheld_results"] == 1
    result = blocks_of(cloud.requests[1].messages[-1])[0]
    assert result == ToolResultBlock("a", "withheld: private", is_error=True)
    assert CARD not in repr(turn.decode()), "what was withheld is not kept with a shareable turn either"


async def test_r16_a_private_tool_result_makes_a_local_turn_local_only() -> None:
    @mead.tool(effect=False)
    def account() -> str:
        "Looks up the account."
        return f"card {CARD}"

    local = ScriptedProvider(
        Reply(content=(ToolUseBlock("a", "account", {}),), stop_reason="tool_use"), "It ends in 1881."
    )
    cloud = ScriptedProvider(otherwise="cloud")
    async with runtime(local, cloud, tools=[account], classifier=Easy()) as opened:
        session_id = await opened.start_session()
        answer = (await opened.submit_turn(session_id, "what is my account?")).unwrap()

    assert (answer.route, answer.label) == ("local", "local_only")


async def test_r16_an_imported_history_is_local_only() -> None:
    cloud = ScriptedProvider(otherwise="cloud")
    imported = [Message("user", "the vault is under the oak"), Message("assistant", "noted")]
    async with runtime(ScriptedProvider(otherwise="local"), cloud) as opened:
        session_id = await opened.start_session(history=imported)
        answer = (await opened.submit_turn(session_id, "hello", route="cloud")).unwrap()

    assert answer.decision is not None
    assert answer.decision.withheld == 1
    assert "vault" not in as_sent(cloud.requests[0])


async def test_r16_a_sessions_private_system_prompt_keeps_its_turns_local() -> None:
    cloud = ScriptedProvider(otherwise="cloud")
    async with runtime(ScriptedProvider(otherwise="local"), cloud) as opened:
        session_id = await opened.start_session(system=f"the customer's card is {CARD}")
        answer = (await opened.submit_turn(session_id, "go." + HARD)).unwrap()
        forced = await opened.submit_turn(session_id, "go", route="cloud", options=Options(max_tokens=5))

    assert (answer.route, answer.label) == ("local", "local_only")
    assert isinstance(forced, Err)
    assert forced.reason.tag == "private_content"
    assert cloud.requests == []


async def test_r10_what_a_tool_told_the_local_model_reaches_the_cloud_model_in_no_words() -> None:
    @mead.tool(effect=False)
    def diary() -> str:
        "Reads the diary."
        return "I quit my job on Tuesday."

    local = ScriptedProvider(
        Reply(content=(ToolUseBlock("a", "diary", {}),), stop_reason="tool_use"),
        "diary answered: I quit my job on Tuesday.",
    )
    cloud = ScriptedProvider(otherwise="cloud")
    async with runtime(local, cloud, tools=[diary], classifier=Easy()) as opened:
        session_id = await opened.start_session()
        answer = (await opened.submit_turn(session_id, "what is in it?")).unwrap()
        (await opened.submit_turn(session_id, "and now?", route="cloud", tools="none")).unwrap()

    assert (answer.route, answer.label) == ("local", "local_only")
    assert "quit" not in as_sent(cloud.requests[0])


async def test_r16_an_easy_turn_without_tools_stays_shareable() -> None:
    local, cloud = ScriptedProvider(otherwise="hello"), ScriptedProvider(otherwise="cloud")
    async with runtime(local, cloud, tools=[look]) as opened:
        session_id = await opened.start_session()
        answer = (await opened.submit_turn(session_id, "hi there")).unwrap()
        (await opened.submit_turn(session_id, "and now?", route="cloud")).unwrap()

    assert (answer.route, answer.label) == ("local", "shareable")
    assert "hi there" in as_sent(cloud.requests[0])
