"""What a stop of the server does to the turns that run."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import uvicorn

import mead
from mead.core.reasons import ShuttingDown
from mead.core.result import Err
from mead.serve.app import make_app
from mead.serve.stopping import StoppingServer
from serve.api import Api, Gate, kept, model

PATIENCE_S = 20.0


class Stoppable:
    """A server in a thread; `stop` is what a signal does."""

    def __init__(self, runtime: mead.Runtime, timeout_s: float) -> None:
        app = make_app(runtime, None)
        self.http = app.state.server
        config = uvicorn.Config(app, lifespan="on", log_config=None)
        self._server = StoppingServer(config, app.state.server, timeout_s=timeout_s)
        self._listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._listening.bind(("127.0.0.1", 0))
        self._listening.listen()
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._listening:
            asyncio.run(self._server.serve(sockets=[self._listening]))

    def stop(self) -> None:
        self._server.should_exit = True

    def wait(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@contextmanager
def stoppable(runtime: mead.Runtime, timeout_s: float) -> Iterator[Stoppable]:
    server = Stoppable(runtime, timeout_s)
    try:
        yield server
    finally:
        server.stop()
        server.wait()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


ASKED = {"messages": [{"role": "user", "content": "hello"}], "route": "local"}
CHAT = {"model": "mead-local", "messages": [{"role": "user", "content": "hello"}]}


def test_a_plain_turn_that_runs_too_long_at_a_stop_is_told_shutting_down(pool: ThreadPoolExecutor) -> None:
    gates = Gate(), Gate()
    with stoppable(kept(model(*gates)), 0.2) as server:
        api = Api(server.url)
        native = pool.submit(api.fault, "POST", "requests", ASKED)
        assert gates[0].begun.wait(PATIENCE_S)
        openai = pool.submit(api.client.post, f"{server.url}/v1/chat/completions", json=CHAT)
        assert gates[1].begun.wait(PATIENCE_S)
        server.stop()

        assert native.result(PATIENCE_S) == (503, "shutting_down", None)
        answer = openai.result(PATIENCE_S)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "shutting_down")
    assert all(gate.cancelled.is_set() for gate in gates)


def test_streams_that_run_too_long_at_a_stop_end_with_shutting_down(pool: ThreadPoolExecutor) -> None:
    gates = Gate(), Gate()
    with stoppable(kept(model(*gates)), 0.2) as server:
        api = Api(server.url)

        def native() -> list[tuple[str, str]]:
            with api.stream("POST", "requests", ASKED) as events:
                return [(event.name, event.data.get("error", {}).get("tag", "")) for event in events]

        streamed = pool.submit(native)
        assert gates[0].begun.wait(PATIENCE_S)
        openai = pool.submit(
            api.client.post, f"{server.url}/v1/chat/completions", json={**CHAT, "stream": True}
        )
        assert gates[1].begun.wait(PATIENCE_S)
        server.stop()

        assert streamed.result(PATIENCE_S) == [("started", ""), ("finished", "shutting_down")]
        assert "shutting_down" in openai.result(PATIENCE_S).text


def test_turns_in_the_background_get_their_time_at_a_stop_while_new_ones_are_refused() -> None:
    followed, alone = Gate("done in time"), Gate()
    with stoppable(kept(model(followed, alone)), PATIENCE_S) as server:
        api = Api(server.url)
        path = f"sessions/{api.start()}/turns"
        turn_id = api.post(path, {"text": "hello", "background": True})["turn_id"]
        assert followed.begun.wait(PATIENCE_S)
        api.post("requests", {**ASKED, "background": True})
        assert alone.begun.wait(PATIENCE_S)
        with api.stream("GET", f"turns/{turn_id}/events") as events:
            assert next(events).name == "started"
            server.stop()
            while api.client.get("/readyz").status_code == 200:
                pass

            assert api.fault("POST", "requests", ASKED)[:2] == (503, "shutting_down")
            assert api.fault("POST", "sessions", {})[:2] == (503, "shutting_down")
            assert api.fault("POST", path, {"text": "more", "background": True})[:2] == (503, "shutting_down")
            followed.open()
            assert list(events)[-1].data["answer"]["text"] == "done in time"
        assert api.client.get("/healthz").status_code == 200  # for the other turn runs
        alone.open()
        server.wait()
    assert not followed.cancelled.is_set()
    assert not alone.cancelled.is_set()


async def test_a_drained_runtime_takes_no_turns_and_ends_those_that_go_on_too_long() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hangs(request: object) -> str:
        begun.set()
        await ended.wait()
        return "too late"

    async with kept(model(hangs)) as runtime:
        session_id = await runtime.start_session()
        turns = [asyncio.create_task(runtime.submit_turn(session_id, text)) for text in ("one", "two")]
        await begun.wait()

        assert not await runtime.drain(0.05)

        assert [await turn for turn in turns] == [Err(ShuttingDown()), Err(ShuttingDown())]
        assert await runtime.submit_turn(session_id, "three") == Err(ShuttingDown())
        assert await runtime.drain(0)
