"""Remembers what a client is not shown of a turn that it goes on with: calls of mead's tools beside its own.

A reply may ask for tools of the hub and for tools of the client. The hub's are run here; the client sees its
own calls only, and brings back their results. What stood beside them is put in again then.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from mead.core.messages import Message, ToolUseBlock, blocks_of, text_of
from mead.core.options import Route, RouteChoice
from mead.core.repair import encodable
from mead.core.turns import Answer

KEPT_S = 3600.0
"""How long a client may take to run its tools, in seconds."""
MAX_KEPT = 2_000


class Handed(Struct, frozen=True):
    """What was handed to a client: the exchange since its question, and the route that made it. `until` is on
    the monotonic clock."""

    exchange: tuple[Message, ...]
    route: Route | None
    until: float


class Continuations:
    """The exchanges that clients may go on with, by owner and call id. They end with the process: a client
    that comes back later goes on without what it was not shown."""

    def __init__(self) -> None:
        self._handed: OrderedDict[tuple[str, bytes, str], Handed] = OrderedDict()

    def remember(self, owner: str, messages: Sequence[Message], answer: Answer) -> None:
        """Remembers what an answer to `messages` hands over; nothing for one that asks for no tool of the
        client's."""
        if answer.handed_over is None:
            return
        exchange = tuple(answer.handed_over.decode())
        handed = Handed(exchange, answer.route, time.monotonic() + KEPT_S)
        for call in answer.client_calls:
            self._handed[owner, _asked(messages), call.id] = handed
        while len(self._handed) > MAX_KEPT:
            self._handed.popitem(last=False)

    def resumed(
        self, owner: str, messages: Sequence[Message], route: RouteChoice = "auto"
    ) -> tuple[list[Message], bool]:
        """The messages with what their client was not shown, and whether a local model asked for any of it.

        Only the route that asked for tools is to see their results (R10). So a request that is forced to
        another `route` goes without, one on `auto` with something local in it is to be a local one, and one
        that is forced to the cloud with that is to be refused.
        """
        resumed: list[Message] = []
        is_local = False
        seen: list[Handed] = []
        for place, message in enumerate(messages):
            handed = self._of(owner, messages[:place], message)
            is_local |= handed is not None and handed.route == "local"
            if handed is None or route not in ("auto", handed.route):
                resumed.append(message)
            elif not any(handed is each for each in seen):  # a client may spread calls over several messages
                resumed += handed.exchange
                seen.append(handed)
        return resumed, is_local

    def _of(self, owner: str, before: Sequence[Message], message: Message) -> Handed | None:
        if message.role != "assistant":
            return None
        for block in blocks_of(message):
            if isinstance(block, ToolUseBlock):
                handed = self._handed.get((owner, _asked(before), block.id))
                if handed is not None and handed.until > time.monotonic():
                    return handed
        return None


def _asked(messages: Sequence[Message]) -> bytes:
    """Stands for a conversation up to the person's last words, by what was said in it. Servers without ids of
    their own give equal calls equal ones, in every conversation."""
    said = [(message.role, text_of(message.content)) for message in messages]
    last = max([place for place, (role, text) in enumerate(said) if role == "user" and text], default=-1)
    return hashlib.blake2b(msgspec.json.encode(encodable(said[: last + 1])), digest_size=16).digest()
