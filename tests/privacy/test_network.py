"""Local turns need no network and use none (R4, R17): seen from outside, packet by packet, and name by name.

`tests/providers/test_http.py` looks at the gate alone; here it is a whole runtime, in its real surroundings.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import mead
from mead.core.reasons import HttpStatus, Transport
from mead.core.result import Err, Ok
from mead.settings import parse
from mead.testing import Answer, FakeServer
from mead.testing.canaries import Canary, find
from mead.testing.privacy import PrivacyProof
from mead.testing.recording import Recorder, RecordingServer, echo_all

TESTS = Path(__file__).parent.parent


# In a network namespace


@functools.cache
def why_no_namespace() -> str | None:
    """Why this machine gives no network namespace; `None` if it does."""
    if not sys.platform.startswith("linux"):
        return "network namespaces are Linux's"
    try:
        tried = subprocess.run(
            ["unshare", "-rnm", "ip", "link", "set", "lo", "up"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"no network namespace can be made: {error}"
    return f"no network namespace can be made: {tried.stderr.strip()}" if tried.returncode else None


@pytest.fixture
def inside() -> Callable[[str], dict[str, Any]]:
    """Runs a mode of `privacy.inside` in a namespace."""
    if (why := why_no_namespace()) is not None:
        pytest.skip(why)

    def run(mode: str) -> dict[str, Any]:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
        command = ["unshare", "-rnm", sys.executable, "-W", "error", "-m", "privacy.inside", mode]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    return run


LOCAL_TURNS = (
    ["ok, 2 calls", "ok, 2 calls", "ok, 0 calls"] * 2 + ["ok, 0 calls"] * 2 + ["ok, compact", "http_status"]
)


def test_r17_every_local_turn_works_where_there_is_loopback_and_nothing_else(
    inside: Callable[[str], dict[str, Any]],
) -> None:
    told = inside("without_a_network")

    for wire in ("ollama", "openai"):
        assert told[wire] == {"ended": LOCAL_TURNS, "outside": [], "cloud": "transport"}


def test_r04_r17_local_turns_send_no_packet_to_a_cloud_that_is_there_and_a_cloud_turn_does(
    inside: Callable[[str], dict[str, Any]],
) -> None:
    told = inside("with_a_cloud")

    for wire in ("ollama", "openai"):
        seen = told[wire]
        assert seen["ended"] == LOCAL_TURNS
        assert seen["outside"] == []
        assert seen["cloud"] == "ok, 0 calls"
        assert {"203.0.113.1:53", "203.0.113.1:80"} <= set(seen["then outside"]), "what is there is seen"
        planted = [Canary(f"{wire} text", number, text) for number, text in enumerate(seen["planted"], 1)]
        assert len(planted) > 10
        assert find(told["far"]["received"].encode("latin-1"), planted) == []
    assert told["far"]["received"].count("openly") == 2
    assert set(told["far"]["asked"]) == {"cloud.example"}, "names are asked for where they are needed only"


def test_r17_a_name_that_turns_between_check_and_connection_is_not_followed(
    inside: Callable[[str], dict[str, Any]],
) -> None:
    told = inside("with_a_turning_name")

    refused, allowed = told["refused"], told["allowed"]
    assert (refused["ended"], refused["outside"], refused["pieces"]) == ("transport", [], 0)
    assert len(refused["asked"]) >= 2, "it was asked for when it was checked, and when it was used"
    assert allowed["ended"] == "ok, 0 calls", "the server is really there"
    assert any(address.startswith("203.0.113.1:") for address in allowed["outside"])


# In this process


class Names:
    """The loop's name service, whose answers change: each question for a name takes its next addresses.
    `connected` keeps where sockets were connected to."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, *addresses: Sequence[str]) -> None:
        self.asked: list[str] = []
        self.connected: list[str] = []
        self._name, self._addresses = name, list(addresses)
        loop = asyncio.get_running_loop()
        self._connect = loop.sock_connect
        patch.setattr(loop, "getaddrinfo", self._getaddrinfo)
        patch.setattr(loop, "sock_connect", self._sock_connect)

    async def _getaddrinfo(self, host: str | bytes, port: int, **_: Any) -> list[Any]:
        host = host.decode() if isinstance(host, bytes) else host
        self.asked.append(host)
        found = [host]
        if host == self._name:
            found = list(self._addresses.pop(0) if len(self._addresses) > 1 else self._addresses[0])
        return [
            (
                socket.AF_INET6 if ":" in address else socket.AF_INET,
                socket.SOCK_STREAM,
                socket.IPPROTO_TCP,
                "",
                (address, port, 0, 0) if ":" in address else (address, port),
            )
            for address in found
        ]

    async def _sock_connect(self, sock: socket.socket, where: Any) -> None:
        self.connected.append(where[0])
        if where[0] != "127.0.0.1":
            raise ConnectionRefusedError("not in a test")
        await self._connect(sock, where)


def settings_of(local: str, cloud: str, more: str = "") -> mead.Settings:
    return parse(
        f'[router.slots.local]\nprovider = "openai"\nmodel = "m"\nbase_url = "{local}"\n{more}\n'
        f'[router.slots.cloud]\nprovider = "openai"\nmodel = "m"\nbase_url = "{cloud}"\n',
        environ={"HOME": "/nowhere"},
    )


async def ask(settings: mead.Settings, text: str, **keywords: Any) -> Any:
    async with mead.Runtime(settings) as runtime:
        session_id = await runtime.start_session()
        return await runtime.submit_turn(session_id, text, **keywords)


@pytest.mark.parametrize(
    "addresses",
    [
        ["8.8.8.8"],
        ["::ffff:8.8.8.8"],
        ["::ffff:808:808"],
        ["2001:4860:4860::8888"],
        ["64:ff9b::808:808"],
        ["0.0.0.0"],
        ["::"],
        ["169.254.169.254"],
        ["::ffff:169.254.169.254"],
        ["fd00:ec2::254"],
        ["100.100.100.200"],
        ["169.254.7.7"],
        ["fe80::1"],
        ["fe80::1%lo"],
        ["100.65.0.1"],
        ["192.0.2.1", "198.51.100.1", "203.0.113.1"],
    ],
    ids=lambda addresses: ",".join(addresses),
)
async def test_r17_a_name_that_was_local_at_the_start_is_not_followed_elsewhere(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with PrivacyProof() as proof:
        secret = proof.canary("text")
        names = Names(monkeypatch, "models.lan", ["127.0.0.1"], addresses)
        more = 'local_networks = ["100.64.0.0/16"]'
        settings = settings_of("http://models.lan:9/v1", proof.cloud_url + "/v1", more)
        result = await ask(settings, f"think of {secret}", route="local")
        proof.look_at("the result", result)
        proof.assert_nothing_leaked()

    assert isinstance(result, Err)
    assert isinstance(result.reason, Transport)
    assert result.reason.cause == "not_local"
    assert names.asked[0] == "models.lan", "it was checked at the start"
    assert names.connected == []


async def test_r17_a_name_that_turns_in_mid_conversation_is_not_followed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with PrivacyProof() as proof:
        # A server that closes each connection: every turn has to look the name up and connect again.
        quick = Answer(body=b"{}", headers={"connection": "close"})

        def answer(request: Any) -> Answer:
            return msgspec.structs.replace(echo_all(request), headers=quick.headers)

        async with FakeServer(answer) as local:
            Names(monkeypatch, "models.lan", ["127.0.0.1"])
            settings = settings_of(f"http://models.lan:{local.port}/v1", proof.cloud_url + "/v1")
            async with mead.Runtime(settings) as runtime:
                session_id = await runtime.start_session()
                first = await runtime.submit_turn(session_id, f"a {proof.canary('text')}", route="local")
                # aiohttp remembers a name for ten seconds: they are over.
                local_slot = runtime.slots.local
                assert local_slot is not None
                local_slot.provider.client._session.connector.clear_dns_cache()  # type: ignore[attr-defined]  # HTTP
                names = Names(monkeypatch, "models.lan", ["8.8.8.8", "127.0.0.1"])
                second = await runtime.submit_turn(session_id, f"a {proof.canary('text')}", route="local")
                asked_then = len(names.asked)
                local_slot.provider.client._session.connector.clear_dns_cache()  # type: ignore[attr-defined]  # HTTP
                names = Names(monkeypatch, "models.lan", ["8.8.8.8"])
                third = await runtime.submit_turn(session_id, f"a {proof.canary('text')}", route="local")
        proof.assert_nothing_leaked()

    assert isinstance(first, Ok)
    assert isinstance(second, Ok), "one of its addresses is local, and that one was used"
    assert asked_then > 0
    assert isinstance(third, Err)
    assert getattr(third.reason, "cause", None) == "not_local"
    assert "8.8.8.8" not in names.connected


@pytest.mark.parametrize("host", ["0.0.0.0", "[::ffff:0.0.0.0]", "0"])
async def test_r17_another_word_for_this_machine_is_refused_though_it_leads_there(host: str) -> None:
    recorder = Recorder("there")
    async with PrivacyProof() as proof, RecordingServer(recorder, echo_all, host="0.0.0.0") as server:
        settings = settings_of(f"http://{host}:{server.port}/v1", proof.cloud_url + "/v1")
        with pytest.raises(mead.ConfigError, match="which is neither this machine"):
            await ask(settings, f"think of {proof.canary('text')}", route="local")
        proof.assert_nothing_leaked()

    assert recorder.pieces == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("target", ["cloud", "elsewhere"])
async def test_r17_a_local_server_cannot_redirect_a_turn(status: int, target: str) -> None:
    async with PrivacyProof() as proof:
        to = proof.cloud_url if target == "cloud" else proof.elsewhere_url
        moved = Answer(status=status, headers={"location": f"{to}/v1/chat/completions"}, chunked=False)
        async with FakeServer(moved) as local:
            settings = settings_of(local.url + "/v1", proof.cloud_url + "/v1")
            result = await ask(settings, f"think of {proof.canary('text')}", route="local")
        proof.assert_nothing_leaked()

    assert isinstance(result, Err)
    assert isinstance(result.reason, HttpStatus)
    assert result.reason.status == status
    assert proof.cloud.recorder.pieces == proof.elsewhere.recorder.pieces == []


PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.mark.parametrize("case", [str.upper, str.lower], ids=["upper", "lower"])
@pytest.mark.parametrize("no_proxy", [None, "", "somewhere.example", "*"])
async def test_r17_no_proxy_of_the_environment_gets_a_local_turn(
    case: Callable[[str], str], no_proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*PROXIES, "NO_PROXY"):
        monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    if no_proxy is not None:
        monkeypatch.setenv(case("NO_PROXY"), no_proxy)
    async with PrivacyProof() as proof, FakeServer(echo_all) as local:
        for name in PROXIES:
            monkeypatch.setenv(case(name), proof.elsewhere_url)
        secret = proof.canary("text")
        settings = settings_of(local.url + "/v1", "http://far.example/v1")
        answer = (await ask(settings, f"think of {secret}", route="local")).unwrap()
        proof.assert_nothing_leaked()
        assert secret.text in answer.text
        assert proof.elsewhere.recorder.pieces == []

        if no_proxy != "*":  # the proxy is really there
            await ask(settings, "openly", route="cloud")
            assert proof.elsewhere.recorder.holds("POST http://far.example/v1/chat/completions")


@pytest.mark.parametrize("wire", ["ollama", "openai", "anthropic"])
async def test_r17_a_model_that_ollama_runs_elsewhere_gets_no_word_of_a_turn(wire: str) -> None:
    shown = Answer(
        body=msgspec.json.encode({"remote_host": "https://ollama.com:443", "capabilities": ["tools"]})
    )
    recorder = Recorder("Ollama")
    async with PrivacyProof() as proof:
        async with RecordingServer(recorder, echo_all, routes={"/api/show": shown}) as server:
            url = server.url + ("/v1" if wire == "openai" else "")
            slot = f'[router.slots.local]\nprovider = "{wire}"\nmodel = "m"\nbase_url = "{url}"'
            secret = proof.canary("text")
            result = await ask(parse(slot, environ={"HOME": "/nowhere"}), f"think of {secret}", route="local")
        proof.assert_nothing_leaked()

    assert isinstance(result, Err)
    assert getattr(result.reason, "cause", None) == "not_local"
    assert recorder.holds("POST /api/show"), "it was asked"
    assert recorder.find([secret]) == []
