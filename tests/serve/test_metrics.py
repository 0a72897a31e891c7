"""The metrics' door: for whom, in which form, and what is read when it is asked."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse
from starlette.applications import Starlette

import mead
from mead import telemetry
from mead.core.usage import Usage
from mead.providers.protocol import Completion
from mead.serve import app as app_module
from mead.serve import metrics as door
from mead.serve import openai
from mead.serve.app import make_app
from mead.serve.tokens import TokenBudget, Tokens
from mead.settings import Settings, TelemetrySettings
from mead.settings.values import BudgetSettings
from mead.storage.memory import MemoryStore
from mead.testing import ScriptedProvider, calls
from mead.testing.canaries import Canaries, find
from support import slots

BASE = "http://127.0.0.1:4141"


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens")


@pytest.fixture(autouse=True)
def few_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "_doors", lambda: (openai.routes, door.routes))


@asynccontextmanager
async def client_of(app: Starlette, token: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, which runs meanwhile."""
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers) as client:
            yield client


def value(text: str, name: str, **labels: str) -> float | None:
    samples = [sample for family in parse(text) for sample in family.samples]
    return next((one.value for one in samples if one.name == name and one.labels == labels), None)


async def test_the_metrics_are_for_tokens_with_the_scope_admin(tokens: Tokens, tmp_path: Path) -> None:
    runtime = mead.Runtime(Settings(data_folder=tmp_path), slots=slots(ScriptedProvider()))
    _, chat = tokens.create("chat", scopes=("chat",))
    _, admin = tokens.create("admin", scopes=("admin",))
    async with client_of(make_app(runtime, tokens)) as client:
        answers = [
            await client.get("/metrics", headers={"authorization": f"Bearer {token}"})
            for token in ("wrong", chat, admin)
        ]

    assert [answer.status_code for answer in answers] == [401, 403, 200]
    assert "mead_build_info" not in answers[1].text


async def test_the_form_follows_the_accept_header(tmp_path: Path) -> None:
    runtime = mead.Runtime(Settings(data_folder=tmp_path), slots=slots(ScriptedProvider()))
    async with client_of(make_app(runtime, None)) as client:
        plain = await client.get("/metrics", headers={"accept": "text/plain"})
        modern = await client.get(
            "/metrics", headers={"accept": "application/openmetrics-text;version=1.0.0"}
        )

    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert modern.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert plain.headers["cache-control"] == "no-store"
    assert "mead_build" in {family.name.removesuffix("_info") for family in parse(plain.text)}
    assert "mead_turns" in {family.name for family in parse_openmetrics(modern.text)}


async def test_what_is_left_of_each_budget_is_read_from_the_store(tokens: Tokens, tmp_path: Path) -> None:
    budgets = (
        BudgetSettings(name="monthly", per="month", tokens=1_000_000),
        BudgetSettings(name="work", per="day", tokens=500_000, tag="work", owner="ada"),
        BudgetSettings(name="each", per="day", tokens=500_000, owner="*"),
        BudgetSettings(name="session", per="session", tokens=500_000),
    )
    _, token = tokens.create("ada", owner="ada", scopes=("chat", "admin"), tags=("work",))
    limited, _ = tokens.create("limited", budget=TokenBudget(per="day", tokens=70))
    cloud = ScriptedProvider(Completion(text="hi", usage=Usage(input_tokens=90, output_tokens=10)))
    settings = Settings(data_folder=tmp_path, budgets=budgets)
    runtime = mead.Runtime(settings, slots=slots(cloud=cloud), store=MemoryStore())
    async with client_of(make_app(runtime, tokens), token) as client:
        body = {"model": "mead-cloud", "messages": [{"role": "user", "content": "hello"}]}
        answered = await client.post("/v1/chat/completions", json=body)
        shown = (await client.get("/metrics")).text

    assert answered.status_code == 200, answered.text
    assert value(shown, "mead_budget_left", budget="monthly", unit="tokens") == 999_900
    assert value(shown, "mead_budget_limit", budget="monthly", unit="tokens") == 1_000_000
    assert value(shown, "mead_budget_left", budget="work", unit="tokens") == 499_900
    assert value(shown, "mead_budget_left", budget=f"token-{limited.token_id}", unit="tokens") == 70
    assert 'budget="each"' not in shown
    assert 'budget="session"' not in shown


async def test_t3_a_request_is_counted_and_nothing_of_it_is_shown(tmp_path: Path) -> None:
    canaries = Canaries(seed=5)
    question, answer, argument, owner = [
        canaries.make(kind) for kind in ("question", "answer", "argument", "who")
    ]
    local = ScriptedProvider(calls("lookup", where=str(argument)), str(answer), name="mine")

    @mead.tool(effect=False)
    def lookup(where: str) -> str:
        """Looks."""
        return where

    settings = Settings(data_folder=tmp_path)
    tokens = Tokens(tmp_path / "tokens")
    _, token = tokens.create("all", owner=str(owner), scopes=("chat", "admin"))
    runtime = mead.Runtime(settings, slots=slots(local), tools=[lookup])
    async with client_of(make_app(runtime, tokens), token) as client:
        body = {
            "model": "mead-local",
            "messages": [{"role": "user", "content": str(question)}],
            "mead": {"tools": "read"},
        }
        answered = await client.post("/v1/chat/completions", json=body)
        shown = (await client.get("/metrics")).text

    assert str(answer) in answered.text
    assert value(shown, "mead_turns_total", route="local", status="ok", reason="none") == 1
    assert value(shown, "mead_tool_calls_total", tool="lookup", server="none", status="ok", kind="ok") == 1
    assert find(shown, [*canaries.made, canaries.keep("token", token)]) == []


async def test_the_settings_say_whether_owners_are_named(tmp_path: Path) -> None:
    settings = Settings(data_folder=tmp_path, telemetry=TelemetrySettings(owners=True))
    runtime = mead.Runtime(settings, slots=slots(ScriptedProvider("hi", name="mine")))
    async with client_of(make_app(runtime, None)) as client:
        body = {"model": "mead-local", "messages": [{"role": "user", "content": "hello"}]}
        await client.post("/v1/chat/completions", json=body)
        shown = (await client.get("/metrics")).text

    labels = {"route": "local", "status": "ok", "reason": "none", "owner": "local"}
    assert value(shown, "mead_turns_total", **labels) == 1


async def test_without_the_extra_the_answer_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mead.telemetry.prometheus", None)
    runtime = mead.Runtime(Settings(data_folder=tmp_path), slots=slots(ScriptedProvider()))
    async with client_of(make_app(runtime, None)) as client:
        answer = await client.get("/metrics")

    assert answer.status_code == 501
    assert answer.json()["error"]["tag"] == "extra_missing"
    assert "pip install 'mead-runtime[prometheus]'" in answer.json()["error"]["detail"]


async def test_nothing_is_counted_before_the_server_starts_and_after_it_ends(tmp_path: Path) -> None:
    runtime = mead.Runtime(Settings(data_folder=tmp_path), slots=slots(ScriptedProvider()))
    app = make_app(runtime, None)
    before = telemetry.listened(telemetry.TURN)
    async with client_of(app):
        meanwhile = telemetry.listened(telemetry.TURN)

    assert (before, meanwhile, telemetry.listened(telemetry.TURN)) == (False, True, False)
