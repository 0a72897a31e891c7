"""Whatever a client with its own conversations does: no cloud model sees what a local turn saw first (R16).

Every message is made of words that occur nowhere else, so a leak anywhere shows.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mead
from mead.core.reasons import HttpStatus
from mead.core.result import Ok
from mead.core.turns import Verdict
from mead.router.classifier import ClassifierInput
from mead.sessions.fingerprints import GUARANTEED_WORDS
from mead.sessions.private_texts import Brought, PrivateTexts
from mead.storage import open_store
from mead.testing import ProviderRequest, ScriptedProvider
from support import slots


class ByChance:
    """Finds nothing private by itself, and sends what is not known to be anywhere."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def classify(self, turn: ClassifierInput) -> Verdict:
        private = bool(turn.known_private)
        route: mead.core.options.Route = "local" if private else self._chance.choice(["local", "cloud"])
        return Verdict(route=route, private=private, score=0.0, causes=(), findings=turn.known_private)

    def scan(self, text: str) -> tuple[()]:
        return ()


class Client:
    """Keeps some conversations, goes on with one or the other, and has titles made of them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.private: set[str] = set()
        self.public: set[str] = set()
        self.cloud_saw: list[str] = []
        self.refused = 0
        self.local = ScriptedProvider(otherwise=self._answer, name="local")
        self.cloud = ScriptedProvider(otherwise=self._answer_in_the_cloud, name="cloud")
        self._talks: list[list[mead.Message]] = [[], [], []]

    def sentence(self) -> str:
        """Words that occur nowhere else."""
        count = self.chance.randint(GUARANTEED_WORDS, 40)
        return " ".join(["".join(self.chance.choices("abcdefghijklmnop", k=9)) for _ in range(count)]) + "."

    def _answer(self, request: ProviderRequest) -> str | HttpStatus:
        if self.chance.random() < 0.1:
            return HttpStatus(status=500)
        quoted = str(request.messages[-1].content) if self.chance.random() < 0.3 else ""
        return f"{self.sentence()} {quoted}".strip()

    def _answer_in_the_cloud(self, request: ProviderRequest) -> str | HttpStatus:
        self.cloud_saw.append(request.text)
        return self._answer(request)

    def leaked(self) -> list[str]:
        """The private texts that the cloud model saw."""
        seen = "\n".join(self.cloud_saw).lower()
        return [text for text in self.private if text.lower() in seen]

    async def step(self, runtime: mead.Runtime) -> None:
        talk = self.chance.choice(self._talks)
        asks_for_title = len(talk) > 1 and self.chance.random() < 0.3
        question = self._about(talk) if asks_for_title else self.sentence()
        brought = [] if asks_for_title else talk
        route = self.chance.choice(["auto", "auto", "local", "cloud"])
        messages = [*brought, mead.Message("user", question)]
        if self.chance.random() < 0.5:
            result = await runtime.submit_request(messages, route=route)
        else:
            async for event in runtime.stream_request(messages, route=route):
                if isinstance(event, mead.Finished):
                    result = event.result
        self.refused += not isinstance(result, Ok)
        if not asks_for_title:
            self._note(question, "local_only" if route == "local" else "shareable")
        if isinstance(result, Ok):
            self._note(result.value.text.partition(".")[0], result.value.label)
            if not asks_for_title:
                self._note(question, result.value.label)
                talk += [messages[-1], mead.Message("assistant", result.value.text)]

    def _note(self, text: str, label: str) -> None:
        """What a local turn has seen first is private; what went to the cloud before is not."""
        if label == "local_only" and text not in self.public:
            self.private.add(text)
        elif text not in self.private:
            self.public.add(text)

    def _about(self, talk: list[mead.Message]) -> str:
        said = talk[-self.chance.randint(1, len(talk)) :]
        lines = "\n".join([f"{message.role.upper()}: {message.content}" for message in said])
        rows = [{"role": message.role, "content": message.content} for message in said]
        return self.chance.choice(
            [
                f"Give this a title.\n<talk>\n{lines}\n</talk>\nThree words.",
                f"What is asked next? {json.dumps(rows)}",
                f"Sum it up:\n\n> {lines}".replace("\n", "\n> ").upper(),
            ]
        )


async def talk(seed: int, store: str | None, folder: Path) -> Client:
    chance = random.Random(seed)
    client = Client(chance)
    for _ in range(2):  # a restart in the middle, where anything is kept
        async with mead.Runtime(
            mead.Settings(data_folder=folder),
            slots=slots(client.local, client.cloud),
            store=None if store is None else open_store(store),
            classifier=ByChance(chance),
        ) as runtime:
            for _ in range(8 if store else 16):
                await client.step(runtime)
        if store is None:
            break
    return client


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(min_value=0, max_value=2**32), st.booleans())
def test_r16_no_cloud_model_sees_what_a_local_turn_saw_first(seed: int, kept: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/mead.db" if kept else None
        client = asyncio.run(talk(seed, store, Path(folder)))

    assert client.leaked() == []


def twenty() -> list[Client]:
    clients = []
    for seed in range(20):
        with tempfile.TemporaryDirectory() as folder:
            clients.append(asyncio.run(talk(seed, None, Path(folder))))
    return clients


def test_the_clients_of_this_test_do_what_it_is_about() -> None:
    clients = twenty()

    assert sum([len(client.private) for client in clients]) > 100
    assert sum([len(client.cloud_saw) for client in clients]) > 50
    assert sum([client.refused for client in clients]) > 20


def test_without_fingerprints_their_private_text_would_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    async def see_nothing(*_: object, **besides: object) -> Brought:
        return Brought(findings=(), looked_for=frozenset())

    monkeypatch.setattr(PrivateTexts, "look", see_nothing)

    assert sum([len(client.leaked()) for client in twenty()]) > 50
