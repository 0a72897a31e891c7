"""`mead egress`: what left this machine, where it went, and why it might."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.commands import Servers, cloud_slot, run, run_json, said
from mead.cli.egress import leaves
from mead.core.scope import EgressRecord
from mead.sessions.requests import PREFIX
from mead.storage import open_store
from mead.storage.protocol import EgressRow, SessionRecord
from mead.testing.stores import take_turn

AT = 1_790_000_000.0
CLOUD = "cloud (cloud turn)"
Fill = Callable[..., None]


def sent(
    host: str,
    *,
    session_id: str = "s1",
    size: int = 1_200,
    at: float = AT,
    owner: str = "local",
    because: str = "cloud slot, cloud turn",
) -> EgressRow:
    record = EgressRecord(
        at=at,
        destination="provider",
        slot="cloud",
        route="cloud",
        host=host,
        path="/v1/messages",
        bytes_sent=size,
        allowed_because=because,
    )
    return EgressRow(session_id=session_id, turn=1, owner=owner, record=record)


@pytest.fixture
def fill(home: Path) -> Fill:
    """Keeps these records, in the session `s1` and others."""

    def write(*rows: EgressRow) -> None:
        async def work() -> None:
            store = open_store(f"sqlite:///{home}/data/mead.db")
            await store.open()
            record = SessionRecord(session_id="s1", created_at=AT, updated_at=AT, turn_timeout_s=30.0)
            await store.create_session(record)
            await take_turn(store)
            for row in rows:
                store.add_egress(row)
            await store.aclose()

        asyncio.run(work())

    return write


def lines(text: str) -> list[str]:
    return [re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "WHEN", line) for line in text.splitlines()]


def test_it_shows_when_where_to_how_much_and_why(fill: Fill) -> None:
    fill(sent("api.example.com:443", size=500), sent("b.example:443", size=12_000, at=AT + 1))

    result = run("egress")

    assert lines(result.stdout) == [
        f"WHEN  {CLOUD}  api.example.com:443/v1/messages     500 bytes  cloud slot, cloud turn  s1 1",
        f"WHEN  {CLOUD}  b.example:443/v1/messages        12,000 bytes  cloud slot, cloud turn  s1 1",
        "",
        "b.example:443         1 request  12,000 bytes",
        "api.example.com:443   1 request     500 bytes",
        "total                2 requests  12,500 bytes",
    ]
    assert (result.exit_code, result.stderr) == (0, "")


def test_where_nothing_left_it_says_so(fill: Fill) -> None:
    empty = run("egress")
    fill(sent("127.0.0.1:11434"), sent("localhost:8080"))

    result = run("egress")

    assert (empty.stdout, empty.stderr) == ("", "Nothing has left this machine.\n")
    assert result.stdout == ""
    assert result.stderr == (
        "Nothing has left this machine.\n2 requests were sent to this machine itself (--all).\n"
    )
    assert "127.0.0.1:11434/v1/messages" in run("egress", "--all").stdout


def test_every_owner_and_every_request_is_told_of(fill: Fill) -> None:
    fill(sent("x:443", session_id=PREFIX + "abc", owner="ada"))

    assert lines(run("egress").stdout)[0].endswith("  request")
    assert run_json("egress")[0]["rows"][0]["owner"] == "ada"


def test_a_session_is_meant_by_its_beginning_or_last_also_after_its_deletion(fill: Fill) -> None:
    fill(sent("x:443"), sent("y:443", session_id="gone"))

    for word, host in (("s1", "x:443"), ("s", "x:443"), ("last", "x:443"), ("gone", "y:443")):
        told, status = run_json("egress", word)
        assert status == 0
        assert [row["host"] for row in told["rows"]] == [host]
        assert [each["host"] for each in told["hosts"]] == [host]
    assert run("egress", "unheard").exit_code == 2


def test_since_and_limit_hold_and_the_totals_are_of_all(fill: Fill) -> None:
    today = time.time()
    fill(sent("x:443"), *[sent("y:443", at=today + n) for n in range(3)])

    result = run("egress", "--limit", "1")
    told, _ = run_json("egress", "--since", time.strftime("%Y-%m-%d", time.gmtime(today)), "--limit", "2")
    later = run("egress", "--since", "2199-01-01")

    assert len(lines(result.stdout)) == 1 + 1 + 3
    assert result.stderr == "3 requests are not shown (--limit).\n"
    assert [row["host"] for row in told["rows"]] == ["y:443"] * 2
    assert told["total"] == {"requests": 3, "bytes_sent": 3_600}
    assert later.stderr == "Nothing has left this machine since 2199-01-01.\n"


def test_what_left_is_found_among_much_that_stayed(fill: Fill) -> None:
    fill(sent("x:443"), *[sent("127.0.0.1:1") for _ in range(1500)])

    told, _ = run_json("egress", "--limit", "5")

    assert [row["host"] for row in told["rows"]] == ["x:443"]
    assert told["stayed"] == {"requests": 1500, "bytes_sent": 1_800_000}


@pytest.mark.parametrize(
    "host,because,expected",
    [
        ("api.example.com:443", "cloud slot, cloud turn", True),
        ("10.0.0.5:8080", "local address, checked at the socket", True),
        ("192.168.1.9:11434", "allow_remote is set", True),
        ("127.0.0.1:11434", "local address, checked at the socket", False),
        ("127.8.0.1:80", "local address, checked at the socket", False),
        ("::1:11434", "local address, checked at the socket", False),
        ("[::1]:11434", "local address, checked at the socket", False),
        ("localhost:11434", "local address, checked at the socket", False),
        ("localhost.example.com:443", "cloud slot, cloud turn", True),
        ("/run/llama.sock", "unix socket", False),
        ("stdio:git", "stays on this machine", False),
        ("stdio:mail", "the settings allow it", True),
    ],
)
def test_only_this_machine_itself_counts_as_staying(host: str, because: str, expected: bool) -> None:
    assert leaves(host, because) is expected


def test_a_record_cannot_act_on_the_terminal(fill: Fill) -> None:
    fill(sent("x\x1b[31m\nforged line:443"))

    told = run("egress").stdout

    assert "\x1b" not in told
    assert len(told.splitlines()) == 3


def test_a_turn_that_goes_to_a_server_is_in_it(servers: Servers, configure: Callable[..., None]) -> None:
    server = servers.start(said("Hello."))
    configure(cloud_slot(server))
    answer = run_json("ask", "Say hello.", "--route", "cloud")[0]

    told, status = run_json("egress", "last", "--all")

    [row] = told["rows"]
    assert status == 0
    assert row["session_id"] == answer["session_id"] == told["session"]
    assert (row["path"], row["route"], row["left"]) == ("/v1/chat/completions", "cloud", False)
    assert row["bytes_sent"] == len(server.requests[0].body)
