"""Sessions (S1–S10): one turn at a time, whole or not at all, whatever happens."""

from __future__ import annotations

import asyncio
import gc
import logging
import tracemalloc
from collections.abc import Awaitable, Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mead
from mead import telemetry
from mead.core.messages import ImageBlock, Message, TextBlock, ToolResultBlock, ToolUseBlock
from mead.core.options import NO_OPTIONS, Options, TurnOptions
from mead.core.reasons import (
    Cancelled,
    Crashed,
    HttpStatus,
    Interrupted,
    InvalidOptions,
    NoSuchSession,
    SessionBusy,
    ShuttingDown,
    Timeout,
    TurnReason,
)
from mead.core.result import Err, Ok, Result
from mead.core.turns import Answer, Turn
from mead.router import Refused
from mead.settings import SessionSettings
from mead.testing import ProviderRequest, ScriptedProvider, calls
from support import heard, runtime, slots, two_models

LOCAL: mead.core.options.RouteChoice = "local"


class Gate:
    """A model that answers when it is let to. `asked` is set while a call waits."""

    def __init__(self, text: str = "done") -> None:
        self.asked = asyncio.Event()
        self.open = asyncio.Event()
        self.text = text

    async def __call__(self, request: ProviderRequest) -> str:
        self.asked.set()
        await self.open.wait()
        return self.text


def texts(turns: Sequence[Turn]) -> list[tuple[str, ...]]:
    """What each turn of a history says."""
    return [tuple(str(message.content) for message in turn.decode()) for turn in turns]


async def test_r18_an_explanation_without_a_session_counts_the_system_prompt_of_the_settings() -> None:
    private = SessionSettings(system="You help the office of anna.mueller@siemens-energy.de.")
    local, cloud = two_models()
    async with runtime(local, cloud, sessions=private) as opened:
        told = (await opened.explain("hello", route="cloud")).unwrap()
        session_id = await opened.start_session()
        done = await opened.submit_turn(session_id, "hello", route="cloud")

    assert isinstance(told, Refused)
    assert done == Err(told.reason)
    assert cloud.requests == []


# S1, S2, S4, S5


async def test_s1_sessions_know_nothing_of_each_other() -> None:
    local = ScriptedProvider(otherwise=lambda request: f"{len(request.messages)} messages")
    async with runtime(local) as opened:
        first, second = await opened.start_session(), await opened.start_session()
        await opened.submit_turn(first, "one", route=LOCAL)
        answer = (await opened.submit_turn(second, "two", route=LOCAL)).unwrap()

        assert first != second
        assert answer.text == "1 messages"
        assert texts((await opened.history(second)).unwrap()) == [("two", "1 messages")]
        assert await opened.sessions() == (first, second)


async def test_s1_an_unknown_session_is_a_reason_everywhere() -> None:
    async with runtime(ScriptedProvider()) as opened:
        result = await opened.submit_turn("nothing", "hello")
        events = [event async for event in opened.stream_turn("nothing", "hello")]

        assert isinstance(result, Err)
        assert isinstance(result.reason, NoSuchSession)
        assert events == [mead.Finished(result)]
        assert await opened.history("nothing") == result
        assert await opened.explain("hello", session_id="nothing") == result
        assert not await opened.cancel_turn("nothing")
        assert not await opened.stop_session("nothing")


async def test_s2_an_answer_carries_all_that_is_kept_of_the_turn() -> None:
    async with runtime(ScriptedProvider("hi")) as opened:
        session_id = await opened.start_session()
        answer = (await opened.submit_turn(session_id, "hello", route=LOCAL)).unwrap()
        (turn,) = (await opened.history(session_id)).unwrap()

    assert (answer.text, answer.stop_reason, answer.label) == ("hi", "end_turn", "local_only")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (1, 1)
    assert (turn.messages, turn.label, turn.route) == (answer.messages, answer.label, answer.route)
    assert (turn.number, turn.owner, turn.usage) == (1, "local", answer.usage)


async def test_s4_without_any_configuration_a_session_echoes() -> None:
    async with mead.Runtime() as opened:
        session_id = await opened.start_session()
        answer = (await opened.submit_turn(session_id, "hello")).unwrap()
        events = [event async for event in opened.stream_turn(session_id, "again")]

    assert answer.text == "hello"
    assert events[0] == mead.Delta("again")
    assert isinstance(events[-1], mead.Finished)


class Counting:
    """A handler that keeps its state with the session."""

    async def handle_turn(
        self, turns: Sequence[Turn], state: object, options: TurnOptions
    ) -> Result[Answer, TurnReason]:
        count = state + 1 if isinstance(state, int) else 1
        text = f"turn {count} of {options.session_id}"
        messages = mead.core.conversation.encode_exchange(turns[-1].messages, text)
        return Ok(Answer(text=text, messages=messages, state=count))


async def test_s5_anything_that_answers_turns_can_be_the_handler() -> None:
    async with mead.Runtime() as opened:
        session_id = await opened.start_session(handler=Counting(), state=4)
        for expected in (5, 6):
            answer = (await opened.submit_turn(session_id, "next")).unwrap()
            assert answer.text == f"turn {expected} of {session_id}"


# S3


async def test_s3_past_its_deadline_a_turn_ends_and_nothing_of_it_runs_on() -> None:
    gate = Gate()
    async with runtime(ScriptedProvider(gate, "second")) as opened:
        session_id = await opened.start_session(turn_timeout_s=0.02)
        before = asyncio.all_tasks()
        result = await opened.submit_turn(session_id, "hello", route=LOCAL)

        assert result == Err(Timeout())
        assert asyncio.all_tasks() == before
        assert (await opened.history(session_id)).unwrap() == ()
        assert (await opened.submit_turn(session_id, "again", route=LOCAL)).unwrap().text == "second"


async def test_s3_the_deadline_covers_tools_too_and_the_provider_is_told_of_it() -> None:
    @mead.tool(effect=False)
    async def wait() -> str:
        "Waits for ever."
        await asyncio.Event().wait()
        return ""

    provider = ScriptedProvider(calls("wait"))
    async with runtime(provider, tools=[wait]) as opened:
        session_id = await opened.start_session()
        now = asyncio.get_running_loop().time()
        result = await opened.submit_turn(session_id, "hello", route=LOCAL, turn_timeout_s=0.05)

    deadline = provider.requests[0].options.deadline
    assert result == Err(Timeout())
    assert deadline is not None
    assert now <= deadline <= now + 1


async def test_s3_a_wait_in_the_queue_is_not_part_of_the_turn() -> None:
    gate = Gate("first")
    provider = ScriptedProvider(gate, "second")
    async with runtime(provider) as opened:
        session_id = await opened.start_session(turn_timeout_s=0.5)
        first = asyncio.create_task(opened.submit_turn(session_id, "one", route=LOCAL))
        await gate.asked.wait()
        second = asyncio.create_task(opened.submit_turn(session_id, "two", route=LOCAL, turn_timeout_s=0.02))
        await asyncio.wait([second], timeout=0.05)
        assert not second.done(), "it waits longer than its own deadline"
        gate.open.set()

        assert (await first).unwrap().text == "first"
        assert (await second).unwrap().text == "second"


async def test_s3_the_wait_in_the_queue_has_its_own_limit() -> None:
    gate = Gate("first")
    async with runtime(ScriptedProvider(gate), sessions=SessionSettings(queue_timeout_s=0.02)) as opened:
        session_id = await opened.start_session()
        first = asyncio.create_task(opened.submit_turn(session_id, "one", route=LOCAL))
        await gate.asked.wait()
        second = await opened.submit_turn(session_id, "two", route=LOCAL)
        gate.open.set()

        assert isinstance(second, Err)
        assert isinstance(second.reason, Timeout)
        assert second.reason.limit == "queue"
        assert (await first).unwrap().text == "first"


async def test_s3_d57_d59_d60_a_task_that_ignores_its_cancellation_is_abandoned_and_fenced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mead.sessions.run.ABANDON_AFTER_S", 0.01)
    stubborn_is_over = asyncio.Event()
    release = asyncio.Event()
    fenced: list[str] = []

    class Stubborn:
        async def handle_turn(
            self, turns: Sequence[Turn], state: object, options: TurnOptions
        ) -> Result[Answer, TurnReason]:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue
            options.scope.delta("too late")
            try:
                await options.scope.tool_started("1", "ring", effect=True)
            except asyncio.CancelledError:
                fenced.append("tool")
            stubborn_is_over.set()
            return Ok(Answer(text="late", messages=turns[-1].messages, state="overwritten"))

    async with mead.Runtime() as opened:
        session_id = await opened.start_session(handler=Stubborn(), state="mine", turn_timeout_s=0.01)
        events = [event async for event in opened.stream_turn(session_id, "hello")]
        release.set()
        await stubborn_is_over.wait()

        assert events == [mead.Finished(Err(Timeout()))]
        assert fenced == ["tool"], "an abandoned task starts no effect (D-60)"
        assert (await opened.history(session_id)).unwrap() == ()
        assert opened._shared.sessions[session_id].state == "mine", "nor does it overwrite anything (D-57)"


# S6


async def test_s6_d49_turns_are_answered_one_after_the_other_in_order() -> None:
    gates = [Gate(str(number)) for number in range(3)]
    async with runtime(ScriptedProvider(*gates)) as opened:
        session_id = await opened.start_session()
        tasks = [asyncio.create_task(opened.submit_turn(session_id, f"q{n}", route=LOCAL)) for n in range(3)]
        for number, gate in enumerate(gates):
            await gate.asked.wait()
            assert not any(later.asked.is_set() for later in gates[number + 1 :])
            gate.open.set()
        await asyncio.gather(*tasks)
        history = texts((await opened.history(session_id)).unwrap())

    assert history == [("q0", "0"), ("q1", "1"), ("q2", "2")]


async def test_s6_d56_a_turn_may_be_refused_while_another_runs() -> None:
    gate = Gate()
    async with runtime(ScriptedProvider(gate, "after")) as opened:
        session_id = await opened.start_session(busy="reject")
        first = asyncio.create_task(opened.submit_turn(session_id, "one", route=LOCAL))
        await gate.asked.wait()
        second = await opened.submit_turn(session_id, "two", route=LOCAL)
        other = await opened.start_session()
        gate.open.set()

        assert isinstance(second, Err)
        assert isinstance(second.reason, SessionBusy)
        assert (await first).unwrap().text == "done"
        assert (await opened.submit_turn(other, "x", route=LOCAL)).unwrap().text == "after", "D-56"


async def test_s6_a_turn_may_replace_the_running_one() -> None:
    gate = Gate()
    async with runtime(ScriptedProvider(gate, "second", "third")) as opened:
        session_id = await opened.start_session()
        first = asyncio.create_task(opened.submit_turn(session_id, "one", route=LOCAL))
        await gate.asked.wait()
        waiting = asyncio.create_task(opened.submit_turn(session_id, "three", route=LOCAL))
        await asyncio.sleep(0)
        second = await opened.submit_turn(session_id, "two", route=LOCAL, busy="interrupt")

        replaced = await first
        assert isinstance(replaced, Err)
        assert isinstance(replaced.reason, Interrupted)
        assert second.unwrap().text == "second"
        assert (await waiting).unwrap().text == "third"
        assert texts((await opened.history(session_id)).unwrap()) == [("two", "second"), ("three", "third")]


@pytest.mark.parametrize("end", [HttpStatus(status=500), RuntimeError("bug"), "cancel"])
async def test_s6_d54_a_turn_that_waits_is_answered_though_the_one_before_it_fails(end: object) -> None:
    gate = Gate()

    async def fail(request: ProviderRequest) -> object:
        await gate(request)
        return end

    async with runtime(ScriptedProvider(fail, "second")) as opened:
        session_id = await opened.start_session()
        first = asyncio.create_task(opened.submit_turn(session_id, "one", route=LOCAL))
        await gate.asked.wait()
        second = asyncio.create_task(opened.submit_turn(session_id, "two", route=LOCAL))
        await asyncio.sleep(0)
        if end == "cancel":
            await opened.cancel_turn(session_id)
        gate.open.set()

        assert isinstance(await first, Err)
        assert (await second).unwrap().text == "second"


# S7


FAILURES: dict[str, object] = {
    "reason": HttpStatus(status=400),
    "crash": RuntimeError("bug"),
    "task cancelled from inside": asyncio.CancelledError(),
}


@pytest.mark.parametrize("failure", FAILURES.values(), ids=FAILURES.keys())
async def test_s7_d53_a_failed_turn_leaves_the_history_as_it_was(failure: object) -> None:
    provider = ScriptedProvider("one", failure, "three")  # type: ignore[arg-type]  # a step
    async with runtime(provider) as opened:
        session_id = await opened.start_session()
        await opened.submit_turn(session_id, "q1", route=LOCAL)
        failed = await opened.submit_turn(session_id, "q2", route=LOCAL)
        await opened.submit_turn(session_id, "q3", route=LOCAL)

        assert isinstance(failed, Err)
        assert texts((await opened.history(session_id)).unwrap()) == [("q1", "one"), ("q3", "three")]
    assert [m.content for m in provider.requests[-1].messages] == ["q1", "one", "q3"]


async def test_s7_d06_a_stream_that_breaks_off_leaves_nothing_though_its_text_was_shown() -> None:
    class Breaking(ScriptedProvider):
        async def converse_stream(self, messages, tools, options, on_delta):  # type: ignore[no-untyped-def]  # as above
            on_delta("half an ans")
            return Err(HttpStatus(status=529))

    async with runtime(Breaking()) as opened:
        session_id = await opened.start_session()
        events = [event async for event in opened.stream_turn(session_id, "hello", route=LOCAL)]

        assert events == [mead.Delta("half an ans"), mead.Finished(Err(HttpStatus(status=529)))]
        assert (await opened.history(session_id)).unwrap() == ()


async def test_s7_d39_an_empty_answer_does_not_wedge_the_session() -> None:
    provider = ScriptedProvider("", "here")
    async with runtime(provider) as opened:
        session_id = await opened.start_session()
        first = (await opened.submit_turn(session_id, "q1", route=LOCAL)).unwrap()
        await opened.submit_turn(session_id, "q2", route=LOCAL)

    assert first.text == ""
    assert [(m.role, m.content) for m in provider.requests[1].messages] == [("user", "q1\n\nq2")]


class AtEveryAwait:
    """A provider and a tool with several awaits, to be cancelled at each of them."""

    def __init__(self, cancel_at: int, cancel: Callable[[], Awaitable[object]]) -> None:
        self.count = 0
        self.cancel_at = cancel_at
        self.cancel = cancel

    async def step(self) -> None:
        self.count += 1
        if self.count == self.cancel_at:
            await self.cancel()
        await asyncio.sleep(0)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("how", ["cancel_turn", "caller", "stop", "close", "interrupt"])
async def test_s7_d41_d50_a_turn_can_be_ended_at_any_await(how: str, streams: bool) -> None:
    ended = 0
    for cancel_at in range(1, 8):
        if await end_at(cancel_at, how, streams=streams):
            ended += 1
    assert ended == 6, "the turn has six awaits of its own"


async def end_at(cancel_at: int, how: str, *, streams: bool) -> bool:
    """Ends a tool turn at its nth await; whether there was one. The next turn must be right."""
    provider = ScriptedProvider()
    task: asyncio.Task[object]

    async def cancel() -> None:
        if how == "cancel_turn":
            await opened.cancel_turn(session_id)
        elif how == "caller":
            task.cancel()
        elif how == "interrupt":
            provider_of_next.append(asyncio.create_task(submit("interrupting", busy="interrupt")))
        elif how == "stop":
            await opened.stop_session(session_id)
        else:
            closing.append(asyncio.create_task(opened.aclose()))

    awaits = AtEveryAwait(cancel_at, cancel)

    @mead.tool(effect=False)
    async def look() -> str:
        "Looks."
        await awaits.step()
        await awaits.step()
        return "seen"

    async def first(request: ProviderRequest) -> object:
        await awaits.step()
        await awaits.step()
        return calls("look")

    async def second(request: ProviderRequest) -> object:
        await awaits.step()
        await awaits.step()
        return "answer"

    provider_of_next: list[asyncio.Task[object]] = []
    closing: list[asyncio.Task[None]] = []
    provider._script = [first, second]
    provider._otherwise = "next"
    async with runtime(provider, tools=[look]) as opened:
        session_id = await opened.start_session()

        async def submit(text: str, **turn: object) -> object:
            return await opened.submit_turn(session_id, text, route=LOCAL, **turn)  # type: ignore[arg-type]  # by name

        async def stream() -> object:
            return [event async for event in opened.stream_turn(session_id, "q1", route=LOCAL)][-1].result  # type: ignore[union-attr]  # Finished comes last

        task = asyncio.create_task(stream() if streams else submit("q1"))
        (result,) = await asyncio.gather(task, return_exceptions=True)
        await asyncio.gather(*closing, *provider_of_next)
        reached = awaits.count >= cancel_at
        if isinstance(result, Ok):
            assert not reached
        if how in ("stop", "close"):
            return reached
        await opened.submit_turn(session_id, "q2", route=LOCAL, tools="none")
        history = (await opened.history(session_id)).unwrap()
        said = [turn.decode()[0].content for turn in history]
        expected = ["interrupting"] if how == "interrupt" and reached else [] if reached else ["q1"]
        assert said == [*expected, "q2"]
    sent = provider.requests[-1].messages
    assert [m.role for m in sent] == [("user", "assistant")[n % 2] for n in range(len(sent))]
    return reached


CONTENT = st.lists(
    st.one_of(
        st.builds(TextBlock, st.sampled_from(["", "x", "\ud83d"])),
        st.builds(ToolUseBlock, st.sampled_from(["", "a", "b"]), st.just("t"), st.just({})),
        st.builds(ToolResultBlock, st.sampled_from(["a", "b"]), st.just("r")),
    ),
    max_size=3,
).map(tuple)
IMPORTED = st.lists(
    st.builds(Message, st.sampled_from(["user", "assistant"]), st.one_of(st.just(""), CONTENT)), max_size=6
)


@settings(max_examples=100, deadline=None)
@given(IMPORTED)
def test_s7_d52_no_history_can_make_a_turn_fail(history: list[Message]) -> None:
    provider = ScriptedProvider(otherwise="ok")

    async def run() -> None:
        async with runtime(provider) as opened:
            session_id = await opened.start_session(history=history)
            for text in ("one", "two"):
                (await opened.submit_turn(session_id, text, route=LOCAL)).unwrap()

    asyncio.run(run())
    for request in provider.requests:
        roles = [message.role for message in request.messages]
        assert roles == [("user", "assistant")[n % 2] for n in range(len(roles))]


# S8


async def test_s8_a_crash_fails_its_own_turn_and_touches_no_other(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate("fine")
    provider = ScriptedProvider(gate, ValueError("a secret of the conversation"))
    async with runtime(provider) as opened:
        first, second = await opened.start_session(), await opened.start_session()
        running = asyncio.create_task(opened.submit_turn(first, "one", route=LOCAL))
        await gate.asked.wait()
        with caplog.at_level(logging.DEBUG):
            crashed = await opened.submit_turn(second, "two", route=LOCAL)
        gate.open.set()

        assert crashed == Err(Crashed(error="ValueError"))
        assert (await running).unwrap().text == "fine"
    assert "ValueError" in caplog.text
    assert "scripted.py" in caplog.text, "the stack is logged"
    assert "secret" not in caplog.text, "what was said is not (T3)"


@pytest.mark.parametrize("state", [None, "ok"])
async def test_s8_d55_a_handler_that_answers_nonsense_crashes_and_the_session_goes_on(state: object) -> None:
    class Nonsense:
        async def handle_turn(self, turns: object, state: object, options: object) -> object:
            return Ok("no answer") if state else "no result"

    async with mead.Runtime() as opened:
        session_id = await opened.start_session(handler=Nonsense(), state=state)  # type: ignore[typeddict-item]  # that is the point
        for _ in range(2):
            result = await opened.submit_turn(session_id, "hello")
            assert isinstance(result, Err)
            assert isinstance(result.reason, Crashed)


# S9


async def test_s9_the_nearest_options_win_turn_session_slot_runtime() -> None:
    provider = ScriptedProvider(otherwise="ok")
    config = """
        [router.options]
        temperature = 0.1
        top_p = 0.1
        seed = 1
        max_tokens = 1
        [router.slots.local]
        provider = "echo"
        top_p = 0.2
        seed = 2
        max_tokens = 2
    """
    settings = mead.settings.parse(config)
    opened = mead.Runtime(settings)
    assert opened.slots.local is not None
    slot = opened.slots.local._replace(provider=provider)
    async with mead.Runtime(settings, slots=mead.Slots(local=slot)) as opened:
        session_id = await opened.start_session(system="be kind", options=Options(seed=3, max_tokens=3))
        await opened.submit_turn(session_id, "hello", options=Options(max_tokens=4))

    sent = provider.requests[0].options
    assert (sent.temperature, sent.top_p, sent.seed, sent.max_tokens) == (0.1, 0.2, 3, 4)
    assert sent.system == "be kind"


@pytest.mark.parametrize(
    "session, sent",
    [
        ({}, "of the settings"),
        ({"system": "of the session"}, "of the session"),
        ({"options": Options(system="of its options", seed=1)}, "of its options"),
    ],
)
async def test_s9_a_session_without_a_system_prompt_has_that_of_the_settings(
    session: dict[str, object], sent: str
) -> None:
    provider = ScriptedProvider(otherwise="ok")
    async with runtime(provider, sessions=SessionSettings(system="of the settings")) as opened:
        session_id = await opened.start_session(**session)  # type: ignore[arg-type]  # by name
        await opened.submit_turn(session_id, "hello", route=LOCAL)
        await opened.submit_turn(session_id, "hello", route=LOCAL, options=Options(system="of the turn"))

    assert [request.options.system for request in provider.requests] == [sent, "of the turn"]


async def test_s9_python_functions_are_tools() -> None:
    @mead.tool(effect=False)
    def add(first: int, second: int = 1) -> int:
        "Adds."
        return first + second

    provider = ScriptedProvider(calls("add", first=2), "three")
    async with runtime(provider, tools=[add]) as opened:
        session_id = await opened.start_session()
        events = [event async for event in opened.stream_turn(session_id, "2 and 1?", route=LOCAL)]

    (shown,) = provider.requests[0].tools
    assert shown.description == "Adds."
    assert shown.input_schema["required"] == ["first"]
    assert events[:2] == [mead.ToolCalled("add", False), mead.ToolReturned("add", False)]
    assert "3" in provider.requests[1].text


# S10


async def test_s10_another_owners_session_does_not_exist() -> None:
    async with runtime(ScriptedProvider(otherwise="ok")) as opened:
        ada, bob = opened.for_owner("ada"), opened.for_owner("bob")
        session_id = await ada.start_session()
        await ada.submit_turn(session_id, "hello", route=LOCAL)

        for other in (bob, opened):
            refused = await other.submit_turn(session_id, "hello")
            assert isinstance(refused, Err)
            assert isinstance(refused.reason, NoSuchSession)
            assert isinstance(await other.history(session_id), Err)
            assert not await other.stop_session(session_id)
            assert await other.sessions() == ()
        (turn,) = (await ada.history(session_id)).unwrap()
        assert turn.owner == "ada"


async def test_s10_the_owner_reaches_the_handler_and_the_events() -> None:
    owners: list[str] = []

    class Asking(Counting):
        async def handle_turn(
            self, turns: Sequence[Turn], state: object, options: TurnOptions
        ) -> Result[Answer, TurnReason]:
            owners.append(options.owner)
            return await super().handle_turn(turns, state, options)

    with heard(telemetry.TURN) as events:
        async with mead.Runtime(handler=Asking()) as opened:
            ada = opened.for_owner("ada")
            await ada.submit_turn(await ada.start_session(), "hello")

    assert owners == ["ada"]
    assert events[0].metadata["owner"] == "ada"


# T2, closing, input, cost


async def test_t2_every_turn_has_exactly_one_event_whatever_happens() -> None:
    gate = Gate()
    provider = ScriptedProvider("one", HttpStatus(status=500), ValueError(), gate)
    with heard(telemetry.TURN) as events:
        async with runtime(provider) as opened:
            session_id = await opened.start_session()
            for text in ("1", "2", "3"):
                await opened.submit_turn(session_id, text, route=LOCAL)
            running = asyncio.create_task(opened.submit_turn(session_id, "4", route=LOCAL))
            await gate.asked.wait()
            waiting = asyncio.create_task(opened.submit_turn(session_id, "5", route=LOCAL))
            await asyncio.sleep(0)
            await opened.stop_session(session_id)
            await asyncio.gather(running, waiting)

    told = [(event.metadata["turn"], event.metadata["status"], event.metadata["reason"]) for event in events]
    assert sorted(told) == [
        (1, "ok", None),
        (2, "error", "http_status"),
        (3, "error", "crashed"),
        (4, "error", "cancelled"),
        (5, "error", "cancelled"),
    ]
    assert all((event.measurements["duration"] or 0) >= 0 for event in events)


async def test_a_turn_that_is_cancelled_says_so_and_cancelling_nothing_is_no_error() -> None:
    gate = Gate()
    async with runtime(ScriptedProvider(gate, "next")) as opened:
        session_id = await opened.start_session()
        assert not await opened.cancel_turn(session_id)
        task = asyncio.create_task(opened.submit_turn(session_id, "one", route=LOCAL))
        await gate.asked.wait()

        assert await opened.cancel_turn(session_id)
        assert await task == Err(Cancelled())
        assert (await opened.submit_turn(session_id, "two", route=LOCAL)).unwrap().text == "next"


async def test_closing_ends_every_turn_and_takes_no_new_one() -> None:
    gate = Gate()
    provider = ScriptedProvider(gate)
    opened = runtime(provider)
    session_id = await opened.start_session()
    running = asyncio.create_task(opened.submit_turn(session_id, "one", route=LOCAL))
    await gate.asked.wait()
    waiting = asyncio.create_task(opened.submit_turn(session_id, "two", route=LOCAL))
    await asyncio.sleep(0)
    await opened.aclose()
    await opened.aclose()

    assert [await running, await waiting] == [Err(ShuttingDown()), Err(ShuttingDown())]
    assert await opened.submit_turn(session_id, "three") == Err(ShuttingDown())
    assert provider.closed
    with pytest.raises(RuntimeError, match="closed"):
        await opened.start_session()


async def test_cancelling_the_closing_does_not_cancel_those_who_wait_for_their_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled = asyncio.Event()
    release = asyncio.Event()

    async def slow_to_end(request: ProviderRequest) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            await release.wait()
        return "late"

    async with runtime(ScriptedProvider(slow_to_end)) as opened:
        session_id = await opened.start_session()
        running = asyncio.create_task(opened.submit_turn(session_id, "one", route=LOCAL))
        await asyncio.sleep(0)
        closing = asyncio.create_task(opened.aclose())
        await cancelled.wait()
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        release.set()

        assert await running == Err(ShuttingDown())


@pytest.mark.parametrize("timeout_s", [0, -1])
async def test_a_sessions_timeout_must_be_over_0(timeout_s: float) -> None:
    async with runtime(ScriptedProvider()) as opened:
        with pytest.raises(ValueError, match="turn_timeout_s"):
            await opened.start_session(turn_timeout_s=timeout_s)


def test_tools_beside_a_hub_are_a_mistake() -> None:
    @mead.tool(effect=False)
    def look() -> str:
        "Looks."
        return "seen"

    with pytest.raises(ValueError, match="not both"):
        mead.Runtime(hub=mead.NoHub(), tools=[look])


async def test_s10_explain_shows_what_the_owner_would_see() -> None:
    class OwnersHub(mead.NoHub):
        def known_tools(self, options: TurnOptions) -> list[mead.Tool]:
            return [mead.Tool(f"tool_of_{options.owner}", None, {})]

    opened = mead.Runtime(slots=slots(ScriptedProvider()), hub=OwnersHub())
    decision = (await opened.for_owner("ada").explain("hello", route=LOCAL)).unwrap()

    assert isinstance(decision, mead.Decision)
    assert decision.tools == ("tool_of_ada",)


async def test_d61_leaving_a_stream_cancels_its_turn() -> None:
    gate = Gate()
    async with runtime(ScriptedProvider(gate, "next")) as opened:
        session_id = await opened.start_session()
        stream = opened.stream_turn(session_id, "one", route=LOCAL)
        reading = asyncio.create_task(anext(stream))
        await gate.asked.wait()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await stream.aclose()

        assert (await opened.submit_turn(session_id, "two", route=LOCAL)).unwrap().text == "next"
        assert len((await opened.history(session_id)).unwrap()) == 1


async def test_input_that_cannot_be_a_turn_is_refused_with_what_to_do() -> None:
    async with runtime(
        ScriptedProvider(otherwise="ok"), sessions=SessionSettings(max_input_bytes=20)
    ) as opened:
        session_id = await opened.start_session()
        empty = await opened.submit_turn(session_id, " \n")
        large = await opened.submit_turn(session_id, "x" * 21)
        picture = await opened.submit_turn(session_id, "", attachments=[ImageBlock("image/png", b"x" * 21)])

        for result, said in ((empty, "empty"), (large, "21"), (picture, "max_input_bytes")):
            assert isinstance(result, Err)
            assert isinstance(result.reason, InvalidOptions)
            assert said in (result.reason.detail or "")
        assert (await opened.submit_turn(session_id, "x" * 20)).unwrap().text == "ok"


@pytest.mark.parametrize(
    "turn",
    [{"route": "cluod"}, {"tools": "all"}, {"busy": "wait"}, {"turn_timeout_s": -1}, {"turn_timeout_s": 0}],
)
async def test_a_word_that_is_none_is_the_callers_mistake(turn: dict[str, object]) -> None:
    async with runtime(ScriptedProvider()) as opened:
        session_id = await opened.start_session()
        with pytest.raises(ValueError, match=next(iter(turn))):
            await opened.submit_turn(session_id, "hello", **turn)  # type: ignore[arg-type]  # that is the point


async def test_attachments_reach_the_model_and_stay_in_the_history() -> None:
    provider = ScriptedProvider(otherwise="ok")
    picture = ImageBlock("image/png", b"\x89PNG")
    async with runtime(provider) as opened:
        session_id = await opened.start_session()
        await opened.submit_turn(session_id, "what is it?", attachments=[picture], route=LOCAL)
        await opened.submit_turn(session_id, "and now?", route=LOCAL)

    assert provider.requests[1].messages[0].content == (picture, TextBlock("what is it?"))


async def test_a_history_can_be_carried_to_another_session_with_its_labels() -> None:
    async with runtime(ScriptedProvider("a", "b"), ScriptedProvider(otherwise="c")) as opened:
        first = await opened.start_session()
        await opened.submit_turn(first, "easy")
        await opened.submit_turn(first, "mine", route=LOCAL)
        turns = (await opened.history(first)).unwrap()
        second = await opened.start_session(history=turns)
        answer = (await opened.submit_turn(second, "go", route="cloud")).unwrap()

        assert answer.decision is not None
        assert answer.decision.withheld == 1
        with pytest.raises(ValueError, match="not both"):
            await opened.start_session(history=[*turns, Message("user", "x")])  # type: ignore[list-item]  # that is it


async def test_s1_ten_thousand_idle_sessions_cost_kilobytes_each() -> None:
    async with runtime(ScriptedProvider(otherwise="an answer of some words"), None) as opened:
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(10_000):
            session_id = await opened.start_session()
            opened._shared.sessions[session_id].turns = [mead.core.turns.turn("a question of some words")]
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / 10_000
        tracemalloc.stop()

        assert each < 2_000, f"{each:.0f} bytes a session"
        assert len(asyncio.all_tasks()) == 1, "an idle session holds no task"
    assert Options() == NO_OPTIONS


async def test_a_provider_that_cannot_be_closed_keeps_nobody_from_closing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Stuck(ScriptedProvider):
        async def aclose(self) -> None:
            raise OSError("stuck")

    other = ScriptedProvider()
    async with runtime(Stuck(), other):
        pass

    assert other.closed
    assert "OSError" in caplog.text
