"""Requests that come twice, by a key or because a library tries again: the model is asked once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import mead
from mead.core.reasons import HttpStatus
from mead.serve import models as listing
from mead.serve import openai as door
from mead.storage import open_store
from mead.testing import ProviderRequest, ScriptedProvider
from serve.served import Serving
from support import runtime, slots

ASK: list[Any] = [{"role": "user", "content": "hello"}]
BODY = {"model": "mead-local", "messages": ASK}


class Released:
    """A step that waits until it is released, from any thread."""

    def __init__(self, answer: str) -> None:
        self.started = threading.Event()
        self.cancelled = threading.Event()
        self._answer = answer
        self._may_go = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, request: ProviderRequest) -> str:
        self._loop = asyncio.get_running_loop()
        self.started.set()
        try:
            await self._may_go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return self._answer

    def release(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._may_go.set)


def stored(provider: ScriptedProvider, tmp_path: Path) -> mead.Runtime:
    return mead.Runtime(slots=slots(provider), store=open_store(f"sqlite:///{tmp_path / 'mead.db'}"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_the_library_repeats_joins_the_first(serving: Serving, stream: bool) -> None:
    step = Released("once")
    provider = ScriptedProvider(step)
    url = serving(runtime(provider), doors=[door.routes, listing.routes])
    repeats: list[str] = []

    def note(request: Any) -> None:
        repeats.append(request.headers["x-stainless-retry-count"])
        if len(repeats) == 2:
            step.release()

    with openai.OpenAI(
        base_url=f"{url}/v1",
        api_key="none",
        timeout=0.5,
        http_client=openai.DefaultHttpxClient(event_hooks={"request": [note]}),
    ) as client:
        raw = client.chat.completions.with_raw_response.create(
            model="mead-local", messages=ASK, stream=stream
        )
        text = raw.http_response.read().decode()

    assert repeats == ["0", "1"]
    assert "once" in text
    assert len(provider.requests) == 1


def test_a_repeat_after_the_end_is_told_the_same(serving: Serving) -> None:
    provider = ScriptedProvider("first", "second", "third")
    url = serving(runtime(provider), doors=[door.routes, listing.routes])

    def said(retries: str | None, **changed: Any) -> str:
        headers = {} if retries is None else {"x-stainless-retry-count": retries}
        answer = httpx.post(f"{url}/v1/chat/completions", json={**BODY, **changed}, headers=headers)
        return str(answer.json()["choices"][0]["message"]["content"])

    assert said("0") == "first"
    assert said("1") == "first"
    assert said("1", seed=4) == "second", "it is another request"
    assert said("0") == "third", "it is no repeat"


def test_a_repeat_in_another_session_is_another_request(serving: Serving) -> None:
    provider = ScriptedProvider("first", "second")
    url = serving(runtime(provider), doors=[door.routes, listing.routes])
    path, retried = f"{url}/v1/chat/completions", {"x-stainless-retry-count": "1"}

    httpx.post(path, json=BODY, headers={"x-stainless-retry-count": "0"})
    httpx.post(path, json=BODY, headers={**retried, "x-mead-session": "new"})

    assert len(provider.requests) == 2


@pytest.mark.parametrize("stream", [False, True])
def test_a_repeated_request_for_a_new_session_makes_one(serving: Serving, stream: bool) -> None:
    provider = ScriptedProvider("first", "second")
    url = serving(runtime(provider), doors=[door.routes, listing.routes])
    ids = {
        httpx.post(
            f"{url}/v1/chat/completions",
            json={**BODY, "stream": stream},
            headers={"x-mead-session": "new", "x-stainless-retry-count": retries},
        ).headers["x-mead-session"]
        for retries in ("0", "1")
    }

    assert len(ids) == 1
    assert len(provider.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_failed_is_tried_again(serving: Serving, stream: bool) -> None:
    provider = ScriptedProvider(HttpStatus(status=503), "now it works")
    url = serving(runtime(provider), doors=[door.routes, listing.routes])

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        raw = client.chat.completions.with_raw_response.create(
            model="mead-local", messages=ASK, stream=stream
        )
        text = raw.http_response.read().decode()

    assert "now it works" in text
    assert len(provider.requests) == 2


def test_a_request_whose_client_does_not_come_back_is_cancelled(serving: Serving) -> None:
    step = Released("never")
    url = serving(runtime(ScriptedProvider(step, "next")), doors=[door.routes, listing.routes])

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=0.2, max_retries=0) as client:
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(model="mead-local", messages=ASK)
        assert step.cancelled.wait(10)
        answer = client.chat.completions.create(model="mead-local", messages=ASK, timeout=10)

    assert answer.choices[0].message.content == "next"


def test_a_wrong_session_request_of_a_library_is_told_what_is_wrong(serving: Serving) -> None:
    url = serving(runtime(ScriptedProvider()), doors=[door.routes, listing.routes])
    messages: list[Any] = [*ASK, {"role": "assistant", "content": "hi"}]

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as caught:
                client.chat.completions.create(
                    model="mead-local",
                    messages=messages,
                    stream=stream,
                    extra_headers={"x-mead-session": "new"},
                )
            assert caught.value.param == "messages"


def test_a_key_gives_the_first_answer_again(serving: Serving, tmp_path: Path) -> None:
    provider = ScriptedProvider("first", "second")
    url = serving(stored(provider, tmp_path), doors=[door.routes, listing.routes])
    keyed = {"Idempotency-Key": "k1"}

    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        create = client.chat.completions.create
        answers = [create(model="mead-local", messages=ASK, extra_headers=keyed) for _ in range(2)]
        chunks = list(create(model="mead-local", messages=ASK, extra_headers=keyed, stream=True))
        with pytest.raises(openai.UnprocessableEntityError) as caught:
            create(model="mead-local", messages=[{"role": "user", "content": "no"}], extra_headers=keyed)

    assert [answer.choices[0].message.content for answer in answers] == ["first", "first"]
    assert "".join([chunk.choices[0].delta.content or "" for chunk in chunks]) == "first"
    assert caught.value.code == "idempotency_conflict"
    assert len(provider.requests) == 1


async def test_two_with_one_key_at_the_same_time(serving: Serving, tmp_path: Path) -> None:
    step = Released("once")
    provider = ScriptedProvider(step)
    url = serving(stored(provider, tmp_path), doors=[door.routes, listing.routes])

    async with httpx.AsyncClient(trust_env=False) as client:
        asking = [
            asyncio.ensure_future(
                client.post(f"{url}/v1/chat/completions", json=BODY, headers={"Idempotency-Key": "k1"})
            )
            for _ in range(2)
        ]
        assert await asyncio.to_thread(step.started.wait, 10)
        step.release()
        answers = await asyncio.gather(*asking)

    assert [answer.json()["choices"][0]["message"]["content"] for answer in answers] == ["once", "once"]
    assert len(provider.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_for_a_new_session_under_a_key_makes_one_in_every_process(
    serving: Serving, tmp_path: Path, stream: bool
) -> None:
    provider = ScriptedProvider("first", otherwise="again")
    ids, texts = set(), []
    headers = {"x-mead-session": "new", "idempotency-key": "k"}
    for times in (2, 1):
        url = serving(stored(provider, tmp_path), doors=[door.routes, listing.routes])
        for _ in range(times):
            body = {**BODY, "stream": stream}
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers)
            ids.add(answer.headers["x-mead-session"])
            texts.append(answer.text)

    assert len(provider.requests) == 1
    assert len(ids) == 1
    assert all("first" in text for text in texts)
