"""The runtime: owns the sessions, and is what programs talk to.

async with Runtime.open("mead.toml") as runtime:
    session_id = await runtime.start_session()
    result = await runtime.submit_turn(session_id, "hello")
"""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, Unpack, get_args

import msgspec

from mead.core.conversation import EncodedMessages, encode, encode_user
from mead.core.messages import Block, DocumentBlock, ImageBlock, Message, TextBlock
from mead.core.options import (
    NO_OPTIONS,
    BusyPolicy,
    Options,
    RouteChoice,
    ToolChoice,
    TurnOptions,
)
from mead.core.reasons import IdempotencyConflict, InvalidOptions, NoSuchSession, ShuttingDown, TurnReason
from mead.core.result import Err, Ok, Result
from mead.core.turns import Answer, Decision, Handler, Hub, Turn
from mead.ledger.accounts import Accounts
from mead.ledger.prices import load_price_list
from mead.mcp.hub import McpHub, ToolHub
from mead.providers.protocol import close_provider
from mead.providers.registry import check_addresses
from mead.router import Router
from mead.router.classifier import Classifier
from mead.router.classifier.rules import RuleClassifier
from mead.router.decide import Refused
from mead.router.slots import Slots, build_slots
from mead.sessions.approvals import Approver
from mead.sessions.audit import note_settings
from mead.sessions.compact import compact
from mead.sessions.events import Finished, TurnEvent
from mead.sessions.handlers import EchoHandler
from mead.sessions.journal import TurnJournal, request_hash
from mead.sessions.reservations import StoreReservations
from mead.sessions.run import Asks, SentRecord, TurnRun
from mead.sessions.session import Session, imported, new_session_id
from mead.sessions.stored import Load, create_stored, load_stored
from mead.settings import Settings, load
from mead.storage import Store, open_store
from mead.storage.protocol import AuditEntry

TURN_TIMEOUT_S = 30.0
"""A turn's deadline where neither settings, session nor turn set one (S3)."""
EGRESS_KEPT = 10_000
"""How many egress records a runtime remembers, the newest."""

_log = logging.getLogger("mead.sessions")


class SessionKeywords(TypedDict, total=False):
    """What a session may say when it is started.

    `system` and `options` hold for each of its turns (S9). `turn_timeout_s` is a turn's deadline in seconds,
    `busy` what a turn does while another runs (S6). `history` is what went before: turns keep their labels,
    bare messages become `local_only`. `state` is handed to the handler; `handler` replaces the runtime's.
    `title` is for people, in a store.
    """

    system: str | None
    options: Options
    turn_timeout_s: float | None
    busy: BusyPolicy | None
    history: Sequence[Message] | Sequence[Turn]
    state: object
    handler: Handler | None
    tags: Sequence[str]
    title: str | None


class TurnKeywords(TypedDict, total=False):
    """What a turn may say.

    `route` forces a slot (R1); `tools` widens (`"effect"`) or hides (`"none"`) what the model is shown (R8);
    `options` are the nearest layer of generation options (S9); `allow_private` lets a turn that is forced to
    the cloud carry private content; `busy` and `turn_timeout_s` override the session's; `asks` promises that
    whoever reads the turn's stream answers `ApprovalNeeded`. A repeat of a turn under the same
    `idempotency_key` gives the first one's result, and runs nothing; it needs a store.
    """

    route: RouteChoice
    tools: ToolChoice
    options: Options
    attachments: Sequence[ImageBlock | DocumentBlock]
    allow_private: bool
    busy: BusyPolicy | None
    turn_timeout_s: float | None
    tags: Sequence[str]
    asks: bool
    idempotency_key: str | None


class _Shared:
    """What a runtime has in common with its views for other owners."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.egress: deque[SentRecord] = deque(maxlen=EGRESS_KEPT)
        self.closing = False


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
        classifier = classifier or RuleClassifier(
            private_words=settings.classifier.private_words, threshold=settings.classifier.threshold
        )
        if hub is not None and tools:
            raise ValueError("give tools or a hub, not both: a hub has tools of its own")
        self.hub = hub if hub is not None else _hub(settings, tools)
        if store is None and settings.storage.url is not None:
            store = open_store(settings.storage.url)
        self._accounts = Accounts(settings, reservations=None if store is None else StoreReservations(store))
        self.router = Router(self.slots, self.hub, classifier=classifier, accounts=self._accounts)
        self._approver = approver
        self._store = store
        self.handler = handler or self._default_handler()
        self._shared = _Shared()

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

    async def aclose(self) -> None:
        """Ends every turn with `shutting_down`, then closes the providers. May be called twice."""
        shared = self._shared
        shared.closing = True
        runs = [run for session in shared.sessions.values() for run in session.end_all("shutting_down")]
        pending = [run.result for run in runs if not run.result.done()]
        if pending:  # a cancel of the closing must not reach those who wait for these turns: no gather
            await asyncio.wait(pending)
        shared.sessions.clear()
        closing = [close_provider(slot.provider) for slot in self.slots if slot is not None]
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
        _check_timeout(timeout_s)
        busy = session.get("busy") or self.settings.sessions.busy
        _check_choice("busy", busy, get_args(BusyPolicy))
        options = session.get("options", NO_OPTIONS)
        if (system := session.get("system")) is not None:
            options = Options(system=system).over(options)
        options = options.over(Options(system=self.settings.sessions.system))
        session_id = new_session_id()
        made = Session(
            session_id,
            self.owner,
            session.get("handler") or self.handler,
            turn_timeout_s=timeout_s,
            busy=busy,
            options=options,
            state=session.get("state"),
            turns=_as_turns(session.get("history", ()), self.owner),
            tags=tuple(session.get("tags", ())),
            load=self._loader(session_id),
        )
        if self._store is not None:
            await create_stored(self._store, made, title=session.get("title"))
        shared.sessions[session_id] = made
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
        if isinstance(run, Err):
            return run
        run.waiting += 1
        try:
            return await asyncio.shield(run.result)
        except asyncio.CancelledError:
            run.waiting -= 1
            if run.waiting == 0:  # whoever repeats a turn under its key may still wait for it
                run.end("cancelled")
            raise

    async def stream_turn(
        self, session_id: str, text: str, **turn: Unpack[TurnKeywords]
    ) -> AsyncGenerator[TurnEvent, None]:
        """Submits a turn and yields what happens in it as it happens, last of all `Finished(result)`.

        Leaving the loop early cancels the turn. Takes and raises what `submit_turn` does.
        """
        stream = _Stream()
        await self._load(session_id)
        run = self._submit(session_id, text, turn, on_event=stream.put)
        if isinstance(run, Err):
            yield Finished(run)
            return
        run.result.add_done_callback(stream.wake)
        try:
            while not run.result.done() or stream.events:
                for event in stream.take():
                    yield event
                if not run.result.done():
                    await stream.wait()
            yield Finished(run.result.result())
        finally:
            run.end("cancelled")

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
        if self._store is not None:
            await self._store.delete_session(self.owner, session_id)
        return True

    async def delete_owner(self) -> int:
        """Deletes everything of this owner: sessions (their turns end with `cancelled`), ledger, records of
        what was sent, budgets. The audit chain stays and says that it was done. Gives the number of sessions.
        """
        shared = self._shared
        mine = [session for session in shared.sessions.values() if session.owner == self.owner]
        for session in mine:
            del shared.sessions[session.session_id]
            session.end_all("cancelled")
        kept = [sent for sent in shared.egress if sent.owner != self.owner]
        shared.egress.clear()
        shared.egress.extend(kept)
        if self._store is None:
            return len(mine)
        deleted = await self._store.delete_owner(self.owner)
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
        options = msgspec.structs.replace(_turn_options(turn), owner=self.owner)
        newest = self._read(text, options.attachments)
        if isinstance(newest, Err):
            return newest
        turns = [Turn(messages=newest, label="shareable")]
        if session is not None:
            turns = [*session.turns, *turns]
            layered = options.options.over(session.options)
            options = msgspec.structs.replace(options, options=layered, session_id=session_id)
        return Ok(self.router.explain(turns, options))

    def _default_handler(self) -> Handler:
        filled = self.slots.local is not None or self.slots.cloud is not None
        wanted = self.settings.router.handler
        return self.router if wanted == "router" or (wanted is None and filled) else EchoHandler()

    def _loader(self, session_id: str) -> Load | None:
        """Reads a session's turns and state anew from the store."""
        store = self._store
        return None if store is None else lambda: load_stored(store, self.owner, session_id)

    async def _load(self, session_id: str) -> None:
        """Takes a session out of the store into memory, if it is this owner's and is not there."""
        if self._store is None or session_id in self._shared.sessions or self._shared.closing:
            return
        record = await self._store.get_session(self.owner, session_id)
        if record is None:
            return
        turns, state, version = await load_stored(self._store, self.owner, session_id)
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
        options = _turn_options(turn, stream=on_event is not None)
        if self._shared.closing:
            return Err(ShuttingDown())
        session = self._find(session_id)
        if session is None:
            return Err(_no_such(session_id))
        newest = self._read(text, options.attachments)
        if isinstance(newest, Err):
            return session.refuse(newest.reason)
        key = options.idempotency_key
        if key is not None:
            if self._store is None:
                return session.refuse(InvalidOptions(detail="an idempotency key needs a store"))
            earlier = session.keyed(key)
            if earlier is not None:  # of a turn that is over, the journal tells
                asked = msgspec.structs.replace(options, options=options.options.over(session.options))
                same = request_hash(newest, asked) == request_hash(earlier.newest, earlier.options)
                return earlier if same else session.refuse(_KEY_CONFLICT)
        busy = turn.get("busy") or session.busy
        _check_choice("busy", busy, get_args(BusyPolicy))
        timeout_s = turn.get("turn_timeout_s")
        timeout_s = session.turn_timeout_s if timeout_s is None else timeout_s
        _check_timeout(timeout_s)
        if (refusal := session.refusal(busy)) is not None:
            return session.refuse(refusal)
        run = TurnRun(
            newest,
            options,
            session=session,
            number=session.next_number(),
            timeout_s=timeout_s,
            on_sent=self._shared.egress.append,
            on_event=on_event,
            journal=self._journal(session, newest),
            asks=Asks(
                approver=self._approver,
                reader=on_event is not None and turn.get("asks", False),
                timeout_s=self.settings.mcp.approval_timeout_s,
            ),
        )
        session.submit(run, busy, self.settings.sessions.queue_timeout_s)
        return run

    def _journal(
        self, session: Session, newest: EncodedMessages
    ) -> Callable[[TurnOptions], TurnJournal] | None:
        store = self._store
        if store is None:
            return None
        return lambda options: TurnJournal(store, session, options, newest, self._accounts.cost)

    def _read(
        self, text: str, attachments: tuple[ImageBlock | DocumentBlock, ...]
    ) -> EncodedMessages | Err[InvalidOptions]:
        """The person's message, encoded. Refused when it holds nothing, or more than the settings allow."""
        limit = self.settings.sessions.max_input_bytes
        size = len(text.encode(errors="replace")) + sum([len(block.data) for block in attachments])
        if size > limit:
            return Err(
                InvalidOptions(
                    detail=f"the turn is {size:,} bytes long and the limit is {limit:,}; shorten it, or "
                    "raise max_input_bytes under [sessions]"
                )
            )
        if not text.strip() and not attachments:
            return Err(InvalidOptions(detail="the turn is empty: give it some text"))
        if not attachments:
            return encode_user(text)
        blocks: list[Block] = [*attachments]
        if text.strip():
            blocks.append(TextBlock(text))
        return encode([Message("user", tuple(blocks))])


class _Stream:
    """The events of a streamed turn between the turn's task and the reader. The reader takes what is there in
    one go and waits only when there is nothing."""

    __slots__ = ("_waiter", "events")

    def __init__(self) -> None:
        self.events: list[TurnEvent] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, event: TurnEvent) -> None:
        self.events.append(event)
        self.wake()

    def wake(self, _: object = None) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def take(self) -> list[TurnEvent]:
        events, self.events = self.events, []
        return events

    async def wait(self) -> None:
        if not self.events:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter


def _hub(settings: Settings, tools: Sequence[Callable[..., object]]) -> ToolHub:
    if not settings.mcp.servers:
        return ToolHub(tools, settings=settings.mcp)
    folder = settings.data_folder / "mcp"
    return McpHub(settings.mcp.servers, tools, settings=settings.mcp, folder=folder)


def _as_turns(history: Sequence[Message] | Sequence[Turn], owner: str) -> list[Turn]:
    turns = [item for item in history if isinstance(item, Turn)]
    messages = [item for item in history if isinstance(item, Message)]
    if len(turns) + len(messages) != len(history) or (turns and messages):
        raise ValueError("history must be messages, or turns, and not both")
    return turns or imported(messages, owner=owner)


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        words = ", ".join([repr(choice) for choice in choices])
        raise ValueError(f"{name} must be one of {words}, not {value!r}")


def _check_timeout(timeout_s: float) -> None:
    if not timeout_s > 0:
        raise ValueError(f"turn_timeout_s must be over 0, not {timeout_s}")


def _turn_options(turn: TurnKeywords, *, stream: bool = False) -> TurnOptions:
    route, tools = turn.get("route", "auto"), turn.get("tools")
    _check_choice("route", route, get_args(RouteChoice))
    _check_choice("tools", tools, (None, "effect", "none"))
    return TurnOptions(
        route=route,
        tools=tools,
        options=turn.get("options", NO_OPTIONS),
        stream=stream,
        allow_private=turn.get("allow_private", False),
        attachments=tuple(turn.get("attachments", ())),
        tags=tuple(turn.get("tags", ())),
        idempotency_key=turn.get("idempotency_key"),
    )


_KEY_CONFLICT = IdempotencyConflict(detail="the idempotency key is in use, with another request")


def _no_such(session_id: str) -> NoSuchSession:
    return NoSuchSession(detail=f"there is no session {session_id!r}; start one first")
