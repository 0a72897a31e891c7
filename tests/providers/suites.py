"""What every adapter promises, as suites that the adapters' own test files subclass."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from mead.core.messages import Message, TextBlock, ToolUseBlock, text_of
from mead.core.options import Options
from mead.core.reasons import (
    HttpStatus,
    InvalidOptions,
    MalformedResponse,
    MissingApiKey,
    ProviderReason,
    Timeout,
    ToolsUnsupported,
    Transport,
)
from mead.core.result import Ok, Result
from mead.core.usage import Usage
from mead.providers._adapter import HttpAdapter
from mead.providers.protocol import Reply
from mead.testing import Answer, FakeServer
from mead.testing.providers import OSLO, ROME, TEXT, WEATHER, Answers, BreaksOff, GoesSilent, Refuses
from mead.testing.server import Answering
from providers.formats import ASK, OPTIONS, WireFormat, json_answer, reason

QUESTION = [Message("user", ASK)]
KEY = "sk-0123456789-secret"
CALLS = ("complete", "converse", "converse_stream")


async def ask(
    provider: HttpAdapter, call: str, options: Options = OPTIONS, tools: Any = (), deltas: Any = None
) -> Any:
    """Makes one of the three calls."""
    if call == "complete":
        return await provider.complete(QUESTION, options)
    if call == "converse":
        return await provider.converse(QUESTION, tools, options)
    heard = [] if deltas is None else deltas
    return await provider.converse_stream(QUESTION, tools, options, heard.append)


def due() -> Options:
    """Options whose deadline is about to pass."""
    return msgspec.structs.replace(OPTIONS, deadline=asyncio.get_running_loop().time() + 0.05)


@asynccontextmanager
async def rude_server(*, says: bytes = b"", reset: bool = False) -> AsyncIterator[str]:
    """The address of a server that lets a client speak, says its word, HTTP or not, and leaves."""
    served: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())  # type: ignore[arg-type]  # a coroutine always has its task
        await reader.read(1 << 16)
        writer.write(says)
        if reset:
            now = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, now)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*served)


async def asked(server: FakeServer, path: str) -> None:
    """Waits until the server is about to answer a request for `path`."""
    while not server.requests_to(path):
        await server.answering.wait()
        if not server.requests_to(path):
            server.answering.clear()
    await server.answering.wait()


class Suite:
    """The helpers of the suites."""

    wire: WireFormat

    async def outcome(
        self, answer: Answering, call: str, options: Options = OPTIONS, tools: Any = (), **keywords: Any
    ) -> ProviderReason:
        """The reason of a call that a server answered in this way, after exactly one request to the model."""
        async with self.wire.server(answer) as server, self.wire.provider(server, **keywords) as provider:
            result = await ask(provider, call, options, tools)

        assert len(server.requests_to(self.wire.path)) == 1
        return reason(result)

    async def streamed(self, *pieces: bytes, **keywords: Any) -> tuple[Result[Reply, Any], list[str]]:
        """What a stream of these bytes gives, and its deltas."""
        deltas: list[str] = []
        # A reader that misses the end of a stream that hangs afterwards must fail, not hang.
        options = msgspec.structs.replace(OPTIONS, deadline=asyncio.get_running_loop().time() + 10)
        async with self.wire.server(self.wire.streaming(*pieces, **keywords)) as server:
            async with self.wire.provider(server) as provider:
                result = await ask(provider, "converse_stream", options, deltas=deltas)
        return result, deltas


class FailureSuite(Suite):
    """P4: each failure is returned, as one of the seven reasons."""

    async def test_p4_missing_api_key_is_said_before_anything_is_sent(self) -> None:
        if not self.wire.needs_key_option:
            pytest.skip("this format's servers need no key")
        async with self.wire.server(Answer()) as server:
            for key in (None, "", " \n"):
                async with self.wire.provider(server, needs_key=True, api_key=key) as provider:
                    results = [reason(await ask(provider, call)) for call in CALLS]

                assert [type(result) for result in results] == [MissingApiKey] * 3
        assert server.requests == []

    @pytest.mark.parametrize("call", CALLS)
    async def test_p4_timeout_of_the_deadline(self, call: str) -> None:
        case = self.wire.answer(GoesSilent(pieces=("Hel",)))

        assert await self.outcome(case, call, due()) == Timeout(limit="deadline")

    async def test_p4_timeout_of_the_idle_limit_says_so(self) -> None:
        options = msgspec.structs.replace(OPTIONS, idle_timeout_s=0.03)
        failure = await self.outcome(
            self.wire.answer(GoesSilent(pieces=("Hel",))), "converse_stream", options
        )

        assert isinstance(failure, Timeout)
        assert failure.limit == "idle"

    async def test_p4_the_idle_limit_never_reaches_beyond_the_deadline(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        options = msgspec.structs.replace(due(), idle_timeout_s=3.0)
        failure = await self.outcome(
            self.wire.answer(GoesSilent(pieces=("Hel",))), "converse_stream", options
        )

        assert failure == Timeout(limit="deadline")
        assert loop.time() - started < 2

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize(
        "body",
        [b"", b"<html><body>Welcome</body></html>", b"{}", b"[]", b"null", b"7", b'{"choices', b"\xff\xfe"],
        ids=["empty", "html", "object", "list", "null", "number", "half", "bytes"],
    )
    async def test_p4_malformed_response(self, call: str, body: bytes) -> None:
        failure = await self.outcome(Answer(body=body, chunked=False), call)

        # A stream without any message may as well be one that was cut before its first.
        assert isinstance(failure, MalformedResponse) or (
            call == "converse_stream" and body[:1] not in (b"<", b"{") and isinstance(failure, Transport)
        )

    async def test_p4_malformed_response_for_what_is_not_http(self) -> None:
        async with rude_server(says=b"220 mail.example.org ESMTP\r\n\r\n") as url:
            provider = self.wire.make(url)
            result = await ask(provider, "complete")
            await provider.aclose()

        assert isinstance(reason(result), MalformedResponse)

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("status", [400, 422])
    async def test_p4_invalid_options_carries_the_words_of_the_server(self, call: str, status: int) -> None:
        failure = await self.outcome(self.wire.answer(Refuses(status=status, message="no such knob")), call)

        assert isinstance(failure, InvalidOptions)
        assert failure.detail == "no such knob"

    async def test_p4_invalid_options_for_a_call_without_a_model(self) -> None:
        async with self.wire.server(Answer()) as server, self.wire.provider(server) as provider:
            results = [reason(await ask(provider, call, Options())) for call in CALLS]

        assert [type(result) for result in results] == [InvalidOptions] * 3
        assert server.requests == []

    async def test_p4_invalid_options_for_a_tool_name_that_no_vendor_takes(self) -> None:
        tool = msgspec.structs.replace(WEATHER, name="files.read all")
        async with self.wire.server(Answer()) as server, self.wire.provider(server) as provider:
            failure = reason(await provider.converse(QUESTION, (tool,), OPTIONS))

        assert isinstance(failure, InvalidOptions)
        assert server.requests_to(self.wire.path) == []

    @pytest.mark.parametrize("call", ["converse", "converse_stream"])
    async def test_p4_tools_unsupported(self, call: str) -> None:
        answer = json_answer(self.wire.error(self.wire.no_tools, 400), status=400)

        assert await self.outcome(answer, call, tools=(WEATHER,)) == ToolsUnsupported(
            detail=self.wire.no_tools
        )

    async def test_p4_the_same_words_without_tools_are_invalid_options(self) -> None:
        answer = json_answer(self.wire.error(self.wire.no_tools, 400), status=400)

        assert isinstance(await self.outcome(answer, "converse"), InvalidOptions)

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("status", [201, 401, 402, 403, 404, 408, 409, 413, 429, 500, 502, 503, 529])
    async def test_p4_http_status(self, call: str, status: int) -> None:
        case = Refuses(status=status, message="not today", retry_after_s=7)
        failure = await self.outcome(self.wire.answer(case), call)

        assert isinstance(failure, HttpStatus)
        assert (failure.status, failure.retry_after_s) == (status, 7)
        assert failure.detail == "not today"

    async def test_p4_http_status_of_a_page_shows_no_page(self) -> None:
        page = Answer(status=502, body=b"<html><h1>Bad gateway</h1>", headers={"content-type": "text/html"})

        assert await self.outcome(page, "complete") == HttpStatus(status=502)

    async def test_p4_http_status_of_a_redirect_that_is_not_followed(self) -> None:
        moved = Answer(status=307, headers={"location": "/elsewhere"}, chunked=False)
        async with self.wire.server(moved) as server, self.wire.provider(server) as provider:
            failure = reason(await ask(provider, "complete"))

        assert isinstance(failure, HttpStatus)
        assert failure.status == 307
        assert server.requests_to("/elsewhere") == []

    async def test_p4_transport_refused(self) -> None:
        async with FakeServer() as server:
            url = server.url
        provider = self.wire.make(url)
        failures = [reason(await ask(provider, call)) for call in CALLS]
        await provider.aclose()

        assert [getattr(failure, "cause", failure) for failure in failures] == ["refused"] * 3

    @pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
    async def test_p4_transport_reset(self, reset: bool) -> None:
        async with rude_server(reset=reset) as url:
            provider = self.wire.make(url)
            failure = reason(await ask(provider, "complete"))
            await provider.aclose()

        assert isinstance(failure, Transport)
        assert failure.cause == "reset"

    @pytest.mark.parametrize("call", CALLS)
    @pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "sized"])
    async def test_p4_transport_cut(self, call: str, chunked: bool) -> None:
        def cut(request: Any) -> Answer:
            whole = self.wire.answer(BreaksOff(pieces=("Hel", "lo")))
            assert callable(whole)
            return msgspec.structs.replace(whole(request), chunked=chunked)

        failure = await self.outcome(cut, call)

        assert isinstance(failure, Transport)
        assert failure.cause == "cut"

    async def test_p4_transport_dns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def unknown(*_: object, **__: object) -> object:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
        provider = self.wire.make("http://models.example:8080")
        failure = reason(await ask(provider, "complete"))
        await provider.aclose()

        assert isinstance(failure, Transport)
        assert failure.cause == "dns"

    async def test_p4_transport_tls(self) -> None:
        async with rude_server(says=b"HTTP/1.1 400 This is no TLS\r\n\r\n") as url:
            provider = self.wire.make(url.replace("http:", "https:"))
            failure = reason(await ask(provider, "complete"))
            await provider.aclose()

        assert isinstance(failure, Transport)
        assert failure.cause == "tls"

    async def test_p4_no_detail_carries_the_key(self) -> None:
        async with self.wire.server(
            json_answer(self.wire.error(f"the key {KEY} is wrong", 401), status=401)
        ) as server:
            async with self.wire.provider(server, api_key=f" {KEY}\n") as provider:
                failure = reason(await ask(provider, "complete"))

        assert server.requests_to(self.wire.path)[0].headers["authorization"] == f"Bearer {KEY}"
        assert KEY not in repr(failure) + str(failure)
        assert "the key … is wrong" in str(failure)

    async def test_p4_no_detail_quotes_the_conversation(self) -> None:
        said = "my card is 4111-1111-1111-1111 and my dog is Waldo the Great"
        answer = json_answer(self.wire.error(f"cannot parse {{'content': '{said}'}}", 400), status=400)
        async with self.wire.server(answer) as server, self.wire.provider(server) as provider:
            failure = reason(await provider.complete([Message("user", said)], OPTIONS))

        assert "4111" not in str(failure)
        assert "Waldo" not in str(failure)
        assert "cannot parse" in str(failure)


class StreamSuite(Suite):
    """P3: deltas are a preview in order, the returned value is the answer."""

    async def test_p3_the_deltas_joined_are_the_text(self) -> None:
        case = Answers(pieces=("Grüß ", "dich, ", "世界 😀"))
        result, deltas = await self.streamed(*self.wire.stream(case))

        assert deltas == ["Grüß ", "dich, ", "世界 😀"]
        assert text_of(result.unwrap().content) == "Grüß dich, 世界 😀"

    @pytest.mark.parametrize(
        "case",
        [TEXT, Answers(calls=(OSLO, ROME)), Answers(pieces=("a", "b"), calls=(OSLO,)), Answers()],
        ids=["text", "calls", "both", "nothing"],
    )
    async def test_p3_a_streamed_reply_is_the_unstreamed_one(self, case: Answers) -> None:
        async with self.wire.serving(case, case) as provider:
            streamed = await ask(provider, "converse_stream", tools=(WEATHER,))
            unstreamed = await ask(provider, "converse", tools=(WEATHER,))

        assert isinstance(unstreamed, Ok)
        assert streamed == unstreamed

    async def test_p3_a_stream_cut_at_any_byte_between_reads_is_the_same(self) -> None:
        case = Answers(pieces=("é世", "😀"), calls=(ROME,))
        whole = b"".join(self.wire.stream(case))
        expected, _ = await self.streamed(whole)
        result, deltas = await self.streamed(*[whole[at : at + 1] for at in range(len(whole))])

        assert result == expected
        assert "".join(deltas) == "é世😀"

    @pytest.mark.parametrize("end", ["whole", "cut"], ids=["clean", "broken"])
    async def test_p3_a_stream_that_ends_midway_fails_and_its_deltas_stay(self, end: str) -> None:
        result, deltas = await self.streamed(*self.wire.text_events(["Hel", "lo"]), end=end)

        failure = reason(result)
        assert isinstance(failure, Transport)
        assert failure.cause == "cut"
        assert deltas == ["Hel", "lo"]

    async def test_p3_no_empty_delta_is_delivered(self) -> None:
        result, deltas = await self.streamed(*self.wire.stream(Answers(pieces=("", "a", "", "b", ""))))

        assert deltas == ["a", "b"]
        assert result.unwrap().content == (TextBlock("ab"),)

    async def test_p3_a_stream_is_over_with_its_last_event_though_the_server_stays(self) -> None:
        result, _ = await self.streamed(*self.wire.stream(TEXT), end="hang")

        assert text_of(result.unwrap().content) == "One two three."

    async def test_p3_an_answer_that_comes_at_once_is_read_and_delivered(self) -> None:
        case = Answers(pieces=("One ", "two."), calls=(OSLO,))
        deltas: list[str] = []
        async with self.wire.server(json_answer(self.wire.whole(case))) as server:
            async with self.wire.provider(server) as provider:
                result = await ask(provider, "converse_stream", deltas=deltas)

        assert result.unwrap().content == (TextBlock("One two."), OSLO)
        assert "".join(deltas) == "One two."

    async def test_p3_an_error_that_comes_at_once_is_read(self) -> None:
        async with self.wire.server(json_answer(self.wire.error("it broke", 500))) as server:
            async with self.wire.provider(server) as provider:
                failure = reason(await ask(provider, "converse_stream"))

        assert failure.detail == "it broke"

    async def test_p3_cancelling_closes_the_socket_and_nothing_is_sent_again(self) -> None:
        async with self.wire.server(self.wire.answer(GoesSilent(pieces=("Hel",)))) as server:
            async with self.wire.provider(server) as provider:
                deltas: list[str] = []
                call = asyncio.create_task(ask(provider, "converse_stream", deltas=deltas))
                await asked(server, self.wire.path)
                call.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await call
                await asyncio.wait_for(server.client_left.wait(), 2)

        assert len(server.requests_to(self.wire.path)) == 1

    @pytest.mark.parametrize("call", ["complete", "converse"])
    async def test_p3_cancelling_an_unstreamed_call_closes_the_socket_too(self, call: str) -> None:
        async with self.wire.server(self.wire.answer(GoesSilent())) as server:
            async with self.wire.provider(server) as provider:
                task = asyncio.create_task(ask(provider, call))
                await asked(server, self.wire.path)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await asyncio.wait_for(server.client_left.wait(), 2)

        assert len(server.requests_to(self.wire.path)) == 1

    async def test_p3_a_deadline_closes_the_socket(self) -> None:
        async with self.wire.server(self.wire.answer(GoesSilent(pieces=("Hel",)))) as server:
            async with self.wire.provider(server) as provider:
                failure = reason(await ask(provider, "converse_stream", due()))
                await asyncio.wait_for(server.client_left.wait(), 2)

        assert failure == Timeout()

    async def test_p3_an_error_of_the_listener_passes_and_closes_the_socket(self) -> None:
        def fail(_: str) -> None:
            raise LookupError("mine")

        async with self.wire.server(self.wire.answer(GoesSilent(pieces=("Hel",)))) as server:
            async with self.wire.provider(server) as provider:
                with pytest.raises(LookupError, match="mine"):
                    await provider.converse_stream(QUESTION, (), OPTIONS, fail)
                await asyncio.wait_for(server.client_left.wait(), 2)


class UsageSuite(Suite):
    """P5: counts are what the vendor said; unknown is `None`."""

    async def test_p5_usage_is_what_the_server_said_streamed_or_not(self) -> None:
        case = Answers(pieces=("a",), usage=Usage(input_tokens=123, output_tokens=45))
        async with self.wire.serving(case, case, case) as provider:
            usages = [(await ask(provider, call)).unwrap().usage for call in CALLS]

        assert [(usage.input_tokens, usage.output_tokens) for usage in usages] == [(123, 45)] * 3

    @pytest.mark.parametrize("call", CALLS)
    async def test_p5_counts_that_are_not_said_are_unknown(self, call: str) -> None:
        case = Answers(pieces=("a",), usage=Usage())

        def answer(request: Any) -> Answer:
            made = self.wire.answer(case)
            assert callable(made)
            answer = made(request)
            pieces = [answer.body] if isinstance(answer.body, bytes) else answer.body
            # The formats' first event brings a count of its own, which is no part of this case.
            body = b"".join(pieces).replace(b'"output_tokens":1', b'"output_tokens":null')
            return msgspec.structs.replace(answer, body=body)

        async with self.wire.server(answer) as server, self.wire.provider(server) as provider:
            usage = (await ask(provider, call)).unwrap().usage

        assert usage == Usage()

    async def test_p5_a_call_without_an_id_gets_one_and_equal_ids_are_told_apart(self) -> None:
        twice = ToolUseBlock("same", "weather", {"city": "Oslo"})
        case = Answers(calls=(twice, twice, msgspec.structs.replace(twice, id="")))
        async with self.wire.serving(case, case) as provider:
            streamed = await ask(provider, "converse_stream", tools=(WEATHER,))
            unstreamed = await ask(provider, "converse", tools=(WEATHER,))

        ids = [block.id for block in unstreamed.unwrap().content]
        assert ids[0] == "same"
        assert len({*ids}) == 3
        assert all(ids)
        assert streamed == unstreamed
