"""Turns over the native API: plain, streamed, in the background, taken up again, repeated, approved."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import mead
from mead.core.reasons import HttpStatus, SlotBusy, Timeout
from mead.serve.tokens import Tokens
from mead.testing import calls
from serve.api import DOORS, Api, Gate, kept, model, token
from serve.served import Serving, served

SECRET = "The letter to the notary lies under the third board of the stairs and nobody else knows of it."


@mead.tool(effect=True)
def delete(path: str) -> str:
    """Deletes a file."""
    return f"deleted {path}"


def test_a_turn_is_answered_with_all_that_there_is_to_know(serving: Serving) -> None:
    api = Api(serving(kept(model()), doors=DOORS))

    answer = api.turn(api.start(), "hello", route="local")

    assert (answer["text"], answer["route"], answer["label"]) == ("from local", "local", "local_only")
    assert answer["usage"]["input_tokens"] == 1
    assert answer["decision"]["causes"][0]["code"] == "forced"
    assert [message["role"] for message in answer["messages"]] == ["user", "assistant"]


def test_a_stream_begins_with_the_turns_id_numbers_its_events_and_ends_with_the_answer(
    serving: Serving,
) -> None:
    api = Api(serving(kept(model(["Hel", "lo"])), doors=DOORS))
    session_id = api.start()

    with api.stream("POST", f"sessions/{session_id}/turns", {"text": "x", "route": "local"}) as events:
        seen = list(events)

    assert [event.number for event in seen] == [1, 2, 3, 4]
    assert [event.name for event in seen] == ["started", "delta", "delta", "finished"]
    assert [event.data["text"] for event in seen[1:3]] == ["Hel", "lo"]
    assert seen[3].data["answer"]["text"] == "Hello"
    assert api.get(f"turns/{seen[0].data['turn_id']}")["status"] == "done"


def test_a_stream_that_broke_off_is_taken_up_where_it_was_and_the_turn_goes_on(serving: Serving) -> None:
    gate = Gate("the end")
    api = Api(serving(kept(model(gate)), doors=DOORS))
    session_id = api.start()
    with api.stream("POST", f"sessions/{session_id}/turns", {"text": "x", "route": "local"}) as events:
        turn_id = next(events).data["turn_id"]
        assert gate.begun.wait(20)

    gate.open()
    with api.stream("GET", f"turns/{turn_id}/events", last_event_id="1") as events:
        rest = list(events)

    assert [event.name for event in rest] == ["delta", "finished"]
    assert rest[0].number == 2
    assert not gate.cancelled.is_set()
    with api.stream("GET", f"turns/{turn_id}/events") as events:
        assert [event.name for event in events] == ["started", "delta", "finished"]


def test_a_turn_that_nobody_comes_back_for_is_cancelled(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mead.serve.native_turns.GRACE_S", 0.01)
    gate = Gate()
    api = Api(serving(kept(model(gate)), doors=DOORS))
    session_id = api.start()
    with api.stream("POST", f"sessions/{session_id}/turns", {"text": "x", "route": "local"}) as events:
        turn_id = next(events).data["turn_id"]
        assert gate.begun.wait(20)

    assert gate.cancelled.wait(20)
    over = api.get(f"turns/{turn_id}?wait_s=20")
    assert (over["status"], over["error"]["tag"]) == ("failed", "cancelled")


def test_a_plain_turn_is_cancelled_when_its_client_goes(serving: Serving) -> None:
    gate = Gate()
    api = Api(serving(kept(model(gate, "fine")), doors=DOORS))
    session_id = api.start()

    with pytest.raises(Exception, match="timed out"):
        api.call("POST", f"sessions/{session_id}/turns", {"text": "x", "route": "local"}, timeout=0.3)

    assert gate.cancelled.wait(20)
    assert api.turn(session_id, route="local")["text"] == "fine"


@pytest.mark.parametrize("how", ["body", "header"])
def test_a_turn_in_the_background_is_asked_for_later(serving: Serving, how: str) -> None:
    gate = Gate("at last")
    api = Api(serving(kept(model(gate)), doors=DOORS))
    session_id = api.start()
    body: dict[str, Any] = {"text": "x", "route": "local"}
    headers = {"prefer": "wait=1, respond-async"} if how == "header" else {}

    response = api.call(
        "POST", f"sessions/{session_id}/turns", {**body, "background": how == "body"}, headers=headers
    )
    turn_id = response.json()["turn_id"]
    assert response.status_code == 202
    assert response.headers["location"] == f"/api/turns/{turn_id}"
    assert api.get(f"turns/{turn_id}")["status"] == "running"

    gate.open()
    over = api.get(f"turns/{turn_id}?wait_s=20")
    assert (over["status"], over["answer"]["text"]) == ("done", "at last")


def test_a_turn_is_cancelled_by_its_id(serving: Serving) -> None:
    gate = Gate()
    api = Api(serving(kept(model(gate)), doors=DOORS))
    turn_id = api.post("requests", {"messages": [{"role": "user", "content": "x"}], "background": True,
                                    "route": "local"})["turn_id"]  # fmt: skip
    assert gate.begun.wait(20)

    assert api.post(f"turns/{turn_id}/cancel") == {"cancelled": True}
    assert api.post(f"turns/{turn_id}/cancel") == {"cancelled": False}
    assert api.get(f"turns/{turn_id}")["error"]["tag"] == "cancelled"
    assert gate.cancelled.wait(20)


def test_a_repeat_under_the_same_key_joins_the_first_one_and_runs_nothing(serving: Serving) -> None:
    gate = Gate("once")
    local = model(gate)
    api = Api(serving(kept(local), doors=DOORS))
    path, key = f"sessions/{api.start()}/turns", {"idempotency-key": "k"}
    body = {"text": "x", "route": "local"}
    first = threading.Thread(target=lambda: api.call("POST", path, body, headers=key))
    first.start()
    assert gate.begun.wait(20)

    second = api.call("POST", path, {**body, "background": True}, headers=key)
    gate.open()
    first.join(20)
    third = api.call("POST", path, body, headers=key)

    assert second.status_code == 202
    assert third.json()["text"] == "once"
    assert len(local.requests) == 1
    assert api.fault("POST", path, {**body, "text": "y"}, headers=key)[:2] == (422, "idempotency_conflict")


def test_a_keyed_turn_goes_on_when_its_client_goes(serving: Serving) -> None:
    gate = Gate("kept")
    local = model(gate)
    api = Api(serving(kept(local), doors=DOORS))
    path, body = f"sessions/{api.start()}/turns", {"text": "x", "route": "local"}

    with pytest.raises(Exception, match="timed out"):
        api.call("POST", path, body, headers={"idempotency-key": "k"}, timeout=0.3)
    gate.open()

    assert api.post(path, body, headers={"idempotency-key": "k"})["text"] == "kept"
    assert len(local.requests) == 1


@pytest.mark.parametrize("decision", ["once", "no"])
def test_an_approval_is_asked_for_in_the_stream_and_given_by_its_id(serving: Serving, decision: str) -> None:
    local = model(calls("delete", path="a.txt"), "over")
    api = Api(serving(kept(local, tools=[delete]), doors=DOORS))
    body = {"text": "tidy up", "route": "local", "tools": "effect", "asks": True}

    with api.stream("POST", f"sessions/{api.start()}/turns", body) as events:
        names = []
        for event in events:
            names.append(event.name)
            if event.name == "approval_needed":
                (waiting,) = api.get("approvals")["approvals"]
                assert waiting == event.data
                assert waiting["request"]["arguments"] == {"path": "a.txt"}
                path = f"approvals/{waiting['approval_id']}"
                assert api.call("POST", path, {"decision": decision}).status_code == 204
                assert api.fault("POST", path, {"decision": decision}) == (404, "no_such_approval", None)

    assert names[:2] == ["started", "approval_needed"]
    assert ("tool_called" in names) == (decision == "once")
    assert ("deleted a.txt" in local.requests[1].text) == (decision == "once")
    assert api.get("approvals")["approvals"] == []


@pytest.mark.parametrize(
    "reason, status, retry_after",
    [
        (HttpStatus(status=429, retry_after_s=7.2), 429, "8"),
        (HttpStatus(status=529), 529, None),
        (HttpStatus(status=401), 502, None),
        (Timeout(), 504, None),
    ],
    ids=["429", "529", "401", "timeout"],
)
def test_a_turn_that_fails_has_the_status_of_its_reason(
    serving: Serving, reason: Any, status: int, retry_after: str | None
) -> None:
    api = Api(serving(kept(model(reason)), doors=DOORS))

    response = api.call("POST", f"sessions/{api.start()}/turns", {"text": "x", "route": "local"})

    assert response.status_code == status
    assert response.json()["error"]["tag"] == reason.tag
    assert response.headers.get("retry-after") == retry_after


def test_a_stream_tells_of_a_failure_in_its_last_event(serving: Serving) -> None:
    api = Api(serving(kept(model()), doors=DOORS))

    with api.stream("POST", f"sessions/{api.start()}/turns", {"text": "x", "route": "cloud"}) as events:
        *_, last = events

    assert last.name == "finished"
    assert last.data == {
        "answer": None,
        "error": {
            "tag": "cloud_unavailable",
            "detail": "no cloud model is configured: add a [router.slots.cloud] to mead.toml",
        },
    }


def test_r16_a_forced_cloud_request_with_local_text_is_refused(serving: Serving) -> None:
    cloud = model(otherwise="fine")
    secret = "The orchard behind the mill belongs to nobody but the miller's youngest daughter."
    api = Api(serving(kept(model(secret), cloud), doors=DOORS))
    api.turn(api.start(), "tell me", route="local")
    messages = [{"role": "user", "content": f"Give this a title: {secret}"}]

    assert api.fault("POST", "requests", {"messages": messages, "route": "cloud"})[:2] == (
        403,
        "private_content",
    )
    assert api.post("requests", {"messages": messages})["route"] == "local"
    assert cloud.requests == []


def test_explain_contacts_nothing(serving: Serving) -> None:
    local, cloud = model(), model()
    api = Api(serving(kept(local, cloud), doors=DOORS))

    found = api.post("explain", {"text": "my IBAN is DE89 3704 0044 0532 0130 00", "route": "cloud"})
    brought = api.post("explain", {"messages": [{"role": "user", "content": "hello"}], "route": "local"})

    assert found["refused"]["tag"] == "private_content"
    assert brought["decision"]["route"] == "local"
    assert local.requests == cloud.requests == []
    assert api.fault("POST", "explain", {})[2] == "text"


# What a token may do


@pytest.mark.parametrize(
    "method, path, body, scope",
    [
        ("POST", "sessions/{}/turns", {"text": "x", "tools": "effect"}, "tools:effect"),
        ("POST", "sessions/{}/turns", {"text": "x", "allow_private": True}, "private:send"),
        ("POST", "sessions/{}/turns", {"text": "x", "options": {"extra": {"a": 1}}}, "admin"),
        ("POST", "sessions/{}/compact", {"allow_private": True}, "private:send"),
        ("POST", "sessions/{}/declassify", {"turns": [1]}, "declassify"),
        ("POST", "sessions", {"turns": [{"messages": [], "label": "shareable"}]}, "declassify"),
        ("POST", "sessions", {"options": {"extra": {"a": 1}}}, "admin"),
        ("GET", "approvals", None, "approve"),
        ("POST", "approvals/x", {"decision": "once"}, "approve"),
        ("GET", "servers", None, "admin"),
        ("GET", "audit", None, "admin"),
        ("GET", "audit/verify", None, "admin"),
        ("GET", "usage?owner=other", None, "admin"),
        ("GET", "egress?owner=*", None, "admin"),
        ("GET", "tools?tools=effect", None, "tools:effect"),
    ],
)
def test_a_token_without_the_scope_is_refused(
    serving: Serving, tmp_path: Path, method: str, path: str, body: object, scope: str
) -> None:
    tokens = Tokens(tmp_path)
    api = Api(serving(kept(model()), tokens, doors=DOORS), token(tokens, "chat"))

    response = api.call(method, path.format(api.start()), body)

    assert response.status_code == 403
    assert response.json()["error"]["tag"] == "forbidden"
    assert scope in response.json()["error"]["detail"]


def test_an_import_without_the_right_to_lift_labels_lowers_them(serving: Serving, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    address = serving(kept(None, model()), tokens, doors=DOORS)
    api, chat = Api(address, token(tokens)), Api(address, token(tokens, "chat"))
    session_id = api.start()
    api.turn(session_id, route="cloud")
    lines = api.call("GET", f"sessions/{session_id}/export").content

    (made,) = chat.post("import", content=lines)["sessions"]

    assert made["lowered"] == 1
    assert chat.get(f"sessions/{made['session_id']}/history")["turns"][0]["label"] == "local_only"


def test_a_token_that_may_use_some_models_uses_no_others(serving: Serving, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    address = serving(kept(model(), model()), tokens, doors=DOORS)
    api, every = Api(address, token(tokens, models=["mead-local"])), Api(address, token(tokens))
    session_id, named = api.start(), every.start(options={"model": "large"})
    path = f"sessions/{session_id}/turns"

    assert api.turn(session_id, route="local")["route"] == "local"
    assert api.fault("POST", path, {"text": "x"})[:2] == (403, "forbidden")
    assert api.fault("POST", path, {"text": "x", "route": "cloud"})[:2] == (403, "forbidden")
    assert api.fault("POST", f"sessions/{named}/turns", {"text": "x", "route": "local"})[:2] == (
        403,
        "forbidden",
    )
    assert [each["name"] for each in api.get("models")["models"]] == ["mead-local"]


def test_a_tokens_tags_are_put_on_its_turns(serving: Serving, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    api = Api(serving(kept(model()), tokens, doors=DOORS), token(tokens, "chat", tags=["team"]))
    session_id = api.start()

    api.turn(session_id, route="local", tags=["own"])
    api.post("requests", {"messages": [{"role": "user", "content": "x"}], "route": "local"})
    api.post(f"sessions/{session_id}/compact")

    rows = {row["key"]: row["calls"] for row in api.get("usage?by=tag")["rows"]}
    assert rows == {"own": 1, "team": 3}


def test_usage_is_the_callers_own_and_of_all_for_an_admin(serving: Serving, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    address = serving(kept(model()), tokens, doors=DOORS)
    mine, other = Api(address, token(tokens)), Api(address, token(tokens, owner="other"))
    for api in (mine, other):
        api.turn(api.start(), route="local")

    assert mine.get("usage")["total"]["calls"] == 1
    assert mine.get("usage?owner=*")["total"]["calls"] == 2
    assert mine.get("usage?owner=other&by=route")["rows"][0]["key"] == "local"
    assert mine.get("usage?until=2001-01-01")["rows"] == []


def test_s10_another_owners_turn_and_approval_are_not_there(serving: Serving, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    gate = Gate()
    address = serving(kept(model(gate)), tokens, doors=DOORS)
    mine, other = Api(address, token(tokens)), Api(address, token(tokens, owner="other"))
    body = {"messages": [{"role": "user", "content": "x"}], "background": True, "route": "local"}
    turn_id = mine.post("requests", body)["turn_id"]

    for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
        assert other.fault(method, f"turns/{turn_id}{path}") == (404, "no_such_turn", None)
    gate.open()
    assert mine.get(f"turns/{turn_id}?wait_s=20")["status"] == "done"


def test_slots_that_are_full_say_when_to_come_back(serving: Serving) -> None:
    api = Api(serving(kept(model(lambda _: SlotBusy(retry_after_s=3))), doors=DOORS))

    response = api.call("POST", f"sessions/{api.start()}/turns", {"text": "x", "route": "local"})

    assert (response.status_code, response.headers["retry-after"]) == (429, "3")


def test_a_turn_in_the_background_waits_for_an_approval_that_somebody_gives(serving: Serving) -> None:
    api = Api(serving(kept(model(calls("delete", path="a.txt"), "over"), tools=[delete]), doors=DOORS))
    path = f"sessions/{api.start()}/turns"
    body = {"text": "tidy up", "route": "local", "tools": "effect", "asks": True, "background": True}
    turn_id = api.post(path, body)["turn_id"]
    with api.stream("GET", f"turns/{turn_id}/events") as events:
        asked = next(event for event in events if event.name == "approval_needed")

    approval = {"decision": "session", "only": ["path"]}
    assert api.call("POST", f"approvals/{asked.data['approval_id']}", approval).status_code == 204
    answer = api.get(f"turns/{turn_id}?wait_s=20")["answer"]

    assert (answer["text"], answer["tool_calls"]) == ("over", 1)


def test_a_deleted_sessions_turns_are_forgotten_with_it(serving: Serving) -> None:
    gate = Gate()
    api = Api(serving(kept(model("first", gate)), doors=DOORS))
    session_id = api.start()
    body = {"text": "x", "route": "local", "background": True}
    over = api.post(f"sessions/{session_id}/turns", body)["turn_id"]
    assert api.get(f"turns/{over}?wait_s=20")["status"] == "done"
    running = api.post(f"sessions/{session_id}/turns", body)["turn_id"]
    assert gate.begun.wait(20)

    assert api.call("DELETE", f"sessions/{session_id}").status_code == 204

    assert gate.cancelled.wait(20)
    for turn_id in (over, running):
        assert api.fault("GET", f"turns/{turn_id}") == (404, "no_such_turn", None)


def test_too_many_turns_at_once_are_refused(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mead.serve.native_flights.MAX_RUNNING", 1)
    gate = Gate()
    api = Api(serving(kept(model(gate)), doors=DOORS))
    path, body = f"sessions/{api.start()}/turns", {"text": "x", "route": "local", "background": True}
    turn_id = api.post(path, body)["turn_id"]
    assert gate.begun.wait(20)

    assert api.fault("POST", path, body)[:2] == (429, "too_many_turns")
    gate.open()
    assert api.get(f"turns/{turn_id}?wait_s=20")["status"] == "done"
    assert api.call("POST", path, body).status_code == 202


def test_a_server_that_ends_ends_the_turns_that_run_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mead.serve.app._doors", lambda: DOORS)
    gate = Gate()
    with served(kept(model(gate)), None) as address:
        api = Api(address)
        body = {"text": "x", "route": "local", "background": True}
        api.post(f"sessions/{api.start()}/turns", body)
        assert gate.begun.wait(20)

    assert gate.cancelled.is_set()


def test_events_after_one_that_never_was_are_refused(serving: Serving) -> None:
    api = Api(serving(kept(model()), doors=DOORS))
    asked = {"messages": [{"role": "user", "content": "hello"}], "background": True}
    turn_id = api.post("requests", asked)["turn_id"]
    api.get(f"turns/{turn_id}", params={"wait_s": 20})

    for seen in ("999", "9" * 5000, "²".encode("latin-1")):
        answer = api.call("GET", f"turns/{turn_id}/events", headers={"last-event-id": seen})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize(
    "body",
    [
        {"text": SECRET},
        {"text": "hi", "options": {"system": SECRET}},
        {"text": "hi", "options": {"stop": [SECRET]}},
    ],
)
def test_r16_text_of_a_local_turn_is_known_in_what_is_sent_to_another_session(
    serving: Serving, body: dict[str, Any]
) -> None:
    api = Api(serving(kept(model(), model()), doors=DOORS))
    api.turn(api.start(), SECRET, route="local")

    refused = api.call("POST", f"sessions/{api.start()}/turns", {**body, "route": "cloud"})

    assert refused.status_code == 403
    assert refused.json()["error"]["tag"] == "private_content"
