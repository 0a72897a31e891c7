"""The embedded model: the real engine and the real file, and workers that misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mead.core.messages import Message, Tool, ToolResultBlock, ToolUseBlock, text_of
from mead.core.options import Options
from mead.core.reasons import InvalidOptions, Timeout, Transport
from mead.core.result import Err, Ok
from mead.core.scope import EgressRecord, NullScope
from mead.providers.embedded import EmbeddedProvider
from mead.providers.embedded.model import FILE_NAME
from mead.providers.embedded.server import EmbeddedServer
from mead.providers.protocol import answers_with_results

QUESTION = [Message("user", "Say hello.")]
SHORT = Options(max_tokens=8, temperature=0.0)


@pytest.fixture
async def provider(model_folder: Path) -> AsyncIterator[EmbeddedProvider]:
    made = EmbeddedProvider(folder=model_folder, threads=1)
    yield made
    await made.aclose()


def cause_of(result: object) -> tuple[str, str]:
    assert isinstance(result, Err)
    assert isinstance(result.reason, Transport)
    return result.reason.cause, result.reason.detail or ""


async def test_p1_p6_the_embedded_model_answers_in_all_three_calls(provider: EmbeddedProvider) -> None:
    fragments: list[str] = []

    completion = (await provider.complete(QUESTION, SHORT)).unwrap()
    reply = (await provider.converse(QUESTION, (), SHORT)).unwrap()
    streamed = (await provider.converse_stream(QUESTION, (), SHORT, fragments.append)).unwrap()

    assert completion.text
    assert "".join(fragments) == streamed.content[0].text  # type: ignore[union-attr]  # one text block
    assert reply.content == streamed.content
    assert reply.stop_reason == streamed.stop_reason == "max_tokens"
    assert reply.usage.input_tokens == streamed.usage.input_tokens == completion.usage.input_tokens
    assert reply.usage.output_tokens == streamed.usage.output_tokens == 8


BRANCH = Tool(
    "git__git_create_branch",
    "[git] Creates a new branch",
    {
        "type": "object",
        "properties": {
            "repo_path": {"type": "string"},
            "branch_name": {"type": "string"},
            "base_branch": {"type": "string"},
        },
        "required": ["repo_path", "branch_name"],
    },
)
CLOCK = Tool("clock__now", "[clock] Tells the time", {"type": "object", "properties": {}})


async def test_p2_tools_are_emulated_one_call_a_turn(provider: EmbeddedProvider) -> None:
    asked = [Message("user", "Create a branch called feature-x in /tmp/demo.")]

    called = (await provider.converse(asked, [CLOCK, BRANCH], SHORT)).unwrap()
    (call,) = called.content
    assert isinstance(call, ToolUseBlock)
    answered = [
        *asked,
        Message("assistant", called.content),
        Message("user", (ToolResultBlock(call.id, "Created branch 'feature-x'"),)),
    ]
    fragments: list[str] = []
    reply = (await provider.converse_stream(answered, [CLOCK, BRANCH], SHORT, fragments.append)).unwrap()

    assert called.stop_reason == "tool_use"
    assert (call.name, call.input) == (BRANCH.name, {"repo_path": "/tmp/demo", "branch_name": "feature-x"})
    assert called.usage.output_tokens
    assert call.id
    assert text_of(reply.content) == "".join(fragments)
    assert text_of(reply.content) == "git_create_branch answered:\nCreated branch 'feature-x'"
    assert reply.usage.output_tokens == 0, "no model was asked"
    assert not [block for block in reply.content if isinstance(block, ToolUseBlock)]


async def test_somebodys_own_model_reports_results_in_its_own_words(model_folder: Path) -> None:
    own = EmbeddedProvider(model_folder / FILE_NAME, folder=model_folder, threads=1)
    answered = [
        Message("user", "What time is it?"),
        Message("assistant", (ToolUseBlock("a", "clock__now", {}),)),
        Message("user", (ToolResultBlock("a", "twelve"),)),
    ]

    reply = (await own.converse(answered, [CLOCK], SHORT)).unwrap()
    await own.aclose()

    assert reply.usage.output_tokens


async def test_a_request_that_fits_no_tool_is_answered(provider: EmbeddedProvider) -> None:
    reply = (await provider.converse(QUESTION, [CLOCK, BRANCH], SHORT)).unwrap()

    assert text_of(reply.content)
    assert reply.stop_reason == "max_tokens"


async def test_s3_the_deadline_ends_an_answer(provider: EmbeddedProvider) -> None:
    await provider.server.running(Options())
    late = asyncio.get_running_loop().time() + 0.1

    result = await provider.complete(QUESTION, Options(max_tokens=2000, deadline=late))

    assert isinstance(result, Err)
    assert isinstance(result.reason, Timeout)


async def test_r17_its_requests_leave_their_records(provider: EmbeddedProvider) -> None:
    records: list[EgressRecord] = []

    class Listening(NullScope):
        def sent(self, record: EgressRecord) -> None:
            records.append(record)

    await provider.complete(QUESTION, Options(max_tokens=1, route="local", scope=Listening()))

    assert [(record.slot, record.route, record.path) for record in records] == [
        ("local", "local", "/v1/chat/completions")
    ]
    assert records[0].host.startswith("127.0.0.1:")


async def test_another_models_name_is_refused(provider: EmbeddedProvider) -> None:
    result = await provider.complete(QUESTION, Options(model="llama3.1"))

    assert isinstance(result, Err)
    assert isinstance(result.reason, InvalidOptions)
    assert "smollm2-135m-instruct" in str(result.reason)


async def test_a_prompt_over_the_context_is_refused(model_folder: Path) -> None:
    provider = EmbeddedProvider(folder=model_folder, threads=1, context_tokens=256, parallel=1)

    result = await provider.complete([Message("user", "word " * 400)], SHORT)
    await provider.aclose()

    assert isinstance(result, Err)
    assert isinstance(result.reason, InvalidOptions)


async def test_a_killed_engine_is_a_reason_and_the_next_call_starts_it_again(
    provider: EmbeddedProvider,
) -> None:
    def kill(_: str) -> None:
        if provider.server.pid is not None:
            os.kill(provider.server.pid, signal.SIGKILL)

    result = await provider.converse_stream(QUESTION, (), Options(max_tokens=200), kill)

    cause, detail = cause_of(result)
    assert cause == "engine"
    assert "SIGKILL" in detail
    assert "memory" in detail
    assert isinstance(await provider.complete(QUESTION, SHORT), Ok)


async def test_cancelling_leaves_the_engine_ready(provider: EmbeddedProvider) -> None:
    started = asyncio.Event()
    long = provider.converse_stream(QUESTION, (), Options(max_tokens=2000), lambda _: started.set())
    task = asyncio.create_task(long)
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert isinstance(await provider.complete(QUESTION, SHORT), Ok)


async def test_the_worker_answers_only_those_who_have_the_key_and_dumps_no_core(
    provider: EmbeddedProvider,
) -> None:
    running = (await provider.server.running(Options())).unwrap()
    sent = await running.client.send("GET", "/models", Options(), headers={"authorization": "Bearer wrong"})
    body = await running.client.send("POST", "/chat/completions", Options(), body=b"{}")
    arguments, environment, limits = [
        process_file(provider.server.pid, name) for name in ("cmdline", "environ", "limits")
    ]

    assert body.unwrap().status == 401
    assert sent.unwrap().status in (200, 401)
    secret = running.secret.encode()
    assert secret not in arguments
    assert secret not in environment
    core = next(line for line in limits.decode().splitlines() if line.startswith("Max core file size"))
    assert core.split()[4:6] == ["0", "0"]


def process_file(pid: int | None, name: str) -> bytes:
    return Path(f"/proc/{pid}/{name}").read_bytes()


def test_the_worker_is_gone_when_its_parent_is_killed(model_folder: Path) -> None:
    program = f"""
import asyncio, time
from pathlib import Path
from mead.core.options import Options
from mead.providers.embedded import EmbeddedProvider

async def main():
    provider = EmbeddedProvider(folder=Path({str(model_folder)!r}), threads=1)
    (await provider.server.running(Options())).unwrap()
    print(provider.server.pid, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        worker = int(parent.stdout.readline())
        watch = os.pidfd_open(worker)
        parent.kill()
    try:
        wait_until_readable(watch)
    finally:
        os.close(watch)


def wait_until_readable(descriptor: int) -> None:
    """A pidfd is readable once its process has ended."""
    import select

    ready, _, _ = select.select([descriptor], [], [], 20)
    assert ready, "the worker outlived its parent"


# Starts that go wrong


async def failing_start(server: EmbeddedServer, options: Options | None = None) -> tuple[str, str]:
    try:
        return cause_of(await server.running(options or Options()))
    finally:
        await server.aclose()


async def test_a_model_that_is_not_installed_is_said_with_the_command(tmp_path: Path) -> None:
    provider = EmbeddedProvider(folder=tmp_path)

    cause, detail = cause_of(await provider.complete(QUESTION, SHORT))

    assert cause == "engine"
    assert "mead model install" in detail


async def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    provider = EmbeddedProvider(tmp_path / "mine.gguf", folder=tmp_path)

    _, detail = cause_of(await provider.complete(QUESTION, SHORT))

    assert "mine.gguf" in detail
    assert "model_path" in detail


async def test_a_damaged_file_is_a_reason(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"GGUF" + bytes(100))
    provider = EmbeddedProvider(path, folder=tmp_path)

    _, detail = cause_of(await provider.complete(QUESTION, SHORT))
    await provider.aclose()

    assert "cannot load" in detail


async def test_a_missing_engine_is_said_with_the_extra(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    provider = EmbeddedProvider(folder=model_folder)

    _, detail = cause_of(await provider.complete(QUESTION, SHORT))

    assert "mead-runtime[local]" in detail


def server_of(program: str, path: Path = Path(__file__)) -> EmbeddedServer:
    """A server whose worker is a small program."""
    return EmbeddedServer(lambda: path, command=[sys.executable, "-c", program])


async def test_a_worker_that_dies_while_it_loads_is_a_reason_and_is_not_tried_at_once() -> None:
    server = server_of("import os, sys; sys.stderr.write('std::bad_alloc'); os.abort()")

    cause, detail = cause_of(await server.running(Options()))
    again = await server.running(Options())

    assert cause == "engine"
    assert "SIGABRT" in detail
    assert "not enough memory" in detail
    assert cause_of(again) == (cause, detail)
    assert server.pid is None, "the second call started nothing"
    await server.aclose()


async def test_a_worker_that_does_not_report_ends_with_the_deadline() -> None:
    server = server_of("import sys; sys.stdin.read()")

    result = await server.running(Options(deadline=asyncio.get_running_loop().time() + 0.05))
    pid = server.pid
    await server.aclose()

    assert isinstance(result, Err)
    assert isinstance(result.reason, Timeout)
    assert pid is not None, "the start goes on for the turns to come"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_worker_that_hangs_is_killed_after_the_start_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mead.providers.embedded.server.START_TIMEOUT_S", 0.05)

    cause, detail = await failing_start(server_of("import sys; sys.stdin.read()"))

    assert cause == "engine"
    assert "not loaded" in detail


async def test_a_port_that_is_taken_is_a_reason() -> None:
    report = json.dumps({"error": "couldn't bind HTTP server socket"})

    cause, detail = await failing_start(server_of(f"print({report!r})"))

    assert cause == "engine"
    assert "couldn't bind" in detail


async def test_a_program_that_is_no_worker_is_a_reason() -> None:
    cause, _ = await failing_start(server_of("print('hello')"))

    assert cause == "engine"


async def test_callers_that_come_while_it_starts_share_the_start(model_folder: Path) -> None:
    provider = EmbeddedProvider(folder=model_folder, threads=1)

    first, second = await asyncio.gather(
        provider.server.running(Options()), provider.server.running(Options())
    )
    await provider.aclose()

    assert first.unwrap() is second.unwrap()


def test_it_works_again_on_another_event_loop(model_folder: Path) -> None:
    provider = EmbeddedProvider(folder=model_folder, threads=1)

    async def ask(close: bool) -> object:
        result = await provider.complete(QUESTION, SHORT)
        if close:
            await provider.aclose()
        return result

    assert isinstance(asyncio.run(ask(close=True)), Ok)
    assert isinstance(asyncio.run(ask(close=True)), Ok)


async def test_closing_while_it_starts_is_a_reason_for_those_who_wait_and_no_cancel() -> None:
    server = server_of("import sys; sys.stdin.read()")
    waiting = [asyncio.create_task(server.running(Options())) for _ in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # the start has begun

    await server.aclose()

    assert [cause_of(await task)[0] for task in waiting] == ["engine", "engine"]


async def test_closing_before_a_start_has_begun_leaves_nothing_behind() -> None:
    server = server_of("print('hello')")
    waiting = asyncio.create_task(server.running(Options()))
    await asyncio.sleep(0)

    await server.aclose()

    assert "closed" in cause_of(await waiting)[1]
    assert "closed" not in (await failing_start(server))[1]


def test_only_the_packaged_model_answers_with_the_results_themselves(tmp_path: Path) -> None:
    assert answers_with_results(EmbeddedProvider(folder=tmp_path))
    assert not answers_with_results(EmbeddedProvider(tmp_path / "own.gguf", folder=tmp_path))
