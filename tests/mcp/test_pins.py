"""Pins: a change of what a server offers, or of what starts it, is noticed (D47)."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from mead.mcp.pins import Definition, Pins
from mead.settings import McpServerSettings

SERVER = McpServerSettings(name="notes", command="notes-server", args=("--dir", "/n"))
TOOL = Definition(name="add", description="Adds a note.", input_schema={"type": "object"})


def test_the_first_use_pins_and_the_same_again_is_no_change(tmp_path: Path) -> None:
    assert Pins(tmp_path).compare(SERVER, [TOOL]) == []

    again = Pins(tmp_path)

    assert again.compare(SERVER, [TOOL]) == []
    known = again.known(SERVER)
    assert known is not None
    assert known.tools == {"add": TOOL}
    assert not again.start_changed(SERVER)


@pytest.mark.parametrize(
    "changed",
    [
        {"description": "Adds a note!"},
        {"title": "Add"},
        {"input_schema": {"type": "object", "properties": {"to": {}}}},
        {"read_only": True},
        {"destructive": False},
    ],
)
def test_mcp_d47_any_part_of_a_definition_counts(tmp_path: Path, changed: dict[str, object]) -> None:
    pins = Pins(tmp_path)
    pins.compare(SERVER, [TOOL])
    now = msgspec.structs.replace(TOOL, **changed)

    (change,) = pins.compare(SERVER, [now])

    assert (change.tool, change.before, change.now) == ("add", TOOL, now)
    assert next(iter(changed)) in "\n".join(change.lines())
    assert now.digest() != TOOL.digest()


def test_a_renamed_tool_counts_as_a_change(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    pins.compare(SERVER, [TOOL])

    (change,) = pins.compare(SERVER, [msgspec.structs.replace(TOOL, name="add_note")])

    assert change.before is None
    assert change.lines() == ["+ add_note: Adds a note."]


def test_an_approval_takes_what_is_there_now(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    pins.compare(SERVER, [TOOL])
    now = msgspec.structs.replace(TOOL, description="new")

    pins.approve(SERVER, [now])

    assert Pins(tmp_path).compare(SERVER, [now]) == []


@pytest.mark.parametrize(
    "other",
    [{"command": "evil"}, {"args": ("--dir", "/")}, {"cwd": "/tmp"}, {"env": {"LD_PRELOAD": "x"}}],
)
def test_another_line_that_starts_it_counts(tmp_path: Path, other: dict[str, object]) -> None:
    pins = Pins(tmp_path)
    pins.compare(SERVER, [TOOL])
    changed = msgspec.structs.replace(SERVER, **other)

    assert pins.start_changed(changed)
    pins.approve(changed, None)
    assert not pins.start_changed(changed)
    assert pins.compare(changed, [TOOL]) == [], "the tools stay pinned"


def test_the_file_is_private_and_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "mcp"
    Pins(folder).compare(SERVER, [TOOL])
    path = folder / "pins.json"

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    assert Pins(folder).known(SERVER) is None
    assert "it is a link" in (Pins(folder).problem or "")


def test_a_broken_file_vouches_for_nothing_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "pins.json").write_text("{broken")
    pins = Pins(tmp_path)

    assert "cannot be read" in (pins.problem or "")
    assert [change.tool for change in pins.compare(SERVER, [TOOL])] == ["add"]
    pins.approve(SERVER, [TOOL])
    assert (tmp_path / "pins.json").read_text() == "{broken"


def test_a_running_process_keeps_what_another_has_approved(tmp_path: Path) -> None:
    other = msgspec.structs.replace(SERVER, name="other")
    running = Pins(tmp_path)
    running.compare(SERVER, [TOOL])
    now = msgspec.structs.replace(TOOL, description="new")
    Pins(tmp_path).approve(SERVER, [now])

    running.approve(other, [TOOL])

    assert Pins(tmp_path).compare(SERVER, [now]) == []
    assert running.compare(SERVER, [now]) == []


def test_what_starts_a_server_is_compared_part_by_part(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    pins.compare(msgspec.structs.replace(SERVER, env={"KEY": "one"}), [TOOL])
    changed = msgspec.structs.replace(
        SERVER,
        args=("--dir", "/secret"),
        written=("notes-server", "--dir", "${DIR}"),
        env={"KEY": "two"},
        cwd="/n",
    )

    assert pins.start_changed(msgspec.structs.replace(SERVER, env={"KEY": "two"}))
    assert pins.start_lines(changed) == [
        "  command: notes-server",
        "  argument 1: --dir",
        "- argument 2: /n",
        "+ argument 2: ${DIR}",
        "+ folder: /n",
        "- env KEY: (its value is not shown)",
        "+ env KEY: (its value is not shown)",
    ]
    assert "two" not in (tmp_path / "pins.json").read_text()


def test_an_approval_of_a_server_that_was_found_is_good_for_its_folder(tmp_path: Path) -> None:
    pins = Pins(tmp_path)
    found = msgspec.structs.replace(SERVER, found_in=Path("/one"))
    pins.compare(SERVER, [TOOL])
    assert pins.needs_word(found)

    pins.approve(found, [TOOL])

    assert not pins.needs_word(found)
    assert pins.needs_word(msgspec.structs.replace(SERVER, found_in=Path("/two")))


def test_without_a_folder_pins_live_in_memory() -> None:
    pins = Pins(None)
    pins.compare(SERVER, [TOOL])

    assert len(pins.compare(SERVER, [msgspec.structs.replace(TOOL, title="x")])) == 1
    pins.forget("notes")
    assert pins.known(SERVER) is None
