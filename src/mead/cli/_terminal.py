"""What is written to the terminal: the answer to standard output, everything about it to standard error."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import sys
from typing import IO, NoReturn

import click

from mead.core.reasons import (
    Cancelled,
    ContextOverflow,
    Crashed,
    HttpStatus,
    MalformedResponse,
    MissingApiKey,
    PrivateContent,
    Reason,
    Timeout,
    ToolsUnsupported,
    Transport,
)
from mead.core.turns import Answer

TURN_FAILED, WRONG_USAGE = 1, 2

# Controls, which a terminal acts on (an escape sequence is harmless text without its first character), halves
# of surrogate pairs, and what turns the direction of the text around: it could show one thing and mean
# another.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """A model's or a server's text without what a terminal would act on: escapes, controls, bidi marks.

    >>> safe("a\\x1b[31mb\\n\\tc")
    'a[31mb\\n\\tc'
    """
    return _UNSAFE.sub("", text)


def is_terminal(stream: IO[str] | None) -> bool:
    """Whether a person is at the other end. A stream that was closed before the start is `None`."""
    return stream is not None and not stream.closed and stream.isatty()


def prepare_streams() -> None:
    """Lets no character fail that the other end cannot take, and shows warnings as the sentences they are."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    logging.getLogger("mead").addHandler(_LogLines(logging.WARNING))


class _LogLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(f"mead: {self.format(record)}")


def say(text: str) -> None:
    """Something about the work, made safe, to standard error."""
    click.echo(safe(text), err=True)


def write(text: str, *, newline: bool = True) -> None:
    """What the command is for, to standard output. Ends the program with a sentence where that fails; where
    the reader has left (`mead ask … | head`), click ends it in silence."""
    try:
        click.echo(text, nl=newline, color=True)  # else click would take escapes out of files
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        # What is still in the buffer would fail a second time, and loudly, when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say(f"mead: the output cannot be written: {error.strerror}")
        sys.exit(TURN_FAILED)


def write_answer(text: str, *, newline: bool = False) -> None:
    """Text of the answer. A terminal gets it made safe; a file or a pipe gets it as it is."""
    write(safe(text) if is_terminal(sys.stdout) else text, newline=newline)


def fail_usage(message: str) -> NoReturn:
    """Ends the command: it was called or configured in a way that cannot work."""
    say(f"mead: {message}")
    sys.exit(WRONG_USAGE)


def describe(reason: Reason) -> str:
    """A reason in one line: its tag, what happened, what to do next."""
    happened, hint = safe(_happened(reason)).rstrip("."), _hint(reason)
    line = f"{reason.tag}: {happened}." if happened else f"{reason.tag}."
    return f"{line} {hint[0].upper()}{hint[1:]}." if hint else line


def _happened(reason: Reason) -> str:
    detail = reason.detail or ""
    match reason:
        case HttpStatus():
            return f"the server answered {reason.status}" + (f" ({detail.rstrip('.')})" if detail else "")
        case Crashed():
            return detail or f"{reason.error} was raised"
        case Timeout(limit="deadline"):
            return detail or "the turn did not end in time"
        case Cancelled():
            return detail or "nothing of the turn was kept"
    return detail


def _hint(reason: Reason) -> str:
    """What to do next, where the reason's own detail does not say it."""
    match reason:
        case MissingApiKey():
            return "for anthropic and openai the variable ANTHROPIC_API_KEY or OPENAI_API_KEY will do"
        case PrivateContent():
            return "that is --route local or --allow-private"
        case ToolsUnsupported():
            return "use --route cloud, another model, or --tools none"
        case ContextOverflow():
            return "shorten the text"
        case Timeout(limit="connect") | Transport(cause="refused" | "dns"):
            return "start the server, or correct base_url in mead.toml"
        case Timeout(limit="idle"):
            return "if the model may be silent for longer, raise idle_timeout_s in mead.toml"
        case Timeout(limit="deadline"):
            return "give it more time with --timeout"
        case Transport(cause="cut" | "reset"):
            return "nothing of the turn was kept; ask again"
        case MalformedResponse():
            return "check provider and base_url in mead.toml"
        case HttpStatus():
            return _status_hint(reason)
        case Crashed():
            return "this is a mistake in mead or in a provider; the lines above say where"
    return ""


def _status_hint(reason: HttpStatus) -> str:
    if reason.retry_after_s is not None:
        return f"try again in {reason.retry_after_s:.0f} s"
    match reason.status:
        case 401 | 403:
            return "check api_key in mead.toml"
        case 404:
            return "correct model or base_url in mead.toml; `mead doctor` says which models there are"
        case 413:
            return "shorten the text"
        case 429:
            return "wait a little, then ask again"
    return "ask again later" if reason.status >= 500 else ""


def facts_of(answer: Answer, seconds: float | None = None) -> str:
    """The line under an answer: route, model, tokens, time."""
    decision, usage = answer.decision, answer.usage
    parts = []
    if decision is not None:
        parts = [decision.route, decision.model or decision.provider or ""]
    if usage.provider_calls:
        tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
        if usage.unknown:
            tokens = f"at least {tokens}" if usage.input_tokens + usage.output_tokens else "tokens unknown"
        parts.append(tokens)
    if seconds is not None:
        parts.append(f"{seconds:.1f} s")
    if decision is not None and decision.withheld:
        parts.append(f"{decision.withheld} local turns withheld")
    if answer.stop_reason == "max_tokens":
        parts.append("cut off by the token limit")
    if not answer.text.strip():
        parts.append("the answer is empty")
    return " · ".join([part for part in parts if part])


def say_facts(answer: Answer, seconds: float | None = None) -> None:
    """Writes the line under an answer, dim, with the warnings before it."""
    for warning in answer.warnings:
        say(f"warning: {warning}")
    if line := facts_of(answer, seconds):
        click.secho(safe(line), err=True, dim=True)
