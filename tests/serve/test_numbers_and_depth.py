"""Numbers that are none, and JSON that is nested too deeply, are refused in a word."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from mead.serve.app import make_app
from mead.serve.endpoint import MAX_DEPTH, is_too_deep, small_number, stack_of
from serve.api import kept, model

DEEP = json.loads('{"a":' * 300 + "1" + "}" * 300)
USER = [{"role": "user", "content": "hello"}]
CHAT = {"model": "mead-local", "messages": USER}


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    app = make_app(kept(model()), None, owns_runtime=False)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:4141") as made:
        yield made


TOOL = {"type": "function", "function": {"name": "f", "parameters": DEEP}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", {**CHAT, "tools": [TOOL]}),
    ("/v1/messages", {**CHAT, "max_tokens": 9, "tools": [{"name": "f", "input_schema": DEEP}]}),
    (
        "/v1/messages",
        {**CHAT, "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": DEEP}}},
    ),
    (
        "/v1/messages",
        {
            "model": "mead-local",
            "max_tokens": 9,
            "messages": [
                *USER,
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "c", "name": "t", "input": DEEP}],
                },
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "c", "content": "done"}],
                },
            ],
        },
    ),
    ("/v1/messages/count_tokens", {**CHAT, "tools": [{"name": "f", "input_schema": DEEP}]}),
    ("/api/sessions", {"state": DEEP}),
    ("/api/requests", {"messages": USER, "options": {"response_format": {"schema": DEEP}}}),
    (
        "/api/explain",
        {"text": "x", "client_tools": [{"name": "f", "description": None, "input_schema": DEEP}]},
    ),
]


@pytest.mark.parametrize("path, body", BODIES)
async def test_a_body_that_is_nested_too_deeply_is_refused_at_every_door(
    path: str, body: dict[str, Any], client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR):
        answer = await client.post(path, json=body)

    assert answer.status_code == 400, answer.text
    assert "nested deeper" in answer.text
    assert not caplog.records


async def test_arguments_that_are_nested_too_deeply_count_as_malformed(client: httpx.AsyncClient) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": json.dumps(DEEP)}}
    brought = [
        *USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "k"},
    ]

    answer = await client.post("/v1/chat/completions", json={**CHAT, "messages": brought})

    assert answer.status_code == 200, answer.text


def test_the_depth_of_json_is_that_of_its_brackets_outside_of_strings() -> None:
    def nested(depth: int) -> bytes:
        return (b'{"a":[' * (depth // 2)) + b"1" + b"]}" * (depth // 2)

    assert not is_too_deep(nested(MAX_DEPTH))
    assert is_too_deep(nested(MAX_DEPTH + 2))
    assert not is_too_deep(json.dumps(["[" * 500, '\\"[{' * 500, {"a]": "}" * 500}] * 200).encode())


@pytest.mark.parametrize("said", ["²", "٣", "9" * 5000, "-1", "1.0", " 1", ""])
def test_a_number_is_one_of_a_few_ascii_digits(said: str) -> None:
    assert small_number(said) is None
    assert small_number("0123") == 123


@pytest.mark.parametrize("said", [b"\xb2", b"9" * 5000])
async def test_a_header_or_a_query_that_is_no_number_crashes_nothing(
    said: bytes, client: httpx.AsyncClient
) -> None:
    retried = await client.post("/v1/chat/completions", json=CHAT, headers={b"x-stainless-retry-count": said})
    headers = {"anthropic-version": "2023-06-01"}
    listed = await client.get("/v1/models", params={"limit": said.decode("latin-1")}, headers=headers)

    assert [retried.status_code, listed.status_code] == [200, 400]


def test_no_more_than_the_last_frames_of_a_crash_are_logged() -> None:
    def dive(depth: int) -> None:
        if not depth:
            raise ValueError("a secret")
        deeper(depth - 1)

    def deeper(depth: int) -> None:
        dive(depth)

    with pytest.raises(ValueError, match="a secret") as caught:
        dive(200)

    stack = stack_of(caught.value)
    assert stack.count("File ") == 20
