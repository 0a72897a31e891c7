"""`mead doctor`: looks at the configuration and at each model, and says what to do."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from pathlib import Path
from typing import Literal

import click
from msgspec import Struct

from mead.cli._found import has_engine
from mead.cli._hub import NO_SDK, start_all, with_hub
from mead.cli._json import write_json
from mead.cli._open import NO_MODEL, find_settings, lacks_model
from mead.cli._terminal import TURN_FAILED, WRONG_USAGE, describe, safe, write
from mead.core.options import Options, Route
from mead.core.reasons import HttpStatus, ProviderReason
from mead.core.result import Ok
from mead.mcp.connection import Health
from mead.mcp.hub import McpHub
from mead.providers.checks import check_provider
from mead.providers.http import HttpClient
from mead.providers.protocol import close_provider
from mead.providers.registry import check_addresses
from mead.router.slots import Backend, Slot, build_slots
from mead.settings import ConfigError, Settings, SlotSettings

_CHECK_TIMEOUT_S = 10.0
_MARKS = {"ok": "✓", "warning": "!", "error": "✗", "empty": "–"}


class Check(Struct, frozen=True):
    """One thing that was looked at."""

    what: str
    status: Literal["ok", "warning", "error", "empty"]
    said: str


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def command(config: Path | None, /, as_json: bool) -> None:
    """Check the configuration and each model, and say what to do."""
    status = 0
    try:
        checks = _look(find_settings(config))
        if any(check.status == "error" for check in checks):
            status = TURN_FAILED
    except ConfigError as error:
        checks, status = [Check("configuration", "error", str(error))], WRONG_USAGE
    if as_json:
        write_json({"ok": status == 0, "checks": checks})
    else:
        write("\n".join([safe(f"{_MARKS[check.status]} {check.what:<14} {check.said}") for check in checks]))
    sys.exit(status)


def _look(settings: Settings) -> list[Check]:
    """Everything there is to look at. Raises `ConfigError` for settings that cannot work."""
    source = str(settings.source) if settings.source else "no file; the defaults hold"
    checks = [Check("configuration", "ok", source)]
    checks += [Check("configuration", "warning", warning) for warning in settings.warnings]
    if settings.router.handler == "echo":
        said = 'with handler = "echo" under [router] every turn is echoed, and no model is asked'
        checks.append(Check("configuration", "warning", said))
    if lacks_model(settings):
        checks.append(Check("models", "error", NO_MODEL))
    checks += asyncio.run(_look_at_slots(settings))
    checks += _look_at_servers(settings)
    return [*checks, _look_at_folder(settings.data_folder)]


async def _look_at_slots(settings: Settings) -> list[Check]:
    slots = build_slots(settings)
    checks = [Check("local slot", "warning", warning) for warning in await check_addresses(settings)]
    chosen = settings.router.slots
    checks += await _look_at_slot("local", slots.local, chosen.local, settings)
    checks += await _look_at_slot("cloud", slots.cloud, chosen.cloud, settings)
    return checks


async def _look_at_slot(
    route: Route, slot: Slot | None, chosen: SlotSettings | None, settings: Settings
) -> list[Check]:
    what = f"{route} slot"
    if slot is None or chosen is None:
        return [Check(what, "empty", f"empty: a turn for it fails with {route}_unavailable")]
    checks = []
    for backend, described in zip(slot.backends, (chosen, *chosen.fallbacks), strict=True):
        checks += await _look_at_backend(what, route, backend, described, settings)
    return checks


async def _look_at_backend(
    what: str, route: Route, backend: Backend, chosen: SlotSettings, settings: Settings
) -> list[Check]:
    """One provider of a slot, with each of its models."""
    if chosen.provider == "embedded":
        return [_look_at_embedded(what, settings)]
    checks = []
    for model in dict.fromkeys([backend.options.model, *backend.models]):
        deadline = asyncio.get_running_loop().time() + _CHECK_TIMEOUT_S
        options = Options(deadline=deadline, model=model, route=route)
        result = await check_provider(backend.provider, options)
        said = result.value if isinstance(result, Ok) else _why(result.reason)
        status: Literal["ok", "error"] = "ok" if isinstance(result, Ok) else "error"
        checks.append(Check(what, status, f"{chosen.provider}: {said}"))
        if not (isinstance(result, Ok) or isinstance(result.reason, HttpStatus)):
            break  # what keeps one model from being asked about keeps them all
    await close_provider(backend.provider)
    client = getattr(backend.provider, "client", None)
    if route == "local" and isinstance(client, HttpClient):
        checks.append(Check(what, "warning" if client.allow_remote else "ok", _reach(client)))
    return checks


def _why(reason: ProviderReason) -> str:
    if isinstance(reason, HttpStatus) and reason.status == 404 and reason.detail:
        return reason.detail  # it lists the models itself
    return describe(reason)


def _reach(client: HttpClient) -> str:
    if client.allow_remote:
        return "allow_remote is set: what is meant to be local may leave this machine"
    return (
        "connects to this machine or a private network only; whether something there passes the text on "
        "(a proxy on loopback, say) cannot be seen from here"
    )


def _look_at_embedded(what: str, settings: Settings) -> Check:
    from mead.providers.embedded.model import find_model

    if not has_engine():
        return Check(what, "error", "embedded: its engine is missing; pip install 'mead-runtime[local]'")
    path = settings.embedded.model_path or find_model(settings.data_folder / "models")
    if path is None:
        return Check(
            what, "warning", "embedded: the model is fetched at first use, or by: mead model install"
        )
    if not os.path.isfile(path):
        return Check(what, "error", f"embedded: there is no file {path}; correct model_path in mead.toml")
    return Check(what, "ok", f"embedded: {path.name} (its use of tools is emulated: docs/embedded.md)")


def _look_at_servers(settings: Settings) -> list[Check]:
    """Starts every MCP server once, side by side."""
    if not settings.mcp.servers:
        return []
    if importlib.util.find_spec("mcp") is None:
        return [Check("MCP servers", "error", NO_SDK)]

    async def look(hub: McpHub) -> tuple[Health, ...]:
        await start_all(hub)
        return hub.health()

    return [_server_check(health) for health in with_hub(settings, look)]


def _server_check(health: Health) -> Check:
    what = f"MCP {health.name}"
    if health.state == "ready":
        notes = f"; {'; '.join(health.notes)}" if health.notes else ""
        said = f"{health.tools} tools, protocol {health.protocol}{notes}"
        return Check(what, "warning" if health.notes else "ok", said)
    if health.state == "disabled":
        return Check(what, "empty", "disabled in the settings")
    return Check(what, "error", f"{health.state}: {health.why}")


def _look_at_folder(folder: Path) -> Check:
    """Whether mead can keep things in the data folder, or make it."""
    place = next(place for place in (folder, *folder.absolute().parents) if os.path.exists(place))
    if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
        return Check("data folder", "ok", str(folder))
    said = f"{folder} cannot be written to; name another one in $MEAD_DATA_FOLDER"
    return Check("data folder", "error", said)
