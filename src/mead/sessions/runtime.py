"""The runtime: owns the sessions, and is what programs talk to.

async with Runtime.open("mead.toml") as runtime:
    session_id = await runtime.start_session()
    result = await runtime.submit_turn(session_id, "hello")
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack, get_args

import msgspec

from mead.core.messages import Message
from mead.core.options import NO_OPTIONS, BusyPolicy, Options
from mead.core.reasons import (
    Crashed,
    NoSuchSession,
    ShuttingDown,
    TurnReason,
)
from mead.core.result import Err, Ok, Result
from mead.core.turns import Answer, Decision, Handler, Hub, Turn, TurnResult
from mead.ledger.accounts import Accounts
from mead.ledger.prices import load_price_list
from mead.mcp.hub import McpHub, ToolHub
from mead.providers.protocol import close_provider
from mead.providers.registry import check_addresses
from mead.router import Router
from mead.router.classifier import Classifier, texts_besides
from mead.router.classifier.make import make_classifier
from mead.router.decide import Refused
from mead.router.slots import Slots, build_slots
from mead.sessions._input import (
    as_turns,
    check_choice,
    check_timeout,
    read_request,
    read_turn,
    turn_options,
)
from mead.sessions._stream import Stream, read_events, wait_for
from mead.sessions.approvals import Approver
from mead.sessions.audit import note_settings
from mead.sessions.compact import compact
from mead.sessions.events import Finished, TurnEvent
from mead.sessions.handlers import EchoHandler
from mead.sessions.journal import note_of
from mead.sessions.keywords import SessionKeywords, TurnKeywords
from mead.sessions.private_texts import PrivateTexts
from mead.sessions.requests import KEPT_S, keyed_session_id
from mead.sessions.reservations import StoreReservations
from mead.sessions.run import SentRecord, TurnRun
from mead.sessions.session import Session, new_session_id
from mead.sessions.stored import Load, create_stored, load_stored
from mead.sessions.submissions import TURN_TIMEOUT_S, Submissions
from mead.settings import Settings, load
from mead.storage import Store, StoreError, open_store
from mead.storage._fingerprints import FingerprintLog
from mead.storage.memory import MemoryStore
from mead.storage.protocol import AuditEntry, StoredTurn

EGRESS_KEPT = 10_000
"""How many egress records a runtime remembers, the newest."""

__all__ = ["EGRESS_KEPT", "TURN_TIMEOUT_S", "Runtime", "SessionKeywords", "TurnKeywords"]

_log = logging.getLogger("mead.sessions")


class _Shared:
    """What a runtime has in common with its views for other owners."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.egress: deque[SentRecord] = deque(maxlen=EGRESS_KEPT)
        self.closing = False
        self.draining = False

    @property
    def takes_turns(self) -> bool:
        """Whether a new turn may begin."""
        return not (self.closing or self.draining)


class Runtime:
    """Sessions over one configuration, as one owner sees them.

    `slots`, `tools` (functions marked with `@mead.tool`), `hub`, `classifier` and `handler` replace what the
    settings would give. `approver` is asked about tool calls with side effects (`mead.Approval`); without one
    they need the turn's `tools="effect"` only. `store` keeps sessions, journal and ledger, else the one that
    the settings name; without one they end with the runtime. Nothing is contacted before the first turn that
    needs it. A runtime belongs to the event loop that it is used on; leave `async with`, or call `aclose`, to
    end its turns and connections.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        slots: Slots | None = None,
        tools: Sequence[Callable[..., object]] = (),
        hub: Hub | None = None,
        classifier: Classifier | None = None,
        handler: Handler | None = None,
        approver: Approver | None = None,
        store: Store | None = None,
    ) -> None:
        self.settings = settings = settings or Settings()
        self.owner = "local"
        self.slots = slots if slots is not None else build_slots(settings)
        if hub is not None and tools:
            raise ValueError("give tools or a hub, not both: a hub has tools of its own")
        self.hub = hub if hub is not None else _hub(settings, tools)
        if store is None and settings.storage.url is not None:
            store = open_store(settings.storage.url)
        forgets = store is None or isinstance(store, MemoryStore)
        classifier = classifier or make_classifier(settings, keeps=not forgets)
        self._accounts = Accounts(settings, reservations=None if store is None else StoreReservations(store))
        self.router = Router(
            self.slots,
            self.hub,
            classifier=classifier,
            accounts=self._accounts,
            escalation=settings.router.escalation,
        )
        self._store = store
        self.handler = handler or self._default_handler()
        self._shared = _Shared()
        # Without a store the fingerprints of private text end with the runtime.
        self._log = FingerprintLog() if store is None else None
        kept_in = store or self._log or FingerprintLog()
        self._private = PrivateTexts(kept_in, None if forgets else settings.data_folder)
        self._submissions = Submissions(
            settings,
            store=store,
            log=self._log,
            private=self._private,
            accounts=self._accounts,
            approver=approver,
            on_sent=self._shared.egress.append,
            has_cloud=self.slots.cloud is not None,
        )

    @classmethod
    def open(cls, config: str | Path | None = None) -> Self:
        """A runtime for a configuration file: the named one, or the first that is found (`docs/settings.md`).

        Raises `ConfigError` for a file that is missing or wrong.
        """
        return cls(load(Path(config) if config is not None else None))

    @property
    def store(self) -> Store | None:
        """Where sessions, journal and ledger are kept; `None` where they end with the runtime."""
        return self._store

    @property
    def accounts(self) -> Accounts:
        """The prices and budgets that its calls fall under."""
        return self._accounts

    def for_owner(self, owner: str) -> Self:
        """The same runtime as another owner sees it: their sessions, and no others (S10)."""
        view = copy.copy(self)
        view.owner = owner
        return view

    async def __aenter__(self) -> Self:
        if self._store is not None:
            await self._store.open()
            await note_settings(self._store, self.owner, self.settings.source)
            if (days := self.settings.storage.retention_days) is not None:
                await self._store.delete_older_than(time.time() - days * 86_400)
            await self._store.prune_requests(time.time() - KEPT_S)
        keeps_costs = self._store is not None or bool(self.settings.budgets)
        if self.slots.cloud is not None and keeps_costs:
            await asyncio.to_thread(load_price_list)
        for warning in await check_addresses(self.settings):
            _log.warning("%s", warning)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def drain(self, timeout_s: float) -> bool:
        """Takes no new turns from now on (`shutting_down`), and waits until none runs; those that still run
        after `timeout_s` seconds end with `shutting_down`. False if there were such turns.
        """
        shared, loop = self._shared, asyncio.get_running_loop()
        shared.draining, until = True, loop.time() + timeout_s
        while pending := self._pending():
            if (left_s := until - loop.time()) <= 0:
                await self._end_turns()
                return False
            await asyncio.wait(pending, timeout=left_s)
        return True

    def _pending(self) -> list[asyncio.Future[TurnResult]]:
        """The results of all owners' turns that run or wait."""
        sessions = [*self._shared.sessions.values(), *self._submissions.requests.running()]
        return [run.result for session in sessions for run in session.runs if not run.result.done()]

    async def _end_turns(self) -> None:
        """Ends every turn with `shutting_down`."""
        sessions = [*self._shared.sessions.values(), *self._submissions.requests.running()]
        runs = [run for session in sessions for run in session.end_all("shutting_down")]
        pending = [run.result for run in runs if not run.result.done()]
        if pending:  # a cancel of the closing must not reach those who wait for these turns: no gather
            await asyncio.wait(pending)

    async def aclose(self) -> None:
        """Ends every turn with `shutting_down`, then closes the providers. May be called twice."""
        shared = self._shared
        shared.closing = True
        await self._end_turns()
        shared.sessions.clear()
        closing = [close_provider(one) for one in (*self.slots.providers, self.router.classifier)]
        for error in await asyncio.gather(close_provider(self.hub), *closing, return_exceptions=True):
            if isinstance(error, Exception):
                _log.error("closing raised %s", type(error).__name__)
        if self._store is not None:
            await self._store.aclose()

    async def start_session(self, **session: Unpack[SessionKeywords]) -> str:
        """Starts a session and gives its id (S1); `SessionKeywords` lists what a session may say.

        Raises `ValueError` for an argument that is out of range, `RuntimeError` when the runtime is closed.
        """
        shared = self._shared
        if shared.closing:
            raise RuntimeError("the runtime is closed")
        timeout_s = session.get("turn_timeout_s")
        if timeout_s is None:
            timeout_s = self.settings.sessions.turn_timeout_s or TURN_TIMEOUT_S
        check_timeout(timeout_s)
        busy = session.get("busy") or self.settings.sessions.busy
        check_choice("busy", busy, get_args(BusyPolicy))
        options = session.get("options", NO_OPTIONS)
        if (system := session.get("system")) is not None:
            options = Options(system=system).over(options)
        options = options.over(Options(system=self.settings.sessions.system))
        key = session.get("idempotency_key")
        session_id = new_session_id() if key is None else keyed_session_id(self.owner, key)
        if key is not None:
            await self._load(session_id)
            if self._find(session_id) is not None:
                return session_id
        made = Session(
            session_id,
            self.owner,
            session.get("handler") or self.handler,
            turn_timeout_s=timeout_s,
            busy=busy,
            options=options,
            state=session.get("state"),
            turns=as_turns(session.get("history", ()), self.owner),
            tags=tuple(session.get("tags", ())),
            load=self._loader(session_id),
        )
        if self._store is not None:
            try:
                await create_stored(self._store, made, title=session.get("title"))
            except ValueError:  # a repeat under the same key was faster
                await self._load(session_id)
                if key is None or self._find(session_id) is None:
                    raise
                return session_id
        elif self._log is not None:
            for turn in made.turns:
                self._log.note_unmarked(self.owner, session_id, StoredTurn.of(turn, finished_at=time.time()))
        shared.sessions.setdefault(session_id, made)  # a repeat under the same key may have loaded it
        return session_id

    async def submit_turn(
        self, session_id: str, text: str, **turn: Unpack[TurnKeywords]
    ) -> Result[Answer, TurnReason]:
        """Submits a turn and waits for its answer (S2); `TurnKeywords` lists what a turn may say.

        Every failure is a reason in the result. Cancelling the caller cancels the turn. Raises `ValueError`
        for a `route`, `tools` or `busy` that is not one of the words.
        """
        await self._load(session_id)
        run = self._submit(session_id, text, turn)
        return run if isinstance(run, Err) else await wait_for(run)

    async def stream_turn(
        self, session_id: str, text: str, **turn: Unpack[TurnKeywords]
    ) -> AsyncGenerator[TurnEvent, None]:
        """Submits a turn and yields what happens in it as it happens, last of all `Finished(result)`.

        Leaving the loop early cancels the turn. Takes and raises what `submit_turn` does.
        """
        stream = Stream()
        await self._load(session_id)
        run = self._submit(session_id, text, turn, on_event=stream.put)
        if isinstance(run, Err):
            yield Finished(run)
            return
        async with contextlib.aclosing(read_events(run, stream)) as events:
            async for event in events:
                yield event

    async def submit_request(
        self, messages: Sequence[Message], **turn: Unpack[TurnKeywords]
    ) -> Result[Answer, TurnReason]:
        """Answers a conversation that is brought along, and keeps none of it; several at the same time.

        All of it counts as one turn, which is private if any of it is: also where it holds text of an earlier
        `local_only` turn of this owner (R16). The last message is the person's, or holds the results of tools
        (`InvalidOptions` otherwise). Takes the keywords of `submit_turn`, of which `busy` means nothing here;
        an `idempotency_key` is the owner's, and its result is kept for a day. Raises `ValueError` for wrong
        words and for what is no message.
        """
        run = await self._submit_request(messages, turn)
        return run if isinstance(run, Err) else await wait_for(run)

    async def stream_request(
        self, messages: Sequence[Message], **turn: Unpack[TurnKeywords]
    ) -> AsyncGenerator[TurnEvent, None]:
        """The same, and yields what happens as it happens, last of all `Finished(result)`.

        Leaving the loop early cancels the request.
        """
        stream = Stream()
        run = await self._submit_request(messages, turn, on_event=stream.put)
        if isinstance(run, Err):
            yield Finished(run)
            return
        async with contextlib.aclosing(read_events(run, stream)) as events:
            async for event in events:
                yield event

    async def cancel_turn(self, session_id: str) -> bool:
        """Cancels the session's running turn, which ends with `cancelled`. False if none was running."""
        session = self._find(session_id)
        return session is not None and session.end_running("cancelled")

    async def stop_session(self, session_id: str) -> bool:
        """Ends a session: its turns end with `cancelled`, its history is gone. False if there is none."""
        await self._load(session_id)
        session = self._find(session_id)
        if session is None:
            return False
        del self._shared.sessions[session_id]
        session.end_all("cancelled")
        if self._log is not None:
            self._log.forget(session_id)
        if self._store is not None:
            await self._store.delete_session(self.owner, session_id)
        self._private.reread(self.owner, self._unstored())
        return True

    async def delete_owner(self) -> int:
        """Deletes everything of this owner: sessions (their turns end with `cancelled`), ledger, records of
        what was sent, budgets. The audit chain stays and says that it was done. Gives the number of sessions.
        """
        shared = self._shared
        mine = [session for session in shared.sessions.values() if session.owner == self.owner]
        for session in mine:
            del shared.sessions[session.session_id]
        for session in (*mine, *self._submissions.requests.running(self.owner)):
            session.end_all("cancelled")
        self._submissions.requests.forget(self.owner)
        kept = [sent for sent in shared.egress if sent.owner != self.owner]
        shared.egress.clear()
        shared.egress.extend(kept)
        if self._log is not None:
            self._log.forget_owner(self.owner)
        if self._store is None:
            self._private.forget(self.owner)
            return len(mine)
        deleted = await self._store.delete_owner(self.owner)
        self._private.forget(self.owner)
        entry = AuditEntry(at=time.time(), owner=self.owner, action="owner.delete", subject=self.owner)
        await self._store.append_audit(entry)
        return deleted

    async def compact(self, session_id: str, **turn: Unpack[TurnKeywords]) -> Result[str, TurnReason]:
        """Starts a session that goes on from a summary of this one, and gives its id; this one stays.

        The summary is made by a turn, which goes where the last one went, but to the local model if any turn
        is `local_only`; then the summary is so too. The handler's state does not go along.
        """
        await self._load(session_id)
        session = self._find(session_id)
        if session is None:
            return Err(_no_such(session_id))
        record = None if self._store is None else await self._store.get_session(self.owner, session_id)
        settings = SessionKeywords(
            options=session.options,
            turn_timeout_s=session.turn_timeout_s,
            busy=session.busy,
            handler=session.handler,
            tags=session.tags,
            title=None if record is None else record.title,
        )
        return await compact(self, tuple(session.turns), settings, turn)

    async def history(self, session_id: str) -> Result[tuple[Turn, ...], NoSuchSession]:
        """The session's turns that were answered, the oldest first."""
        await self._load(session_id)
        session = self._find(session_id)
        return Err(_no_such(session_id)) if session is None else Ok(tuple(session.turns))

    async def session_options(self, session_id: str) -> Options | None:
        """The options that the session's turns have where they say nothing else; `None` without a session."""
        await self._load(session_id)
        session = self._find(session_id)
        return None if session is None else session.options

    async def sessions(self) -> tuple[str, ...]:
        """The ids of this owner's sessions in memory, the oldest first; `store.list_sessions` has all."""
        return tuple([s.session_id for s in self._shared.sessions.values() if s.owner == self.owner])

    async def egress(self, session_id: str | None = None) -> tuple[SentRecord, ...]:
        """What this owner's turns have sent to models and MCP servers, of one session or of all, the oldest
        first."""
        return tuple(
            [
                sent
                for sent in self._shared.egress
                if sent.owner == self.owner and session_id in (None, sent.session_id)
            ]
        )

    async def explain(
        self, text: str, *, session_id: str | None = None, **turn: Unpack[TurnKeywords]
    ) -> Result[Decision | Refused, TurnReason]:
        """What would be decided of a turn, and why; contacts nothing and changes nothing (R18).

        A turn that would be refused gives `Refused`: the decision with its reason.
        """
        if session_id is not None:
            await self._load(session_id)
        session = None if session_id is None else self._find(session_id)
        if session_id is not None and session is None:
            return Err(_no_such(session_id))
        options = msgspec.structs.replace(turn_options(turn), owner=self.owner)
        newest = read_turn(text, options.attachments, limit=self.settings.sessions.max_input_bytes)
        if isinstance(newest, Err):
            return newest
        turns = [Turn(messages=newest, label="shareable")]
        if session is not None:
            turns = [*session.turns, *turns]
            note = (
                None if self._store is None else note_of(await self._store.untold_effects(session.session_id))
            )
            layered = options.options.over(session.options)
            options = msgspec.structs.replace(options, options=layered, session_id=session_id, note=note)
        else:
            layered = options.options.over(Options(system=self.settings.sessions.system))
            options = msgspec.structs.replace(options, options=layered)
        if (looks_for := self._submissions.looks_for(turn)) is not None:
            known = await looks_for.find(self._private, self.owner, newest, options)
            options = msgspec.structs.replace(options, known_private=known)
        return Ok(self.router.explain(turns, options))

    async def explain_request(
        self, messages: Sequence[Message], **turn: Unpack[TurnKeywords]
    ) -> Result[Decision | Refused, TurnReason]:
        """What would be decided of a request that brings these messages, and why, as `explain` does."""
        options = turn_options(turn)
        newest = read_request(messages, options.attachments, limit=self.settings.sessions.max_input_bytes)
        if isinstance(newest, Err):
            return newest
        brought = await self._private.look(self.owner, newest.decode(), besides=texts_besides(options))
        options = msgspec.structs.replace(
            options,
            owner=self.owner,
            options=options.options.over(Options(system=self.settings.sessions.system)),
            known_private=brought.findings,
        )
        return Ok(self.router.explain([Turn(messages=newest, label="shareable")], options))

    def _default_handler(self) -> Handler:
        filled = self.slots.local is not None or self.slots.cloud is not None
        wanted = self.settings.router.handler
        return self.router if wanted == "router" or (wanted is None and filled) else EchoHandler()

    def _unstored(self) -> list[bytes]:
        """What of this owner's private text the store could not take."""
        mine = [session for session in self._shared.sessions.values() if session.owner == self.owner]
        owed = [session.unended for session in (*mine, *self._submissions.requests.of_owner(self.owner))]
        return [each.fingerprints for each in owed if each is not None and each.fingerprints]

    def _loader(self, session_id: str) -> Load | None:
        """Reads a session's turns and state anew from the store."""
        store = self._store
        return None if store is None else lambda: load_stored(store, self.owner, session_id)

    async def _load(self, session_id: str) -> None:
        """Takes a session out of the store into memory, if it is this owner's and is not there."""
        if self._store is None or session_id in self._shared.sessions or self._shared.closing:
            return
        try:
            record = await self._store.get_session(self.owner, session_id)
            if record is None:
                return
            turns, state, version = await load_stored(self._store, self.owner, session_id)
        except StoreError:
            if self._shared.closing:  # it was closed under our hands: the turn is told so
                return
            raise
        self._shared.sessions.setdefault(
            session_id,
            Session(
                session_id,
                self.owner,
                self.handler,
                turn_timeout_s=record.turn_timeout_s,
                busy=record.busy,
                options=record.options,
                state=state,
                turns=turns,
                tags=record.tags,
                version=version,
                load=self._loader(session_id),
            ),
        )

    def _find(self, session_id: str) -> Session | None:
        """The session, if it is this owner's."""
        session = self._shared.sessions.get(session_id)
        return session if session is not None and session.owner == self.owner else None

    def _submit(
        self,
        session_id: str,
        text: str,
        turn: TurnKeywords,
        *,
        on_event: Callable[[TurnEvent], None] | None = None,
    ) -> TurnRun | Err[TurnReason]:
        options = turn_options(turn, stream=on_event is not None)
        if not self._shared.takes_turns:
            return Err(ShuttingDown())
        session = self._find(session_id)
        if session is None:
            return Err(_no_such(session_id))
        newest = read_turn(text, options.attachments, limit=self.settings.sessions.max_input_bytes)
        if isinstance(newest, Err):
            return session.refuse(newest.reason)
        return self._submissions.turn(session, newest, options, turn, on_event)

    async def _submit_request(
        self,
        messages: Sequence[Message],
        turn: TurnKeywords,
        *,
        on_event: Callable[[TurnEvent], None] | None = None,
    ) -> TurnRun | Err[TurnReason]:
        options = turn_options(turn, stream=on_event is not None)
        newest = read_request(messages, options.attachments, limit=self.settings.sessions.max_input_bytes)
        if not self._shared.takes_turns:
            return Err(ShuttingDown())
        if isinstance(newest, Err):
            return self._submissions.refuse_request(self.owner, self.handler, newest.reason)
        try:
            brought = await self._private.look(self.owner, newest.decode(), besides=texts_besides(options))
        except StoreError as error:
            if not self._shared.takes_turns:
                return Err(ShuttingDown())
            reason = Crashed(error="StoreError", detail=str(error))
            return self._submissions.refuse_request(self.owner, self.handler, reason)
        if not self._shared.takes_turns:
            return Err(ShuttingDown())
        options = msgspec.structs.replace(options, known_private=brought.findings)
        return self._submissions.request(self.owner, self.handler, newest, brought, options, turn, on_event)


def _hub(settings: Settings, tools: Sequence[Callable[..., object]]) -> ToolHub:
    if not settings.mcp.servers:
        return ToolHub(tools, settings=settings.mcp)
    folder = settings.data_folder / "mcp"
    return McpHub(settings.mcp.servers, tools, settings=settings.mcp, folder=folder)


def _no_such(session_id: str) -> NoSuchSession:
    return NoSuchSession(detail=f"there is no session {session_id!r}; start one first")
