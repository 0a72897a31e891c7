"""Messages as they are kept: encoded once, joined into every request, decoded only when somebody looks.

A *plain* piece holds nothing but text, `{"role": …, "content": "…"}`, which is the same JSON in every wire
format that mead speaks, so a request body is a join of the pieces. A *closed* piece stands on its own: it
begins with the user and ends with the assistant, every call in it is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar, overload

import msgspec

from mead.core.messages import (
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
    VendorBlock,
    blocks_of,
    clean_text,
)
from mead.core.repair import encodable, repair

_encode = msgspec.json.encode
_decode = msgspec.json.Decoder(list[Message]).decode
_Piece = TypeVar("_Piece")


class Size(NamedTuple):
    """How large some messages are: the bytes of their text as JSON, how many images they show, how many
    documents that are no text they attach, and the bytes of these in base64."""

    text_bytes: int
    images: int = 0
    documents: int = 0
    document_bytes: int = 0


class EncodedMessages:
    """Some consecutive messages as comma-separated JSON. Immutable; two with the same bytes are equal."""

    __slots__ = ("_variants", "closed", "data", "plain")

    def __init__(self, data: bytes, *, plain: bool, closed: bool) -> None:
        self.data = data
        self.plain = plain
        self.closed = closed
        self._variants: dict[object, object] | None = None

    def decode(self) -> list[Message]:
        """The messages, decoded anew at each call."""
        return _decode(b"[" + self.data + b"]")

    def variant(self, key: object, make: Callable[[list[Message]], _Piece]) -> _Piece:
        """What `make` gives for these messages, kept under `key`: a wire format's own encoding, say."""
        if self._variants is None:
            self._variants = {}
        if key not in self._variants:
            self._variants[key] = make(self.decode())
        return self._variants[key]  # type: ignore[return-value]  # a key always means the same `make`

    @property
    def size(self) -> Size:
        """How large they are, attachments told apart from text."""
        return Size(len(self.data)) if self.plain else self.variant("size", self._size)

    @property
    def has_results(self) -> bool:
        """Whether they end with what tools have answered."""
        return not self.plain and self.variant("has_results", _ends_with_results)

    def _size(self, messages: list[Message]) -> Size:
        blocks = [block for message in messages for block in blocks_of(message)]
        images = [_base64_bytes(block) for block in blocks if isinstance(block, ImageBlock)]
        attached = [block for block in blocks if isinstance(block, DocumentBlock)]
        texts = [block for block in attached if _is_text(block)]
        documents = [_base64_bytes(block) for block in attached if not _is_text(block)]
        # A text that is attached is sent as what it is, a quarter shorter than its base64.
        spared = sum([_base64_bytes(block) - len(block.data) for block in texts])
        text_bytes = len(self.data) - sum(images) - sum(documents) - spared
        return Size(max(0, text_bytes), len(images), len(documents), sum(documents))

    def texts_only(self) -> EncodedMessages:
        """The same piece without tool calls, tool results and vendor blocks (R10)."""
        return self if self.plain else self.variant("texts_only", lambda m: encode(_without_tools(m)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EncodedMessages) and other.data == self.data

    def __hash__(self) -> int:
        return hash(self.data)

    def __repr__(self) -> str:
        return f"EncodedMessages({len(self.data)} bytes)"


def _ends_with_results(messages: list[Message]) -> bool:
    return bool(messages) and any(isinstance(block, ToolResultBlock) for block in blocks_of(messages[-1]))


def _is_text(block: DocumentBlock) -> bool:
    return block.media_type.startswith("text/")


def _base64_bytes(block: ImageBlock | DocumentBlock) -> int:
    return -(-len(block.data) // 3) * 4


def encode(messages: Iterable[Message]) -> EncodedMessages:
    """Repairs the messages, then encodes them."""
    repaired = repair(messages)
    try:
        parts = [_encode(message) for message in repaired]
    except UnicodeEncodeError:
        parts = [_encode(encodable(message)) for message in repaired]
    return EncodedMessages(
        b",".join(parts),
        plain=all(isinstance(message.content, str) for message in repaired),
        closed=bool(repaired) and repaired[-1].role == "assistant",
    )


def encode_open(messages: Iterable[Message]) -> EncodedMessages:
    """Encodes well-formed messages that end with calls whose results are yet to come, as they are."""
    parts = [_encode(encodable(message)) for message in messages]
    return EncodedMessages(b",".join(parts), plain=False, closed=False)


def encode_user(text: str) -> EncodedMessages:
    """One user message that holds `text`, which must not be blank."""
    try:
        data = _encode(text)
    except UnicodeEncodeError:
        data = _encode(clean_text(text))
    return EncodedMessages(b'{"role":"user","content":' + data + b"}", plain=True, closed=False)


def encode_exchange(user: EncodedMessages, answer_text: str) -> EncodedMessages:
    """A plain user message with the model's text for an answer."""
    if not (user.plain and answer_text.strip()):
        return encode([*user.decode(), Message("assistant", answer_text)])
    try:
        data = _encode(answer_text)
    except UnicodeEncodeError:
        data = _encode(clean_text(answer_text))
    data = user.data + b',{"role":"assistant","content":' + data + b"}"
    return EncodedMessages(data, plain=True, closed=True)


def _without_tools(messages: list[Message]) -> list[Message]:
    hidden = (ToolUseBlock, ToolResultBlock, VendorBlock)
    stripped: list[Message] = []
    for message in messages:
        content = message.content
        if not isinstance(content, str):
            content = tuple([block for block in content if not isinstance(block, hidden)])
            if all(isinstance(block, TextBlock) for block in content):
                content = "".join([block.text for block in content if isinstance(block, TextBlock)])
        stripped.append(Message(message.role, content))
    return stripped


def _repeats_an_id(pieces: Sequence[EncodedMessages]) -> bool:
    """Whether two pieces have a call of the same id: of a server without ids, equal calls have equal ones."""
    others = [piece for piece in pieces if not piece.plain]
    if len(others) < 2:
        return False
    ids = [piece.variant("call_ids", _call_ids) for piece in others]
    return sum(map(len, ids)) > len(frozenset().union(*ids))


def _call_ids(messages: list[Message]) -> frozenset[str]:
    return frozenset(
        [block.id for message in messages for block in blocks_of(message) if isinstance(block, ToolUseBlock)]
    )


class Conversation(Sequence[Message]):
    """What a provider is given to answer: a read-only sequence of messages over encoded pieces.

    Adapters that know the encoding join `pieces`; to everyone else it is a sequence of `Message`.
    """

    __slots__ = ("_decoded", "pieces")

    def __init__(self, pieces: Sequence[EncodedMessages]) -> None:
        last = len(pieces) - 1
        open_inside = any(not piece.closed for index, piece in enumerate(pieces) if index < last)
        if open_inside or _repeats_an_id(pieces):
            pieces = [encode([message for piece in pieces for message in piece.decode()])]
        self.pieces: Sequence[EncodedMessages] = pieces
        self._decoded: list[Message] | None = None

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Conversation:
        """Any sequence of messages, repaired; a `Conversation` as it is."""
        return messages if isinstance(messages, Conversation) else cls([encode(messages)])

    def _messages(self) -> list[Message]:
        if self._decoded is None:
            self._decoded = _decode(b"[" + b",".join([piece.data for piece in self.pieces]) + b"]")
        return self._decoded

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._messages()[index]

    def __len__(self) -> int:
        return len(self._messages())

    def __iter__(self) -> Iterator[Message]:
        return iter(self._messages())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._messages() == list(other)

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have no hash
