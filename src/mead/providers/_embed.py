"""Asks servers for embeddings: one request, and what its answer must hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from mead.core.messages import Message, clean_text
from mead.core.options import Options
from mead.core.reasons import ProviderReason
from mead.core.result import Err, Ok, Result
from mead.core.usage import Usage
from mead.providers._adapter import count
from mead.providers._errors import Sent, reason_of, unreadable
from mead.providers.http import HttpClient
from mead.providers.protocol import Embeddings


class _OllamaBody(Struct):
    embeddings: tuple[tuple[float, ...], ...]
    prompt_eval_count: Any = None


class _Datum(Struct):
    embedding: tuple[float, ...]
    index: int | None = None


class _OpenAIBody(Struct):
    data: list[_Datum]
    usage: dict[str, Any] | None = None


def read_ollama(body: bytes) -> Embeddings:
    """The answer of `/api/embed`. Raises `msgspec.MsgspecError` for what is none."""
    answer = msgspec.json.decode(body, type=_OllamaBody)
    tokens = count(answer.prompt_eval_count)
    return Embeddings(vectors=answer.embeddings, usage=Usage(input_tokens=tokens, output_tokens=0))


def read_openai(body: bytes) -> Embeddings:
    """The answer of `/embeddings`, whose vectors may stand in any order. Raises `msgspec.MsgspecError` for
    what is none."""
    answer = msgspec.json.decode(body, type=_OpenAIBody)
    data = answer.data
    if all(datum.index is not None for datum in data):
        data = sorted(data, key=lambda datum: datum.index or 0)
    tokens = count((answer.usage or {}).get("prompt_tokens"))
    vectors = tuple([datum.embedding for datum in data])
    return Embeddings(vectors=vectors, usage=Usage(input_tokens=tokens, output_tokens=0))


async def embed(
    client: HttpClient,
    path: str,
    head: Mapping[str, object],
    texts: Sequence[str],
    options: Options,
    headers: Mapping[str, str],
    read: Callable[[bytes], Embeddings],
) -> Result[Embeddings, ProviderReason]:
    """Makes the request, once. An answer without a vector for each text is `MalformedResponse`."""
    inputs = [clean_text(text) for text in texts]
    body = msgspec.json.encode(
        {"model": options.model, "input": inputs, **head, **(options.extra or {})},
    )
    result = await client.send("POST", path, options, body=body, headers=headers)
    if isinstance(result, Err):
        return result
    if result.value.status != 200:
        messages = [Message("user", text) for text in inputs]
        key = headers.get("authorization", "").removeprefix("Bearer ")
        return Err(reason_of(result.value, Sent(messages, system=None, secret=key, tools=False)))
    try:
        embeddings = read(result.value.body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return Err(unreadable("holds no embeddings"))
    if len(embeddings.vectors) != len(inputs) or not all(embeddings.vectors):
        return Err(unreadable("does not hold an embedding for each text"))
    return Ok(embeddings)
