"""`mead doctor`: looks at the configuration and at each model, and says what to do."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from typing import Literal

import click
from msgspec import Struct

from mead.cli import _json
from mead.cli._open import command_settings
from mead.cli._terminal import TURN_FAILED, describe, fail_usage, safe
from mead.core.options import Options, Route
from mead.core.result import Ok
from mead.providers.checks import check_provider
from mead.providers.http import HttpClient
from mead.providers.protocol import close_provider
from mead.providers.registry import check_addresses
from mead.router.slots import Slot, build_slots
from mead.settings import ConfigError, Settings

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
    settings = command_settings(config)
    checks = asyncio.run(_look(settings))
    if as_json:
        _json.write({"ok": not _failed(checks), "checks": checks})
    else:
        for check in checks:
            click.echo(safe(f"{_MARKS[check.status]} {check.what:<14} {check.said}"))
    sys.exit(TURN_FAILED if _failed(checks) else 0)


def _failed(checks: list[Check]) -> bool:
    return any(check.status == "error" for check in checks)


async def _look(settings: Settings) -> list[Check]:
    source = str(settings.source) if settings.source else "no file; the defaults hold"
    checks = [Check("configuration", "ok", source)]
    checks += [Check("configuration", "warning", warning) for warning in settings.warnings]
    try:
        slots = build_slots(settings)
        checks += [Check("local slot", "warning", warning) for warning in await check_addresses(settings)]
    except ConfigError as error:
        fail_usage(str(error))
    for route, slot in (("local", slots.local), ("cloud", slots.cloud)):
        checks += await _look_at_slot(route, slot, settings)  # type: ignore[arg-type]  # the two routes
    checks.append(Check("data folder", "ok", str(settings.data_folder)))
    return checks


async def _look_at_slot(route: Route, slot: Slot | None, settings: Settings) -> list[Check]:
    what = f"{route} slot"
    if slot is None:
        return [Check(what, "empty", f"empty: a turn for it fails with {route}_unavailable")]
    chosen = settings.router.slots.local if route == "local" else settings.router.slots.cloud
    assert chosen is not None
    if chosen.provider == "embedded":
        return [_look_at_embedded(what, settings)]
    options: Options = slot.options
    loop = asyncio.get_running_loop()
    timed = Options(deadline=loop.time() + _CHECK_TIMEOUT_S, model=options.model, route=route)
    result = await check_provider(slot.provider, timed)
    await close_provider(slot.provider)
    said = f"{chosen.provider}: " + (result.value if isinstance(result, Ok) else describe(result.reason))
    checks = [Check(what, "ok" if isinstance(result, Ok) else "error", said)]
    client = getattr(slot.provider, "client", None)
    if route == "local" and isinstance(client, HttpClient):
        checks.append(Check(what, "warning" if client.allow_remote else "ok", _reach(client)))
    return checks


def _reach(client: HttpClient) -> str:
    if client.allow_remote:
        return "allow_remote is set: what is meant to be local may leave this machine"
    return (
        "connects to this machine or a private network only; whether something there passes the text on "
        "(a proxy on loopback, say) cannot be seen from here"
    )


def _look_at_embedded(what: str, settings: Settings) -> Check:
    from mead.providers.embedded.model import find_model

    if importlib.util.find_spec("xllamacpp") is None:
        return Check(what, "error", "embedded: its engine is missing; pip install 'mead-runtime[local]'")
    path = settings.embedded.model_path or find_model(settings.data_folder / "models")
    if path is None:
        return Check(
            what, "warning", "embedded: the model is fetched at first use, or by: mead model install"
        )
    if not path.is_file():
        return Check(what, "error", f"embedded: there is no file {path}")
    return Check(what, "ok", f"embedded: {path.name} (cannot use tools)")
