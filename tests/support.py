"""Small helpers of the tests of router and sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import mead
from mead import telemetry
from mead.core.conversation import encode_exchange, encode_user
from mead.core.options import NO_OPTIONS, Options, Route
from mead.core.scope import CallRecord, NullScope
from mead.core.turns import Label, Turn
from mead.core.usage import Usage
from mead.router import Slot, Slots
from mead.router.classifier import Classifier
from mead.testing import ScriptedProvider


def slots(local: object = None, cloud: object = None, *, options: Options = NO_OPTIONS) -> Slots:
    """Slots with these providers, or without."""
    return Slots(
        local=None if local is None else Slot(local, options),  # type: ignore[arg-type]  # any object with complete
        cloud=None if cloud is None else Slot(cloud, options),  # type: ignore[arg-type]  # as above
    )


def past(user: str, answer: str, *, label: Label = "shareable", route: Route | None = "cloud") -> Turn:
    """A turn that was answered."""
    return Turn(messages=encode_exchange(encode_user(user), answer), label=label, route=route)


def newest(text: str) -> Turn:
    """A turn that is to be answered, as a session makes it."""
    return Turn(messages=encode_user(text), label="shareable")


def two_models(
    local: ScriptedProvider | None = None, cloud: ScriptedProvider | None = None
) -> tuple[ScriptedProvider, ScriptedProvider]:
    """A local and a cloud model that answer everything."""
    return (
        local or ScriptedProvider(otherwise="from local", name="local-model"),
        cloud or ScriptedProvider(otherwise="from cloud", name="cloud-model"),
    )


class Easy(mead.AutoClassifier):
    """A classifier that finds no turn hard; what is private it finds as the built-in one does."""

    def __init__(self) -> None:
        super().__init__(cloud_share=0)


def runtime(
    local: object = None,
    cloud: object = None,
    *,
    tools: Sequence[Callable[..., object]] = (),
    classifier: Classifier | None = None,
    **settings: object,
) -> mead.Runtime:
    """A runtime over these providers."""
    return mead.Runtime(
        mead.Settings(**settings),  # type: ignore[arg-type]  # settings by name
        slots=slots(local, cloud),
        tools=tools,
        classifier=classifier,
    )


class Deltas(NullScope):
    """A scope that keeps what it hears: the deltas, and which calls ended how."""

    wants_deltas = True

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.calls: list[tuple[str, str | None, str]] = []

    def delta(self, text: str) -> None:
        self.heard.append(text)

    async def call_closed(self, call: CallRecord, usage: Usage | None, status: str) -> None:
        self.calls.append((call.provider, call.model, status))


@contextmanager
def heard(*names: str) -> Iterator[list[telemetry.Event]]:
    """The events of these names while the block runs."""
    events: list[telemetry.Event] = []
    detach = telemetry.attach(events.append, *names)
    try:
        yield events
    finally:
        detach()
