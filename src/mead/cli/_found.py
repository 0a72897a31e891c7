"""Finds a model on this machine that nobody configured, for a newcomer's first command."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Any

import msgspec
from msgspec import Struct

from mead.cli._terminal import say
from mead.core.options import Options
from mead.core.result import Err
from mead.providers.http import HttpClient
from mead.settings import SlotSettings

OLLAMA_URL = "http://127.0.0.1:11434"
LLAMA_CPP_URL = "http://127.0.0.1:8080/v1"
_CONNECT_TIMEOUT_S = 0.3
_ANSWER_TIMEOUT_S = 2.0


class _Model(Struct):
    """A model as a server lists it: Ollama calls it `name`, the others `id`."""

    id: Any = None
    name: Any = None
    remote_host: Any = None
    remote_model: Any = None


class _Models(Struct):
    data: list[_Model] | None = None
    models: list[_Model] | None = None


def find_local() -> SlotSettings | None:
    """The embedded model if its engine is installed, else the first model of an Ollama or a llama.cpp server
    on this machine. Says on standard error which it is."""
    if has_engine():
        say("No model is configured: using the embedded one.")
        return SlotSettings(provider="embedded")
    found = asyncio.run(_find_served())
    if found is not None:
        server = "Ollama" if found.provider == "ollama" else "a server"
        say(f"No model is configured: using {found.model}, which {server} on this machine offers.")
    return found


def has_engine() -> bool:
    """Whether what runs the embedded model is installed."""
    return importlib.util.find_spec("xllamacpp") is not None


async def _find_served() -> SlotSettings | None:
    ollama, llama_cpp = await asyncio.gather(
        _list_models(OLLAMA_URL, "/api/tags"), _list_models(LLAMA_CPP_URL, "/models")
    )
    if ollama:
        return SlotSettings(provider="ollama", base_url=OLLAMA_URL, model=ollama[0])
    if llama_cpp:
        return SlotSettings(provider="openai", base_url=LLAMA_CPP_URL, model=llama_cpp[0])
    return None


async def _list_models(base_url: str, path: str) -> list[str]:
    """The models that can chat and that the server runs itself. None where no such server answers: whatever
    else listens there must not be sent a conversation."""
    client = HttpClient(base_url, slot="local", connect_timeout_s=_CONNECT_TIMEOUT_S)
    try:
        deadline = asyncio.get_running_loop().time() + _ANSWER_TIMEOUT_S
        result = await client.send("GET", path, Options(deadline=deadline))
    finally:
        await client.aclose()
    if isinstance(result, Err) or result.value.status != 200:
        return []
    try:
        listed = msgspec.json.decode(result.value.body, type=_Models)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
    names = [
        model.id or model.name
        for model in listed.data or listed.models or ()
        if not (model.remote_host or model.remote_model)
    ]
    return [name for name in names if isinstance(name, str) and _can_chat_here(name)]


def _can_chat_here(name: str) -> bool:
    """Whether a name speaks against a model: Ollama marks those that it runs in its cloud, and a model that
    makes embeddings cannot talk."""
    return not name.endswith(("-cloud", ":cloud")) and "embed" not in name.lower()
