"""The event bus: attach a handler, and it is called with each event as it happens.

    detach = mead.telemetry.attach(print, "mead.router.route")

Handlers run in the order they were attached, on the thread that emits, and must be quick. One that raises
harms nobody: it is logged, and the others are called all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from mead.telemetry.events import NAMES, PROVIDER_CALL, ROUTE, SERVER, STAGE, TOOL_CALL, TURN, Event

EventHandler: TypeAlias = Callable[[Event], object]

_log = logging.getLogger("mead.telemetry")
_handlers: dict[str, tuple[EventHandler, ...]] = {}


def attach(handler: EventHandler, *names: str) -> Callable[[], None]:
    """Calls `handler` with every event of these names, or of all names if none is given.

    Returns what detaches it again, which may be called twice. Raises `ValueError` for a name that is not in
    the catalogue.
    """
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ValueError(f"there is no event {unknown[0]!r}; the events are {', '.join(NAMES)}")
    chosen = names or NAMES
    entry: EventHandler = lambda event: handler(event)  # noqa: E731 - its own identity, to detach just this one
    for name in chosen:
        _handlers[name] = (*_handlers.get(name, ()), entry)

    def detach() -> None:
        for name in chosen:
            _handlers[name] = tuple(known for known in _handlers.get(name, ()) if known is not entry)

    return detach


def listened(name: str) -> bool:
    """Whether anybody listens: an event nobody hears need not be made."""
    return bool(_handlers.get(name))


def emit(
    name: str,
    measurements: Mapping[str, float | int | None],
    metadata: Mapping[str, str | int | bool | None],
) -> None:
    """Calls the handlers of `name`. Raises nothing but a `KeyboardInterrupt` of theirs."""
    handlers = _handlers.get(name)
    if not handlers:
        return
    event = Event(name, measurements, metadata)
    for handler in handlers:
        try:
            handler(event)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # The exception's own text is left out: it may quote what the handler was working on.
            _log.warning("a handler of %s raised %s", name, type(error).__name__)


__all__ = [
    "NAMES",
    "PROVIDER_CALL",
    "ROUTE",
    "SERVER",
    "STAGE",
    "TOOL_CALL",
    "TURN",
    "Event",
    "EventHandler",
    "attach",
    "emit",
    "listened",
]
