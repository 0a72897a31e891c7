"""Logging in to a remote server: once, by a person; then from what was kept."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import re
import socket
import stat
import traceback
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from mcp.client.auth import OAuthFlowError
from mcp.shared.auth import OAuthToken
from servers import call, changed, hub_of, names

from mead.mcp import _authorization, _tokens
from mead.mcp.oauth import LoginError, TokenFile, check_address, login
from mead.settings import McpServerSettings
from mead.settings.values import Secret
from mead.testing import Answer, FakeServer, Received
from mead.testing.mcp import FaultyHttpServer


class Protected:
    """An authorization server and a protected MCP server in one.

    It takes the tokens in `valid`, and each refresh token once. Where `call_scope` is set, a call needs that
    scope; where `open` is, nothing needs a token. `metadata` is what the authorization server says of itself
    beyond the usual, `token_answer` what it gives instead of tokens.
    """

    def __init__(self) -> None:
        self.valid: dict[str, str] = {}
        self.granted = 0
        self.clients: list[dict[str, object]] = []
        self.grants: list[str] = []
        self.scopes: list[str] = []
        self.metadata: dict[str, object] = {}
        self.token_answer: Answer | None = None
        self.call_scope: str | None = None
        self.open = False
        self.expires_in = 3600
        self.url = ""
        self._refresh_tokens: set[str] = set()

    def answer(self, request: Received) -> Answer:
        path = urlsplit(request.path).path
        if path == "/mcp":
            return self._mcp(request)
        if path == "/.well-known/oauth-protected-resource/mcp":
            return _json({"resource": f"{self.url}/mcp", "authorization_servers": [self.url]})
        if path == "/.well-known/oauth-authorization-server":
            return _json(
                {
                    "issuer": self.url,
                    "authorization_endpoint": f"{self.url}/authorize",
                    "token_endpoint": f"{self.url}/oauth/token",
                    "registration_endpoint": f"{self.url}/register",
                    "response_types_supported": ["code"],
                    "code_challenge_methods_supported": ["S256"],
                    **self.metadata,
                }
            )
        if path == "/register":
            client = {**request.json(), "client_id": f"client-{len(self.clients)}"}
            self.clients.append(client)
            return _json(client, status=201)
        if path == "/oauth/token":
            return self._token({key: values[0] for key, values in parse_qs(request.body.decode()).items()})
        return Answer(status=404)

    def agree(self, query: dict[str, str]) -> None:
        """A person has agreed to what was asked for."""
        self.scopes.append(query.get("scope", ""))

    def revoke(self) -> None:
        """Nothing that was granted is good any more."""
        self.valid.clear()
        self._refresh_tokens.clear()

    def _token(self, form: dict[str, str]) -> Answer:
        self.grants.append(form["grant_type"])
        if self.token_answer is not None:
            return self.token_answer
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self._refresh_tokens:
                return _json({"error": "invalid_grant"}, status=400)
            self._refresh_tokens.remove(form["refresh_token"])
        self.granted += 1
        scope = self.scopes[-1] if self.scopes else ""
        self.valid[f"token-{self.granted}"] = scope
        self._refresh_tokens.add(f"refresh-{self.granted}")
        return _json(
            {
                "access_token": f"token-{self.granted}",
                "token_type": "Bearer",
                "expires_in": self.expires_in,
                "refresh_token": f"refresh-{self.granted}",
                "scope": scope,
            }
        )

    def _mcp(self, request: Received) -> Answer:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.valid and not self.open:
            where = f'resource_metadata="{self.url}/.well-known/oauth-protected-resource/mcp"'
            return Answer(status=401, headers={"www-authenticate": f'Bearer scope="look", {where}'})
        if request.method != "POST":
            return Answer(status=405)
        message = request.json()
        if "id" not in message:
            return Answer(status=202)
        scope = self.valid.get(token, "").split()
        if message["method"] == "tools/call" and self.call_scope and self.call_scope not in scope:
            lacking = f'Bearer error="insufficient_scope", scope="{self.call_scope}"'
            return Answer(status=403, headers={"www-authenticate": lacking})
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "vault", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "open", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "opened"}]},
        }
        return _json({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]})


def _json(value: object, status: int = 200) -> Answer:
    return Answer(body=json.dumps(value).encode(), status=status)


OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str) -> int:
    """The status of a page."""
    try:
        with OPENER.open(url, timeout=10) as page:
            page.read()
            return int(page.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def asked(url: str) -> dict[str, str]:
    """What a login's page is asked for."""
    return {key: values[0] for key, values in parse_qs(urlsplit(url).query).items()}


def back(url: str, **changes: str) -> str:
    """Where the browser is sent once the person has agreed."""
    answer = {"code": "code", "state": asked(url)["state"], **changes}
    return asked(url)["redirect_uri"] + "?" + "&".join(f"{key}={value}" for key, value in answer.items())


def person(protected: Protected, **changes: str) -> Callable[[str], object]:
    """A browser whose person agrees at once, and comes back with the code."""

    def visit(url: str) -> None:
        protected.agree(asked(url))
        assert get(back(url, **changes)) == 200

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


def kept(folder: Path) -> Any:
    """What stands in the file."""
    return json.loads((folder / "auth" / "vault.json").read_text())


def change(folder: Path, **values: object) -> None:
    """Writes something else into it."""
    (folder / "auth" / "vault.json").write_text(json.dumps({**kept(folder), **values}))


@pytest.fixture
def protected() -> Protected:
    return Protected()


@pytest.fixture
async def server(protected: Protected) -> AsyncIterator[FakeServer]:
    async with FakeServer(protected.answer) as server:
        protected.url = server.url
        async with asyncio.timeout(60):
            yield server


@pytest.fixture
async def logged_in(protected: Protected, server: FakeServer, tmp_path: Path) -> McpServerSettings:
    """The protected server, after a login."""
    await login(vault(server), tmp_path, open_url=person(protected))
    return vault(server)


# Logging in


async def test_after_a_login_a_hub_uses_the_server(
    protected: Protected, logged_in: McpServerSettings, tmp_path: Path
) -> None:
    async with hub_of(logged_in, folder=tmp_path) as hub:
        assert await names(hub) == ["vault__open"]
        assert (await call(hub, "vault__open")).content == "opened"

    assert protected.grants == ["authorization_code"]
    assert protected.clients[0]["client_name"] == "mead"
    assert protected.clients[0]["application_type"] == "native"
    path = tmp_path / "auth" / "vault.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["vault.json"]


async def test_without_a_login_the_server_says_what_to_do_and_nothing_is_sent(
    server: FakeServer, tmp_path: Path
) -> None:
    async with hub_of(vault(server), folder=tmp_path) as hub:
        (health,) = hub.health()

    assert health.state == "needs_auth"
    assert health.error == "it asks for a login: run mead mcp login vault"
    assert server.requests == []


async def test_visits_that_do_not_belong_to_the_login_do_not_end_it(
    protected: Protected, server: FakeServer, tmp_path: Path
) -> None:
    seen: list[int] = []

    def others_come_first(url: str) -> None:
        root = asked(url)["redirect_uri"].removesuffix("/callback")
        visits = [f"{root}/", f"{root}/favicon.ico", f"{root}/callback", back(url, state="forged")]
        visits += [f"{root}/callback?code=code", f"{root}/callback?error=access_denied"]
        seen.extend(map(get, visits))
        person(protected)(url)
        seen.append(get(back(url)))

    await login(vault(server), tmp_path, open_url=others_come_first)

    assert seen == [404, 404, 404, 400, 400, 400, 400]
    assert protected.grants == ["authorization_code"]


async def test_a_login_that_the_person_refuses_says_so(
    protected: Protected, server: FakeServer, tmp_path: Path
) -> None:
    refuses = person(protected, error="access_denied", error_description="not%20today%1b[31m")
    with pytest.raises(LoginError, match=r"failed: the server refused: not today\[31m$"):
        await login(vault(server), tmp_path, open_url=refuses)

    assert not (tmp_path / "auth").exists()


async def test_a_login_that_nobody_ends_is_bounded(server: FakeServer, tmp_path: Path) -> None:
    with pytest.raises(LoginError, match=r"nobody logged in to vault within 0\.3 s"):
        await login(vault(server), tmp_path, open_url=lambda url: None, timeout_s=0.3)


async def test_a_login_that_fails_leaves_the_earlier_one(
    protected: Protected, logged_in: McpServerSettings, tmp_path: Path
) -> None:
    before = kept(tmp_path)
    with pytest.raises(LoginError):
        await login(logged_in, tmp_path, open_url=person(protected, error="access_denied"))

    assert kept(tmp_path) == before


async def test_a_server_that_asks_for_no_login_is_said_to(
    protected: Protected, server: FakeServer, tmp_path: Path
) -> None:
    protected.open = True
    with pytest.raises(LoginError, match="vault does not ask for a login"):
        await login(vault(server), tmp_path, open_url=person(protected))


async def test_the_page_of_a_login_is_not_opened_at_an_address_inside(
    protected: Protected, server: FakeServer, tmp_path: Path
) -> None:
    opened: list[str] = []
    protected.metadata = {"authorization_endpoint": "http://169.254.169.254/authorize"}
    with pytest.raises(LoginError, match=r"169\.254\.169\.254, which is not on the public network"):
        await login(vault(server), tmp_path, open_url=opened.append)

    assert opened == []


@pytest.mark.parametrize("methods,in_header", [(None, True), (["client_secret_post"], False)])
async def test_a_client_that_is_registered_already_is_used(
    methods: list[str] | None, in_header: bool, protected: Protected, server: FakeServer, tmp_path: Path
) -> None:
    if methods is not None:
        protected.metadata = {"token_endpoint_auth_methods_supported": methods}
    ours = vault(server, client_id="ours", client_secret=Secret("s3"))
    await login(ours, tmp_path, open_url=person(protected))
    change(tmp_path, expires_at=1.0)
    async with hub_of(ours, folder=tmp_path) as hub:
        assert hub.connection("vault").state == "ready"

    assert protected.clients == []
    for request in server.requests_to("/oauth/token"):
        assert request.headers.get("authorization", "").startswith("Basic ") == in_header
        assert (b"client_secret=s3" in request.body) != in_header
    assert "s3" not in json.dumps(kept(tmp_path))


async def test_a_server_that_registers_no_clients_is_said_to(
    protected: Protected, server: FakeServer, tmp_path: Path
) -> None:
    protected.metadata = {"registration_endpoint": f"{server.url}/nowhere"}
    with pytest.raises(LoginError, match="HTTP status 404; if it registers no clients by itself"):
        await login(vault(server), tmp_path, open_url=person(protected))


# Tokens that end


async def test_tokens_that_have_expired_are_refreshed(
    protected: Protected, logged_in: McpServerSettings, tmp_path: Path
) -> None:
    protected.valid.clear()
    change(tmp_path, expires_at=1.0)
    async with hub_of(logged_in, folder=tmp_path) as hub:
        assert hub.connection("vault").state == "ready"

    assert protected.grants == ["authorization_code", "refresh_token"]
    assert kept(tmp_path)["tokens"]["access_token"] == "token-2"
    assert kept(tmp_path)["expires_at"] > 1e9


async def test_tokens_that_the_server_takes_no_more_are_refreshed_once_for_all_calls(
    protected: Protected, logged_in: McpServerSettings, tmp_path: Path
) -> None:
    async with hub_of(logged_in, folder=tmp_path) as hub:
        protected.valid.clear()
        outputs = await asyncio.gather(*[call(hub, "vault__open") for _ in range(5)])

    assert [output.content for output in outputs] == ["opened"] * 5
    assert protected.grants == ["authorization_code", "refresh_token"]


async def test_several_programs_refresh_once(
    protected: Protected, logged_in: McpServerSettings, tmp_path: Path
) -> None:
    protected.valid.clear()
    change(tmp_path, expires_at=1.0)

    async def use() -> str:
        async with hub_of(logged_in, folder=tmp_path) as hub:
            return (await call(hub, "vault__open")).content

    assert await asyncio.gather(*[use() for _ in range(3)]) == ["opened"] * 3
    assert protected.grants == ["authorization_code", "refresh_token"]


async def test_the_tokens_of_another_program_are_used(
    protected: Protected, logged_in: McpServerSettings, tmp_path: Path
) -> None:
    async with hub_of(logged_in, folder=tmp_path) as hub:
        await login(logged_in, tmp_path, open_url=person(protected))
        del protected.valid["token-1"]
        assert (await call(hub, "vault__open")).content == "opened"

    assert protected.grants == ["authorization_code"] * 2


async def test_tokens_that_were_revoked_need_a_new_login(
    protected: Protected, logged_in: McpServerSettings, tmp_path: Path
) -> None:
    protected.revoke()
    async with hub_of(logged_in, folder=tmp_path) as hub:
        assert hub.connection("vault").error == "it asks for a login: run mead mcp login vault"
        assert hub.connection("vault").state == "needs_auth"
    await login(logged_in, tmp_path, open_url=person(protected))
    async with hub_of(logged_in, folder=tmp_path) as hub:
        assert hub.connection("vault").state == "ready"


async def test_tokens_that_are_revoked_during_use_need_a_new_login(
    protected: Protected, logged_in: McpServerSettings, tmp_path: Path
) -> None:
    async with hub_of(logged_in, folder=tmp_path) as hub:
        protected.revoke()
        output = await call(hub, "vault__open")
        await changed(hub, lambda: hub.connection("vault").state == "needs_auth")
        again = await call(hub, "vault__open")

    assert output.is_error
    assert "run mead mcp login vault" in again.content


@pytest.mark.parametrize(
    "answer,said",
    [
        (Answer(status=503), "127.0.0.1 answered with HTTP status 503"),
        (Answer(body=b'{"access_token": 5}'), "gave an answer that cannot be used"),
        (Answer(body=b"x" * (2**20 + 1)), "too large"),
        (Answer(status=429, body=b'{"error": "slow_down\\u001b"}'), "HTTP status 429: slow_down$"),
        (Answer(end="hang"), "127.0.0.1: it did not answer in time"),
        (Answer(end="cut", body=b"{"), "127.0.0.1: peer closed"),
    ],
    ids=["broken", "no_token", "endless", "busy", "silent", "cut"],
)
async def test_an_authorization_server_that_fails_does_not_end_the_login(
    answer: Answer,
    said: str,
    protected: Protected,
    logged_in: McpServerSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_authorization, "ANSWER_TIMEOUT_S", 0.3)
    protected.token_answer = answer
    change(tmp_path, expires_at=1.0)
    async with hub_of(logged_in, folder=tmp_path) as hub:
        (health,) = hub.health()
        protected.token_answer = None
        hub.connection("vault").retry()
        await changed(hub, lambda: hub.connection("vault").state == "ready")
        assert (await call(hub, "vault__open")).content == "opened"

    assert health.state == "down"
    assert re.search(said, health.error or "")


async def test_an_authorization_server_that_never_answers_fails_one_try(
    logged_in: McpServerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_authorization, "ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        place = {"token_endpoint": f"http://127.0.0.1:{mute.getsockname()[1]}/token"}
        change(tmp_path, expires_at=1.0, server={**kept(tmp_path)["server"], **place})
        async with hub_of(logged_in, folder=tmp_path) as hub:
            assert hub.connection("vault").state == "down"

    assert kept(tmp_path)["tokens"]["refresh_token"] == "refresh-1"


async def test_a_program_that_does_not_end_its_refresh_holds_others_up_for_a_while_only(
    logged_in: McpServerSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tokens, "LOCK_TIMEOUT_S", 0.2)
    change(tmp_path, expires_at=1.0)
    with (tmp_path / "auth" / "vault.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        async with hub_of(logged_in, folder=tmp_path) as hub:
            (health,) = hub.health()

    assert health.state == "down"
    assert "another program is refreshing the tokens of vault" in (health.error or "")


async def test_a_slow_call_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with FaultyHttpServer(answers="json") as slow:
        server = McpServerSettings(name="vault", url=slow.url, auth="oauth", trusted=True, mode="legacy")
        await TokenFile(server, tmp_path).set_tokens(OAuthToken(access_token="token"))
        async with hub_of(server, folder=tmp_path) as hub:
            waiting = asyncio.create_task(call(hub, "vault__slow"))
            await slow.arrived.wait()
            echo = await call(hub, "vault__echo", text="quick")
            slow.release()
            assert (await waiting).content == "slow was called"

    assert echo.content == "quick"


async def test_a_call_that_needs_more_rights_says_so_and_the_next_login_asks_for_them(
    protected: Protected, logged_in: McpServerSettings, tmp_path: Path
) -> None:
    protected.call_scope = "change"
    async with hub_of(logged_in, folder=tmp_path) as hub:
        refused = await call(hub, "vault__open")
        state = hub.connection("vault").state
    await login(logged_in, tmp_path, open_url=person(protected))
    async with hub_of(logged_in, folder=tmp_path) as hub:
        done = await call(hub, "vault__open")

    assert refused.is_error
    assert refused.content == "open failed: the login does not cover this: run mead mcp login vault"
    assert state == "ready"
    assert done.content == "opened"
    assert protected.scopes == ["look", "look change"]


# Keeping them


async def test_t3_no_token_stands_in_a_log_or_an_error(
    protected: Protected, logged_in: McpServerSettings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    change(tmp_path, expires_at=1.0)
    async with hub_of(logged_in, folder=tmp_path) as hub:
        await call(hub, "vault__open")
        said = [repr(hub.health()), repr(TokenFile(logged_in, tmp_path))]
    answers = (b'{"refresh_token": "refresh-7"}', b'{"access_token": "token-7", "scope": 7}', b"token-7")
    for body in answers:
        protected.token_answer = Answer(body=body)
        with pytest.raises(LoginError, match="gave an answer that cannot be used") as caught:
            await login(logged_in, tmp_path, open_url=person(protected))
        said.append("".join(traceback.format_exception(caught.value)))

    for secret in ("token-", "refresh-", "code_verifier="):
        assert secret not in caplog.text
        assert secret not in "".join(said).replace(str(tmp_path), "")


async def test_a_token_file_that_is_broken_or_a_link_holds_none(tmp_path: Path) -> None:
    server = McpServerSettings(name="vault", url="http://127.0.0.1:1/mcp")
    right = json.dumps({"url": server.url, "tokens": {"access_token": "x", "token_type": "Bearer"}})
    path = tmp_path / "auth" / "vault.json"
    path.parent.mkdir()
    path.write_text(right)
    assert await TokenFile(server, tmp_path).get_tokens() is not None
    for text in ("", "{", "[]", "\0", right.replace("{", '{"expires_at": "x", ', 1).replace('"x"', "5")):
        path.write_text(text)
        assert await TokenFile(server, tmp_path).get_tokens() is None
    path.unlink()
    (tmp_path / "elsewhere").write_text(right)
    path.symlink_to(tmp_path / "elsewhere")
    assert await TokenFile(server, tmp_path).get_tokens() is None
    path.unlink()
    os.mkfifo(path)
    assert await TokenFile(server, tmp_path).get_tokens() is None


async def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    server = McpServerSettings(name="vault", url="http://127.0.0.1:1/mcp")
    (tmp_path / "auth").mkdir()
    (tmp_path / "elsewhere").write_text("mine")
    (tmp_path / "auth" / "vault.json").symlink_to(tmp_path / "elsewhere")
    await TokenFile(server, tmp_path).set_tokens(OAuthToken(access_token="token"))

    assert (tmp_path / "elsewhere").read_text() == "mine"
    assert kept(tmp_path)["tokens"]["access_token"] == "token"


async def test_tokens_are_not_sent_to_another_address(logged_in: McpServerSettings, tmp_path: Path) -> None:
    async with FakeServer(Answer(status=401)) as other:
        moved = msgspec.structs.replace(logged_in, url=f"{other.url}/mcp")
        async with hub_of(moved) as hub:
            assert hub.connection("vault").state == "needs_auth"
        assert TokenFile(moved, tmp_path).tokens is None
        assert other.requests == []


# Where a server may send us


@pytest.mark.parametrize(
    "url,server,fine",
    [
        ("https://auth.test/x", "https://auth.test/mcp", True),
        ("https://auth.test/x", "http://auth.test/mcp", True),
        ("http://10.0.0.5/x", "http://10.0.0.5:8080/mcp", True),
        ("http://127.0.0.1:2/x", "http://127.0.0.1:1/mcp", True),
        ("http://127.0.0.2:2/x", "http://localhost:1/mcp", True),
        ("https://1.1.1.1/x", "https://8.8.8.8/mcp", True),
        ("https://1.1.1.1/x", "http://127.0.0.1/mcp", True),
        ("https://10.0.0.5/x", "https://10.0.0.6/mcp", True),
        ("http://10.0.0.5/x", "https://10.0.0.5/mcp", False),
        ("http://1.1.1.1/x", "https://8.8.8.8/mcp", False),
        ("http://10.0.0.5/x", "https://10.0.0.6/mcp", False),
        ("https://10.0.0.5/x", "https://8.8.8.8/mcp", False),
        ("https://127.0.0.1/x", "https://10.0.0.6/mcp", False),
        ("https://169.254.169.254/x", "https://10.0.0.6/mcp", False),
        ("https://169.254.169.254/x", "https://8.8.8.8/mcp", False),
        ("https://127.0.0.1/x", "https://8.8.8.8/mcp", False),
        ("https://2130706433/x", "https://8.8.8.8/mcp", False),
        ("https://0.0.0.0/x", "https://8.8.8.8/mcp", False),
        ("http://[::1]/x", "https://8.8.8.8/mcp", False),
        ("https://[::ffff:127.0.0.1]/x", "https://8.8.8.8/mcp", False),
    ],
)
async def test_a_server_may_not_send_us_to_addresses_inside(url: str, server: str, fine: bool) -> None:
    if fine:
        await check_address(url, server)
    else:
        with pytest.raises(OAuthFlowError):
            await check_address(url, server)
