"""Asking a server whether it is there and has the model."""

from __future__ import annotations

from typing import Any

import pytest

from mead.core.options import Options
from mead.core.reasons import HttpStatus, MissingApiKey, Transport
from mead.providers.checks import check_provider
from mead.providers.echo import Echo
from mead.testing import Answer, FakeServer
from providers.formats import ANTHROPIC, FORMATS, OLLAMA, OPENAI, WireFormat, json_answer, reason
from providers.suites import KEY

PATHS = {"openai": "/v1/models", "anthropic": "/v1/models", "ollama": "/api/tags"}
LISTS: dict[str, Any] = {
    "openai": {"data": [{"id": "big"}, {"id": "small"}]},
    "anthropic": {"data": [{"id": "big"}, {"id": "small"}]},
    "ollama": {"models": [{"name": "big:latest"}, {"name": "small"}]},
}
every_format = pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.name)


async def checked(wire: WireFormat, answer: Answer, model: str | None = "big", **keywords: Any) -> Any:
    async with FakeServer(Answer(status=500), routes={PATHS[wire.name]: answer}) as server:
        async with wire.provider(server, **keywords) as provider:
            result = await check_provider(provider, Options(model=model))
    assert {(request.method, request.body) for request in server.requests} <= {("GET", b"")}
    return result


@every_format
async def test_a_server_that_has_the_model_is_ready(wire: WireFormat) -> None:
    said = (await checked(wire, json_answer(LISTS[wire.name]))).unwrap()

    assert said.endswith("answers and has big")


@every_format
async def test_a_server_that_lacks_the_model_says_what_it_has(wire: WireFormat) -> None:
    failure = reason(await checked(wire, json_answer(LISTS[wire.name]), "huge"))

    assert isinstance(failure, HttpStatus)
    assert failure.status == 404
    assert "no model 'huge'; it has: big" in (failure.detail or "")
    assert ("ollama pull huge" in (failure.detail or "")) == (wire is OLLAMA)


async def test_one_model_is_served_under_every_name_except_by_ollama() -> None:
    one = json_answer({"data": [{"id": "/models/a.gguf"}]})

    assert (await checked(OPENAI, one, "anything")).unwrap()
    assert isinstance(
        reason(await checked(OLLAMA, json_answer({"models": [{"name": "a"}]}), "b")), HttpStatus
    )


@every_format
async def test_without_a_model_it_is_enough_that_the_server_answers(wire: WireFormat) -> None:
    assert (await checked(wire, json_answer(LISTS[wire.name]), None)).unwrap().endswith("answers")


@every_format
@pytest.mark.parametrize("status", [404, 405])
async def test_a_server_that_does_not_list_its_models_is_there(wire: WireFormat, status: int) -> None:
    assert "does not list" in (await checked(wire, Answer(status=status))).unwrap()


@every_format
@pytest.mark.parametrize(
    "answer",
    [
        Answer(body=b"<html>"),
        json_answer([]),
        json_answer(7),
        json_answer({"data": 5}),
        json_answer({"data": {"id": "x"}}),
        json_answer({"data": [5, None, {"id": 7}, {}]}),
        json_answer({}),
    ],
    ids=["page", "list", "number", "data number", "data object", "odd entries", "empty"],
)
async def test_a_list_that_cannot_be_read_is_no_failure(wire: WireFormat, answer: Answer) -> None:
    assert (await checked(wire, answer)).unwrap().endswith("has big")


@every_format
async def test_a_refused_key_is_the_reason_and_is_not_shown(wire: WireFormat) -> None:
    refused = json_answer({"error": {"message": f"wrong key {KEY}"}}, status=401)
    failure = reason(await checked(wire, refused, api_key=KEY))

    assert failure == HttpStatus(status=401, detail="wrong key …")


@pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=lambda wire: wire.name)
async def test_a_missing_key_is_said_before_anything_is_sent(wire: WireFormat) -> None:
    async with FakeServer() as server, wire.provider(server, needs_key=True) as provider:
        assert isinstance(reason(await check_provider(provider, Options())), MissingApiKey)

    assert server.requests == []


@every_format
async def test_the_request_carries_the_formats_headers(wire: WireFormat) -> None:
    async with FakeServer(json_answer({})) as server, wire.provider(server, api_key=KEY) as provider:
        await check_provider(provider, Options())

    [request] = server.requests
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert ("anthropic-version" in request.headers) == (wire is ANTHROPIC)


@every_format
async def test_a_server_that_is_away_is_a_transport_failure(wire: WireFormat) -> None:
    async with FakeServer() as server:
        url = server.url
    provider = wire.make(url)
    failure = reason(await check_provider(provider, Options(model="m")))
    await provider.aclose()

    assert isinstance(failure, Transport)


async def test_a_provider_without_a_server_is_ready() -> None:
    assert (await check_provider(Echo(), Options())).unwrap() == "echo needs no server"
