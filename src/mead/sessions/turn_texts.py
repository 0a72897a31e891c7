"""What the text of one turn leaves behind: fingerprints where it is private, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Struct

from mead.core.conversation import EncodedMessages
from mead.core.messages import Message
from mead.core.options import TurnOptions
from mead.core.result import Ok
from mead.core.turns import Answer, Finding, TurnResult
from mead.router.classifier import texts_besides
from mead.sessions.private_texts import Brought, PrivateTexts

Keep: TypeAlias = Callable[[int, bytes], None]
"""Is given the number of a turn and its fingerprints, before they are stored."""


class TurnTexts(Protocol):
    """Says what of a turn is known to be private, is told what happens in it, and says at its end what is to
    be kept."""

    async def known_private(self, options: TurnOptions) -> tuple[Finding, ...]:
        """What in the turn is text of earlier `local_only` turns. Raises `StoreError`."""

    def delta(self, text: str) -> None:
        """A fragment of the answer was shown."""

    def called(self, route: str) -> None:
        """A model was called."""

    async def at_end(self, result: TurnResult, options: TurnOptions) -> bytes | None:
        """The fingerprints to keep; `None` says that there is nothing to be kept of the turn."""


class LooksFor(Struct, frozen=True, kw_only=True):
    """What of a session's turn is looked for: what goes with the person's words, and these too where a client
    has brought them, which may be from anywhere. The `own_system` of the settings is nobody's secret.

    A person who types the same words again is not asked why: that is no text that came back by itself.
    """

    typed: bool = False
    own_system: str | None = None

    async def find(
        self, private: PrivateTexts, owner: str, newest: EncodedMessages, options: TurnOptions
    ) -> tuple[Finding, ...]:
        """What was found, for a turn that may go to the cloud model; its options are layered already."""
        if options.route == "local":
            return ()
        chosen = options.options
        if chosen.system == self.own_system:
            chosen = msgspec.structs.replace(chosen, system=None)
        besides = texts_besides(msgspec.structs.replace(options, options=chosen))
        messages = newest.decode() if self.typed else []
        if not messages and not besides:
            return ()
        return (await private.look(owner, messages, besides=besides)).findings


class SessionTexts:
    """A session's turn.

    One that failed leaves behind what was asked if it was forced to the local model, and what was shown of a
    local answer: the person may have it on the screen, and so may a client bring it. `looks_for` says what of
    the turn is compared with earlier private text before it may go to the cloud model.
    """

    def __init__(
        self,
        private: PrivateTexts,
        owner: str,
        newest: EncodedMessages,
        keep: Keep,
        *,
        looks_for: LooksFor | None = None,
    ) -> None:
        self._private = private
        self._looks_for = looks_for
        self._owner = owner
        self._keep = keep
        self._newest = newest
        self._fragments: list[str] = []
        self._was_local = False

    async def known_private(self, options: TurnOptions) -> tuple[Finding, ...]:
        if self._looks_for is None:
            return options.known_private
        return await self._looks_for.find(self._private, self._owner, self._newest, options)

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
