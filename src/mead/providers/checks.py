"""Asks a provider's server whether it is there and has the model; sends nothing of a conversation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mead.core.options import Options
from mead.core.reasons import HttpStatus, ProviderReason
from mead.core.result import Err, Ok, Result
from mead.providers._adapter import HttpAdapter
from mead.providers._errors import Sent, reason_of
from mead.providers.anthropic import Anthropic
from mead.providers.ollama import Ollama
from mead.providers.protocol import Provider, name_of


async def check_provider(provider: Provider, options: Options) -> Result[str, ProviderReason]:
    """A sentence about a provider that is ready, or the reason why it is not. Costs no tokens."""
    if not isinstance(provider, HttpAdapter):
        return Ok(f"{name_of(provider)} needs no server")
    refusal = provider.missing_key()
    if refusal is not None:
        return Err(refusal)
    models = await list_models(provider, options)
    if isinstance(models, Err):
        if isinstance(models.reason, HttpStatus) and models.reason.status in (404, 405):
            return Ok(f"{provider.client.host} answers, but does not list its models")
        return models
    under_any_name = len(models.value) == 1 and not isinstance(provider, Ollama)
    if options.model is not None and not (under_any_name or _has(models.value, options.model)):
        known = ", ".join(sorted(models.value)[:8]) or "none"
        said = f"{provider.client.host} has no model {options.model!r}; it has: {known}"
        if isinstance(provider, Ollama):
            said += f". Fetch it with: ollama pull {options.model}"
        return Err(HttpStatus(status=404, detail=said))
    return Ok(f"{provider.client.host} answers" + (f" and has {options.model}" if options.model else ""))


async def list_models(provider: HttpAdapter, options: Options) -> Result[Sequence[str], ProviderReason]:
    """The names of the models that the server offers."""
    path = "/models"
    if isinstance(provider, Ollama):
        path = "/api/tags"
    elif isinstance(provider, Anthropic):
        path = "/v1/models"
    result = await provider.client.send("GET", path, options, headers=provider.headers)
    if isinstance(result, Err):
        return result
    if result.value.status != 200:
        return Err(reason_of(result.value, Sent((), system=None, secret=provider.api_key, tools=False)))
    return Ok(_names(result.value.body))


def _names(body: bytes) -> list[str]:
    """Model names from a list in OpenAI's, Anthropic's (`data`) or Ollama's form (`models`)."""
    try:
        parsed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []
    if not isinstance(parsed, dict):
        return []
    entries = parsed.get("data") or parsed.get("models")
    if not isinstance(entries, list):
        return []
    names = [entry.get("id") or entry.get("name") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]


def _has(models: Sequence[str], wanted: str) -> bool:
    """Whether the server has the model: Ollama's `name` stands for `name:latest`. One that lists none cannot
    be asked."""
    return not models or wanted in models or f"{wanted}:latest" in models
