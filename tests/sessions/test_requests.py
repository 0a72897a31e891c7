"""Requests that bring their own history: answered, written down, and nothing of their text kept (R16)."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import mead
from mead import telemetry
from mead.core.messages import ToolResultBlock, ToolUseBlock
from mead.core.options import TurnOptions
from mead.core.reasons import (
    Cancelled,
    Crashed,
    HttpStatus,
    IdempotencyConflict,
    Interrupted,
    InvalidOptions,
    NoSuchSession,
    PrivateContent,
    ShuttingDown,
)
from mead.core.result import Err, Ok
from mead.core.turns import Finding, Turn, Verdict
from mead.router.classifier import ClassifierInput
from mead.sessions._texts import frame_of
from mead.sessions.private_texts import KEY_FILE, PrivateTexts
from mead.sessions.requests import PREFIX, keyed_id
from mead.storage import Store, StoreError, open_store
from mead.storage.memory import MemoryStore
from mead.storage.protocol import TurnMarks
from mead.testing import ProviderRequest, ScriptedProvider, calls
from support import heard, slots, two_models

SECRET = "I have asked the bank on Tuesday whether it could wait for the rate of May until the end of June."
ADVICE = "Then write to the bank, name the old mill as a security, and offer half of it before the summer."
OTHER = "Which birds stand on one leg in shallow water while they wait for fish, and why do they do so?"


class OnlyKnown:
    """Takes for private what is known to be so, and nothing else; all that is not goes to the cloud."""

    def classify(self, turn: ClassifierInput) -> Verdict:
        private = bool(turn.known_private)
        route: mead.core.options.Route = "local" if private else "cloud"
        return Verdict(route=route, private=private, score=0.0, causes=(), findings=turn.known_private)

    def scan(self, text: str) -> Sequence[Finding]:
        return ()


def user(text: str) -> mead.Message:
    return mead.Message("user", text)


def model(text: str) -> mead.Message:
    return mead.Message("assistant", text)


@asynccontextmanager
async def opened(
    local: object = None,
    cloud: object = None,
    *,
    store: Store | None = None,
    folder: Path | None = None,
    **runtime: object,
) -> AsyncIterator[mead.Runtime]:
    settings = mead.Settings() if folder is None else mead.Settings(data_folder=folder)
    if local is None and cloud is None:
        local, cloud = two_models(local=ScriptedProvider(otherwise=ADVICE))
    made = mead.Runtime(
        settings,
        slots=slots(local, cloud),
        store=store,
        classifier=OnlyKnown(),
        **runtime,  # type: ignore[arg-type]  # keywords by name
    )
    async with made:
        yield made


def sqlite(folder: Path) -> Store:
    return open_store(f"sqlite:///{folder}/kept/mead.db")


def everything_in(folder: Path) -> bytes:
    return b"".join([path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()])


async def routed(runtime: mead.Runtime, *messages: mead.Message) -> str | None:
    """Where an `auto` request goes."""
    return (await runtime.submit_request(messages)).unwrap().route


async def explained(runtime: mead.Runtime, *messages: mead.Message) -> str:
    """Where it would go."""
    decision = (await runtime.explain_request(messages)).unwrap()
    assert isinstance(decision, mead.Decision)
    return decision.route


# One turn


async def test_r16_the_model_sees_what_was_brought_and_the_answer_holds_all_of_it() -> None:
    provider = ScriptedProvider("four")
    async with opened(provider) as runtime:
        messages = [user("two and two?"), model("three"), user("sure?")]
        answer = (await runtime.submit_request(messages, route="local")).unwrap()

    assert provider.requests[0].messages == messages
    assert answer.text == "four"
    assert answer.messages.decode() == [*messages, model("four")]


@pytest.mark.parametrize(
    "messages",
    [[], [user("hello"), model("hi")], [user("  ")], [model("hi")], [user("hello"), model("hi"), user(" ")]],
)
async def test_a_request_without_anything_to_answer_is_refused_and_told_of(
    messages: list[mead.Message],
) -> None:
    async with opened() as runtime:
        with heard(telemetry.TURN) as events:
            result = await runtime.submit_request(messages)

    assert isinstance(result, Err)
    assert isinstance(result.reason, InvalidOptions)
    assert "nothing to answer" in result.reason.detail
    assert [event.metadata["reason"] for event in events] == ["invalid_options"]


async def test_a_request_may_end_with_the_results_of_tools() -> None:
    provider = ScriptedProvider("it rains")
    use, found = ToolUseBlock("1", "weather", {}), ToolResultBlock("1", "rain")
    messages = [user("weather?"), mead.Message("assistant", (use,)), mead.Message("user", (found,))]
    async with opened(provider) as runtime:
        assert (
            await runtime.submit_request(messages, route="local", tools="none")
        ).unwrap().text == "it rains"
    assert provider.requests[0].messages == messages


async def test_what_is_malformed_is_mended_and_what_is_no_message_is_a_mistake() -> None:
    provider = ScriptedProvider(otherwise="ok")
    call = ToolUseBlock("1", "weather", {})
    async with opened(provider) as runtime:
        await runtime.submit_request(
            [user("a"), mead.Message("assistant", (call,)), user("b")], route="local"
        )
        with pytest.raises(ValueError, match="sequence of mead"):
            await runtime.submit_request(["a"])  # type: ignore[list-item]  # what is tested
        with pytest.raises(ValueError, match="role"):
            await runtime.submit_request([mead.Message("system", "a"), user("b")])  # type: ignore[arg-type]  # as above
        with pytest.raises(ValueError, match="route"):
            await runtime.submit_request([user("a")], route="moon")  # type: ignore[arg-type]  # as above
        with pytest.raises(ValueError, match="turn_timeout_s"):
            await runtime.submit_request([user("a")], turn_timeout_s=0.0)
    assert isinstance(provider.requests[0].messages[2].content[0], ToolResultBlock)


async def test_a_request_that_is_too_long_is_refused() -> None:
    settings = mead.Settings(sessions=mead.settings.SessionSettings(max_input_bytes=100))
    picture = mead.ImageBlock("image/png", bytes(80))
    async with mead.Runtime(settings, slots=slots(ScriptedProvider(otherwise="ok"))) as runtime:
        messages = [user("x" * 40), model("y" * 40), user("z" * 40)]
        for result in (
            await runtime.submit_request(messages),
            await runtime.submit_request([user("x" * 40)], attachments=[picture]),
            await runtime.explain_request(messages),
        ):
            assert isinstance(result, Err)
            assert "the limit is 100" in result.reason.detail


async def test_attachments_join_the_last_message_and_options_hold() -> None:
    provider = ScriptedProvider("ok")
    picture = mead.ImageBlock("image/png", b"1")
    async with opened(provider) as runtime:
        options = mead.Options(system="Be brief.", max_tokens=5)
        await runtime.submit_request([user("a")], route="local", attachments=[picture], options=options)

    [request] = provider.requests
    assert request.messages == [mead.Message("user", (mead.TextBlock("a"), picture))]
    assert (request.options.system, request.options.max_tokens) == ("Be brief.", 5)


async def test_requests_run_at_the_same_time_and_sessions_are_used_again() -> None:
    running = most = 0
    gate = asyncio.Event()

    async def wait(request: ProviderRequest) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 8:
            gate.set()
        await gate.wait()
        running -= 1
        return "ok"

    async with opened(ScriptedProvider(otherwise=wait), store=MemoryStore()) as runtime:
        await asyncio.gather(*[runtime.submit_request([user(f"{n}")], route="local") for n in range(8)])
        running = 7  # the gate is open: what follows runs alone
        for n in range(8):
            await runtime.submit_request([user(f"{n}")], route="local")
        assert runtime.store is not None
        rows = await runtime.store.usage_rows()

    assert most == 8
    assert len({row.session_id for row in rows}) == 8
    assert len(rows) == 16


async def test_a_stream_yields_the_text_and_then_the_result() -> None:
    async with opened() as runtime:
        events = [event async for event in runtime.stream_request([user("a")], route="cloud")]
        refused = [event async for event in runtime.stream_request([], route="cloud")]

    assert events[0] == mead.Delta("from cloud")
    assert isinstance(events[-1], mead.Finished)
    assert events[-1].result.unwrap().text == "from cloud"
    assert [type(event).__name__ for event in refused] == ["Finished"]


async def test_leaving_a_stream_or_cancelling_the_caller_cancels_the_request() -> None:
    left = asyncio.Event()

    async def endless(request: ProviderRequest) -> None:
        request.options.scope.delta("one")
        try:
            await asyncio.Event().wait()
        finally:
            left.set()

    async with opened(ScriptedProvider(otherwise=endless)) as runtime:
        stream = runtime.stream_request([user("a")], route="local")
        assert await anext(stream) == mead.Delta("one")
        await stream.aclose()
        await left.wait()
        left.clear()
        with heard(telemetry.TURN) as events:
            task = asyncio.create_task(runtime.submit_request([user("a")], route="local"))
            while not events:
                await asyncio.sleep(0)
                task.cancel()
        assert task.cancelled() or task.cancelling()

    assert events[0].metadata["reason"] == Cancelled().tag


async def test_closing_the_runtime_ends_requests_and_takes_none() -> None:
    asked = asyncio.Event()

    async def endless(request: ProviderRequest) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with opened(ScriptedProvider(otherwise=endless), store=MemoryStore()) as runtime:
        task = asyncio.create_task(runtime.submit_request([user("a")], route="local"))
        await asked.wait()
    assert await task == Err(ShuttingDown())
    assert await runtime.submit_request([user("a")]) == Err(ShuttingDown())


async def test_explain_contacts_nothing_and_is_what_happens() -> None:
    local, cloud = two_models()
    async with opened(local, cloud) as runtime:
        await runtime.submit_request([user(SECRET)], route="local")
        before = len(local.requests)
        private = (await runtime.explain_request([user(SECRET), model("x"), user("go on")])).unwrap()
        forced = (await runtime.explain_request([user(SECRET)], route="cloud")).unwrap()
        other = (await runtime.explain_request([user(OTHER)])).unwrap()

    assert isinstance(private, mead.Decision)
    assert (private.route, private.label) == ("local", "local_only")
    assert isinstance(forced, mead.Refused)
    assert isinstance(other, mead.Decision)
    assert other.route == "cloud"
    assert (len(local.requests), cloud.requests) == (before, [])


# What is kept


async def test_r16_nothing_of_a_request_is_kept_but_its_figures(tmp_path: Path) -> None:
    store = sqlite(tmp_path)
    async with opened(store=store, folder=tmp_path / "data") as runtime:
        await runtime.submit_request([user(SECRET), model("heron"), user("more")], route="local")
        await runtime.submit_request([user(OTHER)], route="cloud")
        usage = await store.usage_rows()
        listed = await store.list_sessions("local")
        hidden = usage[0].session_id
        found = (
            await runtime.history(hidden),
            await runtime.submit_turn(hidden, "a"),
            await runtime.stop_session(hidden),
            await runtime.cancel_turn(hidden),
        )
        in_memory = await runtime.sessions()

    kept = everything_in(tmp_path / "kept")
    assert [(row.route, row.status) for row in usage] == [("cloud", "closed"), ("local", "closed")]
    assert hidden.startswith(PREFIX)
    assert (listed, in_memory) == ((), ())
    assert isinstance(found[0], Err)
    assert isinstance(found[0].reason, NoSuchSession)
    assert isinstance(found[1], Err)
    assert isinstance(found[1].reason, NoSuchSession)
    assert found[2:] == (False, False)
    for text in (SECRET, OTHER, ADVICE, "heron", "from cloud"):
        assert text.encode() not in kept


class Counting(MemoryStore):
    """Counts what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def __getattribute__(self, name: str) -> object:
        if name in ("create_session", "begin_turn", "open_call", "close_call", "end_turn", "mark_turns"):
            object.__getattribute__(self, "writes").append(name)
        return object.__getattribute__(self, name)


async def test_a_request_writes_three_times() -> None:
    store = Counting()
    async with opened(store=store) as runtime:
        await runtime.submit_request([user("a")], route="local")
        store.writes.clear()
        await runtime.submit_request([user(SECRET)], route="local")

    assert store.writes == ["begin_turn", "open_call", "end_turn"]


async def test_each_request_has_its_events_and_its_ledger_row() -> None:
    async with opened(store=MemoryStore()) as runtime:
        with heard(telemetry.TURN, telemetry.ROUTE) as events:
            await runtime.submit_request([user("a")], route="local", tags=["x"])
            await runtime.submit_request([user("a")], route="cloud")
        assert runtime.store is not None
        rows = await runtime.store.usage_rows()

    assert [event.name for event in events] == [telemetry.ROUTE, telemetry.TURN] * 2
    assert rows[1].tags == ("x",)


async def test_r16_effects_of_a_request_are_not_told_to_another_one() -> None:
    @mead.tool(effect=True)
    async def ring() -> str:
        "Rings."
        return "rung"

    local = ScriptedProvider(calls("ring"), HttpStatus(status=500), "fine")
    async with opened(local, store=MemoryStore(), tools=[ring]) as runtime:
        failed = await runtime.submit_request([user("a")], route="local", tools="effect")
        await runtime.submit_request([user("b")], route="local", tools="none")

    assert isinstance(failed, Err)
    assert local.requests[-1].options.system is None


async def test_a_session_that_was_pruned_meanwhile_is_made_anew() -> None:
    store = MemoryStore()
    async with opened(store=store) as runtime:
        await runtime.submit_request([user("a")], route="local")
        assert await store.prune_requests(1e12) == 1
        assert isinstance(await runtime.submit_request([user("a")], route="local"), Ok)


async def test_old_results_are_pruned_when_the_store_is_opened(tmp_path: Path) -> None:
    async with opened(store=sqlite(tmp_path), folder=tmp_path) as runtime:
        await runtime.submit_request([user("a")], route="local", idempotency_key="k")
    store = sqlite(tmp_path)
    await store.open()
    assert await store.prune_requests(0.0) == 0
    assert ADVICE.encode() in everything_in(tmp_path / "kept")
    assert await store.prune_requests(1e12) == 1
    await store.aclose()
    assert ADVICE.encode() not in everything_in(tmp_path / "kept")


# Idempotency keys


async def test_a_repeat_joins_the_first_one_and_replays_it_afterwards_also_after_a_restart(
    tmp_path: Path,
) -> None:
    asked, gate = asyncio.Event(), asyncio.Event()

    async def slowly(request: ProviderRequest) -> str:
        asked.set()
        await gate.wait()
        return "once"

    messages = [user(OTHER), model("well"), user("and?")]
    provider = ScriptedProvider(slowly)
    async with opened(provider, store=sqlite(tmp_path), folder=tmp_path) as runtime:
        tasks = [
            asyncio.create_task(runtime.submit_request(messages, route="local", idempotency_key="k"))
            for _ in range(3)
        ]
        await asked.wait()
        conflict = await runtime.submit_request([user("b")], route="local", idempotency_key="k")
        gate.set()
        first, *others = await asyncio.gather(*tasks)
        again = await runtime.submit_request(messages, route="local", idempotency_key="k")
        late_conflict = await runtime.submit_request([user("b")], route="local", idempotency_key="k")
    async with opened(ScriptedProvider(), store=sqlite(tmp_path), folder=tmp_path) as runtime:
        restarted = await runtime.submit_request(messages, route="local", idempotency_key="k")
        ada = runtime.for_owner("ada")
        another = await ada.submit_request(messages, route="local", idempotency_key="k")

    assert len(provider.requests) == 1
    assert others == [first, first]
    for result in (again, restarted):
        assert result.unwrap().messages == first.unwrap().messages
        assert result.unwrap().text == "once"
    for result in (conflict, late_conflict):
        assert isinstance(result, Err)
        assert isinstance(result.reason, IdempotencyConflict)
    assert isinstance(another, Err), "the key is the owner's: hers is new, and the script is at its end"
    assert OTHER.encode() not in everything_in(tmp_path / "kept"), "what was brought is not kept"


async def test_a_failure_gives_the_key_free_and_a_key_needs_a_store() -> None:
    provider = ScriptedProvider(HttpStatus(status=500), "better")
    async with opened(provider, store=MemoryStore()) as runtime:
        failed = await runtime.submit_request([user("a")], route="local", idempotency_key="k")
        again = await runtime.submit_request([user("a")], route="local", idempotency_key="k")
    async with opened() as runtime:
        result = await runtime.submit_request([user("a")], idempotency_key="k")

    assert isinstance(failed, Err)
    assert again.unwrap().text == "better"
    assert isinstance(result, Err)
    assert isinstance(result.reason, InvalidOptions)


async def test_a_request_that_a_crash_cut_off_is_not_run_again(tmp_path: Path) -> None:
    store = sqlite(tmp_path)

    async def die(request: ProviderRequest) -> str:
        await store.aclose()  # the process ends here, for all that the store can see
        return "too late"

    async with opened(ScriptedProvider(die), store=store, folder=tmp_path) as runtime:
        cut = await runtime.submit_request([user("a")], route="local", idempotency_key="k")
    async with opened(store=sqlite(tmp_path), folder=tmp_path) as runtime:
        result = await runtime.submit_request([user("a")], route="local", idempotency_key="k")

    assert isinstance(cut, Err)
    assert isinstance(cut.reason, Crashed)
    assert isinstance(result, Err)
    assert isinstance(result.reason, Interrupted)
    assert keyed_id("local", "k") != keyed_id("loca", "lk")


# Fingerprints


STORES = ["none", "memory", "sqlite"]


def store_of(kind: str, folder: Path) -> Store | None:
    return {"none": lambda: None, "memory": MemoryStore, "sqlite": lambda: sqlite(folder)}[kind]()


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("in_session", [True, False], ids=["of a session", "of a request"])
async def test_r16_text_of_a_local_turn_keeps_the_conversation_that_brings_it_local(
    kind: str, in_session: bool, tmp_path: Path
) -> None:
    local, cloud = two_models(local=ScriptedProvider(otherwise=ADVICE))
    async with opened(local, cloud, store=store_of(kind, tmp_path), folder=tmp_path) as runtime:
        assert await routed(runtime, user(OTHER)) == "cloud"
        if in_session:
            await runtime.submit_turn(await runtime.start_session(), SECRET, route="local")
        else:
            await runtime.submit_request([user(SECRET)], route="local")
        by_question = await routed(runtime, user(SECRET), model("Well."), user("Go on."))
        by_answer = await routed(runtime, user("What now?"), model(ADVICE), user("Go on."))
        forced = await runtime.submit_request([user("What now?"), model(ADVICE), user("b")], route="cloud")
        other = await routed(runtime, user(OTHER), model("Herons."), user("Why?"))
        ada = await routed(runtime.for_owner("ada"), user(SECRET))

    assert (by_question, by_answer, other, ada) == ("local", "local", "cloud", "cloud")
    assert isinstance(forced, Err)
    assert isinstance(forced.reason, PrivateContent)
    assert forced.reason.kinds == ("local_text",)
    sent = "".join([request.text for request in cloud.requests if SECRET not in request.text])
    assert ADVICE not in sent


PROMPTS = {
    "a title": (
        "Find a title of at most five words, with one emoji, for the talk below.\n\n<talk>\n"
        'USER: {question}\nASSISTANT: {answer}\n</talk>\n\nAnswer in JSON: {{"title": "…"}}'
    ),
    "tags": "Say in three tags what this is about:\n\n> user: {question}\n>\n> assistant: {answer}",
    "questions": 'Which questions may follow? [{{"role": "user", "content": {json_question}}}, '
    '{{"role": "assistant", "content": {json_answer}}}]',
    "a summary": "Summarise: {question} --- {answer}",
    "a search": "Make one query for a search engine out of the last message.\n###\n{question}\n###",
    "cut short": "Conversation so far:\nAI: {half}…\nName it.",
}


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
async def test_r16_a_client_s_prompts_around_a_local_conversation_stay_local(prompt: str) -> None:
    async with opened() as runtime:
        await runtime.submit_request([user(SECRET)], route="local")
        text = prompt.format(
            question=SECRET,
            answer=ADVICE,
            half=ADVICE[: len(ADVICE) * 3 // 4],
            json_question=json.dumps(SECRET),
            json_answer=json.dumps(ADVICE),
        )
        about_other = prompt.format(
            question=OTHER,
            answer="Herons do.",
            half=OTHER,
            json_question=json.dumps(OTHER),
            json_answer='"x"',
        )
        assert await routed(runtime, user(about_other)) == "cloud"
        assert await routed(runtime, user(text)) == "local"


async def test_r16_a_client_s_instructions_around_a_transcript_are_no_secret() -> None:
    def ask_title(*said: str) -> mead.Message:
        return user(PROMPTS["a title"].format(question=said[0], answer=said[1]))

    async with opened() as runtime:
        await runtime.submit_request([user(SECRET)], route="local")
        titled = (await runtime.submit_request([ask_title(SECRET, ADVICE)], route="local")).unwrap()

        assert titled.label == "local_only"
        assert await routed(runtime, ask_title(OTHER, "Herons do.")) == "cloud"
        assert await routed(runtime, ask_title(SECRET, "something else")) == "local"


async def test_r16_what_the_cloud_model_was_shown_or_has_said_is_no_secret_from_it() -> None:
    phrase = "If there is anything else that you would like to know about this, just ask me and I will help."
    rule = "Answer only from the text between the lines below, and say so where it does not hold the answer."
    local = ScriptedProvider(otherwise=f"{ADVICE} {phrase}")
    cloud = ScriptedProvider(otherwise=f"Herons do. {phrase}")
    async with opened(local, cloud) as runtime:
        await runtime.submit_request([user(SECRET)], route="local")
        assert (
            await runtime.explain_request([user("a"), model(phrase), user("b")])
        ).unwrap().route == "local"  # type: ignore[union-attr]  # a decision
        answer = (await runtime.submit_request([user(f"{rule}\n---\n{OTHER}")])).unwrap()
        assert answer.route == "cloud"
        assert await routed(runtime, user(OTHER), model(answer.text), user("Why?")) == "cloud"
        await runtime.submit_request([user(f"{rule}\n---\nThe rate is four per cent.")], route="local")

        assert await routed(runtime, user(f"{rule}\n---\nWhy do herons stand on one leg?")) == "cloud"
        assert await routed(runtime, user(ADVICE)) == "local"


async def test_r16_system_prompts_are_not_taken_for_private() -> None:
    options = mead.Options(system=OTHER)
    async with opened() as runtime:
        await runtime.submit_request([user(SECRET)], route="local", options=options)

        assert await routed(runtime, user(OTHER)) == "cloud"


async def test_r16_arguments_and_results_of_tools_are_known_again() -> None:
    @mead.tool(effect=False)
    async def read(note: str) -> str:
        "Reads a note."
        return f"The note says: {ADVICE}"

    local = ScriptedProvider(calls("read", note=SECRET), "done")
    async with opened(local, ScriptedProvider(otherwise="ok"), tools=[read]) as runtime:
        await runtime.submit_turn(await runtime.start_session(), "read it to me", route="local")

        for private in (SECRET, ADVICE):
            brought = (await runtime.explain_request([user(f"Is it true? {private}")])).unwrap()
            assert isinstance(brought, mead.Decision)
            assert brought.route == "local"
            assert brought.findings == (Finding("local_text", 0, 0, "•••"),), "one for each message"


async def test_r16_a_text_file_of_a_local_turn_is_known_again() -> None:
    file = mead.DocumentBlock("text/plain", SECRET.encode())
    async with opened() as runtime:
        await runtime.submit_request([user("sum it up")], route="local", attachments=[file])

        assert await routed(runtime, user(SECRET)) == "local"


async def test_r16_a_local_turn_that_failed_or_was_stopped_leaves_its_text_known() -> None:
    async def cut(request: ProviderRequest) -> HttpStatus:
        request.options.scope.delta(ADVICE)
        return HttpStatus(status=500)

    async with opened(ScriptedProvider(cut), ScriptedProvider(otherwise="ok")) as runtime:
        events = [event async for event in runtime.stream_request([user(SECRET)], route="local")]
        assert events[0] == mead.Delta(ADVICE)
        for private in (SECRET, ADVICE):
            assert await explained(runtime, user(private)) == "local"


async def test_r16_histories_from_elsewhere_and_forks_are_known_again(tmp_path: Path) -> None:
    store = sqlite(tmp_path)
    async with opened(store=store, folder=tmp_path) as runtime:
        session_id = await runtime.start_session(history=[user(SECRET), model(ADVICE)])
        assert await routed(runtime, user(SECRET)) == "local"
        await store.fork("local", session_id, new_id="fork", at=1.0)
        await runtime.stop_session(session_id)
        assert await routed(runtime, user(SECRET)) == "local", "the fork has the same text"
        await runtime.stop_session("fork")
        assert await routed(runtime, user(SECRET)) == "cloud"
    async with opened() as runtime:
        session_id = await runtime.start_session(history=[user(SECRET), model(ADVICE)])
        assert await routed(runtime, user(SECRET)) == "local"


@pytest.mark.parametrize("kind", STORES)
async def test_r16_what_was_deleted_is_not_known_any_more(kind: str, tmp_path: Path) -> None:
    async with opened(store=store_of(kind, tmp_path), folder=tmp_path) as runtime:
        session_id = await runtime.start_session()
        await runtime.submit_turn(session_id, SECRET, route="local")
        await runtime.submit_request([user(OTHER)], route="local")
        known = [await routed(runtime, user(text)) for text in (SECRET, OTHER)]
        await runtime.delete_owner()
        forgotten = [await routed(runtime, user(text)) for text in (SECRET, OTHER)]

    assert (known, forgotten) == (["local", "local"], ["cloud", "cloud"])


async def test_r16_processes_that_share_a_file_know_each_other_s(tmp_path: Path) -> None:
    async with (
        opened(store=sqlite(tmp_path), folder=tmp_path / "data") as one,
        opened(store=sqlite(tmp_path), folder=tmp_path / "data") as two,
    ):
        assert await routed(two, user(SECRET)) == "cloud"
        await one.submit_request([user(OTHER)], route="local")
        assert await routed(two, user(OTHER)) == "local"
    async with opened(store=sqlite(tmp_path), folder=tmp_path / "data") as later:
        assert await routed(later, user(OTHER)) == "local"

    key = tmp_path / "data" / KEY_FILE
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert key.read_bytes() not in everything_in(tmp_path / "kept")


async def test_a_lost_key_is_said_and_a_new_one_made(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(store=sqlite(tmp_path), folder=tmp_path / "data") as runtime:
        await runtime.submit_request([user(SECRET)], route="local")
    assert caplog.text == ""
    (tmp_path / "data" / KEY_FILE).unlink()
    async with opened(store=sqlite(tmp_path), folder=tmp_path / "data") as runtime:
        await runtime.submit_request([user(OTHER)], route="local")
        assert await routed(runtime, user(OTHER)) == "local"

    assert caplog.text.count("is a new one") == 1
    assert SECRET not in caplog.text


@pytest.mark.parametrize("fault", ["link", "short", "folder"])
async def test_a_key_that_cannot_be_used_is_said_and_the_process_knows_its_own(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    if fault == "link":
        (tmp_path / "elsewhere").write_bytes(bytes(32))
        (folder / KEY_FILE).symlink_to(tmp_path / "elsewhere")
    elif fault == "short":
        (folder / KEY_FILE).write_bytes(b"short")
    else:
        folder = folder / "file"
        folder.write_text("no folder")
    async with opened(store=sqlite(tmp_path), folder=folder) as runtime:
        await runtime.submit_request([user(OTHER)], route="local")
        assert await routed(runtime, user(OTHER)) == "local"

    assert "cannot be used" in caplog.text


async def test_r16_a_turn_whose_fingerprints_cannot_be_made_is_not_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> bytes:
        raise RuntimeError(SECRET)

    store = MemoryStore()
    async with opened(store=store) as runtime:
        session_id = await runtime.start_session()
        monkeypatch.setattr(PrivateTexts, "of_turn", broken)
        result = await runtime.submit_turn(session_id, SECRET, route="local")
        monkeypatch.undo()

        assert isinstance(result, Err)
        assert isinstance(result.reason, Crashed)
        assert (await runtime.history(session_id)).unwrap() == ()
        assert isinstance(await runtime.submit_turn(session_id, "again", route="local"), Ok)
    assert SECRET not in caplog.text


async def test_a_store_that_cannot_be_read_lets_nothing_go() -> None:
    class Broken(MemoryStore):
        async def fingerprints_since(self, owner: str, cursor: int = 0) -> tuple[bytes, int]:
            raise StoreError("io", "The disk is gone.")

    local, cloud = two_models()
    async with opened(local, cloud, store=Broken()) as runtime:
        result = await runtime.submit_request([user(OTHER)])

    assert isinstance(result, Err)
    assert isinstance(result.reason, Crashed)
    assert cloud.requests == local.requests == []


async def test_a_handler_is_told_what_is_known() -> None:
    seen: list[TurnOptions] = []

    class Handler(mead.EchoHandler):
        async def handle_turn(
            self, turns: Sequence[Turn], state: object, options: TurnOptions
        ) -> mead.Result[mead.Answer, mead.TurnReason]:
            seen.append(options)
            return await super().handle_turn(turns, state, options)

    async with opened(handler=Handler()) as runtime:
        await runtime.submit_request([user(SECRET)], route="local")
        await runtime.submit_request([user(SECRET), model(OTHER), user(SECRET)])

    assert seen[0].known_private == ()
    assert seen[1].known_private == (Finding("local_text", 0, 0, "•••"),) * 2


async def test_long_texts_are_read_beside_other_work() -> None:
    long = " ".join([f"{SECRET} {number}" for number in range(1000)])
    async with opened() as runtime:
        await runtime.submit_request([user(long)], route="local")

        assert await routed(runtime, user(f"… {long[50_000:51_000]} …")) == "local"


@pytest.mark.parametrize(
    "text",
    [
        "<talk>\nUSER: a\nASSISTANT: b\n</talk>",
        "Name it.\n  <chat_history>\n**User:** a\n\n**Assistant:** b\n</chat_history>\nIn JSON.",
        'Tags?\n<log>\n{"role": "user", "content": "a"}\n{"role": "assistant", "content": "b"}\n</log>',
        "<rules>\nBe brief.\n</rules>\n<talk>\nHuman: a\nAI: b\n</talk>",
    ],
)
def test_a_transcript_in_a_prompt_is_seen(text: str) -> None:
    inner = frame_of(text)

    assert inner is not None
    assert inner.startswith(("USER", "**User", '{"role', "Human"))
    assert inner.endswith(("b", "}"))


@pytest.mark.parametrize(
    "text",
    [
        "USER: a\nASSISTANT: b",
        "<talk>\nUSER: a\nASSISTANT: b",
        "<letter>\nDear bank,\nuser of mine: a\n</letter>",
        "<talk>\nUSER: only one speaks\n</talk>",
        "a <talk> b\nUSER: a\nAI: b\n</talk>",
    ],
)
def test_other_texts_are_no_prompts_around_a_transcript(text: str) -> None:
    assert frame_of(text) is None


async def test_a_store_that_forgets_what_it_was_given_is_not_asked_for_ever() -> None:
    class Forgetful(MemoryStore):
        async def mark_turns(self, marks: Sequence[TurnMarks]) -> None:
            return None

    async with opened(store=Forgetful()) as runtime:
        await runtime.start_session(history=[user(SECRET), model(ADVICE)])
        result = await runtime.submit_request([user("a")])

    assert isinstance(result, Err)
    assert isinstance(result.reason, Crashed)
