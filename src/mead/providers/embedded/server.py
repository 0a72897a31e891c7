"""Keeps the child process of the embedded model alive: started at first use, restarted after a crash, gone
with its parent. What goes wrong is a reason, never a hang."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import secrets
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mead.core.options import Options
from mead.core.reasons import ProviderReason, Timeout, Transport
from mead.core.result import Err, Ok, Result
from mead.providers.embedded.model import MODEL_NAME
from mead.providers.http import HttpClient

START_TIMEOUT_S = 120.0
"""How long a start may take: a cold disk and a large model are slow, a worker that hangs is killed."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 1.0, 60.0
_EXIT_WAIT_S = 1.0
_TAIL_CHARS = 2000
_WORKER = Path(__file__).with_name("worker.py")


class EmbeddedServer:
    """The worker and the gated connections to it.

    `find_model` gives the model's file, or `None` while it is not installed. `command` starts the worker, for
    tests. Callers that come while it starts share the start.
    """

    def __init__(
        self,
        find_model: Callable[[], Path | None],
        *,
        threads: int | None = None,
        context_tokens: int = 4096,
        parallel: int = 2,
        command: Sequence[str] | None = None,
    ) -> None:
        self._find_model = find_model
        self._threads = threads or max(1, (os.cpu_count() or 1) - 1)
        self._context_tokens = context_tokens
        self._parallel = parallel
        # -P: the folder of the worker is no place to import from.
        self._command = command or (sys.executable, "-P", str(_WORKER))
        self._needs_engine = command is None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process: Process | None = None
        self._tail = ""
        self._running: Running | None = None
        self._starting: asyncio.Task[Result[Running, ProviderReason]] | None = None
        self._failures = 0
        self._not_before = 0.0
        self._last_failure: ProviderReason | None = None
        self._drains: set[asyncio.Task[None]] = set()

    @property
    def pid(self) -> int | None:
        """The worker's process id, `None` while none runs."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def running(self, options: Options) -> Result[Running, ProviderReason]:
        """The running worker, started now if need be; waits until `options.deadline` at the latest.

        Fails with `Transport` (`engine`) where it cannot be started, at once while a worker that just failed
        is not yet to be tried again, and with `Timeout`.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._let_go(loop)
        if self._running is not None and self.pid is not None:
            return Ok(self._running)
        if self._starting is None:
            if loop.time() < self._not_before and self._last_failure is not None:
                return Err(self._last_failure)
            self._starting = loop.create_task(self._start())
        starting = self._starting
        try:
            async with asyncio.timeout_at(options.deadline):
                # Not the task itself: what ends it would be taken for a cancel of this caller.
                await asyncio.wait([starting])
        except TimeoutError as error:
            return Err(Timeout(detail="the embedded model was still being loaded"), cause=error)
        if starting.cancelled():
            return _broken("it was closed while it started")
        return starting.result()

    async def crashed(self) -> Transport | None:
        """Why the worker has died, if it has; waits a moment for it, as a connection may break first."""
        process = self._process
        if process is None:
            return None
        try:
            async with asyncio.timeout(_EXIT_WAIT_S):
                await process.wait()
        except TimeoutError:
            return None
        return self._death(process, "while it answered")

    async def aclose(self) -> None:
        """Ends the worker and closes the connections. A later call starts it again."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
            self._starting = None  # one that had not begun has not done it
        await self._kill()
        self._loop = None

    async def _start(self) -> Result[Running, ProviderReason]:
        """One start. Its outcome decides when the next may be tried."""
        try:
            result = await self._try_start()
        except OSError as error:
            said = f"the embedded engine cannot be started: {error.strerror}"
            result = Err(Transport(cause="engine", detail=said), cause=error)
        finally:
            self._starting = None
        if isinstance(result, Ok):
            self._running, self._failures = result.value, 0
        else:
            self._failures += 1
            self._last_failure = result.reason
            backoff_s = min(FIRST_BACKOFF_S * 2 ** (self._failures - 1), LONGEST_BACKOFF_S)
            self._not_before = asyncio.get_running_loop().time() + backoff_s
            await self._kill()
        return result

    async def _try_start(self) -> Result[Running, ProviderReason]:
        await self._kill()
        if self._needs_engine and importlib.util.find_spec("xllamacpp") is None:
            return _broken("its engine is not installed: pip install 'mead-runtime[local]'")
        model_path = self._find_model()
        if model_path is None:
            return _broken("its file is not installed: run `mead model install`")
        if not model_path.is_file():
            return _broken(f"there is no file {model_path}: check model_path under [embedded]")
        secret = secrets.token_urlsafe(32)
        process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        self._process, self._tail = process, ""
        drain = asyncio.get_running_loop().create_task(self._drain(process))
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)
        config = {
            "model_path": str(model_path),
            "model_name": MODEL_NAME,
            "secret": secret,
            "threads": self._threads,
            "context_tokens": self._context_tokens,
            "parallel": self._parallel,
        }
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                process.stdin.write(msgspec.json.encode(config) + b"\n")
                await process.stdin.drain()
                line = await process.stdout.readline()
        except TimeoutError:
            return _broken(f"it was not loaded after {START_TIMEOUT_S:.0f} s")
        except ConnectionError:
            line = b""
        return await self._read_report(process, line, secret)

    async def _read_report(
        self, process: Process, line: bytes, secret: str
    ) -> Result[Running, ProviderReason]:
        try:
            report = msgspec.json.decode(line, type=_Report)
        except msgspec.MsgspecError:
            _kill_group(process.pid)  # Process.kill() may reap it, and its status would be lost
            await process.wait()
            return Err(self._death(process, "while it loaded the model"))
        if report.port is None:
            return _broken(
                f"the engine cannot load {self._find_model()} ({report.error or 'it does not say why'})"
            )
        client = HttpClient(f"http://127.0.0.1:{report.port}/v1", slot="local")
        return Ok(Running(client, secret))

    async def _drain(self, process: Process) -> None:
        """Reads what the worker prints, so that it never blocks, and keeps the end of it."""
        assert process.stderr is not None
        while chunk := await process.stderr.read(65536):
            self._tail = (self._tail + chunk.decode(errors="replace"))[-_TAIL_CHARS:]

    def _death(self, process: Process, when: str) -> Transport:
        """The reason for a worker that died. Its own words stay out: the engine may print prompts."""
        code = process.returncode
        how = f"ended with status {code}"
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        why = "; the machine has probably run out of memory" if code == -signal.SIGKILL else ""
        if "MemoryError" in self._tail or "bad_alloc" in self._tail or "failed to allocate" in self._tail:
            why = "; there is not enough memory for the model"
        return Transport(
            cause="engine",
            detail=f"the engine of the embedded model {how} {when}{why}. The next turn starts it again.",
        )

    async def _kill(self) -> None:
        process, self._process = self._process, None
        running, self._running = self._running, None
        if running is not None:
            await running.client.aclose()
        if process is not None and process.returncode is None:
            _kill_group(process.pid)
            await process.wait()

    def _let_go(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends a worker whose event loop is gone: its pipes cannot be read any more."""
        if self._process is not None and self._process.returncode is None:
            _kill_group(self._process.pid)
        self._process = self._running = self._starting = None
        self._not_before = 0.0
        self._loop = loop


class Running:
    """A worker that is ready: the connections to it, and its key."""

    __slots__ = ("client", "secret")

    def __init__(self, client: HttpClient, secret: str) -> None:
        self.client = client
        self.secret = secret


class _Report(msgspec.Struct):
    port: int | None = None
    error: str | None = None


def _broken(why: str) -> Err[ProviderReason]:
    return Err(Transport(cause="engine", detail=f"the embedded model cannot be used: {why}"))


def _kill_group(pid: int) -> None:
    """Ends the worker and whatever it started: it leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
