"""Ten thousand requests that are wrong, at every door: each is told so with a 4xx, and the server goes on."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

import mead
from mead.serve.app import make_app
from mead.serve.tokens import Tokens
from mead.settings import ServeSettings
from serve.api import Api, kept, model, token
from serve.served import Serving

REQUESTS = 10_000
SEED = 20_260
HOST = "127.0.0.1:4141"
MESSAGES = [{"role": "user", "content": "hello"}]
VALID: Mapping[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": "mead-local", "messages": MESSAGES, "max_tokens": 5},
    "/v1/messages": {"model": "mead-local", "messages": MESSAGES, "max_tokens": 5},
    "/v1/messages/count_tokens": {"model": "mead-local", "messages": MESSAGES},
    "/v1/embeddings": {"model": "mead-local", "input": "hello"},
    "/api/sessions": {"title": "x", "tags": ["a"], "options": {"max_tokens": 5}, "messages": MESSAGES},
    "/api/sessions/{session_id}": {"title": "x", "tags": ["a"]},
    "/api/sessions/{session_id}/turns": {"text": "hello", "options": {"temperature": 0.5}},
    "/api/sessions/{session_id}/fork": {"turn": 1},
    "/api/sessions/{session_id}/rewind": {"turn": 1},
    "/api/sessions/{session_id}/declassify": {"turns": [1]},
    "/api/sessions/{session_id}/compact": {"route": "local"},
    "/api/requests": {"messages": MESSAGES, "options": {"seed": 1}},
    "/api/explain": {"text": "hello"},
    "/api/approvals/{approval_id}": {"decision": "once"},
}
"""A body that each path would take. Paths without one take none, or anything."""


class Wrong(NamedTuple):
    """A request that is wrong, and what is wrong with it."""

    what: str
    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b"{}"


def _broken(rng: random.Random, valid: dict[str, Any]) -> tuple[str, bytes]:
    """A body that is no JSON, or JSON that no endpoint takes."""
    data = json.dumps(valid).encode()
    kind = rng.randrange(9)
    if kind == 0:
        return "cut off", data[: rng.randrange(len(data))]
    if kind == 1:
        name = rng.choice(list(valid))
        return "wrong type", json.dumps({**valid, name: rng.choice([{"a": 1}, 1.5e300, [[]], [{}]])}).encode()
    if kind == 2:
        return "no object", rng.choice([b"", b"null", b"[]", b"1", b'"x"', b"true", b"\x00", b"  ", b"NaN"])
    if kind == 3:
        lone = rng.choice([b'"\\ud800"', b'"\\udc00x"', b'"\xed\xa0\x80"', b'"\xff"'])
        return "lone surrogate", data[:-1] + b',"' + b"metadata" + b'":{"a":' + lone + b"}}"
    if kind == 4:
        number = rng.choice([b"1e999", b"-1e999", b"9" * 5000, b"1e", b"0x10", b"01", b"Infinity"])
        return "huge number", data[:-1] + b',"max_tokens":' + number + b"}"
    if kind == 5:
        depth = rng.choice([2_000, 20_000])
        name = rng.choice([b"options", b"messages", b"metadata", b"text", b"x"])
        return "deep", data[:-1] + b',"' + name + b'":' + b"[" * depth + b"]" * depth + b"}"
    if kind == 6:
        return "unknown field", json.dumps({**valid, f"field_{rng.randrange(99)}": 1}).encode()
    if kind == 7:
        return "rubbish", rng.randbytes(rng.randrange(1, 200))
    place = rng.randrange(len(data))
    broken = data[:place] + rng.choice([b'"{', b"\x01", b",,", b"]}"]) + data[place:]
    return "broken", broken if _is_no_json(broken) else data + b"}"


def _is_no_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return True
    return False


def _wrong(rng: random.Random, paths: dict[str, set[str]]) -> Wrong:
    path = rng.choice(sorted(paths))
    real, methods = re.sub(r"{[^}]*}", "nothing", path), paths[path]
    sent = rng.choice(sorted(methods - {"HEAD", "OPTIONS"}) or ["POST"])
    kind = rng.randrange(10)
    if kind == 0:
        others = {"PUT", "DELETE", "PATCH", "GET", "POST", "TRACE", "BREW"} - methods
        return Wrong("method", rng.choice(sorted(others)), real)
    if kind == 1:
        return Wrong(
            "host", sent, real, (("host", rng.choice(["evil.example", "", "[::1", "a b", "1.2.3.4:x"])),)
        )
    if kind == 2:
        return Wrong(
            "origin", sent, real, (("origin", rng.choice(["https://evil.example", "null", "\x00"])),)
        )
    if kind == 3:
        length = rng.choice(["-1", "x", "1e3", "99999999999999", "٣", "1, 2"])
        return Wrong("length", sent, real, (("content-length", length),))
    if kind == 4:
        return Wrong("headers", sent, real, tuple((f"x-{number}", "y" * 700) for number in range(120)))
    if kind == 5:
        return Wrong("path", sent, real + rng.choice(["/%00/x", "/../../etc/x", "//x", "/" + "a" * 5000]))
    taking = sorted(each for each in VALID if each in paths)
    path = rng.choice(taking)
    what, body = _broken(rng, VALID[path])
    method = "PATCH" if "PATCH" in paths[path] else "POST"
    return Wrong(what, method, re.sub(r"{[^}]*}", "nothing", path), (), body)


async def _ask(app: Starlette, wrong: Wrong, bearer: str) -> int:
    """The status that the application answers with."""
    headers = {
        "host": HOST,
        "content-length": str(len(wrong.body)),
        "content-type": "application/json",
        "authorization": f"Bearer {bearer}",
        **dict(wrong.headers),
    }
    scope: MutableMapping[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": wrong.method,
        "scheme": "http",
        "path": wrong.path,
        "raw_path": wrong.path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode("utf-8")) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 4141),
        "state": {},
    }
    messages = iter([{"type": "http.request", "body": wrong.body, "more_body": False}])
    statuses: list[int] = []

    async def receive() -> MutableMapping[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    (status,) = statuses
    return status


@contextlib.asynccontextmanager
async def _running(app: Starlette) -> AsyncIterator[None]:
    async with app.router.lifespan_context(app):
        yield


async def test_ten_thousand_wrong_requests_at_every_door_are_told_so_and_the_server_goes_on(
    tmp_path: Path,
) -> None:
    tokens = Tokens(tmp_path)
    bearer = token(tokens)
    local = model()
    app = make_app(kept(local, model()), tokens)
    paths = _paths(app)
    rng = random.Random(SEED)
    seen: Counter[tuple[str, int]] = Counter()

    async with _running(app):
        for wrong in itertools.islice(iter(lambda: _wrong(rng, paths), None), REQUESTS):
            status = await _ask(app, wrong, bearer)
            assert 400 <= status < 500, wrong
            seen[wrong.what, status] += 1
        healthy = Wrong("nothing", "GET", "/healthz")
        ready = Wrong("nothing", "GET", "/readyz")
        for fine in (healthy, ready):
            assert await _ask(app, fine, bearer) == 200

    assert local.requests == []
    assert sum(seen.values()) == REQUESTS
    expected = {"method": 405, "host": 421, "origin": 403, "headers": 431, "path": 404, "cut off": 400}
    for what, status in expected.items():
        assert seen[what, status] > 0, what


async def test_a_wrong_token_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    token(tokens)
    app = make_app(kept(model()), tokens)

    async with _running(app):
        for path, methods in _paths(app).items():
            if path == "/healthz":
                continue
            for method in methods - {"HEAD", "OPTIONS"}:
                real = re.sub(r"{[^}]*}", "nothing", path)
                wrong = Wrong("token", method, real, (("authorization", "Bearer mead_0_0"),), b"{")
                assert await _ask(app, wrong, "") == 401, (method, path)


def _paths(app: Starlette) -> dict[str, set[str]]:
    """The methods of every path of every door."""
    found: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, Route):
            path = re.sub(r":\w+}", "}", route.path)
            found.setdefault(path, set()).update(route.methods or {"POST", "GET", "DELETE"})
        else:
            assert isinstance(route, Mount)
    return found


# What does not get as far as the application


@pytest.fixture
def address(serving: Serving) -> tuple[str, int]:
    settings = mead.Settings(serve=ServeSettings(body_timeout_s=0.2, max_body_bytes=10_000))
    host, _, port = serving(kept(model(), settings=settings)).removeprefix("http://").partition(":")
    return host, int(port)


def _said(address: tuple[str, int], *parts: bytes, closes: bool = False) -> bytes:
    """What the server answers to these bytes, up to the end of the connection."""
    with socket.create_connection(address, timeout=20) as connection:
        with contextlib.suppress(OSError):  # the server may be quicker to end it
            for part in parts:
                connection.sendall(part)
            if closes:
                connection.shutdown(socket.SHUT_WR)
        said = b""
        with contextlib.suppress(OSError):
            while piece := connection.recv(65_536):
                said += piece
        return said


def _head(*lines: str, path: str = "/api/sessions") -> bytes:
    return "\r\n".join(
        [f"POST {path} HTTP/1.1", f"Host: {HOST}", "Connection: close", *lines, "", ""]
    ).encode()


FRAMES: Mapping[str, tuple[bytes, ...]] = {
    "no HTTP": (b"hello\r\n\r\n",),
    "binary": (bytes(range(256)),),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),),
    "no version": (b"GET /healthz\r\n\r\n",),
    "a version that there is not": (b"GET /healthz HTTP/9.9\r\nHost: x\r\n\r\n",),
    "two lengths": (_head("Content-Length: 2", "Content-Length: 5"), b"{}"),
    "length and chunks": (_head("Content-Length: 2", "Transfer-Encoding: chunked"), b"{}"),
    "a length that is none": (_head("Content-Length: x"), b"{}"),
    "a negative length": (_head("Content-Length: -2"), b"{}"),
    "a chunk's size that is none": (_head("Transfer-Encoding: chunked"), b"zz\r\n{}\r\n0\r\n\r\n"),
    "a header without a colon": (_head("nonsense", "Content-Length: 2"), b"{}"),
    "a header with a null": (_head("X-Y: a\x00b", "Content-Length: 2"), b"{}"),
    "an endless header": (_head("X-Y: " + "a" * 200_000, "Content-Length: 2"), b"{}"),
}


@pytest.mark.parametrize("what", list(FRAMES))
def test_broken_framing_ends_its_own_connection_only(address: tuple[str, int], what: str) -> None:
    said = _said(address, *FRAMES[what], closes=True)

    assert not said or re.match(rb"HTTP/1\.1 4\d\d ", said), said[:200]
    assert Api(f"http://{address[0]}:{address[1]}").start()


@pytest.mark.parametrize("path", ["/api/sessions", "/v1/chat/completions", "/v1/messages"])
def test_a_body_that_does_not_come_in_time_is_not_waited_for(address: tuple[str, int], path: str) -> None:
    said = _said(address, _head("Content-Length: 100", path=path), b'{"title":')

    assert said.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("path", ["/api/sessions", "/v1/chat/completions", "/v1/messages"])
def test_a_body_that_grows_beyond_the_limit_is_refused(address: tuple[str, int], path: str) -> None:
    chunk = b"3e8\r\n" + b" " * 1000 + b"\r\n"
    said = _said(address, _head("Transfer-Encoding: chunked", path=path), *[chunk] * 20, closes=True)

    assert said.startswith(b"HTTP/1.1 413 ")


def test_a_body_that_ends_too_soon_runs_nothing(address: tuple[str, int]) -> None:
    api = Api(f"http://{address[0]}:{address[1]}")
    said = _said(address, _head("Content-Length: 50"), b'{"title":"x"}', closes=True)

    assert not said or re.match(rb"HTTP/1\.1 4\d\d ", said), said[:200]
    assert api.get("sessions")["sessions"] == []
