"""The privacy proof sees what comes out, by every way out, and says so plainly."""

from __future__ import annotations

import asyncio
import base64
import gzip
import logging
import socket
import sys
import threading
import warnings
from collections.abc import Callable

import pytest

import mead
from mead import telemetry
from mead.core.options import Options
from mead.core.reasons import HttpStatus
from mead.providers.http import HttpClient
from mead.providers.ollama import Ollama
from mead.providers.openai_chat import OpenAIChat
from mead.router import Slot, Slots
from mead.testing import FakeServer
from mead.testing.canaries import Canary
from mead.testing.privacy import PrivacyProof
from mead.testing.recording import Recorder, RecordingServer, echo_all

FREE = Options(model="m")


async def post(url: str, body: bytes, *, path: str = "/x", **headers: str) -> None:
    client = HttpClient(url, slot="cloud")
    (await client.send("POST", path, FREE, body=body, headers=headers)).unwrap()
    await client.aclose()


async def raw(port: int, *pieces: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0)
    writer.write_eof()
    await reader.read()
    writer.close()
    await writer.wait_closed()


async def ask_name(port: int, name: str) -> bytes:
    labels = b"".join([bytes([len(label)]) + label.encode() for label in name.split(".")])
    question = b"\0\7\1\0\0\1\0\0\0\0\0\0" + labels + b"\0\0\1\0\1"
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)
        await loop.sock_connect(asking, ("127.0.0.1", port))
        await loop.sock_sendall(asking, question)
        return await loop.sock_recv(asking, 512)


# What reaches a server


@pytest.mark.parametrize("place", ["cloud", "elsewhere"])
@pytest.mark.parametrize(
    "send",
    [
        lambda url, word: post(url, f'{{"text":"{word}"}}'.encode()),
        lambda url, word: post(url, b"", path=f"/{word}"),
        lambda url, word: post(url, b"", **{"x-title": word}),
        lambda url, word: post(url, base64.b64encode(f"a {word}".encode())),
        lambda url, word: post(url, gzip.compress(word.encode()), **{"content-encoding": "gzip"}),
    ],
    ids=["body", "path", "header", "base64", "gzip"],
)
async def test_what_a_request_holds_anywhere_is_found(
    place: str, send: Callable[[str, str], asyncio.Future[None]]
) -> None:
    async with PrivacyProof(seed=1) as proof:
        proof.canary("text")
        word = proof.canary("answer")
        await send(proof.cloud_url if place == "cloud" else proof.elsewhere_url, word.text)

        name = "the cloud" if place == "cloud" else "elsewhere"
        with pytest.raises(AssertionError, match=f"the answer canary 2 reached {name} \\(request 1: POST /"):
            proof.assert_nothing_leaked()


async def test_a_chunked_body_is_put_together() -> None:
    recorder, word = Recorder("there"), Canary("text", 1, "abcdefghijklmnopqrstuvwx")
    async with RecordingServer(recorder) as server:
        await raw(
            server.port,
            b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
            b"5\r\nabcde\r\n5\r\nfghij\r\n5\r\nklmno\r\n9\r\npqrstuvwx\r\n0\r\n\r\n",
        )

    assert [leak.where for leak in recorder.find([word]) if not leak.part] == ["the body of POST /"]


async def test_what_is_no_http_and_what_breaks_off_is_kept_as_well() -> None:
    recorder, word = Recorder("there"), Canary("text", 1, "abcdefghijklmnopqrstuvwx")
    async with RecordingServer(recorder) as server:
        await raw(server.port, b"\x16\x03\x01", word.text.encode(), b"\r\n\r\n")
        await raw(server.port, b"POST / HTTP/1.1\r\ncontent-length: 999\r\n\r\n" + word.text.encode())
        await raw(server.port, b"CONNECT far.example:443 HTTP/1.1\r\n\r\n")

    assert len(recorder.find([word])) == 2
    assert recorder.holds("CONNECT far.example:443")


async def test_two_requests_of_one_connection_are_told_apart() -> None:
    recorder, word = Recorder("there"), Canary("text", 1, "abcdefghijklmnopqrstuvwx")
    async with RecordingServer(recorder) as server:
        client = HttpClient(server.url, slot="cloud")
        for text in ("first", word.text):
            (await client.send("POST", f"/{text[:5]}", FREE, body=text.encode())).unwrap()
        await client.aclose()

    assert [leak.where for leak in recorder.find([word])] == ["request 2: POST /abcde"]
    assert recorder.find([word], first=0, last=1) == []


async def test_a_name_that_is_asked_for_is_found_also_over_its_dots() -> None:
    async with PrivacyProof(seed=1) as proof:
        word = proof.canary("text")
        refused = await ask_name(proof.dns.port, f"{word.text[:6]}.{word.text[6:]}.example")

        assert refused[3] & 15 == 3, "the name does not exist"
        with pytest.raises(AssertionError, match="the text canary 1 reached a name server"):
            proof.assert_nothing_leaked()


# What a process tells


def log_it(word: str) -> None:
    logging.getLogger("some.library").debug("quoting %s", word)


def log_the_traceback(word: str) -> None:
    try:
        raise RuntimeError(word)
    except RuntimeError:
        logging.getLogger("mead.sessions").exception("it failed")


def log_it_aside(word: str) -> None:
    logging.getLogger("mead.router").info("done", extra={"text": word})


def log_it_where_nobody_listens(word: str) -> None:
    logging.getLogger("quiet").debug(word)


def warn_of_it(word: str) -> None:
    warnings.warn(f"odd: {word}", UserWarning, stacklevel=1)


def emit_it(word: str) -> None:
    telemetry.emit(telemetry.TURN, {"duration": 1.0}, {"reason": word})


def die_of_it_in_a_thread(word: str) -> None:
    def fail() -> None:
        raise RuntimeError(word)

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "tell, place",
    [
        (log_it, "the log"),
        (log_the_traceback, "the log"),
        (log_it_aside, "the log"),
        (log_it_where_nobody_listens, "the log"),
        (warn_of_it, "a warning"),
        (emit_it, "the event bus"),
        (die_of_it_in_a_thread, "a traceback"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
async def test_what_a_process_tells_is_found(tell: Callable[[str], None], place: str) -> None:
    quiet = logging.getLogger("quiet")
    quiet.setLevel(logging.CRITICAL)
    quiet.propagate, quiet.disabled = False, True
    handlers = list(quiet.handlers)
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        async with PrivacyProof(seed=1) as proof:
            tell(proof.canary("text", shareable=True).text)

    assert (quiet.level, quiet.disabled, quiet.handlers) == (logging.CRITICAL, True, handlers)
    with pytest.raises(AssertionError, match=f"the text canary 1 reached {place}"):
        proof.assert_nothing_leaked()


@pytest.mark.parametrize(
    "make",
    [
        lambda word: HttpStatus(status=500, detail=f"cannot read {word}"),
        lambda word: ValueError(word),
        lambda word: [{"reason": word}],
    ],
    ids=["reason", "exception", "list"],
)
async def test_what_it_is_told_to_look_at_is_found(make: Callable[[str], object]) -> None:
    async with PrivacyProof(seed=1) as proof:
        word = proof.canary("text").text
        proof.look_at("one without it", make("nothing"))
        proof.assert_nothing_leaked()
        proof.look_at("one with it", make(word))

    with pytest.raises(AssertionError, match=r"reached what was looked at \(one with it\), as it is"):
        proof.assert_nothing_leaked()


async def test_everything_is_as_before_when_the_proof_is_over() -> None:
    def state() -> tuple[object, ...]:
        root = logging.getLogger()
        hooks = (sys.unraisablehook, threading.excepthook, warnings.showwarning)
        return (
            root.level,
            list(root.handlers),
            root.manager.disable,
            telemetry.listened(telemetry.TURN),
            hooks,
        )

    before = state()
    async with PrivacyProof() as proof:
        assert state() != before
    assert state() == before
    proof.assert_nothing_leaked()


# What may come out


async def test_what_is_shareable_may_reach_the_cloud_and_nothing_else() -> None:
    async with PrivacyProof(seed=1) as proof:
        control, missing = proof.canary("control", shareable=True), proof.canary("missing", shareable=True)
        own = proof.plant("card", "4012 8888 8888 1881")
        await post(proof.cloud_url, control.text.encode())
        proof.assert_nothing_leaked()
        proof.assert_reached_cloud(control)
        with pytest.raises(AssertionError, match="missing canary 2"):
            proof.assert_reached_cloud(control, missing)

        await post(proof.elsewhere_url, f"{control} {own}".encode())
        with pytest.raises(AssertionError) as caught:
            proof.assert_nothing_leaked()

    said = str(caught.value)
    assert said.startswith("2 leaks (seed 1):")
    assert "the control canary 1 reached elsewhere" in said
    assert "the card canary 3 reached elsewhere" in said
    assert control.text not in said, "the message does not spread it further"
    assert "4012" not in said


async def test_many_leaks_are_told_in_a_few_lines() -> None:
    async with PrivacyProof(seed=1) as proof:
        words = [proof.canary("text") for _ in range(30)]
        await post(proof.elsewhere_url, " ".join(map(str, words)).encode())

    with pytest.raises(AssertionError, match="and 10 more"):
        proof.assert_nothing_leaked()


# With mead


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_runtime_is_watched_through_its_real_connections(stream: bool) -> None:
    async with PrivacyProof() as proof, FakeServer(echo_all) as local:
        secret, control = proof.canary("secret"), proof.canary("control", shareable=True)
        slots = Slots(
            local=Slot(Ollama(HttpClient(local.url, slot="local")), FREE),
            cloud=Slot(OpenAIChat(HttpClient(proof.cloud_url + "/v1", slot="cloud")), FREE),
        )

        async def turn(text: str, **keywords: object) -> mead.Answer:
            if not stream:
                return (await runtime.submit_turn(session_id, text, **keywords)).unwrap()  # type: ignore[arg-type]  # by name
            last: object = None
            async for event in runtime.stream_turn(session_id, text, **keywords):  # type: ignore[arg-type]  # by name
                last = event
            assert isinstance(last, mead.Finished)
            return last.result.unwrap()

        async with mead.Runtime(slots=slots) as runtime:
            session_id = await runtime.start_session(title=secret.text)
            local_answer = await turn(f"remember {secret}", route="local")
            cloud_answer = await turn(f"hello {control}", route="cloud")
        proof.assert_nothing_leaked()
        proof.assert_reached_cloud(control)

        assert secret.text in local_answer.text, "the local model quotes what it is shown"
        assert control.text in cloud_answer.text, "so does the cloud"


async def test_a_cloud_is_found_out_that_was_given_a_local_slots_job() -> None:
    async with PrivacyProof() as proof:
        secret = proof.canary("text")
        slots = Slots(local=Slot(Ollama(HttpClient(proof.cloud_url, slot="local")), FREE))
        async with mead.Runtime(slots=slots) as runtime:
            session_id = await runtime.start_session()
            (await runtime.submit_turn(session_id, f"my {secret}", route="local")).unwrap()

        with pytest.raises(
            AssertionError, match=r"the text canary 1 reached the cloud \(request .*/api/chat"
        ):
            proof.assert_nothing_leaked()


@pytest.mark.parametrize("body", [b"", b"[]", b"\xff", b'"text"'])
async def test_the_echo_answers_anything(body: bytes) -> None:
    async with FakeServer(echo_all) as server:
        for path in ("/x", "/api/chat", "/v1/chat/completions"):
            client = HttpClient(server.url, slot="local")
            reply = (await client.send("POST", path, FREE, body=body)).unwrap()
            await client.aclose()
            assert (reply.status, reply.body) == (200, b"{}")


async def test_the_name_server_gives_one_address_after_the_other() -> None:
    async with PrivacyProof(names={"turning.example": ["127.0.0.1", "203.0.113.7"]}) as proof:
        answers = [(await ask_name(proof.dns.port, "turning.example"))[-4:] for _ in range(3)]

    assert [socket.inet_ntoa(answer) for answer in answers] == ["127.0.0.1", "203.0.113.7", "203.0.113.7"]
    assert proof.dns.asked == ["turning.example"] * 3
