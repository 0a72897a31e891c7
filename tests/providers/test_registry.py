"""A slot's provider is made from its settings, and mistakes in them are told by name."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from mead.core.options import Route
from mead.providers import registry
from mead.providers.anthropic import Anthropic
from mead.providers.echo import Echo
from mead.providers.embedded import EmbeddedProvider
from mead.providers.http import HttpClient
from mead.providers.ollama import Ollama
from mead.providers.openai_chat import OpenAIChat
from mead.providers.registry import check_addresses, make_client, make_provider
from mead.settings import ConfigError, RouterSettings, Secret, Settings, SlotSettings, SlotsSettings
from mead.testing import ScriptedProvider

SETTINGS = Settings()
KEY = "sk-0123456789-secret"


class Mine:
    """A provider as somebody else's package would have it."""

    def __init__(self, **keywords: Any) -> None:
        self.keywords = keywords

    async def complete(self, messages: Any, options: Any) -> Any: ...


class Careful:
    def __init__(self, *, api_key: str | None = None) -> None:
        raise ValueError(f"{api_key} is no key of mine")


class NoProvider:
    """Has no complete()."""


NOT_CALLABLE = 7


def made(provider: str, route: Route = "local", **keywords: Any) -> Any:
    return make_provider(route, SlotSettings(provider=provider, **keywords), SETTINGS)


def mistake(provider: str, route: Route = "local", **keywords: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        made(provider, route, **keywords)
    return str(caught.value)


@pytest.fixture
def entry_point(monkeypatch: pytest.MonkeyPatch) -> list[EntryPoint]:
    """The installed entry points; a test adds to them."""
    installed: list[EntryPoint] = []

    def entry_points(*, group: str, name: str | None = None) -> list[EntryPoint]:
        assert group == "mead.providers"
        return [entry for entry in installed if name in (None, entry.name)]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    return installed


# Built-in


@pytest.mark.parametrize(
    "name, kind, host",
    [
        ("ollama", Ollama, "127.0.0.1:11434"),
        ("openai", OpenAIChat, "api.openai.com:443"),
        ("anthropic", Anthropic, "api.anthropic.com:443"),
    ],
)
@pytest.mark.parametrize("route", ["local", "cloud"])
def test_a_built_in_provider_has_its_usual_server(name: str, kind: type, host: str, route: Route) -> None:
    provider = made(name, route)

    assert type(provider) is kind
    assert (provider.client.host, provider.client.slot, provider.name) == (host, route, name)


@pytest.mark.parametrize("name", ["ollama", "openai", "anthropic"])
def test_a_built_in_provider_takes_its_address_and_key_from_the_slot(name: str) -> None:
    provider = made(name, base_url="http://10.0.0.5:8080/v1", api_key=Secret(KEY), allow_remote=True)

    assert provider.client.host == "10.0.0.5:8080"
    assert provider.client.allow_remote
    assert provider.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("name", ["openai", "anthropic"])
def test_the_vendor_itself_needs_a_key_and_another_server_does_not(name: str) -> None:
    assert made(name).missing_key() is not None
    assert made(name, api_key=Secret("")).missing_key() is not None
    assert made(name, api_key=Secret(KEY)).missing_key() is None
    assert made(name, base_url="http://127.0.0.1:8080").missing_key() is None


def test_the_echo_and_the_embedded_model() -> None:
    assert isinstance(made("echo"), Echo)
    assert isinstance(made("embedded"), EmbeddedProvider)
    assert "router.slots.cloud" in mistake("embedded", "cloud")


async def test_r17_only_a_cloud_slot_takes_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:1")
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    slot = SlotSettings(provider="openai", base_url="http://models.example")

    assert make_client("local", slot, "")._proxy is None
    assert make_client("cloud", slot, "")._proxy == "http://proxy:1"


@pytest.mark.parametrize(
    "keywords, words",
    [
        ({"base_url": "localhost:11434"}, "base_url must look like"),
        ({"base_url": "ftp://x"}, "base_url must look like"),
        ({"local_networks": ("8.8.8.0/24",)}, "8.8.8.0/24"),
        ({"local_networks": ("home",)}, "home"),
    ],
)
def test_an_address_or_a_network_that_is_none_names_the_slot(keywords: Any, words: str) -> None:
    said = mistake("ollama", **keywords)

    assert said.startswith("router.slots.local: ")
    assert words in said


# Somebody else's


def test_a_dotted_path_is_loaded() -> None:
    for name in (f"{__name__}:Mine", f"{__name__}.Mine"):
        assert made(name, provider_options={"depth": 3}).keywords == {"depth": 3}
    assert isinstance(made("mead.testing:ScriptedProvider"), ScriptedProvider)


def test_a_foreign_provider_gets_gated_connections_and_its_key() -> None:
    provider = made(f"{__name__}:Mine", base_url="http://127.0.0.1:9", api_key=Secret(KEY), local_networks=())
    client = provider.keywords["client"]

    assert isinstance(client, HttpClient)
    assert (client.slot, client.host) == ("local", "127.0.0.1:9")
    assert provider.keywords["api_key"] == KEY


def test_an_entry_point_is_loaded_by_its_name(entry_point: list[EntryPoint]) -> None:
    entry_point.append(EntryPoint("mine", f"{__name__}:Mine", "mead.providers"))

    assert made("mine", provider_options={"a": 1}).keywords == {"a": 1}


def test_a_built_in_name_cannot_be_taken_over(entry_point: list[EntryPoint]) -> None:
    entry_point.append(EntryPoint("ollama", f"{__name__}:Mine", "mead.providers"))

    assert isinstance(made("ollama"), Ollama)


@pytest.mark.parametrize("target", ["no_such_module:X", f"{__name__}:Missing"], ids=["module", "attribute"])
def test_an_entry_point_that_cannot_be_loaded_is_a_config_error(
    target: str, entry_point: list[EntryPoint]
) -> None:
    entry_point.append(EntryPoint("mine", target, "mead.providers"))

    assert mistake("mine").startswith("router.slots.local: mine cannot be loaded")


def test_an_unknown_name_lists_what_there_is(entry_point: list[EntryPoint]) -> None:
    entry_point.append(EntryPoint("mine", "x:Y", "mead.providers"))
    said = mistake("olama")

    assert "there is no provider 'olama'" in said
    for name in ("ollama", "openai", "anthropic", "embedded", "echo", "mine"):
        assert name in said


@pytest.mark.parametrize(
    "name",
    [
        "no_such_module:X",
        "no.such.module.X",
        f"{__name__}:Missing",
        ".relative:X",
        "..X",
        ":X",
        "mead.",
        "mead:",
    ],
)
def test_a_path_that_leads_nowhere_is_a_config_error(name: str) -> None:
    assert mistake(name).startswith("router.slots.local: ")


@pytest.mark.parametrize(
    "name, keywords, words",
    [
        ("Echo", {}, "no provider 'Echo'"),
        (f"{__name__}:NoProvider", {}, "it has no complete()"),
        (f"{__name__}:NOT_CALLABLE", {}, "cannot be made"),
        (f"{__name__}:NoProvider", {"provider_options": {"x": 1}}, "cannot be made"),
    ],
)
def test_a_class_that_is_no_provider_is_a_config_error(name: str, keywords: Any, words: str) -> None:
    assert words in mistake(name, **keywords)


def test_a_config_error_never_shows_the_key() -> None:
    said = mistake(f"{__name__}:Careful", api_key=Secret(KEY))

    assert "cannot be made" in said
    assert KEY not in said


# Where the local server is


def settings(**keywords: Any) -> Settings:
    slot = SlotSettings(provider="ollama", **keywords)
    return Settings(router=RouterSettings(slots=SlotsSettings(local=slot)))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What names resolve to in a test; one that is not in it does not resolve."""
    known: dict[str, list[str]] = {}

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> Any:
        addresses = known.get(host, [host] if host[:1].isdigit() or ":" in host else None)
        if addresses is None:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return known


async def test_r17_a_local_server_that_is_elsewhere_is_a_config_error(names: dict[str, list[str]]) -> None:
    names["models.example"] = ["93.184.216.34"]
    for base_url in (
        "http://models.example:1",
        "http://8.8.8.8",
        "http://0.0.0.0:11434",
        "http://[2001:db8::1]",
    ):
        with pytest.raises(ConfigError, match="allow_remote"):
            await check_addresses(settings(base_url=base_url))


@pytest.mark.parametrize(
    "keywords",
    [
        {},
        {"base_url": "http://127.0.0.1:1"},
        {"base_url": "http://[::1]:1"},
        {"base_url": "http://models.lan"},
        {"base_url": "unix:/run/model.sock"},
        {"base_url": "http://8.8.8.8", "allow_remote": True},
        {"base_url": "http://100.64.0.9", "local_networks": ("100.64.0.0/16",)},
    ],
)
async def test_r17_a_local_server_that_is_here_is_fine(keywords: Any, names: dict[str, list[str]]) -> None:
    names["models.lan"] = ["93.184.216.34", "192.168.1.2"]

    assert await check_addresses(settings(**keywords)) == []
    assert await check_addresses(Settings()) == []


async def test_r17_a_name_that_cannot_be_resolved_is_a_warning(names: dict[str, list[str]]) -> None:
    [warning] = await check_addresses(settings(base_url="http://models.lan"))

    assert "models.lan cannot be resolved" in warning


async def test_r17_a_name_service_that_hangs_is_a_warning_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    monkeypatch.setattr(registry, "_RESOLVE_TIMEOUT_S", 0.02)

    assert len(await check_addresses(settings(base_url="http://models.lan"))) == 1


# What is loaded when


def loaded_by(code: str) -> set[str]:
    """The modules of mead and its libraries that a fresh interpreter has loaded after this code."""
    program = f"{code}\nimport sys\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_format_is_loaded_when_its_provider_is_made() -> None:
    before = loaded_by("import mead.providers.registry")
    after = loaded_by(
        "from mead.providers.registry import make_provider\n"
        "from mead.settings import Settings, SlotSettings\n"
        "make_provider('local', SlotSettings(provider='ollama'), Settings())"
    )

    formats = {
        f"mead.providers.{name}" for name in ("ollama", "openai_chat", "anthropic", "embedded", "echo")
    }
    assert before & formats == set()
    assert after & formats == {"mead.providers.ollama"}


def test_nothing_that_users_run_loads_the_test_kit_or_pytest() -> None:
    found = loaded_by("import mead.providers.registry, mead.providers.openai_chat, mead.providers.checks")

    assert {name for name in found if name.startswith(("mead.testing", "pytest", "_pytest"))} == set()


def test_the_package_is_the_one_under_test() -> None:
    assert Path(registry.__file__).parts[-4:] == ("src", "mead", "providers", "registry.py")
