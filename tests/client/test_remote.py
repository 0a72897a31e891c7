"""One suite of behaviour over a runtime as it is, and over the same runtime behind a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeAlias

import pytest

import mead
from client.conftest import Serve
from mead import Approval, Err, Message, Ok, Options
from mead.core.reasons import (
    BudgetExceeded,
    Cancelled,
    CloudUnavailable,
    ContextOverflow,
    HttpStatus,
    InvalidOptions,
    MalformedResponse,
    MissingApiKey,
    NoSuchSession,
    PrivateContent,
    SlotBusy,
    Timeout,
    ToolsUnsupported,
    Transport,
)
from mead.testing import calls
from serve.api import Gate, kept, model

Any_: TypeAlias = "mead.Runtime | mead.RemoteRuntime"
Open = Callable[[mead.Runtime], Awaitable[Any_]]


@pytest.fixture(params=["here", "behind a server"])
async def open_(request: pytest.FixtureRequest, serve: Serve) -> AsyncIterator[Open]:
    async with AsyncExitStack() as stack:

        async def enter(runtime: mead.Runtime) -> Any_:
            if request.param == "here":
                return await stack.enter_async_context(runtime)
            return await stack.enter_async_context(mead.connect(serve(runtime)))

        yield enter


@mead.tool(effect=False)
def look() -> str:
    """Looks."""
    return "seen"


@mead.tool(effect=True)
def delete(path: str) -> str:
    """Deletes a file."""
    return f"deleted {path}"


async def test_a_turn_is_answered_and_kept(open_: Open) -> None:
    runtime = await open_(kept(model()))
    session_id = await runtime.start_session(system="Be brief.", tags=["a"], title="T")

    result = await runtime.submit_turn(session_id, "hello", route="local")

    assert isinstance(result, Ok)
    answer = result.value
    assert (answer.text, answer.route, answer.label) == ("from local", "local", "local_only")
    assert answer.decision is not None
    assert answer.decision.causes[0].code == "forced"
    history = (await runtime.history(session_id)).unwrap()
    assert [turn.messages for turn in history] == [answer.messages]
    assert [turn.number for turn in history] == [1]
    assert await runtime.sessions() == (session_id,)


async def test_a_stream_yields_fragments_and_then_the_answer(open_: Open) -> None:
    runtime = await open_(kept(model(["Hel", "lo"])))
    session_id = await runtime.start_session()

    events = [event async for event in runtime.stream_turn(session_id, "x", route="local")]

    assert events[:2] == [mead.Delta("Hel"), mead.Delta("lo")]
    (last,) = events[2:]
    assert isinstance(last, mead.Finished)
    assert last.result.unwrap().text == "Hello"


async def test_a_stream_that_is_left_cancels_its_turn(open_: Open) -> None:
    gate = Gate()
    runtime = await open_(kept(model(calls("look"), gate, "fine"), tools=[look]))
    session_id = await runtime.start_session()

    async with aclosing(runtime.stream_turn(session_id, "x", route="local")) as events:
        assert await anext(events) == mead.ToolCalled("look", effect=False)
        await asyncio.to_thread(gate.begun.wait, 20)

    assert await asyncio.to_thread(gate.cancelled.wait, 20)
    assert (await runtime.submit_turn(session_id, "y", route="local")).unwrap().text == "fine"
    assert len((await runtime.history(session_id)).unwrap()) == 1


async def test_cancelling_the_caller_cancels_the_turn(open_: Open) -> None:
    gate = Gate()
    runtime = await open_(kept(model(gate, "fine")))
    session_id = await runtime.start_session()
    waiting = asyncio.ensure_future(runtime.submit_turn(session_id, "x", route="local"))
    assert await asyncio.to_thread(gate.begun.wait, 20)

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert await asyncio.to_thread(gate.cancelled.wait, 20)
    assert (await runtime.submit_turn(session_id, "y", route="local")).unwrap().text == "fine"


async def test_a_running_turn_is_cancelled_by_its_session(open_: Open) -> None:
    gate = Gate()
    runtime = await open_(kept(model(gate)))
    session_id = await runtime.start_session()
    assert not await runtime.cancel_turn(session_id)
    waiting = asyncio.ensure_future(runtime.submit_turn(session_id, "x", route="local"))
    assert await asyncio.to_thread(gate.begun.wait, 20)

    assert await runtime.cancel_turn(session_id)
    assert await waiting == Err(Cancelled())
    assert not await runtime.cancel_turn("nowhere")


async def test_a_stopped_session_is_gone(open_: Open) -> None:
    runtime = await open_(kept(model()))
    session_id = await runtime.start_session()

    assert await runtime.stop_session(session_id)
    assert not await runtime.stop_session(session_id)
    result = await runtime.submit_turn(session_id, "hello")
    assert isinstance(result, Err)
    assert isinstance(result.reason, NoSuchSession)
    assert isinstance(await runtime.history(session_id), Err)
    assert isinstance(await runtime.compact(session_id), Err)
    assert isinstance(await runtime.explain("x", session_id=session_id), Err)
    (finished,) = [event async for event in runtime.stream_turn(session_id, "x")]
    assert isinstance(finished, mead.Finished)
    assert isinstance(finished.result, Err)


REASONS = [
    HttpStatus(status=429, retry_after_s=2.0, code="slow", detail="slow down"),
    HttpStatus(status=500),
    Timeout(limit="idle"),
    MalformedResponse(detail="no JSON"),
    InvalidOptions(code="bad"),
    MissingApiKey(detail="set it"),
    Transport(cause="refused"),
    ToolsUnsupported(),
    ContextOverflow(detail="too long"),
    BudgetExceeded(detail="spent"),
    SlotBusy(retry_after_s=1.5),
    PrivateContent(kinds=("iban",)),
]


@pytest.mark.parametrize("reason", REASONS, ids=str)
async def test_a_failure_is_the_very_same_reason(open_: Open, reason: Any) -> None:
    runtime = await open_(kept(model(reason, reason)))
    session_id = await runtime.start_session()

    plain = await runtime.submit_turn(session_id, "x", route="local")
    *_, last = [event async for event in runtime.stream_turn(session_id, "x", route="local")]

    assert plain == Err(reason)
    assert last == mead.Finished(Err(reason))


WRONG = [{"route": "moon"}, {"tools": "all"}, {"busy": "wait"}, {"turn_timeout_s": 0}]


@pytest.mark.parametrize("turn", WRONG, ids=str)
async def test_a_wrong_word_raises(open_: Open, turn: Any) -> None:
    runtime = await open_(kept(model()))
    session_id = await runtime.start_session()

    with pytest.raises(ValueError):
        await runtime.submit_turn(session_id, "x", **turn)
    with pytest.raises(ValueError):
        [event async for event in runtime.stream_turn(session_id, "x", **turn)]


async def test_an_empty_turn_is_refused_with_a_reason(open_: Open) -> None:
    runtime = await open_(kept(model()))

    result = await runtime.submit_turn(await runtime.start_session(), "  ")

    assert result == Err(InvalidOptions(detail="the turn is empty: give it some text"))


async def test_options_arrive_as_they_were_given(open_: Open) -> None:
    local = model()
    runtime = await open_(kept(local))
    options = Options(
        max_tokens=7,
        temperature=0.5,
        top_p=0.25,
        seed=3,
        stop=("END",),
        thinking="low",
        response_format=mead.ResponseFormat({"type": "object"}, "shape"),
    )
    session_id = await runtime.start_session(options=Options(top_k=5, system="base"))

    await runtime.submit_turn(session_id, "x", route="local", options=options)

    given = local.requests[0].options
    for name in ("max_tokens", "temperature", "top_p", "seed", "stop", "thinking", "response_format"):
        assert getattr(given, name) == getattr(options, name)
    assert (given.top_k, given.system) == (5, "base")


async def test_attachments_arrive_as_they_were_given(open_: Open) -> None:
    local = model()
    runtime = await open_(kept(local))
    image = mead.ImageBlock("image/png", bytes(range(256)))

    await runtime.submit_turn(await runtime.start_session(), "see", route="local", attachments=[image])

    assert local.requests[0].messages[0].content == (image, mead.TextBlock("see"))


async def test_a_history_is_brought_along_and_turns_keep_their_labels(open_: Open) -> None:
    runtime = await open_(kept(model(), model(otherwise="from cloud")))
    first = await runtime.start_session(history=[Message("user", "a"), Message("assistant", "b")])
    await runtime.submit_turn(first, "hello", route="cloud")
    turns = (await runtime.history(first)).unwrap()

    second = await runtime.start_session(history=turns)

    assert (await runtime.history(second)).unwrap() == turns
    assert [turn.label for turn in turns] == ["local_only", "shareable"]
    with pytest.raises(ValueError, match="history"):
        await runtime.start_session(history=[*turns, Message("user", "a")])  # type: ignore[list-item]  # on purpose


async def test_r16_a_request_keeps_nothing_and_local_text_in_it_stays_local(open_: Open) -> None:
    cloud = model(otherwise="from cloud")
    secret = "The orchard behind the mill belongs to nobody but the miller's youngest daughter."
    runtime = await open_(kept(model(secret), cloud))
    asked = [Message("user", "hello")]

    answer = (await runtime.submit_request(asked, route="local")).unwrap()
    brought = [*answer.messages.decode(), Message("user", "Give this a title.")]
    refused = await runtime.submit_request(brought, route="cloud")
    events = [event async for event in runtime.stream_request(asked, route="local")]

    assert answer.text == secret
    assert isinstance(refused, Err)
    assert isinstance(refused.reason, PrivateContent)
    assert isinstance(events[-1], mead.Finished)
    assert await runtime.sessions() == ()
    assert cloud.requests == []


async def test_calls_of_the_callers_own_tools_come_back_and_their_results_go_on(open_: Open) -> None:
    local = model(calls("ask_user", question="why"), "because")
    runtime = await open_(kept(local))
    own = mead.Tool("ask_user", "Asks.", {"type": "object"})
    question = Message("user", "x")

    first = (await runtime.submit_request([question], route="local", client_tools=[own])).unwrap()
    assert first.stop_reason == "tool_use"
    assert [call.input for call in first.client_calls] == [{"question": "why"}]
    assert first.handed_over is not None
    result = mead.ToolResultBlock(first.client_calls[0].id, "for fun")
    going_on = [question, *first.handed_over.decode(), Message("user", (result,))]
    second = (await runtime.submit_request(going_on, route="local", client_tools=[own])).unwrap()

    assert second.text == "because"
    assert "for fun" in local.requests[1].text


@pytest.mark.parametrize("decision", ["once", "no"])
async def test_an_approval_is_asked_for_and_given(open_: Open, decision: Any) -> None:
    local = model(calls("delete", path="a.txt"), "over")
    runtime = await open_(kept(local, tools=[delete]))
    session_id = await runtime.start_session()
    names: list[str] = []

    async for event in runtime.stream_turn(session_id, "tidy", route="local", tools="effect", asks=True):
        names.append(type(event).__name__)
        if isinstance(event, mead.ApprovalNeeded):
            assert event.request.arguments == {"path": "a.txt"}
            event.answer(Approval(decision=decision))

    assert names[0] == "ApprovalNeeded"
    assert names[-1] == "Finished"
    assert ("ToolCalled" in names) == (decision == "once")
    assert ("deleted a.txt" in local.requests[1].text) == (decision == "once")


async def test_a_repeat_under_a_key_gives_the_first_result(open_: Open) -> None:
    local = model("once")
    runtime = await open_(kept(local))
    session_id = await runtime.start_session()

    first = await runtime.submit_turn(session_id, "x", route="local", idempotency_key="k")
    second = await runtime.submit_turn(session_id, "x", route="local", idempotency_key="k")
    third = await runtime.submit_turn(session_id, "y", route="local", idempotency_key="k")

    assert first == second
    assert len(local.requests) == 1
    assert isinstance(third, Err)
    assert third.reason.tag == "idempotency_conflict"


async def test_compacting_gives_a_session_that_goes_on_from_a_summary(open_: Open) -> None:
    runtime = await open_(kept(None, model("answer", "summary")))
    session_id = await runtime.start_session()
    await runtime.submit_turn(session_id, "x", route="cloud")

    made = (await runtime.compact(session_id)).unwrap()

    (turn,) = (await runtime.history(made)).unwrap()
    assert turn.decode()[1].content == "summary"
    assert await runtime.sessions() == (session_id, made)


async def test_r18_explain_tells_where_a_turn_would_go(open_: Open) -> None:
    runtime = await open_(kept(model()))
    session_id = await runtime.start_session()

    fine = (await runtime.explain("hello", session_id=session_id, route="local")).unwrap()
    refused = (await runtime.explain("hello", route="cloud")).unwrap()
    brought = (await runtime.explain_request([Message("user", "hi")], route="local")).unwrap()

    assert isinstance(fine, mead.Decision)
    assert (fine.route, fine.source) == ("local", "forced")
    assert isinstance(refused, mead.Refused)
    assert isinstance(refused.reason, CloudUnavailable)
    assert isinstance(brought, mead.Decision)


async def test_nothing_was_sent_to_a_model_in_memory(open_: Open) -> None:
    runtime = await open_(kept(model()))
    session_id = await runtime.start_session()
    await runtime.submit_turn(session_id, "x", route="local")

    assert await runtime.egress() == ()
    assert await runtime.egress(session_id) == ()
