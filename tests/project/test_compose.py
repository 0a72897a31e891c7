"""The compose example: it can be read, and its settings are settings."""

from __future__ import annotations

from pathlib import Path

import yaml

from mead.router.slots import build_slots
from mead.settings import load

FOLDER = Path(__file__).parents[2] / "examples" / "compose"


def test_the_services_are_wired_to_each_other_and_open_on_this_machine_only() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]

    assert set(services) == {"ollama", "mead", "open-webui"}
    assert services["open-webui"]["environment"]["OPENAI_API_BASE_URL"] == "http://mead:4141/v1"
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_settings_of_the_example_fill_both_slots() -> None:
    settings = load(FOLDER / "mead.toml", environ={"ANTHROPIC_API_KEY": "sk-ant-0123456789"})

    slots = build_slots(settings)
    assert slots.local is not None
    assert slots.cloud is not None
    assert settings.serve.allowed_hosts == ("mead", "localhost", "127.0.0.1")
    assert settings.router.slots.local is not None
    assert settings.router.slots.local.base_url == "http://ollama:11434"
