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
from mead.router.health import Health
from mead.settings import Settings, SlotSettings


class Backend(NamedTuple):
    """One of a slot's providers with the options that its calls start from. `models` lists what a turn may
    ask for by name besides `options.model`. `place` is where it stands in the slot's settings, from 0."""

    provider: Provider
    options: Options = NO_OPTIONS
    models: tuple[str, ...] = ()
    place: int = 0

    def options_for(self, wanted: Options) -> Options | InvalidOptions:
        """The slot's options under a turn's, which win; a model that the slot does not list is refused."""
        model = wanted.model
        if model is None or model == self.options.model or model in self.models:
            return wanted.over(self.options)
        known = ", ".join(dict.fromkeys([*filter(None, [self.options.model]), *self.models]))
        listed = f"it lists: {known}" if known else "it lists none"
        said = f"the slot has no model {model!r}; {listed}. Add it to the slot's models"
        return InvalidOptions(detail=said)


class Slot(NamedTuple):
    """A provider with the options that its calls start from. `models` lists what a turn may ask for by name
    besides `options.model`. `limiter` lets its calls in; `None` is no limit.

    `fallbacks` are asked, in their order, where the provider's service fails before it has said anything;
    `health` remembers who did. `place` is where `provider` stands in the settings.
    """

    provider: Provider
    options: Options = NO_OPTIONS
    models: tuple[str, ...] = ()
    limiter: SlotLimiter | None = None
    fallbacks: tuple[Backend, ...] = ()
    health: Health | None = None
    place: int = 0

    @property
    def backends(self) -> tuple[Backend, ...]:
        """The slot's providers, the one to ask first at the front."""
        return (Backend(self.provider, self.options, self.models, self.place), *self.fallbacks)

    def options_for(self, wanted: Options) -> Options | InvalidOptions:
        """The first provider's options under a turn's; see `Backend.options_for`."""
        return self.backends[0].options_for(wanted)

    def ready(self, wanted: Options) -> Slot:
        """The slot as it is to be used now: without the fallbacks that do not list the model that is wanted,
        and with those behind that have just failed."""
        if self.health is None:
            return self
        backends = self.backends
        fitting = [b for b in backends if not isinstance(b.options_for(wanted), InvalidOptions)]
        if not fitting:
            return self
        by_place = {backend.place: backend for backend in fitting}
        first, *others = [by_place[place] for place in self.health.order(sorted(by_place))]
        return self._replace(
            provider=first.provider,
            options=first.options,
            models=first.models,
            place=first.place,
            fallbacks=tuple(others),
        )


class Slots(Struct, frozen=True, kw_only=True):
    """What stands behind each route; `None` is an empty slot."""

    local: Slot | None = None
    cloud: Slot | None = None

    def __getitem__(self, route: Route) -> Slot | None:
        return self.local if route == "local" else self.cloud

    def __iter__(self) -> Iterator[Slot | None]:
        return iter((self.local, self.cloud))

    @property
    def providers(self) -> tuple[Provider, ...]:
        """Every provider of both slots."""
        return tuple([backend.provider for slot in self if slot is not None for backend in slot.backends])

    def ready(self, wanted: Options) -> Slots:
        """Both slots as they are to be used now; see `Slot.ready`."""
        if all(slot is None or slot.health is None for slot in self):
            return self
        local, cloud = [None if slot is None else slot.ready(wanted) for slot in self]
        return Slots(local=local, cloud=cloud)


def build_slots(settings: Settings) -> Slots:
    """The slots that the settings describe. Raises `ConfigError`; contacts nothing."""
    wanted = settings.router.slots
    local = _build_slot("local", settings) if wanted.local is not None else None
    cloud = _build_slot("cloud", settings) if wanted.cloud is not None else None
    return Slots(local=local, cloud=cloud)


def _build_slot(route: Route, settings: Settings) -> Slot:
    chosen = settings.router.slots.local if route == "local" else settings.router.slots.cloud
    assert chosen is not None
    first, *others = [
        Backend(make_provider(route, each, settings), _options(each, settings), each.models, place)
        for place, each in enumerate((chosen, *chosen.fallbacks))
    ]
    return Slot(
        first.provider,
        first.options,
        first.models,
        _limiter(chosen),
        fallbacks=tuple(others),
        health=Health() if others else None,
    )


def _options(chosen: SlotSettings, settings: Settings) -> Options:
    options = Options(model=chosen.model).over(chosen.options).over(settings.router.options)
    return options.over(Options(idle_timeout_s=settings.sessions.idle_timeout_s))


def _limiter(slot: SlotSettings) -> SlotLimiter | None:
    limits = (slot.concurrency, slot.queue, slot.requests_per_minute)
    return None if all(limit is None for limit in limits) else SlotLimiter.of(slot)
