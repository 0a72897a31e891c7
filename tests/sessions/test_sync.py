"""The same runtime from scripts, threads, running loops (notebooks), repeated `asyncio.run` and forks."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import mead
from mead.core.reasons import Cancelled, NoSuchSession, ShuttingDown
from mead.core.result import Err
from mead.sessions.default import close_default, explain_request, stream_request, submit_request
from mead.sessions.sync import BackgroundLoop
from mead.testing import ProviderRequest, ScriptedProvider
from support import slots


@pytest.fixture
def opened() -> Iterator[mead.SyncRuntime]:
    provider = ScriptedProvider(otherwise=lambda request: f"heard {request.messages[-1].content}")
    with mead.SyncRuntime(lambda: mead.Runtime(slots=slots(provider))) as made:
        yield made


@pytest.fixture
def default() -> Iterator[None]:
    """A default runtime of the test's own."""
    provider = ScriptedProvider(otherwise=lambda request: f"heard {request.messages[-1].content}")
    mead.configure(make=lambda: mead.Runtime(slots=slots(provider)))
    yield
    close_default()


def test_every_method_waits_for_its_result(opened: mead.SyncRuntime) -> None:
    session_id = opened.start_session()

    assert opened.submit_turn(session_id, "one").unwrap().text == "heard one"
    assert [type(event).__name__ for event in opened.stream_turn(session_id, "two")] == ["Delta", "Finished"]
    assert len(opened.history(session_id).unwrap()) == 2
    assert opened.sessions() == (session_id,)
    assert opened.egress() == ()
    assert isinstance(opened.explain("three", session_id=session_id).unwrap(), mead.Decision)
    assert not opened.cancel_turn(session_id)
    assert isinstance(opened.for_owner("ada").history(session_id), Err)
    assert opened.stop_session(session_id)
    assert isinstance(opened.submit_turn(session_id, "four"), Err)


def test_requests_with_their_own_history_wait_too(opened: mead.SyncRuntime) -> None:
    messages = [mead.Message("user", "one"), mead.Message("assistant", "two"), mead.Message("user", "three")]

    assert opened.submit_request(messages).unwrap().text == "heard three"
    assert [type(event).__name__ for event in opened.stream_request(messages)] == ["Delta", "Finished"]
    assert isinstance(opened.explain_request(messages).unwrap(), mead.Decision)
    assert opened.sessions() == ()


async def test_it_works_inside_a_running_loop_as_in_a_notebook(opened: mead.SyncRuntime) -> None:
    session_id = opened.start_session()

    assert opened.submit_turn(session_id, "one").unwrap().text == "heard one"


def test_many_threads_share_it(opened: mead.SyncRuntime) -> None:
    session_id = opened.start_session()

    def ask(number: int) -> str:
        return opened.submit_turn(session_id, str(number)).unwrap().text

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(40)))

    assert answers == [f"heard {number}" for number in range(40)]
    assert len(opened.history(session_id).unwrap()) == 40


def test_leaving_a_stream_early_cancels_the_turn() -> None:
    left = threading.Event()

    async def endless(request: ProviderRequest) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    class Slow(ScriptedProvider):
        async def converse_stream(self, messages, tools, options, on_delta):  # type: ignore[no-untyped-def]  # as above
            on_delta("first")
            return await super().converse_stream(messages, tools, options, on_delta)

    provider = Slow(endless, "next")
    with mead.SyncRuntime(lambda: mead.Runtime(slots=slots(provider))) as made:
        session_id = made.start_session()
        for event in made.stream_turn(session_id, "one", route="local"):
            assert event == mead.Delta("first")
            break
        assert left.wait(10)
        assert made.submit_turn(session_id, "two").unwrap().text == "next"


def test_another_thread_can_cancel_a_turn() -> None:
    asked = threading.Event()

    async def endless(request: ProviderRequest) -> None:
        asked.set()
        await asyncio.Event().wait()

    with mead.SyncRuntime(lambda: mead.Runtime(slots=slots(ScriptedProvider(endless)))) as made:
        session_id = made.start_session()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(made.submit_turn, session_id, "one")
            assert asked.wait(10)
            assert made.cancel_turn(session_id)
            assert future.result(10) == Err(Cancelled())


def test_from_its_own_loop_it_refuses_instead_of_waiting_for_itself() -> None:
    inner: list[str] = []

    class Reentrant(mead.EchoHandler):
        async def handle_turn(self, turns, state, options):  # type: ignore[no-untyped-def]  # as above
            try:
                made.start_session()
            except RuntimeError as error:
                inner.append(str(error))
            return await super().handle_turn(turns, state, options)

    with mead.SyncRuntime(lambda: mead.Runtime(handler=Reentrant())) as made:
        made.submit_turn(made.start_session(), "hello").unwrap()

    assert "use Runtime there" in inner[0]


def test_after_closing_it_says_so() -> None:
    made = mead.SyncRuntime(mead.Runtime)
    made.close()
    made.close()

    with pytest.raises(RuntimeError, match="closed"):
        made.start_session()


class Waiting:
    """A handler whose turns wait for ever. `asked` counts those that have begun."""

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)

    async def handle_turn(self, turns, state, options):  # type: ignore[no-untyped-def]  # any handler
        self.asked.release()
        await asyncio.Event().wait()


def test_closing_while_other_threads_wait_ends_their_turns_and_leaves_nobody_waiting() -> None:
    handler = Waiting()
    made = mead.SyncRuntime(lambda: mead.Runtime(handler=handler))
    sessions = [made.start_session() for _ in range(4)]

    def read(session_id: str) -> object:
        return list(made.stream_turn(session_id, "hello"))[-1].result  # type: ignore[union-attr]  # Finished comes last

    with ThreadPoolExecutor(8) as pool:
        turns = [pool.submit(made.submit_turn, session_id, "hello") for session_id in sessions[:2]]
        turns += [pool.submit(read, session_id) for session_id in sessions[2:]]  # type: ignore[arg-type]  # as above
        for _ in sessions:
            assert handler.asked.acquire(timeout=10)
        closing = [pool.submit(made.close) for _ in range(3)]

        assert [future.result(10) for future in closing] == [None] * 3
        assert [future.result(10) for future in turns] == [Err(ShuttingDown())] * 4
    with pytest.raises(RuntimeError, match="closed"):
        made.start_session()


def test_threads_that_call_while_it_is_closed_get_an_answer_or_are_told() -> None:
    made = mead.SyncRuntime(mead.Runtime)
    start = threading.Barrier(5)

    def call() -> str:
        start.wait(10)
        try:
            while True:
                made.start_session()
        except RuntimeError as error:
            return str(error)

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call) for _ in range(4)]
        start.wait(10)
        made.close()

        assert [future.result(10) for future in calls] == ["the runtime is closed"] * 4


def test_what_is_outstanding_when_the_loop_is_closed_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mead.sessions.sync._CANCEL_TIMEOUT_S", 0.01)
    background = BackgroundLoop()
    stubborn = threading.Event()

    async def ignore_the_cancel() -> None:
        while True:
            try:
                stubborn.set()
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    future = background.submit(ignore_the_cancel())
    assert stubborn.wait(10)
    background.close()

    with pytest.raises(RuntimeError, match="closed"):
        background.result(future)


def test_a_call_fails_and_does_not_hang_when_the_thread_of_the_loop_has_died() -> None:
    async def interrupt() -> None:
        raise KeyboardInterrupt

    async def answer() -> str:
        return "alive"

    threading.excepthook, before = lambda _: None, threading.excepthook
    try:
        background = BackgroundLoop()
        with pytest.raises((KeyboardInterrupt, RuntimeError)):
            background.call(interrupt())
        background._thread.join(10)
    finally:
        threading.excepthook = before

    with pytest.raises(RuntimeError, match="closed"):
        background.call(answer())
    background.close()
    background.close()


def test_a_call_that_exits_is_told_to_its_caller_and_the_loop_goes_on() -> None:
    async def leave() -> None:
        raise SystemExit(3)

    async def answer() -> str:
        return "alive"

    background = BackgroundLoop()
    try:
        with pytest.raises(SystemExit):
            background.call(leave())
        assert background.call(answer()) == "alive"
    finally:
        background.close()


def test_it_cannot_be_closed_from_its_own_loop() -> None:
    said: list[str] = []

    class Closing(mead.EchoHandler):
        async def handle_turn(self, turns, state, options):  # type: ignore[no-untyped-def]  # as its base
            try:
                made.close()
            except RuntimeError as error:
                said.append(str(error))
            return await super().handle_turn(turns, state, options)

    with mead.SyncRuntime(lambda: mead.Runtime(handler=Closing())) as made:
        made.submit_turn(made.start_session(), "hello").unwrap()

    assert said == ["SyncRuntime cannot be closed from its own loop"]


async def test_an_awaited_stream_ends_when_the_default_runtime_is_closed() -> None:
    handler = Waiting()
    mead.configure(make=lambda: mead.Runtime(handler=handler))
    session_id = await mead.aio.start_session()
    reading = asyncio.create_task(anext(aiter(mead.aio.stream_turn(session_id, "one"))))
    assert await asyncio.to_thread(handler.asked.acquire, timeout=10)
    await asyncio.to_thread(close_default)

    assert await reading == mead.Finished(Err(ShuttingDown()))


def test_a_runtime_that_cannot_be_made_raises_and_leaves_no_thread() -> None:
    before = threading.active_count()

    def broken() -> mead.Runtime:
        raise mead.ConfigError("wrong")

    with pytest.raises(mead.ConfigError):
        mead.SyncRuntime(broken)
    assert threading.active_count() == before


# The functions of the module


def test_the_modules_functions_use_one_default_runtime(default: None) -> None:
    session_id = mead.start_session()

    assert mead.submit_turn(session_id, "one").unwrap().text == "heard one"
    assert list(mead.stream_turn(session_id, "two"))[-1].result.unwrap().text == "heard two"  # type: ignore[union-attr]  # Finished comes last
    assert len(mead.history(session_id).unwrap()) == 2
    assert isinstance(mead.explain("x").unwrap(), mead.Decision)
    assert not mead.cancel_turn(session_id)
    assert mead.stop_session(session_id)
    assert mead.history(session_id) == Err(NoSuchSession(detail=mead.history(session_id).reason.detail))  # type: ignore[union-attr]  # it is an Err


def test_the_default_runtime_answers_requests(default: None) -> None:
    messages = [mead.Message("user", "one")]

    async def awaited() -> list[mead.TurnEvent]:
        assert (await mead.aio.submit_request(messages)).unwrap().text == "heard one"
        assert isinstance((await mead.aio.explain_request(messages)).unwrap(), mead.Decision)
        return [event async for event in mead.aio.stream_request(messages)]

    assert submit_request(messages).unwrap().text == "heard one"
    assert isinstance(explain_request(messages).unwrap(), mead.Decision)
    for events in (list(stream_request(messages)), asyncio.run(awaited())):
        assert [type(event).__name__ for event in events] == ["Delta", "Finished"]


def test_sessions_outlive_any_asyncio_run(default: None) -> None:
    session_id = asyncio.run(mead.aio.start_session())
    for number in range(3):
        answer = asyncio.run(mead.aio.submit_turn(session_id, str(number))).unwrap()
        assert answer.text == f"heard {number}"

    assert len(mead.history(session_id).unwrap()) == 3


async def test_the_awaitable_twins_do_not_block_the_loop(default: None) -> None:
    session_id = await mead.aio.start_session()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(tick())
    await mead.aio.submit_turn(session_id, "one")
    ticking.cancel()
    events = [event async for event in mead.aio.stream_turn(session_id, "two")]

    assert ticks > 1
    assert events[0] == mead.Delta("heard two")
    assert isinstance(events[-1], mead.Finished)
    assert len((await mead.aio.history(session_id)).unwrap()) == 2
    assert isinstance((await mead.aio.explain("x")).unwrap(), mead.Decision)
    assert not await mead.aio.cancel_turn(session_id)
    assert await mead.aio.stop_session(session_id)


async def test_cancelling_an_awaited_turn_cancels_the_turn() -> None:
    asked = threading.Event()

    async def endless(request: ProviderRequest) -> None:
        asked.set()
        await asyncio.Event().wait()

    mead.configure(make=lambda: mead.Runtime(slots=slots(ScriptedProvider(endless, "next"))))
    try:
        session_id = await mead.aio.start_session()
        task = asyncio.create_task(mead.aio.submit_turn(session_id, "one"))
        assert await asyncio.to_thread(asked.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await mead.aio.submit_turn(session_id, "two")).unwrap().text == "next"
    finally:
        await asyncio.to_thread(close_default)


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )


def test_a_plain_script_ends_by_itself() -> None:
    done = run_python("import mead; print(mead.submit_turn(mead.start_session(), 'hello').unwrap().text)")

    assert (done.returncode, done.stdout, done.stderr) == (0, "hello\n", "")


def test_a_forked_process_gets_a_runtime_of_its_own() -> None:
    done = run_python("""
import os, mead
print(mead.submit_turn(mead.start_session(), "parent").unwrap().text, flush=True)
child = os.fork()
if child == 0:
    print(mead.submit_turn(mead.start_session(), "child").unwrap().text, flush=True)
    os._exit(0)
os.waitpid(child, 0)
""")

    assert done.stdout == "parent\nchild\n"
    assert done.returncode == 0


def test_ctrl_c_in_the_waiting_thread_cancels_the_turn() -> None:
    program = """
import asyncio, mead
from mead.testing import ScriptedProvider
async def endless(request):
    print("asked", flush=True)
    await asyncio.Event().wait()
provider = ScriptedProvider(endless, "next")
runtime = mead.SyncRuntime(lambda: mead.Runtime(slots=mead.Slots(local=mead.Slot(provider))))
session_id = runtime.start_session()
try:
    runtime.submit_turn(session_id, "one")
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(runtime.submit_turn(session_id, "two").unwrap().text)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)

    assert rest == "interrupted\nnext\n"


def test_mead_runtime_and_mead_scripted_are_fixtures_for_users(
    mead_scripted: Callable[..., ScriptedProvider], mead_runtime: Callable[..., mead.SyncRuntime]
) -> None:
    cloud = mead_scripted("from afar")
    made = mead_runtime(cloud=cloud)

    answer = made.submit_turn(made.start_session(), "hello", route="cloud").unwrap()

    assert answer.text == "from afar"
    assert cloud.requests[0].text.strip() == "hello"
