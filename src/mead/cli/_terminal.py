"""What is written to the terminal: the answer to standard output, everything about it to standard error."""

from __future__ import annotations

import re
import sys
import unicodedata
from typing import NoReturn

import click

from mead.core.reasons import (
    CloudUnavailable,
    HttpStatus,
    InvalidOptions,
    LocalUnavailable,
    MissingApiKey,
    PrivateContent,
    Reason,
    Timeout,
    ToolsUnsupported,
    Transport,
)
from mead.core.turns import Answer

TURN_FAILED, WRONG_USAGE = 1, 2

# Characters that turn the direction of the text around could show one thing and mean another.
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def safe(text: str) -> str:
    """A model's or a server's text without what a terminal would act on: escapes, controls, bidi marks.

    >>> safe("a\\x1b[31mb\\n\\tc")
    'a[31mb\\n\\tc'
    """
    if text.isprintable() and not _BIDI.search(text):
        return text
    return "".join(
        [ch for ch in _BIDI.sub("", text) if ch in "\n\t" or unicodedata.category(ch) not in ("Cc", "Cs")]
    )


def say(text: str) -> None:
    """A line about the work, to standard error."""
    click.echo(text, err=True)


def write_answer(text: str, *, newline: bool = False) -> None:
    """Text of the answer. A terminal gets it made safe; a file or a pipe gets it as it is."""
    click.echo(safe(text) if sys.stdout.isatty() else text, nl=newline)


def fail_usage(message: str) -> NoReturn:
    """Ends the command: it was called or configured in a way that cannot work."""
    say(f"mead: {safe(message)}")
    sys.exit(WRONG_USAGE)


def describe(reason: Reason) -> str:
    """A reason in one line: its tag, what happened, what to do next."""
    detail = safe(reason.detail or "").rstrip(".")
    hint = _hint(reason)
    line = f"{reason.tag}: {detail}" if detail else reason.tag
    if isinstance(reason, HttpStatus):
        line = f"{reason.tag}: the server answered {reason.status}" + (f" ({detail})" if detail else "")
        if reason.retry_after_s is not None:
            hint = f"try again in {reason.retry_after_s:.0f} s"
    return f"{line}. {hint[0].upper()}{hint[1:]}." if hint else f"{line}."


def _hint(reason: Reason) -> str:
    match reason:
        case MissingApiKey():
            return 'put it into mead.toml as api_key = "${VARIABLE}" and set the variable'
        case LocalUnavailable() | CloudUnavailable() | PrivateContent() | InvalidOptions():
            return ""  # their detail says it
        case ToolsUnsupported():
            return "use --route cloud, another model, or --tools none"
        case Timeout(limit="connect") | Transport(cause="refused" | "dns"):
            return "is the server running, and base_url right? `mead doctor` looks"
        case Timeout():
            return "give it more time with --timeout"
        case Transport(cause="cut" | "reset"):
            return "nothing was kept of this turn; ask again"
        case HttpStatus(status=401 | 403):
            return "check api_key in mead.toml"
        case HttpStatus(status=404):
            return "check model and base_url; `mead doctor` looks"
        case HttpStatus(status=429):
            return "wait a little, then ask again"
    return ""


def facts_of(answer: Answer, seconds: float | None = None) -> str:
    """The line under an answer: route, model, tokens, time."""
    decision, usage = answer.decision, answer.usage
    parts = []
    if decision is not None:
        parts = [decision.route, decision.model or decision.provider or ""]
    if usage.provider_calls:
        tokens = f"{usage.input_tokens} tokens in, {usage.output_tokens} out"
        parts.append(f"at least {tokens}" if usage.unknown else tokens)
    if seconds is not None:
        parts.append(f"{seconds:.1f} s")
    if decision is not None and decision.withheld:
        parts.append(f"{decision.withheld} local turns withheld")
    if answer.stop_reason == "max_tokens":
        parts.append("cut off by the token limit")
    return " · ".join([part for part in parts if part])


def say_facts(answer: Answer, seconds: float | None = None) -> None:
    """Writes the line under an answer, dim, with the warnings before it."""
    for warning in answer.warnings:
        say(f"warning: {safe(warning)}")
    if line := facts_of(answer, seconds):
        click.secho(safe(line), err=True, dim=True)
