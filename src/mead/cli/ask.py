"""`mead ask`: one turn, the answer on standard output."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from mead.cli._embedded import ensure_model
from mead.cli._json import answer_json, reason_json, write_json
from mead.cli._open import command_settings, open_runtime
from mead.cli._options import read_turn, turn_options
from mead.cli._servers import telling_of_servers
from mead.cli._store import continued, saying_faults, title_of
from mead.cli._terminal import TURN_FAILED, describe, fail_usage, is_terminal, say, say_facts, write_answer
from mead.cli._turn import stream_to_terminal
from mead.core.reasons import Cancelled
from mead.core.result import Err, Ok
from mead.core.turns import TurnResult
from mead.sessions.runtime import TurnKeywords
from mead.sessions.sync import SyncRuntime


@click.command("ask")
@click.argument("text", nargs=-1)
@turn_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.option("--stream/--no-stream", default=None, help="Write as it arrives (the default at a terminal).")
@click.option("-c", "--continue", "go_on", is_flag=True, help="Go on with the last session.")
@click.option("--session", metavar="ID", help="Go on with this session (`mead sessions list`).")
@click.pass_obj
def command(
    config: Path | None,
    /,
    text: tuple[str, ...],
    as_json: bool,
    stream: bool | None,
    go_on: bool,
    session: str | None,
    **options: Any,
) -> None:
    """Ask one question; the answer goes to standard output.

    Piped text is added to the question: cat notes.txt | mead ask "sum this up"
    """
    if go_on and session is not None:
        fail_usage("--continue and --session exclude each other")
    question, turn = read_turn(text, **options)
    settings = command_settings(config)
    if turn["route"] != "cloud":
        ensure_model(settings)
    with saying_faults(), telling_of_servers(), open_runtime(settings) as runtime:
        wanted = "last" if go_on else session
        if wanted is None:
            session_id = runtime.start_session(title=title_of(question))
        else:
            session_id = continued(runtime, wanted)
        if stream is None:
            stream = is_terminal(sys.stdout)
        if stream and not as_json:
            result = stream_to_terminal(runtime, session_id, question, **turn) or Err(Cancelled())
        else:
            result = _whole(runtime, session_id, question, turn)
            _write(result, session_id, as_json=as_json)
    if isinstance(result, Err):
        say(f"mead: {describe(result.reason)}")
        sys.exit(TURN_FAILED)


def _whole(runtime: SyncRuntime, session_id: str, question: str, turn: TurnKeywords) -> TurnResult:
    try:
        return runtime.submit_turn(session_id, question, **turn)
    except KeyboardInterrupt:
        return Err(Cancelled())


def _write(result: TurnResult, session_id: str, *, as_json: bool) -> None:
    if isinstance(result, Ok):
        if as_json:
            write_json(answer_json(result.value, session_id))
            return
        answer = result.value
        write_answer(answer.text, newline=True)
        cut_or_empty = answer.stop_reason == "max_tokens" or not answer.text.strip()
        if is_terminal(sys.stderr) or answer.warnings or cut_or_empty:
            say_facts(answer)
    elif as_json:
        write_json(reason_json(result.reason, session_id))
