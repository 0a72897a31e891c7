"""Sets up what the table [telemetry] of the settings asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from mead.telemetry.logs import configure_logging

_NO_EXTRA = "[telemetry] otel needs its extra: pip install 'mead-runtime[otel]'"


class TelemetryChoice(Protocol):
    """`mead.settings.TelemetrySettings`: what is sent where, and how log lines look."""

    @property
    def otel(self) -> bool: ...

    @property
    def log_format(self) -> Literal["text", "json"]: ...

    @property
    def owners(self) -> bool: ...


class HasTelemetry(Protocol):
    """`mead.Settings`."""

    @property
    def telemetry(self) -> TelemetryChoice: ...


def install_from_settings(settings: HasTelemetry) -> Callable[[], None]:
    """Writes log lines in the chosen format and, with `otel`, sends spans and metrics by OTLP. For programs
    that are the whole process, as `mead serve` is.

    Returns what sends the rest and ends the sending; it may take some seconds, so call it on a thread, or
    when the server is down. Raises `ValueError` where the extra `otel` is missing, and for an exporter in
    OpenTelemetry's variables that mead does not bring.
    """
    choice = settings.telemetry
    configure_logging(choice.log_format)
    if not choice.otel:
        return lambda: None
    try:
        from mead.telemetry import otel
    except ImportError:
        raise ValueError(_NO_EXTRA) from None
    try:
        return otel.install_exporters(owners=choice.owners)
    except ImportError:
        raise ValueError(_NO_EXTRA) from None
