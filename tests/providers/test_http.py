"""The egress gate: what may be connected to, what is told of it, and how a request ends."""

from __future__ import annotations

import asyncio
import gc
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mead.core.options import Options
from mead.core.reasons import InvalidOptions, MalformedResponse, Timeout, Transport
from mead.core.result import Err, Ok
from mead.core.scope import EgressRecord, NullScope
from mead.providers import http
from mead.providers.http import HttpClient, environment_proxy, named_network, why_local
from mead.providers.openai_chat import OpenAIChat
from mead.testing import Answer, FakeServer
from mead.testing.providers import TEXT
from providers.formats import ANTHROPIC, FORMATS, OPTIONS, WireFormat, json_answer, reason
from providers.suites import QUESTION, ask

CLOUD = Options(model="m", route="cloud")
LOCAL = Options(model="m", route="local")


class Scope(NullScope):
    """Keeps the egress records."""

    def __init__(self) -> None:
        self.records: list[EgressRecord] = []

    def sent(self, record: EgressRecord) -> None:
        self.records.append(record)


class Resolver:
    """Stands in for the loop's name service. `asked` keeps the names; an address is given as it is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **names: list[str]) -> None:
        self.asked: list[str] = []
        self._names = {name.replace("_", "."): addresses for name, addresses in names.items()}
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", self.getaddrinfo)

    async def getaddrinfo(self, host: str, port: int, **_: Any) -> list[Any]:
        self.asked.append(host)
        found = []
        for address in self._names.get(host, [host]):
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            where = (address, port, 0, 0) if ":" in address else (address, port)
            found.append((family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where))
        return found


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Any]]:
    """Where sockets were connected to; loopback alone really is. To be called inside a test's loop."""

    def watch() -> list[Any]:
        seen: list[Any] = []
        loop = asyncio.get_running_loop()
        really: Callable[[socket.socket, Any], Awaitable[None]] = loop.sock_connect

        async def connect(sock: socket.socket, where: Any) -> None:
            seen.append(where)
            if not where[0].startswith("127."):
                raise ConnectionRefusedError("not in a test")
            await really(sock, where)

        monkeypatch.setattr(loop, "sock_connect", connect)
        return seen

    return watch


async def get(client: HttpClient, options: Options = LOCAL, **keywords: Any) -> Any:
    try:
        return await client.send("GET", "/x", options, **keywords)
    finally:
        await client.aclose()


# What counts as local


@pytest.mark.parametrize(
    "address, why",
    [
        ("127.0.0.1", "this machine"),
        ("127.255.0.9", "this machine"),
        ("::1", "this machine"),
        ("10.0.0.1", "private network"),
        ("172.16.0.1", "private network"),
        ("172.31.255.255", "private network"),
        ("192.168.178.1", "private network"),
        ("fc00::1", "private network"),
        ("fdff::1", "private network"),
        ("::ffff:127.0.0.1", "this machine"),
        ("::ffff:10.1.2.3", "private network"),
        ("8.8.8.8", None),
        ("172.32.0.1", None),
        ("172.15.255.255", None),
        ("192.169.0.1", None),
        ("11.0.0.0", None),
        ("2001:4860:4860::8888", None),
        ("fe00::1", None),
        ("::ffff:8.8.8.8", None),
        ("::ffff:169.254.169.254", None),
        ("::ffff:0.0.0.0", None),
        ("64:ff9b::a00:1", None),
        ("::10.0.0.1", None),
        ("2002:0a00:0001::", None),
        ("0.0.0.0", None),
        ("0.1.2.3", None),
        ("::", None),
        ("169.254.1.1", None),
        ("169.254.169.254", None),
        ("fe80::1", None),
        ("fe80::1%eth0", None),
        ("fd00:ec2::254", None),
        ("100.64.0.1", None),
        ("100.100.100.200", None),
        ("224.0.0.1", None),
        ("255.255.255.255", None),
        ("localhost", None),
        ("127.1", None),
        ("2130706433", None),
        ("", None),
    ],
)
def test_r17_why_an_address_is_local(address: str, why: str | None) -> None:
    assert why_local(address) == why


@pytest.mark.parametrize(
    "address, why",
    [
        ("100.64.7.1", "network named in the settings"),
        ("::ffff:100.64.7.1", "network named in the settings"),
        ("100.65.0.1", None),
        ("100.100.100.200", None),
    ],
)
def test_r17_shared_addresses_are_local_only_where_they_are_named(address: str, why: str | None) -> None:
    assert why_local(address, [named_network("100.64.0.0/16")]) == why


def test_r17_naming_the_whole_range_does_not_let_the_metadata_address_in() -> None:
    whole = [named_network("100.64.0.0/10")]

    assert why_local("100.127.255.255", whole) == "network named in the settings"
    assert why_local("100.100.100.200", whole) is None


@pytest.mark.parametrize(
    "text", ["100.0.0.0/8", "8.8.8.0/24", "0.0.0.0/0", "::/0", "nonsense", "100.64.0.1/10"]
)
def test_r17_no_other_network_can_be_named(text: str) -> None:
    with pytest.raises(ValueError):
        named_network(text)


# What a local slot connects to


@pytest.mark.parametrize(
    "host", ["8.8.8.8", "[2001:4860:4860::8888]", "0.0.0.0", "169.254.169.254", "[::ffff:8.8.8.8]"]
)
async def test_r17_a_local_client_connects_to_no_public_address(
    host: str, monkeypatch: pytest.MonkeyPatch, connected: Callable[[], list[Any]]
) -> None:
    Resolver(monkeypatch)
    seen = connected()
    failure = reason(await get(HttpClient(f"http://{host}:8080", slot="local")))

    assert isinstance(failure, Transport)
    assert failure.cause == "not_local"
    assert "allow_remote" in (failure.detail or "")
    assert seen == []


@pytest.mark.parametrize("addresses", [["93.184.216.34"], ["93.184.216.34", "2606:2800::1"]])
async def test_r17_a_name_that_leads_outside_is_not_connected_to(
    addresses: list[str], monkeypatch: pytest.MonkeyPatch, connected: Callable[[], list[Any]]
) -> None:
    resolver = Resolver(monkeypatch, localhost_evil_example=addresses)
    seen = connected()
    failure = reason(await get(HttpClient("http://localhost.evil.example", slot="local")))

    assert getattr(failure, "cause", failure) == "not_local"
    assert resolver.asked == ["localhost.evil.example"]
    assert seen == []


async def test_r17_a_name_with_one_local_address_is_reached_there_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, connected: Callable[[], list[Any]]
) -> None:
    Resolver(monkeypatch, models_lan=["93.184.216.34", "127.0.0.1"])
    seen = connected()
    async with FakeServer(Answer(body=b"hi")) as server:
        result = await get(HttpClient(f"http://models.lan:{server.port}", slot="local"))

    assert result.unwrap().body == b"hi"
    assert {where[0] for where in seen} == {"127.0.0.1"}


async def test_r17_a_name_is_looked_at_again_when_it_leads_elsewhere_later(
    monkeypatch: pytest.MonkeyPatch, connected: Callable[[], list[Any]]
) -> None:
    connected()
    async with FakeServer(Answer(body=b"hi", headers={"connection": "close"})) as server:
        client = HttpClient(f"http://models.lan:{server.port}", slot="local")
        Resolver(monkeypatch, models_lan=["127.0.0.1"])
        first = await client.send("GET", "/x", LOCAL)
        await client.aclose()
        Resolver(monkeypatch, models_lan=["93.184.216.34"])
        second = await get(client)

    assert isinstance(first, Ok)
    assert getattr(reason(second), "cause", None) == "not_local"


@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.name)
async def test_r17_every_adapter_of_a_local_slot_is_gated(wire: WireFormat) -> None:
    provider = wire.make("http://93.184.216.34:1")
    failures = [reason(await ask(provider, call)) for call in ("complete", "converse", "converse_stream")]
    await provider.aclose()

    assert [getattr(failure, "cause", failure) for failure in failures] == ["not_local"] * 3


@pytest.mark.parametrize(
    "client",
    [
        lambda: HttpClient("http://93.184.216.34:1", slot="local", allow_remote=True),
        lambda: HttpClient("http://93.184.216.34:1", slot="cloud"),
    ],
    ids=["allow_remote", "cloud"],
)
async def test_r17_allow_remote_and_the_cloud_slot_connect_elsewhere(
    client: Callable[[], HttpClient], monkeypatch: pytest.MonkeyPatch, connected: Callable[[], list[Any]]
) -> None:
    seen = connected()
    failure = reason(await get(client(), CLOUD))

    assert getattr(failure, "cause", failure) == "refused"
    assert seen == [("93.184.216.34", 1)]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_r17_a_redirect_is_not_followed(status: int) -> None:
    async with FakeServer() as target:
        location = f"{target.url}/x"
        moved = Answer(status=status, headers={"location": location}, chunked=False)
        async with FakeServer(moved) as server:
            reply = (await get(HttpClient(server.url, slot="local"))).unwrap()

    assert (reply.status, reply.location) == (status, location)
    assert target.requests == []
    assert len(server.requests) == 1


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY"])
async def test_r17_a_local_slot_ignores_the_proxies_of_the_environment(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    async with FakeServer() as proxy, FakeServer(Answer(body=b"direct")) as server:
        monkeypatch.setenv(name, proxy.url)
        plain = await get(HttpClient(server.url, slot="local"))
        told = await get(HttpClient(server.url, slot="local", proxy=proxy.url))

    assert (plain.unwrap().body, told.unwrap().body) == (b"direct", b"direct")
    assert proxy.requests == []


async def test_r17_a_netrc_file_gives_no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password secret")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    async with FakeServer() as server:
        await get(HttpClient(server.url, slot="local"))

    assert "authorization" not in server.requests[0].headers


async def test_a_cloud_slot_goes_through_its_proxy() -> None:
    async with FakeServer(Answer(body=b"by proxy")) as proxy:
        client = HttpClient("http://models.example", slot="cloud", proxy=proxy.url)
        reply = (await get(client, CLOUD)).unwrap()

    assert reply.body == b"by proxy"
    assert proxy.requests[0].path == "http://models.example/x"


def test_the_environment_names_a_proxy_for_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    assert environment_proxy("https://api.example") is None

    monkeypatch.setenv("https_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert environment_proxy("https://api.example/v1") == "http://proxy:1"
    assert environment_proxy("https://inside.example") is None
    assert environment_proxy("http://api.example") is None
    assert environment_proxy("unix:/run/model.sock") is None

    monkeypatch.setenv("all_proxy", "http://proxy:2")
    assert environment_proxy("http://api.example") == "http://proxy:2"


async def test_r17_a_cloud_client_refuses_a_local_turn_as_a_bug() -> None:
    scope = Scope()
    async with FakeServer() as server:
        client = HttpClient(server.url, slot="cloud")
        with pytest.raises(RuntimeError, match="local turn"):
            await client.send("POST", "/x", msgspec.structs.replace(LOCAL, scope=scope), body=b"{}")
        provider = OpenAIChat(client)
        with pytest.raises(RuntimeError, match="local turn"):
            await provider.complete(QUESTION, LOCAL)

    assert (server.requests, scope.records) == ([], [])


async def test_r17_a_unix_socket_is_local(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + head.split(b"\r\n")[0])
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_unix_server(serve, path):
        for base_url in (f"unix:{path}", f"unix://{path}"):
            client = HttpClient(base_url, slot="local")
            reply = (await get(client)).unwrap()
            assert reply.body == b"GET /x HTTP/1.1"
            assert (client.host, client.allowed_because()) == (str(path), "unix socket")

    gone = reason(await get(HttpClient(f"unix:{tmp_path}/nobody.sock", slot="local")))
    assert getattr(gone, "cause", gone) == "refused"


@pytest.mark.parametrize("base_url", ["", "localhost:11434", "ftp://host", "http://", "127.0.0.1:8080/v1"])
def test_a_base_url_that_is_none_is_a_value_error(base_url: str) -> None:
    with pytest.raises(ValueError, match="base_url"):
        HttpClient(base_url, slot="local")


# Egress records


async def test_r17_every_request_leaves_an_egress_record() -> None:
    scope = Scope()
    options = msgspec.structs.replace(LOCAL, scope=scope)
    before = time.time()
    async with FakeServer(Answer(status=500)) as server:
        client = HttpClient(server.url + "/base/", slot="local")
        await client.send("POST", "/x", options, body=b"12345")
        await get(client, options, at_root=True)

    first, second = scope.records
    assert client.host.startswith("127.0.0.1:")
    assert before <= first.at <= time.time()
    assert msgspec.structs.replace(first, at=0.0) == EgressRecord(
        at=0.0,
        destination="provider",
        slot="local",
        route="local",
        host=client.host,
        path="/base/x",
        bytes_sent=5,
        allowed_because="local address, checked at the socket",
    )
    assert (second.path, second.bytes_sent) == ("/x", 0)
    assert [request.path for request in server.requests] == ["/base/x", "/x"]


@pytest.mark.parametrize(
    "keywords, why",
    [
        ({"slot": "cloud"}, "cloud slot, cloud turn"),
        ({"slot": "local"}, "local address, checked at the socket"),
        ({"slot": "local", "allow_remote": True}, "allow_remote is set"),
    ],
)
async def test_r17_the_record_says_why_the_request_was_allowed(keywords: Mapping[str, Any], why: str) -> None:
    scope = Scope()
    options = msgspec.structs.replace(CLOUD, scope=scope)
    async with FakeServer() as server:
        await get(HttpClient(server.url, **keywords), options)

    assert [record.allowed_because for record in scope.records] == [why]


@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.name)
async def test_r17_every_request_of_an_adapter_is_on_record(wire: WireFormat) -> None:
    scope = Scope()
    options = msgspec.structs.replace(OPTIONS, route="local", scope=scope)
    async with wire.server(wire.answer(TEXT)) as server, wire.provider(server) as provider:
        (await ask(provider, "converse_stream", options)).unwrap()

    assert [(record.path, record.bytes_sent) for record in scope.records] == [
        (request.path, len(request.body)) for request in [*server.questions, *server.requests]
    ]


# How a request ends


async def test_the_deadline_covers_the_wait_for_the_first_byte() -> None:
    async with FakeServer(Answer(body=[], end="hang")) as server:
        options = Options(deadline=asyncio.get_running_loop().time() + 0.03)
        failure = reason(await get(HttpClient(server.url, slot="local"), options))

    assert failure == Timeout(limit="deadline")


async def test_a_deadline_that_has_passed_sends_nothing() -> None:
    async with FakeServer() as server:
        options = Options(deadline=asyncio.get_running_loop().time() - 1)
        failure = reason(await get(HttpClient(server.url, slot="local"), options))

    assert failure == Timeout(limit="deadline")
    assert server.requests == []


async def test_the_connect_phase_has_its_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "sock_connect", never)
    client = HttpClient("http://127.0.0.1:9", slot="local", connect_timeout_s=0.03)
    failure = reason(await get(client))

    assert isinstance(failure, Timeout)
    assert failure.limit == "connect"


async def test_the_idle_limit_starts_with_the_first_piece() -> None:
    """A cold model may take its time; after that, silence is a failure."""
    client_saw: list[bytes] = []
    deadline = asyncio.get_running_loop().time() + 0.15
    options = Options(deadline=deadline, idle_timeout_s=0.03)

    def hear(chunk: bytes) -> bool:
        client_saw.append(chunk)
        return False

    async with FakeServer(Answer(body=[], end="hang")) as server:
        cold = reason(await get(HttpClient(server.url, slot="local"), options, on_chunk=hear))
    async with FakeServer(Answer(body=[b"a"], end="hang")) as server:
        options = Options(deadline=asyncio.get_running_loop().time() + 5, idle_timeout_s=0.03)
        silent = reason(await get(HttpClient(server.url, slot="local"), options, on_chunk=hear))

    assert cold == Timeout(limit="deadline")
    assert isinstance(silent, Timeout)
    assert silent.limit == "idle"
    assert client_saw == [b"a"]


async def test_every_byte_counts_as_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comments put the limit off, each one from the moment at which it came."""
    loop = asyncio.get_running_loop()
    limits: list[float] = []
    really = asyncio.Timeout.reschedule

    def reschedule(self: asyncio.Timeout, when: float | None) -> None:
        limits.append((when or 0) - loop.time())
        really(self, when)

    monkeypatch.setattr(asyncio.Timeout, "reschedule", reschedule)
    async with FakeServer(Answer(body=[b": ping\n\n"] * 3)) as server:
        result = await get(
            HttpClient(server.url, slot="local"), Options(idle_timeout_s=9.0), on_chunk=lambda _: False
        )

    assert isinstance(result, Ok)
    assert any(8.0 < limit <= 9.0 for limit in limits)


async def test_connections_are_kept_and_used_again() -> None:
    async with FakeServer(Answer(body=b"hi", chunked=False)) as server:
        client = HttpClient(server.url, slot="local")
        opened = 0
        original = client._checked_socket

        def count(address: Any) -> socket.socket:
            nonlocal opened
            opened += 1
            return original(address)

        client._checked_socket = count  # type: ignore[method-assign]
        for _ in range(5):
            (await client.send("GET", "/x", LOCAL)).unwrap()
        await client.aclose()

    assert (opened, len(server.requests)) == (1, 5)


@pytest.mark.parametrize(
    "header, seconds",
    [
        (None, None),
        ("7", 7.0),
        ("0.5", 0.5),
        ("0", 0.0),
        ("-3", 0.0),
        ("soon", None),
        ("", None),
        ("inf", None),
        ("nan", None),
        ("1e999", None),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 0.0),
        ("Mon, 99 Jan 2001 00:00:00 GMT", None),
    ],
)
async def test_retry_after_is_seconds_or_a_date(header: str | None, seconds: float | None) -> None:
    headers = {} if header is None else {"retry-after": header}
    async with FakeServer(Answer(status=503, headers=headers)) as server:
        reply = (await get(HttpClient(server.url, slot="local"))).unwrap()

    assert reply.retry_after_s == seconds


async def test_a_date_in_retry_after_is_counted_from_now() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    async with FakeServer(Answer(status=503, headers={"retry-after": date})) as server:
        reply = (await get(HttpClient(server.url, slot="local"))).unwrap()

    assert reply.retry_after_s is not None
    assert 90 < reply.retry_after_s <= 100


async def test_a_body_over_the_limit_is_a_malformed_response(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_BODY_BYTES", 100_000)
    async with FakeServer(Answer(body=[b"x" * 50_000] * 3)) as server:
        too_long = await get(HttpClient(server.url, slot="local"))
    async with FakeServer(Answer(body=[b"x" * 50_000] * 2)) as server:
        just_right = await get(HttpClient(server.url, slot="local"))

    assert isinstance(reason(too_long), MalformedResponse)
    assert len(just_right.unwrap().body) == 100_000


@pytest.mark.parametrize("wire", FORMATS, ids=lambda wire: wire.name)
async def test_a_message_over_the_limit_ends_the_stream(
    wire: WireFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mead.providers._sse.MAX_MESSAGE_BYTES", 1000)
    async with wire.server(wire.streaming(b"data: {" + b" " * 2000, end="hang")) as server:
        async with wire.provider(server) as provider:
            failure = reason(await ask(provider, "converse_stream"))
            await asyncio.wait_for(server.client_left.wait(), 2)

    assert isinstance(failure, MalformedResponse)


async def test_a_large_request_arrives_whole() -> None:
    body = b"x" * (3 * 1024 * 1024)
    async with FakeServer() as server:
        client = HttpClient(server.url, slot="local")
        (await client.send("POST", "/x", LOCAL, body=body)).unwrap()
        await client.aclose()

    assert server.requests[0].body == body
    assert server.requests[0].headers["content-length"] == str(len(body))


async def test_an_error_answer_to_a_stream_is_read_whole() -> None:
    chunks: list[bytes] = []

    def hear(chunk: bytes) -> bool:
        chunks.append(chunk)
        return False

    async with FakeServer(Answer(status=429, body=[b"slow", b" down"])) as server:
        reply = (await get(HttpClient(server.url, slot="local"), on_chunk=hear)).unwrap()

    assert (reply.body, chunks) == (b"slow down", [])


async def test_nothing_is_sent_again_on_a_connection_that_the_server_has_closed() -> None:
    async with FakeServer(Answer(body=b"{}", end="cut", chunked=False)) as server:
        client = HttpClient(server.url, slot="local")
        results = [await client.send("POST", "/x", LOCAL, body=b"{}") for _ in range(2)]
        await client.aclose()

    assert [isinstance(result, Err) for result in results] == [True, True]
    assert len(server.requests) == 2


async def test_a_header_that_cannot_be_sent_is_invalid_options_without_its_value() -> None:
    async with FakeServer() as server:
        client = HttpClient(server.url, slot="local")
        failure = reason(await get(client, headers={"authorization": "Bearer sk-secret\nx: y"}))

    assert isinstance(failure, InvalidOptions)
    assert "sk-secret" not in str(failure)
    assert server.requests == []


async def test_cookies_are_not_kept() -> None:
    async with FakeServer(Answer(headers={"set-cookie": "who=me"})) as server:
        client = HttpClient(f"http://localhost:{server.port}", slot="local")  # an address gets no cookies
        for _ in range(2):
            (await client.send("GET", "/x", LOCAL)).unwrap()
        await client.aclose()

    assert [request.headers.get("cookie") for request in server.requests] == [None, None]


# The connections of a loop that is gone cannot be closed any more.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_client_works_in_one_event_loop_after_another() -> None:
    async def send(client: HttpClient) -> bytes:
        async with FakeServer(Answer(body=b"hi", chunked=False)) as server:
            # The port is another each time; what is under test is the loop.
            client._origin, client._urls = server.url, {}
            return (await client.send("GET", "/x", LOCAL)).unwrap().body

    def in_two_loops() -> list[bytes]:
        client = HttpClient("http://localhost", slot="local")
        bodies = [asyncio.run(send(client)), asyncio.run(send(client))]
        asyncio.run(client.aclose())
        return bodies

    assert in_two_loops() == [b"hi", b"hi"]
    gc.collect()


async def test_the_cloud_slot_serves_calls_outside_a_turn() -> None:
    async with FakeServer(json_answer(ANTHROPIC.whole(TEXT))) as server:
        async with ANTHROPIC.provider(server, slot="cloud") as provider:
            assert isinstance(await ask(provider, "complete"), Ok)


async def test_a_path_below_the_base_url_and_one_at_its_root() -> None:
    async with FakeServer() as server:
        for base_url in (server.url, server.url + "/", server.url + "/a/b", server.url + "/a/b/"):
            await get(HttpClient(base_url, slot="local"))

    assert [request.path for request in server.requests] == ["/x", "/x", "/a/b/x", "/a/b/x"]
