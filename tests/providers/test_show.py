"""Where a model runs, asked of a local server whatever format it speaks (R17)."""

from __future__ import annotations

from typing import Any

import pytest

from mead.core.options import Options
from mead.core.reasons import HttpStatus
from mead.providers.http import HttpClient
from mead.providers.openai_chat import OpenAIChat
from mead.testing import Answer, FakeServer
from mead.testing.providers import TEXT
from providers.formats import ANTHROPIC, OPENAI, OPTIONS, WireFormat, json_answer, reason
from providers.suites import ask, due

CLOUD = Options(model="gpt-oss:120b-cloud")
SHOW = "/api/show"
each = pytest.mark.parametrize("wire", [OPENAI, ANTHROPIC], ids=lambda wire: wire.name)


def shows(wire: WireFormat, answer: Answer) -> FakeServer:
    return FakeServer(wire.answer(TEXT), routes={SHOW: answer})


@each
@pytest.mark.parametrize("facts", [{"remote_host": "https://ollama.com:443"}, {"remote_model": "big"}])
async def test_r17_a_model_that_ollama_runs_in_its_cloud_is_refused_in_its_other_formats_too(
    wire: WireFormat, facts: dict[str, Any]
) -> None:
    async with shows(wire, json_answer(facts)) as server, wire.provider(server) as provider:
        failures = [reason(await ask(provider, call, CLOUD)) for call in ("complete", "converse_stream")]

    assert [getattr(failure, "cause", failure) for failure in failures] == ["not_local"] * 2
    assert [(request.path, request.json()) for request in server.requests] == [
        (SHOW, {"model": "gpt-oss:120b-cloud"})
    ]


async def test_r17_a_model_that_the_slots_extra_names_is_the_one_that_is_asked_about() -> None:
    options = Options(model="small", extra={"model": "gpt-oss:120b-cloud"})
    async with shows(OPENAI, json_answer({"remote_model": "x"})) as server:
        async with OPENAI.provider(server) as provider:
            reason(await ask(provider, "complete", options))

    assert [request.json() for request in server.requests] == [{"model": "gpt-oss:120b-cloud"}]


@each
@pytest.mark.parametrize(
    "answer",
    [
        json_answer({"error": "Unexpected endpoint"}),
        json_answer([]),
        Answer(body=b"<html>"),
        *[Answer(status=status) for status in (302, 400, 401, 404, 405, 501)],
    ],
    ids=lambda answer: f"{answer.status} {answer.body!r}",
)
async def test_a_server_that_is_no_ollama_is_simply_used_and_asked_once(
    wire: WireFormat, answer: Answer
) -> None:
    async with shows(wire, answer) as server, wire.provider(server) as provider:
        for call in ("complete", "converse_stream"):
            (await ask(provider, call)).unwrap()

    assert len(server.requests_to(SHOW)) == 1


@each
async def test_a_failure_to_say_is_the_failure_of_the_call_and_is_not_remembered(wire: WireFormat) -> None:
    answers = [Answer(status=500), Answer(status=404)]
    async with FakeServer(wire.answer(TEXT), routes={SHOW: lambda _: answers.pop(0)}) as server:
        async with wire.provider(server) as provider:
            failure = reason(await ask(provider, "complete"))
            (await ask(provider, "complete")).unwrap()

    assert failure == HttpStatus(status=500)


@each
async def test_p4_timeout_covers_the_question_too(wire: WireFormat) -> None:
    async with shows(wire, Answer(end="hang")) as server, wire.provider(server) as provider:
        failure = reason(await ask(provider, "complete", due()))

    assert failure.tag == "timeout"
    assert server.requests_to(wire.path) == []


@each
async def test_r17_allow_remote_and_a_cloud_slot_are_not_asked_about(wire: WireFormat) -> None:
    async with shows(wire, json_answer({"remote_model": "big"})) as server:
        for client in (
            HttpClient(server.url, slot="local", allow_remote=True),
            HttpClient(server.url, slot="cloud"),
        ):
            provider = wire.adapter(client)
            (await ask(provider, "complete")).unwrap()
            await provider.aclose()

    assert server.requests_to(SHOW) == []


async def test_the_question_goes_to_where_ollama_has_it_beside_its_v1() -> None:
    async with FakeServer(OPENAI.answer(TEXT)) as server:
        for base in ("/v1", "/v1/", "", "/ollama/v1"):
            provider = OpenAIChat(HttpClient(server.url + base, slot="local"))
            (await ask(provider, "complete", OPTIONS)).unwrap()
            await provider.aclose()

    assert [request.path for request in server.questions] == [SHOW, SHOW, SHOW, f"/ollama{SHOW}"]
