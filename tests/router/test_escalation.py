"""Escalation after the attempt: off by default, of shareable auto turns only, visible, and accounted for."""

from __future__ import annotations

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mead.router
from mead import telemetry
from mead.core.messages import TextBlock
from mead.core.options import Options, ResponseFormat, TurnOptions
from mead.core.reasons import HttpStatus
from mead.core.result import Err, Ok
from mead.core.turns import Answer, Cause, Finding, NoHub, Turn, Verdict
from mead.core.usage import Usage
from mead.mcp.functions import tool
from mead.mcp.hub import ToolHub
from mead.providers.protocol import Reply
from mead.router import Refused, explain, route
from mead.router.classifier import ClassifierInput
from mead.router.escalate import agree, has_format, refuses
from mead.settings import EscalationSettings
from mead.testing import ScriptedProvider, calls
from support import Deltas, heard, newest, past, slots

ON = EscalationSettings(to="cloud")
REFUSES = "I'm sorry, but I can't help with that."
CUT = Reply(
    content=(TextBlock("It is n"),), stop_reason="max_tokens", usage=Usage(input_tokens=3, output_tokens=4)
)
SCHEMA = {"type": "object", "required": ["time"], "properties": {"time": {"type": "string"}}}


class Easy:
    """A classifier that keeps every turn local, and finds what holds the word *secret* private."""

    def classify(self, turn: ClassifierInput) -> Verdict:
        findings = [found for text in turn.texts for found in self.scan(text)]
        return Verdict(
            route="local",
            private=bool(findings),
            causes=(Cause("easy", "It is easy."),),
            findings=tuple(findings),
        )

    def scan(self, text: str) -> list[Finding]:
        return [Finding("word", 0, 6, "••••••")] if "secret" in text else []


async def ask(
    local: ScriptedProvider,
    cloud: ScriptedProvider | None,
    *,
    text: str = "what time is it?",
    earlier: list[Turn] = [],  # noqa: B006 - not changed
    settings: EscalationSettings = ON,
    hub: object = NoHub(),
    **options: object,
) -> Answer:
    turn = TurnOptions(**options)  # type: ignore[arg-type]  # by name
    result = await route(
        [*earlier, newest(text)],
        None,
        turn,
        slots(local, cloud),
        hub,  # type: ignore[arg-type]  # a hub
        classifier=Easy(),
        escalation=settings,
    )
    assert isinstance(result, Ok), result
    return result.value


def pair(first: object, *more: object) -> tuple[ScriptedProvider, ScriptedProvider]:
    return (
        ScriptedProvider(first, *more, name="small"),  # type: ignore[arg-type]  # a step
        ScriptedProvider(otherwise="It is noon.", name="large"),
    )


@pytest.mark.parametrize("first", [REFUSES, CUT], ids=["refusal", "cut_off"])
async def test_a_local_answer_that_is_no_good_is_followed_by_the_cloud_models(first: object) -> None:
    local, cloud = pair(first)

    answer = await ask(local, cloud)

    assert answer.text == "It is noon."
    assert answer.route == "cloud"
    assert answer.label == "shareable"
    assert answer.decision is not None
    assert answer.decision.causes[-1].code.startswith("escalated_")
    assert "cloud model's answer" in answer.warnings[-1]


async def test_an_answer_that_breaks_its_schema_escalates() -> None:
    local, cloud = pair('{"hour": 12}')
    cloud = ScriptedProvider('{"time": "noon"}', name="large")

    answer = await ask(local, cloud, options=Options(response_format=ResponseFormat(schema=SCHEMA)))

    assert json.loads(answer.text) == {"time": "noon"}


async def test_two_samples_that_disagree_escalate_only_where_that_is_wanted() -> None:
    wanted = EscalationSettings(to="cloud", when=("disagreement",))
    local, cloud = pair("It is 12.", "It is 9.")
    unasked, _ = pair("It is 12.")

    answer = await ask(local, cloud, settings=wanted)
    plain = await ask(unasked, cloud)

    assert answer.text == "It is noon."
    assert answer.usage.input_tokens == 3
    assert plain.text == "It is 12."
    assert len(unasked.requests) == 1


async def test_two_samples_that_agree_give_the_first() -> None:
    local, cloud = pair("It is 12.", "12, I think: 12")

    answer = await ask(local, cloud, settings=EscalationSettings(to="cloud", when=("disagreement",)))

    assert (answer.text, answer.usage.input_tokens) == ("It is 12.", 2)
    assert cloud.requests == []


async def test_r04_it_is_off_by_default() -> None:
    local, cloud = pair(REFUSES)

    answer = await ask(local, cloud, settings=EscalationSettings())

    assert answer.text == REFUSES
    assert cloud.requests == []


async def test_r04_a_turn_that_is_forced_local_never_escalates() -> None:
    local, cloud = pair(REFUSES)

    assert (await ask(local, cloud, route="local")).text == REFUSES
    assert cloud.requests == []


async def test_r04_a_private_turn_never_escalates() -> None:
    local, cloud = pair(REFUSES)

    assert (await ask(local, cloud, text="a secret")).label == "local_only"
    assert cloud.requests == []


async def test_r16_a_turn_that_was_shown_something_private_never_escalates() -> None:
    local, cloud = pair(REFUSES)

    assert (await ask(local, cloud, earlier=[past("hi", "ho", label="local_only")])).text == REFUSES
    assert cloud.requests == []


@tool(effect=False)
def clock() -> str:
    "Tells the time."
    return "noon"


async def test_r10_a_turn_that_has_called_a_tool_locally_never_escalates() -> None:
    local, cloud = pair(calls("clock"), REFUSES)

    assert (await ask(local, cloud, hub=ToolHub([clock]))).text == REFUSES
    assert cloud.requests == []


async def test_r16_an_answer_that_is_private_never_escalates() -> None:
    local, cloud = pair("I'm sorry, I can't tell the secret.")

    assert (await ask(local, cloud)).label == "local_only"
    assert cloud.requests == []


async def test_l1_both_calls_are_accounted_for_and_numbered() -> None:
    local, cloud = pair(CUT)
    scope = Deltas()

    with heard(telemetry.ROUTE) as events:
        answer = await ask(local, cloud, scope=scope)

    assert [(provider, status) for provider, _, status in scope.calls] == [("small", "ok"), ("large", "ok")]
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (4, 5)
    assert len(events) == 1
    assert events[0].metadata["route"] == "cloud"
    assert events[0].measurements["input_tokens"] == 4


async def test_a_stream_shows_one_answer_only() -> None:
    local, cloud = pair(REFUSES)
    kept, _ = pair(["It ", "is noon"])
    first, second = Deltas(), Deltas()

    await ask(local, cloud, stream=True, scope=first)
    await ask(kept, cloud, stream=True, scope=second)

    assert "".join(first.heard) == "It is noon."
    assert second.heard == ["It is noon"]


async def test_a_cloud_model_that_fails_leaves_the_local_answer() -> None:
    local, _ = pair(CUT)
    cloud = ScriptedProvider(HttpStatus(status=503), name="large")

    answer = await ask(local, cloud)

    assert (answer.text, answer.route) == ("It is n", "local")
    assert "http_status" in answer.warnings[-1]
    assert answer.usage.unknown or answer.usage.input_tokens == 3


async def test_a_stream_shows_nothing_of_a_cloud_answer_that_fails_midway() -> None:
    class Broken(ScriptedProvider):
        async def converse_stream(self, messages, tools, options, on_delta):  # type: ignore[no-untyped-def]  # as above it
            on_delta("Paris is ")
            return Err(HttpStatus(status=503))

    local, _ = pair(REFUSES)
    scope = Deltas()

    answer = await ask(local, Broken(name="large"), stream=True, scope=scope)

    assert answer.text == REFUSES
    assert scope.heard == [REFUSES]


async def test_a_cloud_model_that_takes_too_long_leaves_the_local_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # What is kept of the time is nearly all here, so that a slow machine is no failure.
    monkeypatch.setattr(mead.router, "_KEPT_S", 59.9)
    monkeypatch.setattr(mead.router, "_KEPT_SHARE", 1.0)

    class Slow(ScriptedProvider):
        async def converse_stream(self, *_):  # type: ignore[no-untyped-def]  # it takes anything
            await asyncio.Event().wait()

        complete = converse = converse_stream

    local, _ = pair(REFUSES)
    scope = Deltas()
    scope.deadline = asyncio.get_running_loop().time() + 60

    answer = await ask(local, Slow(name="large"), scope=scope)

    assert (answer.text, answer.route) == (REFUSES, "local")
    assert "timeout" in answer.warnings[-1]
    assert asyncio.get_running_loop().time() < scope.deadline


async def test_a_cloud_model_that_raises_leaves_the_local_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Raising(ScriptedProvider):
        async def complete(self, *_):  # type: ignore[no-untyped-def]  # it takes anything
            raise RuntimeError("what time" + " is it?")

    local, _ = pair(REFUSES)

    answer = await ask(local, Raising(name="large"))

    assert (answer.text, answer.route) == (REFUSES, "local")
    assert "crashed" in answer.warnings[-1]
    assert "crashed with RuntimeError" in caplog.text
    assert "what time is it?" not in caplog.text


async def test_without_a_cloud_model_nothing_escalates() -> None:
    local, _ = pair(REFUSES)

    assert (await ask(local, None)).text == REFUSES


def test_r18_an_explanation_says_that_a_turn_may_escalate() -> None:
    local, cloud = pair(REFUSES)
    turns = [newest("what time is it?")]

    def explained(settings: EscalationSettings, options: TurnOptions) -> bool:
        found = explain(turns, options, slots(local, cloud), NoHub(), classifier=Easy(), escalation=settings)
        assert not isinstance(found, Refused)
        return found.may_escalate

    assert explained(ON, TurnOptions())
    assert not explained(EscalationSettings(), TurnOptions())
    assert not explained(ON, TurnOptions(route="local"))


@pytest.mark.parametrize(
    "text",
    [
        REFUSES,
        "I don't know.",
        "As an AI language model, I",
        "",
        "Ich kann das leider nicht.",
        "抱歉，我无法回答",
    ],
)
def test_refusals_are_known_by_their_beginning(text: str) -> None:
    assert refuses(text)


@pytest.mark.parametrize("text", ["You cannot divide by zero.", "Paris.", "Say: it is impossible to know."])
def test_an_answer_about_what_cannot_be_is_none(text: str) -> None:
    assert not refuses(text)


def test_a_format_is_checked_against_its_schema() -> None:
    assert has_format('{"time": "noon"}', SCHEMA)
    assert not has_format('{"time": 12}', SCHEMA)
    assert not has_format("noon", SCHEMA)
    assert has_format("{}", None)
    assert not has_format("[]", None)
    assert has_format("1", {"type": "no such type"})


@given(st.text())
def test_every_answer_agrees_with_itself(text: str) -> None:
    assert agree(text, text) or not text.strip() or not any(ch.isalnum() or ch == "_" for ch in text)
