"""What every endpoint shares: who calls, what they may do, the body as typed JSON, errors in its shape."""

from __future__ import annotations

import logging
import re
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from itertools import accumulate
from typing import TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from mead.core.messages import clean_text
from mead.serve.errors import Problem, Shape, answer, invalid, unsupported
from mead.serve.tokens import ANYBODY, Principal, Scope, Tokens
from mead.sessions.runtime import Runtime

_BodyT = TypeVar("_BodyT")
_MINUTE_S = 60.0
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
# What may be quoted: the name of a type, and nothing that could be a token or a sentence.
_NAMED_VALUE = re.compile(r"Invalid (?:enum )?value '[a-z][a-z0-9_.-]{0,31}'")
_NAME_LENGTH = 200
MAX_DEPTH = 100
"""How deep the JSON of a body, or of a call's arguments, may be nested."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NO_BRACKETS = bytes([byte for byte in range(256) if byte not in b"[]{}"])
_TOO_DEEP = f"the body is nested deeper than {MAX_DEPTH} levels"
_MAX_FRAMES = 20
_log = logging.getLogger("mead.serve")


class Server:
    """What the endpoints of one server work with. `tokens` is `None` where none are asked for;
    `requests_per_minute` is how many requests a token may make within any 60 seconds."""

    def __init__(
        self, runtime: Runtime, tokens: Tokens | None, *, requests_per_minute: int | None = None
    ) -> None:
        self.runtime = runtime
        self.tokens = tokens
        self.is_stopping = False
        self.chats: object = None
        """What the chat doors remember of requests; see `mead.serve.chat.chats`."""
        self.started: list[Callable[[], AbstractAsyncContextManager[object]]] = []
        """What doors open when the server starts, and close when it ends."""
        self._budgets_of: object = None
        self._per_minute = requests_per_minute
        self._begun: dict[str | None, deque[float]] = {}

    def principal(self, request: Request) -> Principal:
        """Who calls. Raises `Problem` for a token that is missing or does not hold."""
        if self.tokens is None:
            return ANYBODY
        text = _token_in(request)
        found = self.tokens.find(text) if text else None
        if found is None:
            said = (
                "the token does not hold (any more)" if text else "a token is needed: Authorization: Bearer …"
            )
            raise Problem(401, "unauthorized", f"{said}; `mead token create` makes one")
        if self.tokens.version != self._budgets_of:  # tokens were made, or ended
            self._budgets_of = self.tokens.version
            self.runtime.accounts.add_budgets(self.tokens.budgets())
        return found

    def let_in(self, principal: Principal) -> None:
        """Counts a request. Raises `Problem` where the token has made too many."""
        if self._per_minute is None:
            return
        begun, now = self._begun.setdefault(principal.token_id, deque()), time.monotonic()
        while begun and begun[0] <= now - _MINUTE_S:
            begun.popleft()
        if len(begun) >= self._per_minute:
            wait_s = begun[0] + _MINUTE_S - now
            said = f"the token may make {self._per_minute} requests a minute"
            raise Problem(429, "rate_limited", said, retry_after_s=wait_s)
        begun.append(now)


class Call(Struct, frozen=True):
    """A request that was let in."""

    request: Request
    server: Server
    principal: Principal

    @property
    def runtime(self) -> Runtime:
        """The runtime as the caller's owner sees it."""
        return self.server.runtime.for_owner(self.principal.owner)

    def demand(self, scope: Scope) -> None:
        """Raises `Problem` if the caller lacks a scope."""
        if not self.principal.may(scope):
            raise Problem(403, "forbidden", f"the token lacks the scope {scope}")

    async def json(self, kind: type[_BodyT]) -> _BodyT:
        """The body, as JSON of this type. Raises `Problem` that says what is wrong where."""
        try:
            body = await self.request.body()
        except ClientDisconnect:
            raise Problem(499, "cancelled", "the client went away") from None
        try:
            typed = msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError as error:
            raise _wrong(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise invalid("the body is no JSON") from None
        except RecursionError:
            raise invalid(_TOO_DEEP) from None
        if is_too_deep(body):
            raise invalid(_TOO_DEEP)
        return typed


def is_too_deep(data: bytes) -> bool:
    """Whether JSON is nested deeper than anybody needs: what walks through it recursively would fail. Of what
    is no JSON it says nothing of use."""
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    steps = _STRING.sub(b"", data).translate(_STEPS, _NO_BRACKETS)  # 1 is a level deeper, -1 is out of it
    return max(accumulate(memoryview(steps).cast("b")), default=0) > MAX_DEPTH


def small_number(text: str) -> int | None:
    """The whole number that a header or a query holds, of nine digits at most; `None` if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


def stack_of(error: BaseException) -> str:
    """Where an exception came from, its last frames. Its message is left out: it may quote the conversation
    (T3)."""
    return "".join(traceback.format_tb(error.__traceback__)[-_MAX_FRAMES:])


def _wrong(said: str) -> Problem:
    """What msgspec says of a body, with the field that it is about. A text is not quoted (T3)."""
    # The path stands last: what looks like one before it is a value's.
    said, marked, path = clean_text(said).rpartition(" - at `$")
    if not marked:
        said, path = path, ""
    path = path.rstrip("`").lstrip(".")
    unknown = _UNKNOWN_FIELD.fullmatch(said)
    if unknown is None:
        if said.startswith("Invalid ") and _NAMED_VALUE.fullmatch(said) is None:
            said = "Invalid value: it is none of those that are known"
        return invalid(said, param=path or None)
    name = f"{path}.{unknown[1]}" if path else unknown[1]
    return unsupported(name[:_NAME_LENGTH])


Handle: TypeAlias = Callable[[Call], Awaitable[Response]]
Endpoint: TypeAlias = Callable[[Request], Awaitable[Response]]


def endpoint(handle: Handle, *, scope: Scope | None, shape: Shape) -> Endpoint:
    """An endpoint that asks for a token with `scope` (`None`: any token), and tells of errors in `shape`."""

    async def respond(request: Request) -> Response:
        server: Server = request.app.state.server
        try:
            principal = server.principal(request)
            call = Call(request, server, principal)
            if scope is not None:
                call.demand(scope)
            server.let_in(principal)
            return await handle(call)
        except Problem as problem:
            return answer(problem, shape)
        except Exception as error:
            _log.error("%s raised %s\n%s", request.url.path, type(error).__name__, stack_of(error))
            return answer(Problem(500, "crashed", "the server made a mistake; its log says where"), shape)

    return respond


def _token_in(request: Request) -> str:
    """The token of a request: as OpenAI's clients send it, or as Anthropic's do."""
    kind, _, text = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return text.strip()
    return request.headers.get("x-api-key", "").strip()
