"""`mead chat`: a conversation at the terminal."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.commands import (
    ECHO,
    Servers,
    Terminal,
    cloud_slot,
    local_slot,
    program,
    questions,
    run,
    streamed,
    streamed_until,
)
from mead.cli import chat
from mead.cli._prompt import Typed, read_typed
from mead.sessions.sync import Running
from mead.testing import Answer, Received

Start = Callable[..., Terminal]

SLOW_TO_END = """
import asyncio, sys
from mead import Completion, Ok
from mead.testing.scripted import ONE_TOKEN

class Slow:
    asked = False

    async def complete(self, messages, options):
        if self.asked:
            return Ok(Completion(text="Fine.", usage=ONE_TOKEN))
        self.asked = True
        print("[asked]", file=sys.stderr, flush=True)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.5)
"""


# What one input is


def read_all(*lines: str | type[BaseException]) -> list[Typed]:
    """All inputs that a person types in these lines; `KeyboardInterrupt` among them is Ctrl-C."""
    left = list(lines)

    def ask(prompt: str) -> str:
        if not left:
            raise EOFError
        line = left.pop(0)
        if isinstance(line, str):
            return line
        raise line

    inputs = []
    while (typed := read_typed(ask)) is not None:
        inputs.append(typed)
    return inputs


def test_a_line_is_an_input() -> None:
    assert read_all("one", "", "two") == [Typed("one"), Typed(""), Typed("two")]


def test_a_line_that_ends_in_a_backslash_goes_on_in_the_next() -> None:
    assert read_all("one\\", "two\\", "three", "four") == [
        Typed("one\ntwo\nthree", whole=True),
        Typed("four"),
    ]


@pytest.mark.parametrize(
    "lines,text",
    [
        (['"""', "one", "two", '"""'], "one\ntwo"),
        (['"""one', 'two"""'], "one\ntwo"),
        (['"""one"""'], "one"),
        (['  """', "one", '"""  '], "one"),
        (['"""', "  indented", "", "after a gap", '"""'], "  indented\n\nafter a gap"),
        (['"""', "/quit", '"""'], "/quit"),
        (['"""', "a\\", "b", '"""'], "a\\\nb"),
        (['""""""'], ""),
    ],
)
def test_three_quotes_begin_and_end_a_text_of_several_lines(lines: list[str], text: str) -> None:
    assert read_all(*lines, "next") == [Typed(text, whole=True), Typed("next")]


def test_the_end_of_the_input_ends_a_text_that_was_begun() -> None:
    assert read_all('"""', "one") == [Typed("one", whole=True)]
    assert read_all("one\\") == [Typed("one", whole=True)]


def test_ctrl_c_throws_away_what_was_typed_and_asks_again() -> None:
    assert read_all('"""', "one", KeyboardInterrupt, "two") == [Typed("two")]
    assert read_all("one\\", KeyboardInterrupt, "two") == [Typed("two")]


@given(st.lists(st.text(st.characters(exclude_characters='"\\\r\n'))))
def test_whatever_stands_between_three_quotes_arrives_as_it_was_typed(lines: list[str]) -> None:
    assert read_all('"""', *lines, '"""') == [Typed("\n".join(lines), whole=True)]


def test_the_prompt_says_that_a_text_goes_on() -> None:
    prompts = []
    lines = iter(["one\\", '"""', "two"])

    def ask(prompt: str) -> str:
        prompts.append(prompt)
        return next(lines)

    read_typed(ask)

    assert prompts == ["> ", "… "]


# Without a terminal


@pytest.mark.usefixtures("echoing")
def test_piped_lines_are_turns_and_only_answers_go_to_standard_output() -> None:
    done = program("chat", data=b"one\n\ntwo\n")

    assert (done.returncode, done.stdout) == (0, b"one\ntwo\n")
    assert [line.split(" · ")[:2] for line in done.stderr.decode().splitlines()] == [["local", "echo"]] * 2


@pytest.mark.usefixtures("echoing")
def test_no_input_is_no_turn() -> None:
    done = program("chat")

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_conversation_remembers(servers: Servers, configure: Callable[..., None]) -> None:
    server = servers.start(streamed("Hello."), streamed("You said hi."))
    configure(local_slot(server))

    result = run("chat", text="hi\nwhat did I say?\n")

    assert result.stdout == "Hello.\nYou said hi.\n"
    assert [message["content"] for message in server.requests[1].json()["messages"]] == [
        "hi",
        "Hello.",
        "what did I say?",
    ]


def test_new_begins_a_conversation_that_remembers_nothing(
    servers: Servers, configure: Callable[..., None]
) -> None:
    server = servers.start(streamed("Hello."))
    configure(local_slot(server))

    result = run("chat", text="hi\n/new\nwhat did I say?\n")

    assert "A new conversation." in result.stderr
    assert len(server.requests[1].json()["messages"]) == 1


def test_a_failed_turn_is_told_and_the_next_one_works(
    servers: Servers, configure: Callable[..., None]
) -> None:
    configure(local_slot(servers.start(streamed_until("Once", end="cut"), streamed("Fine."))))

    result = run("chat", text="one\ntwo\n")

    assert result.stdout == "Once\nFine.\n"
    assert "mead: transport: " in result.stderr


@pytest.mark.usefixtures("echoing")
def test_the_status_of_a_piped_chat_tells_that_a_turn_failed() -> None:
    assert run("chat", "--route", "cloud", text="hi\n").exit_code == 1
    assert run("chat", text="/route cloud\nhi\n/route local\nhi\n").exit_code == 1
    assert run("chat", text="hi\n/unknown\n").exit_code == 0


def test_the_options_hold_for_every_turn(servers: Servers, configure: Callable[..., None]) -> None:
    server = servers.start(streamed("ok"))
    configure(local_slot(server, models=["large"]))

    run("chat", "--system", "Be brief.", "--model", "large", "--temperature", "0", text="one\ntwo\n")

    for request in server.requests:
        sent = request.json()
        assert sent["messages"][0] == {"role": "system", "content": "Be brief."}
        assert (sent["model"], sent["temperature"]) == ("large", 0)
    assert questions(server) == ["one", "two"]


def test_s03_a_turn_ends_at_the_timeout(servers: Servers, configure: Callable[..., None]) -> None:
    configure(local_slot(servers.start(streamed_until("", end="hang"), streamed("Fine."))))

    result = run("chat", "--timeout", "0.2", text="one\ntwo\n")

    assert "mead: timeout: the turn did not end in time." in result.stderr
    assert result.stdout == "Fine.\n"


# Its commands


def test_system_and_model_are_set_for_the_turns_that_follow(
    servers: Servers, configure: Callable[..., None]
) -> None:
    server = servers.start(streamed("ok"))
    configure(local_slot(server, models=["large"]))

    result = run(
        "chat",
        "--max-tokens",
        "9",
        text="/system Be brief.\n/model large\none\n/system\n/model\ntwo\n",
    )

    first, second = [request.json() for request in server.requests]
    assert (first["messages"][0]["content"], first["model"]) == ("Be brief.", "large")
    assert (second["messages"][0]["role"], second["model"]) == ("user", "small")
    assert 9 in (second.get("max_tokens"), second.get("max_completion_tokens"))
    assert "system: Be brief.\nmodel: large\n" in result.stderr
    assert "system: as the settings say\nmodel: as the settings say\n" in result.stderr


def test_route_sends_the_turns_that_follow_elsewhere(
    servers: Servers, configure: Callable[..., None]
) -> None:
    cloud = servers.start(streamed("From the cloud."))
    configure(ECHO, cloud_slot(cloud))

    result = run("chat", text="/route cloud\none\n/route local\ntwo\n")

    assert result.stdout == "From the cloud.\ntwo\n"
    assert questions(cloud) == ["one"]
    assert "route: cloud\n" in result.stderr


@pytest.mark.parametrize(
    "typed,told",
    [
        ("/route", "route: auto\n"),
        ("/route mars", "/route takes auto, local or cloud.\nroute: auto\n"),
        ("/tools", "tools: read\n"),
        ("/tools effect", "tools: effect\n"),
        ("/tools all", "/tools takes read, effect or none.\ntools: read\n"),
        ("/attach", "/attach needs a file after it.\n"),
        ("/attach nothing.txt", "mead: nothing.txt cannot be read: No such file or directory\n"),
        ("/attach ~nobody-of-this-name/x", "cannot be read"),
        ("/attach a\0b", "cannot be read"),
        ("/explain", "/explain needs a text after it.\n"),
        ("/explain hello", "route     local (classified) → echo\n"),
        ("/rotue cloud", "There is no command /rotue; /help lists them.\n"),
        ("/", "/attach FILE"),
    ],
)
@pytest.mark.usefixtures("echoing")
def test_a_command_is_obeyed_or_told_how_it_goes(typed: str, told: str) -> None:
    result = run("chat", text=f"{typed}\n")

    assert (result.exit_code, result.stdout) == (0, "")
    assert told in result.stderr


@pytest.mark.usefixtures("echoing")
def test_help_names_every_command_that_works() -> None:
    told = run("chat", text="/help\n").stderr

    named = [line.split()[0] for line in told.splitlines() if line.startswith("/")]
    unknown = run("chat", text="".join([f"{name}\n" for name in named if name != "/quit"])).stderr

    assert named == [
        "/route",
        "/tools",
        "/model",
        "/system",
        "/attach",
        "/explain",
        "/compact",
        "/new",
        "/quit",
    ]
    assert "There is no command" not in unknown


@pytest.mark.usefixtures("echoing")
def test_compact_goes_on_from_a_summary_and_the_conversation_is_kept() -> None:
    told = run("chat", text="/compact\nhello\n/compact\nagain\n").stderr
    listed = run("sessions", "list").stdout

    assert "Nothing was said yet." in told
    assert "Going on from a summary" in told
    assert listed.count("hello") == 2


@pytest.mark.parametrize("leave", ["/quit", "/exit"])
@pytest.mark.usefixtures("echoing")
def test_quit_leaves(leave: str) -> None:
    assert run("chat", text=f"one\n{leave}\ntwo\n").stdout == "one\n"


@pytest.mark.usefixtures("echoing")
def test_a_text_that_begins_with_a_slash_can_be_sent() -> None:
    result = run("chat", text=' /etc/passwd is what?\n"""/quit"""\nlast\n')

    assert result.stdout == " /etc/passwd is what?\n/quit\nlast\n"


@pytest.mark.usefixtures("echoing")
def test_an_attached_file_goes_with_the_next_turn_and_with_no_other(home: Path) -> None:
    (home / "a.txt").write_text("inside")

    result = run("chat", text="/attach a.txt\nlook\nagain\n")

    assert result.stdout == "look\n\na.txt:\n\ninside\nagain\n"
    assert "a.txt goes with the next turn.\n" in result.stderr


@pytest.mark.usefixtures("echoing")
def test_an_attached_file_can_be_the_whole_turn(home: Path) -> None:
    (home / "a.txt").write_text("inside")

    assert run("chat", text="/attach a.txt\n\n").stdout == "a.txt:\n\ninside\n"


def test_explain_in_a_chat_sends_nothing_and_knows_what_is_withheld(
    servers: Servers, configure: Callable[..., None]
) -> None:
    cloud = servers.start(streamed("never"))
    configure(ECHO, cloud_slot(cloud))

    result = run("chat", text="/route local\nmine\n/route cloud\n/explain hello\n")

    assert "withheld  1 earlier turns, which are local_only" in result.stderr
    assert cloud.requests == []


# At a terminal


def test_an_answer_is_shown_as_it_arrives_with_route_and_tokens_under_it(
    servers: Servers, configure: Callable[..., None], terminal: Start
) -> None:
    configure(local_slot(servers.start(streamed("Hel", "lo\x1b[2J."), streamed_until("Once", end="hang"))))
    shown = terminal("chat")

    shown.wait_for("Ctrl-D leaves.")
    shown.wait_for("> ")
    shown.type("hi\n")
    assert shown.wait_for("local · small · 7 tokens in, 2 out · ").endswith("Hello[2J.\n\x1b[2m")
    shown.wait_for("> ")
    shown.type("tell me\n")
    shown.wait_for("Once")  # while the server has not finished, and never will


def test_ctrl_c_cancels_the_turn_and_not_the_program(
    servers: Servers, configure: Callable[..., None], terminal: Start
) -> None:
    server = servers.start(streamed_until("Once upon", end="hang"), streamed("Fine."))
    configure(local_slot(server))
    shown = terminal("chat")

    shown.wait_for("> ")
    shown.type("tell me\n")
    shown.wait_for("Once upon")
    shown.type("\x03")
    assert shown.wait_for("cancelled; nothing of this turn was kept").endswith("\n")
    servers.wait_for(server.client_left)
    shown.wait_for("> ")
    shown.type("how are you?\n")
    shown.wait_for("Fine.")
    shown.wait_for("> ")
    shown.type("\x04")

    assert shown.wait() == 0
    # S7: nothing of the cancelled turn was told to the model.
    assert [message["content"] for message in server.requests[1].json()["messages"]] == ["how are you?"]


def test_ctrl_c_before_the_first_word_cancels_too_and_again_and_again(
    servers: Servers, configure: Callable[..., None], terminal: Start
) -> None:
    silent = streamed_until("", end="hang")
    server = servers.start(silent, silent, silent, streamed("Fine."))
    configure(local_slot(server))
    shown = terminal("chat")

    for number in range(3):
        shown.wait_for("> ")
        shown.type(f"turn {number}\n")
        servers.wait_for(server.answering)
        server.answering.clear()
        shown.type("\x03")
        shown.wait_for("cancelled; nothing of this turn was kept")
    shown.wait_for("> ")
    shown.type("last\n")
    shown.wait_for("Fine.")
    shown.type("/quit\n")

    assert shown.wait() == 0


def test_after_ctrl_c_the_next_turn_waits_for_one_that_is_slow_to_end(
    home: Path, configure: Callable[..., None], terminal: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "slow.py").write_text(SLOW_TO_END)
    monkeypatch.setenv("PYTHONPATH", str(home))
    monkeypatch.setenv("MEAD_CONFIG", "mead.toml")
    configure('[router.slots.local]\nprovider = "slow:Slow"\n[sessions]\nbusy = "reject"\n')
    shown = terminal("chat")

    shown.wait_for("> ")
    shown.type("one\n")
    shown.wait_for("[asked]")
    shown.type("\x03")
    shown.wait_for("cancelled; nothing of this turn was kept")
    shown.wait_for("> ")
    shown.type("two\n")

    assert "session_busy" not in shown.wait_for("Fine.")


def test_ctrl_c_at_the_prompt_throws_the_line_away(
    servers: Servers, configure: Callable[..., None], terminal: Start
) -> None:
    server = servers.start(streamed("Fine."))
    configure(local_slot(server))
    shown = terminal("chat")

    shown.wait_for("> ")
    shown.type("not this")
    shown.wait_for("not this")
    shown.press_until("\x03", "> ")
    shown.type("this\n")
    shown.wait_for("Fine.")
    shown.wait_for("> ")
    shown.type("\x04")

    assert shown.wait() == 0
    assert questions(server) == ["this"]


def test_ctrl_c_at_the_moment_when_a_turn_begins_cancels_it_too(
    servers: Servers, configure: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Received) -> Answer:
        first = request.json()["messages"][-1]["content"] == "one"  # it may be cancelled before it is sent
        return streamed_until("", end="hang") if first else streamed("Fine.")

    configure(local_slot(servers.start(answer)), "[sessions]\nqueue_timeout_s = 1\n")
    begin, pressed = Running.begin, [KeyboardInterrupt()]

    def interrupted(self: Running[Any]) -> Any:
        future = begin(self)
        if self._work.__name__ == "pump" and pressed:
            raise pressed.pop()
        return future

    monkeypatch.setattr(Running, "begin", interrupted)

    result = run("chat", text="one\ntwo\n")

    assert pressed == []
    assert "cancelled; nothing of this turn was kept" in result.stderr
    assert result.stdout == "Fine.\n"


@pytest.mark.usefixtures("echoing")
def test_a_second_ctrl_c_while_the_first_is_dealt_with_does_not_end_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_turn, pressed = chat.stream_to_terminal, [KeyboardInterrupt()]

    def interrupted(*arguments: Any, **turn: Any) -> Any:
        if pressed:
            raise pressed.pop()
        return run_turn(*arguments, **turn)

    monkeypatch.setattr(chat, "stream_to_terminal", interrupted)

    result = run("chat", text="one\ntwo\n")

    assert (result.exit_code, result.stdout) == (0, "two\n")


@pytest.mark.usefixtures("echoing")
def test_ctrl_d_leaves_on_a_new_line(terminal: Start) -> None:
    shown = terminal("chat")

    shown.wait_for("> ")
    shown.type("\x04")

    assert shown.wait() == 0
    assert shown.shown.endswith("\n")


def test_inputs_of_earlier_chats_come_back_with_the_arrow_key_and_are_the_owner_s_alone(
    home: Path, servers: Servers, configure: Callable[..., None], terminal: Start
) -> None:
    pytest.importorskip("readline")
    server = servers.start(streamed("Fine."))
    configure(local_slot(server))

    first = terminal("chat")
    first.wait_for("> ")
    first.type("what is new?\n")
    first.wait_for("Fine.")
    first.wait_for("> ")
    first.type("\x04")
    assert first.wait() == 0
    second = terminal("chat")
    second.wait_for("> ")
    second.type("\x1b[A\n")
    second.wait_for("Fine.")
    second.wait_for("> ")
    second.type("\x04")
    assert second.wait() == 0

    assert questions(server) == ["what is new?"] * 2
    history = home / "data" / "chat_history"
    assert "what is new?" in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert stat.S_IMODE(history.parent.stat().st_mode) == 0o700


@pytest.mark.usefixtures("echoing")
def test_a_history_that_others_could_read_is_closed_to_them(home: Path, terminal: Start) -> None:
    pytest.importorskip("readline")
    history = home / "data" / "chat_history"
    history.parent.mkdir()
    history.write_text("from before\n")
    history.chmod(0o644)

    shown = terminal("chat")
    shown.wait_for("> ")
    shown.type("hello\n")
    shown.wait_for("local · echo")
    shown.wait_for("> ")
    shown.type("\x04")

    assert shown.wait() == 0
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    assert "from before" in history.read_text()


@pytest.mark.usefixtures("echoing")
def test_a_history_that_is_a_link_is_not_written_through(home: Path, terminal: Start) -> None:
    (home / "data").mkdir()
    (home / "elsewhere").write_text("not mine")
    os.symlink(home / "elsewhere", home / "data" / "chat_history")

    shown = terminal("chat")
    shown.wait_for("> ")
    shown.type("hello\n")
    shown.wait_for("local · echo")
    shown.wait_for("> ")
    shown.type("\x04")

    assert shown.wait() == 0
    assert (home / "elsewhere").read_text() == "not mine"


@pytest.mark.usefixtures("echoing")
def test_a_piped_chat_leaves_no_history(home: Path) -> None:
    program("chat", data=b"hello\n")

    assert not (home / "data" / "chat_history").exists()


@pytest.mark.usefixtures("echoing")
def test_answers_that_go_to_a_file_are_not_mixed_with_the_prompt(home: Path, terminal: Start) -> None:
    with open(home / "answers.txt", "wb") as file:
        shown = terminal("chat", stdout=file.fileno())
        shown.wait_for("> ")
        shown.type("hello\n")
        shown.wait_for("local · echo")
        shown.wait_for("> ")
        shown.type("\x04")

        assert shown.wait() == 0
    assert (home / "answers.txt").read_bytes() == b"hello\n"
