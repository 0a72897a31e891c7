"""Reads what a person types in a chat. One input may take several lines."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from mead.cli._terminal import is_terminal, say
from mead.settings.files import make_private_folder

_FENCE = '"""'
_HISTORY_LINES = 1000


class Typed(NamedTuple):
    """One input. `whole` is true for one of several lines or in quotes: it is never a command."""

    text: str
    whole: bool = False


def read_typed(ask: Callable[[str], str]) -> Typed | None:
    r"""One input of the person; `None` at the end of all input.

    `ask` shows a prompt and gives one line. A line that ends in \ goes on in the next one; a text between
    three double quotes goes on until they come again. Ctrl-C throws away what was typed so far.
    """
    lines: list[str] = []
    fenced = False
    while True:
        try:
            line = ask("… " if lines or fenced else "> ")
        except EOFError:
            return Typed("\n".join(lines), whole=True) if lines else None
        except KeyboardInterrupt:
            say("")
            lines, fenced = [], False
            continue
        if not lines and not fenced and line.lstrip().startswith(_FENCE):
            fenced, line = True, line.lstrip().removeprefix(_FENCE)
            if not line.strip():
                continue
        if fenced:
            line, closed = _before_fence(line)
            lines += [line] if line.strip() or not closed else []
            if closed:
                return Typed("\n".join(lines), whole=True)
        elif line.endswith("\\"):
            lines.append(line[:-1])
        else:
            return Typed("\n".join([*lines, line]), whole=bool(lines))


def _before_fence(line: str) -> tuple[str, bool]:
    """The line without quotes at its end, and whether it had them."""
    stripped = line.rstrip()
    return (stripped.removesuffix(_FENCE), True) if stripped.endswith(_FENCE) else (line, False)


def ask_terminal(prompt: str) -> str:
    """One line from standard input, after a prompt if a person is there. Raises `EOFError` at its end."""
    if not is_terminal(sys.stdin):
        return input()
    if is_terminal(sys.stdout):
        return input(prompt)
    # The answers go to a file, and the prompt must not.
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


@contextlib.contextmanager
def input_history(folder: Path) -> Iterator[None]:
    """Line editing, and the inputs of earlier chats behind the arrow keys, kept in a file of mode 0600.

    Where no person types, or Python has no readline, there is neither.
    """
    try:
        import readline
    except ImportError:
        yield
        return
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        yield
        return
    path = folder / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(_HISTORY_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            make_private_folder(folder)
            _make_private(path)
            readline.write_history_file(path)
            _make_private(path)


def _make_private(path: Path) -> None:
    """Gives the file to its owner alone; it is made if it is not there. A link is refused."""
    file = os.open(path, os.O_CREAT | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        os.chmod(file, 0o600)
    finally:
        os.close(file)
