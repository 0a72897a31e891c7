"""The OpenAI-compatible door, through OpenAI's own library as it is, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import openai
import pytest

import mead
from mead.core.messages import (
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
)
from mead.core.options import Options, ResponseFormat
from mead.core.reasons import (
    HttpStatus,
    InvalidOptions,
    MalformedResponse,
    Reason,
    Timeout,
    ToolsUnsupported,
    Transport,
)
from mead.core.result import Ok, Result
from mead.core.usage import Usage
from mead.providers.protocol import OnDelta, Reply
from mead.router import Slot, Slots
from mead.serve import models as listing
from mead.serve import openai as door
from mead.serve.tokens import Tokens
from mead.testing import ProviderRequest, ScriptedProvider, calls
from serve.served import Serving, client_at
from support import runtime

ASK: list[Any] = [{"role": "user", "content": "hello"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
PNG = "iVBORw0KGgo="


class Hanging:
    """A step that never ends by itself."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.cancelled = threading.Event()

    async def __call__(self, request: ProviderRequest) -> str:
        self.started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return ""


class Halting(ScriptedProvider):
    """Streams a few words, and then `after`: a reason to fail with, or nothing any more."""

    def __init__(self, *pieces: str, after: Reason | None = None) -> None:
        super().__init__(otherwise="whole again")
        self._pieces = pieces
        self._after = after
        self.cancelled = threading.Event()

    async def converse_stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], options: Options, on_delta: OnDelta
    ) -> Result[Reply, Any]:
        for piece in self._pieces:
            on_delta(piece)
        if self._after is not None:
            return mead.Err(self._after)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return Ok(Reply(content=()))


@pytest.fixture
def client_of(serving: Serving) -> Callable[..., openai.OpenAI]:
    """A client of a server with this local model."""

    def made(local: ScriptedProvider, cloud: ScriptedProvider | None = None, **more: Any) -> openai.OpenAI:
        url = serving(runtime(local, cloud, **more), doors=[door.routes, listing.routes])
        return client_at(url)

    return made


ClientOf = Callable[..., openai.OpenAI]


def test_a_plain_answer(client_of: ClientOf) -> None:
    provider = ScriptedProvider(
        Reply(
            content=(TextBlock("Good day."),),
            usage=Usage(input_tokens=11, output_tokens=7, cached_tokens=3, reasoning_tokens=2),
        ),
        tools=False,
    )

    answer = client_of(provider).chat.completions.create(model="mead-local", messages=ASK)

    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.created > 1_700_000_000
    assert answer.model == "mead-local"
    [choice] = answer.choices
    assert (choice.index, choice.finish_reason, choice.message.role) == (0, "stop", "assistant")
    assert choice.message.content == "Good day."
    assert choice.message.tool_calls is None
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (11, 7, 18)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 3
    assert usage.completion_tokens_details is not None
    assert usage.completion_tokens_details.reasoning_tokens == 2


def test_tokens_that_nobody_counted_are_not_zero(client_of: ClientOf) -> None:
    provider = ScriptedProvider(Reply(content=(TextBlock("hi"),), usage=Usage()))

    answer = client_of(provider).chat.completions.create(model="mead-local", messages=ASK)

    assert answer.usage is None


def test_the_answer_says_where_it_comes_from(client_of: ClientOf) -> None:
    client = client_of(ScriptedProvider("hi", name="tiny"))

    raw = client.chat.completions.with_raw_response.create(model="mead-local", messages=ASK)

    assert raw.headers["x-mead-route"] == "local"
    assert raw.headers["x-mead-label"] == "local_only"
    assert raw.headers["x-mead-reasons"] == "forced"
    said = raw.parse().model_extra
    assert said is not None
    assert said["mead"]["route"] == "local"
    assert said["mead"]["provider"] == "tiny"
    assert [reason["code"] for reason in said["mead"]["reasons"]] == ["forced"]


def test_an_answer_that_the_limit_cut_off_says_so(client_of: ClientOf) -> None:
    provider = ScriptedProvider(Reply(content=(TextBlock("Once"),), stop_reason="max_tokens"))

    answer = client_of(provider).chat.completions.create(model="mead-local", messages=ASK, max_tokens=1)

    assert answer.choices[0].finish_reason == "length"


def test_a_streamed_answer(client_of: ClientOf) -> None:
    client = client_of(ScriptedProvider(["Good", " ", "day."]))

    chunks = list(client.chat.completions.create(model="mead-local", messages=ASK, stream=True))

    assert chunks[0].choices[0].delta.role == "assistant"
    texts = [chunk.choices[0].delta.content for chunk in chunks]
    assert [text for text in texts if text] == ["Good", " ", "day."]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, None, "stop"]
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)
    extra = chunks[-1].model_extra
    assert extra is not None
    assert extra["mead"]["route"] == "local"


def test_a_stream_tells_the_usage_at_its_end_where_it_is_asked_to(client_of: ClientOf) -> None:
    provider = ScriptedProvider(
        Reply(content=(TextBlock("hi"),), usage=Usage(input_tokens=5, output_tokens=2, cached_tokens=4))
    )

    chunks = list(
        client_of(provider).chat.completions.create(
            model="mead-local", messages=ASK, stream=True, stream_options={"include_usage": True}
        )
    )

    assert chunks[-1].choices == []
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 2, 7)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 4
    assert chunks[-2].choices[0].finish_reason == "stop"


def test_a_text_that_was_never_streamed_comes_whole(client_of: ClientOf) -> None:
    client = client_of(ScriptedProvider("all at once", streaming=False, tools=False))

    with client.chat.completions.stream(model="mead-local", messages=ASK) as stream:
        final = stream.get_final_completion()

    assert final.choices[0].message.content == "all at once"


async def test_the_asynchronous_client_too(serving: Serving) -> None:
    url = serving(runtime(ScriptedProvider("one", ["two", " three"])), doors=[door.routes, listing.routes])
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        plain = await client.chat.completions.create(model="mead-local", messages=ASK)
        stream = await client.chat.completions.create(model="mead-local", messages=ASK, stream=True)
        texts = [chunk.choices[0].delta.content or "" async for chunk in stream]

    assert plain.choices[0].message.content == "one"
    assert "".join(texts) == "two three"


async def test_many_requests_at_the_same_time(serving: Serving) -> None:
    def echo(request: ProviderRequest) -> str:
        return f"you said {request.messages[-1].content}"

    url = serving(runtime(ScriptedProvider(otherwise=echo)), doors=[door.routes, listing.routes])
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answers = await asyncio.gather(
            *[
                client.chat.completions.create(
                    model="mead-local", messages=[{"role": "user", "content": f"number {number}"}]
                )
                for number in range(40)
            ]
        )

    said = [answer.choices[0].message.content for answer in answers]
    assert said == [f"you said number {number}" for number in range(40)]


# Tools


def test_a_call_of_the_clients_tool_and_its_result(client_of: ClientOf) -> None:
    provider = ScriptedProvider(calls("weather", city="Oslo"), "It rains in Oslo.")
    client = client_of(provider)

    first = client.chat.completions.create(model="mead-local", messages=ASK, tools=[WEATHER])  # type: ignore[list-item]  # as JSON

    assert first.choices[0].finish_reason == "tool_calls"
    message = first.choices[0].message
    assert message.content is None
    assert message.tool_calls is not None
    [call] = message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}

    answer = client.chat.completions.create(
        model="mead-local",
        messages=[*ASK, message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}],
        tools=[WEATHER],  # type: ignore[list-item]  # as JSON
    )

    assert answer.choices[0].message.content == "It rains in Oslo."
    assert [tool.name for tool in provider.requests[0].tools] == ["weather"]
    assert provider.requests[0].tools[0].input_schema == WEATHER["function"]["parameters"]
    assert provider.requests[1].messages == [
        Message("user", "hello"),
        Message("assistant", (ToolUseBlock(call.id, "weather", {"city": "Oslo"}),)),
        Message("user", (ToolResultBlock(call.id, "rain"),)),
    ]


def test_several_calls_at_once_streamed(client_of: ClientOf) -> None:
    cities = ("Oslo", "Rome")
    asked = [ToolUseBlock(f"call_{city}", "weather", {"city": city}) for city in cities]
    provider = ScriptedProvider(Reply(content=(TextBlock("I look."), *asked), stop_reason="tool_use"), "Sun.")
    client = client_of(provider)

    with client.chat.completions.stream(model="mead-local", messages=ASK, tools=[WEATHER]) as stream:  # type: ignore[list-item]  # as JSON
        final = stream.get_final_completion()

    assert final.choices[0].finish_reason == "tool_calls"
    message = final.choices[0].message
    assert message.content == "I look."
    assert message.tool_calls is not None
    assert [json.loads(call.function.arguments)["city"] for call in message.tool_calls] == list(cities)
    brought: list[Any] = [
        *ASK,
        message.to_dict(exclude_unset=True),
        {"role": "tool", "tool_call_id": "call_Oslo", "content": "rain"},
        {"role": "tool", "tool_call_id": "call_Rome", "content": [{"type": "text", "text": "sun"}]},
    ]
    brought[1].pop("parsed", None)
    for call in brought[1]["tool_calls"]:
        call["function"].pop("parsed_arguments", None)

    client.chat.completions.create(model="mead-local", messages=brought, tools=[WEATHER])  # type: ignore[list-item]  # as JSON

    assert provider.requests[1].messages[-1].content == (
        ToolResultBlock("call_Oslo", "rain"),
        ToolResultBlock("call_Rome", "sun"),
    )


def test_a_call_whose_arguments_nobody_can_read_is_the_models_to_mend(client_of: ClientOf) -> None:
    broken = ToolUseBlock("call_1", "weather", {}, malformed='{"city": ')
    provider = ScriptedProvider(Reply(content=(broken,), stop_reason="tool_use"), "sorry")
    client = client_of(provider)

    first = client.chat.completions.create(model="mead-local", messages=ASK, tools=[WEATHER])  # type: ignore[list-item]  # as JSON

    assert first.choices[0].message.content == "sorry"
    assert not first.choices[0].message.tool_calls
    assert "not a JSON object" in provider.requests[1].text


@pytest.mark.parametrize(
    "choice, expected",
    [
        ("auto", None),
        ("required", "required"),
        ({"type": "function", "function": {"name": "weather"}}, "weather"),
    ],
)
def test_the_choice_of_a_tool(client_of: ClientOf, choice: Any, expected: str | None) -> None:
    provider = ScriptedProvider(otherwise="fine")

    client_of(provider).chat.completions.create(
        model="mead-local",
        messages=ASK,
        tools=[WEATHER],  # type: ignore[list-item]  # as JSON
        tool_choice=choice,
        parallel_tool_calls=False,
    )

    assert provider.requests[0].options.tool_choice == expected
    assert provider.requests[0].options.parallel_tools is False


def test_no_tool_is_shown_where_none_is_to_be_called(client_of: ClientOf) -> None:
    provider = ScriptedProvider(otherwise="fine")

    client_of(provider).chat.completions.create(
        model="mead-local",
        messages=ASK,
        tools=[WEATHER],  # type: ignore[list-item]  # as JSON
        tool_choice="none",
    )

    assert provider.requests[0].tools == ()


# What a request says


def test_options_reach_the_model(client_of: ClientOf) -> None:
    provider = ScriptedProvider("{}")

    client_of(provider).chat.completions.create(
        model="mead-local",
        messages=[
            {"role": "system", "content": "Be brief."},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            *ASK,
        ],
        max_completion_tokens=33,
        temperature=0.5,
        top_p=0.9,
        seed=-4,
        stop=["END", "STOP"],
        reasoning_effort="low",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": {"type": "object"}, "strict": True},
        },
        user="somebody",
        metadata={"team": "green"},
        store=False,
        n=1,
        logprobs=False,
        presence_penalty=0,
        frequency_penalty=0.0,
        service_tier="auto",
        extra_body={"top_k": 5},
    )

    options = provider.requests[0].options
    assert options.system == "Be brief.\n\nBe kind."
    assert options.max_tokens == 33
    assert (options.temperature, options.top_p, options.top_k, options.seed) == (0.5, 0.9, 5, -4)
    assert options.stop == ("END", "STOP")
    assert options.thinking == "low"
    assert options.response_format == ResponseFormat({"type": "object"}, "city")


@pytest.mark.parametrize("sent, expected", [("none", False), ("medium", "medium"), ("high", "high")])
def test_the_effort_of_thinking(client_of: ClientOf, sent: Any, expected: object) -> None:
    provider = ScriptedProvider("fine")

    client_of(provider).chat.completions.create(model="mead-local", messages=ASK, reasoning_effort=sent)

    assert provider.requests[0].options.thinking == expected


def test_an_answer_in_json(client_of: ClientOf) -> None:
    provider = ScriptedProvider('{"a": 1}')

    answer = client_of(provider).chat.completions.create(
        model="mead-local", messages=ASK, response_format={"type": "json_object"}
    )

    assert answer.choices[0].message.content == '{"a": 1}'
    assert provider.requests[0].options.response_format == ResponseFormat()


def test_images_and_files(client_of: ClientOf) -> None:
    provider = ScriptedProvider("a picture")
    parts: list[Any] = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}", "detail": "high"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
        {"type": "file", "file": {"filename": "b.txt", "file_data": "aGVsbG8="}},
    ]

    answer = client_of(provider).chat.completions.create(
        model="mead-local", messages=[{"role": "user", "content": parts}]
    )

    assert provider.requests[0].messages[0].content == (
        TextBlock("What is this?"),
        ImageBlock("image/png", b"\x89PNG\r\n\x1a\n"),
        DocumentBlock("application/pdf", b"%PDF", "a.pdf"),
        DocumentBlock("text/plain", b"hello", "b.txt"),
    )
    assert answer.model_extra is not None
    assert "detail" in answer.model_extra["mead"]["warnings"][0]


def test_a_long_history(client_of: ClientOf) -> None:
    provider = ScriptedProvider("the end")
    roles = ("user", "assistant")
    history: list[Any] = [{"role": roles[n % 2], "content": f"message {n}"} for n in range(199)]

    answer = client_of(provider).chat.completions.create(model="mead-local", messages=history)

    assert answer.choices[0].message.content == "the end"
    assert [message.content for message in provider.requests[0].messages] == [
        message["content"] for message in history
    ]


def test_a_session_keeps_the_history(client_of: ClientOf) -> None:
    provider = ScriptedProvider("first", ["sec", "ond"], "third")
    create = client_of(provider).chat.completions.with_raw_response.create

    first = create(model="mead-local", messages=ASK, extra_headers={"X-Mead-Session": "new"})
    session_id = first.headers["x-mead-session"]
    goes_on = {"X-Mead-Session": session_id}
    again: list[Any] = [
        *ASK,
        {"role": "assistant", "content": "never said"},
        {"role": "user", "content": "go on"},
    ]
    second = create(model="mead-local", messages=again, extra_headers=goes_on, stream=True)
    chunks = list(second.parse())
    create(model="mead-local", messages=ASK, extra_headers=goes_on)

    assert second.headers["x-mead-session"] == session_id
    assert chunks[-1].model_extra is not None
    assert chunks[-1].model_extra["mead"]["session"] == session_id
    assert [message.content for message in provider.requests[2].messages] == [
        "hello",
        "first",
        "go on",
        "second",
        "hello",
    ]


# What goes wrong


def failing(reason: Reason) -> ScriptedProvider:
    return ScriptedProvider(otherwise=reason)


@pytest.mark.parametrize(
    "reason, status, kind",
    [
        (InvalidOptions(detail="no such thing"), 400, openai.BadRequestError),
        (ToolsUnsupported(detail="none"), 400, openai.BadRequestError),
        (HttpStatus(status=429, retry_after_s=3), 429, openai.RateLimitError),
        (HttpStatus(status=529), 529, openai.InternalServerError),
        (HttpStatus(status=401), 502, openai.InternalServerError),
        (MalformedResponse(detail="nonsense"), 502, openai.InternalServerError),
        (Transport(cause="refused"), 502, openai.InternalServerError),
        (Timeout(), 504, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_turn_that_fails_raises_what_the_library_has_for_it(
    client_of: ClientOf, reason: Reason, status: int, kind: type[openai.APIStatusError], stream: bool
) -> None:
    client = client_of(failing(reason))

    with pytest.raises(kind) as caught:
        client.chat.completions.create(model="mead-local", messages=ASK, stream=stream)

    assert caught.value.status_code == status
    assert caught.value.code == reason.tag
    if isinstance(reason, HttpStatus) and reason.retry_after_s:
        assert caught.value.response.headers["retry-after"] == "3"


def test_a_private_turn_that_is_forced_to_the_cloud_is_forbidden(client_of: ClientOf) -> None:
    cloud = ScriptedProvider(otherwise="seen")
    secret: list[Any] = [{"role": "user", "content": "my card is 4111 1111 1111 1111"}]

    with pytest.raises(openai.PermissionDeniedError) as caught:
        client_of(ScriptedProvider(), cloud).chat.completions.create(model="mead-cloud", messages=secret)

    assert caught.value.code == "private_content"
    assert cloud.requests == []


def test_a_slot_that_is_empty_is_not_available(client_of: ClientOf) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client_of(ScriptedProvider()).chat.completions.create(model="mead-cloud", messages=ASK)

    assert (caught.value.status_code, caught.value.code) == (503, "cloud_unavailable")


def test_a_model_that_there_is_not_is_not_found(client_of: ClientOf) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client_of(ScriptedProvider()).chat.completions.create(model="gpt-5", messages=ASK)

    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    assert "mead-auto" in caught.value.message


def test_a_session_that_there_is_not_is_not_found(client_of: ClientOf) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client_of(ScriptedProvider()).chat.completions.create(
            model="mead-local", messages=ASK, extra_headers={"X-Mead-Session": "nobody"}
        )

    assert caught.value.code == "no_such_session"


def test_a_turn_that_crashes_says_nothing_of_its_text(client_of: ClientOf) -> None:
    provider = ScriptedProvider(RuntimeError("hello, this is quoted"))

    with pytest.raises(openai.InternalServerError) as caught:
        client_of(provider).chat.completions.create(model="mead-local", messages=ASK)

    assert (caught.value.status_code, caught.value.code) == (500, "crashed")
    assert "quoted" not in str(caught.value.body)


@pytest.mark.parametrize("reason", [Transport(cause="cut", detail="it broke off"), HttpStatus(status=500)])
def test_a_stream_that_breaks_off_raises(client_of: ClientOf, reason: Reason) -> None:
    client = client_of(Halting("Good", after=reason))
    heard: list[str | None] = []

    with pytest.raises(openai.APIError) as caught:
        stream = client.chat.completions.create(model="mead-local", messages=ASK, stream=True)
        heard.extend(chunk.choices[0].delta.content for chunk in stream)

    assert heard == ["", "Good"]
    assert caught.value.code == reason.tag


def test_a_token_is_asked_for(serving: Serving, tmp_path: Any) -> None:
    tokens = Tokens(tmp_path)
    _, text = tokens.create("mine", models=["mead-local"])
    _, other = tokens.create("metrics", scopes=["admin"])
    url = serving(runtime(ScriptedProvider("fine")), tokens, doors=[door.routes, listing.routes])

    def client(key: str) -> openai.OpenAI:
        return client_at(url, api_key=key)

    with pytest.raises(openai.AuthenticationError):
        client("wrong").chat.completions.create(model="mead-local", messages=ASK)
    with pytest.raises(openai.PermissionDeniedError):
        client(other).chat.completions.create(model="mead-local", messages=ASK)
    with pytest.raises(openai.PermissionDeniedError) as caught:
        client(text).chat.completions.create(model="mead-auto", messages=ASK)
    assert caught.value.param == "model"
    assert client(text).chat.completions.create(model="mead-local", messages=ASK).choices
    assert [model.id for model in client(text).models.list()] == ["mead-local"]


# Leaving early


def test_a_client_that_closes_its_stream_ends_the_call(client_of: ClientOf) -> None:
    provider = Halting("Good", " ")
    client = client_of(provider)

    stream = client.chat.completions.create(model="mead-local", messages=ASK, stream=True)
    assert next(iter(stream)).choices
    stream.close()

    assert provider.cancelled.wait(10)
    again = client.chat.completions.create(model="mead-local", messages=ASK)
    assert again.choices[0].message.content == "whole again"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_it_was_told_anything_ends_the_call(
    serving: Serving, stream: bool
) -> None:
    hanging = Hanging()
    url = serving(runtime(ScriptedProvider(hanging, "next")), doors=[door.routes, listing.routes])
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        asking = asyncio.ensure_future(
            client.chat.completions.create(model="mead-local", messages=ASK, stream=stream)
        )
        assert await asyncio.to_thread(hanging.started.wait, 10)
        asking.cancel()
        assert await asyncio.to_thread(hanging.cancelled.wait, 10)
        again = await client.chat.completions.create(model="mead-local", messages=ASK)

    assert again.choices[0].message.content == "next"


def test_a_model_that_takes_its_time_does_not_keep_the_stream_from_beginning(
    client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mead.serve.streams.PING_S", 0.01)
    hanging = Hanging()

    stream = client_of(ScriptedProvider(hanging)).chat.completions.create(
        model="mead-local", messages=ASK, stream=True
    )

    assert next(iter(stream)).choices[0].delta.role == "assistant"
    stream.close()
    assert hanging.cancelled.wait(10)


# Models


def test_the_models(serving: Serving) -> None:
    local = Slot(ScriptedProvider(), Options(model="tiny"), ("small",))
    cloud = Slot(ScriptedProvider(), Options(model="vendor/large"))
    url = serving(mead.Runtime(slots=Slots(local=local, cloud=cloud)), doors=[door.routes, listing.routes])
    client = client_at(url)

    names = [model.id for model in client.models.list()]

    assert names[:3] == ["mead-auto", "mead-local", "mead-cloud"]
    assert names[3:] == ["local/tiny", "local/small", "cloud/vendor/large"]
    for name in names:
        assert client.models.retrieve(name).id == name
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("local/huge")


def test_a_model_by_its_name(serving: Serving) -> None:
    provider = ScriptedProvider("fine")
    slots = Slots(local=Slot(provider, Options(model="tiny"), ("small",)))
    url = serving(mead.Runtime(slots=slots), doors=[door.routes, listing.routes])

    answer = client_at(url).chat.completions.create(model="local/small", messages=ASK)

    assert answer.model == "local/small"
    assert provider.requests[0].options.model == "small"
