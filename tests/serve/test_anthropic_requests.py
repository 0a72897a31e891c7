"""What Anthropic's clients may send: each request is answered, or refused with a sentence that names why."""

from __future__ import annotations

import copy
import gzip
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import SHARED
from mead.core.messages import TextBlock
from mead.core.usage import Usage
from mead.providers.protocol import Reply
from mead.serve import anthropic as door
from mead.testing import ScriptedProvider
from serve.served import Serving
from support import runtime

VENDOR = SHARED / "wire" / "vendor"
USER = {"role": "user", "content": "hi"}
TOOL = {"name": "t", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "c1", "name": "t", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "done"}


@pytest.fixture
def post(serving: Serving) -> Iterator[Callable[..., httpx2.Response]]:
    """Sends a body, of which what it says is laid over a small valid one."""
    url = serving(runtime(_answers(), _answers()), doors=(door.routes,))
    with httpx2.Client(base_url=url) as client:

        def send(**fields: Any) -> httpx2.Response:
            body = {"model": "mead-local", "max_tokens": 9, "messages": [USER], **fields}
            return client.post("/v1/messages", json=body)

        yield send


def _answers() -> ScriptedProvider:
    return ScriptedProvider(
        otherwise=Reply(content=(TextBlock("ok"),), stop_reason="end_turn", usage=Usage())
    )


def blocks(*content: object, role: str = "user") -> list[dict[str, Any]]:
    return [{"role": role, "content": list(content)}]


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source}


def document(source: Any, **fields: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **fields}


PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}
TEXT = {"type": "text", "media_type": "text/plain", "data": "hello"}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "9"}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"temperature": 1.5}, "temperature"),
    ({"top_p": -1}, "top_p"),
    ({"stop_sequences": [""]}, "stop_sequences[0]"),
    ({"foo": 1}, "foo"),
    ({"container": "c-1"}, "container"),
    ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers"),
    ({"context_management": {"edits": [{"type": "clear"}]}}, "context_management"),
    ({"service_tier": "standard_only"}, "service_tier"),
    ({"speed": "fast"}, "speed"),
    ({"inference_geo": "eu"}, "inference_geo"),
    ({"metadata": {"name": "Ann"}}, "name"),
    ({"output_config": {"task_budget": {"total": 1}}}, "output_config.task_budget"),
    ({"output_format": {"type": "json_schema", "schema": {}}}, "output_format"),
    ({"thinking": {"type": "sometimes"}}, "thinking.type"),
    ({"mead": {"tools": "all"}}, "mead.tools"),
    ({"mead": {"allow": True}}, "allow"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
    ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [{**TOOL, "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "defer_loading"),
    ({"tools": [{**TOOL, "allowed_callers": ["code_execution_20260120"]}]}, "allowed_callers"),
    ({"tools": [{**TOOL, "colour": "red"}]}, "colour"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "u"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tools": [TOOL], "tool_choice": {"type": "auto", "name": "t"}}, "tool_choice.name"),
    ({"messages": [{"role": "assistant", "content": "hi"}, USER]}, "messages"),
    ({"messages": [USER, {"role": "assistant", "content": "prefill"}]}, "its last message"),
    ({"messages": [{"role": "user", "content": " "}]}, "nothing to answer"),
    ({"messages": [{"role": "tool", "content": "hi"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": "hi", "name": "Ann"}]}, "name"),
    ({"messages": [USER, *blocks(CALL, role="system")]}, "messages[1].content"),
    ({"messages": blocks(CALL)}, "messages[0].content[0]"),
    ({"messages": blocks(RESULT)}, "tool_result"),
    ({"messages": [USER, *blocks(CALL, role="assistant"), *blocks(RESULT, RESULT)]}, "tool_result"),
    ({"messages": [USER, *blocks(RESULT, role="assistant"), USER]}, "messages[1].content[0]"),
    ({"messages": [USER, *blocks(image(**PNG), role="assistant")]},
     "messages[1].content[0]"),
    ({"messages": [USER, *blocks({**CALL, "input": [1]}, role="assistant"), *blocks(RESULT)]},
     "messages[1].content[0].input"),
    ({"messages": blocks({**CALL, "type": "server_tool_use"})}, "server_tool_use"),
    ({"messages": blocks({"type": "search_result", "source": "x"})}, "search_result"),
    ({"messages": blocks({"type": "text", "text": "hi", "bold": True})}, "bold"),
    ({"messages": blocks(image(type="url", url="http://x/y.png"))}, "fetches nothing"),
    ({"messages": blocks(image(type="file", file_id="f"))}, "fetches nothing"),
    ({"messages": blocks(image(**{**PNG, "media_type": "image/svg+xml"}))}, "source.media_type"),
    ({"messages": blocks(image(**{**PNG, "data": "no base64!"}))}, "source.data"),
    ({"messages": blocks(image(**{**PNG, "data": ""}))}, "source.data"),
    ({"messages": blocks(document({"type": "url", "url": "http://x/y.pdf"}))}, "fetches nothing"),
    ({"messages": blocks(document({**PNG, "media_type": "text/plain"}))}, "application/pdf"),
    ({"messages": blocks(document({**TEXT, "data": " "}))}, "empty"),
    ({"messages": blocks(document(TEXT, citations={"enabled": True}))}, "citations"),
]  # fmt: skip


@pytest.mark.parametrize(
    "fields, named", REFUSED, ids=[f"{n}-{named}" for n, (_, named) in enumerate(REFUSED)]
)
def test_what_mead_does_not_take_is_refused_by_its_name(
    post: Callable[..., httpx2.Response], fields: dict[str, Any], named: str
) -> None:
    response = post(**fields)

    assert response.status_code == 400
    error = response.json()
    assert error["type"] == "error"
    assert error["error"]["type"] == "invalid_request_error"
    assert named in error["error"]["message"]


HELLO = {"type": "text", "text": "hello"}
TAKEN: list[dict[str, Any]] = [
    {"container": None, "mcp_servers": [], "service_tier": "auto", "speed": "standard", "stream": False},
    {"system": None, "tools": [], "stop_sequences": [], "metadata": {}},
    {"thinking": None, "tool_choice": None, "output_config": {}},
    {"tools": [{**TOOL, "type": "custom", "strict": True, "defer_loading": False}]},
    {"tools": [{**TOOL, "allowed_callers": ["direct"], "eager_input_streaming": True}]},
    {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
    {"cache_control": {"type": "ephemeral", "ttl": "1h"}},
    {"mead": {"tags": ["a"], "timeout_s": 5}},
    {"messages": blocks(document(TEXT, title="t", context="c", citations={"enabled": False}))},
    {"messages": blocks(document({"type": "content", "content": "hello"}))},
    {"messages": blocks(document({"type": "content", "content": [HELLO]}))},
    {"messages": blocks(document({**PNG, "media_type": "application/pdf"}))},
    {"messages": [USER, *blocks({"type": "text", "text": "x", "citations": []}, role="assistant"), USER]},
    {"messages": [USER, *blocks({**CALL, "caller": {"type": "direct"}}, role="assistant"), *blocks(RESULT)]},
    {"messages": [USER, *blocks(CALL, role="assistant"), *blocks({**RESULT, "content": None})]},
    {"messages": [USER, *blocks({"type": "redacted_thinking", "data": "x"}, role="assistant"), USER]},
]  # fmt: skip


@pytest.mark.parametrize("fields", TAKEN)
def test_what_asks_for_nothing_special_is_taken(
    post: Callable[..., httpx2.Response], fields: dict[str, Any]
) -> None:
    response = post(**fields)

    assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    "body, named",
    [
        (b"", "no JSON"),
        (b"[]", "object"),
        (b'{"model": "mead-local"', "no JSON"),
        (b'{"model": "\\ud800"}', "JSON"),
        (b"[" * 100_000, "object"),
        (b'{"model":' + b"[" * 100_000, "model"),
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused(serving: Serving, body: bytes, named: str) -> None:
    url = serving(runtime(_answers()), doors=(door.routes,))

    response = httpx2.post(f"{url}/v1/messages", content=body)

    assert response.status_code == 400
    assert named in response.json()["error"]["message"]


def test_any_version_and_any_beta_is_taken(serving: Serving) -> None:
    url = serving(runtime(_answers()), doors=(door.routes,))
    body = {"model": "mead-local", "max_tokens": 9, "messages": [USER]}
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "some-beta-2026-01-01,another"}

    assert httpx2.post(f"{url}/v1/messages?beta=true", json=body, headers=headers).status_code == 200


# Recorded ones


def _recorded(name: str) -> list[dict[str, Any]]:
    path = VENDOR / name
    if not path.exists():
        pytest.skip(f"the recorded requests ({name}) are not here")
    rows = [msgspec.json.decode(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    return [row["request"] for row in rows]


@pytest.mark.wire
@pytest.mark.parametrize("model", ["mead-local", "mead-auto"])
def test_each_recorded_request_is_answered_or_refused_with_a_reason(post: Any, model: str) -> None:
    requests = _recorded("anthropic.jsonl.gz")

    responses = [post(**{**request, "model": model}) for request in requests]

    statuses = Counter(response.status_code for response in responses)
    assert set(statuses) <= {200, 400}
    assert statuses[200] > len(requests) / 2
    for response in responses:
        if response.status_code == 400:
            assert len(response.json()["error"]["message"]) > 10


@pytest.mark.wire
def test_each_recorded_count_is_answered(served: httpx2.Client) -> None:
    for request in _recorded("anthropic_count.jsonl.gz"):
        response = served.post("/v1/messages/count_tokens", json={**request, "model": "mead-cloud"})
        assert response.json()["input_tokens"] > 0


# Mutated ones

VALID: dict[str, Any] = {
    "model": "mead-local",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        USER,
        {"role": "assistant", "content": [{"type": "text", "text": "Hm."}, CALL]},
        {"role": "user", "content": [RESULT, image(**PNG)]},
        {"role": "assistant", "content": "Well."},
        {"role": "user", "content": [document(TEXT, title="t"), {"type": "text", "text": "Go on."}]},
    ],
    "tools": [{**TOOL, "description": "d", "strict": False}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "temperature": 0.5,
    "stop_sequences": ["END"],
    "metadata": {"user_id": "u"},
    "stream": False,
    "mead": {"tools": "none", "tags": ["a"]},
}
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
ANYTHING = st.recursive(
    SCALARS | st.sampled_from(["user", "assistant", "system", "tool_use", "tool_result", "text", "c1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *[place for key, each in inner for place in _places(each, (*path, key))]]


def _like(value: Any) -> st.SearchStrategy[Any]:
    """Another value of the same type."""
    if isinstance(value, str):
        return st.text()
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, (int, float)):
        return st.integers(0, 10) | st.floats(0, 1)
    return st.permutations(value) if isinstance(value, list) else st.just({})


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A valid request in which some values are replaced, left out, doubled or added."""
    body: Any = copy.deepcopy(VALID)
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(_places(body)[1:] or [("model",)]))
        holder = body
        for key in path:
            holder = holder[key]
        how = draw(st.sampled_from(["replace", "leave out", "double", "add"]))
        if how == "replace":
            holder[last] = draw(_like(holder[last]) | ANYTHING)
        elif how == "leave out":
            del holder[last]
        elif how == "double" and isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]))
        elif isinstance(holder, dict):
            holder[draw(st.text())] = draw(ANYTHING)
    return body


@pytest.fixture
def served(serving: Serving) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=serving(runtime(_answers(), _answers()), doors=(door.routes,))) as client:
        yield client


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(body=mutated(), path=st.sampled_from(["/v1/messages", "/v1/messages/count_tokens"]))
def test_no_request_makes_the_server_fail(served: httpx2.Client, body: Any, path: str) -> None:
    response = served.post(path, content=msgspec.json.encode(body))

    assert response.status_code < 500, response.text
