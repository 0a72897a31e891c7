"""What happens in a random conversation: made from a seed, before anything runs."""

from __future__ import annotations

import random
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from mead.core.options import Route, RouteChoice, ToolChoice

Kind: TypeAlias = Literal["easy", "hard", "marked", "pattern", "word", "attached"]
End: TypeAlias = Literal["ok", "limit", "error", "cut", "nonsense", "stopped"]
Stop: TypeAlias = Literal["turn", "caller", "deadline", "interrupt", "close"]
Quoting: TypeAlias = Literal["plain", "upper", "json", "url", "base64", "hex"]

PRIVATE_KINDS: tuple[Kind, ...] = ("marked", "pattern", "word", "attached")


class Turn(Struct, frozen=True, kw_only=True):
    """One turn. The models ask for `rounds` of tools with `calls` calls each before they answer in the words
    of `quoting`; the reply number `ends_at` ends as `end` says. A `stopped` turn is stopped after some rounds
    of the event loop, with its model hanging (`hangs`) or on its way."""

    route: RouteChoice
    kind: Kind
    tools: ToolChoice
    rounds: int
    calls: int
    quoting: Quoting
    streams: bool
    allow_private: bool
    tells_card: bool
    refuses: bool
    end: End
    ends_at: int
    stop: Stop
    hangs: bool
    after_rounds: int
    repeats: bool


class Compact(Struct, frozen=True, kw_only=True):
    """The conversation goes on from a summary."""

    route: Route | None
    fails: bool


class Fork(Struct, frozen=True):
    """The conversation goes on in a copy of its first turns, a share of them."""

    share: float


class Rewind(Struct, frozen=True):
    """The last turns are taken back; a share stays."""

    share: float


class Carry(Struct, frozen=True):
    """The conversation is exported and imported, with its labels or without."""

    labels: bool


class Bring(Struct, frozen=True):
    """A conversation of another program is imported and gone on with."""

    form: Literal["messages", "open_webui", "lines"]


class Restart(Struct, frozen=True):
    """The process ends, and another one opens the same store."""


class Explain(Struct, frozen=True):
    """Somebody asks what would be decided of a turn."""

    route: RouteChoice
    kind: Kind


Step: TypeAlias = Turn | Compact | Fork | Rewind | Carry | Bring | Restart | Explain


class Plan(Struct, frozen=True, kw_only=True):
    """A conversation. `over` says how the models are reached: in this process, or over HTTP. Where it
    `escalates`, the cloud model is asked too if the local answer is no good."""

    seed: int
    over: Literal["process", "http"]
    store: Literal["none", "memory", "sqlite"]
    local_wire: str
    cloud_wire: str
    system: Literal["none", "plain", "private"]
    hub: Literal["functions", "fake"]
    escalates: bool
    steps: tuple[Step, ...]


def make_plan(seed: int) -> Plan:
    """The conversation of a seed: 4 to 10 turns, and what happens between them."""
    chance = random.Random(f"plan {seed}")
    store = chance.choices(("none", "memory", "sqlite"), (60, 20, 20))[0]
    mild = chance.random() < 0.35  # little is private, so that what is shareable gets its chance
    steps: list[Step] = []
    for _ in range(chance.randint(4, 10)):
        if chance.random() < 0.3:
            steps.append(_between(chance, store))
        steps.append(_turn(chance, mild=mild))
    return Plan(
        seed=seed,
        over="http" if chance.random() < 0.15 else "process",
        store=store,  # type: ignore[arg-type]  # one of its words
        local_wire=chance.choice(("ollama", "openai")),
        cloud_wire=chance.choice(("openai", "anthropic", "ollama")),
        system=chance.choices(("none", "plain", "private"), (60, 30, 10))[0],
        hub=chance.choice(("functions", "fake")),
        escalates=chance.random() < 0.4,
        steps=tuple(steps),
    )


def _turn(chance: random.Random, *, mild: bool) -> Turn:
    pick: Any = chance.choices
    routes, tools = (35, 35, 30), (50, 20, 30)
    kinds = (45, 20, 12, 10, 6, 7)
    if mild:
        routes, kinds, tools = (5, 35, 60), (70, 20, 4, 3, 2, 1), (25, 10, 65)
    return Turn(
        route=pick(("local", "cloud", "auto"), routes)[0],
        kind=pick(("easy", "hard", *PRIVATE_KINDS), kinds)[0],
        tools=pick((None, "effect", "none"), tools)[0],
        rounds=pick((0, 1, 2), (30, 50, 20))[0],
        calls=pick((1, 2), (70, 30))[0],
        quoting=pick(("plain", "upper", "json", "url", "base64", "hex"), (50, 10, 10, 10, 10, 10))[0],
        streams=chance.random() < 0.4,
        allow_private=chance.random() < 0.3,
        tells_card=chance.random() < 0.1,
        refuses=chance.random() < 0.2,
        end=pick(("ok", "limit", "error", "cut", "nonsense", "stopped"), (68, 2, 6, 6, 3, 15))[0],
        ends_at=chance.randint(1, 3),
        stop=pick(("turn", "caller", "deadline", "interrupt", "close"), (25, 20, 20, 25, 10))[0],
        hangs=chance.random() < 0.4,
        after_rounds=chance.randint(0, 60),
        repeats=chance.random() < 0.2,
    )


def _between(chance: random.Random, store: str) -> Step:
    choices: list[Step] = [
        Compact(route=chance.choice((None, None, "local", "cloud")), fails=chance.random() < 0.15),
        Carry(labels=chance.random() < 0.6),
        Bring(form=chance.choice(("messages", "open_webui", "lines"))),
        Explain(chance.choice(("local", "cloud", "auto")), chance.choice(("easy", "hard", *PRIVATE_KINDS))),
    ]
    if store != "none":
        choices += [Fork(chance.random()), Rewind(chance.random())]
    if store == "sqlite":
        choices += [Restart(), Restart()]
    return chance.choice(choices)
