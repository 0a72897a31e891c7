"""Embeddings through OpenAI's library: made by the local model, never by the cloud's."""

from __future__ import annotations

import asyncio
import base64
import struct
import threading
from collections.abc import Sequence
from typing import Any

import httpx
import openai
import pytest

import mead
from mead.core.options import Options
from mead.core.reasons import HttpStatus, ProviderReason
from mead.core.result import Err, Ok, Result
from mead.core.usage import Usage
from mead.ledger.limits import SlotLimiter
from mead.providers.protocol import Embeddings
from mead.router import Slot, Slots
from mead.serve import models as listing
from mead.serve import openai as door
from mead.settings import SlotSettings
from mead.testing import ScriptedProvider
from serve.served import Serving, client_at
from support import runtime


class Embedder(ScriptedProvider):
    """Makes a vector of a text's length."""

    def __init__(self, failure: ProviderReason | None = None) -> None:
        super().__init__(name="embedder")
        self.asked: list[tuple[list[str], Options]] = []
        self._failure = failure

    async def embed(self, texts: Sequence[str], options: Options) -> Result[Embeddings, ProviderReason]:
        self.asked.append((list(texts), options))
        if self._failure is not None:
            return Err(self._failure)
        vectors = tuple([(float(len(text)), 0.5) for text in texts])
        return Ok(Embeddings(vectors=vectors, usage=Usage(input_tokens=7, output_tokens=0)))


def client_of(serving: Serving, made: mead.Runtime) -> openai.OpenAI:
    url = serving(made, doors=[door.routes, listing.routes])
    return client_at(url)


def test_the_library_gets_numbers_however_they_are_sent(serving: Serving) -> None:
    client = client_of(serving, runtime(Embedder()))

    as_it_likes = client.embeddings.create(model="mead-local", input=["one", "three"])
    as_numbers = client.embeddings.create(model="mead-auto", input="three", encoding_format="float")

    assert [(each.index, each.embedding) for each in as_it_likes.data] == [(0, [3.0, 0.5]), (1, [5.0, 0.5])]
    assert as_numbers.data[0].embedding == [5.0, 0.5]
    assert as_it_likes.model == "mead-local"
    assert (as_it_likes.usage.prompt_tokens, as_it_likes.usage.total_tokens) == (7, 7)


def test_base64_holds_little_endian_floats(serving: Serving) -> None:
    url = serving(runtime(Embedder()), doors=[door.routes, listing.routes])

    answer = httpx.post(
        f"{url}/v1/embeddings", json={"model": "mead-local", "input": "one", "encoding_format": "base64"}
    )

    data = base64.b64decode(answer.json()["data"][0]["embedding"])
    assert struct.unpack("<2f", data) == (3.0, 0.5)


def test_the_model_and_the_dimensions_are_passed_on_and_nothing_else(serving: Serving) -> None:
    embedder = Embedder()
    slot = Slot(embedder, Options(model="tiny", temperature=0.1, extra={"x": 1}), ("nomic",))
    client = client_of(serving, mead.Runtime(slots=Slots(local=slot)))

    client.embeddings.create(model="local/nomic", input="one", dimensions=2, user="somebody")
    client.embeddings.create(model="mead-local", input="one")

    first, second = [options for _, options in embedder.asked]
    assert (first.model, first.extra, first.route) == ("nomic", {"dimensions": 2}, "local")
    assert first.deadline is not None
    assert (second.model, second.extra, second.temperature) == ("tiny", None, None)


def test_r16_no_text_goes_to_the_cloud(serving: Serving) -> None:
    local, cloud = Embedder(), Embedder()
    slots = Slots(local=Slot(local), cloud=Slot(cloud, Options(model="large")))
    client = client_of(serving, mead.Runtime(slots=slots))

    for name in ("mead-cloud", "cloud/large"):
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model=name, input="one")
        assert caught.value.param == "model"
    client.embeddings.create(model="mead-auto", input="one")

    assert cloud.asked == []
    assert len(local.asked) == 1


def test_a_model_that_makes_none_says_so(serving: Serving) -> None:
    client = client_of(serving, runtime(ScriptedProvider(name="talker"), Embedder()))

    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="mead-local", input="one")

    assert caught.value.code == "invalid_options"
    assert "talker makes no embeddings" in caught.value.message


def test_an_empty_slot_says_so(serving: Serving) -> None:
    client = client_of(serving, runtime(None, Embedder()))

    with pytest.raises(openai.InternalServerError) as caught:
        client.embeddings.create(model="mead-local", input="one")

    assert (caught.value.status_code, caught.value.code) == (503, "local_unavailable")


def test_a_failure_is_told_as_of_a_turn(serving: Serving) -> None:
    client = client_of(serving, runtime(Embedder(HttpStatus(status=429, retry_after_s=2))))

    with pytest.raises(openai.RateLimitError):
        client.embeddings.create(model="mead-local", input="one")


@pytest.mark.parametrize(
    "changed, param",
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": ["a", " "]}, "input[1]"),
        ({"input": [1, 2]}, "input[0]"),
        ({"input": [[1, 2]]}, "input[0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"),
        ({"colour": 1}, "colour"),
        ({"mead": {"timeout_s": 0}}, "mead.timeout_s"),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(serving: Serving, changed: dict[str, Any], param: str) -> None:
    url = serving(runtime(Embedder()), doors=[door.routes, listing.routes])

    answer = httpx.post(f"{url}/v1/embeddings", json={"model": "mead-local", "input": "a", **changed})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


def test_numbers_that_no_float_holds_are_a_malformed_answer(serving: Serving) -> None:
    class Huge(Embedder):
        async def embed(self, texts: Sequence[str], options: Options) -> Result[Embeddings, ProviderReason]:
            return Ok(Embeddings(vectors=((1e300,),)))

    client = client_of(serving, runtime(Huge()))

    with pytest.raises(openai.InternalServerError) as caught:
        client.embeddings.create(model="mead-local", input="one")

    assert (caught.value.status_code, caught.value.code) == (502, "malformed_response")


async def test_they_take_a_place_in_the_slots_queue(serving: Serving) -> None:
    started, released = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    class Slow(Embedder):
        async def embed(self, texts: Sequence[str], options: Options) -> Result[Embeddings, ProviderReason]:
            loops.append(asyncio.get_running_loop())
            started.set()
            await released.wait()
            return await super().embed(texts, options)

    limiter = SlotLimiter.of(SlotSettings(provider="ollama", concurrency=1, queue=0))
    url = serving(
        mead.Runtime(slots=Slots(local=Slot(Slow(), limiter=limiter))), doors=[door.routes, listing.routes]
    )
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        first = asyncio.ensure_future(client.embeddings.create(model="mead-local", input="one"))
        assert await asyncio.to_thread(started.wait, 10)
        with pytest.raises(openai.RateLimitError) as caught:
            await client.embeddings.create(model="mead-local", input="two")
        loops[0].call_soon_threadsafe(released.set)
        made = await first

    assert caught.value.code == "slot_busy"
    assert made.data[0].embedding == [3.0, 0.5]
