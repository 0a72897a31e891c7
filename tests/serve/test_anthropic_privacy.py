"""What was local stays local, also where an Anthropic client brings it back (R16)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import anthropic
import pytest

from mead.core.options import Route
from mead.core.turns import Finding, Verdict
from mead.router.classifier import ClassifierInput
from mead.serve import anthropic as door
from mead.testing import ScriptedProvider
from serve.anthropic_client import document, picture, result, said, text, user
from serve.served import Serving
from support import runtime

SECRET = "I have asked the bank on Tuesday whether it could wait for the rate of May until the end of June."
ADVICE = "Then write to the bank, name the old mill as a security, and offer half of it before the summer."


class OnlyKnown:
    """Takes for private what is known to be so, and nothing else; all that is not goes to the cloud."""

    def classify(self, turn: ClassifierInput) -> Verdict:
        private = bool(turn.known_private) or bool(turn.unreadable)
        route: Route = "local" if private else "cloud"
        return Verdict(route=route, private=private, score=0.0, causes=(), findings=turn.known_private)

    def scan(self, text: str) -> Sequence[Finding]:
        return ()


class House(NamedTuple):
    client: anthropic.Anthropic
    local: ScriptedProvider
    cloud: ScriptedProvider

    def ask(self, model: str, *messages: Any, **fields: Any) -> Any:
        return self.client.messages.create(model=model, max_tokens=99, messages=list(messages), **fields)


@pytest.fixture
def house(serving: Serving) -> Iterator[House]:
    """Two models, of which the cloud one is asked whenever that is allowed. A local turn was answered."""
    local, cloud = ScriptedProvider(otherwise=ADVICE), ScriptedProvider(otherwise="Nice.")
    url = serving(runtime(local, cloud, classifier=OnlyKnown()), doors=(door.routes,))
    with anthropic.Anthropic(base_url=url, api_key="any", max_retries=0) as client:
        made = House(client, local, cloud)
        assert made.ask("mead-local", user(SECRET)).content[0].text == ADVICE
        yield made


CALL = {"type": "tool_use", "id": "c1", "name": "note", "input": {}}


BROUGHT = {
    "the history": [user(SECRET), said(ADVICE), user("And then?")],
    "the answer alone": [user("hello"), said([text(ADVICE)]), user("And then?")],
    "a quotation": [user(f"Make a title for this: {ADVICE}")],
    "a call": [user("hello"), said([{**CALL, "input": {"a": [SECRET]}}]), user([result("c1", "done")])],
    "a result": [user("hello"), said([CALL]), user([result("c1", SECRET)])],
    "a result in blocks": [user("hello"), said([CALL]), user([result("c1", [text("Here:"), text(SECRET)])])],
    "a document": [user([document(SECRET), text("Sum it up.")])],
    "a document's title": [user([document("Nothing.", title=SECRET), text("Sum it up.")])],
    "a document's context": [user([document("Nothing.", context=SECRET), text("Sum it up.")])],
}


@pytest.mark.parametrize("where", BROUGHT)
def test_r16_what_was_local_stays_local_on_auto(house: House, where: str) -> None:
    answer = house.ask("mead-auto", *BROUGHT[where])

    assert (answer.mead["route"], answer.mead["label"]) == ("local", "local_only")
    assert house.cloud.requests == []


@pytest.mark.parametrize("where", BROUGHT)
@pytest.mark.parametrize("streams", [False, True])
def test_r16_what_was_local_is_refused_where_the_cloud_is_demanded(
    house: House, where: str, streams: bool
) -> None:
    with pytest.raises(anthropic.PermissionDeniedError) as caught:
        house.ask("mead-cloud", *BROUGHT[where], stream=streams)

    error: Any = caught.value.body
    assert error["error"]["code"] == "private_content"
    assert house.cloud.requests == []


def test_what_was_never_local_goes_to_the_cloud(house: House) -> None:
    answer = house.ask("mead-auto", user("Which birds stand on one leg?"), said("Storks."), user("Why?"))

    assert answer.mead["route"] == "cloud"
    assert len(house.cloud.requests) == 1


def test_r16_thoughts_that_a_client_brings_go_nowhere(house: House) -> None:
    thought = {"type": "thinking", "thinking": SECRET, "signature": "c2ln"}
    hidden = {"type": "redacted_thinking", "data": "aGlkZGVu"}

    answer = house.ask("mead-cloud", user("hello"), said([thought, hidden, text("Hi.")]), user("Go on."))

    (request,) = house.cloud.requests
    assert "thinking" in answer.mead["warnings"][0]
    assert [message.content for message in request.messages] == ["hello", "Hi.", "Go on."]


@pytest.mark.parametrize("where", ["the message", "a tool's result"])
def test_r16_a_picture_stays_local(house: House, where: str) -> None:
    messages = (
        [user([picture()])]
        if where == "the message"
        else [user("x"), said([CALL]), user([result("c1", [picture()])])]
    )

    assert house.ask("mead-auto", *messages).mead["route"] == "local"
    with pytest.raises(anthropic.PermissionDeniedError):
        house.ask("mead-cloud", *messages)
    assert house.cloud.requests == []


def test_private_content_is_sent_only_by_an_explicit_word(house: House) -> None:
    answer = house.ask("mead-cloud", user(SECRET), extra_body={"mead": {"allow_private": True}})

    assert answer.mead["route"] == "cloud"
    assert len(house.cloud.requests) == 1
