"""`mead audit`: what was done to sessions, and whether the record of it is as it was written."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.commands import run, run_json

pytestmark = pytest.mark.usefixtures("echoing")


@pytest.fixture
def recorded(echoing: None) -> str:
    """A session that was exported, rewound and deleted; its id."""
    kept = str(run_json("ask", "a secret heron")[0]["session_id"])
    run("sessions", "export", kept)
    run("sessions", "rewind", kept, "--turn", "0", "--yes")
    run("sessions", "delete", kept, "--yes")
    return kept


@pytest.fixture
def change(home: Path) -> Callable[..., None]:
    """Runs SQL on the database, as somebody who hides something would."""

    def execute(statement: str) -> None:
        db = sqlite3.connect(home / "data" / "mead.db")
        with db:
            triggers = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
            for (name,) in triggers:
                db.execute(f'DROP TRIGGER "{name}"')
            assert db.execute(statement).rowcount > 0
        db.close()

    return execute


def test_list_shows_who_did_what_to_what_and_no_content(recorded: str) -> None:
    result = run("audit", "list")

    lines = [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "WHEN", line) for line in result.stdout.splitlines()]
    assert lines[0].startswith("    1  WHEN  local  settings.change  ")
    assert lines[1:] == [
        f"    2  WHEN  local  session.export  {recorded}",
        f"    3  WHEN  local  session.rewind  {recorded}  to=0",
        f"    4  WHEN  local  session.delete  {recorded}",
    ]
    assert (result.exit_code, result.stderr) == (0, "")


def test_list_has_a_limit_and_gives_the_newest(recorded: str) -> None:
    told, status = run_json("audit", "list", "--limit", "1")

    assert status == 0
    assert [(row["number"], row["action"], row["subject"]) for row in told["rows"]] == [
        (4, "session.delete", recorded)
    ]
    assert set(told["rows"][0]) == {"number", "at", "owner", "action", "subject", "details", "hash"}


@pytest.mark.usefixtures("recorded")
def test_verify_says_how_many_rows_there_are_and_the_last_hash() -> None:
    told, status = run_json("audit", "verify")

    assert (told["ok"], told["rows"], told["broken"], status) == (True, 4, None, 0)
    last = run_json("audit", "list")[0]["rows"][-1]["hash"]
    assert told["head"] == last
    assert run("audit", "verify").stdout == f"4 rows, all as they were written; the last hash is {last}\n"


def test_without_any_row_the_record_is_whole() -> None:
    assert run("audit", "verify").stdout == "0 rows, all as they were written\n"
    assert run("audit", "list").stderr == "Nothing was recorded yet.\n"
    assert run_json("audit", "verify") == ({"ok": True, "rows": 0, "head": "", "broken": None}, 0)


@pytest.mark.usefixtures("recorded")
@pytest.mark.parametrize(
    "statement,broken",
    [
        ("UPDATE audit SET subject = 'other' WHERE number = 2", 2),
        ("DELETE FROM audit WHERE number = 1", 1),
        ("DELETE FROM audit WHERE number = 2", 2),
    ],
)
def test_verify_names_the_first_row_that_was_changed(
    change: Callable[..., None], statement: str, broken: int
) -> None:
    change(statement)

    result = run("audit", "verify")

    assert (result.exit_code, result.stdout) == (1, "")
    assert f"mead: row {broken} is not as it was written" in result.stderr
    told, status = run_json("audit", "verify")
    assert (told["ok"], told["broken"], status) == (False, broken, 1)
