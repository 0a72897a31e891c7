"""What the OpenAI-compatible door takes and refuses: nothing is dropped in silence, nothing crashes it."""

from __future__ import annotations

import copy
import gzip
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import SHARED
from mead.core.messages import Message, TextBlock, ToolResultBlock, ToolUseBlock
from mead.core.result import Ok
from mead.providers.protocol import Embeddings
from mead.serve import models as listing
from mead.serve import openai as door
from mead.testing import ScriptedProvider
from serve.served import Serving
from support import runtime

USER = {"role": "user", "content": "hello"}
VALID: dict[str, Any] = {"model": "mead-local", "messages": [USER]}
FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CALLING = {"role": "assistant", "tool_calls": [CALL]}
RECORDED = SHARED / "wire" / "vendor" / "openai_chat.jsonl.gz"

Post = Callable[[object], httpx.Response]


class Embedding(ScriptedProvider):
    """Makes embeddings too."""

    async def embed(self, texts: Any, options: Any) -> Any:
        return Ok(Embeddings(vectors=tuple([(0.5, -1.0) for _ in texts])))


@pytest.fixture
def provider() -> ScriptedProvider:
    return Embedding(otherwise="fine")


@pytest.fixture
def post(serving: Serving, provider: ScriptedProvider) -> Any:
    url = serving(runtime(provider, ScriptedProvider(otherwise="fine")), doors=[door.routes, listing.routes])
    with httpx.Client(base_url=url, trust_env=False) as client:

        def send(body: object, path: str = "/v1/chat/completions") -> httpx.Response:
            data = body if isinstance(body, bytes) else msgspec.json.encode(body)
            return client.post(path, content=data, headers={"content-type": "application/json"})

        yield send


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def image(url: str) -> dict[str, Any]:
    return user({"type": "image_url", "image_url": {"url": url}})


def file(**fields: str) -> dict[str, Any]:
    return user({"type": "file", "file": fields})


def saying(**fields: Any) -> dict[str, Any]:
    return {"messages": [USER, {"role": "assistant", "content": "hi", **fields}, USER]}


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": None}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{**USER, "colour": "red"}]}, "messages[0].colour"),
    ({"invented": 1}, "invented"),
    ({"n": 2}, "n"),
    ({"store": True}, "store"),
    ({"logprobs": True}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logit_bias": {"50256": -100}}, "logit_bias"),
    ({"presence_penalty": 0.5}, "presence_penalty"),
    ({"frequency_penalty": -1}, "frequency_penalty"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "ash", "format": "wav"}}, "audio"),
    ({"verbosity": "high"}, "verbosity"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"functions": [FUNCTION]}, "functions"),
    ({"function_call": "auto"}, "function_call"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"top_p": -0.1}, "top_p"),
    ({"seed": 2**70}, "seed"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_schema"}}, "response_format"),
    ({"stream_options": {"colour": True}}, "stream_options.colour"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools[0].function.name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "perhaps"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice.type"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "clock"}}},
        "tool_choice.function.name",
    ),
    ({"mead": {"tools": "all"}}, "mead.tools"),
    ({"mead": {"colour": "red"}}, "mead.colour"),
    ({"mead": {"tools": "effect"}}, "mead.tools"),
    ({"mead": {"timeout_s": 0}}, "mead.timeout_s"),
    ({"mead": {"tags": ["garden", "token:0123456789ab"]}}, "mead.tags"),
    (image("https://example.com/a.png"), "messages[0].content[0].image_url.url"),
    (image("file:///etc/passwd"), "messages[0].content[0].image_url.url"),
    (image("data:image/png;base64,???"), "messages[0].content[0].image_url.url"),
    (image("data:image/png;base64,"), "messages[0].content[0].image_url.url"),
    (image("data:text/html;base64,aGk="), "messages[0].content[0].image_url.url"),
    (file(file_id="file-1"), "messages[0].content[0].file.file_id"),
    (file(filename="a.pdf"), "messages[0].content[0].file.file_data"),
    (file(file_data="aGk="), "messages[0].content[0].file.file_data"),
    (
        user({"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}),
        "messages[0].content[0].input_audio",
    ),
    (user({"type": "video_url", "video_url": {"url": "x"}}), "messages[0].content[0].type"),
    (saying(function_call={"name": "f", "arguments": "{}"}), "messages[1].function_call"),
    (saying(audio={"id": "audio_1"}), "messages[1].audio"),
    (
        saying(tool_calls=[{"id": "1", "type": "custom", "custom": {"name": "x", "input": "y"}}]),
        "messages[1].tool_calls[0].type",
    ),
]


@pytest.mark.parametrize("changed, param", REFUSED)
def test_what_is_not_supported_is_refused_by_its_name(
    post: Post, provider: ScriptedProvider, changed: dict[str, Any], param: str
) -> None:
    answer = post({**VALID, **changed})

    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert provider.requests == []


TAKEN: list[dict[str, Any]] = [
    dict.fromkeys(
        (
            "n",
            "store",
            "logprobs",
            "logit_bias",
            "functions",
            "stream",
            "stop",
            "tools",
            "tool_choice",
            "seed",
        ),
        None,
    ),
    {"n": 1, "store": False, "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "modalities": ["text"]},
    {"presence_penalty": 0, "frequency_penalty": 0.0, "service_tier": "default", "verbosity": "medium"},
    {"user": "u", "safety_identifier": "s", "prompt_cache_key": "k", "prompt_cache_retention": "24h"},
    {"metadata": {"a": "b"}, "stream_options": {"include_usage": True, "include_obfuscation": False}},
    {"stop": "END", "response_format": {"type": "text"}, "max_tokens": 5, "max_completion_tokens": 5},
    {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True},
    {"tools": [{"type": "function", "function": {"name": "bare"}}], "parallel_tool_calls": False},
    {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    saying(refusal="no", annotations=[], audio=None, function_call=None, tool_calls=None),
    {"messages": [USER, {"role": "assistant", "content": None, "refusal": "I will not."}, USER]},
    {"messages": [USER, USER, {"role": "assistant", "content": ""}, USER]},
    {"messages": [USER, CALLING, {"role": "tool", "tool_call_id": "call_1", "content": "rain"}]},
    {"messages": [USER, CALLING, {"role": "tool", "tool_call_id": "another", "content": "rain"}, USER]},
    {"messages": [USER, {"role": "assistant", "tool_calls": [{**CALL, "index": 0}]}, USER]},
]


@pytest.mark.parametrize("changed", TAKEN)
def test_what_changes_nothing_is_taken(post: Post, changed: dict[str, Any]) -> None:
    answer = post({**VALID, **changed})

    assert answer.status_code == 200, answer.text
    assert answer.json()["mead"]["warnings"] == []


@pytest.mark.parametrize(
    "changed, word",
    [
        ({"messages": [{**USER, "name": "Ada"}]}, "names"),
        (saying(reasoning_content="hm"), "thought"),
        ({"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}]}, "strict"),
    ],
)
def test_what_is_not_passed_on_is_said(post: Post, changed: dict[str, Any], word: str) -> None:
    answer = post({**VALID, **changed})

    [warning] = answer.json()["mead"]["warnings"]
    assert word in warning


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'{"model": "mead-local"',
        b'{"model": "mead-local", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "mead-local", "messages": [{"role": "user", "content": "\xff"}]}',
        b"[" * 100_000,
        b'{"model":' + b"[" * 100_000,
        b'{"model": "mead-local", "messages": [{"role": "user", "content": "x"}], "temperature": 1e999}',
    ],
)
def test_a_body_that_is_no_request_is_refused(post: Post, body: bytes) -> None:
    answer = post(body)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_request"


def test_t3_a_wrong_value_is_not_quoted_where_it_could_be_a_text(post: Post) -> None:
    named = post({**VALID, "messages": [{"role": "robot", "content": "x"}]})
    text = post({**VALID, "messages": [{"role": "my secret - at `$.diary`", "content": "x"}]})

    assert "robot" in named.text
    assert "secret" not in text.text
    assert text.json()["error"]["param"] == "messages[0].role"


def test_a_conversation_with_nothing_to_answer_is_refused(post: Post) -> None:
    for messages in (
        [{"role": "system", "content": "Be brief."}],
        [USER, {"role": "assistant", "content": "Sure:"}],
        [{"role": "user", "content": "  "}],
        [{"role": "user", "content": []}],
    ):
        answer = post({**VALID, "messages": messages})
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_options"


@pytest.mark.parametrize(
    "arguments, expected",
    [
        (None, ToolUseBlock("call_1", "weather", {})),
        ("", ToolUseBlock("call_1", "weather", {})),
        ("null", ToolUseBlock("call_1", "weather", {})),
        ('{"a": [1]}', ToolUseBlock("call_1", "weather", {"a": [1]})),
        ("[1]", ToolUseBlock("call_1", "weather", {}, malformed="[1]")),
        ('{"a": ', ToolUseBlock("call_1", "weather", {}, malformed='{"a": ')),
        ("[" * 5000, ToolUseBlock("call_1", "weather", {}, malformed="[" * 5000)),
    ],
)
def test_arguments_in_the_history(
    post: Post, provider: ScriptedProvider, arguments: str | None, expected: ToolUseBlock
) -> None:
    call = {**CALL, "function": {"name": "weather", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}

    answer = post(
        {
            **VALID,
            "messages": [USER, {"role": "assistant", "content": "I look.", "tool_calls": [call]}, result],
        }
    )

    assert answer.status_code == 200, answer.text
    assert provider.requests[0].messages[1:] == [
        Message("assistant", (TextBlock("I look."), expected)),
        Message("user", (ToolResultBlock("call_1", "rain"),)),
    ]


@pytest.mark.wire
@pytest.mark.skipif(not RECORDED.exists(), reason="the recorded requests are not at hand")
def test_recorded_requests_are_taken_or_refused_with_a_reason(post: Post) -> None:
    statuses: Counter[int] = Counter()
    with gzip.open(RECORDED, "rt") as lines:
        for line in lines:
            request = msgspec.json.decode(line)["request"]
            answer = post({**request, "model": "mead-local"})
            statuses[answer.status_code] += 1
            if answer.status_code != 200:
                error = answer.json()["error"]
                assert answer.status_code == 400, answer.text
                assert error["message"]
                assert error["code"] == "invalid_options" or error["param"], error
    assert statuses[200] > sum(statuses.values()) / 2, statuses


# Whatever comes

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_BASES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {**VALID, **changed}) for changed in (*TAKEN, *[each for each, _ in REFUSED])
]
_BASES += [
    ("/v1/embeddings", {"model": "mead-local", "input": ["a", "b"], "encoding_format": "base64"}),
    ("/v1/embeddings", {"model": "mead-local", "input": "a", "dimensions": 3, "user": "u"}),
]
_FIELDS = sorted({name for _, base in _BASES for name in base})


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a JSON value."""
    inner: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    below = [places(item, (*path, key)) for key, item in inner]
    return [path, *itertools.chain.from_iterable(below)]


def test_no_request_makes_the_server_fail(post: Any) -> None:
    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        path, base = data.draw(st.sampled_from(_BASES))
        body: Any = copy.deepcopy(base)
        for _ in range(data.draw(st.integers(1, 3))):
            *way, last = data.draw(st.sampled_from([each for each in places(body) if each] or [("x",)]))
            where = body
            for key in way:
                where = where[key]
            match data.draw(st.sampled_from(["replace", "remove", "add"])):
                case "replace":
                    where[last] = data.draw(_JSON)
                case "remove":
                    del where[last]
                case "add":
                    body[data.draw(st.sampled_from(_FIELDS) | st.text(max_size=8))] = data.draw(_JSON)
            if not body:
                break

        answer = post(body, path)

        assert answer.status_code < 500, (answer.text, body)
        if answer.status_code >= 400:
            assert answer.json()["error"]["message"]

    check()
