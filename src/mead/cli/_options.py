"""The options that several commands share."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mead.cli._input import InputError, join_texts, piped_text, read_attachment
from mead.cli._terminal import fail_usage
from mead.core.messages import DocumentBlock, ImageBlock
from mead.core.options import Options
from mead.sessions.runtime import TurnKeywords

ROUTES = ("auto", "local", "cloud")
TOOLS = ("read", "effect", "none")
_MOST_TOKENS = 2**31 - 1  # what servers take; no model comes near

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _from_zero(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """Refuses negative numbers, and what only Python takes for a number: `nan`, `inf`."""
    if value is not None and not (math.isfinite(value) and value >= 0):
        raise click.BadParameter("it must be a number from 0 on.")
    return value


def _over_zero(ctx: click.Context, param: click.Parameter, value: float | None) -> float | None:
    """The same, and 0 as well."""
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter("it must be a number over 0.")
    return value


_CONVERSATION_OPTIONS = (
    click.option(
        "--route", type=click.Choice(ROUTES), default="auto", show_default=True, help="Where turns go."
    ),
    click.option(
        "--tools",
        type=click.Choice(TOOLS),
        default="read",
        show_default=True,
        help="Which tools the model sees: those that only read, also those that change something, or none.",
    ),
    click.option("--system", metavar="TEXT", help="The system prompt."),
    click.option("--model", metavar="NAME", help="One of the slot's models."),
    click.option(
        "--max-tokens",
        type=click.IntRange(1, _MOST_TOKENS),
        metavar="N",
        help="The longest answer, in tokens.",
    ),
    click.option(
        "--temperature",
        type=float,
        callback=_from_zero,
        metavar="T",
        help="Randomness; 0 is none.",
    ),
    click.option(
        "--timeout",
        "timeout_s",
        type=float,
        callback=_over_zero,
        metavar="SECONDS",
        help="How long a turn may take; 300 where the settings say nothing.",
    ),
)
_TURN_OPTIONS = (
    click.option("--allow-private", is_flag=True, help="Let private content go to the cloud, this once."),
    click.option(
        "--attach",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE",
        help="A file to add: text, picture or PDF. May be given more than once.",
    ),
)


def conversation_options(command: _Command) -> _Command:
    """Gives a command the options that hold for every turn."""
    for option in reversed(_CONVERSATION_OPTIONS):
        command = option(command)
    return command


def turn_options(command: _Command) -> _Command:
    """Gives a command these, and the ones of a single turn."""
    for option in reversed(_TURN_OPTIONS):
        command = option(command)
    return conversation_options(command)


def turn_keywords(
    *,
    route: str,
    tools: str,
    system: str | None,
    model: str | None,
    max_tokens: int | None,
    temperature: float | None,
    timeout_s: float | None,
) -> TurnKeywords:
    """The keywords of a turn for the options of `conversation_options`."""
    options = Options(system=system, model=model, max_tokens=max_tokens, temperature=temperature)
    return TurnKeywords(
        route=route,  # type: ignore[typeddict-item]  # click checked the words
        tools=None if tools == "read" else tools,  # type: ignore[typeddict-item]  # as above
        options=options,
        turn_timeout_s=timeout_s,
    )


def read_turn(
    words: tuple[str, ...], *, allow_private: bool, attach: tuple[Path, ...], **options: Any
) -> tuple[str, TurnKeywords]:
    """The text and the keywords of the turn that a command line asks for. Ends the program with a sentence
    where they cannot be read."""
    texts: list[str] = []
    attachments: list[ImageBlock | DocumentBlock] = []
    try:
        for path in attach:
            read = read_attachment(path)
            if isinstance(read, str):
                texts.append(read)
            else:
                attachments.append(read)
        text = join_texts(" ".join(words), *texts, piped_text())
    except InputError as error:
        fail_usage(str(error))
    if not text and not attachments:
        fail_usage('nothing to ask: give a text (mead ask "…"), pipe one in, or attach a file')
    turn = turn_keywords(**options)
    turn["attachments"], turn["allow_private"] = attachments, allow_private
    return text, turn
