"""Makes any list of messages well-formed, so that no history can make a provider refuse a request.

Well-formed means: roles alternate, beginning with the user; no content is empty; every tool call is answered
in the very next message, results first, and no result lacks its call; ids of calls are present and distinct.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from mead.core.messages import (
    Block,
    Message,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    VendorBlock,
    blocks_of,
    clean_text,
)

_Value = TypeVar("_Value")

UNKNOWN_OUTCOME = "The result of this call was lost. It may have been carried out; do not assume either."


def repair(messages: Iterable[Message]) -> list[Message]:
    """The same conversation, well-formed. What is already well-formed comes back meaning the same."""
    return _answer_calls(_merge(_kept(messages)))


def encodable(value: _Value) -> _Value:
    """The value with each lone surrogate in it replaced, in structs, lists and mappings too: it could not be
    encoded."""
    changed: object = value
    if isinstance(value, str):
        changed = clean_text(value)
    elif isinstance(value, Mapping):
        changed = {encodable(key): encodable(item) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        changed = type(value)([encodable(item) for item in value])
    elif isinstance(value, msgspec.Struct):
        fields = [(name, encodable(getattr(value, name))) for name in value.__struct_fields__]
        changed = msgspec.structs.replace(value, **dict(fields))
    return changed  # type: ignore[return-value]  # of the same type, or a dict for another mapping


def _kept(messages: Iterable[Message]) -> list[tuple[Role, list[Block]]]:
    """Each message's role with its blocks, blank text left out, messages without content left out: what only
    one vendor understands is no content, for there would be nothing to send to the others."""
    kept: list[tuple[Role, list[Block]]] = []
    for message in messages:
        blocks = [
            block for block in blocks_of(message) if not isinstance(block, TextBlock) or block.text.strip()
        ]
        if any(not isinstance(block, VendorBlock) for block in blocks):
            kept.append((message.role, blocks))
    return kept


def _merge(messages: list[tuple[Role, list[Block]]]) -> list[tuple[Role, list[Block]]]:
    """Neighbours of one role become one message; what stands before the first user message goes."""
    merged: list[tuple[Role, list[Block]]] = []
    for role, blocks in messages:
        if merged and merged[-1][0] == role:
            _extend(merged[-1][1], blocks)
        elif merged or role == "user":
            merged.append((role, list(blocks)))
    return merged


def _extend(blocks: list[Block], more: Sequence[Block]) -> None:
    """Appends another message's blocks, with an empty line between two texts that now touch."""
    first = more[0]
    if isinstance(first, TextBlock) and isinstance(blocks[-1], TextBlock):
        blocks.append(TextBlock("\n\n" + first.text))
        more = more[1:]
    blocks.extend(more)


def _answer_calls(messages: list[tuple[Role, list[Block]]]) -> list[Message]:
    """Pairs calls with results: a lost result is said to be lost, a result without a call goes."""
    repaired: list[tuple[Role, list[Block]]] = []
    seen: set[str] = set()
    open_calls: list[tuple[str, str]] = []
    for role, blocks in messages:
        if role == "assistant" and not repaired:
            continue  # the message before it held nothing but orphaned results
        if role == "assistant":
            blocks, open_calls = _distinct_calls(blocks, seen)
        else:
            blocks, open_calls = _results_first(blocks, open_calls), []
        if not blocks:
            continue
        if repaired and repaired[-1][0] == role:
            _extend(repaired[-1][1], blocks)
        else:
            repaired.append((role, blocks))
    if open_calls:
        repaired.append(("user", _results_first([], open_calls)))
    return [Message(role, _simplest(blocks)) for role, blocks in repaired]


def _distinct_calls(blocks: Sequence[Block], seen: set[str]) -> tuple[list[Block], list[tuple[str, str]]]:
    """The blocks with distinct call ids, and (the old, the new) id of each call in order."""
    kept: list[Block] = []
    renamed: list[tuple[str, str]] = []
    for block in blocks:
        if isinstance(block, ToolUseBlock):
            new_id = _fresh_id(block.id, seen)
            renamed.append((block.id, new_id))
            block = block if new_id == block.id else msgspec.structs.replace(block, id=new_id)
        kept.append(block)
    return kept, renamed


def _fresh_id(call_id: str, seen: set[str]) -> str:
    base = call_id or "call"
    fresh, number = (call_id, 1) if call_id else ("call_1", 1)
    while fresh in seen:
        number += 1
        fresh = f"{base}_{number}"
    seen.add(fresh)
    return fresh


def _results_first(blocks: Sequence[Block], open_calls: list[tuple[str, str]]) -> list[Block]:
    """One result for each open call, in the order of the calls, then everything else."""
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    answers: list[Block] = []
    for old_id, new_id in open_calls:
        found = next((result for result in results if result.tool_use_id == old_id), None)
        if found is None:
            answers.append(ToolResultBlock(new_id, UNKNOWN_OUTCOME, is_error=True))
        else:
            results.remove(found)
            answers.append(msgspec.structs.replace(found, tool_use_id=new_id))
    return answers + [block for block in blocks if not isinstance(block, ToolResultBlock)]


def _simplest(blocks: Sequence[Block]) -> str | tuple[Block, ...]:
    """Text alone is written as a string: it is the same in every wire format."""
    texts = [clean_text(block.text) for block in blocks if isinstance(block, TextBlock)]
    if len(texts) == len(blocks):
        return "".join(texts)
    return tuple(TextBlock(clean_text(b.text)) if isinstance(b, TextBlock) else b for b in blocks)
