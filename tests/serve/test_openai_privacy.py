"""What was local stays so when a client brings it along: as history, or inside a prompt about it (R16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

import mead
from mead.serve import models as listing
from mead.serve import openai as door
from mead.testing import ScriptedProvider
from serve.served import Serving, client_at
from support import runtime

QUESTION = "Which of the three gardens behind the mill floods first when the river rises in early spring?"
ANSWER = (
    "The lowest of them, beside the old willow, stands under water two days before the others do, "
    "because its northern wall has had a gap since the storm."
)
CHAT: list[Any] = [
    {"role": "user", "content": QUESTION},
    {"role": "assistant", "content": ANSWER},
]
TRANSCRIPT = f"USER: {QUESTION}\nASSISTANT: {ANSWER}"
TASKS = {
    "title": (
        "### Job\nFind a short name, three to five words and one emoji, for the talk below.\n"
        '### Form\nJSON with one field: { "title": "..." }\n'
        f"### Talk\n<chat_history>\n{TRANSCRIPT}\n</chat_history>"
    ),
    "tags": (
        "### Job\nName one to three broad subjects of the talk, in its own language.\n"
        '### Form\nJSON: { "tags": ["...", "..."] }\n'
        f"### Talk\n<chat_history>\n{TRANSCRIPT}\n</chat_history>"
    ),
    "follow-up": (
        "### Job\nThink of three things that the person may want to ask next, in the person's words.\n"
        '### Form\nJSON: { "follow_ups": ["...", "...", "..."] }\n'
        f"### Talk\n<chat_history>\n{TRANSCRIPT}\n</chat_history>"
    ),
    "search": (
        "Think of search queries that would help with the last question.\n"
        f'History:\n"""\nUser: {QUESTION}\nAssistant: {ANSWER}\n"""\nQuery:'
    ),
}


class Served:
    """A server with a local model and a cloud model that keeps all that reaches it; what is not private goes
    to the cloud."""

    def __init__(self, serving: Serving) -> None:
        self.local = ScriptedProvider(ANSWER, otherwise='{"title": "Gardens"}', name="local")
        self.cloud = ScriptedProvider(otherwise="from the cloud", name="cloud")
        made = runtime(self.local, self.cloud, classifier=mead.AutoClassifier(cloud_share=1))
        url = serving(made, doors=[door.routes, listing.routes])
        self.client = client_at(url)

    def ask(self, model: str, *messages: Any, **more: Any) -> Any:
        return self.client.chat.completions.create(model=model, messages=list(messages), **more)


@pytest.fixture
def served(serving: Serving) -> Served:
    made = Served(serving)
    first = made.ask("mead-local", CHAT[0])
    assert first.choices[0].message.content == ANSWER
    return made


def route_of(answer: Any) -> str:
    return str(answer.model_extra["mead"]["route"])


def test_r16_what_is_not_private_goes_to_the_cloud(served: Served) -> None:
    answer = served.ask("mead-auto", {"role": "user", "content": "What is the capital of Norway?"})

    assert route_of(answer) == "cloud"
    assert len(served.cloud.requests) == 1


@pytest.mark.parametrize("task", TASKS)
def test_r16_a_prompt_about_a_local_chat_stays_local(served: Served, task: str) -> None:
    answer = served.ask("mead-auto", {"role": "user", "content": TASKS[task]})

    assert route_of(answer) == "local"
    assert answer.model_extra["mead"]["label"] == "local_only"
    assert served.cloud.requests == []


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("task", TASKS)
def test_r16_a_prompt_about_a_local_chat_cannot_be_forced_to_the_cloud(
    served: Served, task: str, stream: bool
) -> None:
    with pytest.raises(openai.PermissionDeniedError) as caught:
        served.ask("mead-cloud", {"role": "user", "content": TASKS[task]}, stream=stream)

    assert caught.value.code == "private_content"
    assert "willow" not in str(caught.value.body)
    assert served.cloud.requests == []


def test_r16_a_local_chat_that_goes_on_stays_local(served: Served) -> None:
    goes_on = [*CHAT, {"role": "user", "content": "And what is the capital of Norway?"}]

    answer = served.ask("mead-auto", *goes_on)
    with pytest.raises(openai.PermissionDeniedError):
        served.ask("mead-cloud", *goes_on)

    assert route_of(answer) == "local"
    assert served.cloud.requests == []


def as_system(text: str) -> list[Any]:
    return [
        {"role": "system", "content": f"What was said before: {text}"},
        {"role": "user", "content": "Go on."},
    ]


def as_result(text: str) -> list[Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return [
        {"role": "user", "content": "Look it up."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": text},
    ]


def as_argument(text: str) -> list[Any]:
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "note", "arguments": f'{{"text": "{text}"}}'},
    }
    return [
        {"role": "user", "content": "Write it down."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "done"},
    ]


def as_parts(text: str) -> list[Any]:
    half = len(text) // 2
    parts = [{"type": "text", "text": each} for each in (text[:half], text[half:])]
    return [{"role": "user", "content": parts}]


@pytest.mark.parametrize("wrapped", [as_system, as_result, as_argument, as_parts])
def test_r16_wherever_in_a_request_it_stands(served: Served, wrapped: Callable[[str], list[Any]]) -> None:
    answer = served.ask("mead-auto", *wrapped(ANSWER))
    with pytest.raises(openai.PermissionDeniedError):
        served.ask("mead-cloud", *wrapped(ANSWER))

    assert route_of(answer) == "local"
    assert served.cloud.requests == []


def test_r16_a_private_system_prompt_stays_local(served: Served) -> None:
    system = {"role": "system", "content": "The person's card is 4111 1111 1111 1111."}
    question = {"role": "user", "content": "What is the capital of Norway?"}

    answer = served.ask("mead-auto", system, question)
    with pytest.raises(openai.PermissionDeniedError):
        served.ask("mead-cloud", system, question)

    assert route_of(answer) == "local"
    assert served.cloud.requests == []


def test_r16_an_image_is_private_because_nobody_can_look_into_it(served: Served) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    question = {"role": "user", "content": [{"type": "text", "text": "What is this?"}, image]}

    assert route_of(served.ask("mead-auto", question)) == "local"
    with pytest.raises(openai.PermissionDeniedError):
        served.ask("mead-cloud", question)
    assert served.cloud.requests == []


def test_r16_a_persons_word_lets_it_through(served: Served) -> None:
    allowed = {"mead": {"allow_private": True}}

    answer = served.ask("mead-cloud", {"role": "user", "content": TASKS["title"]}, extra_body=allowed)

    assert route_of(answer) == "cloud"
    assert len(served.cloud.requests) == 1


def test_r16_text_of_a_local_session_stays_local_too(served: Served) -> None:
    session = {"X-Mead-Session": "new"}
    said = "My neighbour told me that the orchard on the hill will be sold to a brewery before the winter"
    served.ask("mead-local", {"role": "user", "content": said}, extra_headers=session)

    answer = served.ask("mead-auto", {"role": "user", "content": f"Shorten this: {said}"})

    assert route_of(answer) == "local"
    assert served.cloud.requests == []


def test_r16_a_sessions_system_prompt_is_looked_at_too(served: Served) -> None:
    session = {"X-Mead-Session": "new"}

    answer = served.ask("mead-auto", *as_system(ANSWER), extra_headers=session)
    with pytest.raises(openai.PermissionDeniedError):
        served.ask("mead-cloud", *as_system(ANSWER), extra_headers=session)

    assert route_of(answer) == "local"
    assert served.cloud.requests == []


def test_r16_what_a_client_sends_to_a_session_is_looked_at_as_in_a_request(served: Served) -> None:
    session = {"X-Mead-Session": "new"}
    prompt = {"role": "user", "content": TASKS["title"]}

    answer = served.ask("mead-auto", prompt, extra_headers=session)
    with pytest.raises(openai.PermissionDeniedError):
        served.ask("mead-cloud", prompt, extra_headers=session)
    with pytest.raises(openai.PermissionDeniedError):
        served.ask("mead-cloud", {"role": "user", "content": "hi"}, extra_headers=session, stop=[ANSWER])

    assert route_of(answer) == "local"
    assert served.cloud.requests == []
