"""What happens to a random conversation between its turns."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from mead.core.messages import Message
from mead.core.result import Err
from mead.sessions.session import new_session_id
from mead.sessions.transfer import read_sessions, to_jsonl
from mead.storage.protocol import SessionRecord, StoredTurn
from privacy.knowledge import Entry
from privacy.plan import Bring, Carry, Compact, Explain, Fork, Rewind, Turn
from privacy.questions import question

if TYPE_CHECKING:
    from privacy.conversation import Conversation


async def compact(on: Conversation, step: Compact) -> None:
    """Goes on from a summary."""
    first = on.places()
    turn = next(turn for turn in on.plan.steps if isinstance(turn, Turn))
    ends = "error" if step.fails else "ok"
    doings = on.book.begin()
    for model in (on.local, on.cloud):
        model.begin(msgspec.structs.replace(turn, end=ends, ends_at=1, rounds=0, tells_card=False))
    route = {} if step.route is None else {"route": step.route}
    result = await on.runtime.compact(on.session_id, **route)  # type: ignore[arg-type]  # a word
    if isinstance(result, Err):
        on.tell("compact", result)
        return
    was_private = any(entry.is_private for entry in on.entries)
    was_cloud = len(on.cloud.recorder.pieces) > first[1]
    on.session_id = result.value
    [kept] = (await on.runtime.history(on.session_id)).unwrap()
    if was_private and kept.label == "shareable":
        on.outcome.wrong_labels.append(f"{on.name}: a summary of private turns is shareable")
    if was_cloud and step.route is None and was_private:
        on.outcome.leaks.append(f"{on.name}: the cloud was asked to sum up private turns")
    if was_cloud or (kept.label == "shareable" and not was_private):
        on.knowledge.free(doings.made["cloud"])
        if not was_private:
            on.knowledge.free([*doings.made["local"], on.local_prompt])
    is_private = was_private or kept.label == "local_only"
    on.entries = [Entry(number=kept.number, is_private=is_private, label=kept.label)]


async def go_back(on: Conversation, step: Fork | Rewind) -> None:
    """Goes on in a copy of the first turns, or takes the last ones back."""
    store = on.runtime.store
    assert store is not None
    numbers = [0, *[entry.number for entry in on.entries]]
    to = numbers[round(step.share * (len(numbers) - 1))]
    if isinstance(step, Rewind):
        await store.rewind("local", on.session_id, to=to, at=time.time())
    else:
        forked, left = new_session_id(), on.session_id
        await store.fork("local", left, new_id=forked, at=time.time(), up_to=to)
        on.session_id = forked
    on.entries = [entry for entry in on.entries if entry.number <= to]


async def carry(on: Conversation, step: Carry) -> None:
    """Exports the conversation and goes on in what was imported again."""
    history = (await on.runtime.history(on.session_id)).unwrap()
    known = {entry.number: entry for entry in on.entries}
    history = tuple(
        # What was rewound is not gone from memory yet.
        [turn for turn in history if turn.number in known]
    )
    record = SessionRecord(session_id="x", created_at=1.0, updated_at=1.0, turn_timeout_s=30.0, title="it")
    lines = list(to_jsonl(record, [StoredTurn.of(turn, finished_at=1.0) for turn in history]))
    if not step.labels:
        lines = [json.dumps({k: v for k, v in json.loads(line).items() if k != "label"}) for line in lines]
    path = on.folder / f"{on.plan.seed}.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    [brought] = read_sessions(path)
    await on.start(brought.turns)
    on.entries = [
        Entry(
            number=turn.number,
            is_private=known[before.number].is_private or not step.labels,
            label=turn.label,
            control=known[before.number].control if step.labels else None,
        )
        for turn, before in zip(brought.turns, history, strict=True)
    ]


async def bring(on: Conversation, step: Bring) -> None:
    """Goes on in a conversation of another program."""
    asked, answered = on.knowledge.plant("imported text"), on.knowledge.plant("imported answer")
    messages = [Message("user", f"tell {asked}"), Message("assistant", f"it is {answered}")]
    history: Sequence[Any] = messages
    if step.form != "messages":
        path = on.folder / f"{on.plan.seed}.import"
        path.write_text(_foreign(step.form, messages), encoding="utf-8")
        history = read_sessions(path)[0].turns
    await on.start(history)
    on.entries = [Entry(number=1, is_private=True, label="local_only")]


async def explain(on: Conversation, step: Explain) -> None:
    """Asks what would be decided of a turn, which contacts nothing."""
    text, _, attachments = question(step.kind, on.knowledge.plant)
    places = on.places()
    explained = await on.runtime.explain(
        text, session_id=on.session_id, route=step.route, attachments=attachments
    )
    on.look_at("the explanation", explained)
    if on.places() != places:
        on.outcome.odd.append(f"{on.name}: an explanation contacted a model")


def _foreign(form: str, messages: Sequence[Message]) -> str:
    """A file of another program, or one of mead's whose labels are gone."""
    if form == "lines":
        wires = [{"role": message.role, "content": message.content} for message in messages]
        return json.dumps({"mead": 1}) + "\n" + json.dumps({"messages": wires, "route": "cloud"})
    nodes: dict[str, Any] = {}
    for number, message in enumerate(messages):
        parent = str(number - 1) if number else None
        nodes[str(number)] = {"parentId": parent, "role": message.role, "content": message.content}
    history = {"messages": nodes, "currentId": str(len(messages) - 1)}
    return json.dumps([{"title": "old", "chat": {"title": "old", "history": history}}])
