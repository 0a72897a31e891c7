"""Log lines as text and as JSON: whose turn they belong to, and what they leave out."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any, Literal

import pytest

import mead
from mead.telemetry.context import CURRENT_TURN, REQUEST_ID, CurrentTurn
from mead.telemetry.logs import configure_logging
from mead.testing import ProviderRequest, ScriptedProvider, calls
from mead.testing.canaries import Canaries, find
from support import runtime

_log = logging.getLogger("mead.tests")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """Leaves no handler and no level behind."""
    root, own = logging.getLogger(), logging.getLogger("mead")
    before = list(root.handlers), list(own.handlers), own.level
    yield
    root.handlers[:], own.handlers[:] = before[0], before[1]
    own.setLevel(before[2])


def lines(format: Literal["text", "json"] = "json") -> io.StringIO:
    """Where the lines go from now on."""
    written = io.StringIO()
    configure_logging(format, stream=written)
    return written


def entries(written: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_a_json_line_has_its_fields_and_no_others() -> None:
    written = lines()
    _log.warning("the server %s is down", "git")

    (entry,) = entries(written)
    assert entry.pop("time").endswith("Z")
    assert entry == {"level": "WARNING", "logger": "mead.tests", "message": "the server git is down"}


def test_a_line_names_the_turn_and_the_request_that_it_belongs_to_while_they_last() -> None:
    written = lines()
    turn, request = CURRENT_TURN.set(CurrentTurn("s1", 3)), REQUEST_ID.set("r-1")
    _log.info("during it")
    current = CURRENT_TURN.get()
    assert current is not None
    current.is_over = True
    _log.info("after it")
    CURRENT_TURN.reset(turn)
    REQUEST_ID.reset(request)

    told = [tuple(map(entry.get, ("session", "turn", "request_id"))) for entry in entries(written)]
    assert told == [("s1", 3, "r-1"), (None, None, "r-1")]


def test_the_text_format_has_them_too_and_no_line_can_pass_for_another() -> None:
    written = lines("text")
    token = CURRENT_TURN.set(CurrentTurn("s1", 3))
    _log.warning("one\n2026-01-01T00:00:00Z ERROR mead forged")
    CURRENT_TURN.reset(token)

    first, second = written.getvalue().splitlines()
    assert first.endswith(" WARNING mead.tests [s1/3] one")
    assert second.startswith("    ")


async def test_what_a_turn_logs_says_which_turn_it_was_also_where_turns_wait_for_each_other() -> None:
    written = lines()
    asked, may_go = asyncio.Event(), asyncio.Event()

    async def wait(request: ProviderRequest) -> str:
        asked.set()
        await may_go.wait()
        _log.info("in the first one")
        return "one"

    def second(request: ProviderRequest) -> str:
        _log.info("in the second one")
        return "two"

    async with runtime(ScriptedProvider(wait, second)) as opened:
        session_id = await opened.start_session()

        async def submit(request_id: str) -> None:
            REQUEST_ID.set(request_id)
            (await opened.submit_turn(session_id, "hello", route="local")).unwrap()

        first = asyncio.create_task(submit("r-1"))
        await asked.wait()
        waiting = asyncio.create_task(submit("r-2"))
        await asyncio.sleep(0)
        may_go.set()
        await asyncio.gather(first, waiting)
        _log.info("outside")

    told = [(entry["message"], entry.get("turn"), entry.get("request_id")) for entry in entries(written)]
    assert told == [("in the first one", 1, "r-1"), ("in the second one", 2, "r-2"), ("outside", None, None)]


async def test_a_task_that_outlives_its_turn_does_not_log_in_its_name() -> None:
    written = lines()
    may_go = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def later() -> None:
        await may_go.wait()
        _log.info("much later")

    def begin(request: ProviderRequest) -> str:
        tasks.append(asyncio.get_running_loop().create_task(later()))
        return "begun"

    async with runtime(ScriptedProvider(begin)) as opened:
        await opened.submit_turn(await opened.start_session(), "hello", route="local")
        may_go.set()
        await tasks[0]

    assert [(entry["message"], entry.get("turn")) for entry in entries(written)] == [("much later", None)]


@pytest.mark.parametrize("format", ["text", "json"])
def test_t3_of_an_exception_only_the_type_and_the_place_are_written(format: Literal["text", "json"]) -> None:
    written = lines(format)
    said = "-".join(["CANARY", "IN", "AN", "EXCEPTION"])  # the line of source that raises it is shown
    try:
        raise ValueError(said)
    except ValueError:
        _log.exception("it failed")

    assert "ValueError" in written.getvalue()
    assert "test_logs.py" in written.getvalue()
    assert "CANARY" not in written.getvalue()


@pytest.mark.parametrize("format", ["text", "json"])
def test_t3_of_another_librarys_line_only_the_place_is_written(format: Literal["text", "json"]) -> None:
    written = lines(format)
    logging.getLogger("some.library").warning("cannot parse %s", "CANARY-OF-A-MESSAGE")
    logging.getLogger("meadow").warning("CANARY-OF-A-MESSAGE")  # begins like ours, and is not

    assert written.getvalue().count("test_logs:") == 2
    assert "some.library" in written.getvalue()
    assert "CANARY" not in written.getvalue()


def test_t3_a_line_that_cannot_be_made_is_not_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    lines()
    record = _log.makeRecord(_log.name, logging.WARNING, "", 0, "%d things", ("CANARY-IN-AN-ARGUMENT",), None)
    logging.getLogger().handlers[-1].handle(record)

    shown = capsys.readouterr().err
    assert "a log line of mead.tests could not be written" in shown
    assert "CANARY" not in shown


def test_configuring_again_replaces_the_handler_and_leaves_those_of_others() -> None:
    others = logging.NullHandler()
    logging.getLogger().addHandler(others)
    logging.getLogger("mead").addHandler(logging.StreamHandler(io.StringIO()))
    before, now = lines(), lines()
    _log.warning("once")

    assert (before.getvalue(), len(entries(now))) == ("", 1)
    assert others in logging.getLogger().handlers
    assert logging.getLogger("mead").handlers == []


async def test_t3_nothing_of_what_is_said_is_in_any_line() -> None:
    canaries = Canaries(seed=11)
    question, answer, argument, raised = [
        canaries.make(kind) for kind in ("question", "answer", "argument", "exception")
    ]
    written = lines()
    logging.getLogger("mead").setLevel(logging.DEBUG)

    @mead.tool(effect=False)
    def broken(where: str) -> str:
        """Fails."""
        raise ValueError(f"{where} {raised}")

    provider = ScriptedProvider(calls("broken", where=str(argument)), str(answer), ValueError(str(raised)))
    async with runtime(provider, tools=[broken]) as opened:
        session_id = await opened.start_session()
        for _ in range(2):
            await opened.submit_turn(session_id, str(question), route="local")

    told = entries(written)
    assert [(entry["session"], entry["turn"]) for entry in told] == [(session_id, 1)] * (len(told) - 1) + [
        (session_id, 2)
    ]
    assert any("crashed with ValueError" in entry["message"] for entry in told)
    assert find(written.getvalue(), canaries.made) == []
