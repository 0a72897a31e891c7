"""Knows the text of an owner's `local_only` turns again in what a client brings (R16).

Of that text only keyed fingerprints are kept, see `fingerprints`. What a cloud model was shown, or has said,
is no secret from it any more: words of shareable turns that went there do not count, as far as this process
remembers them, and for good where they were taken for private before. System prompts are not looked at.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from mead.core.conversation import EncodedMessages
from mead.core.messages import Message
from mead.core.private_files import create_private, read_private
from mead.core.turns import Finding
from mead.sessions._texts import frame_of, texts_of
from mead.sessions.fingerprints import KEY_BYTES, Fingerprinter, pack, unpack
from mead.settings.files import make_private_folder
from mead.storage import StoreError
from mead.storage.protocol import TurnMarks, UnmarkedTurn

KEY_FILE = "fingerprints.key"
KIND = "local_text"
"""The kind of a finding."""

SHOWN_KEPT = 65_536
"""How many fingerprints of what cloud models were shown are remembered, the newest, for each owner."""
_CACHED = 262_144
"""How many fingerprints a cache holds: of a request with thousands of messages, too, all are found again."""
_CACHED_TEXT = 8
"""What a text counts for in a cache besides its fingerprints."""
_THREAD_FROM_CHARACTERS = 50_000
_FOUND = Finding(KIND, 0, 0, "•••")
_RELEASED = 1
_LOST = "text of earlier local turns is not known again in what clients bring"

_log = logging.getLogger("mead.sessions")


class FingerprintStore(Protocol):
    """The part of a store that fingerprints are kept in; see `mead.storage.Store`."""

    async def fingerprints_since(self, owner: str, cursor: int = 0) -> tuple[bytes, int]: ...

    async def unmarked_turns(self, owner: str, *, limit: int = 50) -> tuple[UnmarkedTurn, ...]: ...

    async def mark_turns(self, marks: Sequence[TurnMarks]) -> None: ...


class Brought(Struct, frozen=True, kw_only=True):
    """What was found out of the messages that a client has brought: one finding for each that holds private
    text, and what was looked for of all of them."""

    findings: tuple[Finding, ...]
    looked_for: frozenset[int]


class PrivateTexts:
    """The fingerprints of every owner. `folder` is where the key is; without one it ends with the process,
    and so must the `store`."""

    def __init__(self, store: FingerprintStore, folder: Path | None) -> None:
        self._store = store
        self._folder = folder
        self._key: bytes | None = None
        self._owners: dict[str, _Owner] = {}

    async def look(self, owner: str, messages: Sequence[Message], *, besides: Sequence[str] = ()) -> Brought:
        """Which of the messages hold text of the owner's `local_only` turns, those of other processes too.
        `besides` is what would be sent with them: a system prompt, descriptions of tools."""
        known = await self._owner(owner)
        await self._refresh(owner, known)
        found = await known.each_of([*[texts_of(message) for message in messages], list(besides)])
        findings = tuple([_FOUND for fingerprints in found if known.is_private(fingerprints)])
        return Brought(findings=findings, looked_for=frozenset().union(*found))

    async def of_turn(self, owner: str, messages: Sequence[Message]) -> bytes:
        """What is kept of a session's `local_only` turn."""
        known = await self._owner(owner)
        texts = [text for message in messages for text in texts_of(message)]
        return pack(await known.all_of(texts, known.to_keep))

    async def of_text(self, owner: str, text: str) -> bytes:
        """What is kept of a text of a turn that failed."""
        known = await self._owner(owner)
        return pack(await known.all_of([text], known.to_keep))

    async def of_request(self, owner: str, brought: Sequence[Message], made: Sequence[Message]) -> bytes:
        """What is kept of a `local_only` request: of what was brought and of what was `made` of it, as far as
        it is not known yet.

        Of a single message in which instructions stand around a transcript that is known to be private, the
        transcript counts: a client's own instructions are no secret, and the same around any conversation.
        """
        known = await self._owner(owner)
        texts = [text for message in (*brought, *made) for text in texts_of(message)]
        inner = frame_of(texts[0]) if len(brought) == 1 and texts else None
        if inner is not None and known.holds(await known.all_of([inner], known.to_find)):
            texts[0] = inner
        return pack(known.new(await known.all_of(texts, known.to_keep)))

    async def shown(self, owner: str, looked_for: Iterable[int], made: Sequence[Message]) -> bytes:
        """Remembers what a cloud model was shown in a shareable request, and what it made of it; gives what
        is to be kept of that."""
        known = await self._owner(owner)
        texts = [text for message in made for text in texts_of(message)]
        found = {*looked_for, *await known.all_of(texts, known.to_find)}
        released = known.release(found)
        return pack([value | _RELEASED for value in released])

    async def mark(self, owner: str) -> None:
        """Makes the fingerprints of `local_only` turns that have none: imported ones, say, and older ones."""
        known = await self._owner(owner)
        done: set[tuple[str, int]] = set()
        while unmarked := await self._store.unmarked_turns(owner):
            marks = [await self._marks(known, each) for each in unmarked]
            await self._store.mark_turns(marks)
            keys = {(mark.session_id, mark.number) for mark in marks}
            if keys <= done:
                raise StoreError("io", "The store does not keep fingerprints of private text.")
            done |= keys

    async def _marks(self, known: _Owner, unmarked: UnmarkedTurn) -> TurnMarks:
        stored = unmarked.turn
        try:
            messages = EncodedMessages(stored.messages, plain=stored.plain, closed=stored.closed).decode()
        except ValueError:  # nothing in it can be read, and so nothing sent
            messages = []
        texts = [text for message in messages for text in texts_of(message)]
        fingerprints = pack(await known.all_of(texts, known.to_keep))
        return TurnMarks(
            session_id=unmarked.session_id,
            number=stored.number,
            fingerprints=fingerprints,
            at=stored.finished_at or time.time(),
        )

    def learn(self, owner: str, data: bytes) -> None:
        """Remembers what is about to be stored, for as long as the process lives: it may not come to it."""
        if owner in self._owners:
            self._owners[owner].take(data)

    def reread(self, owner: str, unstored: Iterable[bytes] = ()) -> None:
        """What was deleted in the store is not known any more: the rest is read anew when it is needed.
        `unstored` is what could not be stored, and what cloud models were shown stays known."""
        if owner in self._owners:
            self._owners[owner] = self._owners[owner].without_stored()
            for data in unstored:
                self._owners[owner].take(data)

    def forget(self, owner: str) -> None:
        """Nothing of the owner is known any more."""
        self._owners.pop(owner, None)

    async def _owner(self, owner: str) -> _Owner:
        if self._key is None:
            key, made = await asyncio.to_thread(load_key, self._folder)
            _, cursor = await self._store.fingerprints_since(owner)
            if self._key is None:  # somebody else may have been as fast
                self._key = key
                if made and cursor:
                    _log.warning("%s is a new one: %s", self._folder and self._folder / KEY_FILE, _LOST)
        if owner not in self._owners:
            own = hashlib.blake2b(owner.encode(errors="replace"), key=self._key, digest_size=KEY_BYTES)
            self._owners[owner] = _Owner(Fingerprinter(own.digest()))
        return self._owners[owner]

    async def _refresh(self, owner: str, known: _Owner) -> None:
        """Reads what has come to the store since the last time."""
        async with known.reading:
            await self.mark(owner)
            while True:
                data, cursor = await self._store.fingerprints_since(owner, known.cursor)
                if cursor == known.cursor:
                    return
                known.take(data)
                known.cursor = cursor


class _Owner:
    """What is known of one owner's text. The caches hold fingerprints by a hash of the text: a client brings
    the same messages every time."""

    def __init__(self, fingerprinter: Fingerprinter) -> None:
        self.reading = asyncio.Lock()
        self.cursor = 0
        self._fingerprinter = fingerprinter
        self._private: set[int] = set()
        self._released: set[int] = set()
        self._shown: dict[int, None] = {}
        self._caching = threading.Lock()  # long texts are read on other threads
        self._kept = _Cache()
        self._found = _Cache()

    def without_stored(self) -> _Owner:
        """The same owner, of whom nothing was read yet. What is being read for this one is lost on the new
        one, which begins at the beginning."""
        fresh = _Owner(self._fingerprinter)
        fresh._shown = self._shown
        return fresh

    def take(self, data: bytes) -> None:
        """Adds what was stored."""
        values = unpack(data)
        self._private.update([value for value in values if not value & _RELEASED])
        self._released.update([value ^ _RELEASED for value in values if value & _RELEASED])

    def holds(self, found: Iterable[int]) -> bool:
        """Whether any of it was kept of private text."""
        return not self._private.isdisjoint(found)

    def is_private(self, found: Iterable[int]) -> bool:
        """The same, but for what a cloud model was shown."""
        return any(value not in self._released and value not in self._shown for value in self._hits(found))

    def new(self, found: Iterable[int]) -> set[int]:
        """What of private text is yet to be kept."""
        known = (self._private, self._released, self._shown)
        return {value for value in found if not any(value in each for each in known)}

    def release(self, found: set[int]) -> set[int]:
        """Remembers what a cloud model was shown; gives what of it was taken for private until now."""
        for value in found:
            self._shown.pop(value, None)
            self._shown[value] = None
        while len(self._shown) > SHOWN_KEPT:
            del self._shown[next(iter(self._shown))]
        return set(self._hits(found)) - self._released

    def _hits(self, found: Iterable[int]) -> set[int]:
        return self._private.intersection(found)

    def to_keep(self, text: str) -> frozenset[int]:
        """See `Fingerprinter.to_keep`."""
        return self._cached(self._kept, text, self._fingerprinter.to_keep)

    def to_find(self, text: str) -> frozenset[int]:
        """See `Fingerprinter.to_find`."""
        return self._cached(self._found, text, self._fingerprinter.to_find)

    def _cached(self, cache: _Cache, text: str, make: Callable[[str], set[int]]) -> frozenset[int]:
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._caching:
            found = cache.take(key)
        if found is None:
            found = frozenset(make(text))
        with self._caching:
            cache.put(key, found)
        return found

    async def each_of(self, messages: Sequence[Sequence[str]]) -> list[frozenset[int]]:
        """What is looked for of each message, of which there may be many, as in `all_of`."""

        def find() -> list[frozenset[int]]:
            return [frozenset().union(*map(self.to_find, texts)) for texts in messages]

        long = sum([len(text) for texts in messages for text in texts]) >= _THREAD_FROM_CHARACTERS
        return await asyncio.to_thread(find) if long else find()

    async def all_of(self, texts: Sequence[str], make: Callable[[str], frozenset[int]]) -> frozenset[int]:
        """The fingerprints of all the texts. Long ones are read on a thread: others go on meanwhile."""
        if sum(map(len, texts)) < _THREAD_FROM_CHARACTERS:
            return frozenset().union(*map(make, texts))
        return await asyncio.to_thread(lambda: frozenset().union(*map(make, texts)))


class _Cache:
    """Fingerprints of texts, those that were used last. They are bounded by what they hold, not by their
    number: a client sends thousands of short messages again, and all of them in the same order."""

    def __init__(self) -> None:
        self._kept: dict[bytes, frozenset[int]] = {}
        self._size = 0

    def take(self, key: bytes) -> frozenset[int] | None:
        """What is there, taken out: `put` puts it to the newest."""
        found = self._kept.pop(key, None)
        if found is not None:
            self._size -= len(found) + _CACHED_TEXT
        return found

    def put(self, key: bytes, found: frozenset[int]) -> None:
        """Adds it, in place of the oldest where there is no room."""
        if len(found) + _CACHED_TEXT > _CACHED:
            return
        self.take(key)
        self._kept[key] = found
        self._size += len(found) + _CACHED_TEXT
        while self._size > _CACHED:
            self.take(next(iter(self._kept)))


def load_key(folder: Path | None) -> tuple[bytes, bool]:
    """The key, and whether it was made now. It is in a file of mode 0600, which several processes share; one
    that cannot be kept there is good for this process only, and a warning is logged."""
    made = secrets.token_bytes(KEY_BYTES)
    if folder is None:
        return made, True
    path = folder / KEY_FILE
    try:
        make_private_folder(folder)
        if create_private(path, made):
            return made, True
        found = read_private(path, limit=KEY_BYTES + 1)
        if len(found) == KEY_BYTES:
            return found, False
        why = f"it is not {KEY_BYTES} bytes long"
    except OSError as error:
        why = error.strerror or str(error)
    _log.warning(
        "%s cannot be used (%s): what this process keeps of private text, other processes do not know again; "
        "put it right, or remove it",
        path,
        why,
    )
    return made, True
