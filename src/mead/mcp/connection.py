"""One MCP server: its connection, owned by one task from beginning to end, restarted with backoff.

The SDK's contexts must be entered and left by the same task, so nobody but the owner touches them. Calls go
straight from the caller's task to the session. A call is sent once; whatever becomes of it is a value.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec import Struct

from mead import telemetry
from mead.mcp.calls import CARRIED_OUT, CallResult, failed_call
from mead.mcp.catalogue import definition_of
from mead.mcp.failures import MeadItselfError, innermost, lasting
from mead.mcp.pins import Change, Definition, Pins
from mead.mcp.policy import Policy
from mead.mcp.results import text_of_result
from mead.settings import McpServerSettings

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client import Transport

    from mead.mcp.transports import Wire

State: TypeAlias = Literal[
    "idle", "connecting", "ready", "down", "misconfigured", "needs_auth", "changed", "disabled", "stopped"
]
OpenTransport: TypeAlias = Callable[[McpServerSettings, "Wire"], "Transport"]

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.2, 30.0
SELDOM_S = 300.0
"""How often a server is tried again that has failed `SELDOM_AFTER` times in a row."""
SELDOM_AFTER = 5
STEADY_AFTER_S = 60.0
DEBOUNCE_S = 0.2
LISTEN_WAIT_S = 2.0
"""How long a server may take to say that it will tell of changes."""
MAX_PAGES = 50
STOP_TIMEOUT_S = 8.0
LOGIN_RETRY_S = 60.0
"""How long a server that asks for a login is left alone before a turn or a call tries it again."""

_SETTLED: tuple[State, ...] = ("misconfigured", "needs_auth", "changed", "disabled", "stopped")
_log = logging.getLogger("mead.mcp")


class Health(Struct, frozen=True, kw_only=True):
    """How a server is. `since_s` is how long it has been in its state, in seconds; `error` says why it is not
    ready; `notes` are what was mended or left out of what it sent.

    `last_words` is the end of what it wrote on stderr, for the person alone: it may quote anything that the
    server was sent. It is `None` once a call was made.
    """

    name: str
    state: State
    since_s: float
    error: str | None = None
    pid: int | None = None
    protocol: str | None = None
    version: str | None = None
    tools: int = 0
    restarts: int = 0
    noise: int = 0
    notes: tuple[str, ...] = ()
    last_words: str | None = None

    @property
    def why(self) -> str:
        """Why it is not ready, with its last words: for a person."""
        said = self.error or ""
        return f"{said}; it said: {self.last_words}" if self.last_words else said


class Connection:
    """A server, from its first use to `stop`.

    `on_change` is called when its tools or its state have changed. `definitions` are its tools: what it said
    last, or what the pins remember of it while it has not been started. `held_back` names the tools that may
    not be used until a person approves their change, `changes` lists every change since then.
    """

    def __init__(
        self,
        server: McpServerSettings,
        *,
        pins: Pins,
        open_transport: OpenTransport,
        on_change: Callable[[], object] = lambda: None,
        result_chars: int = 50_000,
    ) -> None:
        self.server = server
        self.policy = Policy.of(server)
        self.definitions: tuple[Definition, ...] = ()
        self.changes: tuple[Change, ...] = ()
        self.held_back: frozenset[str] = frozenset()
        self.error: str | None = None
        self._pins = pins
        self._open_transport = open_transport
        self._on_change = on_change
        self._result_chars = result_chars
        self._state: State = "idle"
        self._since = time.monotonic()
        self._client: Client | None = None
        self._wire: Wire | None = None
        self._owner: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._retry_now = asyncio.Event()
        self._settled = asyncio.Event()
        self._dirty = asyncio.Event()
        self._slots = asyncio.Semaphore(server.parallel)
        self._failures = 0
        self._restarts = 0
        self._mode: str = server.mode
        self._notes: list[str] = []
        self._said: str | None = None
        self._begun: float | None = None
        self._tried = False
        self._called = False
        self._look_before_start()

    @property
    def name(self) -> str:
        """The server's name in the settings."""
        return self.server.name

    @property
    def state(self) -> State:
        """What it is doing."""
        return self._state

    @property
    def is_settled(self) -> bool:
        """Whether its tools are known, or it is known that there are none for now: after the first try."""
        return bool(self.definitions) or self._tried or self._settled.is_set()

    @property
    def begun_s(self) -> float:
        """How long ago its first try began, in seconds; 0 before it."""
        return time.monotonic() - self._begun if self._begun is not None else 0.0

    # Life

    def _look_before_start(self) -> None:
        """What can be said without contacting anything."""
        if not self.server.enabled:
            self._set_state("disabled")
        elif self.server.problem is not None:
            self._set_state("misconfigured", self.server.problem)
        elif self._pins.problem is not None:
            self._set_state("misconfigured", self._pins.problem)
        elif self._pins.start_changed(self.server):
            what = "command line" if self.server.command is not None else "address"
            self._set_state(
                "changed",
                f"its {what} is not the one that was approved: mead mcp approve {self.name}",
            )
        elif self._pins.needs_word(self.server):
            self._set_state(
                "changed",
                "it stands in a mead.toml that was found in the working folder, and nobody has approved that "
                f"it is started: mead mcp approve {self.name}",
            )
        elif (pin := self._pins.known(self.server)) is not None:
            self.definitions = tuple(pin.tools.values())

    def start(self) -> None:
        """Starts it if it can be started and was not; does not wait.

        One that asked for a login is tried again, at most once a minute: there may be tokens by now.
        """
        if self._owner is not None and not self._owner.done():
            return
        if self._state == "needs_auth":
            if time.monotonic() - self._since < LOGIN_RETRY_S:
                return
        elif self._state in _SETTLED:
            return
        if self._begun is None:
            self._begun = time.monotonic()
        self._owner = asyncio.get_running_loop().create_task(self._own(), name=f"mcp {self.name}")

    def retry(self) -> None:
        """Tries a server that is down again now."""
        self._retry_now.set()

    async def settled(self) -> None:
        """Returns when it is ready, or is known not to be."""
        await self._settled.wait()

    async def stop(self) -> None:
        """Ends it: its process and everything that process started are gone afterwards. Bounded."""
        self._stopping.set()
        owner, self._owner = self._owner, None
        if owner is not None:
            if self._client is None:
                owner.cancel()  # it may be in the middle of a handshake that is never answered
            done, _ = await asyncio.wait([owner], timeout=STOP_TIMEOUT_S)
            if not done:
                owner.cancel()
                await asyncio.wait([owner], timeout=STOP_TIMEOUT_S)
        self._set_state("stopped")

    def approve(self) -> None:
        """A person takes the server as it is now: its tools, and the line that starts it."""
        seen = self._wire is not None or self._owner is not None
        self._pins.approve(self.server, self.definitions if seen else None)
        self.changes, self.held_back = (), frozenset()
        if self._state == "changed":
            self._settled.clear()
            self._tried, self._begun = False, None
            self._set_state("idle")
            self._look_before_start()
        self._on_change()

    async def _own(self) -> None:
        """The owner: connects, keeps the connection, leaves it, and begins again."""
        task = asyncio.current_task()
        assert task is not None
        while not self._stopping.is_set():
            self._set_state("connecting")
            cancels, began = task.cancelling(), time.monotonic()
            error: BaseException | None = None
            try:
                await self._serve()
            except asyncio.CancelledError:
                if task.cancelling() > cancels:
                    raise
                # The SDK cancels the body of its context when its transport fails: a lost connection.
            except BaseException as raised:
                error = innermost(raised)
                if isinstance(error, (KeyboardInterrupt, SystemExit)):
                    raise
            if self._stopping.is_set() or not await self._rest(error, time.monotonic() - began):
                break

    async def _rest(self, error: BaseException | None, lasted_s: float) -> bool:
        """Says why the connection ended, and waits before the next try; false when there is to be none."""
        self._failures = 1 if lasted_s > STEADY_AFTER_S else self._failures + 1
        self._restarts += 1
        if isinstance(error, TimeoutError) or error is None:
            self._mode = "legacy"  # some older servers die of a first message that they do not know
        self._tried = True
        if (state := lasting(error)) is not None:
            self._set_state(state, str(error))
            return False
        if self._wire is not None and self._wire.http_status == 401 and self.server.auth is None:
            self._set_state(
                "needs_auth",
                'the server asks for a login: give it headers, or set auth = "oauth" and run: '
                f"mead mcp login {self.name}",
            )
            return False
        self._set_state("down", self._why_down(error))
        wait_s = min(FIRST_BACKOFF_S * 2 ** min(self._failures - 1, 16), LONGEST_BACKOFF_S)
        wait_s = SELDOM_S if self._failures >= SELDOM_AFTER else wait_s * random.uniform(0.5, 1.0)
        self._retry_now.clear()
        await _first_of(self._stopping.wait(), self._retry_now.wait(), timeout_s=wait_s)
        return True

    def _why_down(self, error: BaseException | None) -> str:
        """Why there is no connection. After a call, nothing that may be the server's own words: they may
        quote what it was sent, and the log and other turns are no place for that."""
        said = "the connection was lost"
        if isinstance(error, TimeoutError):
            said = f"it did not answer within {self.server.connect_timeout_s:g} s"
        elif error is not None and (not self._called or isinstance(error, OSError)):
            said = str(error) or type(error).__name__
        elif error is not None:
            said = f"the connection failed ({type(error).__name__})"
        if self._wire is not None and self._wire.exit_status is not None:
            said += f" (it ended with status {self._wire.exit_status})"
        return said

    async def _serve(self) -> None:
        """One connection, from its beginning to its end."""
        from mcp import Client
        from mcp.types import Implementation

        from mead.mcp.guard import guarded
        from mead.mcp.transports import Wire

        self._wire = wire = Wire()
        self._dirty.clear()
        async with asyncio.timeout(self.server.connect_timeout_s) as limit:
            async with Client(
                guarded(self._open_transport(self.server, wire), wire),
                mode=self._mode,
                message_handler=self._on_message,
                client_info=Implementation(name="mead", version=_version()),
                cache=None,
            ) as client:
                if client.server_info is not None and client.server_info.name == "mead":
                    raise MeadItselfError("it is mead itself; a session cannot be its own tool")
                heard = asyncio.Event()
                listening = asyncio.get_running_loop().create_task(self._listen(client, heard))
                try:
                    # Before the list is read, or a change in between would never be heard of.
                    await _first_of(heard.wait(), wire.lost.wait(), timeout_s=LISTEN_WAIT_S)
                    await self._list(client)
                    limit.reschedule(None)
                    self._client = client
                    self._set_state("ready")
                    await self._keep(client, wire)
                finally:
                    self._client = None
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)

    async def _keep(self, client: Client, wire: Wire) -> None:
        """Keeps the connection until it is lost or to be stopped, and lists anew when the tools change."""
        while True:
            await _first_of(self._stopping.wait(), wire.lost.wait(), self._dirty.wait())
            if self._stopping.is_set() or wire.lost.is_set():
                return
            await _first_of(self._stopping.wait(), wire.lost.wait(), timeout_s=DEBOUNCE_S)
            self._dirty.clear()
            async with asyncio.timeout(self.server.connect_timeout_s):
                await self._list(client)

    async def _listen(self, client: Client, heard: asyncio.Event) -> None:
        """Hears of changes on a connection of the 2026 era, which says nothing without being asked to.

        Sets `heard` once changes are heard of, or are known not to be heard of this way.
        """
        from mcp.client.subscriptions import ListenNotSupportedError

        failures = 0
        while True:
            began = time.monotonic()
            try:
                async with client.listen(tools_list_changed=True) as changes:
                    heard.set()
                    if failures:
                        self._dirty.set()  # nothing is replayed: what happened meanwhile is unknown
                    async for _ in changes:
                        self._dirty.set()
            except ListenNotSupportedError:
                heard.set()
                return
            except asyncio.CancelledError:
                raise
            except Exception as error:
                _log.debug("listening to %s ended: %s", self.name, type(error).__name__)
            heard.set()
            failures = 1 if time.monotonic() - began > STEADY_AFTER_S else failures + 1
            if failures > SELDOM_AFTER:
                return
            await asyncio.sleep(min(FIRST_BACKOFF_S * 2**failures, LONGEST_BACKOFF_S))

    async def _on_message(self, message: object) -> None:
        from mcp.types import ToolListChangedNotification

        if isinstance(message, ToolListChangedNotification):
            self._dirty.set()

    async def _list(self, client: Client) -> None:
        """Reads every page of the server's tools, and compares them with the pins."""
        found: dict[str, Definition] = {}
        cursor: str | None = None
        cursors: set[str] = set()
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                definition = definition_of(tool)
                if isinstance(definition, str):
                    self._note(definition)
                elif definition.name in found:
                    self._note(f"{definition.name}: named twice; the first one counts")
                else:
                    found[definition.name] = definition
            cursor = page.next_cursor
            if not cursor or cursor in cursors:
                break
            cursors.add(cursor)
        definitions = tuple(found.values())
        self.changes = tuple(self._pins.compare(self.server, definitions))
        self.held_back = frozenset([change.tool for change in self.changes if self._holds_back(change)])
        self.definitions = definitions
        for change in self.changes:
            _log.warning("the tool %s of %s is not as it was when it was pinned", change.tool, self.name)
        self._on_change()

    def _holds_back(self, change: Change) -> bool:
        """Whether a changed tool waits for a person: if it has, or had, side effects."""
        versions = [version for version in (change.before, change.now) if version is not None]
        return any(
            self.policy.classify(version.name, read_only_hint=version.read_only).effect
            for version in versions
        )

    def _note(self, note: str) -> None:
        if note not in self._notes and len(self._notes) < 100:
            self._notes.append(note)

    def _set_state(self, state: State, error: str | None = None) -> None:
        if state == "down" and error != self._said:
            self._said = error
            _log.warning("the MCP server %s is down: %s", self.name, error)
        self._state, self.error, self._since = state, error, time.monotonic()
        if state == "ready":
            self._tried = True
        if state in ("connecting", "idle"):
            self._settled.clear()
        else:
            self._settled.set()
        telemetry.emit(telemetry.SERVER, {"restarts": self._restarts}, {"server": self.name, "state": state})
        self._on_change()

    # Use

    async def call(self, tool: str, arguments: Mapping[str, object], *, timeout_s: float) -> CallResult:
        """Calls a tool, once; waits for a start and for a free place at most as long as for the call.

        Whatever goes wrong is a result. Cancelling the caller cancels the call at the server.
        """
        from mcp.types import CallToolResult

        sent = False
        task = asyncio.current_task()
        cancels = task.cancelling() if task is not None else 0
        try:
            async with asyncio.timeout(timeout_s), self._slots:
                client = await self._ready_client()
                if client is None:
                    return CallResult(self._down_text(), is_error=True, kind="server_down")
                sent = self._called = True
                result = await client.session.call_tool(tool, dict(arguments), allow_input_required=True)
        except TimeoutError:
            text = f"{tool} did not answer within {timeout_s:.3g} s."
            return CallResult(f"{text} {CARRIED_OUT}" if sent else text, is_error=True, kind="timeout")
        except asyncio.CancelledError:
            if task is not None and task.cancelling() > cancels:
                raise
            return self._lost(tool)  # nobody cancelled us: the SDK's own scope went down with the connection
        except Exception as error:
            closed = self._wire is not None and self._wire.lost.is_set()
            return failed_call(tool, innermost(error), connection_closed=closed) or self._lost(tool)
        if not isinstance(result, CallToolResult):
            said = f"{tool} asks for input from a person, which mead does not give. {CARRIED_OUT}"
            return CallResult(said, is_error=True, kind="asks_for_input")
        text = text_of_result(result, max_chars=self._result_chars)
        is_error = bool(result.is_error)
        return CallResult(text, is_error=is_error, kind="tool_error" if is_error else "ok")

    async def _ready_client(self) -> Client | None:
        """The client of a ready connection; `None` if there is none for now."""
        self.start()
        if self._client is None and not self._settled.is_set():
            await self._settled.wait()
        return self._client

    def _down_text(self) -> str:
        # Of a failure of its own, the model is told no more: another turn's arguments may be in it.
        why = f": {self.error}" if self._state in _SETTLED and self.error else "."
        return f"The server {self.name} cannot be used now ({self._state}){why}"

    def _lost(self, tool: str) -> CallResult:
        if self._wire is not None:
            self._wire.lost.set()
        said = f"The connection to the server {self.name} was lost during {tool}. {CARRIED_OUT}"
        return CallResult(said, is_error=True, kind="lost")

    def health(self) -> Health:
        """How it is now."""
        wire, client = self._wire, self._client
        info = client.server_info if client is not None else None
        return Health(
            name=self.name,
            state=self._state,
            since_s=time.monotonic() - self._since,
            error=self.error,
            pid=wire.pid if wire is not None and client is not None else None,
            protocol=client.protocol_version if client is not None else None,
            version=info.version if info is not None else None,
            tools=len(self.definitions),
            restarts=self._restarts,
            noise=wire.noise if wire is not None else 0,
            notes=(*self._notes, *(wire.notes if wire is not None else ())),
            last_words=self._last_words(),
        )

    def _last_words(self) -> str | None:
        """What a process wrote on stderr before a start failed; nothing once it was sent a call."""
        if self._called or self._wire is None or self._state != "down":
            return None
        return self._wire.stderr_tail().strip()[-300:] or None


async def _first_of(*waits: Coroutine[Any, Any, Any], timeout_s: float | None = None) -> None:
    """Returns when one of the waits is over, or the time is up."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _version() -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("mead-runtime")
    return "0"
