"""What the local model is known to lack for a turn: a reason for the cloud model, before any score."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mead.core.messages import Tool
from mead.core.options import TurnOptions
from mead.core.reasons import InvalidOptions
from mead.core.turns import Cause, Turn
from mead.providers.protocol import answers_with_results, known_of
from mead.router.slots import Slot
from mead.router.views import cloud_view
from mead.router.window import Fitted, fit

_TOOLS = Cause("local_tools", "The local model cannot use tools, and this turn has some.")
_CONTEXT = "The conversation does not fit the local model's context of {:,} tokens."


def local_lacks(
    slot: Slot | None, turns: Sequence[Turn], options: TurnOptions, tools: Sequence[Tool]
) -> Cause | None:
    """Why the local model cannot do the newest of `turns`, as far as that is known; contacts nothing.

    Only what a cloud model may be shown counts: what is withheld from it is no reason to prefer it.
    """
    if slot is None:
        return None
    chosen = slot.options_for(options.options)
    if isinstance(chosen, InvalidOptions):
        return None
    known = known_of(slot.provider, chosen)
    if tools and known.tools is False:
        return _TOOLS
    newest = turns[-1].messages
    if known.context_tokens is None or (answers_with_results(slot.provider) and newest.has_results):
        return None
    history = cloud_view(turns[:-1]).history
    extra = len((chosen.system or "").encode(errors="replace"))
    extra += len(msgspec.json.encode(tools)) if tools else 0
    fitted = fit(history, newest, context_tokens=known.context_tokens, options=chosen, extra_bytes=extra)
    if isinstance(fitted, Fitted) and not fitted.left_out:
        return None
    return Cause("local_context", _CONTEXT.format(known.context_tokens))
