"""A runtime that is a server: the methods of `Runtime`, over the native API."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar, Unpack

import msgspec

from mead.client._http import Connection, Lost, quoted
from mead.client.following import Followed
from mead.core.messages import Message
from mead.core.options import NO_OPTIONS
from mead.core.reasons import MalformedResponse, NoSuchSession, TurnReason
from mead.core.result import Err, MeadError, Ok, Result
from mead.core.turns import Answer, Decision, Turn
from mead.router.decide import Refused
from mead.sessions.bodies import (
    CompactBody,
    ExplainBody,
    HubTools,
    OptionsShape,
    RequestBody,
    StartBody,
    TurnBody,
    TurnShape,
)
from mead.sessions.events import Finished, TurnEvent
from mead.sessions.keywords import SessionKeywords, TurnKeywords
from mead.sessions.run import SentRecord
from mead.sessions.sent import EgressShape
from mead.sessions.shapes import (
    AnswerShape,
    CancelledShape,
    ExplanationShape,
    HistoryShape,
    MadeShape,
    SessionPage,
)

_ShapeT = TypeVar("_ShapeT")
_BodyT = TypeVar("_BodyT", TurnBody, RequestBody, ExplainBody)
_PAGE = "1000"
_MOST_SENT = "10000"
MARGIN_S = 15.0
"""How much longer than its turn a call may take, in seconds."""
_MOST_TURN_S = 3600.0  # for a turn that says nothing of its time: the server's settings are not known here
_MOST_QUEUED_S = 900.0
_MOST_ASKED_S = 3600.0  # while a person is asked, the turn's clock stands still
_FIELDS = ("route", "attachments", "allow_private", "turn_timeout_s", "busy", "tags", "asks", "client_tools")
_COMPACTED = ("route", "allow_private", "turn_timeout_s", "tags")


class RemoteRuntime:
    """The runtime of a server, as the owner of the token sees it. See `Runtime` for what each method does.

    What the connection comes to is a reason like any other: `Transport`, or `Timeout`. Methods without a
    result raise `MeadError` with it. A stream that breaks off is taken up again where it was. A request that
    the server takes for wrong raises `ValueError`; what the token may not do is `HttpStatus` 401 or 403.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        """Raises `ValueError` for what is no url of a server. Contacts nothing."""
        self._connection = Connection(url, token)

    def __repr__(self) -> str:
        return f"RemoteRuntime({self._connection.host!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections. Turns that are waited for are cancelled by the server."""
        await self._connection.aclose()

    def for_owner(self, owner: str) -> NoReturn:
        """There is no such view: a token belongs to one owner. Always raises `RuntimeError`."""
        raise RuntimeError("a token belongs to one owner: connect with a token of the other one")

    async def delete_owner(self) -> NoReturn:
        """Is not done from afar. Always raises `RuntimeError`."""
        raise RuntimeError("all of an owner's data is deleted on the server's machine, not from afar")

    async def start_session(self, **session: Unpack[SessionKeywords]) -> str:
        """Starts a session and gives its id. `state` must be JSON; `handler` and `idempotency_key` cannot be
        sent."""
        if session.get("handler") is not None:
            raise ValueError("a handler is a part of the server: it cannot be sent there")
        if session.get("idempotency_key") is not None:
            raise ValueError("a session cannot be started under an idempotency key from afar")
        made = await self._insist("POST", "/api/sessions", MadeShape, body=_start_body(session))
        return made.session_id

    async def submit_turn(
        self, session_id: str, text: str, **turn: Unpack[TurnKeywords]
    ) -> Result[Answer, TurnReason]:
        """Submits a turn and waits for its answer. Cancelling the caller cancels the turn."""
        body = _body(TurnBody, turn, text=text)
        return await self._submit(f"{_session(session_id)}/turns", body, turn)

    async def submit_request(
        self, messages: Sequence[Message], **turn: Unpack[TurnKeywords]
    ) -> Result[Answer, TurnReason]:
        """Answers a conversation that is brought along, and keeps none of it."""
        return await self._submit("/api/requests", _body(RequestBody, turn, messages=_all(messages)), turn)

    async def stream_turn(
        self, session_id: str, text: str, **turn: Unpack[TurnKeywords]
    ) -> AsyncGenerator[TurnEvent, None]:
        """Submits a turn and yields what happens in it, last of all `Finished(result)`. Leaving the loop
        early cancels the turn."""
        body = _body(TurnBody, turn, text=text)
        async with contextlib.aclosing(self._stream(f"{_session(session_id)}/turns", body, turn)) as events:
            async for event in events:
                yield event

    async def stream_request(
        self, messages: Sequence[Message], **turn: Unpack[TurnKeywords]
    ) -> AsyncGenerator[TurnEvent, None]:
        """The same for a conversation that is brought along."""
        body = _body(RequestBody, turn, messages=_all(messages))
        async with contextlib.aclosing(self._stream("/api/requests", body, turn)) as events:
            async for event in events:
                yield event

    async def cancel_turn(self, session_id: str) -> bool:
        """Cancels the session's running turn. False if none was running."""
        try:
            path = f"{_session(session_id)}/cancel"
            return (await self._insist("POST", path, CancelledShape)).cancelled
        except MeadError as error:
            return _none_there(error)

    async def stop_session(self, session_id: str) -> bool:
        """Ends a session and deletes it. False if there is none."""
        try:
            await self._insist("DELETE", _session(session_id), None)
        except MeadError as error:
            return _none_there(error)
        return True

    async def compact(self, session_id: str, **turn: Unpack[TurnKeywords]) -> Result[str, TurnReason]:
        """Starts a session that goes on from a summary of this one, and gives its id."""
        fields: dict[str, Any] = {name: turn[name] for name in _COMPACTED if name in turn}  # type: ignore[literal-required]
        fields["options"] = OptionsShape.of(turn.get("options", NO_OPTIONS))
        body, limit_s = CompactBody(**fields), _limit_s(turn)
        made = await self._ask("POST", f"{_session(session_id)}/compact", MadeShape, body, timeout_s=limit_s)
        return Ok(made.value.session_id) if isinstance(made, Ok) else made

    async def history(self, session_id: str) -> Result[tuple[Turn, ...], TurnReason]:
        """The session's turns that were answered, the oldest first."""
        found = await self._ask("GET", f"{_session(session_id)}/history", HistoryShape)
        return Ok(tuple([turn.turn() for turn in found.value.turns])) if isinstance(found, Ok) else found

    async def sessions(self) -> tuple[str, ...]:
        """The ids of all this owner's sessions that the server keeps, the oldest first."""
        found: list[tuple[float, str]] = []
        query = {"limit": _PAGE}
        while True:
            page = await self._insist("GET", "/api/sessions", SessionPage, query=query)
            found += [(session.created_at, session.session_id) for session in page.sessions]
            if page.next is None:
                return tuple([session_id for _, session_id in sorted(found)])
            query["cursor"] = page.next

    async def egress(self, session_id: str | None = None) -> tuple[SentRecord, ...]:
        """What this owner's turns have sent, of one session or of all: the newest 10,000, oldest first."""
        query = {"limit": _MOST_SENT, "all": "true"}
        if session_id is not None:
            query["session_id"] = session_id
        found = await self._insist("GET", "/api/egress", EgressShape, query=query)
        return tuple([row.record() for row in found.rows])

    async def explain(
        self, text: str, *, session_id: str | None = None, **turn: Unpack[TurnKeywords]
    ) -> Result[Decision | Refused, TurnReason]:
        """What would be decided of a turn, and why; no model is contacted and nothing changes."""
        return await self._explain(_body(ExplainBody, turn, text=text, session_id=session_id))

    async def explain_request(
        self, messages: Sequence[Message], **turn: Unpack[TurnKeywords]
    ) -> Result[Decision | Refused, TurnReason]:
        """The same for a conversation that is brought along."""
        return await self._explain(_body(ExplainBody, turn, messages=_all(messages)))

    async def _explain(self, body: ExplainBody) -> Result[Decision | Refused, TurnReason]:
        found = await self._ask("POST", "/api/explain", ExplanationShape, body)
        return Ok(found.value.explanation()) if isinstance(found, Ok) else found

    async def _submit(
        self, path: str, body: TurnBody | RequestBody, turn: TurnKeywords
    ) -> Result[Answer, TurnReason]:
        limit_s = _limit_s(turn)
        if isinstance(body, TurnBody) and body.busy not in ("reject", "interrupt"):
            limit_s += _MOST_QUEUED_S
        found = await self._ask("POST", path, AnswerShape, body, headers=_key(turn), timeout_s=limit_s)
        return Ok(found.value.answer()) if isinstance(found, Ok) else found

    async def _stream(
        self, path: str, body: TurnBody | RequestBody, turn: TurnKeywords
    ) -> AsyncGenerator[TurnEvent, None]:
        followed = Followed(self._connection, path, body, _key(turn))
        try:
            async with contextlib.aclosing(followed.events()) as events:
                async for event in events:
                    yield event
        except Lost as lost:
            yield Finished(Err(lost.reason))

    async def _ask(
        self, method: str, path: str, shape: type[_ShapeT], body: object = None, **more: Any
    ) -> Result[_ShapeT, TurnReason]:
        """The answer in its shape, or the reason why there is none."""
        try:
            reply = await self._connection.call(method, path, body, **more)
            return Ok(msgspec.json.decode(reply.data, type=shape))
        except Lost as lost:
            return Err(lost.reason, cause=lost.__cause__)
        except msgspec.DecodeError as error:
            host = self._connection.host
            return Err(MalformedResponse(detail=f"{host} does not answer as mead does"), cause=error)

    async def _insist(
        self,
        method: str,
        path: str,
        shape: type[_ShapeT] | None,
        *,
        body: object = None,
        query: Mapping[str, str] | None = None,
    ) -> _ShapeT:
        """The same, but raises `MeadError` with the reason."""
        if shape is None:
            found: Result[Any, TurnReason] = await self._ask_nothing(method, path)
        else:
            found = await self._ask(method, path, shape, body, query=query)
        value: _ShapeT = found.unwrap()
        return value

    async def _ask_nothing(self, method: str, path: str) -> Result[None, TurnReason]:
        try:
            await self._connection.call(method, path)
        except Lost as lost:
            return Err(lost.reason, cause=lost.__cause__)
        return Ok(None)


def _session(session_id: str) -> str:
    return f"/api/sessions/{quoted(session_id)}"


def _limit_s(turn: TurnKeywords) -> float:
    """How long a call may take at most for a turn that runs at once, in seconds: a server that says nothing
    for longer has gone."""
    turn_s = turn.get("turn_timeout_s")
    asked_s = _MOST_ASKED_S if turn.get("asks") else 0.0
    return (_MOST_TURN_S if turn_s is None else turn_s) + asked_s + MARGIN_S


def _key(turn: TurnKeywords) -> dict[str, str]:
    key = turn.get("idempotency_key")
    return {} if key is None else {"idempotency-key": key}


def _body(kind: type[_BodyT], turn: TurnKeywords, **fields: Any) -> _BodyT:
    """A turn's keywords as the body of a request."""
    given: dict[str, Any] = {name: turn[name] for name in _FIELDS if name in turn}  # type: ignore[literal-required]
    wanted = turn.get("tools")
    tools: HubTools = "read" if wanted is None else wanted
    return kind(tools=tools, options=OptionsShape.of(turn.get("options", NO_OPTIONS)), **given, **fields)


def _start_body(session: SessionKeywords) -> StartBody:
    history = session.get("history", ())
    turns = tuple([TurnShape.of(item) for item in history if isinstance(item, Turn)])
    messages = tuple([item for item in history if isinstance(item, Message)])
    if len(turns) + len(messages) != len(history) or (turns and messages):
        raise ValueError("history must be messages, or turns, and not both")
    return StartBody(
        system=session.get("system"),
        options=OptionsShape.of(session.get("options", NO_OPTIONS)),
        turn_timeout_s=session.get("turn_timeout_s"),
        busy=session.get("busy"),
        turns=turns,
        messages=messages,
        state=session.get("state"),
        tags=tuple(session.get("tags", ())),
        title=session.get("title"),
    )


def _all(messages: Sequence[Message]) -> tuple[Message, ...]:
    if not all(isinstance(message, Message) for message in messages):
        raise ValueError("messages must be a sequence of mead.Message")
    return tuple(messages)


def _none_there(error: MeadError) -> bool:
    """False for a session that is not there; raises anything else again."""
    if isinstance(error.reason, NoSuchSession):
        return False
    raise error
