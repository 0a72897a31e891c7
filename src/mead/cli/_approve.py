"""Asks the person at the terminal whether a tool may be called."""

from __future__ import annotations

import contextlib
import sys

import click
import msgspec

from mead.cli._terminal import is_terminal, safe, say
from mead.core.scope import Approval, ApprovalRequest

_ANSWERS = {
    "o": Approval(decision="once"),
    "s": Approval(decision="session"),
    "n": Approval(decision="no"),
    "v": Approval(decision="never"),
}
_QUESTION = "[o]nce, for this [s]ession with these arguments, [n]o, ne[v]er"


def can_ask() -> bool:
    """Whether there is a person who sees the question and can answer it."""
    return is_terminal(sys.stdin) and is_terminal(sys.stderr)


def ask_person(request: ApprovalRequest) -> Approval:
    """Shows the call and reads the answer; anything that is not an answer is a no.

    What was typed before the question is thrown away: it was not meant for it. Each line of what the model
    wrote is marked, so that none of it can pass for a question of mead's.
    """
    where = f" of the server {request.server}" if request.server else ""
    say(f"\nThe model wants to call {request.tool}{where}; {request.because}.")
    for name, value in request.arguments.items():
        say("\n".join([f"  │ {line}" for line in _shown(name, value).splitlines()]))
    _discard_typed()
    try:
        typed = click.prompt(_QUESTION, default="n", show_default=False, err=True)
    except (click.Abort, EOFError):
        raise KeyboardInterrupt from None
    return _ANSWERS.get(str(typed).strip().lower()[:1], _ANSWERS["n"])


def _shown(name: str, value: object) -> str:
    """An argument, whole: what is not shown cannot be approved."""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return f"{safe(name)} = {safe(text)}"


def _discard_typed() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import termios

        termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
