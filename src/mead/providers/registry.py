"""Makes the provider of a slot from its settings: a built-in by name, an installed one by its entry point
(group `mead.providers`), or any class by its dotted path (`package.module:Class`).

A provider's library is loaded when the provider is made, and not before.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

from mead.core.options import Route
from mead.providers.http import HttpClient, environment_proxy, named_network, why_local
from mead.providers.protocol import Provider
from mead.settings import ConfigError, Settings, SlotSettings
from mead.settings.values import BUILT_IN

ENTRY_POINT_GROUP = "mead.providers"
_RESOLVE_TIMEOUT_S = 2.0


def make_provider(route: Route, slot: SlotSettings, settings: Settings) -> Provider:
    """The provider that a slot's settings describe. Contacts nothing.

    Raises `ConfigError` for a name that nobody offers, a class that cannot be loaded or made, and an address
    that cannot be used.
    """
    makers: dict[str, Callable[[Route, SlotSettings, Settings], Provider]] = {
        "ollama": _ollama,
        "openai": _openai,
        "anthropic": _anthropic,
        "embedded": _embedded,
        "echo": _echo,
    }
    return makers.get(slot.provider, _foreign)(route, slot, settings)


def make_client(route: Route, slot: SlotSettings, default_base_url: str) -> HttpClient:
    """The gated connections of a slot. Raises `ConfigError` for a base_url or network that is none."""
    base_url = slot.base_url or default_base_url
    try:
        return HttpClient(
            base_url,
            slot=route,
            allow_remote=slot.allow_remote,
            local_networks=[named_network(text) for text in slot.local_networks],
            proxy=environment_proxy(base_url) if route == "cloud" else None,
            connect_timeout_s=slot.connect_timeout_s,
        )
    except ValueError as error:
        raise ConfigError(f"router.slots.{route}: {error}") from error


async def check_addresses(settings: Settings) -> list[str]:
    """Looks up where a local slot's servers are (R17). Gives warnings for names that cannot be resolved now.

    Raises `ConfigError` for one that is elsewhere, unless the slot says `allow_remote = true`.
    """
    slot = settings.router.slots.local
    servers = () if slot is None else (slot, *slot.fallbacks)
    return [warning for server in servers for warning in await _check_address(server)]


async def _check_address(slot: SlotSettings) -> list[str]:
    if slot.base_url is None or slot.allow_remote or slot.base_url.startswith("unix:"):
        return []
    client = make_client("local", slot, slot.base_url)
    networks = [named_network(text) for text in slot.local_networks]
    name, _, port = client.host.rpartition(":")
    try:
        async with asyncio.timeout(_RESOLVE_TIMEOUT_S):
            found = await asyncio.get_running_loop().getaddrinfo(
                name.strip("[]"), int(port), type=socket.SOCK_STREAM
            )
    except (OSError, TimeoutError):
        return [f"router.slots.local: the name {name} cannot be resolved now; its turns will fail"]
    addresses = [str(info[4][0]) for info in found]
    if any(why_local(address, networks) for address in addresses):
        return []
    raise ConfigError(
        f"router.slots.local: {name} is at {addresses[0]}, which is neither this machine nor a private "
        "network, so what is meant to be local would leave; set allow_remote = true in the slot to allow it"
    )


def _ollama(route: Route, slot: SlotSettings, settings: Settings) -> Provider:
    from mead.providers import ollama

    return ollama.Ollama(make_client(route, slot, ollama.DEFAULT_BASE_URL), api_key=_key(slot))


def _openai(route: Route, slot: SlotSettings, settings: Settings) -> Provider:
    from mead.providers import openai_chat

    client = make_client(route, slot, openai_chat.DEFAULT_BASE_URL)
    return openai_chat.OpenAIChat(client, api_key=_key(slot), needs_key=slot.base_url is None)


def _anthropic(route: Route, slot: SlotSettings, settings: Settings) -> Provider:
    from mead.providers import anthropic

    client = make_client(route, slot, anthropic.DEFAULT_BASE_URL)
    return anthropic.Anthropic(client, api_key=_key(slot), needs_key=slot.base_url is None)


def _embedded(route: Route, slot: SlotSettings, settings: Settings) -> Provider:
    from mead.providers.embedded import EmbeddedProvider

    if route == "cloud":
        raise ConfigError(
            "router.slots.cloud: the embedded model runs on this machine; use it as the local slot"
        )
    chosen = settings.embedded
    return EmbeddedProvider(
        chosen.model_path,
        folder=settings.data_folder / "models",
        threads=chosen.threads,
        context_tokens=chosen.context_tokens,
        parallel=chosen.parallel,
    )


def _echo(route: Route, slot: SlotSettings, settings: Settings) -> Provider:
    from mead.providers.echo import Echo

    return Echo()


def _foreign(route: Route, slot: SlotSettings, settings: Settings) -> Provider:
    """A provider that is not mead's own. It is made with the slot's `options` table as keywords; a slot with
    a `base_url` hands it gated connections as `client`, one with a key `api_key`."""
    made_by = _load(route, slot.provider)
    keywords: dict[str, object] = dict(slot.provider_options)
    if slot.base_url is not None:
        keywords["client"] = make_client(route, slot, slot.base_url)
    key = _key(slot)
    if key is not None:
        keywords["api_key"] = key
    try:
        provider = made_by(**keywords)
    except (TypeError, ValueError) as error:
        said = str(error).replace(key, "…") if key else str(error)
        raise ConfigError(f"router.slots.{route}: {slot.provider} cannot be made: {said}") from error
    if not callable(getattr(provider, "complete", None)):
        raise ConfigError(f"router.slots.{route}: {slot.provider} is no provider: it has no complete()")
    return cast(Provider, provider)  # `complete` is there; its types are its author's


def _load(route: Route, name: str) -> Callable[..., object]:
    module_name, _, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    entry = next(iter(entry_points(group=ENTRY_POINT_GROUP, name=name)), None)
    if entry is None and not (module_name and attribute):
        offered = sorted({*BUILT_IN, *[entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)]})
        raise ConfigError(
            f"router.slots.{route}: there is no provider {name!r}; use one of {', '.join(offered)}, or the "
            "dotted path of a class"
        )
    try:
        found = entry.load() if entry else getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, TypeError) as error:
        raise ConfigError(f"router.slots.{route}: {name} cannot be loaded: {error}") from error
    return found  # type: ignore[no-any-return]


def _key(slot: SlotSettings) -> str | None:
    return slot.api_key.reveal() if slot.api_key is not None else None
