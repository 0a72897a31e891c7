"""`mead chat`: a conversation at the terminal."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import click

from mead.cli._embedded import ensure_model
from mead.cli._input import InputError, join_texts, read_attachment
from mead.cli._open import command_settings, open_runtime
from mead.cli._terminal import describe, safe, say
from mead.cli._turn import stream_to_terminal
from mead.core.messages import DocumentBlock, ImageBlock
from mead.core.options import NO_OPTIONS, Options
from mead.core.result import Err
from mead.sessions.runtime import TurnKeywords
from mead.sessions.sync import SyncRuntime

_HISTORY_LINES = 1000
_HELP = """\
/route auto|local|cloud     where turns go
/tools read|effect|none     which tools the model sees
/attach FILE                add a file to the next turn
/system TEXT                the system prompt, from the next turn on
/explain TEXT               where a turn would go, without sending it
/new                        a new conversation
/quit                       leave (also Ctrl-D)
A line that ends in \\ goes on in the next one; \"\"\" begins and ends a text of several lines.
Ctrl-C cancels the answer, not the program."""


@click.command("chat")
@click.option("--route", type=click.Choice(["auto", "local", "cloud"]), default="auto", show_default=True)
@click.option("--tools", type=click.Choice(["read", "effect", "none"]), default="read", show_default=True)
@click.option("--system", metavar="TEXT", help="The system prompt.")
@click.pass_obj
def command(config: Path | None, route: str, tools: str, system: str | None) -> None:
    """Talk with the model."""
    settings = command_settings(config)
    ensure_model(settings)
    with open_runtime(settings) as runtime:
        chat = _Chat(runtime, route=route, tools=tools, system=system)
        with _input_history(settings.data_folder):
            chat.run()


class _Chat:
    """The conversation and what the person has set for it."""

    def __init__(self, runtime: SyncRuntime, *, route: str, tools: str, system: str | None) -> None:
        self._runtime = runtime
        self._turn: dict[str, Any] = {"route": route, "tools": None if tools == "read" else tools}
        self._options = Options(system=system) if system else NO_OPTIONS
        self._texts: list[str] = []
        self._attachments: list[ImageBlock | DocumentBlock] = []
        self._session_id = runtime.start_session()

    def run(self) -> None:
        """Reads and answers until the person leaves."""
        if sys.stdin.isatty():
            say("Ask something; /help lists what else you can do, Ctrl-D leaves.")
        while (text := _read_input()) is not None:
            words = text.strip()
            if words.startswith("/") and "\n" not in words:
                if words in ("/quit", "/exit"):
                    return
                self._obey(*words[1:].split(maxsplit=1))
            elif words or self._texts or self._attachments:
                self._answer(text)

    def _answer(self, text: str) -> None:
        turn = TurnKeywords(**self._turn, options=self._options, attachments=self._attachments)  # type: ignore[typeddict-item]  # the words are checked where they come in
        text = join_texts(text, *self._texts)
        self._texts, self._attachments = [], []
        result = stream_to_terminal(self._runtime, self._session_id, text, **turn)
        if result is None:
            say("cancelled; nothing of this turn was kept")
        elif isinstance(result, Err):
            say(f"mead: {describe(result.reason)}")

    def _obey(self, name: str = "", argument: str = "") -> None:
        match name:
            case "help" | "":
                say(_HELP)
            case "route" if argument in ("auto", "local", "cloud"):
                self._turn["route"] = argument
            case "tools" if argument in ("read", "effect", "none"):
                self._turn["tools"] = None if argument == "read" else argument
            case "system":
                self._options = Options(system=argument) if argument else NO_OPTIONS
            case "attach" if argument:
                self._attach(Path(argument).expanduser())
            case "explain" if argument:
                self._explain(argument)
            case "new":
                self._runtime.stop_session(self._session_id)
                self._session_id = self._runtime.start_session()
                say("A new conversation.")
            case _:
                say(f"There is no command /{safe(name)} {safe(argument)}".rstrip() + "; /help lists them.")

    def _attach(self, path: Path) -> None:
        try:
            read = read_attachment(path)
        except InputError as error:
            say(f"mead: {error}")
            return
        if isinstance(read, str):
            self._texts.append(read)
        else:
            self._attachments.append(read)
        say(f"{path.name} goes with the next turn.")

    def _explain(self, text: str) -> None:
        from mead.cli.explain import lines_of

        turn = TurnKeywords(**self._turn, options=self._options)  # type: ignore[typeddict-item]  # as above
        result = self._runtime.explain(text, session_id=self._session_id, **turn)
        say(describe(result.reason) if isinstance(result, Err) else safe("\n".join(lines_of(result.value))))


def _read_input() -> str | None:
    """One input of the person, which may take several lines; `None` at the end of the input."""
    prompt = "> " if sys.stdin.isatty() else ""
    lines: list[str] = []
    block = False
    while True:
        try:
            line = input(prompt if not lines else "… " if prompt else "")
        except EOFError:
            return "\n".join(lines) if lines else None
        except KeyboardInterrupt:
            say("")
            lines, block = [], False
            continue
        if line.strip() == '"""':
            if block:
                return "\n".join(lines)
            block = True
        elif block:
            lines.append(line)
        elif line.endswith("\\"):
            lines.append(line[:-1])
        else:
            return "\n".join([*lines, line])


@contextlib.contextmanager
def _input_history(folder: Path) -> Any:
    """Line editing, and the inputs of earlier chats behind the arrow keys, kept in a file of mode 0600."""
    try:
        import readline
    except ImportError:  # a Python without it still chats
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
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), 0o600))
            readline.write_history_file(path)
            path.chmod(0o600)
