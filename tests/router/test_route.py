"""A turn through the router: one call or the tool loop (R5–R11), one event (R13, R14), no state (R12)."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from mead import telemetry
from mead.core.messages import (
    Message,
    TextBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
    VendorBlock,
    blocks_of,
)
from mead.core.options import Options, TurnOptions
from mead.core.reasons import (
    CloudUnavailable,
    HttpStatus,
    MalformedResponse,
    MissingApiKey,
    Timeout,
    ToolLoopLimit,
    ToolsUnsupported,
    Transport,
)
from mead.core.result import Err, Ok
from mead.core.scope import CallRecord, NullScope
from mead.core.turns import Answer, Decision, NoHub, ToolOutput
from mead.core.usage import Usage, UsageTotal
from mead.mcp.functions import tool
from mead.mcp.hub import ToolHub
from mead.providers.protocol import Completion, Reply
from mead.router import Refused, explain, route
from mead.testing import ProviderRequest, ScriptedProvider, calls
from support import heard, newest, past, slots, two_models

TURNS = [newest("what time is it?")]
LOCAL = TurnOptions(route="local")
CLOUD = TurnOptions(route="cloud")


@tool(effect=False)
def clock(zone: str = "UTC") -> str:
    "Tells the time."
    return f"noon in {zone}"


@tool(effect=True)
def ring() -> str:
    "Rings the bell."
    return "rung"


@tool(effect=False)
def broken() -> str:
    "Fails."
    raise LookupError("no such thing")


HUB = ToolHub([clock, ring, broken])


async def answer(provider: ScriptedProvider, options: TurnOptions = LOCAL, hub: object = HUB) -> Answer:
    """The answer of a model that must give one."""
    result = await route(TURNS, None, options, slots(provider, provider), hub)  # type: ignore[arg-type]  # a hub
    assert isinstance(result, Ok), result
    return result.value


def results_in(request: ProviderRequest) -> list[ToolResultBlock]:
    return [b for m in request.messages for b in blocks_of(m) if isinstance(b, ToolResultBlock)]


def names_in(request: ProviderRequest) -> list[str]:
    return [tool.name for tool in request.tools]


# One call


@pytest.mark.parametrize("options", [LOCAL, CLOUD])
async def test_r05_without_visible_tools_a_turn_is_one_complete(options: TurnOptions) -> None:
    provider = ScriptedProvider("noon")

    result = await answer(provider, options, NoHub())

    assert result.text == "noon"
    assert [request.call for request in provider.requests] == ["complete"]
    assert result.messages.decode() == [Message("user", "what time is it?"), Message("assistant", "noon")]


async def test_r05_a_provider_that_cannot_converse_is_given_no_tools() -> None:
    provider = ScriptedProvider("noon", tools=False)

    await answer(provider)

    assert [(r.call, r.tools) for r in provider.requests] == [("complete", ())]


@pytest.mark.parametrize("options", [LOCAL, CLOUD])
async def test_r05_with_a_visible_tool_a_turn_is_a_loop_on_either_route(options: TurnOptions) -> None:
    provider = ScriptedProvider(calls("clock", zone="CET"), "it is noon")

    result = await answer(provider, options)

    assert result.text == "it is noon"
    assert [request.call for request in provider.requests] == ["converse", "converse"]
    assert results_in(provider.requests[1]) == [ToolResultBlock("call_clock", "noon in CET")]
    assert result.tool_calls == 1
    assert [message.role for message in result.messages.decode()] == ["user", "assistant"] * 2


class Deltas(NullScope):
    wants_deltas = True

    def __init__(self) -> None:
        self.texts: list[str] = []

    def delta(self, text: str) -> None:
        self.texts.append(text)


async def test_r05_a_streamed_turn_streams_where_the_provider_can() -> None:
    scope = Deltas()
    provider = ScriptedProvider(["it ", "is ", "noon"])

    await answer(provider, TurnOptions(route="local", stream=True, scope=scope), NoHub())

    assert provider.requests[0].call == "converse_stream"
    assert provider.requests[0].tools == ()
    assert scope.texts == ["it ", "is ", "noon"]


async def test_r05_otherwise_the_text_comes_as_one_delta() -> None:
    scope = Deltas()
    provider = ScriptedProvider(calls("clock"), "it is noon", streaming=False)

    await answer(provider, TurnOptions(route="local", stream=True, scope=scope))

    assert [request.call for request in provider.requests] == ["converse", "converse"]
    assert scope.texts == ["it is noon"]


# The loop


async def test_r06_after_eight_provider_calls_the_loop_ends_and_the_last_calls_are_not_run() -> None:
    rung: list[int] = []

    @tool(effect=True)
    def bell() -> str:
        "Rings."
        rung.append(1)
        return "rung"

    provider = ScriptedProvider(otherwise=calls("bell"))
    options = TurnOptions(route="local", tools="effect")

    result = await route(TURNS, None, options, slots(provider), ToolHub([bell]))

    assert isinstance(result, Err)
    assert isinstance(result.reason, ToolLoopLimit)
    assert len(provider.requests) == 8
    assert len(rung) == 7, "nobody would read the eighth result (D-35)"


async def test_d32_equal_ids_in_one_turn_are_told_apart() -> None:
    twice = Reply(
        content=(ToolUseBlock("a", "clock", {}), ToolUseBlock("a_2", "clock", {"zone": "CET"})),
        stop_reason="tool_use",
    )
    again = Reply(content=(ToolUseBlock("a", "clock", {"zone": "JST"}),), stop_reason="tool_use")
    provider = ScriptedProvider(twice, again, "done")

    result = await answer(provider)

    contents = [block.content for block in results_in(provider.requests[2])]
    ids = [block.tool_use_id for block in results_in(provider.requests[2])]
    assert contents == ["noon in UTC", "noon in CET", "noon in JST"]
    assert len(set(ids)) == 3
    assert result.tool_calls == 3


async def test_r06_several_calls_run_side_by_side_and_keep_their_order() -> None:
    both_running = asyncio.Barrier(2)

    @tool(effect=False)
    async def meet(name: str) -> str:
        "Waits for the other call."
        await both_running.wait()
        return name

    two = Reply(
        content=(ToolUseBlock("1", "meet", {"name": "first"}), ToolUseBlock("2", "meet", {"name": "second"})),
        stop_reason="tool_use",
    )
    provider = ScriptedProvider(two, "done")

    async with asyncio.timeout(5):
        await answer(provider, hub=ToolHub([meet]))

    assert [block.content for block in results_in(provider.requests[1])] == ["first", "second"]


@pytest.mark.parametrize(
    "call,said",
    [
        (calls("broken"), "LookupError"),
        (calls("clok"), "no tool named 'clok'"),
        (calls("ring"), "no tool named 'ring'"),
        (calls("clock", zone=5), "arguments do not fit"),
        (calls("clock", place="x"), "arguments do not fit"),
        (
            Reply(content=(ToolUseBlock("m", "clock", {}, malformed='{"zone": '),), stop_reason="tool_use"),
            "not a JSON object",
        ),
    ],
)
async def test_r07_whatever_goes_wrong_with_a_call_is_told_to_the_model(call: Reply, said: str) -> None:
    provider = ScriptedProvider(call, "I could not.")

    result = await answer(provider)

    (told,) = results_in(provider.requests[1])
    assert told.is_error
    assert said in told.content
    assert result.text == "I could not."


async def test_r07_d33_the_siblings_of_a_bad_call_still_run() -> None:
    mixed = Reply(
        content=(
            ToolUseBlock("1", "nothing", {}),
            ToolUseBlock("2", "clock", {}),
            ToolUseBlock("3", "clock", {}, malformed="{"),
        ),
        stop_reason="tool_use",
    )
    provider = ScriptedProvider(mixed, "done")

    await answer(provider)

    assert [(b.tool_use_id, b.is_error) for b in results_in(provider.requests[1])] == [
        ("1", True),
        ("2", False),
        ("3", True),
    ]


async def test_r09_no_call_runs_on_when_a_sibling_breaks_off() -> None:
    ended: list[str] = []

    class Breaking:
        async def tools_for(self, options: TurnOptions) -> list[Tool]:
            return [Tool("stop", None, {}), Tool("wait", None, {})]

        async def call_tool(self, name: str, arguments: object, options: TurnOptions) -> ToolOutput:
            if name == "stop":
                await asyncio.sleep(0)
                raise asyncio.CancelledError
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(name)
            raise AssertionError

    both = (ToolUseBlock("a", "stop", {}), ToolUseBlock("b", "wait", {}))
    provider = ScriptedProvider(Reply(content=both, stop_reason="tool_use"))
    turn = asyncio.create_task(route(TURNS, None, LOCAL, slots(provider), Breaking()))  # type: ignore[arg-type]  # a hub
    await asyncio.wait([turn])

    assert turn.cancelled()
    assert ended == ["wait"]


async def test_r07_a_hub_that_raises_fails_the_call_and_not_the_turn() -> None:
    class BrokenHub(NoHub):
        async def tools_for(self, options: TurnOptions) -> list[Tool]:
            return [Tool("x", None, {"type": "object"})]

        async def call_tool(self, name: str, input: dict[str, object], options: TurnOptions) -> ToolOutput:
            raise RuntimeError("the hub's own bug, with a secret")

    provider = ScriptedProvider(calls("x"), "done")

    await answer(provider, hub=BrokenHub())

    (told,) = results_in(provider.requests[1])
    assert told.is_error
    assert "secret" not in told.content


async def test_r08_tools_with_side_effects_are_shown_and_called_only_when_the_turn_opts_in() -> None:
    plain = ScriptedProvider(calls("ring"), "no")
    opted = ScriptedProvider(calls("ring"), "yes")
    hidden = ScriptedProvider("nothing")

    await answer(plain)
    await answer(opted, TurnOptions(route="local", tools="effect"))
    await answer(hidden, TurnOptions(route="local", tools="none"))

    assert names_in(plain.requests[0]) == ["clock", "broken"]
    assert results_in(plain.requests[1])[0].is_error
    assert names_in(opted.requests[0]) == ["clock", "ring", "broken"]
    assert results_in(opted.requests[1]) == [ToolResultBlock("call_ring", "rung")]
    assert hidden.requests[0].call == "complete"


async def test_r11_a_local_model_without_tool_support_fails_the_turn() -> None:
    provider = ScriptedProvider(ToolsUnsupported(detail="cannot"))

    result = await route(TURNS, None, LOCAL, slots(provider), HUB)

    assert result == Err(ToolsUnsupported(detail="cannot"))
    assert len(provider.requests) == 1, "it is not tried again without tools"


async def test_a_reply_cut_off_inside_a_call_is_an_answer_and_the_call_is_not_run() -> None:
    cut = Reply(
        content=(TextBlock("I will ring"), ToolUseBlock("r", "ring", {})),
        stop_reason="max_tokens",
        usage=Usage(input_tokens=3, output_tokens=4),
    )
    provider = ScriptedProvider(cut)

    result = await answer(provider, TurnOptions(route="local", tools="effect"))

    assert (result.text, result.stop_reason) == ("I will ring", "max_tokens")
    assert "not run" in result.warnings[0]
    assert result.messages.decode()[-1] == Message("assistant", "I will ring")


async def test_a_limit_that_cuts_an_answer_off_is_said() -> None:
    provider = ScriptedProvider(Completion(text="once upon", stop_reason="max_tokens", warnings=("short",)))

    result = await answer(provider, hub=NoHub())

    assert (result.stop_reason, result.text) == ("max_tokens", "once upon")


async def test_p5_opaque_blocks_go_back_to_the_model_within_a_loop_and_are_no_text() -> None:
    thinking = VendorBlock("v", msgspec.Raw(b'{"thinking":"hm"}'))
    reply = Reply(content=(thinking, ToolUseBlock("c", "clock", {})), stop_reason="tool_use")
    provider = ScriptedProvider(reply, Reply(content=(thinking, TextBlock("noon"))))

    result = await answer(provider)

    assert blocks_of(provider.requests[1].messages[1])[0] == thinking
    assert result.text == "noon"


# Usage and the ledger's brackets


class Brackets(NullScope):
    def __init__(self) -> None:
        self.log: list[tuple[str, object]] = []

    async def call_opened(self, call: CallRecord) -> None:
        self.log.append(("opened", call.number))

    async def call_closed(self, call: CallRecord, usage: Usage | None, status: str) -> None:
        self.log.append((status, usage))

    async def tool_started(self, call_id: str, name: str, *, effect: bool) -> None:
        self.log.append(("started", name))

    async def tool_finished(self, call_id: str, name: str, *, is_error: bool, unknown: bool = False) -> None:
        self.log.append(("finished", is_error))


async def test_l1_every_provider_call_is_bracketed_and_counted() -> None:
    scope = Brackets()
    first = Reply(
        content=(ToolUseBlock("c", "clock", {}),),
        stop_reason="tool_use",
        usage=Usage(input_tokens=100, output_tokens=5),
    )
    second = Reply(content=(TextBlock("noon"),), usage=Usage(input_tokens=140))
    provider = ScriptedProvider(first, second)

    result = await answer(provider, TurnOptions(route="local", scope=scope))

    assert result.usage == UsageTotal(input_tokens=240, output_tokens=5, provider_calls=2, unknown=True)
    assert scope.log == [
        ("opened", 1),
        ("ok", first.usage),
        ("started", "clock"),
        ("finished", False),
        ("opened", 2),
        ("ok", second.usage),
    ]


@pytest.mark.parametrize(
    "step,status",
    [(Timeout(), "timeout"), (KeyError("bug"), "crashed"), (asyncio.CancelledError(), "cancelled")],
)
async def test_l1_a_call_that_fails_is_closed_too(step: object, status: str) -> None:
    scope = Brackets()
    provider = ScriptedProvider(step)  # type: ignore[arg-type]  # a step
    options = TurnOptions(route="local", scope=scope)

    await asyncio.gather(route(TURNS, None, options, slots(provider), NoHub()), return_exceptions=True)

    assert scope.log == [("opened", 1), (status, None)]


@pytest.mark.parametrize(
    "step,unknown",
    [
        (Timeout(), True),
        (Timeout(limit="idle"), True),
        (Transport(cause="cut"), True),
        (MalformedResponse(), True),
        (asyncio.CancelledError(), True),
        (HttpStatus(status=500), False),
        (Transport(cause="refused"), False),
        (MissingApiKey(), False),
    ],
    ids=repr,
)
async def test_l1_r13_a_call_that_was_sent_and_failed_has_cost_nobody_knows_what(
    step: object, unknown: bool
) -> None:
    provider = ScriptedProvider(calls("clock"), step)  # type: ignore[arg-type]  # a step
    with heard(telemetry.ROUTE) as events:
        turn = route(TURNS, None, LOCAL, slots(provider), HUB)
        await asyncio.gather(turn, return_exceptions=True)

    (event,) = events
    assert event.metadata["tokens_unknown"] is unknown
    assert event.measurements["input_tokens"] == 1


# The event


async def test_t1_r13_one_event_tells_of_the_turn() -> None:
    provider = ScriptedProvider(calls("clock"), "noon", name="mine")
    with heard(telemetry.ROUTE) as events:
        await answer(provider, TurnOptions(route="local", session_id="s1"))

    (event,) = events
    assert {**event.measurements, "duration": 0, "deciding": 0} == {
        "duration": 0,
        "deciding": 0,
        "input_tokens": 2,
        "output_tokens": 2,
        "tool_calls": 1,
    }
    assert dict(event.metadata) == {
        "route": "local",
        "route_source": "forced",
        "provider": "mine",
        "status": "ok",
        "session_id": "s1",
        "turn": None,
        "owner": "local",
        "reason": None,
        "causes": "forced",
        "tokens_unknown": False,
        "withheld": 0,
        "withheld_results": 0,
        "left_out": 0,
    }
    duration = event.measurements["duration"]
    assert duration is not None
    assert duration > 0


async def test_t3_the_event_of_a_cancelled_turn_quotes_no_foreign_message() -> None:
    class Waiting(ScriptedProvider):
        async def complete(self, *_):  # type: ignore[no-untyped-def]  # it takes anything
            await asyncio.Event().wait()

    with heard(telemetry.ROUTE) as events:
        for message in ("Cancelled by the scope of SECRET", "shutting_down"):
            task = asyncio.create_task(route(TURNS, None, LOCAL, slots(Waiting()), NoHub()))
            await asyncio.sleep(0)
            task.cancel(message)
            with pytest.raises(asyncio.CancelledError):
                await task

    assert [event.metadata["reason"] for event in events] == ["cancelled", "shutting_down"]


async def test_r13_a_failure_an_empty_slot_and_a_cancel_have_their_event() -> None:
    failing = ScriptedProvider(HttpStatus(status=500))
    asked = asyncio.Event()

    async def wait_for_ever(request: ProviderRequest) -> None:
        asked.set()
        await asyncio.Event().wait()

    with heard(telemetry.ROUTE) as events:
        await route(TURNS, None, LOCAL, slots(failing), NoHub())
        await route(TURNS, None, CLOUD, slots(), NoHub())
        task = asyncio.create_task(route(TURNS, None, LOCAL, slots(ScriptedProvider(wait_for_ever)), NoHub()))
        await asked.wait()
        task.cancel("timeout")
        with pytest.raises(asyncio.CancelledError):
            await task

    assert [(e.metadata["status"], e.metadata["reason"]) for e in events] == [
        ("error", "http_status"),
        ("error", "cloud_unavailable"),
        ("error", "timeout"),
    ]
    assert events[1].metadata["provider"] is None
    assert all(e.measurements["input_tokens"] == 0 for e in events)


async def test_r14_a_provider_that_raises_emits_no_route_event() -> None:
    with heard(telemetry.ROUTE) as events:
        with pytest.raises(ZeroDivisionError):
            await route(TURNS, None, LOCAL, slots(ScriptedProvider(ZeroDivisionError())), NoHub())

    assert events == []


async def test_t3_d86_no_event_holds_text_or_arguments() -> None:
    provider = ScriptedProvider(calls("clock", zone="SECRET-ZONE"), "SECRET-ANSWER")
    with heard() as events:
        await route([newest("SECRET-QUESTION")], None, LOCAL, slots(provider), HUB)

    assert {event.name for event in events} == {telemetry.ROUTE, telemetry.PROVIDER_CALL, telemetry.TOOL_CALL}
    assert "SECRET" not in repr(events)


# State, R3, R15, R18


async def test_r03_an_empty_slot_sends_nothing_anywhere() -> None:
    local, cloud = two_models()

    for options, of in ((CLOUD, slots(local)), (LOCAL, slots(cloud=cloud))):
        assert isinstance(await route(TURNS, None, options, of, HUB), Err)

    assert (local.requests, cloud.requests) == ([], [])


async def test_r12_r15_the_same_turn_gives_the_same_again_and_given_slots_and_hub_are_all_it_uses() -> None:
    local, cloud = two_models()

    first = await route(TURNS, None, LOCAL, slots(local, cloud), HUB)
    second = await route(TURNS, None, LOCAL, slots(local, cloud), HUB)

    assert first == second
    assert local.requests[0].messages == local.requests[1].messages
    assert cloud.requests == []


async def test_s9_the_slots_options_are_under_the_turns() -> None:
    provider = ScriptedProvider(otherwise="ok")
    of = slots(provider, options=Options(temperature=0.9, max_tokens=50, system="be kind"))
    options = TurnOptions(route="local", options=Options(temperature=0.1))

    await route(TURNS, None, options, of, NoHub())

    sent = provider.requests[0].options
    assert (sent.temperature, sent.max_tokens, sent.system, sent.route) == (0.1, 50, "be kind", "local")


async def test_r18_explain_is_the_decision_that_the_turn_then_takes() -> None:
    local, cloud = two_models()
    of = slots(local, cloud)
    turns = [past("a", "b", label="local_only"), newest("hello")]

    explained = explain(turns, CLOUD, of, HUB)
    result = await route(turns, None, CLOUD, of, HUB)

    assert isinstance(explained, Decision)
    assert explained.withheld == 1
    assert explained.tools == ("clock", "broken")
    assert isinstance(result, Ok)
    assert result.value.decision == explained
    assert len(cloud.requests) == 1, "explaining sent nothing"


async def test_r18_what_is_not_known_yet_is_said_so_and_a_refusal_keeps_its_decision() -> None:
    class UnknownHub(NoHub):
        def known_tools(self, options: TurnOptions) -> None:
            return None

    local, _ = two_models()

    known = explain(TURNS, LOCAL, slots(local), UnknownHub())
    refused = explain(TURNS, CLOUD, slots(local), UnknownHub())

    assert isinstance(known, Decision)
    assert known.tools is None
    assert isinstance(refused, Refused)
    assert isinstance(refused.reason, CloudUnavailable)
    assert refused.decision.route == "cloud"
    assert local.requests == []
