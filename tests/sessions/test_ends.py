"""How a turn ends when the code it runs in misbehaves: once, told, and nothing runs after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

import mead
from mead import telemetry
from mead.core.messages import Message
from mead.core.options import TurnOptions
from mead.core.reasons import Cancelled, Crashed, Interrupted, Reason, SessionBusy, Timeout
from mead.core.result import Err, Ok
from mead.core.scope import CallRecord
from mead.core.turns import Answer, Turn
from mead.core.usage import Usage
from mead.sessions.journal import TurnJournal
from mead.sessions.run import TurnRun
from mead.storage.memory import MemoryStore
from mead.testing import ProviderRequest, ScriptedProvider, calls
from support import heard, runtime, slots


class Returning:
    """A handler that returns what it is told to, in order, and then answers."""

    def __init__(self, *results: object) -> None:
        self.results = list(results)

    async def handle_turn(self, turns: Sequence[Turn], state: object, options: TurnOptions) -> object:
        if not self.results:
            return await mead.EchoHandler().handle_turn(turns, state, options)
        result = self.results.pop(0)
        if isinstance(result, BaseException):
            raise result
        return result


def reason_of(result: object) -> Reason:
    assert isinstance(result, Err)
    return result.reason


# Nothing happens after the end


@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_d60_a_turn_that_is_ending_starts_no_effect_though_its_provider_swallowed_the_cancel(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung: list[str] = []
    closed: list[str] = []
    asked = asyncio.Event()
    written = TurnRun.call_closed

    @mead.tool(effect=True)
    def ring() -> str:
        "Rings."
        rung.append("ring")
        return "rung"

    async def stubborn(request: ProviderRequest) -> object:
        asked.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return calls("ring")

    async def call_closed(self: TurnRun, call: CallRecord, usage: Usage | None, status: str) -> None:
        closed.append(status)
        await written(self, call, usage, status)

    monkeypatch.setattr(TurnRun, "call_closed", call_closed)
    async with runtime(ScriptedProvider(stubborn), tools=[ring]) as opened:
        session_id = await opened.start_session(turn_timeout_s=0.01 if how == "timeout" else 30)
        turn = asyncio.create_task(opened.submit_turn(session_id, "x", route="local", tools="effect"))
        await asked.wait()
        if how == "cancel":
            await opened.cancel_turn(session_id)
        result = await turn

    assert result == Err(Cancelled() if how == "cancel" else Timeout())
    assert rung == []
    assert closed == ["ok"], "what the call came to is written down all the same"


# Whatever is raised


@pytest.mark.parametrize("raised", [SystemExit(3), GeneratorExit(), BaseException("odd")], ids=repr)
async def test_s8_whatever_a_handler_raises_fails_its_own_turn(raised: BaseException) -> None:
    async with mead.Runtime(handler=Returning(raised)) as opened:  # type: ignore[arg-type]  # that is the point
        session_id = await opened.start_session()

        assert await opened.submit_turn(session_id, "one") == Err(Crashed(error=type(raised).__name__))
        assert (await opened.submit_turn(session_id, "two")).unwrap().text == "two"


def test_s8_a_handler_that_exits_does_not_end_the_background_loop() -> None:
    handler = Returning(SystemExit(3))
    with mead.SyncRuntime(lambda: mead.Runtime(handler=handler)) as opened:  # type: ignore[arg-type]  # that is the point
        session_id = opened.start_session()

        assert opened.submit_turn(session_id, "one") == Err(Crashed(error="SystemExit"))
        assert opened.submit_turn(session_id, "two").unwrap().text == "two"


def test_s8_a_tool_that_exits_does_not_end_the_background_loop() -> None:
    @mead.tool(effect=False)
    async def leave() -> str:
        "Leaves."
        raise SystemExit(3)

    provider = ScriptedProvider(calls("leave"), otherwise="here")
    with mead.SyncRuntime(lambda: mead.Runtime(slots=slots(provider), tools=[leave])) as opened:
        session_id = opened.start_session()
        opened.submit_turn(session_id, "one", route="local")

        assert opened.submit_turn(session_id, "two", route="local").unwrap().text == "here"


def test_s8_a_keyboard_interrupt_finishes_the_turn_and_goes_on_up() -> None:
    ended: list[object] = []

    async def main() -> None:
        async with mead.Runtime(handler=Returning(KeyboardInterrupt())) as opened:  # type: ignore[arg-type]  # that is the point
            await opened.submit_turn(await opened.start_session(), "one")

    with heard(telemetry.TURN) as events, pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    ended = [event.metadata["reason"] for event in events]
    assert ended == ["crashed"]


async def test_an_err_of_something_else_crashes_and_the_caller_gets_it_though_somebody_listens() -> None:
    with heard(telemetry.TURN) as events:
        async with mead.Runtime(handler=Returning(Err("nope"), Err(None))) as opened:  # type: ignore[arg-type]  # that is the point
            session_id = await opened.start_session()
            first, second = [reason_of(await opened.submit_turn(session_id, "x")) for _ in range(2)]

    assert first == Crashed(
        error="TypeError", detail="handle_turn() must return Ok(Answer) or Err(reason), not Err of str"
    )
    assert isinstance(second, Crashed)
    assert [event.metadata["reason"] for event in events] == ["crashed", "crashed"]


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), SystemExit(3)], ids=repr)
async def test_a_telemetry_handler_that_raises_anything_keeps_nobody_waiting(raised: BaseException) -> None:
    def broken(event: telemetry.Event) -> None:
        raise raised

    detach = telemetry.attach(broken, telemetry.TURN)
    try:
        async with mead.Runtime() as opened:
            session_id = await opened.start_session()
            answer = await opened.submit_turn(session_id, "hello")
    finally:
        detach()

    assert answer.unwrap().text == "hello"


async def test_a_turn_has_its_result_though_telling_of_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **keywords: object) -> None:
        raise LookupError

    monkeypatch.setattr("mead.sessions.run.tell_turn", broken)
    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with mead.Runtime() as opened:
        assert (await opened.submit_turn(await opened.start_session(), "hello")).unwrap().text == "hello"


async def test_a_turn_has_its_result_though_its_end_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(*args: object, **keywords: object) -> None:
        raise LookupError

    monkeypatch.setattr(TurnJournal, "end", broken)
    async with mead.Runtime(store=MemoryStore()) as opened:
        session_id = await opened.start_session()

        assert await opened.submit_turn(session_id, "hello") == Err(Crashed(error="LookupError"))
        assert (await opened.history(session_id)).unwrap() == ()


# What a handler may answer


async def test_s7_an_answer_with_messages_that_are_not_encoded_is_kept() -> None:
    said = [Message("user", "hello"), Message("assistant", "hi")]
    answers = [Ok(Answer(text="hi", messages=messages)) for messages in (said, tuple(said))]  # type: ignore[arg-type]  # as above
    provider = ScriptedProvider("router's")
    async with runtime(provider) as opened:
        router = opened.handler
        session_id = await opened.start_session(handler=Returning(*answers))  # type: ignore[typeddict-item]  # as above
        for _ in answers:
            (await opened.submit_turn(session_id, "hello")).unwrap()
        opened._shared.sessions[session_id].handler = router
        (await opened.submit_turn(session_id, "and now?", route="local")).unwrap()

    assert list(provider.requests[0].messages) == [*said, *said, Message("user", "and now?")]


MESSAGES = mead.core.conversation.encode([Message("user", "q"), Message("assistant", "a")])
ODD = {
    "messages": "hi",
    "no messages": [],
    "a message's content": [Message("user", 5)],  # type: ignore[arg-type]  # that is the point
    "a message's role": [Message("robot", "x")],  # type: ignore[arg-type]  # as above
    "text": {"text": b"hi"},
    "label": {"label": "secret"},
    "usage": {"usage": Usage()},
    "decision": {"decision": "local"},
    "stop_reason": {"stop_reason": "enough"},
    "warnings": {"warnings": "one"},
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
async def test_s7_an_odd_answer_crashes_with_a_sentence_and_the_session_goes_on(odd: object) -> None:
    fields = odd if isinstance(odd, dict) else {"messages": odd}
    answer = Answer(**{"text": "hi", "messages": MESSAGES, **fields})
    async with mead.Runtime(handler=Returning(Ok(answer))) as opened:  # type: ignore[arg-type]  # that is the point
        session_id = await opened.start_session()
        reason = reason_of(await opened.submit_turn(session_id, "one"))

        assert isinstance(reason, Crashed)
        assert "Answer's" in (reason.detail or "")
        assert (await opened.history(session_id)).unwrap() == ()
        assert (await opened.submit_turn(session_id, "two")).unwrap().text == "two"


# Those that wait


class Gated(mead.EchoHandler):
    """Answers when it is let to."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.open = asyncio.Event()

    async def handle_turn(self, turns, state, options):  # type: ignore[no-untyped-def]  # as its base
        self.asked.set()
        await self.open.wait()
        return await super().handle_turn(turns, state, options)


async def test_s6_a_turn_that_waits_to_replace_another_is_replaced_itself_by_a_newer_one() -> None:
    handler = Gated()
    async with mead.Runtime(handler=handler) as opened:
        session_id = await opened.start_session()
        first = asyncio.create_task(opened.submit_turn(session_id, "a"))
        await handler.asked.wait()
        queued = asyncio.create_task(opened.submit_turn(session_id, "d"))
        await asyncio.sleep(0)
        later = [asyncio.create_task(opened.submit_turn(session_id, text, busy="interrupt")) for text in "bc"]
        handler.open.set()
        results = [await task for task in (first, *later, queued)]
        history = (await opened.history(session_id)).unwrap()

    interrupted = Interrupted(detail="a newer turn replaced it")
    assert results[:2] == [Err(interrupted), Err(interrupted)]
    assert [turn.decode()[0].content for turn in history] == ["c", "d"]


async def test_s6_no_more_than_so_many_turns_wait_in_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mead.sessions.session.MAX_WAITING", 2)
    handler = Gated()
    async with mead.Runtime(handler=handler) as opened:
        session_id = await opened.start_session()
        tasks = [asyncio.create_task(opened.submit_turn(session_id, text)) for text in "abcd"]
        await handler.asked.wait()
        refused = await tasks[3]
        handler.open.set()

        assert refused == Err(SessionBusy(detail="2 turns of the session are waiting already"))
        assert [(await task).unwrap().text for task in tasks[:3]] == ["a", "b", "c"]


async def test_t2_a_refused_turn_has_an_event_and_no_number() -> None:
    handler = Gated()
    with heard(telemetry.TURN) as events:
        async with mead.Runtime(handler=handler) as opened:
            session_id = await opened.start_session(busy="reject")
            first = asyncio.create_task(opened.submit_turn(session_id, "a"))
            await handler.asked.wait()
            await opened.submit_turn(session_id, "b")
            await opened.submit_turn(session_id, " ")
            handler.open.set()
            await first
            await opened.submit_turn(session_id, "c")
            history = (await opened.history(session_id)).unwrap()

    assert [turn.number for turn in history] == [1, 2]
    assert [(event.metadata["turn"], event.metadata["reason"]) for event in events] == [
        (None, "session_busy"),
        (None, "invalid_options"),
        (1, None),
        (2, None),
    ]


@pytest.mark.parametrize("how", ["cancel", "interrupt"])
async def test_s3_a_turn_that_is_ended_before_its_first_step_ends_at_once_and_is_not_abandoned(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    provider = ScriptedProvider(otherwise="hello")
    async with runtime(provider) as made:
        session_id = await made.start_session()
        loop = asyncio.get_running_loop()
        started = loop.time()
        first = asyncio.ensure_future(made.submit_turn(session_id, "one", route="local"))
        if how == "cancel":
            other: asyncio.Future[object] = asyncio.ensure_future(made.cancel_turn(session_id))
        else:
            other = asyncio.ensure_future(
                made.submit_turn(session_id, "two", route="local", busy="interrupt")
            )
        ended, what = await asyncio.gather(first, other)
        took_s = loop.time() - started

    assert isinstance(reason_of(ended), Cancelled if how == "cancel" else Interrupted)
    assert what is True or isinstance(what, Ok)
    assert len(provider.requests) == (0 if how == "cancel" else 1)
    assert took_s < 0.9  # an abandoned one takes a second
    assert "abandoned" not in caplog.text
