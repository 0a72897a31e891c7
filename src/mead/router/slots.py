"""The two slots that a turn can be routed to (R2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from mead.core.options import NO_OPTIONS, Options, Route
from mead.core.reasons import InvalidOptions
from mead.ledger.limits import SlotLimiter
from mead.providers.protocol import Provider
from mead.providers.registry import make_provider
from mead.settings import Settings, SlotSettings


class Slot(NamedTuple):
    """A provider with the options that its calls start from. `models` lists what a turn may ask for by name
    besides `options.model`. `limiter` lets its calls in; `None` is no limit."""

    provider: Provider
    options: Options = NO_OPTIONS
    models: tuple[str, ...] = ()
    limiter: SlotLimiter | None = None

    def options_for(self, wanted: Options) -> Options | InvalidOptions:
        """The slot's options under a turn's, which win; a model that the slot does not list is refused."""
        model = wanted.model
        if model is None or model == self.options.model or model in self.models:
            return wanted.over(self.options)
        known = ", ".join(dict.fromkeys([*filter(None, [self.options.model]), *self.models]))
        listed = f"it lists: {known}" if known else "it lists none"
        said = f"the slot has no model {model!r}; {listed}. Add it to the slot's models"
        return InvalidOptions(detail=said)


class Slots(Struct, frozen=True, kw_only=True):
    """What stands behind each route; `None` is an empty slot."""

    local: Slot | None = None
    cloud: Slot | None = None

    def __getitem__(self, route: Route) -> Slot | None:
        return self.local if route == "local" else self.cloud

    def __iter__(self) -> Iterator[Slot | None]:
        return iter((self.local, self.cloud))


def build_slots(settings: Settings) -> Slots:
    """The slots that the settings describe. Raises `ConfigError`; contacts nothing."""
    wanted = settings.router.slots
    local = _build_slot("local", settings) if wanted.local is not None else None
    cloud = _build_slot("cloud", settings) if wanted.cloud is not None else None
    return Slots(local=local, cloud=cloud)


def _build_slot(route: Route, settings: Settings) -> Slot:
    chosen = settings.router.slots.local if route == "local" else settings.router.slots.cloud
    assert chosen is not None
    options = Options(model=chosen.model).over(chosen.options).over(settings.router.options)
    options = options.over(Options(idle_timeout_s=settings.sessions.idle_timeout_s))
    return Slot(make_provider(route, chosen, settings), options, chosen.models, _limiter(chosen))


def _limiter(slot: SlotSettings) -> SlotLimiter | None:
    limits = (slot.concurrency, slot.queue, slot.requests_per_minute)
    return None if all(limit is None for limit in limits) else SlotLimiter.of(slot)
