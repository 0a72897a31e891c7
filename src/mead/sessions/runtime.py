"""The runtime: owns the sessions, and is what programs talk to.

async with Runtime.open("mead.toml") as runtime:
    session_id = await runtime.start_session()
    result = await runtime.submit_turn(session_id, "hello")
"""

from __future__ import annotations

import asyncio
import copy
import logging
import secrets
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
from mead.core.reasons import InvalidOptions, NoSuchSession, ShuttingDown, TurnReason
from mead.core.result import Err, Ok, Result
from mead.core.turns import Answer, Decision, Handler, Hub, Turn
from mead.mcp.hub import McpHub, ToolHub
from mead.providers.protocol import close_provider
from mead.providers.registry import check_addresses
from mead.router import Router
from mead.router.classifier import Classifier
from mead.router.classifier.rules import RuleClassifier
from mead.router.decide import Refused
from mead.router.slots import Slots, build_slots
from mead.sessions.approvals import Approver
from mead.sessions.events import Finished, TurnEvent
from mead.sessions.handlers import EchoHandler
from mead.sessions.run import Asks, SentRecord, TurnRun
from mead.sessions.session import Session, imported
from mead.settings import Settings, load

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
    """

    system: str | None
    options: Options
    turn_timeout_s: float | None
    busy: BusyPolicy | None
    history: Sequence[Message] | Sequence[Turn]
    state: object
    handler: Handler | None
    tags: Sequence[str]


class TurnKeywords(TypedDict, total=False):
    """What a turn may say.

    `route` forces a slot (R1); `tools` widens (`"effect"`) or hides (`"none"`) what the model is shown (R8);
    `options` are the nearest layer of generation options (S9); `allow_private` lets a turn that is forced to
    the cloud carry private content; `busy` and `turn_timeout_s` override the session's; `asks` promises that
    whoever reads the turn's stream answers `ApprovalNeeded`.
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
    they need the turn's `tools="effect"` only. Nothing is contacted before the first turn that needs it. A
    runtime belongs to the event loop that it is used on; leave `async with`, or call `aclose`, to end its
    turns and connections.
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
    ) -> None:
        self.settings = settings = settings or Settings()
        self.owner = "local"
        self.slots = slots if slots is not None else build_slots(settings)
        classifier = classifier or RuleClassifier(
            private_words=settings.classifier.private_words, threshold=settings.classifier.threshold
        )
        self.hub = hub if hub is not None else _hub(settings, tools)
        self.router = Router(self.slots, self.hub, classifier=classifier)
        self._approver = approver
        self.handler = handler or self._default_handler()
        self._shared = _Shared()

    @classmethod
    def open(cls, config: str | Path | None = None) -> Self:
        """A runtime for a configuration file: the named one, or the first that is found (`docs/settings.md`).

        Raises `ConfigError` for a file that is missing or wrong.
        """
        return cls(load(Path(config) if config is not None else None))

    def for_owner(self, owner: str) -> Self:
        """The same runtime as another owner sees it: their sessions, and no others (S10)."""
        view = copy.copy(self)
        view.owner = owner
        return view

    async def __aenter__(self) -> Self:
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
        await asyncio.gather(*[run.result for run in runs if not run.result.done()], return_exceptions=True)
        shared.sessions.clear()
        closing = [close_provider(slot.provider) for slot in self.slots if slot is not None]
        for error in await asyncio.gather(close_provider(self.hub), *closing, return_exceptions=True):
            if isinstance(error, Exception):
                _log.error("closing raised %s", type(error).__name__)

    async def start_session(self, **session: Unpack[SessionKeywords]) -> str:
        """Starts a session and gives its id (S1); `SessionKeywords` lists what a session may say.

        Raises `ValueError` for an argument that is out of range, `RuntimeError` when the runtime is closed.
        """
        shared = self._shared
        if shared.closing:
            raise RuntimeError("the runtime is closed")
        timeout_s = session.get("turn_timeout_s") or self.settings.sessions.turn_timeout_s or TURN_TIMEOUT_S
        _check_timeout(timeout_s)
        busy = session.get("busy") or self.settings.sessions.busy
        _check_choice("busy", busy, get_args(BusyPolicy))
        options = session.get("options", NO_OPTIONS)
        if (system := session.get("system")) is not None:
            options = Options(system=system).over(options)
        session_id = secrets.token_urlsafe(12)
        shared.sessions[session_id] = Session(
            session_id,
            self.owner,
            session.get("handler") or self.handler,
            turn_timeout_s=timeout_s,
            busy=busy,
            options=options,
            state=session.get("state"),
            turns=_as_turns(session.get("history", ()), self.owner),
            tags=tuple(session.get("tags", ())),
        )
        return session_id

    async def submit_turn(
        self, session_id: str, text: str, **turn: Unpack[TurnKeywords]
    ) -> Result[Answer, TurnReason]:
        """Submits a turn and waits for its answer (S2); `TurnKeywords` lists what a turn may say.

        Every failure is a reason in the result. Cancelling the caller cancels the turn. Raises `ValueError`
        for a `route`, `tools` or `busy` that is not one of the words.
        """
        run = self._submit(session_id, text, turn)
        if isinstance(run, Err):
            return run
        try:
            return await run.result
        except asyncio.CancelledError:
            run.end("cancelled")
            raise

    async def stream_turn(
        self, session_id: str, text: str, **turn: Unpack[TurnKeywords]
    ) -> AsyncGenerator[TurnEvent, None]:
        """Submits a turn and yields what happens in it as it happens, last of all `Finished(result)`.

        Leaving the loop early cancels the turn. Takes and raises what `submit_turn` does.
        """
        stream = _Stream()
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
        session = self._find(session_id)
        if session is None:
            return False
        del self._shared.sessions[session_id]
        session.end_all("cancelled")
        return True

    async def history(self, session_id: str) -> Result[tuple[Turn, ...], NoSuchSession]:
        """The session's turns that were answered, the oldest first."""
        session = self._find(session_id)
        return Err(_no_such(session_id)) if session is None else Ok(tuple(session.turns))

    async def sessions(self) -> tuple[str, ...]:
        """The ids of this owner's sessions, the oldest first."""
        return tuple([s.session_id for s in self._shared.sessions.values() if s.owner == self.owner])

    async def egress(self, session_id: str | None = None) -> tuple[SentRecord, ...]:
        """What this owner's turns have sent to models, the oldest first: of one session, or of all."""
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
        session = None if session_id is None else self._find(session_id)
        if session_id is not None and session is None:
            return Err(_no_such(session_id))
        options = _turn_options(turn)
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
            return newest
        busy = turn.get("busy") or session.busy
        _check_choice("busy", busy, get_args(BusyPolicy))
        timeout_s = turn.get("turn_timeout_s") or session.turn_timeout_s
        _check_timeout(timeout_s)
        run = TurnRun(
            newest,
            options,
            session=session,
            number=session.next_number(),
            timeout_s=timeout_s,
            on_sent=self._shared.egress.append,
            on_event=on_event,
            asks=Asks(
                approver=self._approver,
                reader=on_event is not None and turn.get("asks", False),
                timeout_s=self.settings.mcp.approval_timeout_s,
            ),
        )
        refused = session.submit(run, busy, self.settings.sessions.queue_timeout_s)
        return run if refused is None else refused

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
    )


def _no_such(session_id: str) -> NoSuchSession:
    return NoSuchSession(detail=f"there is no session {session_id!r}; start one first")
