"""Approvals: bound to the very arguments, one at a time, outside the turn's clock; no person, no approval."""

from __future__ import annotations

import asyncio

import pytest

import mead
from mead.core.messages import ToolResultBlock, ToolUseBlock, blocks_of
from mead.core.reasons import Timeout
from mead.core.result import Err
from mead.core.scope import Approval, ApprovalRequest
from mead.providers.protocol import Reply
from mead.settings import McpSettings
from mead.testing import ProviderRequest, ScriptedProvider, calls
from support import slots


class Bell:
    """A tool with a side effect that can be counted."""

    def __init__(self) -> None:
        self.rung: list[str] = []

        @mead.tool(effect=True)
        def ring(how: str, times: int = 1) -> str:
            "Rings the bell."
            self.rung.append(how)
            return f"rung {how}"

        self.tool = ring


def results(request: ProviderRequest) -> list[ToolResultBlock]:
    return [block for m in request.messages for block in blocks_of(m) if isinstance(block, ToolResultBlock)]


class Person:
    """Answers what is asked, in order."""

    def __init__(self, *answers: str, only: tuple[str, ...] | None = None) -> None:
        self.answers = list(answers)
        self.only = only
        self.asked: list[ApprovalRequest] = []

    async def __call__(self, request: ApprovalRequest) -> Approval:
        self.asked.append(request)
        return Approval(decision=self.answers.pop(0), only=self.only)  # type: ignore[arg-type]  # a word


async def run(
    provider: ScriptedProvider, bell: Bell, person: Person | None, turns: int = 1, **mcp: object
) -> list[mead.Answer]:
    settings = mead.Settings(mcp=McpSettings(**mcp))  # type: ignore[arg-type]  # by name
    async with mead.Runtime(settings, slots=slots(provider), tools=[bell.tool], approver=person) as opened:
        session_id = await opened.start_session()
        return [
            (await opened.submit_turn(session_id, "ring", route="local", tools="effect")).unwrap()
            for _ in range(turns)
        ]


async def test_h2_an_effect_call_is_asked_about_with_its_very_arguments() -> None:
    bell, person = Bell(), Person("once")
    provider = ScriptedProvider(calls("ring", how="loud"), "done")

    await run(provider, bell, person)

    (request,) = person.asked
    assert (request.tool, request.server, dict(request.arguments)) == ("ring", None, {"how": "loud"})
    assert "side effects" in request.because
    assert bell.rung == ["loud"]


@pytest.mark.parametrize("answer", ["no", "never"])
async def test_a_refused_call_is_not_run_and_the_model_is_told(answer: str) -> None:
    bell, person = Bell(), Person(answer)
    provider = ScriptedProvider(calls("ring", how="loud"), "a pity")

    (result,) = await run(provider, bell, person)

    assert bell.rung == []
    assert "no person approved it" in results(provider.requests[1])[0].content
    assert result.text == "a pity"


async def test_an_approval_is_consumed_by_its_call() -> None:
    bell, person = Bell(), Person("once", "no")
    provider = ScriptedProvider(calls("ring", how="loud"), calls("ring", how="loud"), "done")

    await run(provider, bell, person)

    assert bell.rung == ["loud"]
    assert len(person.asked) == 2


async def test_for_the_session_holds_for_equal_arguments_only() -> None:
    bell, person = Bell(), Person("session", "no")
    provider = ScriptedProvider(
        *[calls("ring", how="loud"), "one"],
        *[calls("ring", how="loud"), "two"],
        *[calls("ring", how="soft"), "3"],
    )

    await run(provider, bell, person, turns=3)

    assert bell.rung == ["loud", "loud"]
    assert [dict(request.arguments) for request in person.asked] == [{"how": "loud"}, {"how": "soft"}]


async def test_for_the_session_can_be_bound_to_some_arguments() -> None:
    bell, person = Bell(), Person("session", only=("how",))
    provider = ScriptedProvider(
        calls("ring", how="loud", times=1), calls("ring", how="loud", times=9), "done"
    )

    await run(provider, bell, person)

    assert bell.rung == ["loud", "loud"]


async def test_never_holds_for_the_whole_session_and_for_it_alone() -> None:
    bell, person = Bell(), Person("never", "once")
    provider = ScriptedProvider(
        *[calls("ring", how="a"), "one"], *[calls("ring", how="b"), "two"], *[calls("ring", how="c"), "three"]
    )
    async with mead.Runtime(slots=slots(provider), tools=[bell.tool], approver=person) as opened:
        first, second = await opened.start_session(), await opened.start_session()
        for session_id in (first, first, second):
            await opened.submit_turn(session_id, "ring", route="local", tools="effect")

    assert bell.rung == ["c"]
    assert len(person.asked) == 2


async def test_without_a_person_a_call_that_must_be_approved_is_denied() -> None:
    bell = Bell()
    provider = ScriptedProvider(calls("ring", how="loud"), "a pity")

    await run(provider, bell, None, approve="effect")

    assert bell.rung == []


async def test_without_a_person_and_unasked_the_turns_word_is_enough() -> None:
    bell = Bell()

    await run(ScriptedProvider(calls("ring", how="loud"), "done"), bell, None)

    assert bell.rung == ["loud"]


async def test_the_settings_can_switch_the_question_off() -> None:
    bell, person = Bell(), Person()

    await run(ScriptedProvider(calls("ring", how="loud"), "done"), bell, person, approve="off")

    assert bell.rung == ["loud"]


async def test_a_tool_that_only_reads_is_not_asked_about() -> None:
    @mead.tool(effect=False)
    def look() -> str:
        "Looks."
        return "seen"

    person = Person()
    provider = ScriptedProvider(calls("look"), "done")
    async with mead.Runtime(slots=slots(provider), tools=[look], approver=person) as opened:
        (await opened.submit_turn(await opened.start_session(), "x", route="local", tools="effect")).unwrap()

    assert person.asked == []


async def test_s3_the_clock_stands_still_while_a_person_is_asked() -> None:
    bell = Bell()
    deadlines: list[float | None] = []

    async def slow_person(request: ApprovalRequest) -> Approval:
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.1)
        return Approval(decision="once")

    def first(request: ProviderRequest) -> Reply:
        deadlines.append(request.options.deadline)
        return calls("ring", how="loud")

    def second(request: ProviderRequest) -> str:
        deadlines.append(request.options.deadline)
        return "done"

    async with mead.Runtime(
        slots=slots(ScriptedProvider(first, second)), tools=[bell.tool], approver=slow_person
    ) as opened:
        session_id = await opened.start_session(turn_timeout_s=0.06)
        result = await opened.submit_turn(session_id, "ring", route="local", tools="effect")

    assert result.unwrap().text == "done"
    assert deadlines[0] is not None
    assert deadlines[1] is not None
    assert deadlines[1] > deadlines[0] + 0.09


async def test_a_person_who_does_not_answer_in_time_has_said_no() -> None:
    bell = Bell()

    async def absent(request: ApprovalRequest) -> Approval:
        await asyncio.Event().wait()
        raise AssertionError

    settings = mead.Settings(mcp=McpSettings(approval_timeout_s=0.01))
    provider = ScriptedProvider(calls("ring", how="loud"), "a pity")
    async with mead.Runtime(settings, slots=slots(provider), tools=[bell.tool], approver=absent) as opened:
        session_id = await opened.start_session()
        answer = await opened.submit_turn(session_id, "ring", route="local", tools="effect")

    assert answer.unwrap().text == "a pity"
    assert bell.rung == []


async def test_the_clock_runs_again_after_the_answer() -> None:
    bell, person = Bell(), Person("once")

    async def hang(request: ProviderRequest) -> None:
        await asyncio.Event().wait()

    provider = ScriptedProvider(calls("ring", how="loud"), hang)
    async with mead.Runtime(slots=slots(provider), tools=[bell.tool], approver=person) as opened:
        session_id = await opened.start_session(turn_timeout_s=0.05)
        result = await opened.submit_turn(session_id, "ring", route="local", tools="effect")

    assert result == Err(Timeout())


async def test_two_calls_of_one_reply_are_asked_about_one_after_the_other() -> None:
    bell = Bell()
    asking = 0

    async def person(request: ApprovalRequest) -> Approval:
        nonlocal asking
        asking += 1
        assert asking == 1
        await asyncio.sleep(0)
        asking -= 1
        return Approval(decision="once")

    two = Reply(
        content=(ToolUseBlock("1", "ring", {"how": "a"}), ToolUseBlock("2", "ring", {"how": "b"})),
        stop_reason="tool_use",
    )
    async with mead.Runtime(
        slots=slots(ScriptedProvider(two, "done")), tools=[bell.tool], approver=person
    ) as opened:
        session_id = await opened.start_session()
        (await opened.submit_turn(session_id, "ring", route="local", tools="effect")).unwrap()

    assert sorted(bell.rung) == ["a", "b"]


async def test_whoever_reads_the_stream_can_be_the_person() -> None:
    bell = Bell()
    provider = ScriptedProvider(calls("ring", how="loud"), "done")
    async with mead.Runtime(slots=slots(provider), tools=[bell.tool]) as opened:
        session_id = await opened.start_session()
        seen: list[str] = []
        async for event in opened.stream_turn(session_id, "ring", route="local", tools="effect", asks=True):
            seen.append(type(event).__name__)
            if isinstance(event, mead.ApprovalNeeded):
                assert bell.rung == []
                event.answer(mead.Approval(decision="once"))
                event.answer(mead.Approval(decision="no"))  # the first answer counts

    assert seen == ["ApprovalNeeded", "ToolCalled", "ToolReturned", "Delta", "Finished"]
    assert bell.rung == ["loud"]


def test_a_sync_reader_can_be_the_person() -> None:
    bell = Bell()
    provider = ScriptedProvider(calls("ring", how="loud"), "done")
    with mead.SyncRuntime(lambda: mead.Runtime(slots=slots(provider), tools=[bell.tool])) as opened:
        session_id = opened.start_session()
        for event in opened.stream_turn(session_id, "ring", route="local", tools="effect", asks=True):
            if isinstance(event, mead.ApprovalNeeded):
                event.answer(mead.Approval(decision="once"))

    assert bell.rung == ["loud"]


async def test_cancelling_a_turn_that_waits_for_a_person_runs_nothing() -> None:
    bell = Bell()
    asked = asyncio.Event()

    async def thinking(request: ApprovalRequest) -> Approval:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    provider = ScriptedProvider(calls("ring", how="loud"), "next")
    async with mead.Runtime(slots=slots(provider), tools=[bell.tool], approver=thinking) as opened:
        session_id = await opened.start_session()
        task = asyncio.create_task(opened.submit_turn(session_id, "ring", route="local", tools="effect"))
        await asked.wait()
        await opened.cancel_turn(session_id)

        assert isinstance(await task, Err)
        assert bell.rung == []
        assert (
            await opened.submit_turn(session_id, "x", route="local", tools="none")
        ).unwrap().text == "next"


async def test_an_approver_that_raises_has_approved_nothing() -> None:
    bell = Bell()

    async def broken(request: ApprovalRequest) -> Approval:
        raise LookupError("a secret of the conversation")

    provider = ScriptedProvider(calls("ring", how="loud"), "a pity")
    async with mead.Runtime(slots=slots(provider), tools=[bell.tool], approver=broken) as opened:
        session_id = await opened.start_session()
        answer = (await opened.submit_turn(session_id, "ring", route="local", tools="effect")).unwrap()

    assert answer.text == "a pity"
    assert bell.rung == []


class Pusher:
    """A tool whose optional argument makes it dangerous."""

    def __init__(self) -> None:
        self.pushed: list[tuple[str, bool]] = []

        @mead.tool(effect=True)
        def push(branch: str, force: bool = False) -> str:
            "Pushes a branch."
            self.pushed.append((branch, force))
            return "pushed"

        self.tool = push


async def test_for_the_session_does_not_hold_for_a_call_with_one_more_argument() -> None:
    pusher, person = Pusher(), Person("session", "no")
    provider = ScriptedProvider(
        calls("push", branch="main"), calls("push", branch="main", force=True), "a pity"
    )
    async with mead.Runtime(slots=slots(provider), tools=[pusher.tool], approver=person) as opened:
        session_id = await opened.start_session()
        (await opened.submit_turn(session_id, "push", route="local", tools="effect")).unwrap()

    assert pusher.pushed == [("main", False)]
    assert [dict(request.arguments) for request in person.asked][1] == {"branch": "main", "force": True}


@pytest.mark.parametrize("only", [("hwo",), ("how", "when"), "how", ["how"], (1,)])
async def test_a_rule_that_names_no_arguments_of_the_call_holds_once(only: object) -> None:
    bell, person = Bell(), Person("session", "no", only=only)  # type: ignore[arg-type]  # that is the point
    provider = ScriptedProvider(calls("ring", how="loud"), calls("ring", how="soft"), "done")

    await run(provider, bell, person)

    assert bell.rung == ["loud"]
    assert len(person.asked) == 2


async def test_an_empty_rule_covers_every_call_of_the_tool() -> None:
    bell, person = Bell(), Person("session", only=())
    provider = ScriptedProvider(calls("ring", how="loud"), calls("ring", how="soft", times=2), "done")

    await run(provider, bell, person)

    assert bell.rung == ["loud", "soft"]
    assert len(person.asked) == 1


async def test_an_approver_that_returns_no_approval_has_approved_nothing() -> None:
    bell = Bell()

    async def careless(request: ApprovalRequest) -> Approval:
        return True  # type: ignore[return-value]  # that is the point

    provider = ScriptedProvider(calls("ring", how="loud"), "a pity")
    async with mead.Runtime(slots=slots(provider), tools=[bell.tool], approver=careless) as opened:
        session_id = await opened.start_session()
        answer = (await opened.submit_turn(session_id, "ring", route="local", tools="effect")).unwrap()

    assert answer.text == "a pity"
    assert bell.rung == []
