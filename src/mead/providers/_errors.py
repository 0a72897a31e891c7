"""Reads error answers: a status and a body in any of the shapes servers use become a reason."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from mead.core.messages import Block, DocumentBlock, ImageBlock, Message, blocks_of
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
MAX_MESSAGE_CHARS = 1000

_WORD = re.compile(r"[\w.+-]{1,64}@[\w.-]{1,64}\w|\w+")
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{80,}")
_WRITTEN_SPACE = re.compile(r"\\[nrt]")
_ESCAPE = re.compile(r"\\(?:u[0-9a-f]{4}|.)")

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

    __slots__ = ("_messages", "_secret", "_system", "tools")

    def __init__(
        self, messages: Sequence[Message], *, system: str | None, secret: str | None, tools: bool
    ) -> None:
        self._messages = messages
        self._system = system
        self._secret = secret
        self.tools = tools

    def clean(self, detail: str) -> str:
        """A server's words without control characters, the key, and what it quotes of the conversation."""
        if self._secret:
            detail = detail.replace(self._secret, "…")
        detail = _WRITTEN_SPACE.sub(" ", _BLOB.sub("…", detail[:MAX_MESSAGE_CHARS]))
        detail = "".join([ch if ch.isprintable() else " " for ch in detail])
        shown = [_shown(block) for message in self._messages for block in blocks_of(message)]
        conversation = b" ".join([*shown, (self._system or "").encode()])
        return _without_quotes(" ".join(detail.split()), _words(conversation))[:MAX_DETAIL_CHARS]


def _shown(block: Block) -> bytes:
    """What of a block a server could quote in words."""
    match block:
        case ImageBlock():
            return b""
        case DocumentBlock():
            return block.data if block.media_type.startswith("text/") else b""
        case _:
            return msgspec.json.encode(block)


def _words(encoded: bytes) -> str:
    """The words of a JSON text, without its punctuation and escapes."""
    return " ".join(_WORD.findall(_ESCAPE.sub(" ", encoded.decode(errors="replace"))))


def _without_quotes(detail: str, conversation: str) -> str:
    """`detail` with each run of words that stands in the conversation replaced by an ellipsis, whatever
    punctuation stands between them: words of 12 characters or more in all, or 6 or more with a digit or
    an @; a single word without these needs 16."""
    words, kept = list(_WORD.finditer(detail)), []
    start = copied = 0
    while start < len(words):
        stop, run = start, ""
        while stop < len(words) and (longer := f"{run} {words[stop].group()}".lstrip()) in conversation:
            stop, run = stop + 1, longer
        if not _is_telling(run, stop - start):
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
    detail = sent.clean(message) or None
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
