"""`mead doctor`: every mistake is named with what to do, and nothing of a conversation is sent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.commands import ECHO, Servers, cloud_slot, local_slot, run, run_json
from mead.cli import _found, doctor
from mead.testing import Answer, FakeServer

NOBODY = "http://127.0.0.1:1"


def listing(*names: str) -> Answer:
    return Answer(body=msgspec.json.encode({"data": [{"id": name} for name in names]}))


def tags(*names: str) -> Answer:
    return Answer(body=msgspec.json.encode({"models": [{"name": name} for name in names]}))


def ollama_slot(server: FakeServer, model: str) -> str:
    return local_slot(server, provider="ollama", base_url=server.url, model=model)


def checks(what: str) -> tuple[list[tuple[str, str]], int]:
    """What is said about one thing, and the exit status."""
    told, status = run_json("doctor")
    found: list[Any] = told["checks"]
    assert told["ok"] == (status == 0)
    return [(check["status"], check["said"]) for check in found if check["what"] == what], status


@pytest.mark.usefixtures("echoing")
def test_all_is_well_and_the_status_is_0(home: Path) -> None:
    result = run("doctor")

    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "✓ configuration  mead.toml",
        "✓ local slot     echo: echo needs no server",
        "– cloud slot     empty: a turn for it fails with cloud_unavailable",
        f"✓ data folder    {home / 'data'}",
    ]


@pytest.mark.usefixtures("echoing")
def test_json_has_the_same_checks(home: Path) -> None:
    told, status = run_json("doctor")

    assert status == 0
    assert told == {
        "ok": True,
        "checks": [
            {"what": "configuration", "status": "ok", "said": "mead.toml"},
            {"what": "local slot", "status": "ok", "said": "echo: echo needs no server"},
            {
                "what": "cloud slot",
                "status": "empty",
                "said": "empty: a turn for it fails with cloud_unavailable",
            },
            {"what": "data folder", "status": "ok", "said": str(home / "data")},
        ],
    }


def test_a_server_that_has_the_model_is_well_and_is_asked_for_its_list_only(
    servers: Servers, configure: Callable[..., None]
) -> None:
    server = servers.start(tags("llama3.1:latest"))
    configure(ollama_slot(server, "llama3.1"))

    found, status = checks("local slot")

    assert status == 0
    assert found[0] == ("ok", f"ollama: 127.0.0.1:{server.port} answers and has llama3.1")
    assert [(request.method, request.path) for request in server.requests] == [("GET", "/api/tags")]


def test_r17_it_says_that_it_cannot_see_behind_a_proxy_on_loopback(
    servers: Servers, configure: Callable[..., None]
) -> None:
    configure(ollama_slot(servers.start(tags("a")), "a"))

    found, _ = checks("local slot")

    assert found[1][0] == "ok"
    assert "a proxy on loopback, say) cannot be seen from here" in found[1][1]


def test_r17_allow_remote_is_warned_of(servers: Servers, configure: Callable[..., None]) -> None:
    configure(local_slot(servers.start(listing("small")), allow_remote=True))

    found, status = checks("local slot")

    assert status == 0
    assert found[1] == ("warning", "allow_remote is set: what is meant to be local may leave this machine")


def test_a_model_that_ollama_lacks_is_named_with_the_command_that_fetches_it(
    servers: Servers, configure: Callable[..., None]
) -> None:
    server = servers.start(tags("qwen3", "gemma3"))
    configure(ollama_slot(server, "lama3"))

    found, status = checks("local slot")

    assert status == 1
    assert found[0] == (
        "error",
        f"ollama: 127.0.0.1:{server.port} has no model 'lama3'; it has: gemma3, qwen3. Fetch it with: "
        "ollama pull lama3",
    )


def test_every_model_of_a_slot_is_looked_for(servers: Servers, configure: Callable[..., None]) -> None:
    configure(cloud_slot(servers.start(listing("small", "large")), models=["large", "huge"]))

    found, status = checks("cloud slot")

    assert status == 1
    assert [state for state, _ in found] == ["ok", "ok", "error"]
    assert "no model 'huge'" in found[2][1]


def test_a_server_that_is_down_is_said_to_be_so_once(configure: Callable[..., None]) -> None:
    configure(
        f'[router.slots.local]\nprovider = "ollama"\nmodel = "a"\nmodels = ["b"]\nbase_url = "{NOBODY}"\n'
    )

    found, status = checks("local slot")

    assert status == 1
    assert found[0] == (
        "error",
        "ollama: transport: nothing accepts connections at 127.0.0.1:1. Start the server, or correct "
        "base_url in mead.toml.",
    )
    assert [state for state, _ in found] == ["error", "ok"]


def test_a_missing_key_is_told_and_nothing_is_sent(configure: Callable[..., None]) -> None:
    configure('[router.slots.cloud]\nprovider = "anthropic"\nmodel = "claude"\n')

    found, status = checks("cloud slot")

    assert status == 1
    assert found == [
        (
            "error",
            "anthropic: missing_api_key: anthropic needs an API key: set api_key in its slot. For anthropic "
            "and openai the variable ANTHROPIC_API_KEY or OPENAI_API_KEY will do.",
        )
    ]


def test_a_wrong_key_is_told_without_the_key(servers: Servers, configure: Callable[..., None]) -> None:
    refusal = Answer(status=401, body=b'{"error": {"message": "bad key sk-secret-123456"}}')
    configure(cloud_slot(servers.start(refusal), api_key="sk-secret-123456"))

    result = run("doctor")

    assert result.exit_code == 1
    assert "the server answered 401" in result.stdout
    assert "Check api_key" in result.stdout
    assert "sk-secret" not in result.output


@pytest.mark.parametrize(
    "text,told",
    [
        (ECHO.replace("provider", "providre"), "mead.toml, line 2: router.slots.local.providre: there is no"),
        ("[router", "mead.toml, line 1: this is not valid TOML"),
        (ECHO.replace("echo", "ecco"), "there is no provider 'ecco'; use one of anthropic, echo"),
        (
            '[router.slots.local]\nprovider = "ollama"\nmodel = "a"\nbase_url = "http://8.8.8.8"\n',
            "neither this machine nor a private network",
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_a_check_too_and_the_status_is_2(
    text: str, told: str, configure: Callable[..., None]
) -> None:
    configure(text)

    found, status = checks("configuration")

    assert status == 2
    assert [state for state, _ in found] == ["error"]
    assert told in found[0][1]


def test_no_model_at_all_is_told_with_the_ways_to_one(
    monkeypatch: pytest.MonkeyPatch, servers: Servers
) -> None:
    nobody = servers.start(Answer(status=404))
    monkeypatch.setattr(_found, "has_engine", lambda: False)
    monkeypatch.setattr(_found, "OLLAMA_URL", nobody.url)
    monkeypatch.setattr(_found, "LLAMA_CPP_URL", nobody.url)

    found, status = checks("models")

    assert status == 1
    assert found[0][0] == "error"
    assert "pip install 'mead-runtime[local]'" in found[0][1]
    assert checks("configuration")[0] == [("ok", "no file; the defaults hold")]


def test_that_every_turn_is_echoed_is_a_warning(configure: Callable[..., None]) -> None:
    configure('[router]\nhandler = "echo"\n')

    found, status = checks("configuration")

    assert status == 0
    assert found[1][0] == "warning"
    assert "every turn is echoed" in found[1][1]


def test_a_key_that_others_may_read_is_warned_of(home: Path, configure: Callable[..., None]) -> None:
    configure(ECHO, 'api_key = "sk-secret"\n')
    (home / "mead.toml").chmod(0o644)

    found, status = checks("configuration")

    assert status == 0
    assert found[1] == (
        "warning",
        "mead.toml holds an API key and others may read it: chmod 600 mead.toml",
    )


@pytest.mark.parametrize(
    "engine,keys,state,told",
    [
        (False, "", "error", "its engine is missing; pip install 'mead-runtime[local]'"),
        (True, "", "warning", "the model is fetched at first use, or by: mead model install"),
        (True, '[embedded]\nmodel_path = "nowhere.gguf"\n', "error", "there is no file nowhere.gguf"),
        (
            True,
            '[embedded]\nmodel_path = "mead.toml"\n',
            "ok",
            "embedded: mead.toml (its use of tools is emulated: docs/embedded.md)",
        ),
    ],
)
def test_the_embedded_model_is_looked_for(
    engine: bool,
    keys: str,
    state: str,
    told: str,
    configure: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    configure('[router.slots.local]\nprovider = "embedded"\n', keys)
    monkeypatch.setattr(doctor, "has_engine", lambda: engine)

    found, status = checks("local slot")

    assert (found[0][0], status) == (state, 1 if state == "error" else 0)
    assert told in found[0][1]


@pytest.mark.usefixtures("echoing")
def test_a_data_folder_that_can_be_none_is_an_error(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEAD_DATA_FOLDER", str(home / "mead.toml" / "data"))

    found, status = checks("data folder")

    assert status == 1
    assert found[0][0] == "error"
    assert "name another one in $MEAD_DATA_FOLDER" in found[0][1]
