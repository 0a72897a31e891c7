"""Text of local turns is known in turns of sessions too, and whatever becomes of store and session (R16)."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import mead
from mead.core.messages import DocumentBlock, TextBlock, Tool, ToolResultBlock, ToolUseBlock
from mead.core.options import Options, ResponseFormat
from mead.core.reasons import Crashed, PrivateContent
from mead.core.result import Err, Ok
from mead.core.turns import Finding, Verdict
from mead.router.classifier import ClassifierInput
from mead.sessions import private_texts
from mead.sessions.fingerprints import Fingerprinter
from mead.sessions.keywords import TurnKeywords
from mead.settings.values import SessionSettings
from mead.storage import Store, StoreError, open_store
from mead.storage.memory import MemoryStore
from mead.storage.protocol import TurnEnd
from mead.testing import ScriptedProvider, calls
from support import slots

SECRET = "The letter to the notary lies under the third board of the stairs and nobody but us knows of it."
OTHER = "Which birds stand on one leg in shallow water while they wait for fish, and why do they do so?"
SHORT = "Grandma hides the spare key under the flowerpot"


class OnlyKnown:
    """Takes for private what is known to be so, and nothing else; all that is not goes to the cloud."""

    def classify(self, turn: ClassifierInput) -> Verdict:
        private = bool(turn.known_private)
        route: mead.core.options.Route = "local" if private else "cloud"
        return Verdict(route=route, private=private, score=0.0, causes=(), findings=turn.known_private)

    def scan(self, text: str) -> Sequence[Finding]:
        return ()


class Full(MemoryStore):
    """A store that cannot write the ends of turns for as long as it `is_full`."""

    is_full = False

    async def end_turn(self, end: TurnEnd, *, epoch: int) -> None:
        if self.is_full:
            raise StoreError("io", "The disk is full.")
        await super().end_turn(end, epoch=epoch)


def opened(
    store: Store | None = None, folder: Path | None = None, **settings: object
) -> AbstractAsyncContextManager[mead.Runtime]:
    if folder is not None:
        settings["data_folder"] = folder
    return mead.Runtime(
        mead.Settings(**settings),  # type: ignore[arg-type]  # settings by name
        slots=slots(ScriptedProvider(otherwise="noted"), ScriptedProvider(otherwise="hello")),
        classifier=OnlyKnown(),
        store=store,
    )


def user(text: str) -> mead.Message:
    return mead.Message("user", text)


async def refused(runtime: mead.Runtime, text: str) -> bool:
    """Whether a request with the text is known to be private."""
    result = await runtime.submit_request([user(text)], route="cloud")
    assert isinstance(result, Ok) or isinstance(result.reason, PrivateContent)
    return isinstance(result, Err)


# Turns of sessions

WAYS: dict[str, TurnKeywords] = {
    "a system prompt": {"options": Options(system=f"Know this. {SECRET}")},
    "a text to stop at": {"options": Options(stop=(SECRET,))},
    "a format": {
        "options": Options(response_format=ResponseFormat(schema={"type": "object", "description": SECRET}))
    },
    "a tool": {"client_tools": [Tool("look", SECRET, {"type": "object"})]},
    "the text of a client": {"from_client": True},
    "a file of a client": {
        "attachments": [DocumentBlock("text/plain", SECRET.encode())],
        "from_client": True,
    },
}


@pytest.mark.parametrize("way", WAYS)
async def test_r16_local_text_that_a_turn_of_a_session_brings_keeps_it_local(way: str) -> None:
    text = SECRET if way == "the text of a client" else "hello"
    turn = WAYS[way]
    async with opened() as runtime:
        session_id = await runtime.start_session()
        (await runtime.submit_turn(session_id, SECRET, route="local")).unwrap()
        other_id = await runtime.start_session()
        by_itself = await runtime.explain(text, session_id=other_id, **turn)
        forced = await runtime.submit_turn(other_id, text, route="cloud", **turn)
        allowed = await runtime.submit_turn(other_id, text, route="cloud", allow_private=True, **turn)
        explained = by_itself.unwrap()

    assert isinstance(explained, mead.Decision)
    assert explained.route == "local"
    assert isinstance(forced, Err)
    assert isinstance(forced.reason, PrivateContent)
    assert forced.reason.kinds == (private_texts.KIND,)
    assert allowed.unwrap().route == "cloud"


async def test_r16_an_auto_turn_of_a_client_goes_where_explain_says() -> None:
    async with opened() as runtime:
        session_id = await runtime.start_session()
        (await runtime.submit_turn(session_id, SECRET, route="local")).unwrap()
        known = await runtime.submit_turn(session_id, f"Translate: {SECRET}", from_client=True)
        unknown = await runtime.submit_turn(session_id, OTHER, from_client=True)

    assert (known.unwrap().route, known.unwrap().label) == ("local", "local_only")
    assert unknown.unwrap().route == "cloud"


async def test_r16_a_system_prompt_of_the_session_is_looked_at_and_that_of_the_settings_is_not() -> None:
    sessions = SessionSettings(system=SECRET)
    async with opened(sessions=sessions) as runtime:
        await runtime.submit_request([user(SECRET)], route="local")
        await runtime.submit_request([user(OTHER)], route="local")
        plain = await runtime.start_session()
        with_prompt = await runtime.start_session(system=OTHER)

        assert (await runtime.submit_turn(plain, "hello")).unwrap().route == "cloud"
        assert (await runtime.submit_turn(with_prompt, "hello")).unwrap().route == "local"


async def test_a_person_may_type_the_same_words_again() -> None:
    async with opened() as runtime:
        session_id = await runtime.start_session()
        (await runtime.submit_turn(session_id, SECRET, route="local")).unwrap()

        assert (await runtime.submit_turn(session_id, SECRET, route="cloud")).unwrap().route == "cloud"


# A store that fails


@pytest.mark.parametrize("streams", [False, True])
async def test_r16_a_local_turn_whose_end_is_not_stored_is_known_at_once_and_stored_later(
    streams: bool,
) -> None:
    store = Full()
    async with opened(store) as runtime:
        session_id = await runtime.start_session()
        store.is_full = True
        if streams:
            events = [event async for event in runtime.stream_turn(session_id, SECRET, route="local")]
            last = events[-1]
            assert isinstance(last, mead.Finished)
            result = last.result
        else:
            result = await runtime.submit_turn(session_id, SECRET, route="local")
        store.is_full = False
        assert isinstance(result, Err)
        assert isinstance(result.reason, Crashed)
        assert await refused(runtime, SECRET)
        assert await store.fingerprints_since("local") == (b"", 0)
        other_id = await runtime.start_session()
        await runtime.stop_session(other_id)
        assert await refused(runtime, SECRET)

        (await runtime.submit_turn(session_id, "go on", route="local")).unwrap()
        data, _ = await store.fingerprints_since("local")
        assert data != b""


async def test_r16_a_request_whose_end_is_not_stored_is_known_and_stored_by_the_next(tmp_path: Path) -> None:
    store = Full()
    async with opened(store) as runtime:
        store.is_full = True
        for key in (None, "key"):
            await runtime.submit_request([user(SECRET)], route="local", idempotency_key=key)
        store.is_full = False
        assert await refused(runtime, SECRET)
        await runtime.submit_request([user("hello")], route="local")
        data, _ = await store.fingerprints_since("local")
        assert data != b""
        repeated = await runtime.submit_request([user(SECRET)], route="local", idempotency_key="key")

    assert repeated.unwrap().text == "noted"


# What cloud models were shown


@pytest.mark.parametrize("kept", [False, True])
async def test_r16_what_the_cloud_model_was_shown_outlives_other_sessions(kept: bool) -> None:
    async with opened(MemoryStore() if kept else None) as runtime:
        await runtime.submit_request([user(OTHER)], route="cloud")
        session_id = await runtime.start_session()
        secret_id = await runtime.start_session()
        await runtime.submit_turn(secret_id, SECRET, route="local")
        await runtime.stop_session(session_id)
        await runtime.submit_request([user(OTHER)], route="local")

        assert not await refused(runtime, OTHER)
        assert await refused(runtime, SECRET)
        await runtime.stop_session(secret_id)
        assert not await refused(runtime, SECRET)


# Calls of tools


@pytest.mark.parametrize(
    "call",
    [
        ToolUseBlock("c1", "note", {SECRET: True}),
        ToolUseBlock("c1", "note", {"all": [{"in": {SHORT: 1}}]}),
        ToolUseBlock("c1", SECRET, {}),
        ToolUseBlock("toolu-AKIA4HJ3X9QW7ERT2YUI8OPL", "note", {}),
        ToolUseBlock("c1", "note", {"AKIA4HJ3X9QW7ERT2YUI8OPL": 1}),
    ],
)
async def test_r16_names_and_ids_in_calls_are_known_again(call: ToolUseBlock) -> None:
    brought = [
        user("hello"),
        mead.Message("assistant", (call,)),
        mead.Message("user", (ToolResultBlock(call.id, "ok"),)),
    ]
    words = next(words for words in (SECRET, SHORT, "AKIA4HJ3X9QW7ERT2YUI8OPL") if words in str(call))
    async with opened() as runtime:
        (await runtime.submit_request(brought, route="local")).unwrap()
        later = [user("good day"), mead.Message("assistant", (call,)), brought[2], user("thanks")]

        assert await refused(runtime, f'They wrote "{words}" to me.')
        decision = (await runtime.explain_request(later)).unwrap()
        assert isinstance(decision, mead.Decision)
        assert decision.route == "local"


async def test_the_identifiers_of_tools_are_no_secret() -> None:
    name, field = "mcp__weather_service__get_current_forecast_of_city", "maximumNumberOfResultsPerPage"
    tool = Tool(name, "Tells the weather.", {"type": "object", "properties": {field: {"type": "integer"}}})
    called = [
        user("hello"),
        mead.Message("assistant", (ToolUseBlock("c1", name, {field: 1}),)),
        mead.Message("user", (ToolResultBlock("c1", "ok"),)),
    ]
    async with opened() as runtime:
        (await runtime.submit_request(called, route="local")).unwrap()
        decision = (await runtime.explain_request([user("good day")], client_tools=[tool])).unwrap()

    assert isinstance(decision, mead.Decision)
    assert decision.route == "cloud"


# Many messages


async def test_a_long_conversation_that_comes_again_is_not_read_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    to_find = Fingerprinter.to_find

    def counted(self: Fingerprinter, text: str) -> set[int]:
        made.append(text)
        return to_find(self, text)

    monkeypatch.setattr(Fingerprinter, "to_find", counted)
    talk = [mead.Message("assistant" if n % 2 else "user", f"Number {n}. {OTHER}") for n in range(1201)]
    async with opened() as runtime:
        await runtime.explain_request(talk)
        first = len(made)
        await runtime.explain_request([*talk, mead.Message("assistant", "so"), user("and the next?")])

    assert first == 1201
    assert len(made) == first + 2


def test_a_cache_holds_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_texts, "_CACHED", 100)
    cache = private_texts._Cache()
    for number in range(10):
        cache.put(bytes([number]), frozenset(range(22)))
    cache.put(b"large", frozenset(range(200)))

    assert [number for number in range(10) if cache.take(bytes([number])) is not None] == [7, 8, 9]
    assert cache.take(b"large") is None


# Results under a key


async def test_r16_nothing_brought_is_stored_with_a_result_that_had_to_be_cut(tmp_path: Path) -> None:
    class Small(ScriptedProvider):
        async def context_tokens(self, options: Options, prompt: int) -> int:
            return 2_000

    @mead.tool(effect=False)
    def look() -> str:
        "Looks."
        return "seen"

    result = "CANARYRESULT " + "word " * 1_000
    local = Small(calls("look"), otherwise="done")
    brought = [
        user("CANARYQUESTION what is this"),
        mead.Message("assistant", (ToolUseBlock("c1", "read", {}),)),
        mead.Message("user", (ToolResultBlock("c1", result), TextBlock("CANARYTAIL"))),
    ]
    url = f"sqlite:///{tmp_path}/kept/mead.db"
    async with mead.Runtime(slots=slots(local), tools=[look], store=open_store(url)) as runtime:
        first = await runtime.submit_request(brought, idempotency_key="k")
        second = await runtime.submit_request(brought, idempotency_key="k")
    files = [path for path in (tmp_path / "kept").rglob("*") if path.is_file()]
    stored = b"".join([path.read_bytes() for path in files])
    decoded = b"".join([base64.b64decode(found) for found in re.findall(rb'"data":"([\w+/=]+)"', stored)])

    assert first.unwrap().text == second.unwrap().text == "done"
    assert len(local.requests) == 2
    replayed = second.unwrap().messages.decode()
    assert replayed[:3] == brought
    assert replayed[3:] == first.unwrap().messages.decode()[3:]
    assert b"done" in decoded
    assert b"CANARY" not in stored + decoded


# Sessions under a key


async def test_a_session_under_a_key_is_started_once_also_after_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/kept/mead.db"
    async with opened(open_store(url), tmp_path / "data") as runtime:
        first = await runtime.start_session(idempotency_key="k", title="one")
        (await runtime.submit_turn(first, "hello")).unwrap()
        second = await runtime.start_session(idempotency_key="k", title="two")
        of_another = await runtime.for_owner("another").start_session(idempotency_key="k")
    async with opened(open_store(url), tmp_path / "data") as runtime:
        third = await runtime.start_session(idempotency_key="k")
        turns = (await runtime.history(third)).unwrap()
        await runtime.stop_session(third)
        anew = await runtime.start_session(idempotency_key="k")
        empty = (await runtime.history(anew)).unwrap()

    assert first == second == third == anew
    assert of_another != first
    assert (len(turns), len(empty)) == (1, 0)
