"""The messages of an Anthropic client: their blocks as they are sent, and what mead makes of them.

Format: the Anthropic API reference, "Messages", version 2026-10-21. A block or a field that is not listed
here is refused by its name: nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from mead.core.messages import (
    Block,
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from mead.serve.errors import Problem, invalid

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_FETCHES_NOTHING = "mead fetches nothing: send the file itself, as base64"
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)]
Hint: TypeAlias = dict[str, Any] | None


class _Block(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    cache_control: Hint = None


class Text(_Block, frozen=True, tag="text"):
    text: str
    citations: list[Any] | None = None


class _Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    pass


class _Base64(_Source, frozen=True, tag="base64"):
    media_type: str
    data: Annotated[bytes, Meta(min_length=1)]


class _PlainText(_Source, frozen=True, tag="text"):
    data: str
    media_type: Literal["text/plain"] = "text/plain"


class _Content(_Source, frozen=True, tag="content"):
    content: str | tuple[Text, ...]


class _Url(_Source, frozen=True, tag="url"):
    url: str


class _File(_Source, frozen=True, tag="file"):
    file_id: str


class _Image(_Block, frozen=True, tag="image"):
    source: _Base64 | _Url | _File
    transformations: dict[str, Any] | None = None


class _Citations(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool | None = None


class _Document(_Block, frozen=True, tag="document"):
    source: _Base64 | _PlainText | _Content | _Url | _File
    title: str | None = None
    context: str | None = None
    citations: _Citations | None = None


class _Caller(Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["direct"]


class _ToolUse(_Block, frozen=True, tag="tool_use"):
    id: Name
    name: Name
    input: dict[str, Any]
    caller: _Caller | None = None


class _ToolResult(_Block, frozen=True, tag="tool_result"):
    tool_use_id: Name
    content: str | tuple[Text | _Image | _Document, ...] | None = None
    is_error: bool | None = None


class _Thinking(_Block, frozen=True, tag="thinking"):
    thinking: str
    signature: str | None = None


class _RedactedThinking(_Block, frozen=True, tag="redacted_thinking"):
    data: str


AnyBlock: TypeAlias = Text | _Image | _Document | _ToolUse | _ToolResult | _Thinking | _RedactedThinking


class WireMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message as it is sent."""

    role: Literal["user", "assistant", "system"]
    content: str | tuple[AnyBlock, ...]


class Contents:
    """Reads the messages of one request. `unused` names the hints in it that mead makes no use of, `system`
    is what messages of that role say."""

    def __init__(self) -> None:
        self.unused: dict[str, None] = {}
        self.system: list[str] = []

    def read(self, wires: Sequence[WireMessage]) -> list[Message]:
        """The messages in mead's words. Raises `Problem` for one that mead does not take."""
        messages: list[Message] = []
        for number, wire in enumerate(wires):
            at = f"messages[{number}]"
            if wire.role == "system":
                self.system += self._system(wire, at)
            elif isinstance(wire.content, str):
                messages.append(Message(wire.role, wire.content))
            else:
                messages.append(Message(wire.role, self._blocks(wire.role, wire.content, at)))
        if not messages or messages[0].role != "user":
            raise invalid("the first message must be the user's", param="messages")
        _check_results(messages)
        return messages

    def text(self, block: Text) -> str:
        """The words of a block."""
        self._hints(block)
        if block.citations:
            self.unused["citations"] = None
        return block.text

    def _system(self, wire: WireMessage, at: str) -> list[str]:
        if isinstance(wire.content, str):
            return [wire.content]
        texts = [self.text(block) for block in wire.content if isinstance(block, Text)]
        if len(texts) != len(wire.content):
            raise invalid("a message of the role system holds text alone", param=f"{at}.content")
        return texts

    def _blocks(self, role: str, blocks: Sequence[AnyBlock], at: str) -> tuple[Block, ...]:
        read: list[Block] = []
        for number, block in enumerate(blocks):
            place = f"{at}.content[{number}]"
            read += self._users(block, place) if role == "user" else self._models(block, place)
        return tuple(read)

    def _users(self, block: AnyBlock, at: str) -> list[Block]:
        self._hints(block)
        match block:
            case Text():
                return [TextBlock(self.text(block))]
            case _Image():
                return [self._image(block, at)]
            case _Document():
                return self._document(block, at)
            case _ToolResult():
                return self._result(block, at)
            case _:
                raise _misplaced(block, "a user's", at)

    def _models(self, block: AnyBlock, at: str) -> list[Block]:
        """The blocks of a model's message, which hold no file: the gate reads those of the user."""
        self._hints(block)
        match block:
            case Text():
                return [TextBlock(self.text(block))]
            case _ToolUse():
                return [ToolUseBlock(block.id, block.name, block.input)]
            case _Thinking() | _RedactedThinking():
                # Nobody can tell whose it is or what it quotes, and the gate cannot read it, so it goes to no
                # vendor. What a model thought in a turn that mead has handed over, mead itself puts back.
                self.unused[f"{block.__struct_config__.tag} blocks"] = None
                return []
            case _:
                raise _misplaced(block, "an assistant's", at)

    def _image(self, block: _Image, at: str) -> ImageBlock:
        source = block.source
        if not isinstance(source, _Base64):
            raise _elsewhere(source, at)
        if block.transformations:
            raise not_taken(f"{at}.transformations")
        if source.media_type not in _IMAGES:
            raise invalid(f"must be one of {', '.join(_IMAGES)}", param=f"{at}.source.media_type")
        return ImageBlock(source.media_type, source.data)

    def _document(self, block: _Document, at: str) -> list[Block]:
        source = block.source
        if block.citations is not None and block.citations.enabled:
            raise not_taken(f"{at}.citations")
        # What goes with a document is sent as text: so the privacy gate reads it as well.
        beside: list[Block] = [TextBlock(text) for text in (block.title, block.context) if text]
        match source:
            case _PlainText():
                data = source.data
            case _Content():
                data = self._texts(source.content)
            case _Base64(media_type="application/pdf"):
                return [*beside, DocumentBlock("application/pdf", source.data)]
            case _Base64():
                said = "must be application/pdf; a text goes into a source of the type text"
                raise invalid(said, param=f"{at}.source.media_type")
            case _:
                raise _elsewhere(source, at)
        if not data.strip():
            raise invalid("the document is empty", param=f"{at}.source")
        return [*beside, DocumentBlock("text/plain", data.encode())]

    def _texts(self, content: str | Sequence[Text]) -> str:
        return content if isinstance(content, str) else "\n\n".join([self.text(text) for text in content])

    def _result(self, block: _ToolResult, at: str) -> list[Block]:
        """The result as text; files in it stand after it, where every vendor takes them."""
        if block.content is None or isinstance(block.content, str):
            return [ToolResultBlock(block.tool_use_id, block.content or "", bool(block.is_error))]
        texts: list[str] = []
        files: list[Block] = []
        for number, part in enumerate(block.content):
            if isinstance(part, Text):
                texts.append(self.text(part))
            else:
                files += self._users(part, f"{at}.content[{number}]")
        return [ToolResultBlock(block.tool_use_id, "\n".join(texts), bool(block.is_error)), *files]

    def _hints(self, block: AnyBlock) -> None:
        if block.cache_control is not None:
            self.unused["cache_control"] = None


def not_taken(at: str) -> Problem:
    """A field that mead does not take: nothing is dropped in silence."""
    return invalid("mead does not support it; leave it out", param=at)


def _check_results(messages: Sequence[Message]) -> None:
    """Each result must answer a call of the message before it: one that does not would be left out."""
    asked: set[str] = set()
    before = "user"
    for message in messages:
        blocks = () if isinstance(message.content, str) else message.content
        if message.role == "assistant":
            if before != "assistant":
                asked = set()
            asked |= {block.id for block in blocks if isinstance(block, ToolUseBlock)}
        for block in blocks:
            if isinstance(block, ToolResultBlock):
                if block.tool_use_id not in asked:
                    said = (
                        "a tool_result answers no tool_use of the message before it, or one answered already"
                    )
                    raise invalid(said, param="messages")
                asked.remove(block.tool_use_id)
        before = message.role


def _misplaced(block: AnyBlock, whose: str, at: str) -> Problem:
    return invalid(f"{whose} message takes no block of the type {block.__struct_config__.tag}", param=at)


def _elsewhere(source: _Source, at: str) -> Problem:
    return invalid(_FETCHES_NOTHING, param=f"{at}.source.{source.__struct_config__.tag}")
