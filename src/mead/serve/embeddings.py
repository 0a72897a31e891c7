"""Embeddings as OpenAI's clients ask for them, by the local model."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from mead.core.result import Err
from mead.core.usage import Usage
from mead.router.embed import embed
from mead.serve.chat import MAX_TIMEOUT_S, route_of
from mead.serve.endpoint import Call
from mead.serve.errors import Problem, invalid, problem_of, unsupported
from mead.serve.streams import until_gone
from mead.sessions.runtime import TURN_TIMEOUT_S

MAX_TEXTS = 2048
"""How many texts a request may bring."""
_Text: TypeAlias = str | int | list[int]
_MadeBy: TypeAlias = tuple[tuple[float, ...], ...]


class _Wishes(Struct, frozen=True, forbid_unknown_fields=True):
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None


class EmbeddingsRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The body of `/v1/embeddings`."""

    model: str
    input: str | Annotated[list[_Text], Meta(min_length=1, max_length=MAX_TEXTS)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    user: str | None = None
    mead: _Wishes = _Wishes()


async def embeddings(call: Call) -> Response:
    """The vectors of some texts. No text leaves for the cloud model, whatever model is asked for."""
    request = await call.json(EmbeddingsRequest)
    route, model = route_of(call, request.model)
    if route == "cloud":
        raise invalid("embeddings are made by the local model only; ask for mead-local", param="model")
    timeout_s = request.mead.timeout_s or call.runtime.settings.sessions.turn_timeout_s or TURN_TIMEOUT_S
    made = embed(
        _texts(request.input),
        call.runtime.slots,
        model=model,
        dimensions=request.dimensions,
        deadline=asyncio.get_running_loop().time() + timeout_s,
        owner=call.principal.owner,
    )
    result = await until_gone(call.request, made)
    if isinstance(result, Err):
        raise problem_of(result.reason)
    vectors = _encoded(result.value.vectors, as_base64=request.encoding_format == "base64")
    body = {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors)
        ],
        "model": request.model,
        "usage": _usage(result.value.usage),
    }
    return Response(msgspec.json.encode(body), media_type="application/json")


def _texts(asked: str | list[_Text]) -> list[str]:
    texts = [asked] if isinstance(asked, str) else asked
    for index, text in enumerate(texts):
        where = "input" if isinstance(asked, str) else f"input[{index}]"
        if not isinstance(text, str):
            raise unsupported(where, "tokens are another model's; send text")
        if not text.strip():
            raise invalid("holds no text", param=where)
    return [text for text in texts if isinstance(text, str)]


def _encoded(vectors: _MadeBy, *, as_base64: bool) -> Sequence[object]:
    """The vectors as numbers, or each as its float32 values, little-endian, in base64."""
    if not as_base64:
        return vectors
    try:
        packed = [struct.pack(f"<{len(vector)}f", *vector) for vector in vectors]
    except OverflowError:
        raise Problem(502, "malformed_response", "the embeddings hold numbers that are too large") from None
    return [base64.b64encode(data).decode() for data in packed]


def _usage(usage: Usage) -> dict[str, int] | None:
    if usage.input_tokens is None:
        return None
    return {"prompt_tokens": usage.input_tokens, "total_tokens": usage.input_tokens}
