"""The Anthropic-compatible door, as Anthropic's own Python library sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx2
import pytest

from mead.core.messages import DocumentBlock, ImageBlock, TextBlock, ToolResultBlock, ToolUseBlock
from mead.core.options import Options, ResponseFormat
from mead.core.reasons import (
    BudgetExceeded,
    ContextOverflow,
    HttpStatus,
    InvalidOptions,
    MalformedResponse,
    Reason,
    SlotBusy,
    Timeout,
)
from mead.core.usage import Usage
from mead.providers.protocol import Reply
from mead.serve.tokens import Tokens
from mead.testing import ScriptedProvider, calls
from serve.anthropic_client import Clients, document, picture, result, said, text, user
from serve.served import Serving
from support import runtime, two_models

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather in a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture
def client_of(serving: Serving) -> Iterator[Clients]:
    with Clients(serving) as clients:
        yield clients


# Answers


def test_a_message_is_answered_by_the_model_that_its_name_asks_for(client_of: Clients) -> None:
    client = client_of(runtime(*two_models()))

    local = client.messages.create(model="mead-local", max_tokens=9, messages=[user("hello")])
    cloud = client.messages.create(model="mead-cloud", max_tokens=9, messages=[user("hello")])

    assert (local.content[0].text, cloud.content[0].text) == ("from local", "from cloud")
    assert (local.role, local.type, local.model) == ("assistant", "message", "mead-local")
    assert local.id.startswith("msg_")
    assert local.id != cloud.id
    assert (local.stop_reason, local.stop_sequence) == ("end_turn", None)
    assert (cloud.mead["route"], cloud.mead["label"], cloud.mead["warnings"]) == ("cloud", "shareable", [])


def test_the_headers_tell_of_the_route(client_of: Clients) -> None:
    client = client_of(runtime(*two_models()))

    raw = client.messages.with_raw_response.create(model="mead-local", max_tokens=9, messages=[user("hi")])

    assert raw.headers["x-mead-route"] == "local"
    assert raw.headers["x-mead-label"] == "local_only"
    assert raw.headers["x-mead-reasons"] == "forced"


def test_usage_is_counted_as_anthropic_counts_it(client_of: Clients) -> None:
    usage = Usage(input_tokens=100, output_tokens=7, cached_tokens=60, cache_write_tokens=30)
    local = ScriptedProvider(otherwise=Reply(content=(TextBlock("x"),), stop_reason="end_turn", usage=usage))
    client = client_of(runtime(local))

    found = client.messages.create(model="mead-local", max_tokens=9, messages=[user("hi")]).usage
    with client.messages.stream(model="mead-local", max_tokens=9, messages=[user("hi")]) as stream:
        streamed = stream.get_final_message().usage

    counts = (found.input_tokens, found.cache_read_input_tokens, found.cache_creation_input_tokens)
    assert (*counts, found.output_tokens) == (10, 60, 30, 7)
    assert streamed == found


@pytest.mark.parametrize("streams_it", [False, True])
def test_an_answer_that_was_cut_off_says_so(client_of: Clients, streams_it: bool) -> None:
    cut = Reply(content=(TextBlock("Once upon"),), stop_reason="max_tokens", usage=Usage())
    client = client_of(runtime(ScriptedProvider(otherwise=cut)))
    asked: dict[str, Any] = {"model": "mead-local", "max_tokens": 2, "messages": [user("a story")]}

    if streams_it:
        with client.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(**asked)

    assert (answer.stop_reason, answer.content[0].text) == ("max_tokens", "Once upon")


def test_options_and_system_prompt_reach_the_model(client_of: Clients) -> None:
    local = ScriptedProvider(otherwise="{}")
    client = client_of(runtime(local))
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}

    client.messages.create(
        model="mead-local",
        max_tokens=77,
        system=[{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Rhyme."}],
        messages=[user("hi"), said("Hello."), {"role": "system", "content": "Now in prose."}, user("go on")],
        stop_sequences=["END"],
        thinking={"type": "adaptive"},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": schema}},
        extra_body={"temperature": 0.5, "top_p": 0.25, "top_k": 3},
    )

    given = local.requests[0].options
    wanted = Options(
        system="Be brief.\n\nRhyme.\n\nNow in prose.",
        max_tokens=77,
        temperature=0.5,
        top_p=0.25,
        top_k=3,
        stop=("END",),
        thinking="low",
        response_format=ResponseFormat(schema=schema),
    )
    assert {name: getattr(given, name) for name in _SET} == {name: getattr(wanted, name) for name in _SET}
    assert [message.content for message in local.requests[0].messages] == ["hi", "Hello.", "go on"]


_SET = (
    "system", "max_tokens", "temperature", "top_p", "top_k", "stop", "thinking", "response_format",
    "tool_choice", "parallel_tools",
)  # fmt: skip


@pytest.mark.parametrize(
    "thinking, effort, wanted",
    [
        (None, None, None),
        ({"type": "disabled"}, None, False),
        ({"type": "adaptive"}, None, True),
        ({"type": "enabled", "budget_tokens": 1024}, None, True),
        (None, "max", "high"),
    ],
)
def test_thinking_is_asked_for_in_meads_words(
    client_of: Clients, thinking: object, effort: str | None, wanted: object
) -> None:
    local = ScriptedProvider(otherwise="fine")
    client = client_of(runtime(local))
    asked: dict[str, Any] = {} if thinking is None else {"thinking": thinking}
    if effort is not None:
        asked["output_config"] = {"effort": effort}

    client.messages.create(model="mead-local", max_tokens=9, messages=[user("hi")], **asked)

    assert local.requests[0].options.thinking == wanted


def test_what_mead_makes_no_use_of_is_told_in_a_warning(client_of: Clients) -> None:
    local = ScriptedProvider(otherwise="fine")
    client = client_of(runtime(local))
    hint = {"type": "ephemeral"}

    answer = client.messages.create(
        model="mead-local",
        max_tokens=9,
        system=[{"type": "text", "text": "Be kind.", "cache_control": hint}],
        messages=[
            user("hi"),
            said([{"type": "thinking", "thinking": "", "signature": "c2ln"}, {"type": "text", "text": "Yo"}]),
            user("go on"),
        ],
        metadata={"user_id": "u-1"},
        thinking={"type": "enabled", "budget_tokens": 2048},
    )

    (warning,) = answer.mead["warnings"]
    for name in ("cache_control", "thinking blocks", "metadata.user_id", "thinking.budget_tokens"):
        assert name in warning
    assert local.requests[0].messages[1].content == "Yo", "nobody else's thoughts are passed on"


def test_a_long_history_comes_through(client_of: Clients) -> None:
    local = ScriptedProvider(otherwise="The last one.")
    client = client_of(runtime(local))
    history = [user(f"question {n}") if n % 2 == 0 else said(f"answer {n}") for n in range(200)]

    client.messages.create(model="mead-local", max_tokens=9, messages=[*history, user("and now?")])

    assert len(local.requests[0].messages) == 201
    assert local.requests[0].messages[199].content == "answer 199"


# Files


def test_r16_files_are_private_and_reach_the_local_model(client_of: Clients) -> None:
    local, cloud = two_models()
    client = client_of(runtime(local, cloud))
    letter = document("Dear Ann", title="letter.txt")

    answer = client.messages.create(
        model="mead-auto", max_tokens=9, messages=[user([picture(), letter, text("Look.")])]
    )
    with pytest.raises(anthropic.PermissionDeniedError):
        client.messages.create(model="mead-cloud", max_tokens=9, messages=[user([picture()])])

    assert (answer.mead["route"], answer.mead["label"]) == ("local", "local_only")
    assert local.requests[0].messages[0].content == (
        ImageBlock("image/png", b"hi"),
        TextBlock("letter.txt"),
        DocumentBlock("text/plain", b"Dear Ann"),
        TextBlock("Look."),
    )
    assert cloud.requests == []


def test_a_file_in_a_tools_result_stands_after_the_result(client_of: Clients) -> None:
    local = ScriptedProvider(otherwise="A cat.")
    client = client_of(runtime(local))

    client.messages.create(
        model="mead-local",
        max_tokens=9,
        messages=[
            user("What is on it?"),
            said([{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]),
            user([result("t1", [text("Here:"), picture()])]),
        ],
    )

    assert local.requests[0].messages[2].content == (
        ToolResultBlock("t1", "Here:"),
        ImageBlock("image/png", b"hi"),
    )


# Tools of the client


def test_a_client_runs_its_tools_and_brings_the_results(client_of: Clients) -> None:
    local = ScriptedProvider(calls("weather", _id="t1", city="Oslo"), "It rains in Oslo.")
    client = client_of(runtime(local))
    asked: dict[str, Any] = {"model": "mead-local", "max_tokens": 99, "tools": [WEATHER]}
    messages = [user("How is Oslo?")]

    first = client.messages.create(messages=messages, **asked)
    messages += [said(first.content), user([result(first.content[0].id, "rain", is_error=False)])]
    second = client.messages.create(messages=messages, **asked)

    assert first.stop_reason == "tool_use"
    assert (first.content[0].name, first.content[0].input) == ("weather", {"city": "Oslo"})
    assert second.content[0].text == "It rains in Oslo."
    assert [tool.name for tool in local.requests[0].tools] == ["weather"]
    assert local.requests[1].messages[1].content == (ToolUseBlock("t1", "weather", {"city": "Oslo"}),)
    assert local.requests[1].messages[2].content == (ToolResultBlock("t1", "rain"),)


def test_several_calls_at_once_are_streamed_whole(client_of: Clients) -> None:
    both = Reply(
        content=(
            TextBlock("Let me see."),
            ToolUseBlock("t1", "weather", {"city": "Oslo"}),
            ToolUseBlock("t2", "weather", {"city": "Rome", "days": [1, 2]}),
        ),
        stop_reason="tool_use",
        usage=Usage(input_tokens=1, output_tokens=1),
    )
    local = ScriptedProvider(both, "Rain, and sun.")
    client = client_of(runtime(local))
    asked: dict[str, Any] = {"model": "mead-local", "max_tokens": 99, "tools": [WEATHER]}

    with client.messages.stream(messages=[user("Oslo and Rome?")], **asked) as stream:
        final = stream.get_final_message()
    results = [result("t1", "rain"), result("t2", [{"type": "text", "text": "no"}], is_error=True)]
    answer = client.messages.create(messages=[user("?"), said(final.content), user(results)], **asked)

    assert [block.type for block in final.content] == ["text", "tool_use", "tool_use"]
    assert final.content[0].text == "Let me see."
    assert final.content[2].input == {"city": "Rome", "days": [1, 2]}
    assert final.stop_reason == "tool_use"
    assert answer.content[0].text == "Rain, and sun."
    assert local.requests[1].messages[-1].content == (
        ToolResultBlock("t1", "rain"),
        ToolResultBlock("t2", "no", is_error=True),
    )


@pytest.mark.parametrize(
    "choice, tool_choice, parallel, shown",
    [
        ({"type": "auto"}, None, None, 1),
        ({"type": "auto", "disable_parallel_tool_use": True}, None, False, 1),
        ({"type": "any"}, "required", None, 1),
        ({"type": "tool", "name": "weather"}, "weather", None, 1),
        ({"type": "none"}, None, None, 0),
    ],
)
def test_tool_choice_says_what_the_model_may_do(
    client_of: Clients, choice: object, tool_choice: str | None, parallel: bool | None, shown: int
) -> None:
    local = ScriptedProvider(otherwise="fine")
    client = client_of(runtime(local))

    client.messages.create(
        model="mead-local", max_tokens=9, messages=[user("hi")], tools=[WEATHER], tool_choice=choice
    )

    (request,) = local.requests
    assert (request.options.tool_choice, request.options.parallel_tools) == (tool_choice, parallel)
    assert len(request.tools) == shown


@pytest.mark.parametrize("streams_it", [False, True])
def test_a_call_that_nobody_can_read_is_not_handed_over(client_of: Clients, streams_it: bool) -> None:
    broken = ToolUseBlock("t1", "weather", {}, malformed='{"city": Oslo')
    reply = Reply(content=(broken,), stop_reason="tool_use", usage=Usage())
    provider = ScriptedProvider(reply, "sorry")
    client = client_of(runtime(provider))
    asked: dict[str, Any] = {
        "model": "mead-local",
        "max_tokens": 9,
        "messages": [user("hi")],
        "tools": [WEATHER],
    }

    if streams_it:
        with client.messages.stream(**asked) as stream:
            answer = stream.get_final_message()
    else:
        answer = client.messages.create(**asked)

    assert [block.type for block in answer.content] == ["text"]
    assert answer.stop_reason == "end_turn"
    assert "not a JSON object" in provider.requests[1].text


# Sessions


def test_a_session_goes_on_with_the_newest_message_alone(client_of: Clients) -> None:
    local = ScriptedProvider("Hello, Ann.", "You are Ann.")
    client = client_of(runtime(local))
    ask = client.messages.with_raw_response.create

    first = ask(
        model="mead-local",
        max_tokens=9,
        messages=[user("I am Ann.")],
        extra_headers={"x-mead-session": "new"},
    )
    session_id = first.headers["x-mead-session"]
    second = ask(
        model="mead-local",
        max_tokens=9,
        messages=[user("Who am I?")],
        extra_headers={"x-mead-session": session_id},
    )

    assert second.parse().mead["session"] == session_id
    assert [message.content for message in local.requests[1].messages] == [
        "I am Ann.",
        "Hello, Ann.",
        "Who am I?",
    ]


def test_a_streamed_session_is_told_in_the_header_and_at_the_end(client_of: Clients) -> None:
    client = client_of(runtime(ScriptedProvider(otherwise="fine")))

    with client.messages.create(
        model="mead-local",
        max_tokens=9,
        stream=True,
        messages=[user("hi")],
        extra_headers={"x-mead-session": "new"},
    ) as stream:
        header = stream.response.headers["x-mead-session"]
        (end,) = [event for event in stream if event.type == "message_delta"]

    assert end.mead["session"] == header != "new"


# Errors


@pytest.mark.parametrize(
    "reason, status, raised, kind",
    [
        (InvalidOptions(detail="no"), 400, anthropic.BadRequestError, "invalid_request_error"),
        (ContextOverflow(detail="long"), 400, anthropic.BadRequestError, "invalid_request_error"),
        (BudgetExceeded(detail="spent"), 402, anthropic.APIStatusError, "billing_error"),
        (SlotBusy(retry_after_s=2), 429, anthropic.RateLimitError, "rate_limit_error"),
        (HttpStatus(status=429, retry_after_s=2), 429, anthropic.RateLimitError, "rate_limit_error"),
        (HttpStatus(status=500), 502, anthropic.InternalServerError, "api_error"),
        (HttpStatus(status=529), 529, anthropic.InternalServerError, "overloaded_error"),
        (MalformedResponse(), 502, anthropic.InternalServerError, "api_error"),
        (Timeout(), 504, anthropic.InternalServerError, "timeout_error"),
    ],
    ids=lambda value: getattr(value, "tag", None),
)
def test_each_reason_is_an_exception_of_the_library(
    client_of: Clients, reason: Reason, status: int, raised: type[anthropic.APIStatusError], kind: str
) -> None:
    client = client_of(runtime(ScriptedProvider(otherwise=reason)))

    with pytest.raises(raised) as caught:
        client.messages.create(model="mead-local", max_tokens=9, messages=[user("hi")])

    error: Any = caught.value.body
    assert caught.value.status_code == status
    assert (error["type"], error["error"]["type"], error["error"]["code"]) == ("error", kind, reason.tag)
    if isinstance(reason, (SlotBusy, HttpStatus)) and reason.retry_after_s:
        assert caught.value.response.headers["retry-after"] == "2"


def test_a_slot_that_is_empty_is_unavailable(client_of: Clients) -> None:
    client = client_of(runtime(ScriptedProvider(otherwise="fine")))

    with pytest.raises(anthropic.APIStatusError) as caught:
        client.messages.create(model="mead-cloud", max_tokens=9, messages=[user("hi")])

    assert caught.value.status_code == 503


def test_tokens_are_asked_for_in_either_header(client_of: Clients, tmp_path: Any) -> None:
    tokens = Tokens(tmp_path)
    _, token = tokens.create("laptop")
    _, mute = tokens.create("metrics", scopes=("admin",))
    asked: dict[str, Any] = {"model": "mead-local", "max_tokens": 9, "messages": [user("hi")]}
    client = client_of(runtime(ScriptedProvider(otherwise="fine")), tokens, api_key=token)
    url = f"{client.base_url}/v1/messages"

    assert client.messages.create(**asked).content[0].text == "fine"
    assert httpx2.post(url, json=asked, headers={"x-api-key": token}).status_code == 200
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="mead_wrong").messages.create(**asked)
    with pytest.raises(anthropic.PermissionDeniedError):
        client.with_options(api_key=mute).messages.create(**asked)


# Counting and models


def test_a_prompt_is_counted_without_asking_anybody(client_of: Clients) -> None:
    local, cloud = two_models()
    client = client_of(runtime(local, cloud))
    long = "word " * 300

    short = client.messages.count_tokens(model="mead-cloud", messages=[user("hi")]).input_tokens
    counted = client.messages.count_tokens(model="mead-cloud", messages=[user(long)]).input_tokens
    told = client.messages.count_tokens(model="mead-cloud", system=long, messages=[user("hi")]).input_tokens
    tooled = client.messages.count_tokens(model="mead-cloud", tools=[WEATHER], messages=[user("hi")])
    shown = client.messages.count_tokens(model="mead-cloud", messages=[user([picture()])]).input_tokens

    assert 300 <= counted <= 600, "it is an estimate, and rarely too low"
    assert 300 <= told <= 600
    assert short < tooled.input_tokens < 100
    assert shown > 1000
    assert local.requests == cloud.requests == []


def test_models_are_listed_in_pages(client_of: Clients) -> None:
    client = client_of(runtime(*two_models()))

    page = client.models.list(limit=2)
    everything = [model.id for model in client.models.list(limit=2)]

    assert [model.id for model in page.data] == ["mead-auto", "mead-local"]
    assert everything == ["mead-auto", "mead-local", "mead-cloud"]
    assert client.models.retrieve("mead-cloud").type == "model"
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("mead-none")
