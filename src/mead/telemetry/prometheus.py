"""mead's events as Prometheus metrics, in a registry of their own.

    metrics = Metrics()
    detach = metrics.attach()
    body, content_type = await metrics.scrape(accept_header)

Needs the extra `prometheus`. No metric holds text of a conversation, arguments, results or a secret (T3), nor
an id of a session: labels are names and tags, and each label takes a limited number of values.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from mead import telemetry
from mead.telemetry._turns import TurnEvents, key_of
from mead.telemetry._version import VERSION
from mead.telemetry.events import PROVIDER_CALL, ROUTE, SERVER, STAGE, TOOL_CALL, TURN, Event

MAX_VALUES = 200
"""How many values a label takes; further ones are counted together, as `other`."""
_MAX_CHARS = 120
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_MetricT = TypeVar("_MetricT", Counter, Gauge)


class BudgetLeft(Struct, frozen=True, kw_only=True):
    """What is left of a budget, and all of it, in its `unit` (`usd`, `tokens`)."""

    name: str
    unit: str
    left: float
    limit: float


class Readings(Struct, frozen=True, kw_only=True):
    """What no event tells, read when the metrics are asked for: the budgets, and the state of each server."""

    budgets: Sequence[BudgetLeft] = ()
    servers: Mapping[str, str] = {}


async def _nothing() -> Readings:
    return Readings()


class Metrics:
    """The metrics, and what is counted for them. `owners` gives those of turns and calls a label `owner`;
    `read` is asked before each scrape. Safe on several threads."""

    def __init__(self, *, owners: bool = False, read: Callable[[], Awaitable[Readings]] = _nothing) -> None:
        self.registry = CollectorRegistry()
        self._read = read
        self._owners = owners
        self._labels = _Labels()
        self._routes = TurnEvents(max_turns=1_000)
        self._states: dict[str, str] = {}
        self._restarts: dict[str, float] = {}
        owner = ("owner",) if owners else ()
        model = ("route", "provider", "model")
        made, timed = self._made, self._timed
        made(Gauge, "mead_build_info", "The version of mead; always 1.", "version").labels(VERSION).set(1)
        self._turns = made(Counter, "mead_turns", "Turns that ended.", "route", "status", "reason", *owner)
        self._turn_s = timed("mead_turn_duration_seconds", "How long turns took.", "route", "status")
        self._queued_s = timed("mead_turn_queued_seconds", "How long turns waited before they began.")
        self._waiting = made(Gauge, "mead_turns_waiting", "Turns that wait for the one before them.")
        self._running = made(Gauge, "mead_turns_running", "Turns that run.")
        self._calls = made(Counter, "mead_provider_calls", "Calls of models.", *model, "status", "reason")
        self._call_s = timed("mead_provider_call_duration_seconds", "How long they took.", *model)
        first = "How long it took until the first text of a streamed answer."
        self._first_token_s = timed("mead_time_to_first_token_seconds", first, *model)
        self._tokens = made(Counter, "mead_tokens", "Tokens, as providers say.", *model, "direction", *owner)
        self._cached = made(Counter, "mead_cached_tokens", "Input tokens read from a cache.", *model)
        self._uncounted = made(Counter, "mead_uncounted_calls", "Calls with an unknown token count.", *model)
        self._cost = made(Counter, "mead_cost_usd", "What calls cost, where it is known.", *model, *owner)
        self._unpriced = made(Counter, "mead_unpriced_calls", "Calls whose cost nobody knows.", *model)
        self._tools = made(Counter, "mead_tool_calls", "Calls of tools.", "tool", "server", "status", "kind")
        self._tool_s = timed("mead_tool_call_duration_seconds", "How long they took.", "server")
        self._left = made(Gauge, "mead_budget_left", "What is left of a budget.", "budget", "unit")
        self._limit = made(Gauge, "mead_budget_limit", "All of a budget.", "budget", "unit")
        state = "1 for the state that a server is in."
        self._server = made(Gauge, "mead_mcp_server_state", state, "server", "state")
        self._restarted = made(Counter, "mead_mcp_server_restarts", "New starts of a server.", "server")

    def attach(self) -> Callable[[], None]:
        """Counts the events of every runtime in this process from now on. Returns what ends it."""
        hears: Mapping[str, Callable[[Event], None]] = {
            ROUTE: self._on_route,
            STAGE: self._on_stage,
            TURN: self._on_turn,
            PROVIDER_CALL: self._on_call,
            TOOL_CALL: self._on_tool,
            SERVER: self._on_server,
        }
        detaching = [telemetry.attach(handler, name) for name, handler in hears.items()]

        def detach() -> None:
            for one in detaching:
                one()

        return detach

    async def scrape(self, accept: str = "") -> tuple[bytes, str]:
        """The metrics as the client wants them by its Accept header, OpenMetrics or Prometheus' text, and
        the content type."""
        self._take(await self._read())
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type

    def _made(self, kind: type[_MetricT], name: str, text: str, *labels: str) -> _MetricT:
        return kind(name, text, labels, registry=self.registry)

    def _timed(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, registry=self.registry, buckets=_SECONDS)

    def _of(self, event: Event, *names: str) -> dict[str, str]:
        """Labels with the values that an event has for them."""
        wanted = (*names, "owner") if self._owners else names
        return {name: self._labels.value(name, event.metadata.get(name)) for name in wanted}

    def _plain(self, event: Event, *names: str) -> dict[str, str]:
        """The same without the owner."""
        return {name: self._labels.value(name, event.metadata.get(name)) for name in names}

    def _on_route(self, event: Event) -> None:
        if (key := key_of(event)) is not None:
            self._routes.keep(key, event)

    def _on_stage(self, event: Event) -> None:
        if event.metadata["stage"] == "waiting":
            self._waiting.inc()
            return
        self._running.inc()
        if event.metadata["waited"]:
            self._waiting.dec()

    def _on_turn(self, event: Event) -> None:
        key, stage = key_of(event), event.metadata["stage"]
        if stage is not None:
            (self._waiting if stage == "waiting" else self._running).dec()
        routed = () if key is None else self._routes.take(key)
        route = self._labels.value("route", routed[0].event.metadata["route"] if routed else None)
        self._turns.labels(route=route, **self._of(event, "status", "reason")).inc()
        if stage is not None:
            self._queued_s.observe(event.measurements["queued"] or 0)
        if stage == "running":
            of = self._turn_s.labels(route=route, **self._plain(event, "status"))
            of.observe(event.measurements["duration"] or 0)

    def _on_call(self, event: Event) -> None:
        measured = event.measurements
        of = self._plain(event, "route", "provider", "model")
        owned = self._of(event, "route", "provider", "model")
        self._calls.labels(**of, **self._plain(event, "status", "reason")).inc()
        self._call_s.labels(**of).observe(measured["duration"] or 0)
        if (first := measured["first_delta"]) is not None:
            self._first_token_s.labels(**of).observe(first)
        counts = {direction: measured[f"{direction}_tokens"] for direction in ("input", "output")}
        for direction, count in counts.items():
            self._tokens.labels(direction=direction, **owned).inc(count or 0)
        self._cached.labels(**of).inc(measured["cached_tokens"] or 0)
        if None in counts.values():
            self._uncounted.labels(**of).inc()
        if (cost := measured["cost_usd"]) is not None:
            self._cost.labels(**owned).inc(cost)
        else:
            self._unpriced.labels(**of).inc()

    def _on_tool(self, event: Event) -> None:
        self._tools.labels(**self._plain(event, "tool", "server", "status", "kind")).inc()
        seconds = self._tool_s.labels(**self._plain(event, "server"))
        seconds.observe(event.measurements["duration"] or 0)

    def _on_server(self, event: Event) -> None:
        server = self._labels.value("server", event.metadata["server"])
        self._set_state(server, self._labels.value("state", event.metadata["state"]))
        restarts = event.measurements["restarts"] or 0
        self._restarted.labels(server).inc(max(0, restarts - self._restarts.get(server, 0)))
        self._restarts[server] = restarts

    def _set_state(self, server: str, state: str) -> None:
        before = self._states.get(server)
        if before is not None:
            self._server.labels(server, before).set(0)
        self._server.labels(server, state).set(1)
        self._states[server] = state

    def _take(self, readings: Readings) -> None:
        """Takes what was read. A budget that was not read is not shown with an old figure."""
        for gauge in (self._left, self._limit):
            gauge.clear()
        for budget in readings.budgets:
            of = (self._labels.value("budget", budget.name), budget.unit)
            self._left.labels(*of).set(budget.left)
            self._limit.labels(*of).set(budget.limit)
        for server, state in readings.servers.items():
            self._set_state(self._labels.value("server", server), self._labels.value("state", state))


class _Labels:
    """The values of labels: few and short, whatever a server calls its tools."""

    def __init__(self) -> None:
        self._known: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def value(self, name: str, value: object) -> str:
        """The value for a label: `none` for `None`, `other` where it has `MAX_VALUES` already."""
        if value is None:
            return "none"
        text = str(value)[:_MAX_CHARS]
        with self._lock:
            known = self._known.setdefault(name, set())
            if text not in known and len(known) >= MAX_VALUES:
                return "other"
            known.add(text)
        return text
