"""What a cloud model would be sent of a history is looked through again (R16), each message once."""

from __future__ import annotations

import pytest

from mead.core.conversation import encode
from mead.core.messages import ImageBlock, Message, TextBlock, ToolResultBlock, ToolUseBlock
from mead.core.options import TurnOptions
from mead.core.result import Ok
from mead.core.turns import Cause, Finding, NoHub, Turn, Verdict
from mead.router import route
from mead.router.classifier import ClassifierInput
from mead.router.history import gated
from mead.testing import ScriptedProvider
from support import newest, past, slots


class Finds:
    """Finds the word *heron* private, and counts what it looks at."""

    def __init__(self) -> None:
        self.looked_at: list[str] = []

    def classify(self, turn: ClassifierInput) -> Verdict:
        return Verdict(route="cloud", private=False, causes=(Cause("test", "It is a test."),))

    def scan(self, text: str) -> list[Finding]:
        self.looked_at.append(text)
        return [Finding("word", 0, 5, "•••••")] if "heron" in text else []


def labels(turns: list[Turn], classifier: Finds | None = None) -> list[str]:
    return [turn.label for turn in gated(turns, classifier or Finds())]


def test_r16_a_shareable_turn_that_holds_something_private_is_withheld() -> None:
    asked = past("about the heron", "yes", route="cloud")
    answered = past("about a bird", "a heron", route="local")
    harmless = past("about a bird", "a duck", route="local")

    assert labels([asked, answered, harmless]) == ["local_only", "local_only", "shareable"]


def test_what_a_cloud_model_wrote_itself_is_no_secret_from_it() -> None:
    assert labels([past("name a bird", "a heron", route="cloud")]) == ["shareable"]


def test_r16_results_of_tools_are_looked_at_where_they_would_be_sent() -> None:
    messages = encode(
        [
            Message("user", "look"),
            Message("assistant", (ToolUseBlock("1", "look", {}),)),
            Message("user", (ToolResultBlock("1", "a heron"),)),
            Message("assistant", "something grey"),
        ]
    )

    assert labels([Turn(messages=messages, label="shareable", route="cloud")]) == ["local_only"]
    assert labels([Turn(messages=messages, label="shareable", route="local")]) == ["shareable"], "not sent"


def test_r16_a_picture_in_a_history_cannot_be_looked_into() -> None:
    messages = encode(
        [Message("user", (ImageBlock("image/png", b"x"), TextBlock("what?"))), Message("assistant", "?")]
    )

    assert labels([Turn(messages=messages, label="shareable", route="cloud")]) == ["local_only"]


def test_labels_only_rise() -> None:
    assert labels([past("hello", "ho", label="local_only")]) == ["local_only"]


def test_a_turn_that_is_added_costs_only_its_own_text() -> None:
    classifier = Finds()
    turns = [past(f"question {number}", "answer", route="cloud") for number in range(200)]
    gated(turns, classifier)
    assert len(classifier.looked_at) == 200

    gated([*turns, past("one more", "answer", route="cloud")], classifier)

    assert classifier.looked_at[200:] == ["one more"]


def test_another_classifier_looks_for_itself() -> None:
    turns = [past("about the heron", "yes")]
    blind, seeing = Finds(), Finds()
    blind.scan = lambda text: []  # type: ignore[method-assign]  # finds nothing

    assert labels(turns, blind) == ["shareable"]
    assert labels(turns, seeing) == ["local_only"]


@pytest.mark.parametrize("choice", ["auto", "cloud"])
async def test_r16_a_cloud_request_carries_nothing_that_is_private_by_now(choice: str) -> None:
    cloud = ScriptedProvider("fine")
    turns = [
        past("the heron plan", "yes", route="cloud"),
        past("hello", "ho", route="cloud"),
        newest("go on"),
    ]
    options = TurnOptions(route=choice)  # type: ignore[arg-type]  # one of the two words

    result = await route(turns, None, options, slots(ScriptedProvider(), cloud), NoHub(), classifier=Finds())

    assert isinstance(result, Ok)
    assert result.value.decision is not None
    assert result.value.decision.withheld == 1
    assert "heron" not in cloud.requests[0].text
    assert "hello" in cloud.requests[0].text
