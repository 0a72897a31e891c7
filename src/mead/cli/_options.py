"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mead.cli._input import InputError, join_texts, piped_text, read_attachment
from mead.cli._terminal import fail_usage
from mead.core.messages import DocumentBlock, ImageBlock
from mead.core.options import NO_OPTIONS, Options
from mead.sessions.runtime import TurnKeywords

_Command = TypeVar("_Command", bound=Callable[..., Any])

_TURN_OPTIONS = (
    click.option(
        "--route",
        type=click.Choice(["auto", "local", "cloud"]),
        default="auto",
        show_default=True,
        help="Where the turn goes.",
    ),
    click.option(
        "--tools",
        type=click.Choice(["read", "effect", "none"]),
        default="read",
        show_default=True,
        help="Which tools the model sees.",
    ),
    click.option("--system", metavar="TEXT", help="The system prompt."),
    click.option("--model", metavar="NAME", help="One of the slot's models."),
    click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="The longest answer."),
    click.option("--temperature", type=click.FloatRange(min=0), metavar="T", help="Randomness; 0 is none."),
    click.option("--timeout", "timeout_s", type=float, metavar="SECONDS", help="The turn's deadline."),
    click.option("--allow-private", is_flag=True, help="Let private content go to the cloud, this once."),
    click.option(
        "--attach",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="FILE",
        help="A file to add: text, picture or PDF. May be given more than once.",
    ),
)


def turn_options(command: _Command) -> _Command:
    """Gives a command the options of a turn."""
    for option in reversed(_TURN_OPTIONS):
        command = option(command)
    return command


def read_turn(
    words: tuple[str, ...],
    *,
    route: Any,
    tools: str,
    system: str | None,
    model: str | None,
    max_tokens: int | None,
    temperature: float | None,
    timeout_s: float | None,
    allow_private: bool,
    attach: tuple[Path, ...],
) -> tuple[str, TurnKeywords]:
    """The text and the keywords of the turn that a command line asks for. Ends the program with a sentence
    where they cannot be read."""
    if timeout_s is not None and not timeout_s > 0:
        fail_usage("--timeout must be over 0 seconds")
    texts: list[str] = []
    attachments: list[ImageBlock | DocumentBlock] = []
    for path in attach:
        try:
            read = read_attachment(path)
        except InputError as error:
            fail_usage(str(error))
        if isinstance(read, str):
            texts.append(read)
        else:
            attachments.append(read)
    text = join_texts(" ".join(words), *texts, piped_text())
    if not text and not attachments:
        fail_usage('nothing to ask: give a text (mead ask "…"), pipe one in, or attach a file')
    chosen = NO_OPTIONS
    if any(value is not None for value in (system, model, max_tokens, temperature)):
        chosen = Options(system=system, model=model, max_tokens=max_tokens, temperature=temperature)
    return text, TurnKeywords(
        route=route,
        tools=None if tools == "read" else tools,  # type: ignore[typeddict-item]  # click checked the words
        options=chosen,
        attachments=attachments,
        allow_private=allow_private,
        turn_timeout_s=timeout_s,
    )
