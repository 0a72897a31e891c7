"""Who may do what: every endpoint without a token, with a wrong, a revoked, an expired, a narrower one."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route

import mead
from mead import telemetry
from mead.router import Slot, Slots
from mead.serve.app import make_app
from mead.serve.endpoint import Server
from mead.serve.tokens import SCOPES, Scope, Tokens
from mead.settings import ServeSettings, Settings
from mead.testing import ScriptedProvider
from support import slots

BASE = "http://127.0.0.1:4141"
CHAT = {"model": "mead-auto", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens")


@pytest.fixture
def runtime(tmp_path: Path) -> mead.Runtime:
    settings = Settings(
        data_folder=tmp_path, serve=ServeSettings(requests_per_minute=50, max_body_bytes=10_000)
    )
    local, cloud = ScriptedProvider(otherwise="local says"), ScriptedProvider(otherwise="cloud says")
    return mead.Runtime(settings, slots=slots(local, cloud))


@pytest.fixture
def app(runtime: mead.Runtime, tokens: Tokens) -> Starlette:
    return make_app(runtime, tokens, owns_runtime=False)


@pytest.fixture
async def client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=BASE) as made:
        yield made


def paths_of(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    """Each method with each path, their places filled with something."""
    for route in routes:
        if isinstance(route, Route):
            path = re.sub(r"\{[^}]+\}", "x", route.path)
            yield from [(method, path) for method in sorted(route.methods or ()) if method != "HEAD"]
        elif isinstance(route, Mount):
            yield "POST", route.path


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_every_endpoint_but_the_health_asks_for_a_token(
    app: Starlette, client: httpx.AsyncClient, tokens: Tokens
) -> None:
    record, revoked = tokens.create("old", scopes=SCOPES)
    tokens.revoke(record.token_id)
    _, expired = tokens.create("late", scopes=SCOPES, lifetime_s=-1)
    endpoints = list(paths_of(app.routes))
    assert len(endpoints) > 30

    for method, path in endpoints:
        if path == "/healthz":
            continue
        for headers in (
            {},
            bearer("mead_000000000000_" + "x" * 43),
            bearer(revoked),
            bearer(expired),
            bearer(""),
        ):
            answer = await client.request(method, path, headers=headers, json={})
            assert answer.status_code == 401, (method, path, headers)
            assert answer.headers["www-authenticate"].startswith("Bearer")
            assert revoked not in answer.text

    assert (await client.get("/healthz")).json() == {"status": "ok"}


async def test_a_token_without_scopes_is_refused_everywhere(
    app: Starlette, client: httpx.AsyncClient, tokens: Tokens
) -> None:
    _, token = tokens.create("nothing", scopes=())
    for_any_token = {"/healthz", "/readyz", "/api/openapi.json"}

    for method, path in paths_of(app.routes):
        if path in for_any_token:
            continue
        answer = await client.request(method, path, headers=bearer(token), json={})
        assert answer.status_code == 403, (method, path, answer.text)


NARROW: list[tuple[Scope, str, dict[str, object]]] = [
    ("tools:effect", "/v1/chat/completions", {**CHAT, "mead": {"tools": "effect"}}),
    ("private:send", "/v1/chat/completions", {**CHAT, "mead": {"allow_private": True}}),
]


@pytest.mark.parametrize("scope,path,body", NARROW, ids=[scope for scope, _, _ in NARROW])
async def test_what_needs_more_than_chat_is_refused_without_it(
    client: httpx.AsyncClient, tokens: Tokens, scope: Scope, path: str, body: dict[str, object]
) -> None:
    _, plain = tokens.create("plain")
    _, wide = tokens.create("wide", scopes=("chat", scope))

    refused = await client.post(path, headers=bearer(plain), json=body)
    allowed = await client.post(path, headers=bearer(wide), json=body)

    assert refused.status_code == 403
    assert scope in refused.text
    assert scope not in allowed.text


async def test_a_token_may_ask_for_its_models_only(client: httpx.AsyncClient, tokens: Tokens) -> None:
    _, token = tokens.create("one", models=["mead-local"])

    listed = await client.get("/v1/models", headers=bearer(token))
    refused = await client.post("/v1/chat/completions", headers=bearer(token), json=CHAT)
    taken = await client.post(
        "/v1/chat/completions", headers=bearer(token), json={**CHAT, "model": "mead-local"}
    )

    assert [model["id"] for model in listed.json()["data"]] == ["mead-local"]
    assert refused.status_code == 403
    assert taken.status_code == 200


async def test_s10_a_token_sees_its_owners_sessions_only(
    client: httpx.AsyncClient, runtime: mead.Runtime, tokens: Tokens
) -> None:
    session_id = await runtime.for_owner("ada").start_session()
    _, adas = tokens.create("a", owner="ada")
    _, bobs = tokens.create("b", owner="bob")

    headers = {"x-mead-session": session_id}
    own = await client.post("/v1/chat/completions", headers={**bearer(adas), **headers}, json=CHAT)
    other = await client.post("/v1/chat/completions", headers={**bearer(bobs), **headers}, json=CHAT)

    assert own.status_code == 200
    assert other.status_code == 404
    assert other.json()["error"]["code"] == "no_such_session"


async def test_a_token_makes_so_many_requests_a_minute(client: httpx.AsyncClient, tokens: Tokens) -> None:
    _, token = tokens.create("busy")

    answers = [await client.get("/v1/models", headers=bearer(token)) for _ in range(51)]

    assert [answer.status_code for answer in answers] == [200] * 50 + [429]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 60


async def test_the_turns_of_a_token_carry_its_tags_and_its_budget(
    client: httpx.AsyncClient, runtime: mead.Runtime, tokens: Tokens
) -> None:
    from mead.serve.tokens import TokenBudget

    _, token = tokens.create("poor", budget=TokenBudget(per="day", tokens=1))
    body = {**CHAT, "model": "mead-cloud"}

    refused = await client.post("/v1/chat/completions", headers=bearer(token), json=body)
    _, rich = tokens.create("rich")
    allowed = await client.post("/v1/chat/completions", headers=bearer(rich), json=body)

    assert refused.status_code == 402
    assert refused.json()["error"]["code"] == "budget_exceeded"
    assert allowed.status_code == 200


@pytest.mark.parametrize(
    "headers,status",
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:4141"}, 421),
        ({"host": ""}, 421),
        ({"host": "localhost:4141"}, 200),
        ({"host": "[::1]:4141"}, 200),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": BASE}, 200),
        ({"content-length": "many"}, 400),
        ({f"x-{number}": "y" for number in range(200)}, 431),
        ({"x-long": "y" * 70_000}, 431),
    ],
)
async def test_foreign_hosts_origins_and_huge_headers_are_refused(
    client: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    assert (await client.get("/healthz", headers=headers)).status_code == status


async def test_a_body_that_is_too_large_is_refused_however_it_comes(
    client: httpx.AsyncClient, tokens: Tokens
) -> None:
    _, token = tokens.create("large")

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b" " * 1_000

    declared = await client.post("/v1/chat/completions", headers=bearer(token), content=b" " * 10_001)
    chunked = await client.post("/v1/chat/completions", headers=bearer(token), content=pieces())

    assert (declared.status_code, chunked.status_code) == (413, 413)


async def test_t3_no_token_appears_in_logs_events_answers_or_reprs(
    client: httpx.AsyncClient,
    runtime: mead.Runtime,
    tokens: Tokens,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    record, token = tokens.create("hidden", scopes=SCOPES)
    secret = token.split("_", 2)[2]
    events: list[telemetry.Event] = []
    detach = telemetry.attach(events.append)
    seen = []
    with caplog.at_level(logging.DEBUG):
        for body in (CHAT, {"model": token}, {**CHAT, "messages": [{"role": token, "content": ""}]}, []):
            answer = await client.post("/v1/chat/completions", headers=bearer(token), json=body)
            seen += [answer.text, str(answer.headers)]
        server: Server = client._transport.app.state.server  # type: ignore[attr-defined]  # of our transport

        def broken(*_: object) -> None:
            raise ValueError(f"a bug that quotes {token}")

        monkeypatch.setattr(server, "let_in", broken)
        answer = await client.post("/v1/chat/completions", headers=bearer(token), json=CHAT)
        assert answer.status_code == 500
        seen.append(answer.text)
    detach()

    seen += [caplog.text, repr(events), repr(record), repr(tokens.records()), repr(server.__dict__)]
    # A client that sends its token as the name of a model is told of the name's place, not of the name.
    assert [text for text in seen if secret in text] == []


async def test_a_token_s_models_hold_for_the_model_of_a_session_too(tmp_path: Path, tokens: Tokens) -> None:
    local = ScriptedProvider(otherwise="local says")
    listed = Slots(local=Slot(local, models=("small", "big")), cloud=None)
    runtime = mead.Runtime(mead.Settings(data_folder=tmp_path), slots=listed)
    transport = httpx.ASGITransport(app=make_app(runtime, tokens, owns_runtime=False))
    _, token = tokens.create("one", models=["mead-local", "local/small"])
    others = await runtime.start_session(options=mead.Options(model="big"))
    good = await runtime.start_session(options=mead.Options(model="small"))

    async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=bearer(token)) as client:
        body = {"options": {"model": "big"}}
        started = await client.post("/api/sessions", json=body)
        also = await client.post("/api/sessions", json={"options": {"model": "small"}})
        refused = [
            await client.post(path, json=asked, headers={"x-mead-session": others})
            for path, asked in (
                ("/v1/chat/completions", {**CHAT, "model": "mead-local"}),
                ("/v1/chat/completions", {**CHAT, "model": "mead-local", "stream": True}),
                ("/v1/messages", {**CHAT, "model": "mead-local", "max_tokens": 9}),
                (f"/api/sessions/{others}/turns", {"text": "hello", "route": "local"}),
            )
        ]
        taken = await client.post(
            "/v1/chat/completions", json={**CHAT, "model": "mead-local"}, headers={"x-mead-session": good}
        )

    assert (started.status_code, started.json()["error"]["param"]) == (403, "options.model")
    assert also.status_code == 201
    assert [answer.status_code for answer in refused] == [403, 403, 403, 403]
    assert taken.status_code == 200, taken.text


@pytest.mark.parametrize("named", ["fd00::2", "[fd00:0::2]", "FD00::2"])
async def test_a_server_on_an_ipv6_address_is_called_by_it(tmp_path: Path, named: str) -> None:
    settings = Settings(data_folder=tmp_path, serve=ServeSettings(host=named))
    runtime = mead.Runtime(settings, slots=slots(ScriptedProvider(), ScriptedProvider()))
    transport = httpx.ASGITransport(app=make_app(runtime, None, owns_runtime=False))

    async with httpx.AsyncClient(transport=transport, base_url="http://[fd00::2]:4141") as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/healthz", headers={"host": "[fd00::3]:4141"})).status_code == 421
