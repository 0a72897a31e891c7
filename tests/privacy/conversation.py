"""Runs a random conversation through a real runtime, and says what of it came out.

The conversation's own knowledge decides what is private: the words that a turn was planted with, where it was
sent by force, which model was seen to get it. mead's labels are believed only where they are stricter.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

import mead
from mead.core.messages import ImageBlock, Message
from mead.core.options import Options, Route
from mead.core.reasons import Cancelled, ShuttingDown
from mead.core.result import Err, Ok
from mead.core.turns import Turn as KeptTurn
from mead.router import Slot, Slots
from mead.settings import parse
from mead.storage import Store, StoreError, open_store
from mead.testing.canaries import Canary
from mead.testing.privacy import Watch
from mead.testing.recording import Recorder, RecordingServer
from privacy import between
from privacy.knowledge import Entry, Knowledge, Outcome, Window
from privacy.models import CARD, WIRES, Book, DirectClient, Doings, FakeHub, Model, Tools
from privacy.plan import (
    PRIVATE_KINDS,
    Bring,
    Carry,
    Compact,
    Explain,
    Fork,
    Plan,
    Restart,
    Rewind,
    Turn,
)
from privacy.questions import question

SETTINGS = '[classifier]\nprivate_words = ["Nightjar"]\n'
ESCALATES = '[router.escalation]\nto = "cloud"\nwhen = ["schema", "refusal", "cut_off", "disagreement"]\n'
IDLE_S = 5.0
"""How long a session may take to come to rest after a turn was stopped."""
IN_FLIGHT_S = 0.02
"""How long a request may still be on its way to its server after its turn was stopped."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that was submitted. `first` are the places in the recorders where what it sends begins."""

    turn: Turn
    text: str
    canaries: list[Canary]
    keywords: dict[str, Any]
    first: tuple[int, int]
    doings: Doings
    running: asyncio.Task[Any]


class Conversation:
    """One conversation on its way."""

    def __init__(self, plan: Plan, folder: Path, watch: Watch, elsewhere: Recorder) -> None:
        self.plan = plan
        self.knowledge = Knowledge(plan.seed)
        self.outcome = Outcome(conversations=1)
        self._watch = watch
        self._elsewhere, self._elsewhere_before = elsewhere, len(elsewhere.pieces)
        self._looked_at = Recorder("a reason, a decision or a record")
        plant = self.knowledge.plant
        self.book = Book()
        self.local = Model("local", WIRES[plan.local_wire], plant, self.book)
        self.cloud = Model("cloud", WIRES[plan.cloud_wire], plant, self.book)
        self._tools = Tools(plant, self.book)
        self._url = f"sqlite:///{folder / f'{plan.seed}.db'}"
        self.folder = folder
        self._system = self._make_system()
        self.local_prompt = plant("prompt of the local slot")
        self._keys = 0
        self._urls: dict[Route, str] = {}
        self.session_id = ""
        self.entries: list[Entry] = []

    # The whole of it

    async def run(self) -> None:
        """Every step, one after the other."""
        async with self._servers():
            self.runtime = self._open()
            try:
                await self.runtime.__aenter__()
                await self.start([])
                for step in self.plan.steps:
                    await self._step(step)
                    self.outcome.steps[type(step).__name__.lower()] += 1
                await self._look_at_the_books()
            finally:
                await self.runtime.aclose()

    def judge(self) -> Outcome:
        """What was seen, and what was wrong with it."""
        outcome, planted = self.outcome, self.knowledge.planted
        leaks = self.knowledge.leaks_to(self.cloud.recorder)
        leaks += self._elsewhere.find(planted, first=self._elsewhere_before)
        for recorder in (*self._watch.recorders, self._looked_at):
            leaks += recorder.find(planted)
        outcome.leaks += [f"{self.name}: {leak}" for leak in leaks]
        outcome.cloud_requests = len(self.cloud.recorder.pieces)
        outcome.local_requests = len(self.local.recorder.pieces)
        private = self.knowledge.private
        outcome.canaries, outcome.private = len(planted), len(private)
        outcome.private_shown = sum([self.local.recorder.holds(canary.text) for canary in private])
        return outcome

    @property
    def name(self) -> str:
        return f"conversation {self.plan.seed}"

    def _make_system(self) -> tuple[str | None, Canary | None]:
        if self.plan.system == "none":
            return None, None
        canary = self.knowledge.plant("system prompt")
        if self.plan.system == "plain":
            self.knowledge.free([canary])
            return f"You serve {canary}.", canary
        return f"You serve {canary}, whose card is {CARD}.", canary

    @contextlib.asynccontextmanager
    async def _servers(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if self.plan.over == "http":
                for model in (self.local, self.cloud):
                    server = RecordingServer(
                        model.recorder, model.respond, routes={"/api/show": model.respond}
                    )
                    await stack.enter_async_context(server)
                    self._urls[model.route] = server.url
            yield

    def _open(self) -> mead.Runtime:
        store: Store | None = None
        if self.plan.store != "none":
            store = open_store("memory://" if self.plan.store == "memory" else self._url)
        # The local slot has a system prompt of its own, for where the session has none.
        own = self.local_prompt
        slots = Slots(
            local=Slot(self._provider(self.local), Options(model="m", system=f"You are {own}.")),
            cloud=Slot(self._provider(self.cloud), Options(model="m")),
        )
        fake = self.plan.hub == "fake"
        return mead.Runtime(
            parse(
                SETTINGS + (ESCALATES if self.plan.escalates else ""),
                environ={"HOME": str(self.folder), "MEAD_DATA_FOLDER": str(self.folder)},
            ),
            slots=slots,
            store=store,
            hub=FakeHub(self._tools) if fake else None,
            tools=() if fake else self._tools.functions(),
        )

    def _provider(self, model: Model) -> Any:
        if self.plan.over == "process":
            return model.wire.adapter(DirectClient(model))
        return model.wire.make(self._urls[model.route], slot=model.route)

    async def start(self, history: Sequence[KeptTurn] | Sequence[Message]) -> None:
        system, _ = self._system
        self.session_id = await self.runtime.start_session(
            history=history,
            system=system,
            title=f"About {self.knowledge.plant('title')}",
            tags=[self.knowledge.plant("tag").text],
        )

    async def _step(self, step: object) -> None:
        match step:
            case Turn():
                await self._turn(step)
            case Compact():
                await between.compact(self, step)
            case Fork() | Rewind():
                await between.go_back(self, step)
            case Carry():
                await between.carry(self, step)
            case Bring():
                await between.bring(self, step)
            case Explain():
                await between.explain(self, step)
            case Restart():
                await self._restart()

    # Turns

    async def _turn(self, turn: Turn) -> None:
        asked, before = self._ask(turn), len(self.entries)
        newer: Asked | None = None
        if turn.end == "stopped":
            newer = await self._stop(asked)
        result = await self._ended(asked)
        await self._settle(asked, result, newer)
        if newer is not None:
            await self._settle(newer, await self._ended(newer), None)
        elif "idempotency_key" in asked.keywords and len(self.entries) > before:
            await self._repeat(asked, result)

    def _ask(self, turn: Turn, **more: object) -> Asked:
        """Submits the turn."""
        text, canaries, attachments = question(turn.kind, self.knowledge.plant)
        keywords = {**self._keywords(turn, attachments), **more}
        for model in (self.local, self.cloud):
            model.begin(turn)
        return Asked(
            turn=turn,
            text=text,
            canaries=canaries,
            keywords=keywords,
            first=self.places(),
            doings=self.book.begin(canaries[0].text),
            running=asyncio.create_task(self._submit(text, turn.streams, keywords)),
        )

    def _keywords(self, turn: Turn, attachments: Sequence[ImageBlock]) -> dict[str, Any]:
        keywords: dict[str, Any] = {
            "route": turn.route,
            "tools": turn.tools,
            "allow_private": turn.allow_private,
        }
        if attachments:
            keywords["attachments"] = attachments
        if turn.repeats and self.plan.store != "none":
            self._keys += 1
            keywords["idempotency_key"] = f"key-{self._keys}"
        return keywords

    async def _submit(self, text: str, streams: bool, keywords: dict[str, Any]) -> Any:
        if not streams:
            return await self.runtime.submit_turn(self.session_id, text, **keywords)
        stream = self.runtime.stream_turn(self.session_id, text, **keywords)
        async with contextlib.aclosing(stream):
            async for event in stream:
                if isinstance(event, mead.Finished):
                    return event.result
        raise AssertionError("a stream ends with Finished")

    async def _stop(self, asked: Asked) -> Asked | None:
        """Stops the turn in the middle; gives the one that has taken its place, if that is the way."""
        turn, running = asked.turn, asked.running
        if turn.hangs:
            waits = [asyncio.create_task(model.asked.wait()) for model in (self.local, self.cloud)]
            await asyncio.wait([running, *waits], return_when=asyncio.FIRST_COMPLETED)
            for waiting in waits:
                waiting.cancel()
        for _ in range(turn.after_rounds):
            await asyncio.sleep(0)
        match turn.stop:
            case "caller":
                running.cancel()
            case "deadline":
                session = self.runtime._shared.sessions.get(self.session_id)
                if session is not None and session._running is not None:
                    session._running.end("timeout")
            case "close" if self.plan.store == "sqlite":
                await self._restart()
            case "interrupt":
                newer = msgspec.structs.replace(turn, end="ok", kind="easy", repeats=False)
                return self._ask(newer, busy="interrupt")
            case _:
                await self.runtime.cancel_turn(self.session_id)
        return None

    async def _ended(self, asked: Asked) -> Any:
        """The turn's result, once its session has come to rest."""
        session = self.runtime._shared.sessions.get(self.session_id)
        try:
            result = await asked.running
        except asyncio.CancelledError:
            result = Err(Cancelled())
        except StoreError:  # the runtime was closed while it looked for the session
            result = Err(ShuttingDown())
        async with asyncio.timeout(IDLE_S):
            while session is not None and (run := session._running) is not None:
                await asyncio.wait([run.result])
        if self.plan.over == "http" and asked.turn.end == "stopped":
            await asyncio.sleep(IN_FLIGHT_S)
        return result

    def tell(self, route: str, result: Any) -> None:
        """What a program is told of a turn, the answer aside, holds none of its words."""
        if isinstance(result, Err):
            self.outcome.turns[f"{route}: {result.reason.tag}"] += 1
            self.look_at("the reason", result.reason)
            if result.reason.tag in ("crashed", "invalid_options"):
                self.outcome.odd.append(f"{self.name}: a turn failed with {result.reason}")
        else:
            self.outcome.turns[f"{route}: ok"] += 1
            self.look_at("the decision", result.value.decision)
            self.look_at("the warnings", result.value.warnings)

    def look_at(self, what: str, value: object) -> None:
        self._looked_at.add(what, f"{value!r}\n{value!s}")

    def places(self) -> tuple[int, int]:
        return len(self.local.recorder.pieces), len(self.cloud.recorder.pieces)

    # What follows from a turn

    async def _settle(self, asked: Asked, result: Any, newer: Asked | None) -> None:
        """Finds out where the turn went, and what of it is private from now on."""
        turn, own = asked.turn, asked.canaries[0]
        self.tell(turn.route, result)
        was_local = self._has_got(self.local.recorder, asked.first[0], own, newer)
        was_cloud = self._has_got(self.cloud.recorder, asked.first[1], own, newer)
        escalated = was_local and was_cloud and turn.route == "auto" and self.plan.escalates
        if was_local and was_cloud and not escalated:
            self.outcome.leaks.append(f"{self.name}: the {own.name} was sent to both models")
        self.outcome.escalated += escalated
        kept = await self._kept(own)
        is_private = self._is_private(asked, kept, was_local=was_local, escalated=escalated)
        made = [*asked.canaries, *asked.doings.made["cloud"], *asked.doings.open]
        if not (escalated and kept is not None and kept.route == "cloud"):
            made += asked.doings.made["local"]  # else the local answer is thrown away
        if not is_private and (was_cloud or (kept is not None and kept.label == "shareable")):
            self.knowledge.free(made)
            if was_local:  # its answer may quote what the slot's settings tell it, and that is no secret
                self.knowledge.free([self.local_prompt])
        elif was_cloud and turn.route == "cloud" and turn.allow_private:
            system = self._system[1]
            window = Window(asked.first[1], len(self.cloud.recorder.pieces))
            self.knowledge.allow([*made, *([system] if system else [])], window)
        if kept is not None:
            self._note(own, kept, is_private=is_private)
            if was_cloud:
                self._check_controls(own, asked.first[1])

    @staticmethod
    def _has_got(recorder: Recorder, first: int, own: Canary, newer: Asked | None) -> bool:
        """Whether a model was asked this turn's question; a newer turn may have it in its history."""
        others = newer.canaries[0].text.encode() if newer is not None else None
        return any(
            own.text.encode() in piece.data and not (others and others in piece.data)
            for piece in recorder.pieces[first:]
        )

    def _is_private(self, asked: Asked, kept: KeptTurn | None, *, was_local: bool, escalated: bool) -> bool:
        """Whether the turn is private for certain."""
        turn = asked.turn
        if turn.route == "local" or turn.kind in PRIVATE_KINDS or self.plan.system == "private":
            return True
        if not was_local:
            return False
        if kept is None and not escalated:
            return True  # it failed, and nobody else may hear of it
        saw_private = any(entry.is_private for entry in self.entries)
        return saw_private or asked.doings.results_for_local > 0 or turn.tells_card

    def _note(self, own: Canary, kept: KeptTurn, *, is_private: bool) -> None:
        if is_private and kept.label == "shareable":
            self.outcome.wrong_labels.append(f"{self.name}: the turn of the {own.name} is shareable")
        self.entries.append(
            Entry(
                number=kept.number,
                is_private=is_private or kept.label == "local_only",
                label=kept.label,
                control=own if kept.label == "shareable" else None,
            )
        )

    async def _kept(self, own: Canary) -> KeptTurn | None:
        """The turn in the history that the canary was said in."""
        history = (await self.runtime.history(self.session_id)).unwrap()
        known = {entry.number for entry in self.entries}
        for kept in history:
            if kept.number not in known and own.text.encode() in kept.messages.data:
                return kept
        return None

    def _check_controls(self, own: Canary, first: int) -> None:
        """The cloud model was shown what it may be shown: a proof that hides everything proves nothing."""
        for entry in self.entries:
            if entry.control is None:
                continue
            if self.cloud.recorder.holds(entry.control.text, first=first):
                self.outcome.controls_reached += 1
            else:
                missing = f"{self.name}: the cloud was not shown the {entry.control.name} with the {own.name}"
                self.outcome.controls_missing.append(missing)

    async def _repeat(self, asked: Asked, result: Any) -> None:
        """The same request again: it gives the same answer, and nobody is asked."""
        places = self.places()
        again = await self.runtime.submit_turn(self.session_id, asked.text, **asked.keywords)
        if self.places() != places:
            self.outcome.odd.append(f"{self.name}: a repeated turn was sent again")
        if isinstance(result, Ok) and isinstance(again, Ok) and again.value.text != result.value.text:
            self.outcome.odd.append(f"{self.name}: a repeated turn was answered otherwise")

    # The rest

    async def _restart(self) -> None:
        await self.runtime.aclose()
        self.runtime = self._open()
        await self.runtime.__aenter__()

    async def _look_at_the_books(self) -> None:
        """The labels of the whole history, and what was written down beside it."""
        history = (await self.runtime.history(self.session_id)).unwrap()
        labels = {turn.number: turn.label for turn in history}
        for entry in self.entries:
            if labels.get(entry.number) != entry.label:
                self.outcome.odd.append(f"{self.name}: turn {entry.number} is {labels.get(entry.number)}")
        self.look_at("a record of what was sent", await self.runtime.egress())
        if (store := self.runtime.store) is not None:
            self.look_at("the audit log", await store.audit_rows())
            self.look_at("a stored record of what was sent", await store.egress("local"))
