"""Logging in to a remote server: once, by a person; then from what was kept."""

from __future__ import annotations

import asyncio
import json
import logging
import stat
import urllib.request
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from mcp.client.auth import OAuthFlowError
from servers import call, hub_of, names

from mead.mcp.oauth import LoginError, TokenFile, check_address, login
from mead.settings import McpServerSettings
from mead.settings.values import Secret
from mead.testing import Answer, FakeServer, Received


class Protected:
    """An authorization server and a protected MCP server in one. `valid` are the tokens that it takes."""

    def __init__(self) -> None:
        self.valid: set[str] = set()
        self.granted = 0
        self.clients: list[dict[str, object]] = []
        self.grants: list[str] = []
        self.takes_refresh = True
        self.expires_in = 3600
        self.url = ""

    def answer(self, request: Received) -> Answer:
        path = urlsplit(request.path).path
        if path == "/mcp":
            return self.mcp(request)
        if path.startswith("/.well-known/oauth-protected-resource"):
            return _json({"resource": f"{self.url}/mcp", "authorization_servers": [self.url]})
        if path.startswith("/.well-known/"):
            return _json(
                {
                    "issuer": self.url,
                    "authorization_endpoint": f"{self.url}/authorize",
                    "token_endpoint": f"{self.url}/oauth/token",
                    "registration_endpoint": f"{self.url}/register",
                    "response_types_supported": ["code"],
                    "grant_types_supported": ["authorization_code", "refresh_token"],
                    "code_challenge_methods_supported": ["S256"],
                }
            )
        if path == "/register":
            client = {**request.json(), "client_id": f"client-{len(self.clients)}"}
            self.clients.append(client)
            return msgspec.structs.replace(_json(client), status=201)
        if path == "/oauth/token":
            return self.token({key: values[0] for key, values in parse_qs(request.body.decode()).items()})
        return Answer(status=404)

    def token(self, form: dict[str, str]) -> Answer:
        self.grants.append(form["grant_type"])
        if form["grant_type"] == "refresh_token" and not self.takes_refresh:
            return msgspec.structs.replace(_json({"error": "invalid_grant"}), status=400)
        self.granted += 1
        token = f"token-{self.granted}"
        self.valid.add(token)
        return _json(
            {
                "access_token": token,
                "token_type": "Bearer",
                "expires_in": self.expires_in,
                "refresh_token": f"refresh-{self.granted}",
            }
        )

    def mcp(self, request: Received) -> Answer:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.valid:
            where = f'Bearer resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
            return Answer(status=401, headers={"www-authenticate": where})
        if request.method != "POST":
            return Answer(status=405)
        message = request.json()
        if "id" not in message:
            return Answer(status=202)
        results = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "vault", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "open", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "opened"}]},
        }
        result = results.get(message["method"])
        if result is None:
            return _json(
                {
                    "jsonrpc": "2.0",
                    "id": message["id"],
                    "error": {"code": -32601, "message": "no such method"},
                }
            )
        return _json({"jsonrpc": "2.0", "id": message["id"], "result": result})


def _json(value: object) -> Answer:
    return Answer(body=json.dumps(value).encode())


def person(state: str | None = None, **extra: str) -> Callable[[str], object]:
    """A browser whose person agrees at once, and comes back with the code."""

    def visit(url: str) -> None:
        query = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
        answer = {"code": "code", "state": state or query["state"], **extra}
        back = query["redirect_uri"] + "?" + "&".join(f"{key}={value}" for key, value in answer.items())
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(back, timeout=10).read()

    return visit


def vault(server: FakeServer, **settings: object) -> McpServerSettings:
    chosen: dict[str, object] = {
        "name": "vault",
        "auth": "oauth",
        "trusted": True,
        "mode": "legacy",
        **settings,
    }
    return McpServerSettings(url=f"{server.url}/mcp", **chosen)  # type: ignore[arg-type]  # by name


@pytest.fixture
def protected() -> Protected:
    return Protected()


async def test_after_a_login_a_hub_uses_the_server(protected: Protected, tmp_path: Path) -> None:
    async with FakeServer(protected.answer) as server:
        protected.url = server.url
        await login(vault(server), tmp_path, open_url=person())
        async with hub_of(vault(server), folder=tmp_path) as hub:
            assert await names(hub) == ["vault__open"]
            assert (await call(hub, "vault__open")).content == "opened"

    assert protected.grants == ["authorization_code"]
    path = tmp_path / "auth" / "vault.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_without_a_login_the_server_says_what_to_do_and_nothing_is_sent(
    protected: Protected, tmp_path: Path
) -> None:
    async with FakeServer(protected.answer) as server:
        protected.url = server.url
        async with hub_of(vault(server), folder=tmp_path) as hub:
            (health,) = hub.health()

    assert health.state == "needs_auth"
    assert health.error == "it asks for a login: run mead mcp login vault"
    assert server.requests == []


async def test_tokens_that_have_expired_are_refreshed(protected: Protected, tmp_path: Path) -> None:
    async with FakeServer(protected.answer) as server:
        protected.url = server.url
        await login(vault(server), tmp_path, open_url=person())
        protected.valid.clear()
        kept = json.loads((tmp_path / "auth" / "vault.json").read_text())
        kept["expires_at"] = 1.0
        (tmp_path / "auth" / "vault.json").write_text(json.dumps(kept))
        async with hub_of(vault(server), folder=tmp_path) as hub:
            assert hub.connection("vault").state == "ready"

    refreshed = json.loads((tmp_path / "auth" / "vault.json").read_text())
    assert protected.grants == ["authorization_code", "refresh_token"]
    assert refreshed["tokens"]["access_token"] == "token-2"
    assert refreshed["expires_at"] > 1e9


async def test_tokens_that_were_revoked_need_a_new_login(protected: Protected, tmp_path: Path) -> None:
    async with FakeServer(protected.answer) as server:
        protected.url = server.url
        await login(vault(server), tmp_path, open_url=person())
        protected.valid.clear()
        protected.takes_refresh = False
        async with hub_of(vault(server), folder=tmp_path) as hub:
            assert hub.connection("vault").state == "needs_auth"
        await login(vault(server), tmp_path, open_url=person())
        async with hub_of(vault(server), folder=tmp_path) as hub:
            assert hub.connection("vault").state == "ready"


async def test_an_answer_with_another_state_is_refused(protected: Protected, tmp_path: Path) -> None:
    async with FakeServer(protected.answer) as server:
        protected.url = server.url
        with pytest.raises(LoginError, match="State"):
            await login(vault(server), tmp_path, open_url=person(state="forged"))

    assert protected.grants == []


async def test_a_login_that_the_person_refuses_says_so(protected: Protected, tmp_path: Path) -> None:
    async with FakeServer(protected.answer) as server:
        protected.url = server.url
        with pytest.raises(LoginError, match="access_denied"):
            await login(vault(server), tmp_path, open_url=person(error="access_denied"))


async def test_a_login_that_nobody_ends_is_bounded(protected: Protected, tmp_path: Path) -> None:
    async with FakeServer(protected.answer) as server:
        protected.url = server.url
        with pytest.raises(LoginError, match="nobody logged in to vault"):
            await login(vault(server), tmp_path, open_url=lambda url: None, timeout_s=0.3)


async def test_a_client_that_is_registered_already_is_used(protected: Protected, tmp_path: Path) -> None:
    async with FakeServer(protected.answer) as server:
        protected.url = server.url
        await login(vault(server, client_id="ours", client_secret=Secret("s3")), tmp_path, open_url=person())

    assert protected.clients == []
    (token,) = server.requests_to("/oauth/token")
    assert token.headers["authorization"].startswith("Basic ")


async def test_t3_no_token_stands_in_a_log(
    protected: Protected, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="mead")
    async with FakeServer(protected.answer) as server:
        protected.url = server.url
        await login(vault(server), tmp_path, open_url=person())
        async with hub_of(vault(server), folder=tmp_path) as hub:
            await call(hub, "vault__open")
            assert "token-1" not in repr(hub.health())
        assert "token-1" not in repr(TokenFile(vault(server), tmp_path))

    assert "token-1" not in caplog.text


async def test_a_token_file_that_is_broken_or_a_link_holds_none(tmp_path: Path) -> None:
    server = McpServerSettings(name="vault", url="http://127.0.0.1:1/mcp")
    folder = tmp_path / "auth"
    folder.mkdir()
    for text in ("{", "[]", '{"tokens": 5}', '{"tokens": {"access_token": 5}}'):
        (folder / "vault.json").write_text(text)
        assert await TokenFile(server, tmp_path).get_tokens() is None
    (tmp_path / "elsewhere").write_text('{"tokens": {"access_token": "x", "token_type": "Bearer"}}')
    (folder / "vault.json").unlink()
    (folder / "vault.json").symlink_to(tmp_path / "elsewhere")
    assert await TokenFile(server, tmp_path).get_tokens() is None


@pytest.mark.parametrize(
    "url,server,fine",
    [
        ("https://auth.test/x", "https://auth.test/mcp", True),
        ("http://10.0.0.5/x", "http://10.0.0.5:8080/mcp", True),
        ("http://127.0.0.1:2/x", "http://127.0.0.1:1/mcp", True),
        ("https://1.1.1.1/x", "https://8.8.8.8/mcp", True),
        ("http://1.1.1.1/x", "https://8.8.8.8/mcp", False),
        ("https://10.0.0.5/x", "https://8.8.8.8/mcp", False),
        ("https://169.254.169.254/x", "https://8.8.8.8/mcp", False),
        ("https://127.0.0.1/x", "https://8.8.8.8/mcp", False),
        ("http://[::1]/x", "https://8.8.8.8/mcp", False),
    ],
)
async def test_a_server_may_not_send_us_to_addresses_inside(url: str, server: str, fine: bool) -> None:
    if fine:
        await check_address(url, server)
    else:
        with pytest.raises(OAuthFlowError):
            await check_address(url, server)


async def test_the_port_of_the_callback_says_nothing_to_others(protected: Protected, tmp_path: Path) -> None:
    seen: list[int] = []

    def poke(url: str) -> None:
        query = {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        for path in ("/", "/favicon.ico", "/callback"):
            try:
                opener.open(query["redirect_uri"].replace("/callback", path), timeout=10)
            except urllib.error.HTTPError as error:
                seen.append(error.code)
        person()(url)

    async with FakeServer(protected.answer) as server:
        protected.url = server.url
        async with asyncio.timeout(20):
            await login(vault(server), tmp_path, open_url=poke)

    assert seen == [404, 404, 404]
