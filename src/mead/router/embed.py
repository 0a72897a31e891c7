"""Embeddings, made on this machine only: a vector holds most of what its text says."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mead import telemetry
from mead.core.options import NO_OPTIONS, Options, TurnOptions
from mead.core.reasons import InvalidOptions, LocalUnavailable, ProviderReason, TurnReason
from mead.core.result import Err, Ok, Result
from mead.core.usage import Usage
from mead.providers.protocol import EmbeddingProvider, Embeddings, can_embed, name_of
from mead.router.slots import Backend, Slot, Slots
from mead.telemetry.calls import tell_call


async def embed(
    texts: Sequence[str],
    slots: Slots,
    *,
    model: str | None = None,
    dimensions: int | None = None,
    deadline: float | None = None,
    owner: str = "local",
) -> Result[Embeddings, TurnReason]:
    """The vectors of the texts, by the local slot: the cloud slot is never asked.

    `model` is one that the slot lists, by default its first; `dimensions` is how long the vectors are to be,
    where the model can choose; `deadline` is on the event loop's clock. Fails with `LocalUnavailable` for an
    empty slot, with `InvalidOptions` for one that makes no embeddings or does not list the model, and as the
    provider does.
    """
    slot = slots.ready(NO_OPTIONS if model is None else Options(model=model)).local
    if slot is None:
        hint = "no local model is configured: add a [router.slots.local] to mead.toml"
        return Err(LocalUnavailable(detail=hint))
    chosen = _chosen(slot, Options(model=model))
    if isinstance(chosen, InvalidOptions):
        return Err(chosen)
    provider, options = chosen
    extra = None if dimensions is None else {"dimensions": dimensions}
    # What else stands in the slot's options is for chats.
    asked = Options(model=options.model, extra=extra, deadline=deadline, route="local")
    if slot.limiter is None:
        return await _told(provider, texts, asked, owner)
    entered = await slot.limiter.enter(owner=owner, deadline=deadline)
    if isinstance(entered, Err):
        return entered
    with entered.value:
        return await _told(provider, texts, asked, owner)


def _chosen(slot: Slot, wanted: Options) -> tuple[EmbeddingProvider, Options] | InvalidOptions:
    """The first provider of the slot that takes the model and makes embeddings."""
    fitting = [(backend, options) for backend in slot.backends if (options := _options(backend, wanted))]
    if not fitting:
        refused = slot.options_for(wanted)
        assert isinstance(refused, InvalidOptions)
        return refused
    for backend, options in fitting:
        if can_embed(backend.provider):
            return backend.provider, options
    name = name_of(fitting[0][0].provider)
    return InvalidOptions(detail=f"{name} makes no embeddings; the local slot needs a server that does")


def _options(backend: Backend, wanted: Options) -> Options | None:
    options = backend.options_for(wanted)
    return None if isinstance(options, InvalidOptions) else options


async def _told(
    provider: EmbeddingProvider, texts: Sequence[str], options: Options, owner: str
) -> Result[Embeddings, ProviderReason]:
    """Asks the provider, and tells of the call."""
    started, status = time.perf_counter(), "cancelled"
    usage: Usage | None = None
    try:
        result = await provider.embed(texts, options)
        status, usage = ("ok", result.value.usage) if isinstance(result, Ok) else (result.reason.tag, None)
        return result
    finally:
        if telemetry.listened(telemetry.PROVIDER_CALL):
            tell_call(
                operation="embeddings",
                route="local",
                provider=name_of(provider),
                model=options.model,
                usage=usage,
                status=status,
                duration_s=time.perf_counter() - started,
                options=TurnOptions(owner=owner),
            )
