"""`explain` and the turn itself decide by one function (R18): held together over random turns."""

from __future__ import annotations

import asyncio

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mead.core.options import RouteChoice, ToolChoice, TurnOptions
from mead.core.reasons import HttpStatus
from mead.core.result import Err, Ok
from mead.core.turns import Answer, Decision, Turn
from mead.mcp.functions import tool
from mead.mcp.hub import ToolHub
from mead.router import AutoClassifier, Refused, Slots, explain, route
from mead.settings import EscalationSettings
from mead.testing import ScriptedProvider
from support import newest, past, slots

TEXTS = st.sampled_from(
    [
        *("hello", "my card is 4012 8888 8888 1881", "[cloud] hello", "private: hello", "word " * 3_000),
        "Prove that there is no largest prime number, and determine how many primes lie under one hundred.",
        "SELECT name, salary FROM employees WHERE salary > 100000 ORDER BY salary",
    ]
)
HISTORY = st.lists(
    st.builds(
        past,
        TEXTS,
        st.sampled_from(["yes", "mail to ada@somewhere.org"]),
        label=st.sampled_from(["shareable", "local_only"]),
        route=st.sampled_from(["local", "cloud", None]),
    ),
    max_size=4,
)


@tool(effect=False)
def clock() -> str:
    "Tells the time."
    return "noon"


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    history=HISTORY,
    text=TEXTS,
    choice=st.sampled_from(["auto", "local", "cloud"]),
    tools=st.sampled_from([None, "none"]),
    allow_private=st.booleans(),
    context=st.sampled_from([None, 512, 100_000]),
    can_use_tools=st.booleans(),
    has_tools=st.booleans(),
    escalates=st.booleans(),
    filled=st.sampled_from(["both", "local", "cloud", "none"]),
)
def test_r18_what_is_explained_is_what_is_done(
    history: list[Turn],
    text: str,
    choice: RouteChoice,
    tools: ToolChoice,
    allow_private: bool,
    context: int | None,
    can_use_tools: bool,
    has_tools: bool,
    escalates: bool,
    filled: str,
) -> None:
    local = ScriptedProvider(otherwise="Fine.", name="l", context_tokens=context, tools=can_use_tools)
    cloud = ScriptedProvider(otherwise="Fine.", name="c")
    both = slots(
        local if filled in ("both", "local") else None, cloud if filled in ("both", "cloud") else None
    )
    options = TurnOptions(route=choice, tools=tools, allow_private=allow_private)
    turns = [*history, newest(text)]
    hub = ToolHub([clock] if has_tools else [])
    classifier = AutoClassifier()
    escalation = EscalationSettings(to="cloud" if escalates else None)

    told = explain(turns, options, both, hub, classifier=classifier, escalation=escalation)
    assert local.requests == cloud.requests == []
    done = asyncio.run(route(turns, None, options, both, hub, classifier=classifier, escalation=escalation))

    if isinstance(told, Refused):
        assert done == Err(told.reason)
        assert local.requests == cloud.requests == []
    elif isinstance(done, Ok):
        # A turn that is done asks for what an explanation can only say is not known.
        assert _of(done.value) == msgspec.structs.replace(told, not_known=())
    else:
        assert done.reason.tag == "context_overflow"
        assert not isinstance(done.reason, HttpStatus)


def test_r18_what_nobody_knows_yet_is_said_to_be_unknown() -> None:
    both = slots(ScriptedProvider(name="l"), ScriptedProvider(name="c"))
    known = slots(ScriptedProvider(name="l", context_tokens=100_000), ScriptedProvider(name="c"))

    def unknown(text: str, slots: Slots, **options: object) -> list[str]:
        told = explain([newest(text)], TurnOptions(**options), slots, ToolHub([]))  # type: ignore[arg-type]  # by name
        assert not isinstance(told, Refused)
        return [cause.code for cause in told.not_known]

    assert unknown("word " * 3_000, both) == ["context_not_known"]
    assert unknown("word " * 3_000, known) == []
    assert unknown("hello", both) == [], "it fits every context"
    assert unknown("cloud: " + "word " * 3_000, both) == [], "it does not matter"
    assert unknown("word " * 3_000, both, route="cloud") == []


def _of(answer: Answer) -> Decision:
    assert answer.decision is not None
    return answer.decision
