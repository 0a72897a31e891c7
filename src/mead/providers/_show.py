"""Asks `/api/show`, by which an Ollama server tells what a model can do and where it runs (R17).

A model's name proves nothing, and neither does the wire format that is spoken: Ollama serves the formats of
OpenAI and Anthropic too. Other servers do not know the path, which is answer enough.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec
from msgspec import Struct

from mead.core.options import Options
from mead.core.reasons import ProviderReason, Transport
from mead.core.result import Err, Ok, Result
from mead.providers._errors import Sent, reason_of
from mead.providers.http import HttpClient

_KEPT_S = 60.0


class Facts(Struct, frozen=True):
    """What a server says of a model. `tools` is `None` where it does not say, `runs_at` for a model that it
    runs itself."""

    at: float
    tools: bool | None = None
    runs_at: str | None = None
    context_tokens: int | None = None


class Show:
    """The question to one server; its answers are remembered for a minute.

    With `is_ollama` false nobody knows what the server is: the question goes to where Ollama has it, beside
    the `/v1` of its other formats, and a server that refuses it is simply not Ollama.
    """

    def __init__(
        self, client: HttpClient, headers: Mapping[str, str], *, secret: str, is_ollama: bool = False
    ) -> None:
        self._client = client
        self._headers = headers
        self._secret = secret
        self._is_ollama = is_ollama
        self._known: dict[str, Facts] = {}

    def known(self, options: Options) -> Facts | None:
        """What was said of the model last."""
        return self._known.get(model_of(options))

    async def ask(self, options: Options) -> Result[Facts, ProviderReason]:
        """What the server says of the model, by `options.deadline` at the latest."""
        model = model_of(options)
        now = asyncio.get_running_loop().time()
        known = self._known.get(model)
        if known is not None and now - known.at < _KEPT_S:
            return Ok(known)
        prefix = self._client.prefix if self._is_ollama else self._client.prefix.removesuffix("/v1")
        result = await self._client.send(
            "POST",
            f"{prefix}/api/show",
            options,
            body=msgspec.json.encode({"model": model}),
            headers=self._headers,
            at_root=True,
        )
        if isinstance(result, Err):
            return result
        facts = Facts(at=now)
        if result.value.status == 200:
            facts = _read(result.value.body, now)
        elif not self._lacks_the_call(result.value.status, result.value.body):
            sent = Sent((), system=None, secret=self._secret, tools=False)
            return Err(reason_of(result.value, sent))
        self._known[model] = facts
        return Ok(facts)

    async def elsewhere(self, options: Options) -> ProviderReason | None:
        """Why a local slot may not use the model: it runs elsewhere, or the server does not get to say."""
        facts = await self.ask(options)
        if isinstance(facts, Err):
            return facts.reason
        return runs_elsewhere(options.model, facts.value.runs_at) if facts.value.runs_at else None

    def _lacks_the_call(self, status: int, body: bytes) -> bool:
        """Whether the server does not know `/api/show` at all."""
        if self._is_ollama:
            return status in (404, 405, 501) and b"model" not in body
        # Ollama itself answers 404 for a model that it does not have: then the call will say so.
        return status < 500 or status == 501


def model_of(options: Options) -> str:
    """The model that a request names, which the slot's `extra` may replace."""
    return str((options.extra or {}).get("model") or options.model or "")


def runs_elsewhere(model: str | None, where: str) -> Transport:
    """The reason for a model that Ollama only passes on."""
    return Transport(
        cause="not_local",
        detail=f"Ollama runs {model} at {where}, not on this machine, and the slot is local. Choose another "
        "model, or set allow_remote = true in the slot.",
    )


def remote(host: object, model: object) -> str | None:
    """Where a model runs that Ollama only passes on, `None` for one it runs itself."""
    if host or model:
        return str(host or "its cloud")
    return None


def _read(body: bytes, now: float) -> Facts:
    try:
        shown = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Facts(at=now)
    if not isinstance(shown, dict):
        return Facts(at=now)
    capabilities = shown.get("capabilities")
    info = shown.get("model_info")
    lengths = [
        value
        for key, value in (info.items() if isinstance(info, dict) else ())
        if str(key).endswith(".context_length") and isinstance(value, int)
    ]
    return Facts(
        at=now,
        tools="tools" in capabilities if isinstance(capabilities, list) else None,
        runs_at=remote(shown.get("remote_host"), shown.get("remote_model")),
        context_tokens=lengths[0] if lengths else None,
    )
