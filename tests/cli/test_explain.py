"""`mead explain`: where a turn would go and why. Nothing is sent."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cli.commands import ECHO, Servers, cloud_slot, local_slot, run, run_json, said

PRIVATE = "my card is 4111 1111 1111 1111"


@pytest.mark.parametrize("route", ["auto", "local", "cloud"])
def test_r18_nothing_is_sent(route: str, servers: Servers, configure: Callable[..., None]) -> None:
    local, cloud = servers.start(said("never")), servers.start(said("never"))
    configure(local_slot(local), cloud_slot(cloud))

    result = run("explain", "prove it step by step", "--route", route)

    assert (result.exit_code, result.stderr) == (0, "")
    assert local.requests == cloud.requests == []


def test_the_route_the_model_and_the_reason_are_told(
    servers: Servers, configure: Callable[..., None]
) -> None:
    configure(ECHO, cloud_slot(servers.start(), model="large"))

    forced = run("explain", "hello", "--route", "cloud").stdout.splitlines()
    private = run("explain", PRIVATE).stdout.splitlines()

    assert forced[:2] == [
        "route     cloud (forced) → openai, model large",
        "because   The turn asks for the cloud model.",
    ]
    assert private[:3] == [
        "route     local (classified) → echo",
        "because   The text holds something of the kind 'card'.",
        "found     card at 11–30: •••••••••••••••••11",
    ]
    assert "label     local_only" in private


@pytest.mark.usefixtures("echoing")
def test_a_turn_that_would_be_refused_is_explained_with_the_reason() -> None:
    result = run("explain", "hello", "--route", "cloud")

    assert result.exit_code == 0
    assert result.stdout.splitlines()[0] == "route     cloud (forced) → nothing"
    assert result.stdout.splitlines()[-1].startswith("refused   cloud_unavailable: no cloud model")


@pytest.mark.usefixtures("echoing")
def test_json_holds_the_decision() -> None:
    told, status = run_json("explain", PRIVATE, "--route", "local")

    assert status == 0
    assert told == {
        "ok": True,
        "decision": {
            "route": "local",
            "source": "forced",
            "provider": "echo",
            "model": None,
            "causes": [{"code": "forced", "text": "The turn asks for the local model."}],
            "label": "local_only",
            "private": False,
            "findings": [],
            "score": None,
            "threshold": None,
            "contributions": [],
            "version": None,
            "may_escalate": False,
            "withheld": 0,
            "tools": [],
            "emulates_tools": False,
            "not_known": [],
        },
        "refused": None,
    }


@pytest.mark.usefixtures("echoing")
def test_json_masks_what_was_found() -> None:
    told, _ = run_json("explain", PRIVATE)

    assert told["decision"]["private"] is True
    assert told["decision"]["findings"] == [
        {"kind": "card", "start": 11, "end": 30, "masked": "•••••••••••••••••11"}
    ]


@pytest.mark.usefixtures("echoing")
def test_json_holds_the_reason_of_a_refusal_beside_the_decision() -> None:
    told, status = run_json("explain", PRIVATE, "--route", "cloud")

    assert status == 0
    assert told["decision"]["route"] == "cloud"
    assert told["refused"]["tag"] == "private_content"
    assert told["refused"]["kinds"] == ["card"]


def test_a_turn_that_cannot_be_explained_is_a_failure_also_in_json(configure: Callable[..., None]) -> None:
    configure(ECHO, "[sessions]\nmax_input_bytes = 10\n")

    told, status = run_json("explain", text="more than ten bytes")

    assert status == 1
    assert (told["ok"], told["reason"]["tag"], told["session_id"]) == (False, "invalid_options", None)


@pytest.mark.usefixtures("echoing")
def test_piped_text_is_explained() -> None:
    assert "'card'" in run("explain", text=PRIVATE).stdout


def test_where_nothing_is_routed_there_is_nothing_to_explain(configure: Callable[..., None]) -> None:
    configure('[router]\nhandler = "echo"\n')

    result = run("explain", "hello")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        'mead: nothing is routed: with handler = "echo" under [router] every turn is echoed\n'
    )


@pytest.mark.usefixtures("echoing")
def test_the_options_of_a_turn_are_taken() -> None:
    result = run("explain", "hello", "--model", "unknown")

    assert "refused   invalid_options: the slot has no model 'unknown'" in result.stdout
