"""Sessions over the native API: their life, their pages, what is done to them, and whose they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import mead
from mead.serve.tokens import Tokens
from mead.settings import ServeSettings
from serve.api import DOORS, Api, Gate, kept, model, token
from serve.served import Serving


@pytest.fixture
def api(serving: Serving) -> Api:
    return Api(serving(kept(model(), model(otherwise="from cloud")), doors=DOORS))


def test_a_session_is_started_told_of_changed_and_deleted(api: Api) -> None:
    session_id = api.start(title="  A\ntitle ", tags=["work"], busy="reject", options={"max_tokens": 9})

    shown = api.get(f"sessions/{session_id}")
    assert (shown["title"], shown["tags"], shown["busy"]) == ("A title", ["work"], "reject")
    assert shown["options"] == {"max_tokens": 9}

    changed = api.call("PATCH", f"sessions/{session_id}", {"title": None, "tags": ["home"]}).json()
    assert (changed["title"], changed["tags"]) == (None, ["home"])
    api.turn(session_id)
    assert api.get("usage?by=tag")["rows"][0]["key"] == "home"

    assert api.call("DELETE", f"sessions/{session_id}").status_code == 204
    assert api.fault("GET", f"sessions/{session_id}") == (404, "no_such_session", None)
    assert api.fault("DELETE", f"sessions/{session_id}") == (404, "no_such_session", None)


def test_sessions_are_listed_in_pages_the_last_used_first(api: Api) -> None:
    made = [api.start() for _ in range(5)]
    api.turn(made[0])

    found: list[str] = []
    page = api.get("sessions?limit=2")
    while True:
        found += [session["session_id"] for session in page["sessions"]]
        if page["next"] is None:
            break
        page = api.get("sessions", params={"limit": 2, "cursor": page["next"]})

    assert found == [made[0], *reversed(made[1:])]


def test_a_history_may_be_brought_along(api: Api) -> None:
    messages = [{"role": "user", "content": "earlier"}, {"role": "assistant", "content": "yes"}]
    session_id = api.start(messages=messages)

    (turn,) = api.get(f"sessions/{session_id}/history")["turns"]
    assert turn["messages"] == messages
    assert (turn["label"], turn["route"], turn["number"]) == ("local_only", None, 1)


def test_a_fork_takes_turns_along_and_a_rewind_takes_them_away(api: Api) -> None:
    session_id = api.start()
    for text in ("one", "two", "three"):
        api.turn(session_id, text, route="cloud")

    made = api.post(f"sessions/{session_id}/fork", {"turn": 2})["session_id"]
    assert api.get(f"sessions/{made}")["parent"] == session_id
    assert [turn["number"] for turn in api.get(f"sessions/{made}/history")["turns"]] == [1, 2]

    api.post(f"sessions/{session_id}/rewind", {"turn": 1})
    assert [turn["number"] for turn in api.get(f"sessions/{session_id}/history")["turns"]] == [1]
    after = api.turn(session_id, "four", route="cloud")
    assert len(after["messages"]) == 2
    assert len(api.get(f"sessions/{session_id}/history")["turns"]) == 2

    assert api.fault("POST", f"sessions/{made}/fork", {"turn": 9}) == (400, "invalid_request", "turn")
    assert api.fault("POST", f"sessions/{made}/rewind", {"turn": 9}) == (400, "invalid_request", "turn")


def test_a_rewound_turn_is_not_shown_to_the_model_again(serving: Serving) -> None:
    cloud = model(otherwise="fine")
    api = Api(serving(kept(None, cloud), doors=DOORS))
    session_id = api.start()
    api.turn(session_id, "stays", route="cloud")
    api.turn(session_id, "goes", route="cloud")

    api.post(f"sessions/{session_id}/rewind", {"turn": 1})
    explained = api.post("explain", {"text": "next", "session_id": session_id, "route": "cloud"})
    api.turn(session_id, "next", route="cloud")

    assert explained["refused"] is None
    assert "stays" in cloud.requests[-1].text
    assert "goes" not in cloud.requests[-1].text


def test_a_session_whose_turn_runs_is_not_rewound(serving: Serving) -> None:
    gate = Gate()
    api = Api(serving(kept(model("first", gate)), doors=DOORS))
    session_id = api.start()
    api.turn(session_id, route="local")
    api.post(f"sessions/{session_id}/turns", {"text": "x", "route": "local", "background": True})
    assert gate.begun.wait(20)

    assert api.fault("POST", f"sessions/{session_id}/rewind", {"turn": 0}) == (409, "session_busy", None)
    assert api.post(f"sessions/{session_id}/cancel") == {"cancelled": True}
    assert gate.cancelled.wait(20)


def test_r16_a_declassified_turn_may_be_seen_by_the_cloud_in_the_session_that_is_made_for_it(
    serving: Serving,
) -> None:
    cloud = model(otherwise="fine")
    api = Api(serving(kept(model(), cloud), doors=DOORS))
    session_id = api.start()
    api.turn(session_id, "the secret word is plum", route="local")
    api.turn(session_id, "the other word is pear", route="local")

    made = api.post(f"sessions/{session_id}/declassify", {"turns": [1]})["session_id"]
    for each in (session_id, made):
        api.turn(each, "and now?", route="cloud")

    assert "plum" not in cloud.requests[0].text
    assert "plum" in cloud.requests[1].text
    assert "pear" not in cloud.requests[1].text
    (row,) = [row for row in api.get("audit")["rows"] if row["action"] == "session.declassify"]
    assert (row["subject"], row["details"]["turns"], row["details"]["made"]) == (session_id, "1", made)
    assert api.fault("POST", f"sessions/{made}/declassify", {"turns": [7]}) == (
        400,
        "invalid_request",
        "turns",
    )


def test_what_is_exported_can_be_brought_in_again(api: Api) -> None:
    session_id = api.start(title="Trip", tags=["x"])
    api.turn(session_id, "where to?", route="cloud")

    lines = api.call("GET", f"sessions/{session_id}/export").text
    (made,) = api.post("import", content=lines.encode())["sessions"]
    again = api.call("GET", f"sessions/{made['session_id']}/export").text

    assert (made["title"], made["turns"], made["lowered"]) == ("Trip", 1, 0)
    assert [json.loads(line).get("messages") for line in again.splitlines()] == [
        json.loads(line).get("messages") for line in lines.splitlines()
    ]
    assert "where to?" in api.call("GET", f"sessions/{session_id}/export?format=markdown").text


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"[]",
        b"[1]",
        b'{"mead":2}',
        b"\xff\xfe",
        b"SQLite format 3\0" + bytes(80),
        b"[" * 99_999,
    ],
    ids=["empty", "words", "list", "numbers", "newer", "bytes", "database", "deep"],
)
def test_what_is_no_file_of_sessions_is_refused(api: Api, data: bytes) -> None:
    assert api.fault("POST", "import", content=data)[:2] == (400, "invalid_request")


def test_compacting_makes_a_session_of_a_summary(api: Api) -> None:
    session_id = api.start()
    api.turn(session_id, "a long story", route="cloud")

    made = api.post(f"sessions/{session_id}/compact")["session_id"]

    (turn,) = api.get(f"sessions/{made}/history")["turns"]
    assert turn["messages"][1]["content"] == "from cloud"
    assert api.get("sessions")["next"] is None
    assert len(api.get("sessions")["sessions"]) == 2


@pytest.mark.parametrize(
    "body, field",
    [
        ({"busy": "wait"}, "busy"),
        ({"options": {"max_tokens": 0}}, "options.max_tokens"),
        ({"options": {"colour": 1}}, "options.colour"),
        ({"turn_timeout_s": 1e9}, "turn_timeout_s"),
        ({"tags": ["token:abc"]}, "tags"),
        ({"tags": [""]}, "tags[0]"),
        ({"unknown": 1}, "unknown"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages[0].role"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_wrong_field_is_named(api: Api, body: object, field: str) -> None:
    assert api.fault("POST", "sessions", body) == (400, "invalid_request", field)


@pytest.mark.parametrize(
    "path",
    ["sessions?limit=0", "sessions?cursor=%00", "sessions?limit=1&limit=2", "usage?since=yesterday",
     "usage?by=moon", "audit?after=-1", "egress?limit=99999", "usage?since=2026-02-01&until=2026-01-01"],
)  # fmt: skip
def test_a_wrong_query_is_refused(api: Api, path: str) -> None:
    status, tag, field = api.fault("GET", path)

    assert (status, tag) == (400, "invalid_request")
    assert field in path


def test_s10_another_owners_session_is_no_such_session(serving: Serving, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    address = serving(kept(model()), tokens, doors=DOORS)
    mine, other = Api(address, token(tokens)), Api(address, token(tokens, owner="other"))
    session_id = mine.start()
    mine.turn(session_id, route="local")
    one = f"sessions/{session_id}"

    asked = [
        ("GET", one, None),
        ("PATCH", one, {"title": "mine now"}),
        ("DELETE", one, None),
        ("GET", f"{one}/history", None),
        ("GET", f"{one}/export", None),
        ("POST", f"{one}/fork", {}),
        ("POST", f"{one}/rewind", {"turn": 0}),
        ("POST", f"{one}/declassify", {"turns": [1]}),
        ("POST", f"{one}/compact", {}),
        ("POST", f"{one}/cancel", None),
        ("POST", f"{one}/turns", {"text": "x"}),
        ("POST", "explain", {"text": "x", "session_id": session_id}),
    ]
    for method, path, body in asked:
        assert other.fault(method, path, body) == (404, "no_such_session", None), path
    assert other.get("sessions")["sessions"] == []
    assert other.get("usage")["rows"] == []
    assert len(mine.get(f"{one}/history")["turns"]) == 1


def test_without_a_store_turns_are_answered_and_the_rest_says_so(serving: Serving) -> None:
    runtime = mead.Runtime(mead.Settings(serve=ServeSettings()))
    api = Api(serving(runtime, doors=DOORS))
    session_id = api.start()

    assert api.turn(session_id)["text"] == "hello"
    assert len(api.get(f"sessions/{session_id}/history")["turns"]) == 1
    assert api.get("egress")["rows"] == []
    assert api.fault("GET", "sessions") == (501, "no_store", None)
    assert api.fault("POST", "sessions/nowhere/turns", {"text": "x"})[0] == 404
