"""Embeddings of Ollama and of OpenAI-compatible servers."""

from __future__ import annotations

from typing import Any

import pytest

from mead.core.options import Options
from mead.core.reasons import HttpStatus, InvalidOptions, MalformedResponse, ProviderReason, Transport
from mead.core.result import Err, Ok, Result
from mead.core.usage import Usage
from mead.providers.http import HttpClient
from mead.providers.ollama import Ollama
from mead.providers.openai_chat import OpenAIChat
from mead.providers.protocol import Embeddings, can_embed
from mead.testing import Answer, FakeServer, ScriptedProvider
from providers.formats import json_answer

ASKED = Options(model="nomic", extra={"dimensions": 2}, route="local")
OLLAMA_SAID = {"embeddings": [[0.5, -1], [2, 3e-3]], "prompt_eval_count": 9}
OPENAI_SAID = {
    "data": [{"index": 1, "embedding": [2, 3e-3]}, {"index": 0, "embedding": [0.5, -1]}],
    "usage": {"prompt_tokens": 9, "total_tokens": 9},
}
FORMATS = {"ollama": (Ollama, "/api/embed", OLLAMA_SAID), "openai": (OpenAIChat, "/embeddings", OPENAI_SAID)}


async def embedded(
    wire: str, server: FakeServer, *texts: str, options: Options = ASKED
) -> Result[Embeddings, ProviderReason]:
    provider: Any = FORMATS[wire][0](HttpClient(server.url, slot="local"))
    try:
        return await provider.embed(texts, options)  # type: ignore[no-any-return]  # of either class
    finally:
        await provider.aclose()


@pytest.mark.parametrize("wire", FORMATS)
async def test_a_vector_for_each_text_in_their_order(wire: str) -> None:
    _, path, said = FORMATS[wire]
    async with FakeServer(json_answer(said)) as server:
        result = await embedded(wire, server, "one", "two")

    usage = Usage(input_tokens=9, output_tokens=0)
    assert result == Ok(Embeddings(vectors=((0.5, -1.0), (2.0, 3e-3)), usage=usage))
    [request] = server.requests_to(path)
    body = request.json()
    assert (body["model"], body["input"], body["dimensions"]) == ("nomic", ["one", "two"], 2)


async def test_ollama_cuts_no_text_off_in_silence() -> None:
    async with FakeServer(json_answer(OLLAMA_SAID)) as server:
        await embedded("ollama", server, "one", "two")

    assert server.requests_to("/api/embed")[0].json()["truncate"] is False


@pytest.mark.parametrize("wire", FORMATS)
@pytest.mark.parametrize(
    "said",
    [
        {},
        {"embeddings": [[1.0]], "data": [{"embedding": [1.0]}]},
        {"embeddings": [[1.0], []], "data": [{"embedding": [1.0]}, {"embedding": []}]},
        {"embeddings": [[1.0], ["x"]], "data": [{"embedding": [1.0]}, {"embedding": "x"}]},
        [],
        "no",
    ],
)
async def test_an_answer_without_a_vector_for_each_text_is_malformed(wire: str, said: object) -> None:
    async with FakeServer(json_answer(said)) as server:
        result = await embedded(wire, server, "one", "two")

    assert isinstance(result, Err)
    assert isinstance(result.reason, MalformedResponse)


@pytest.mark.parametrize("wire", FORMATS)
async def test_a_server_that_refuses(wire: str) -> None:
    body = b'{"error": {"message": "the text is too long: my secret diary of the year"}}'
    async with FakeServer(Answer(status=400, body=body)) as server:
        refused = await embedded(wire, server, "my secret diary of the year")
    async with FakeServer(Answer(status=503, body=b"{}")) as server:
        broken = await embedded(wire, server, "one")

    assert isinstance(refused, Err)
    assert isinstance(refused.reason, InvalidOptions)
    assert "secret diary" not in (refused.reason.detail or "")
    assert isinstance(broken, Err)
    assert broken.reason == HttpStatus(status=503, detail=broken.reason.detail)


@pytest.mark.parametrize("wire", FORMATS)
async def test_a_model_is_needed(wire: str) -> None:
    async with FakeServer() as server:
        result = await embedded(wire, server, "one", options=Options())

    assert isinstance(result, Err)
    assert isinstance(result.reason, InvalidOptions)
    assert server.requests == []


@pytest.mark.parametrize("wire", FORMATS)
async def test_r17_a_model_that_runs_elsewhere_gets_no_text(wire: str) -> None:
    elsewhere = {"remote_host": "https://ollama.com:443", "remote_model": "nomic"}
    async with FakeServer(routes={"/api/show": json_answer(elsewhere)}) as server:
        result = await embedded(wire, server, "one")

    assert isinstance(result, Err)
    assert isinstance(result.reason, (InvalidOptions, Transport))
    assert server.requests_to("/api/embed") == server.requests_to("/embeddings") == []


def test_who_makes_embeddings() -> None:
    assert can_embed(Ollama(HttpClient("http://127.0.0.1:1", slot="local")))
    assert not can_embed(ScriptedProvider())
