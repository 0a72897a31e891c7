"""Turns of the native API: answered at once, as a stream that may be taken up again, or in the background."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator

import msgspec
from starlette.responses import Response

from mead.core.reasons import IdempotencyConflict, InvalidOptions, ShuttingDown
from mead.core.result import Err
from mead.core.turns import TurnResult
from mead.serve._json import WaitQuery, query, reply
from mead.serve.endpoint import Call, small_number
from mead.serve.errors import Problem, invalid, problem_of
from mead.serve.native_checks import check_session, refusing_bad_words, turn_keywords
from mead.serve.native_flights import GRACE_S, Happening, Running, RunningTurns
from mead.serve.streams import SseResponse, sse, until_gone
from mead.sessions.bodies import CompactBody, ExplainBody, RequestBody, TurnBody
from mead.sessions.events import Finished, TurnEvent
from mead.sessions.keywords import TurnKeywords
from mead.sessions.shapes import AnswerShape, CancelledShape, ExplanationShape, MadeShape, RunningShape

TURN_HEADER = "x-mead-turn"
MAX_KEY_CHARS = 255


class Turns:
    """The endpoints about turns, and the turns that run in this server."""

    def __init__(self) -> None:
        self.running = RunningTurns()

    async def submit_turn(self, call: Call) -> Response:
        """A session's next turn."""
        session_id = call.request.path_params["session_id"]
        body = await call.json(TurnBody)
        await check_session(call, session_id)
        return await self._submit(call, body, session_id)

    async def submit_request(self, call: Call) -> Response:
        """A conversation that is brought along."""
        return await self._submit(call, await call.json(RequestBody), None)

    async def _submit(self, call: Call, body: TurnBody | RequestBody, session_id: str | None) -> Response:
        turn = await turn_keywords(call, body, session_id)
        turn["idempotency_key"] = key = _key(call)
        in_background, as_stream = _in_background(call, body), _as_stream(call)
        if key is None and not (in_background or as_stream or body.asks):
            with refusing_bad_words():
                result = await until_gone(call.request, _result(call, body, session_id, turn))
            return answer_of(result, session_id)
        running = self._running(call, body, session_id, turn, streams=as_stream or in_background or body.asks)
        headers = {TURN_HEADER: running.turn_id}
        if in_background:
            running.runs_alone = True
            headers["location"] = f"/api/turns/{running.turn_id}"
            return reply(_state_of(running), 202, headers)
        if as_stream:
            return SseResponse(_events_of(running, 0), headers)
        return answer_of(await until_gone(call.request, running.outcome()), session_id, headers)

    def _running(
        self,
        call: Call,
        body: TurnBody | RequestBody,
        session_id: str | None,
        turn: TurnKeywords,
        *,
        streams: bool,
    ) -> Running:
        """The turn, begun now, or the one that was begun under the same key."""
        owner, key, asked = call.principal.owner, turn.get("idempotency_key"), _fingerprint(body)
        if key is not None and (known := self.running.keyed(owner, session_id, key)) is not None:
            if known.fingerprint != asked:
                said = "the idempotency key is in use, with another request"
                raise problem_of(IdempotencyConflict(detail=said))
            return known
        if call.server.is_stopping:
            raise problem_of(ShuttingDown(detail="the server stops"))
        events = _stream(call, body, session_id, turn) if streams else _whole(call, body, session_id, turn)
        return self.running.begin(events, owner=owner, session_id=session_id, key=key, fingerprint=asked)

    async def turn(self, call: Call) -> Response:
        """How a turn is, and what it came to."""
        wanted = query(call, WaitQuery)
        running = self._find(call)
        if wanted.wait_s:
            await until_gone(call.request, running.wait(wanted.wait_s))
        return reply(_state_of(running))

    async def events(self, call: Call) -> Response:
        """The events of a turn after the last one that was seen."""
        running = self._find(call)
        seen = small_number(call.request.headers.get("last-event-id", "0"))
        if seen is None or seen > len(running.flight.events):
            raise invalid("it must be the id of an event of this turn, a whole number", param="Last-Event-ID")
        return SseResponse(_events_of(running, seen), {TURN_HEADER: running.turn_id})

    async def cancel_turn(self, call: Call) -> Response:
        """Cancels a turn by its id."""
        return reply(CancelledShape(cancelled=await self._find(call).end()))

    async def cancel_session_turn(self, call: Call) -> Response:
        """Cancels the turn that a session runs."""
        session_id = call.request.path_params["session_id"]
        await check_session(call, session_id)
        return reply(CancelledShape(cancelled=await call.runtime.cancel_turn(session_id)))

    def _find(self, call: Call) -> Running:
        running = self.running.find(call.principal.owner, call.request.path_params["turn_id"])
        if running is None:
            raise Problem(404, "no_such_turn", "there is no such turn, or it ended some time ago")
        return running


async def explain(call: Call) -> Response:
    """What would be decided of a turn."""
    body = await call.json(ExplainBody)
    if (body.text is None) == (not body.messages):
        raise invalid("give text or messages, one of them", param="text")
    if body.messages and body.session_id is not None:
        raise invalid("messages belong to no session", param="session_id")
    turn = await turn_keywords(call, body, body.session_id)
    with refusing_bad_words():
        if body.text is None:
            result = await call.runtime.explain_request(body.messages, **turn)
        else:
            result = await call.runtime.explain(body.text, session_id=body.session_id, **turn)
    if isinstance(result, Err):
        raise problem_of(result.reason)
    return reply(ExplanationShape.of(result.value))


async def compact(call: Call) -> Response:
    """Starts a session that goes on from a summary of this one."""
    session_id = call.request.path_params["session_id"]
    body = await call.json(CompactBody)
    await check_session(call, session_id)
    turn = await turn_keywords(call, body, session_id)
    with refusing_bad_words():
        result = await until_gone(call.request, call.runtime.compact(session_id, **turn))
    if isinstance(result, Err):
        raise problem_of(result.reason)
    return reply(MadeShape(session_id=result.value), 201)


# How it is asked for


def _key(call: Call) -> str | None:
    key = call.request.headers.get("idempotency-key")
    if key is not None and len(key) > MAX_KEY_CHARS:
        raise invalid(f"it may have {MAX_KEY_CHARS} characters at most", param="Idempotency-Key")
    if key and call.server.runtime.store is None:
        raise problem_of(InvalidOptions(detail="an idempotency key needs a store"))
    return key or None


def _in_background(call: Call, body: TurnBody | RequestBody) -> bool:
    prefers = call.request.headers.get("prefer", "").lower().replace(";", ",").split(",")
    return body.background or "respond-async" in [word.strip() for word in prefers]


def _as_stream(call: Call) -> bool:
    return "text/event-stream" in call.request.headers.get("accept", "").lower()


def _fingerprint(body: TurnBody | RequestBody) -> bytes:
    """Stands for all that was asked for, however the answer is to come."""
    asked = msgspec.structs.replace(body, background=False)
    return hashlib.blake2b(msgspec.json.encode(asked), digest_size=16).digest()


# How it runs


async def _result(
    call: Call, body: TurnBody | RequestBody, session_id: str | None, turn: TurnKeywords
) -> TurnResult:
    if isinstance(body, RequestBody):
        return await call.runtime.submit_request(body.messages, **turn)
    assert session_id is not None
    return await call.runtime.submit_turn(session_id, body.text, **turn)


async def _whole(
    call: Call, body: TurnBody | RequestBody, session_id: str | None, turn: TurnKeywords
) -> AsyncGenerator[TurnEvent, None]:
    """The turn as the one event of its end: its model is not asked to stream."""
    yield Finished(await _result(call, body, session_id, turn))


def _stream(
    call: Call, body: TurnBody | RequestBody, session_id: str | None, turn: TurnKeywords
) -> AsyncGenerator[TurnEvent, None]:
    if isinstance(body, RequestBody):
        return call.runtime.stream_request(body.messages, **turn)
    assert session_id is not None
    return call.runtime.stream_turn(session_id, body.text, **turn)


# What is answered


def answer_of(result: TurnResult, session_id: str | None, headers: dict[str, str] | None = None) -> Response:
    """A turn's result as an answer. Raises `Problem` for a turn that failed."""
    if isinstance(result, Err):
        raise problem_of(result.reason)
    return reply(AnswerShape.of(result.value, session_id), 200, headers)


def _state_of(running: Running) -> RunningShape:
    result = running.result
    if result is None:
        return RunningShape(turn_id=running.turn_id, session_id=running.session_id, status="running")
    failed = isinstance(result, Err)
    return RunningShape(
        turn_id=running.turn_id,
        session_id=running.session_id,
        status="failed" if failed else "done",
        answer=None if isinstance(result, Err) else AnswerShape.of(result.value, running.session_id),
        error=result.reason if isinstance(result, Err) else None,
    )


async def _events_of(running: Running, after: int) -> AsyncGenerator[bytes, None]:
    """The events as they are sent, those after the first `after`; numbered from 1."""
    grace_s = None if running.runs_alone else GRACE_S
    number = after
    events = running.flight.follow(after, grace_s=grace_s)
    try:
        async for event in events:
            number += 1
            yield _sent(event, number)
    finally:
        await events.aclose()


def _sent(event: Happening, number: int) -> bytes:
    return sse(event.data, event=event.name, number=number)
