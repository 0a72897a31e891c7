"""Reads error answers: a status and a body in any of the shapes servers use become a reason."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from mead.core.messages import (
    Block,
    DocumentBlock,
    ImageBlock,
    Message,
    TextBlock,
    ToolResultBlock,
    blocks_of,
)
from mead.core.reasons import (
    HttpStatus,
    InvalidOptions,
    MalformedResponse,
    ProviderReason,
    ToolsUnsupported,
)
from mead.providers.http import HttpReply

MAX_DETAIL_CHARS = 400
# What is looked at of a server's message: cleaning takes time, and a server may send megabytes.
MAX_MESSAGE_CHARS = 600

_WORD = re.compile(r"[\w.+-]{1,64}@[\w.-]{1,64}\w|\w+")
_LAST_WORD = re.compile(r"\w+\Z")
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{80,}")
_WRITTEN_SPACE = re.compile(r"\\[nrt]")
_ESCAPE = re.compile(rb"\\(?:u[0-9a-f]{4}|.)")
_CODE = re.compile(r"[\w.:-]{1,64}", re.ASCII)
# What stands between words: in ASCII, and the usual marks and spaces of other scripts as UTF-8.
_BLANKED = bytes([code if code >= 128 or chr(code).isalnum() or code == 95 else 32 for code in range(256)])
_OTHER_MARKS = re.compile(rb"\xe2[\x80\x81].|\xc2[\xa0-\xbf]|\xe3\x80.|\xef\xbc[\x80-\x8f]", re.DOTALL)

_NO_TOOLS = re.compile(
    "|".join(
        (
            r"not support (?:tool|function)",
            r"tools? (?:use )?(?:is|are) not supported",
            r"no endpoints found that support tool",
            r"`?tools`? param requires",
            r"tool choice requires",
            r"tool[- ]?(?:use|calling|call)s? (?:is |are )?not (?:supported|available|enabled)",
        )
    ),
    re.IGNORECASE,
)
# The statuses that stand behind the error types of the Anthropic and OpenAI APIs, for errors inside a stream.
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "invalid_api_key": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "exceed_context_size_error": 400,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "tokens": 429,
    "api_error": 500,
    "server_error": 500,
    "internal_server_error": 500,
    "unavailable_error": 503,
    "timeout_error": 504,
    "overloaded_error": 529,
}


class Sent:
    """What a request carried, so that an error text that quotes it can be cleaned (T3)."""

    __slots__ = ("_messages", "_secret", "_system", "_words", "tools")

    def __init__(
        self, messages: Sequence[Message], *, system: str | None, secret: str | None, tools: bool
    ) -> None:
        self._messages = messages
        self._system = system
        self._secret = secret
        self._words: bytes | None = None
        self.tools = tools

    def clean(self, detail: str) -> str:
        """A server's words without control characters, the key, and what it quotes of the conversation."""
        if self._secret:
            detail = detail.replace(self._secret, "…")
        if len(detail) > MAX_MESSAGE_CHARS:  # half a word could no more be told from those of others
            detail = _LAST_WORD.sub("", detail[:MAX_MESSAGE_CHARS])
        detail = _WRITTEN_SPACE.sub(" ", _BLOB.sub("…", detail))
        detail = "".join([ch if ch.isprintable() else " " for ch in detail])
        return _without_quotes(" ".join(detail.split()), self._conversation())[:MAX_DETAIL_CHARS]

    def clean_code(self, code: str | None) -> str | None:
        """A server's short word for an error; `None` for what is none, or quotes what must not be told."""
        if code is None or _CODE.fullmatch(code) is None or self.clean(code) != code:
            return None
        return code

    def _conversation(self) -> bytes:
        """The words of all that was sent. Found out where a server complains, not before."""
        if self._words is None:
            shown = [_shown(block) for message in self._messages for block in blocks_of(message)]
            self._words = _words(b" ".join([*shown, (self._system or "").encode(errors="replace")]))
        return self._words


def _shown(block: Block) -> bytes:
    """What of a block a server could quote in words."""
    match block:
        case ImageBlock():
            return b""
        case DocumentBlock():
            return block.data if block.media_type.startswith("text/") else b""
        case TextBlock():
            return block.text.encode(errors="replace")
        case ToolResultBlock():
            return block.content.encode(errors="replace")
        case _:
            return _ESCAPE.sub(b" ", msgspec.json.encode(block))


def _words(text: bytes) -> bytes:
    """The words of a text, without what stands between them. In bytes: it may be megabytes long."""
    words = text.translate(_BLANKED)
    if not words.isascii():
        words = _OTHER_MARKS.sub(b" ", words)
    return b" ".join(words.split())


def _without_quotes(detail: str, conversation: bytes) -> str:
    """`detail` with each run of words that stands in the conversation replaced by an ellipsis, whatever
    punctuation stands between them: words of 12 characters or more in all, or 6 or more with a digit or
    an @; a single word without these needs 16."""
    words, kept = list(_WORD.finditer(detail)), []
    plain = [_words(word.group().encode(errors="replace")) for word in words]
    known: dict[bytes, bool] = {}

    def is_said(run: bytes) -> bool:
        if run not in known:
            known[run] = run in conversation
        return known[run]

    start = copied = 0
    while start < len(words):
        stop, run = start, b""
        while stop < len(words) and is_said(longer := (run + b" " + plain[stop]).lstrip()):
            stop, run = stop + 1, longer
        if not _is_telling(" ".join([word.group() for word in words[start:stop]]), stop - start):
            start += 1
            continue
        kept += [detail[copied : words[start].start()], "…"]
        copied, start = words[stop - 1].end(), stop
    return "".join([*kept, detail[copied:]])


def _is_telling(run: str, words: int) -> bool:
    if len(run) >= (12 if words > 1 else 16):
        return True
    return len(run) >= 6 and any(ch.isdigit() or ch == "@" for ch in run)


def reason_of(reply: HttpReply, sent: Sent) -> ProviderReason:
    """The reason for an answer whose status is not 200."""
    if 300 <= reply.status < 400:
        return HttpStatus(
            status=reply.status,
            detail="the server redirects, and redirects are not followed: set base_url to the final address",
        )
    message, code = _message_of(reply.body)
    return _classify(reply.status, message, code, sent, retry_after_s=reply.retry_after_s)


def reason_in_body(error: object, sent: Sent) -> ProviderReason:
    """The reason for an error object that came under status 200, whole or in a stream."""
    message, code = _describe(error)
    status = _status_in(error)
    return _classify(status if status else 500, message, code, sent, retry_after_s=None)


def _classify(
    status: int, message: str, code: str | None, sent: Sent, *, retry_after_s: float | None
) -> ProviderReason:
    detail, code = sent.clean(message) or None, sent.clean_code(code)
    if sent.tools and status in (400, 404, 422, 500, 501) and _NO_TOOLS.search(message):
        return ToolsUnsupported(detail=detail)
    if status in (400, 422):
        return InvalidOptions(detail=detail, code=code)
    return HttpStatus(status=status, retry_after_s=retry_after_s, code=code, detail=detail)


def _message_of(body: bytes) -> tuple[str, str | None]:
    """The message and the code of an error body. A page that is not JSON says nothing worth showing."""
    try:
        parsed = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = body[: 4 * MAX_MESSAGE_CHARS].decode(errors="replace").strip()
        return ("" if text.startswith("<") else text), None
    if isinstance(parsed, list) and parsed:
        parsed = parsed[0]
    if isinstance(parsed, dict):
        return _describe(parsed.get("error") or parsed)
    return "", None


def _describe(error: object) -> tuple[str, str | None]:
    if isinstance(error, str):
        return error, None
    if not isinstance(error, dict):
        return "", None
    message = next((error[key] for key in ("message", "error", "detail") if error.get(key)), "")
    details = error.get("details")
    code = details.get("error_code") if isinstance(details, dict) else None
    for key in ("code", "type"):
        if not isinstance(code, str):
            code = error.get(key)
    if not isinstance(message, str):
        message = msgspec.json.encode(message).decode()
    return message, code if isinstance(code, str) else None


def _status_in(error: object) -> int | None:
    """The HTTP status that an error object names, by number or by its type."""
    if not isinstance(error, dict):
        return None
    for key in ("status", "status_code", "code"):
        value = error.get(key)
        if isinstance(value, str) and len(value) == 3 and value.isdecimal():
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    for key in ("type", "code"):
        status = _STATUS_OF_TYPE.get(str(error.get(key)))
        if status:
            return status
    return None


def unreadable(what: str) -> MalformedResponse:
    """The reason for an answer that is not of its wire format; `what` says what is wrong with it."""
    return MalformedResponse(detail=f"the server's answer {what}")
