"""The checkers of requests: what is well-formed passes, each fault is found and named."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from mead.testing.wire import check_anthropic, check_ollama, check_openai

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}
Body = dict[str, Any]


def openai() -> Body:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
    return {
        "model": "m",
        "max_tokens": 5,
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [copy.deepcopy(FUNCTION)],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "content": ""},
            {"role": "assistant", "content": "Rain."},
            {"role": "user", "content": "And now?"},
        ],
    }


def anthropic() -> Body:
    use = {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Oslo"}}
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    return {
        "model": "m",
        "max_tokens": 5,
        "system": "Be brief.",
        "stop_sequences": ["END"],
        "tools": [{"name": "weather", "description": "d", "input_schema": SCHEMA}],
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": [thinking, {"type": "text", "text": "Let me see."}, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}, picture]},
            {"role": "assistant", "content": "Rain."},
            {"role": "user", "content": "And now?"},
        ],
    }


def ollama() -> Body:
    call = {"id": "a", "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    return {
        "model": "m",
        "stream": False,
        "options": {"num_ctx": 4096},
        "format": "json",
        "tools": [copy.deepcopy(FUNCTION)],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "", "images": ["aGk="]},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "tool_name": "weather", "content": ""},
            {"role": "assistant", "content": "Rain."},
            {"role": "user", "content": "And now?"},
        ],
    }


def test_well_formed_requests_pass() -> None:
    check_openai(openai())
    check_anthropic(anthropic())
    check_ollama(ollama())


def change(body: Body, path: str, value: Any) -> Body:
    """The body with one place changed; `path` is written with dots, a value of `...` takes the place away."""
    *steps, last = [int(step) if step.lstrip("-").isdigit() else step for step in path.split(".")]
    place: Any = body
    for step in steps:
        place = place[step]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return body


def faults(*rows: tuple[str, Any, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "path, value, words", rows, ids=[f"{path}={value!r}" for path, value, _ in rows]
    )


def expect_fault(check: Callable[[object], None], body: Body, words: str) -> None:
    with pytest.raises(AssertionError) as caught:
        check(body)
    assert words in str(caught.value)


@faults(
    ("model", "", "model is missing"),
    ("messages", [], "messages is missing or empty"),
    ("messages.0", "hi", "messages[0] is no message"),
    ("messages.0.role", "chief", "messages[0] is from 'chief'"),
    ("messages.0.content", " ", "messages[0].content"),
    ("messages.1.content", [], "messages[1].content is empty"),
    ("messages.1.content.0.text", "", "messages[1].content[0].text"),
    ("messages.1.content.0.type", "song", "unknown type 'song'"),
    ("messages.1.content.0", {"type": "image_url", "image_url": {}}, "has no address"),
    ("messages.1.content.0", {"type": "file"}, "has no file"),
    ("messages.2.tool_calls", [], "messages[2].tool_calls is empty"),
    ("messages.2.tool_calls", ..., "messages[2].content"),
    ("messages.2.tool_calls.0.id", "", "tool_calls[0].id is missing"),
    ("messages.2.tool_calls.0.type", ..., "is not a call of type function"),
    ("messages.2.tool_calls.0.function.name", "a b", "function.name is 'a b'"),
    ("messages.2.tool_calls.0.function.name", "x" * 65, "not 1 to 64"),
    ("messages.2.tool_calls.0.function.arguments", "", "arguments"),
    ("messages.2.tool_calls.0.function.arguments", {}, "arguments"),
    ("messages.2.tool_calls.0.function.arguments", "[1]", "arguments"),
    ("messages.3.tool_call_id", "b", "answers 'b'"),
    ("messages.3.content", None, "messages[3].content is not a text"),
    ("messages.3", ..., "messages[3] comes before the results of a"),
    ("messages.4", {"role": "tool", "tool_call_id": "a", "content": "x"}, "answers 'a'"),
    ("messages.4", {"role": "user", "content": "x"}, "messages[5] is from the user"),
    ("messages.4.role", "system", "messages[4] is from the system"),
    ("messages.5", ..., "is the last one"),
    ("messages.1", ..., "messages[1] is from the assistant"),
    ("tools", [], "tools is empty"),
    ("tools.0.type", "custom", "tools[0] is not of type function"),
    ("tools.0.function.parameters", {}, "is not a schema of type object"),
    ("tools.0.function.description", None, "description is not a text"),
    ("tools.0.function.name", "", "not 1 to 64"),
    ("tools", [FUNCTION, FUNCTION], "has 'weather' twice"),
    ("max_tokens", 0, "max_tokens is 0"),
    ("max_tokens", True, "max_tokens is True"),
    ("stream", False, "stream_options is set"),
)
def test_faults_of_a_chat_completions_request(path: str, value: Any, words: str) -> None:
    expect_fault(check_openai, change(openai(), path, value), words)


def test_a_tool_choice_needs_tools() -> None:
    for check, body in ((check_openai, openai()), (check_anthropic, anthropic())):
        body["tool_choice"] = "auto"
        check(body)
        expect_fault(check, change(body, "tools", ...), "tool_choice is set without tools")


@faults(
    ("max_tokens", ..., "max_tokens is None"),
    ("system", " ", "system is not a text"),
    ("system", [{"type": "text", "text": ""}], "system[0]"),
    ("stop_sequences", [" "], "stop_sequences[0]"),
    ("temperature", 1.0, "temperature is not taken"),
    ("messages.0.role", "tool", "is from 'tool'"),
    ("messages.0.content", "", "messages[0].content"),
    ("messages.0.content", [], "messages[0].content is empty"),
    ("messages.0.content", [{"text": "a"}], "is not a block with a type"),
    ("messages.1.content.0.signature", "", "signature is missing"),
    ("messages.1.content.1.text", "\n", "content[1].text"),
    ("messages.1.content.2.id", "a:b", "is 'a:b'"),
    ("messages.1.content.2.id", ..., "id is missing"),
    ("messages.1.content.2.name", "a.b", "is 'a.b'"),
    ("messages.1.content.2.input", "{}", "input is not an object"),
    ("messages.1.content", [{"type": "redacted_thinking", "data": "x"}], "ends with thinking"),
    ("messages.1.content", "Rain.", "answers 'a', which is no open call"),
    ("messages.2.content.0.tool_use_id", "b", "answers 'b'"),
    ("messages.2.content.0.content", [], "content is empty"),
    ("messages.2.content.0", ..., "comes before the results of a"),
    ("messages.2.content.1.source.data", "!", "is not base64"),
    ("messages.2.content.1.source.media_type", "", "media_type"),
    ("messages.2.content.1.source", None, "is not a source"),
    ("messages.3.content", [{"type": "thinking", "thinking": "x", "signature": "s"}], "ends with thinking"),
    ("messages.3.content", [{"type": "image", "source": {}}], "is a image from the assistant"),
    ("messages.3.content", [{"type": "tool_result", "tool_use_id": "a"}], "a tool result from the assistant"),
    ("messages.4.content", [{"type": "tool_use", "id": "b"}], "is a tool_use from the user"),
    ("messages.4", ..., "is the last one"),
    ("messages.3.role", "user", "messages[3] is from the user"),
    ("tools.0.name", "a b", "is 'a b'"),
    ("tools.0.input_schema", {"type": "string"}, "is not a schema of type object"),
    ("tools.0.description", None, "description is not a text"),
)
def test_faults_of_a_messages_request(path: str, value: Any, words: str) -> None:
    expect_fault(check_anthropic, change(anthropic(), path, value), words)


def test_results_stand_before_everything_else() -> None:
    body = anthropic()
    body["messages"][2]["content"].reverse()

    expect_fault(check_anthropic, body, "is a tool result behind other content")


@pytest.mark.parametrize(
    "make, check", [(openai, check_openai), (ollama, check_ollama), (anthropic, check_anthropic)]
)
def test_two_calls_never_share_an_id(make: Callable[[], Body], check: Callable[[object], None]) -> None:
    body = make()
    body["messages"][-1:] = [
        body["messages"][-1],
        *copy.deepcopy(body["messages"][-5:-1]),
        body["messages"][-1],
    ]

    expect_fault(check, body, "is 'a', which another call has already")


@faults(
    ("options", [], "options is not an object"),
    ("format", 7, "format is neither"),
    ("stream", "yes", "stream is neither"),
    ("messages.0.content", None, "messages[0].content is not a text"),
    ("messages.1.images", [], "messages[1] is empty"),
    ("messages.1.images", ["!"], "images[0] is not base64"),
    ("messages.2.tool_calls", [], "messages[2] is empty"),
    ("messages.2.tool_calls.0.id", ..., "id is missing"),
    ("messages.2.tool_calls.0.function.name", "", "function.name"),
    ("messages.2.tool_calls.0.function.arguments", "{}", "arguments is not an object"),
    ("messages.2.tool_calls.0.function", ..., "has no function"),
    ("messages.3.tool_name", "time", "tool_name is 'time'"),
    ("messages.3.tool_call_id", "b", "answers 'b'"),
    ("messages.4.role", "developer", "is from 'developer'"),
    ("messages.5", ..., "is the last one"),
    ("tools.0.function", None, "has no function"),
)
def test_faults_of_an_ollama_request(path: str, value: Any, words: str) -> None:
    expect_fault(check_ollama, change(ollama(), path, value), words)


@pytest.mark.parametrize("check", [check_openai, check_anthropic, check_ollama])
@pytest.mark.parametrize("body", [None, [], "text", 7])
def test_what_is_no_object_is_no_request(check: Callable[[object], None], body: object) -> None:
    expect_fault(check, body, "the body is not an object")  # type: ignore[arg-type]  # on purpose


def test_what_only_some_servers_insist_on_can_be_left_out() -> None:
    body = anthropic()
    body["messages"].append({"role": "user", "content": "again"})
    body["temperature"] = 1.0
    check_anthropic(body, strict=False)

    body = openai()
    body["messages"].append({"role": "user", "content": "again"})
    body["tools"].append({"type": "web_search"})
    check_openai(body, strict=False)

    body = ollama()
    body["messages"].append({"role": "user", "content": "again"})
    check_ollama(body, strict=False)
