"""The messages of a chat completion request, typed, and in mead's words."""

from __future__ import annotations

import base64
import binascii
import mimetypes
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from mead.core.messages import (
    Block,
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from mead.serve.endpoint import is_too_deep
from mead.serve.errors import invalid, unsupported

_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+)((?:;[\w.+-]+=[^;,]*)*);base64,", re.IGNORECASE)
_NAMES_NOTE = "The names of the messages' speakers are not passed on to the model."
_REASONING_NOTE = "What models have thought in earlier replies is not passed on to the model."
_DETAIL_NOTE = "How closely an image is looked at (detail) is left to the model."


class _Strict(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


# Parts of a content


class _TextPart(_Strict, frozen=True, tag_field="type", tag="text"):
    text: str


class _RefusalPart(_Strict, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class _ImageUrl(_Strict, frozen=True):
    url: str
    detail: str | None = None


class _ImagePart(_Strict, frozen=True, tag_field="type", tag="image_url"):
    image_url: _ImageUrl


class _File(_Strict, frozen=True):
    file_data: str | None = None
    filename: str | None = None
    file_id: str | None = None


class _FilePart(_Strict, frozen=True, tag_field="type", tag="file"):
    file: _File


class _AudioPart(Struct, frozen=True, tag_field="type", tag="input_audio"):
    pass


_UserPart: TypeAlias = _TextPart | _ImagePart | _FilePart | _AudioPart


# Messages


class _System(_Strict, frozen=True, tag_field="role", tag="system"):
    content: str | list[_TextPart]
    name: str | None = None


class _Developer(_Strict, frozen=True, tag_field="role", tag="developer"):
    content: str | list[_TextPart]
    name: str | None = None


class _User(_Strict, frozen=True, tag_field="role", tag="user"):
    content: str | list[_UserPart]
    name: str | None = None


class _CalledFunction(_Strict, frozen=True):
    name: str
    arguments: str | None = None


class _FunctionCall(_Strict, frozen=True, tag_field="type", tag="function"):
    id: str
    function: _CalledFunction
    index: int | None = None


class _CustomCall(Struct, frozen=True, tag_field="type", tag="custom"):
    pass


class _Assistant(_Strict, frozen=True, tag_field="role", tag="assistant"):
    content: str | list[_TextPart | _RefusalPart] | None = None
    refusal: str | None = None
    tool_calls: list[_FunctionCall | _CustomCall] | None = None
    name: str | None = None
    reasoning: Any = None
    reasoning_content: Any = None
    reasoning_details: Any = None
    annotations: list[Any] | None = None
    audio: Any = None
    function_call: Any = None


class _ToolMessage(_Strict, frozen=True, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str | list[_TextPart]
    name: str | None = None


class _FunctionMessage(Struct, frozen=True, tag_field="role", tag="function"):
    pass


AnyMessage: TypeAlias = _System | _Developer | _User | _Assistant | _ToolMessage | _FunctionMessage


class Read(Struct, frozen=True):
    """The messages in mead's words, what stands in their system messages, and sentences about what of them is
    not passed on."""

    messages: tuple[Message, ...]
    system: str | None
    notes: tuple[str, ...]


def read_messages(messages: Sequence[AnyMessage]) -> Read:
    """The messages in mead's words. Raises `Problem` for a content that cannot be passed on."""
    reader = _Reader()
    for index, message in enumerate(messages):
        reader.take(message, f"messages[{index}]")
    system = "\n\n".join(reader.system) or None
    return Read(tuple(reader.messages), system, tuple(reader.notes))


class _Reader:
    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.system: list[str] = []
        self.notes: dict[str, None] = {}

    def take(self, message: AnyMessage, where: str) -> None:
        """Adds one message."""
        match message:
            case _User(content=str(text)):
                self.messages.append(Message("user", text))
            case _User(content=parts):
                assert not isinstance(parts, str)
                blocks = [self._block(part, f"{where}.content[{i}]") for i, part in enumerate(parts)]
                self.messages.append(Message("user", tuple(blocks)))
            case _Assistant():
                self._take_assistant(message, where)
            case _ToolMessage():
                self._take_result(ToolResultBlock(message.tool_call_id, _text(message.content)))
                return  # its name is the tool's, which the call has too
            case _FunctionMessage():
                raise unsupported(f"{where}.role", "a function's result is a message of the role tool")
            case _System() | _Developer():
                self.system.append(_text(message.content))
        if message.name:
            self.notes[_NAMES_NOTE] = None

    def _take_assistant(self, message: _Assistant, where: str) -> None:
        for name in ("audio", "function_call"):
            if getattr(message, name):
                raise unsupported(f"{where}.{name}")
        if message.reasoning or message.reasoning_content or message.reasoning_details:
            self.notes[_REASONING_NOTE] = None
        text = "" if message.content is None else _text(message.content)
        text = text or message.refusal or ""
        if not message.tool_calls:
            self.messages.append(Message("assistant", text))
            return
        blocks: list[Block] = [TextBlock(text)] if text else []
        for index, call in enumerate(message.tool_calls):
            if isinstance(call, _CustomCall):
                raise unsupported(f"{where}.tool_calls[{index}].type")
            blocks.append(_tool_use(call))
        self.messages.append(Message("assistant", tuple(blocks)))

    def _take_result(self, result: ToolResultBlock) -> None:
        """Results of one reply's calls stand in one message."""
        last = self.messages[-1] if self.messages else None
        if last is not None and not isinstance(last.content, str) and _is_results(last):
            self.messages[-1] = Message("user", (*last.content, result))
        else:
            self.messages.append(Message("user", (result,)))

    def _block(self, part: _UserPart, where: str) -> Block:
        match part:
            case _TextPart(text=text):
                return TextBlock(text)
            case _ImagePart(image_url=image):
                if image.detail not in (None, "auto"):
                    self.notes[_DETAIL_NOTE] = None
                return _image(image, f"{where}.image_url.url")
            case _FilePart(file=file):
                return _document(file, f"{where}.file")
            case _AudioPart():
                raise unsupported(f"{where}.input_audio", "it takes text, images and documents")


def _is_results(message: Message) -> bool:
    return message.role == "user" and all(isinstance(block, ToolResultBlock) for block in message.content)


def _text(content: str | Sequence[_TextPart | _RefusalPart]) -> str:
    if isinstance(content, str):
        return content
    return "".join([part.text if isinstance(part, _TextPart) else part.refusal for part in content])


def _tool_use(call: _FunctionCall) -> ToolUseBlock:
    name, arguments = call.function.name, call.function.arguments or ""
    if not arguments.strip():
        return ToolUseBlock(call.id, name, {})
    if is_too_deep(arguments.encode(errors="replace")):
        return ToolUseBlock(call.id, name, {}, malformed=arguments)
    try:
        parsed = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        parsed = arguments
    if isinstance(parsed, dict):
        return ToolUseBlock(call.id, name, parsed)
    if parsed is None:
        return ToolUseBlock(call.id, name, {})
    return ToolUseBlock(call.id, name, {}, malformed=arguments)


def _image(image: _ImageUrl, where: str) -> ImageBlock:
    if not image.url[:5].lower() == "data:":
        raise invalid("mead fetches nothing: send the image itself as a data: URL", param=where)
    media_type, data = _data(image.url, where)
    if not media_type.startswith("image/"):
        raise invalid("is not of an image type", param=where)
    return ImageBlock(media_type, data)


def _document(file: _File, where: str) -> DocumentBlock:
    if file.file_id is not None:
        raise unsupported(f"{where}.file_id", "mead keeps no files; send the file itself as file_data")
    if not file.file_data:
        raise invalid("holds no file", param=f"{where}.file_data")
    where = f"{where}.file_data"
    if file.file_data[:5].lower() == "data:":
        media_type, data = _data(file.file_data, where)
    else:
        guessed = mimetypes.guess_type(file.filename or "", strict=False)[0]
        if guessed is None:
            raise invalid("say of which type the file is: data:application/pdf;base64,…", param=where)
        media_type, data = guessed, _decoded(file.file_data, where)
    return DocumentBlock(media_type, data, file.filename)


def _data(url: str, where: str) -> tuple[str, bytes]:
    """The media type and the bytes in a `data:` URL. Raises `Problem` for one that holds none."""
    match = _DATA_URL.match(url)
    if match is None:
        raise invalid("is not of the form data:TYPE;base64,…", param=where)
    return match[1].lower(), _decoded(url[match.end() :], where)


def _decoded(text: str, where: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise invalid("holds no valid base64", param=where) from None
    if not data:
        raise invalid("is empty", param=where)
    return data
