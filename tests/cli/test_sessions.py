"""`mead sessions`, and `mead ask` and `mead chat` over what was kept."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from cli.commands import (
    ECHO,
    Servers,
    Terminal,
    cloud_slot,
    local_slot,
    program,
    run,
    run_json,
    said,
    streamed,
)
from mead.cli import _store as store_module
from mead.cli.sessions import command as group
from mead.core.conversation import encode
from mead.core.messages import Message
from mead.core.options import Options
from mead.core.turns import Turn
from mead.sessions import session
from mead.storage import Store, StoreError
from mead.storage.protocol import (
    AlreadyRunning,
    Begun,
    SessionRecord,
    StoredTurn,
    ToolRow,
    TurnStart,
)
from mead.storage.sqlite import SqliteStore

T = TypeVar("T")
Configure = Callable[..., None]
Start = Callable[..., Terminal]
CARD = "My card is 4111 1111 1111 1111."
NASTY = "\x1b[31mred\x9b\u202e"


def with_store(home: Path, work: Callable[[Store], Awaitable[T]]) -> T:
    """Does something with the store in the data folder, as another process would."""

    async def main() -> T:
        store = SqliteStore(home / "data" / "mead.db")
        await store.open()
        try:
            return await work(store)
        finally:
            await store.aclose()

    return asyncio.run(main())


def ids() -> list[str]:
    """The sessions that are kept, the last used first."""
    told, status = run_json("sessions", "list")
    assert status == 0
    return [each["session_id"] for each in told["sessions"]]


def ask(*arguments: str) -> str:
    """Asks; gives the session's id."""
    told, status = run_json("ask", *arguments)
    assert status == 0
    return str(told["session_id"])


def shown(session: str = "last") -> Any:
    told, status = run_json("sessions", "show", session)
    assert status == 0
    return told


def texts(session: str = "last") -> list[str]:
    return [turn["question"] for turn in shown(session)["turns"]]


def labels(session: str = "last") -> list[str]:
    return [turn["label"] for turn in shown(session)["turns"]]


def record(session_id: str, title: str | None = None, *, at: float = 1.0) -> SessionRecord:
    return SessionRecord(
        session_id=session_id, created_at=at, updated_at=at, title=title, turn_timeout_s=30.0
    )


def turn(number: int, text: str) -> StoredTurn:
    messages = encode([Message("user", text), Message("assistant", text)])
    return StoredTurn.of(Turn(messages=messages, number=number), finished_at=1.0)


def keep(home: Path, *records: SessionRecord, turns: tuple[StoredTurn, ...] = ()) -> None:
    async def work(store: Store) -> None:
        for each in records:
            await store.create_session(each, turns)

    with_store(home, work)


def fails(*arguments: str) -> str:
    """The sentence that a command ends with when it cannot begin."""
    result = run(*arguments)
    assert isinstance(result.exception, SystemExit)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
    return result.stderr


# ask and chat


def test_ask_goes_on_with_the_last_session(servers: Servers, configure: Configure) -> None:
    server = servers.start(said("Blue."), said("Grey."), said("Yes."))
    configure(local_slot(server))

    first = ask("What colour is the sea?")
    second = ask("And a heron?", "-c")
    third = ask("Sure?", "--continue")

    assert first == second == third
    assert [message["content"] for message in server.requests[-1].json()["messages"]] == [
        "What colour is the sea?",
        "Blue.",
        "And a heron?",
        "Grey.",
        "Sure?",
    ]


@pytest.mark.usefixtures("echoing")
def test_ask_goes_on_with_a_named_session() -> None:
    first = ask("one")
    ask("other")

    assert ask("two", "--session", first) == first
    assert ask("three", "--session", first[:6]) == first
    assert ask("four", "--session", "last") == first
    assert texts(first) == ["one", "two", "three", "four"]


@pytest.mark.usefixtures("echoing")
def test_ask_cannot_go_on_where_there_is_nothing() -> None:
    assert fails("ask", "hi", "-c") == "mead: no session was kept yet\n"
    assert "'nobody' is the beginning of no session's id" in fails("ask", "hi", "--session", "nobody")
    assert "''" in fails("ask", "hi", "--session", "")
    assert "exclude each other" in fails("ask", "hi", "-c", "--session", "x")
    assert ids() == []


@pytest.mark.usefixtures("echoing")
def test_an_empty_word_means_no_session_even_if_there_is_one_only() -> None:
    only = ask("one")

    fails("ask", "hi", "--session", "")
    fails("sessions", "delete", "", "--yes")

    assert ids() == [only]


@pytest.mark.usefixtures("echoing")
def test_a_session_is_called_by_its_first_line() -> None:
    ask("  A   heron \nstands.")
    ask("x" * 100)

    titles = [each["title"] for each in run_json("sessions", "list")[0]["sessions"]]

    assert titles == ["x" * 59 + "…", "A heron"]


@pytest.mark.usefixtures("echoing")
def test_a_question_that_is_not_utf8_is_kept_all_the_same() -> None:
    ask("caf\udce9")

    assert run_json("sessions", "list")[0]["sessions"][0]["title"] == "caf�"
    assert texts() == ["caf�"]


def test_with_a_store_in_memory_nothing_is_kept(home: Path, configure: Configure) -> None:
    configure(ECHO, '[storage]\nurl = "memory://"\n')

    ask("hello")

    assert ids() == []
    assert not (home / "data" / "mead.db").exists()


def test_the_settings_say_where_sessions_are_kept(home: Path, configure: Configure) -> None:
    configure(ECHO, f'[storage]\nurl = "sqlite:///{home}/elsewhere/kept.db"\n')

    kept = ask("hello")

    assert ids() == [kept]
    assert (home / "elsewhere" / "kept.db").exists()
    assert not (home / "data" / "mead.db").exists()


@pytest.mark.usefixtures("echoing")
def test_what_only_looks_makes_no_file(home: Path) -> None:
    run("explain", "hello")
    assert run("sessions", "list").stderr == "No sessions were kept yet.\n"
    fails("sessions", "show", "last")
    run("sessions", "prune", "--older-than", "1", "--yes")
    run("audit", "list")
    run("audit", "verify")

    assert not (home / "data").exists()


@pytest.mark.usefixtures("echoing")
def test_a_chat_in_which_nothing_was_said_is_not_kept() -> None:
    run("chat", text="/help\n/new\n/quit\n")

    assert ids() == []


@pytest.mark.usefixtures("echoing")
def test_a_chat_is_kept_and_new_begins_another() -> None:
    run("chat", text="one\ntwo\n/new\nthree\n")

    newest, oldest = ids()
    assert (texts(oldest), texts(newest)) == (["one", "two"], ["three"])


def test_resume_goes_on(servers: Servers, configure: Configure) -> None:
    server = servers.start(said("Blue."), said("Grey."))
    configure(local_slot(server))
    kept = ask("What colour is the sea?")
    server = servers.start(streamed("Grey."), streamed("Yes."))
    configure(local_slot(server))

    named = run("sessions", "resume", kept[:8], text="And a heron?\n")
    last = run("sessions", "resume", text="Sure?\n")

    assert (named.stdout, last.stdout) == ("Grey.\n", "Yes.\n")
    assert [message["content"] for message in server.requests[0].json()["messages"]] == [
        "What colour is the sea?",
        "Blue.",
        "And a heron?",
    ]
    assert texts(kept) == ["What colour is the sea?", "And a heron?", "Sure?"]


@pytest.mark.usefixtures("echoing")
def test_resume_takes_the_options_of_a_chat() -> None:
    ask("one")

    result = run("sessions", "resume", "last", "--route", "cloud", text="two\n")

    assert "cloud_unavailable" in result.stderr
    assert result.exit_code == 1
    assert "no session" in fails("sessions", "resume", "nobody")


def test_the_last_session_is_the_last_one_that_has_a_turn(servers: Servers, configure: Configure) -> None:
    configure(local_slot(servers.start(said("Fine."))))
    kept = str(run_json("ask", "one", "--route", "local")[0]["session_id"])
    assert run("ask", "two", "--route", "cloud").exit_code == 1  # there is no cloud model

    assert run("ask", "three", "--route", "local", "-c").exit_code == 0

    assert len(shown(kept)["turns"]) == 2


@pytest.mark.usefixtures("echoing")
def test_s7_an_interrupted_turn_is_told_when_its_session_goes_on(home: Path) -> None:
    kept = ask("one")
    _crash_in_a_turn(home, kept)

    looked = run("sessions", "show", kept)
    went_on = run("ask", "three", "-c")
    later = run("ask", "four", "-c")

    told = "Turn 2 was interrupted: its process died in it. Nothing of it is in the history.\n"
    assert told in looked.stderr
    assert "ring, called in turn 2: unknown; the history does not show it." in looked.stderr
    assert went_on.stderr.startswith(told)
    assert "interrupted" not in later.stderr
    assert texts(kept) == ["one", "three", "four"]
    assert shown(kept)["interrupted"] == [2]


def _crash_in_a_turn(home: Path, session_id: str) -> None:
    async def work(store: Store) -> None:
        begun = await store.begin_turn(
            TurnStart(session_id=session_id, number=2, question=b'{"role":"user"}', started_at=2.0)
        )
        assert isinstance(begun, Begun)
        row = ToolRow(session_id=session_id, turn=begun.number, index=1, name="ring", effect=True)
        await store.start_tool(row, epoch=begun.epoch)

    with_store(home, work)  # closing with a turn that runs is what a crash leaves


# list, show, rename


def test_list_shows_the_last_used_first(home: Path) -> None:
    keep(home, record("aaaa", "Herons", at=1.0), record("bbbb", at=2.0))

    lines = run("sessions", "list").stdout.splitlines()

    assert [line.split()[0] for line in lines] == ["bbbb", "aaaa"]
    assert lines[0].endswith("  (no title)")
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d  Herons$", lines[1])
    assert run("sessions", "list", "--limit", "1").stdout.startswith("bbbb")
    assert run("sessions", "list", "--limit", "0").exit_code == 2


def test_list_shows_tags_and_a_title_on_one_line(home: Path) -> None:
    keep(home, msgspec.structs.replace(record("aaaa", "a\nb"), tags=("x", "y")))

    assert run("sessions", "list").stdout.endswith("  a b  [x, y]\n")
    assert run_json("sessions", "list")[0]["sessions"][0]["tags"] == ["x", "y"]


@pytest.mark.usefixtures("echoing")
def test_show_is_for_reading_and_json_for_programs() -> None:
    kept = ask("What is a heron?")

    text, told = run("sessions", "show", "last"), shown()

    assert text.stdout.startswith("# What is a heron?\n\n## 1 · local · shareable · ")
    assert "**You**\n\nWhat is a heron?\n\n**Model**\n\nWhat is a heron?\n" in text.stdout
    assert told["session"]["session_id"] == kept
    assert (told["turns"][0]["turn"], told["turns"][0]["route"]) == (1, "local")
    assert told["turns"][0]["answer"] == "What is a heron?"


def test_the_beginning_of_an_id_is_enough_unless_it_fits_two(home: Path) -> None:
    keep(home, record("heron-1"), record("heron-2"), record("heron"), record("tern"))

    assert shown("te")["session"]["session_id"] == "tern"
    assert shown("heron")["session"]["session_id"] == "heron", "a whole id is no beginning"
    for command in ("show", "export"):
        assert "of no session's id, or of several" in fails("sessions", command, "heron-")


@pytest.mark.parametrize("name", sorted(set(group.commands) - {"list", "import", "prune"}))
def test_an_unknown_id_is_a_sentence(name: str) -> None:
    more = {"rename": ["title"], "rewind": ["--turn", "0", "--yes"], "delete": ["--yes"]}.get(name, [])

    assert "'nobody' is the beginning of no session's id" in fails("sessions", name, "nobody", *more)


@pytest.mark.usefixtures("echoing")
def test_rename_gives_a_title_and_an_empty_one_takes_it_away() -> None:
    first, second = ask("one"), ask("two")

    assert run("sessions", "rename", first, " A \n heron ").exit_code == 0
    assert shown(first)["session"]["title"] == "A heron"
    assert ids() == [second, first], "a new title is no use of it"
    run("sessions", "rename", first, "caf\udce9")
    assert shown(first)["session"]["title"] == "caf�"
    run("sessions", "rename", first, "")
    assert shown(first)["session"]["title"] is None


# fork, rewind


@pytest.mark.usefixtures("echoing")
def test_fork_takes_the_turns_up_to_one_or_all() -> None:
    kept = ask("one")
    ask("two", "-c")

    part = run("sessions", "fork", kept, "--turn", "1").stdout.strip()
    whole = run("sessions", "fork", kept).stdout.strip()
    none = run("sessions", "fork", kept, "--turn", "0").stdout.strip()

    assert texts(part) == ["one"]
    assert texts(whole) == texts(kept) == ["one", "two"]
    assert texts(none) == []
    assert shown(part)["session"]["parent"] == kept
    ask("three", "--session", part)
    assert (texts(part), texts(kept)) == (["one", "three"], ["one", "two"])


@pytest.mark.usefixtures("echoing")
def test_rewind_deletes_the_turns_after_one() -> None:
    kept = ask("one")
    ask("two", "-c")
    ask("three", "-c")

    assert run("sessions", "rewind", kept, "--turn", "1", "--yes").exit_code == 0

    assert texts(kept) == ["one"]
    ask("again", "-c")
    assert texts(kept) == ["one", "again"]
    run("sessions", "rewind", kept, "--turn", "0", "--yes")
    assert texts(kept) == []


@pytest.mark.usefixtures("echoing")
def test_a_turn_that_is_not_there_is_a_sentence() -> None:
    kept = ask("one")

    expected = f"mead: there is no turn 2 in the history of {kept}; its last one is turn 1\n"
    assert fails("sessions", "fork", kept, "--turn", "2") == expected
    assert fails("sessions", "rewind", kept, "--turn", "2", "--yes") == expected
    empty = run("sessions", "fork", kept, "--turn", "0").stdout.strip()
    assert "; it has none" in fails("sessions", "fork", empty, "--turn", "1")
    assert run("sessions", "fork", kept, "--turn", "-1").exit_code == 2
    assert run("sessions", "rewind", kept, "--yes").exit_code == 2, "rewind needs a turn"
    assert texts(kept) == ["one"]


@pytest.mark.usefixtures("echoing")
def test_a_session_with_a_turn_that_runs_is_not_rewound(home: Path) -> None:
    kept = ask("one")

    async def work(store: Store) -> str:
        start = TurnStart(session_id=kept, number=2, question=b"{}", started_at=2.0)
        assert isinstance(await store.begin_turn(start), Begun)
        assert isinstance(await store.rewind("local", kept, to=0, at=3.0), AlreadyRunning)
        done = await asyncio.to_thread(program, "sessions", "rewind", kept, "--turn", "0", "--yes")
        asked = await asyncio.to_thread(program, "ask", "two", "-c")
        assert (done.returncode, asked.returncode) == (2, 1)
        assert b"session_busy: another process is answering" in asked.stderr
        return done.stderr.decode()

    assert with_store(home, work) == "mead: a turn of this session is running; wait for it, or end it\n"
    assert texts(kept) == ["one"]


# delete, prune


@pytest.mark.usefixtures("echoing")
def test_delete_leaves_no_text_in_any_file(home: Path) -> None:
    kept, other = ask("a secret heron"), ask("something else")

    assert run("sessions", "delete", kept, "--yes").exit_code == 0

    assert ids() == [other]
    files = [file for file in (home / "data").rglob("*") if file.is_file()]
    assert files
    assert [file for file in files if b"secret heron" in file.read_bytes()] == []


@pytest.mark.usefixtures("echoing")
@pytest.mark.parametrize(
    "arguments", [["delete", "last"], ["rewind", "last", "--turn", "0"], ["prune", "--older-than", "1"]]
)
def test_what_cannot_be_undone_wants_a_yes_where_nobody_can_be_asked(arguments: list[str]) -> None:
    ask("one")

    result = run("sessions", *arguments, text="y\n")

    assert result.exit_code == 2
    assert result.stderr == "mead: this cannot be undone: run it at a terminal, or with --yes\n"
    assert texts() == ["one"]


@pytest.mark.usefixtures("echoing")
def test_delete_asks_at_a_terminal(terminal: Start) -> None:
    kept = ask(f"one {NASTY}")

    refused = terminal("sessions", "delete", kept)
    refused.wait_for("[y/N]")
    assert "\x1b" not in refused.shown
    refused.type("n\n")
    refused.wait_for("Nothing was changed.")
    assert refused.wait() == 1
    assert ids() == [kept]

    agreed = terminal("sessions", "delete", kept)
    agreed.wait_for("[y/N]")
    agreed.type("y\n")
    assert agreed.wait() == 0
    assert ids() == []


@pytest.mark.usefixtures("echoing")
def test_ctrl_c_at_the_question_deletes_nothing(terminal: Start) -> None:
    kept = ask("one")

    asked = terminal("sessions", "delete", kept)
    asked.wait_for("[y/N]")
    asked.press_until("\x03", "Aborted")

    assert asked.wait() == 1
    assert ids() == [kept]


def test_prune_deletes_what_was_not_used_for_days(home: Path) -> None:
    day = 86_400
    now = time.time()
    keep(home, record("old", at=now - 31 * day), record("new", at=now - 29 * day))

    pruned = run("sessions", "prune", "--older-than", "30", "--yes")
    again = run("sessions", "prune", "--older-than", "30", "--yes")

    assert (pruned.stderr, again.stderr) == ("1 session was deleted.\n", "0 sessions were deleted.\n")
    assert ids() == ["new"]
    rows = run_json("audit", "list")[0]["rows"]
    assert (rows[0]["action"], rows[0]["details"]) == (
        "session.prune",
        {"older_than_days": "30", "sessions": "1"},
    )
    assert run("sessions", "prune", "--yes").exit_code == 2
    assert run("sessions", "prune", "--older-than", "0", "--yes").exit_code == 2
    assert run("sessions", "prune", "--older-than", "99999999999", "--yes").exit_code == 2


# export, import


def export_to(path: Path, *arguments: str) -> Path:
    result = run("sessions", "export", *arguments)
    assert result.exit_code == 0
    path.write_bytes(result.stdout_bytes)
    return path


def bring(path: Path) -> str:
    """Imports a file of one session; gives its id."""
    result = run("sessions", "import", str(path))
    assert result.exit_code == 0, result.stderr
    return result.stdout.split()[0]


@pytest.mark.usefixtures("echoing")
def test_r16_s7_a_local_only_turn_stays_so_through_export_import_and_fork(home: Path) -> None:
    kept = ask("What is a heron?")
    ask(CARD, "-c")
    assert labels(kept) == ["shareable", "local_only"]

    brought = bring(export_to(home / "kept.jsonl", kept))
    forked = run("sessions", "fork", brought).stdout.strip()

    assert labels(brought) == labels(forked) == ["shareable", "local_only"]
    assert texts(brought) == texts(forked) == ["What is a heron?", CARD]


def test_r16_the_cloud_model_sees_no_local_only_turn_of_an_imported_session(
    home: Path, servers: Servers, configure: Configure
) -> None:
    local, cloud = servers.start(said("Noted.")), servers.start(said("Grey."))
    configure(local_slot(local), cloud_slot(cloud))
    ask(CARD)

    brought = bring(export_to(home / "kept.jsonl", "last"))
    ask("What colour is a heron?", "--session", brought, "--route", "cloud")

    assert "4111" not in str([request.json() for request in cloud.requests])


@pytest.mark.usefixtures("echoing")
def test_a_session_comes_back_with_title_tags_and_system_prompt(home: Path) -> None:
    first = msgspec.structs.replace(record("aaaa", "Herons"), tags=("x",), options=Options(system="S"))
    keep(home, first, turns=(turn(1, "one"), turn(4, "two")))

    brought = bring(export_to(home / "kept.jsonl", "aaaa"))

    session = shown(brought)["session"]
    assert (session["title"], session["tags"]) == ("Herons", ["x"])
    assert [each["turn"] for each in shown(brought)["turns"]] == [1, 2]
    found = with_store(home, lambda store: store.get_session("local", brought))
    assert found is not None
    assert found.options.system == "S"


@pytest.mark.usefixtures("echoing")
def test_several_exports_in_one_file_are_several_sessions(home: Path) -> None:
    one, two = ask("one"), ask("two")
    both = run("sessions", "export", one).stdout + run("sessions", "export", two).stdout
    (home / "both.jsonl").write_text(both)

    result = run("sessions", "import", "both.jsonl")

    assert re.findall(r"^\S+  (\w+)  1 turn$", result.stdout, re.M) == ["one", "two"]
    assert len(ids()) == 4


@pytest.mark.usefixtures("echoing")
def test_markdown_is_to_read_and_no_session(home: Path) -> None:
    ask("What is a heron?")

    path = export_to(home / "kept.md", "last", "--markdown")

    assert path.read_text().startswith("# What is a heron?\n")
    assert "is of no known form" in fails("sessions", "import", "kept.md")


@pytest.mark.parametrize(
    "data,expected",
    [
        (b"", "holds no session"),
        (b"\n\n", "holds no session"),
        (b"[]", "holds no session"),
        (b"[1, 2]", "is of no known form"),
        (b"{}\n", "is of no known form"),
        (b"{\n", "is of no known form"),
        (b"hello", "is of no known form"),
        (b'{"turn": 1}\n{"mead": 1}\n', "is of no known form"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"a":' * 100_000, "is of no known form"),
        (b"\xff\xfe\x00", "is no text"),
        (b'{"mead": 2}\n', "line 1: this was written by a newer mead"),
        (b'{"mead": 1, "title": 3}\n', "is of no known form"),
        (b'{"mead": 1}\n{"turn": 1}\n', "line 2: this is no turn"),
        (b'{"mead": 1}\n{"messages": []}\n', "line 2: this is no turn"),
        (b'{"mead": 1}\n{"messages": [{"role": "user", "content": "a"}], "label": "open"}\n', "line 2"),
        (b'{"mead": 1}\n{"messages": [{"role": "user", "content": "a', "line 2: this is no turn"),
        (b"SQLite format 3\0" + b"x" * 100, "is no log database of llm"),
    ],
)
def test_a_file_that_is_damaged_or_of_no_known_form_is_a_sentence(
    home: Path, data: bytes, expected: str
) -> None:
    (home / "file").write_bytes(data)

    assert expected in fails("sessions", "import", "file")
    assert not (home / "data").exists()


def test_a_file_that_is_not_there_is_a_sentence(home: Path) -> None:
    assert "No such file" in fails("sessions", "import", "nowhere.jsonl")
    assert "Is a directory" in fails("sessions", "import", str(home))


@pytest.mark.usefixtures("echoing")
def test_one_bad_line_brings_nothing(home: Path) -> None:
    ask("one")
    path = export_to(home / "kept.jsonl", "last")
    path.write_bytes(path.read_bytes() + b'{"mead":1}\n{"messages":')

    fails("sessions", "import", "kept.jsonl")

    assert len(ids()) == 1


# What a terminal would act on


def test_no_escape_of_a_title_or_a_text_reaches_the_terminal(home: Path, terminal: Start) -> None:
    keep(home, record("aaaa", f"t{NASTY}"), turns=(turn(1, f"q{NASTY}"),))

    for command in (["list"], ["show", "aaaa"], ["export", "aaaa"], ["export", "aaaa", "--markdown"]):
        at_terminal = terminal("sessions", *command)
        assert at_terminal.wait() == 0
        assert "red" in at_terminal.shown
        assert not set(NASTY) - set("[31mred") & set(at_terminal.shown), command
    for command in (["list"], ["show", "aaaa"]):
        assert "\x1b" not in run("sessions", *command).stdout


def test_an_export_holds_what_was_said_as_json_escapes(home: Path) -> None:
    keep(home, record("aaaa", f"t{NASTY}"), turns=(turn(1, f"q{NASTY}"),))

    path = export_to(home / "kept.jsonl", "aaaa")

    assert not {"\x1b", "\x9b", "\u202e"} & set(path.read_text())
    assert texts(bring(path)) == [f"q{NASTY}"]


# A store that cannot be used

COMMANDS = (
    ["sessions", "list"],
    ["sessions", "show", "last"],
    ["sessions", "resume"],
    ["sessions", "delete", "last", "--yes"],
    ["ask", "hi"],
    ["ask", "hi", "-c"],
    ["audit", "verify"],
    ["audit", "list"],
)


@pytest.mark.usefixtures("echoing")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_damaged_database_is_a_sentence(home: Path, command: list[str]) -> None:
    (home / "data").mkdir()
    (home / "data" / "mead.db").write_bytes(b"this is no database" * 100)

    assert "is damaged or no database" in fails(*command)


@pytest.mark.usefixtures("echoing")
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_database_from_the_future_is_a_sentence(home: Path, command: list[str]) -> None:
    ask("one")
    with sqlite3.connect(home / "data" / "mead.db") as db:
        db.execute("PRAGMA user_version = 9999")
    db.close()

    assert "newer" in fails(*command)


@pytest.mark.usefixtures("echoing")
def test_a_database_that_another_program_holds_is_a_sentence(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("one")
    path = home / "data" / "mead.db"
    monkeypatch.setattr(store_module, "open_store", lambda url: SqliteStore(path, lock_timeout_s=0.1))
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("BEGIN EXCLUSIVE")
    try:
        assert "is locked by another program" in fails("sessions", "rename", "last", "title")
    finally:
        db.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write every file")
@pytest.mark.usefixtures("echoing")
def test_a_database_that_cannot_be_written_is_a_sentence(home: Path) -> None:
    (home / "data").mkdir(mode=0o500)

    assert "cannot be written" in fails("ask", "hi")


@pytest.mark.usefixtures("echoing")
def test_a_store_that_breaks_between_two_steps_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    ask("one")

    async def full(*_: object, **__: object) -> None:
        raise StoreError("disk_full", "There is no room left.")

    monkeypatch.setattr(SqliteStore, "create_session", full)
    monkeypatch.setattr(SqliteStore, "update_session", full)

    assert fails("ask", "hi") == "mead: There is no room left.\n"
    assert fails("sessions", "rename", "last", "x") == "mead: There is no room left.\n"
    chatted = run("chat", text="hi\n")
    assert (chatted.exit_code, chatted.stderr) == (2, "mead: There is no room left.\n")


def test_a_session_whose_id_begins_with_a_dash_can_be_named(home: Path) -> None:
    keep(home, record("-old-id"))

    assert run("sessions", "show", "--", "-old-id").exit_code == 0


def test_a_sessions_id_never_begins_with_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter(["-a", "-b", "c-"])
    monkeypatch.setattr("mead.sessions.session.secrets.token_urlsafe", lambda _: next(made))

    assert session.new_session_id() == "c-"
