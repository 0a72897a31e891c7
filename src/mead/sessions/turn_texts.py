"""What the text of one turn leaves behind: fingerprints where it is private, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from mead.core.conversation import EncodedMessages
from mead.core.messages import Message
from mead.core.options import TurnOptions
from mead.core.result import Ok
from mead.core.turns import Answer, TurnResult
from mead.sessions.private_texts import Brought, PrivateTexts

Keep: TypeAlias = Callable[[int, bytes], None]
"""Is given the number of a turn and its fingerprints, before they are stored."""


class TurnTexts(Protocol):
    """Is told what happens in a turn, and says at its end what is to be kept."""

    def delta(self, text: str) -> None:
        """A fragment of the answer was shown."""

    def called(self, route: str) -> None:
        """A model was called."""

    async def at_end(self, result: TurnResult, options: TurnOptions) -> bytes | None:
        """The fingerprints to keep; `None` says that there is nothing to be kept of the turn."""


class SessionTexts:
    """A session's turn.

    One that failed leaves behind what was asked if it was forced to the local model, and what was shown of a
    local answer: the person may have it on the screen, and so may a client bring it.
    """

    def __init__(self, private: PrivateTexts, owner: str, newest: EncodedMessages, keep: Keep) -> None:
        self._private = private
        self._owner = owner
        self._keep = keep
        self._newest = newest
        self._fragments: list[str] = []
        self._was_local = False

    def delta(self, text: str) -> None:
        self._fragments.append(text)

    def called(self, route: str) -> None:
        self._was_local |= route == "local"

    async def at_end(self, result: TurnResult, options: TurnOptions) -> bytes | None:
        made = await self._made(result, options)
        if made:
            self._keep(options.turn, made)
        return made

    async def _made(self, result: TurnResult, options: TurnOptions) -> bytes | None:
        if not isinstance(result, Ok):
            return await self._of_failed(options)
        if result.value.label == "local_only":
            return await self._of_private(result.value)
        return await self._of_shareable(result.value)

    async def _of_private(self, answer: Answer) -> bytes | None:
        return await self._private.of_turn(self._owner, answer.messages.decode())

    async def _of_shareable(self, answer: Answer) -> bytes | None:
        return None

    async def _of_failed(self, options: TurnOptions) -> bytes | None:
        kept = b""
        if options.route == "local":
            kept = await self._of_question()
        if self._was_local and self._fragments:
            kept += await self._private.of_text(self._owner, "".join(self._fragments))
        return kept or None

    async def _of_question(self) -> bytes:
        return await self._private.of_turn(self._owner, self._newest.decode())


class RequestTexts(SessionTexts):
    """A request whose client has brought the conversation."""

    def __init__(
        self,
        private: PrivateTexts,
        owner: str,
        newest: EncodedMessages,
        keep: Keep,
        *,
        brought: Brought,
    ) -> None:
        super().__init__(private, owner, newest, keep)
        self._brought = brought

    async def _of_private(self, answer: Answer) -> bytes | None:
        brought = self._newest.decode()
        return await self._private.of_request(self._owner, brought, _added(answer, brought))

    async def _of_shareable(self, answer: Answer) -> bytes | None:
        if answer.route != "cloud":
            return None
        made = _added(answer, self._newest.decode())
        return await self._private.shown(self._owner, self._brought.looked_for, made)

    async def _of_question(self) -> bytes:
        return await self._private.of_request(self._owner, self._newest.decode(), ())


def _added(answer: Answer, brought: list[Message]) -> list[Message]:
    """What a turn has added to the messages that it began with."""
    return answer.messages.decode()[len(brought) :]
