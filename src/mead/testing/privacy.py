"""Proves that what is private stays where it is: for tests of programs that use mead.

    async with PrivacyProof() as proof:
        secret = proof.canary("text")
        ...  # a runtime whose cloud slot has base_url=proof.cloud_url; a local turn that says f"… {secret}"
        proof.assert_nothing_leaked()

A proof that finds nothing may have looked at nothing: plant something that *should* reach the cloud as well
(`proof.canary("text", shareable=True)`) and see that it did (`proof.assert_reached_cloud`).
"""

from __future__ import annotations

import contextlib
import logging
import random
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Self

from mead import telemetry
from mead.testing.canaries import Canaries, Canary
from mead.testing.recording import Leak, Recorder, RecordingDns, RecordingServer, echo_all

_SHOWN = 20


class PrivacyProof:
    """Plants canaries and watches all the ways out. Use as `async with`.

    While it runs it keeps what reaches its `cloud` server (which answers chat requests in OpenAI's and
    Ollama's formats with all that it was shown), its `elsewhere` server and its name server `dns`; every log
    record of every logger down to DEBUG, every warning, every traceback that nobody caught, every event of
    mead's; and what it is told to `look_at`.

    The same `seed` plants the same words; without one it is random, and failures tell it. `names` are what
    the name server knows, see `RecordingDns`.
    """

    def __init__(
        self, *, seed: int | None = None, names: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> None:
        self.seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
        self._canaries = Canaries(self.seed)
        self._shareable: set[Canary] = set()
        self.cloud = RecordingServer(Recorder("the cloud"), echo_all)
        self.elsewhere = RecordingServer(Recorder("elsewhere"))
        self.dns = RecordingDns(Recorder("a name server"), names)
        self._watched = Watch()
        self._looked_at = Recorder("what was looked at")
        self._exit = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with contextlib.AsyncExitStack() as entered:
            for server in (self.cloud, self.elsewhere, self.dns):
                await entered.enter_async_context(server)
            entered.enter_context(self._watched)
            self._exit = entered.pop_all()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._exit.aclose()

    @property
    def cloud_url(self) -> str:
        """Where the recording cloud is; OpenAI's format is at `/v1` and below, Ollama's at its root."""
        return self.cloud.url

    @property
    def elsewhere_url(self) -> str:
        """A server that nothing has a reason to reach: a redirect leads there, say, or a proxy is there."""
        return self.elsewhere.url

    def canary(self, kind: str, *, shareable: bool = False) -> Canary:
        """A word to plant; `kind` says where. A `shareable` one may reach the cloud, and nothing else."""
        return self._noted(self._canaries.make(kind), shareable)

    def plant(self, kind: str, text: str, *, shareable: bool = False) -> Canary:
        """The same for a text of your own, of 6 characters or more."""
        return self._noted(self._canaries.keep(kind, text), shareable)

    def look_at(self, what: str, value: object) -> None:
        """Looks for canaries in the `repr` and the `str` of a value that should hold none: a reason, an
        exception, a decision, a line of the audit log."""
        text = f"{value!r}\n{value!s}"
        if isinstance(value, BaseException):
            text += "".join(traceback.format_exception(value))
        self._looked_at.add(what, text)

    def leaks(self) -> list[Leak]:
        """Everything that came out. What is private may reach none of the places, what is shareable only the
        cloud."""
        planted = self._canaries.made
        private = [canary for canary in planted if canary not in self._shareable]
        places = [self.elsewhere.recorder, self.dns.recorder, *self._watched.recorders, self._looked_at]
        return self.cloud.recorder.find(private) + [leak for place in places for leak in place.find(planted)]

    def assert_nothing_leaked(self) -> None:
        """Raises `AssertionError` that says which canary reached which place, and in which encoding."""
        leaks = self.leaks()
        if leaks:
            lines = [f"  {leak}" for leak in leaks[:_SHOWN]]
            more = [f"  and {len(leaks) - _SHOWN} more"] if len(leaks) > _SHOWN else []
            count = "1 leak" if len(leaks) == 1 else f"{len(leaks)} leaks"
            said = f"{count} (seed {self.seed}):"
            raise AssertionError("\n".join([said, *lines, *more]))

    def assert_reached_cloud(self, *canaries: Canary) -> None:
        """Raises `AssertionError` for a canary that the cloud has not seen."""
        seen = {leak.canary for leak in self.cloud.recorder.find(canaries)}
        missing = [canary.name for canary in canaries if canary not in seen]
        if missing:
            raise AssertionError(f"these did not reach the cloud, and should have: {', '.join(missing)}")

    def _noted(self, canary: Canary, shareable: bool) -> Canary:
        if shareable:
            self._shareable.add(canary)
        return canary


class Watch:
    """What a process tells besides its connections: logs, warnings, tracebacks, events. Use as `with`."""

    def __init__(self) -> None:
        self.logs, self.events = Recorder("the log"), Recorder("the event bus")
        self.warnings, self.tracebacks = Recorder("a warning"), Recorder("a traceback")
        self._exit = contextlib.ExitStack()

    @property
    def recorders(self) -> tuple[Recorder, ...]:
        """What was kept, by its place."""
        return (self.logs, self.events, self.warnings, self.tracebacks)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as entered:
            entered.callback(telemetry.attach(lambda event: self.events.add(event.name, repr(event))))
            entered.enter_context(_all_logs(_KeptLogs(self.logs)))
            entered.enter_context(self._all_warnings())
            entered.enter_context(self._all_tracebacks())
            self._exit = entered.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._exit.close()

    @contextlib.contextmanager
    def _all_warnings(self) -> Iterator[None]:
        shown_before = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            self.warnings.add(category.__name__, str(message))
            shown_before(message, category, *rest, **more)

        warnings.showwarning = show
        try:
            yield
        finally:
            warnings.showwarning = shown_before

    @contextlib.contextmanager
    def _all_tracebacks(self) -> Iterator[None]:
        """What ends up on stderr because nobody caught it."""

        def kept(name: str, before: Callable[[Any], object]) -> Callable[[Any], None]:
            def hook(args: Any) -> None:
                lines = traceback.format_exception(args.exc_value) if args.exc_value else []
                self.tracebacks.add(name, "".join([str(getattr(args, "err_msg", "")), *lines]))
                before(args)

            return hook

        unraisable, in_threads = sys.unraisablehook, threading.excepthook
        sys.unraisablehook = kept("sys.unraisablehook", unraisable)
        threading.excepthook = kept("threading.excepthook", in_threads)
        try:
            yield
        finally:
            sys.unraisablehook, threading.excepthook = unraisable, in_threads


class _KeptLogs(logging.Handler):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__(logging.NOTSET)
        self._recorder = recorder

    def emit(self, record: logging.LogRecord) -> None:
        # The fields of the record too: what `extra` holds goes to structured logs.
        fields = {name: value for name, value in record.__dict__.items() if name not in ("msg", "exc_info")}
        self._recorder.add(f"{record.name}, {record.levelname}", f"{self.format(record)}\n{fields!r}")


@contextlib.contextmanager
def _all_logs(handler: logging.Handler) -> Iterator[None]:
    """Has the handler hear every record of every logger there is now, down to DEBUG."""
    loggers = [
        logger for logger in logging.Logger.manager.loggerDict.values() if isinstance(logger, logging.Logger)
    ]
    heard = [logging.getLogger(), *[logger for logger in loggers if not logger.propagate]]
    before = [(logger, logger.level, logger.disabled) for logger in [logging.getLogger(), *loggers]]
    disabled_to = logging.root.manager.disable
    logging.disable(logging.NOTSET)
    for logger, _, _ in before:
        logger.setLevel(logging.DEBUG if logger is logging.root else logging.NOTSET)
        logger.disabled = False
    for logger in heard:
        if logger is not logging.root:
            logger.setLevel(logging.DEBUG)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in heard:
            logger.removeHandler(handler)
        for logger, level, disabled in before:
            logger.setLevel(level)
            logger.disabled = disabled
        logging.disable(disabled_to)
