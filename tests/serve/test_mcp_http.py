"""mead as an MCP server over HTTP: the official client at `/mcp` of a real server, in both protocol eras."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import MCPError

import mead
from mead.serve import mcp_server
from mead.serve.endpoint import Server
from mead.serve.mcp_protocol import lowlevel_server
from mead.serve.mcp_server import McpDoor
from mead.serve.mcp_tools import McpTools
from mead.serve.tokens import Tokens
from mead.settings import ServeSettings
from mead.testing import ProviderRequest, ScriptedProvider
from serve.mcp_client import ERAS, PATIENCE_S, Era, data_of, error_of, kept, over_http, text_of
from serve.served import Serving

both_eras = pytest.mark.parametrize("era", ERAS)
DOORS = (mcp_server.routes,)
ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path)


def bearer(token: str) -> dict[str, str]:
    return {**ACCEPT, "authorization": f"Bearer {token}"}


def post(url: str, message: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
    return httpx.post(f"{url}/mcp", json=message, headers=headers, timeout=PATIENCE_S, trust_env=False)


class HeldThere:
    """A step that waits on the server's thread until the test lets it go."""

    def __init__(self) -> None:
        self.begun, self.cancelled = threading.Event(), threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._let_go: asyncio.Event | None = None

    async def __call__(self, request: ProviderRequest) -> str:
        self._loop, self._let_go = asyncio.get_running_loop(), asyncio.Event()
        self.begun.set()
        try:
            await self._let_go.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "at last"

    def let_go(self) -> None:
        assert self._loop is not None
        assert self._let_go is not None
        self._loop.call_soon_threadsafe(self._let_go.set)


async def happened(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE_S)


@both_eras
async def test_m1_a_client_with_a_token_talks_to_its_owner_s_sessions(
    era: Era, serving: Serving, tokens: Tokens
) -> None:
    url = serving(kept(), tokens, doors=DOORS)
    ada, eve = (tokens.create(name, owner=name)[1] for name in ("ada", "eve"))

    async with over_http(url, ada, era=era) as client:
        answer = data_of(await client.call_tool("ask", {"text": "hello", "route": "cloud"}))
        listed = data_of(await client.call_tool("sessions"))
        resources = (await client.list_resources()).resources
        version = client.protocol_version
    async with over_http(url, eve, era=era) as client:
        hers = await client.call_tool("history", {"session_id": answer["session_id"]})

    assert version == {"legacy": "2025-11-25", "auto": "2026-07-28"}[era]
    assert answer["text"] == "from cloud"
    assert [entry["session_id"] for entry in listed["sessions"]] == [answer["session_id"]]
    assert [resource.name for resource in resources] == [answer["session_id"]]
    assert error_of(hers) == "no_such_session"


@both_eras
async def test_handles_work_over_http(era: Era, serving: Serving, tokens: Tokens) -> None:
    held = HeldThere()
    url = serving(kept(cloud=ScriptedProvider(held)), tokens, doors=DOORS)
    token, other = (tokens.create(name)[1] for name in ("one", "other"))

    async with over_http(url, token, era=era) as client:
        asked = data_of(await client.call_tool("ask", {"text": "x", "route": "cloud", "wait_s": 0}))
        await happened(held.begun)
    async with over_http(url, other, era=era) as client:
        refused = await client.call_tool("result", {"handle": asked["handle"]})
    async with over_http(url, token, era=era) as client:
        held.let_go()
        done = data_of(await client.call_tool("result", {"handle": asked["handle"]}))

    assert error_of(refused) == "no_such_turn"
    assert done["text"] == "at last"


@both_eras
async def test_a_cancelled_request_cancels_its_turn_over_http(era: Era, serving: Serving) -> None:
    held = HeldThere()
    url = serving(kept(cloud=ScriptedProvider(held)), doors=DOORS)

    async with over_http(url, era=era) as client:
        asking = asyncio.create_task(client.call_tool("ask", {"text": "x", "route": "cloud"}))
        await happened(held.begun)
        asking.cancel()
        await happened(held.cancelled)
        with pytest.raises(asyncio.CancelledError):
            await asking


@both_eras
async def test_progress_comes_over_http(era: Era, serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mead.serve.mcp_handles.PROGRESS_S", 0.01)
    heard = threading.Event()

    @mead.tool(effect=False)
    async def look() -> str:
        """Looks."""
        await happened(heard)
        return "seen"

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.set()

    cloud = ScriptedProvider(mead.testing.calls("look"), "done")
    url = serving(kept(cloud=cloud, tools=[look]), doors=DOORS)
    async with over_http(url, era=era) as client:
        arguments = {"text": "x", "route": "cloud"}
        result = await client.call_tool("ask", arguments, progress_callback=hear)

    assert text_of(result) == "done"


# Who is let in


def test_without_a_token_nobody_is_let_in(serving: Serving, tokens: Tokens) -> None:
    url = serving(kept(), tokens, doors=DOORS)

    for headers in (ACCEPT, bearer("mead_000000000000_" + "x" * 43)):
        for message in (INITIALIZE, LIST):
            response = post(url, message, headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["tag"] == "unauthorized"


def test_a_token_without_the_scope_chat_is_refused(serving: Serving, tokens: Tokens) -> None:
    url = serving(kept(), tokens, doors=DOORS)
    _, token = tokens.create("approver", scopes=["approve"])

    response = post(url, INITIALIZE, bearer(token))

    assert (response.status_code, response.json()["error"]["tag"]) == (403, "forbidden")


def test_a_session_of_the_older_protocol_is_good_for_its_own_token(serving: Serving, tokens: Tokens) -> None:
    url = serving(kept(), tokens, doors=DOORS)
    record, token = tokens.create("one")
    _, other = tokens.create("other")
    begun = post(url, INITIALIZE, bearer(token))
    session = {"mcp-session-id": begun.headers["mcp-session-id"], "mcp-protocol-version": "2025-11-25"}

    own = post(url, LIST, {**bearer(token), **session})
    stolen = post(url, LIST, {**bearer(other), **session})
    tokens.revoke(record.token_id)
    revoked = post(url, LIST, {**bearer(token), **session})

    assert [own.status_code, stolen.status_code, revoked.status_code] == [200, 404, 401]


@pytest.mark.parametrize(
    "headers, status", [({"host": "evil.example"}, 421), ({"origin": "https://evil.example"}, 403)]
)
def test_foreign_hosts_and_origins_are_refused(
    headers: dict[str, str], status: int, serving: Serving
) -> None:
    url = serving(kept(), doors=DOORS)

    assert post(url, INITIALIZE, {**ACCEPT, **headers}).status_code == status


def test_a_large_body_is_refused(serving: Serving) -> None:
    url = serving(kept(serve=ServeSettings(max_body_bytes=1_000)), doors=DOORS)

    def body() -> Any:
        yield json.dumps({**INITIALIZE, "more": "x" * 2_000}).encode()

    whole = post(url, {**INITIALIZE, "more": "x" * 2_000}, ACCEPT)
    chunked = httpx.post(f"{url}/mcp", content=body(), headers=ACCEPT, trust_env=False)

    assert [whole.status_code, chunked.status_code] == [413, 413]
    assert chunked.json()["error"]["tag"] == "body_too_large"


def test_a_token_s_requests_are_counted(serving: Serving, tokens: Tokens) -> None:
    url = serving(kept(serve=ServeSettings(requests_per_minute=2)), tokens, doors=DOORS)
    _, token = tokens.create("one")

    statuses = [post(url, INITIALIZE, bearer(token)).status_code for _ in range(3)]

    assert statuses == [200, 200, 429]


def test_without_the_sdk_the_door_says_what_is_missing(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "mcp" else find_spec(name, *rest)
    )
    url = serving(kept(), doors=DOORS)

    response = post(url, INITIALIZE, ACCEPT)

    assert response.status_code == 501
    assert "mead-runtime[mcp]" in response.json()["error"]["detail"]


def test_a_door_that_cannot_be_opened_says_so_each_time(
    serving: Serving, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(door: McpDoor) -> None:
        raise RuntimeError("secret".upper())

    def routes(server: Any) -> Any:
        made = mcp_server.routes(server)
        made[0].app._make = lambda: broken(made[0].app)
        return made

    url = serving(kept(), doors=(routes,))
    responses = [post(url, INITIALIZE, ACCEPT) for _ in range(2)]

    assert [response.status_code for response in responses] == [500, 500]
    assert "RuntimeError" in caplog.text
    assert "SECRET" not in caplog.text


@both_eras
async def test_t3_neither_tokens_nor_words_are_logged(
    era: Era, serving: Serving, tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    url = serving(kept(), tokens, doors=DOORS)
    _, token = tokens.create("one")
    with caplog.at_level(logging.INFO):
        async with over_http(url, token, era=era) as client:
            await client.call_tool("ask", {"text": "verysecret", "route": "cloud"})
            await client.call_tool("ask", {"text": 5, "verysecret": "verysecret"})
            with pytest.raises(MCPError):
                await client.read_resource("mead://sessions/none")
        broken = {**LIST, "params": "verysecret"}
        post(url, broken, {**bearer(token), "mcp-protocol-version": "2026-07-28"})
        async with httpx.AsyncClient(headers=bearer(token), trust_env=False) as plain:
            await plain.post(f"{url}/mcp", content=b"{verysecret")

    assert token.split("_", 2)[2] not in caplog.text
    assert "verysecret" not in caplog.text


def test_a_token_with_many_sessions_of_the_older_protocol_loses_its_oldest_and_shuts_nobody_out(
    serving: Serving, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "MAX_SESSIONS", 6)
    monkeypatch.setattr(mcp_server, "MAX_OF_TOKEN", 3)
    url = serving(kept(), tokens, doors=DOORS)
    (_, greedy), (_, other) = tokens.create("greedy"), tokens.create("other")

    def begin(token: str) -> dict[str, str]:
        begun = post(url, INITIALIZE, bearer(token))
        assert begun.status_code == 200, begun.text
        session_id = begun.headers["mcp-session-id"]
        return {**bearer(token), "mcp-session-id": session_id, "mcp-protocol-version": "2025-11-25"}

    used = begin(greedy)
    made = []
    for _ in range(8):
        made.append(begin(greedy))
        assert post(url, LIST, used).status_code == 200  # the last used one is not the oldest
    others = begin(other)

    statuses = [post(url, LIST, session).status_code for session in made]
    assert statuses == [404] * 6 + [200] * 2
    assert post(url, LIST, others).status_code == 200


async def test_a_client_that_goes_away_in_the_middle_of_its_body_is_no_crash(
    tokens: Tokens, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = kept()
    door = McpDoor(Server(runtime, None), lambda: lowlevel_server(Server(runtime, None), McpTools()))
    headers = [(name.encode(), value.encode()) for name, value in ACCEPT.items()]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": headers, "query_string": b""}
    sent: list[int] = []
    begins = {"type": "http.request", "body": b'{"json', "more_body": True}
    parts: list[dict[str, Any]] = [begins, {"type": "http.disconnect"}]

    async def gone() -> dict[str, Any]:
        return parts.pop(0)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            sent.append(message["status"])

    with caplog.at_level(logging.ERROR):
        async with door.opened():
            await door(scope, gone, send)

    assert sent == [499]
    assert not caplog.records
