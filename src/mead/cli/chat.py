"""`mead chat`: a conversation at the terminal."""

from __future__ import annotations

import os.path
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from mead.cli._embedded import ensure_model
from mead.cli._input import InputError, join_texts, read_attachment
from mead.cli._open import command_settings, open_runtime
from mead.cli._options import ROUTES, TOOLS, conversation_options, turn_keywords
from mead.cli._prompt import Typed, ask_terminal, input_history, read_typed
from mead.cli._servers import telling_of_servers
from mead.cli._store import continued, saying_faults, title_of
from mead.cli._terminal import TURN_FAILED, describe, fail_usage, is_terminal, say
from mead.cli._turn import stream_to_terminal
from mead.core.messages import DocumentBlock, ImageBlock
from mead.core.result import Err
from mead.sessions.runtime import TurnKeywords
from mead.sessions.sync import SyncRuntime

_HELP = """\
/route auto|local|cloud     where turns go
/tools read|effect|none     which tools the model sees
/model NAME                 one of the slot's models; without a name, the slot's own
/system TEXT                the system prompt from the next turn on; without a text, that of the settings
/attach FILE                add a file to the next turn
/explain TEXT               where a turn would go, without sending it
/compact                    go on from a summary of this conversation
/new                        a new conversation
/quit                       leave (also Ctrl-D)
A line that ends in \\ goes on in the next one; \"\"\" begins and ends a text of several lines.
A space before the / makes it a text. Ctrl-C cancels the answer, not the program."""


@click.command("chat")
@conversation_options
@click.pass_obj
def command(config: Path | None, /, **options: Any) -> None:
    """Talk with the model."""
    talk(config, options)


def talk(config: Path | None, options: Mapping[str, Any], *, resume: str | None = None) -> None:
    """Reads and answers until the person leaves. `resume` names a session to go on with."""
    if sys.stdin is None:
        fail_usage('standard input is closed; give one question with: mead ask "…"')
    settings = command_settings(config)
    if options["route"] != "cloud":
        ensure_model(settings)
    with saying_faults(), telling_of_servers(), open_runtime(settings) as runtime:
        session_id = None if resume is None else continued(runtime, resume)
        chat = _Chat(runtime, turn_keywords(**options), session_id)
        with input_history(settings.data_folder):
            chat.run()
    if chat.failed and not is_terminal(sys.stdin):
        sys.exit(TURN_FAILED)


class _Chat:
    """The conversation and what the person has set for it. `failed` is true once a turn has failed."""

    def __init__(self, runtime: SyncRuntime, turn: TurnKeywords, session_id: str | None) -> None:
        self.failed = False
        self._runtime = runtime
        # A turn that was just cancelled may still be ending: the next one waits for it.
        self._turn = TurnKeywords(**{**turn, "busy": "queue"})
        self._texts: list[str] = []
        self._attachments: list[ImageBlock | DocumentBlock] = []
        self._session_id = session_id  # a conversation in which nothing was said is not kept

    def run(self) -> None:
        """Reads and answers until the person leaves."""
        at_terminal = is_terminal(sys.stdin)
        if at_terminal:
            say("Ask something; /help lists what else you can do, Ctrl-D leaves.")
        while True:
            try:
                typed = read_typed(ask_terminal)
                if typed is None:
                    if at_terminal:
                        say("")  # the shell's prompt belongs on a line of its own
                    return
                if not typed.whole and typed.text.rstrip() in ("/quit", "/exit"):
                    return
                self._take(typed)
            except KeyboardInterrupt:  # a second one, while the first was being dealt with
                say("")

    def _take(self, typed: Typed) -> None:
        if not typed.whole and typed.text.startswith("/"):
            name, _, argument = typed.text[1:].partition(" ")
            self._obey(name.strip(), argument.strip())
        elif typed.text.strip() or self._texts or self._attachments:
            self._answer(typed.text)

    def _answer(self, text: str) -> None:
        turn = TurnKeywords(**{**self._turn, "attachments": self._attachments})
        text = join_texts(text, *self._texts)
        self._texts, self._attachments = [], []
        if self._session_id is None:
            self._session_id = self._runtime.start_session(title=title_of(text))
        result = stream_to_terminal(self._runtime, self._session_id, text, **turn)
        if result is None:
            say("cancelled; nothing of this turn was kept")
        elif isinstance(result, Err):
            self.failed = True
            say(f"mead: {describe(result.reason)}")

    def _obey(self, name: str, argument: str) -> None:
        match name:
            case "help" | "":
                say(_HELP)
            case "route":
                self._choose("route", argument, ROUTES)
            case "tools":
                self._choose("tools", argument, TOOLS)
            case "model" | "system":
                self._set_option(name, argument or None)
            case "attach" if argument:
                self._attach(argument)
            case "explain" if argument:
                self._explain(argument)
            case "compact":
                self._compact()
            case "new":
                self._session_id = None
                say("A new conversation.")
            case "attach" | "explain":
                say(f"/{name} needs {'a file' if name == 'attach' else 'a text'} after it.")
            case _:
                say(f"There is no command /{name}; /help lists them.")

    def _choose(self, name: str, word: str, words: tuple[str, ...]) -> None:
        """Sets `route` or `tools`; says what it is now."""
        current = self._turn.get(name) or "read"
        if word in words:
            current = word
            setting = {name: None if word == "read" else word}
            self._turn = TurnKeywords(**{**self._turn, **setting})  # type: ignore[typeddict-item]  # `words` are its words
        elif word:
            say(f"/{name} takes {', '.join(words[:-1])} or {words[-1]}.")
        say(f"{name}: {current}")

    def _set_option(self, name: str, value: str | None) -> None:
        self._turn["options"] = msgspec.structs.replace(self._turn["options"], **{name: value})
        say(f"{name}: {value or 'as the settings say'}")

    def _attach(self, name: str) -> None:
        path = Path(os.path.expanduser(name))
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

    def _compact(self) -> None:
        if self._session_id is None:
            say("Nothing was said yet.")
            return
        options = TurnKeywords(options=self._turn["options"])
        result = self._runtime.compact(self._session_id, **options)
        if isinstance(result, Err):
            say(f"mead: {describe(result.reason)}")
            return
        self._session_id = result.value
        say("Going on from a summary; the whole conversation is kept: mead sessions list")

    def _explain(self, text: str) -> None:
        from mead.cli.explain import lines_of

        result = self._runtime.explain(text, session_id=self._session_id, **self._turn)
        say(describe(result.reason) if isinstance(result, Err) else "\n".join(lines_of(result.value)))
