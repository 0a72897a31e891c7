"""Sessions as files: what goes out comes in again, and what other programs kept comes in as local_only."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mead.core.conversation import encode
from mead.core.messages import (
    Block,
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    VendorBlock,
    text_of,
)
from mead.core.options import Options
from mead.core.turns import Turn
from mead.core.usage import UsageTotal
from mead.sessions.transfer import Brought, TransferError, read_sessions, to_jsonl, to_markdown
from mead.storage.protocol import SessionRecord, StoredTurn

TEXTS = st.text(min_size=1, max_size=20).filter(lambda text: bool(text.strip()))
JSON_OBJECTS = st.dictionaries(
    st.text(max_size=5), st.one_of(st.integers(-9, 9), st.text(max_size=5)), max_size=3
)
ASKED: st.SearchStrategy[list[Block]] = st.lists(
    st.one_of(
        st.builds(TextBlock, TEXTS),
        st.builds(ImageBlock, st.just("image/png"), st.binary(max_size=40)),
        st.builds(DocumentBlock, st.just("application/pdf"), st.binary(max_size=40), st.none() | TEXTS),
    ),
    min_size=1,
    max_size=3,
)
CALLS = st.lists(
    st.builds(
        ToolUseBlock, st.uuids().map(str), st.just("look"), JSON_OBJECTS, st.none() | st.text(max_size=5)
    ),
    max_size=2,
)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    """A turn with a question, perhaps some tools, and an answer."""
    messages = [Message("user", tuple(draw(ASKED)))]
    if calls := draw(CALLS):
        results = [
            ToolResultBlock(call.id, draw(st.text(max_size=20)), draw(st.booleans())) for call in calls
        ]
        messages += [Message("assistant", tuple(calls)), Message("user", tuple(results))]
    answer: list[Block] = [TextBlock(draw(TEXTS))]
    if draw(st.booleans()):
        answer.insert(0, VendorBlock("mine", msgspec.Raw(msgspec.json.encode(draw(JSON_OBJECTS)))))
    messages.append(Message("assistant", tuple(answer)))
    return Turn(
        messages=encode(messages),
        route=draw(st.sampled_from([None, "local", "cloud"])),
        label=draw(st.sampled_from(["local_only", "shareable"])),
        usage=draw(st.none() | st.builds(UsageTotal, input_tokens=st.integers(0, 99), unknown=st.booleans())),
    )


def record(title: str | None = "Herons", **fields: Any) -> SessionRecord:
    return SessionRecord(
        session_id="aaaa", created_at=1.0, updated_at=1.0, turn_timeout_s=30.0, title=title, **fields
    )


def stored(given: Sequence[Turn]) -> list[StoredTurn]:
    numbered = [msgspec.structs.replace(turn, number=number) for number, turn in enumerate(given, start=1)]
    return [StoredTurn.of(turn, finished_at=1.0) for turn in numbered]


def plain(text: str, answer: str, **fields: Any) -> Turn:
    return Turn(messages=encode([Message("user", text), Message("assistant", answer)]), **fields)


def read(path: Path, content: str | bytes) -> list[Brought]:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_sessions(path)


def said(brought: Brought) -> list[list[tuple[str, str]]]:
    """Role and text of each message of each turn."""
    return [[(message.role, text_of(message.content)) for message in turn.decode()] for turn in brought.turns]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.lists(turns(), max_size=4), min_size=1, max_size=3),
    st.none() | st.text(max_size=20),
    st.lists(st.text(max_size=5), max_size=2),
    st.none() | st.text(max_size=10),
)
def test_r16_json_lines_bring_back_the_very_turns_and_labels(
    sessions: list[list[Turn]], title: str | None, tags: list[str], system: str | None
) -> None:
    head = record(title, tags=tuple(tags), options=Options(system=system))
    lines = [line for given in sessions for line in to_jsonl(head, stored(given))]
    assert not any("\n" in line for line in lines)

    with tempfile.TemporaryDirectory() as folder:
        brought = read(Path(folder) / "kept.jsonl", "\n".join(lines))

    assert [list(one.turns) for one in brought] == [
        [each.turn() for each in stored(given)] for given in sessions
    ]
    assert {(one.title, one.tags, one.system) for one in brought} == {(title, tuple(tags), system)}


def test_a_line_without_a_label_is_local_only(tmp_path: Path) -> None:
    [one] = read(tmp_path / "f", '{"mead":1}\r\n{"messages":[{"role":"user","content":"a"}]}\r\n')

    assert [(turn.label, turn.route) for turn in one.turns] == [("local_only", None)]


def test_a_turn_with_a_call_that_lost_its_result_is_mended(tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "1", "name": "ring", "input": {}}
    line = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": [call]}]}

    [one] = read(tmp_path / "f", '{"mead":1}\n' + json.dumps(line))

    last = one.turns[0].decode()[-1].content[0]
    assert isinstance(last, ToolResultBlock)
    assert last.tool_use_id == "1"


def test_markdown_shows_all_that_was_said() -> None:
    picture = Message("user", (ImageBlock("image/png", b"12345"), TextBlock("What is it?")))
    called = Message("assistant", (ToolUseBlock("1", "look", {"at": "it"}),))
    result = Message("user", (ToolResultBlock("1", "a heron\nin water"),))
    vendor = VendorBlock("mine", msgspec.Raw(b"{}"))
    answered = Message("assistant", (vendor, TextBlock("A heron.")))
    first = Turn(messages=encode([picture, called, result, answered]), route="local")
    second = plain("Sure?", "Yes.", label="shareable")

    text = to_markdown(record(options=Options(system="Be\nbrief.")), stored([first, second]))

    lines = [line for line in text.splitlines() if line]
    assert lines[0] == "# Herons"
    assert lines[1:3] == ["> Be", "> brief."]
    assert lines[3].startswith("## 1 · local · local_only · 1970-01-0")
    assert lines[4:14] == [
        "**You**",
        "[image/png, 5 bytes]",
        "What is it?",
        "**Model**",
        '`look` {"at":"it"}',
        "**Tools**",
        "> a heron",
        "> in water",
        "**Model**",
        "A heron.",
    ]
    assert lines[14].startswith("## 2 · no model · shareable · ")
    assert text.endswith("**Model**\n\nYes.\n")


def test_markdown_of_a_session_without_a_title_begins_with_its_id() -> None:
    assert to_markdown(record(None), []) == "# aaaa\n"


# From other programs


def llm_database(path: Path, conversations: list[tuple[str, Any]], responses: list[tuple[Any, ...]]) -> Path:
    """A log database in the schema of llm, as far as it matters."""
    db = sqlite3.connect(path)
    with db:
        db.execute("CREATE TABLE conversations (id TEXT PRIMARY KEY, name TEXT, model TEXT)")
        db.execute(
            "CREATE TABLE responses (id TEXT PRIMARY KEY, model TEXT, prompt TEXT, system TEXT, "
            "prompt_json TEXT, options_json TEXT, response TEXT, response_json TEXT, "
            "conversation_id TEXT REFERENCES conversations(id), duration_ms INTEGER, datetime_utc TEXT)"
        )
        db.executemany("INSERT INTO conversations (id, name) VALUES (?, ?)", conversations)
        db.executemany(
            "INSERT INTO responses (id, conversation_id, prompt, response, datetime_utc) "
            "VALUES (?, ?, ?, ?, ?)",
            responses,
        )
    db.close()
    return path


def test_r16_the_log_database_of_llm_is_read_as_local_only(tmp_path: Path) -> None:
    path = llm_database(
        tmp_path / "100% logs?.db",
        [("c1", "Herons"), ("c2", None)],
        [
            ("r2", "c1", "And the sea?", "Blue.", "2026-01-01T10:01:00"),
            ("r1", "c1", "What colour is a heron?", "Grey.", "2026-01-01T10:00:00"),
            ("r3", "c2", "Hello", None, "2026-01-01T11:00:00"),
            ("r4", "c2", None, "Only an answer.", "2026-01-01T11:01:00"),
            ("r5", None, "alone", "of no conversation", "2026-01-01T11:02:00"),
        ],
    )

    herons, hello = read_sessions(path)

    assert (herons.title, hello.title) == ("Herons", None)
    assert said(herons) == [
        [("user", "What colour is a heron?"), ("assistant", "Grey.")],
        [("user", "And the sea?"), ("assistant", "Blue.")],
    ]
    assert {turn.label for one in (herons, hello) for turn in one.turns} == {"local_only"}
    assert said(hello)[0][0] == ("user", "Hello")


def test_reading_a_database_of_llm_changes_nothing(tmp_path: Path) -> None:
    path = llm_database(tmp_path / "logs.db", [("c", "t")], [("r", "c", "a", "b", "2026")])
    before = path.read_bytes()

    read_sessions(path)

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_another_database_is_none_of_llm(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "other.db")
    db.execute("CREATE TABLE a (b)")
    db.close()

    with pytest.raises(TransferError, match="no log database of llm: no such table"):
        read_sessions(tmp_path / "other.db")


def node(role: str, content: Any, parent: str | None = None) -> dict[str, Any]:
    return {"role": role, "content": content, "parentId": parent}


def chat(messages: dict[str, Any], current: Any, title: Any = "Herons") -> dict[str, Any]:
    return {
        "id": "1",
        "chat": {"title": title, "history": {"messages": messages, "currentId": current}},
    }


def test_r16_an_export_of_open_webui_is_read_as_local_only(tmp_path: Path) -> None:
    messages = {
        "a": node("user", "What colour is a heron?"),
        "b": node("assistant", "Pink.", "a"),
        "c": node("assistant", "Grey.", "a"),
        "d": node("user", "Sure?", "c"),
        "e": node("assistant", "Yes.", "d"),
    }

    shown, other = read(
        tmp_path / "f", json.dumps([chat(messages, "e"), chat(messages, "b", title="")], indent=1)
    )

    assert (shown.title, other.title) == ("Herons", None)
    assert said(shown) == [
        [("user", "What colour is a heron?"), ("assistant", "Grey.")],
        [("user", "Sure?"), ("assistant", "Yes.")],
    ]
    assert said(other) == [[("user", "What colour is a heron?"), ("assistant", "Pink.")]]
    assert {turn.label for one in (shown, other) for turn in one.turns} == {"local_only"}


def test_an_old_export_of_open_webui_has_a_list_of_messages(tmp_path: Path) -> None:
    document = [{"chat": {"title": "t", "messages": [node("user", "a"), node("assistant", "b"), 3]}}]

    [one] = read(tmp_path / "f", "\ufeff" + json.dumps(document))

    assert said(one) == [[("user", "a"), ("assistant", "b")]]


@pytest.mark.parametrize(
    "entry",
    [
        {"chat": {}},
        {"chat": {"history": 3}},
        {"chat": {"history": {"messages": {}, "currentId": "gone"}}},
        chat({"a": node("user", "x", "a")}, "a"),
        chat({"a": node("user", "x", "b"), "b": node("assistant", "y", "a")}, "a"),
        chat({"a": 3}, "a"),
        chat({"a": node("system", "x"), "b": node("user", ["x"], "a")}, "b", title=3),
        chat({"a": node("user", "\ud83d")}, "a", title="\ud83d"),
    ],
)
def test_an_odd_chat_of_open_webui_fails_nothing(tmp_path: Path, entry: Any) -> None:
    brought = read(tmp_path / "f", json.dumps([entry, chat({"a": node("user", "fine")}, "a")]))

    assert said(brought[-1])[0][0] == ("user", "fine")
    assert len(brought) == 2


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_whatever_a_file_holds_it_is_read_or_refused(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        with contextlib.suppress(TransferError):
            read(path, data)
