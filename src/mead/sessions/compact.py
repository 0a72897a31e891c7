"""Goes on from a summary of a conversation that has become long."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mead.core.conversation import encode_exchange, encode_user
from mead.core.reasons import TurnReason
from mead.core.result import Err, Ok, Result
from mead.core.turns import Answer, Label, Turn

if TYPE_CHECKING:
    from mead.core.options import RouteChoice
    from mead.sessions.keywords import SessionKeywords, TurnKeywords
    from mead.sessions.runtime import Runtime

_ASK = (
    "Summarise our conversation so far, so that somebody who has only your summary can go on with it: what "
    "was asked, what was found and decided, names, figures and file names exactly, and what is still open. "
    "Give the summary only."
)
_SHOWN = "What was said earlier in this conversation, in short?"


async def compact(
    runtime: Runtime, turns: Sequence[Turn], session: SessionKeywords, turn: TurnKeywords
) -> Result[str, TurnReason]:
    """A new session with `session`'s settings whose history is a summary of `turns`; gives its id.

    The summary is made by a turn as `turn` says, without tools. It is `local_only` if any of the turns is, or
    if it is private itself.
    """
    kept_local = any(earlier.label == "local_only" for earlier in turns)
    asked = turn.copy()
    asked.setdefault("route", _route(runtime, turns, kept_local=kept_local))
    asked["tools"] = "none"
    asked["from_client"] = False  # nobody else has these words
    working = session.copy()
    working["history"] = turns
    working_id = await runtime.start_session(**working)
    try:
        result = await runtime.submit_turn(working_id, _ASK, **asked)
    finally:
        await runtime.stop_session(working_id)
    if isinstance(result, Err):
        return result
    answer = result.value
    summary = Turn(
        messages=encode_exchange(encode_user(_SHOWN), answer.text),
        number=1,
        route=answer.route,
        label=_label(runtime, answer, kept_local=kept_local, was_forced="route" in turn),
        owner=runtime.owner,
        usage=answer.usage,
    )
    made = session.copy()
    made["history"] = [summary]
    return Ok(await runtime.start_session(**made))


def _label(runtime: Runtime, answer: Answer, *, kept_local: bool, was_forced: bool) -> Label:
    """The summary's label. The local model is asked here because it was the last one, which makes no secret
    of what it is asked; a person who forces it does."""
    if kept_local or was_forced or answer.route != "local":
        return "local_only" if kept_local else answer.label
    is_private = answer.decision is None or answer.decision.private
    scanned = runtime.router.classifier.scan(answer.text)
    return "local_only" if is_private or scanned else "shareable"


def _route(runtime: Runtime, turns: Sequence[Turn], *, kept_local: bool) -> RouteChoice:
    """Where the last turn went; the local model where it alone may see all of them."""
    if kept_local and runtime.slots.local is not None:
        return "local"
    last = turns[-1].route if turns else None
    return last if last is not None and runtime.slots[last] is not None else "auto"
