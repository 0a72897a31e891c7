"""What the OpenAI and the Anthropic door have in common: a request in mead's words, and how it is run.

A request without a session is stateless: one turn, which is private if any of it is (R16), and of which
nothing is kept. With `X-Mead-Session` it is the next turn of that session, and what the client brings of the
history is left aside.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers

from mead.core.messages import DocumentBlock, ImageBlock, Message, TextBlock, Tool, blocks_of
from mead.core.options import Options, Route, RouteChoice, ToolChoice
from mead.core.reasons import PrivateContent, ShuttingDown, TurnReason
from mead.core.result import Err, Result
from mead.core.turns import Answer
from mead.serve.continuations import Continuations
from mead.serve.endpoint import Call, Server, small_number
from mead.serve.errors import Problem, invalid, problem_of
from mead.serve.flights import Flight, Flights
from mead.serve.native_checks import check_model
from mead.serve.tokens import TAG_PREFIX
from mead.sessions.events import Finished, TurnEvent
from mead.sessions.keywords import TurnKeywords

HubTools: TypeAlias = Literal["none", "read", "effect"]
RETRY_GRACE_S = 1.5
"""How long a turn goes on whose client has gone before it was told anything, if its library repeats requests,
in seconds. The libraries repeat a request for the first time after half a second."""
_MADE_KEPT = 1_000
_SLOTS: tuple[Route, Route] = ("local", "cloud")


class Wishes(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The `mead` object of a request: what the vendors' formats have no words for. `tools` shows tools of the
    hub (`read`: those that only read)."""

    tools: HubTools = "none"
    allow_private: bool = False
    timeout_s: float | None = None
    tags: tuple[str, ...] = ()


class Chat(Struct, frozen=True, kw_only=True):
    """A request in mead's words. `session` is what `X-Mead-Session` said, `new` for one that is to be made.
    `fingerprint` stands for the request as it was sent."""

    model: str
    messages: tuple[Message, ...]
    options: Options
    client_tools: tuple[Tool, ...] = ()
    wishes: Wishes = Wishes()
    session: str | None = None
    key: str | None = None
    is_retry: bool = False
    may_be_retried: bool = False
    fingerprint: str = ""

    @classmethod
    def of(
        cls,
        headers: Headers,
        body: bytes,
        *,
        model: str,
        messages: Sequence[Message],
        options: Options,
        client_tools: Sequence[Tool] = (),
        wishes: Wishes | None = None,
    ) -> Chat:
        """The request with what its headers say."""
        retries = small_number(headers.get("x-stainless-retry-count", ""))
        return cls(
            model=model,
            messages=tuple(messages),
            options=options,
            client_tools=tuple(client_tools),
            wishes=wishes or Wishes(),
            session=headers.get("x-mead-session") or None,
            key=headers.get("idempotency-key") or None,
            is_retry=bool(retries),
            may_be_retried=retries is not None,
            fingerprint=hashlib.blake2b(body, digest_size=16).hexdigest(),
        )


class Chats:
    """What one server remembers of requests: those on their way, and what clients go on with."""

    def __init__(self) -> None:
        self.continuations = Continuations()
        self.flights: Flights[TurnEvent] = Flights()
        self.made: OrderedDict[str, str] = OrderedDict()
        """The sessions that were made for the word `new`, by request: a repeat gets the same."""


async def answer_to(call: Call, chat: Chat) -> tuple[Answer, str | None]:
    """The answer, and the session's id if there is one. Raises `Problem` for whatever went wrong."""
    chat = await opened(call, chat)
    if chat.may_be_retried:
        result = await _last(call, chat)
    else:
        result = await _submitted(call, chat, _turn(call, chat))
    if isinstance(result, Err):
        raise problem_of(result.reason)
    chats(call.server).continuations.remember(call.principal.owner, chat.messages, result.value)
    return result.value, chat.session


async def opened(call: Call, chat: Chat) -> Chat:
    """The request with its session made, if it asks for one: a door that tells of the session before the turn
    is over calls this first. Raises `Problem` for a request that cannot go on with a session."""
    if chat.session is None:
        return chat
    if chat.client_tools:
        said = "a session keeps whole turns only, so a request with tools of its own cannot go on with one"
        raise invalid(said, param="tools")
    if chat.session != "new":
        route, model = route_of(call, chat.model)
        if model is None:  # the session's own model is asked, which others may have chosen
            await check_model(call, route, None, chat.session, param="model")
        return chat
    if call.server.is_stopping:
        raise problem_of(ShuttingDown(detail="the server stops"))
    made, name = chats(call.server).made, _name(call, chat)
    session_id = made.get(name) if chat.is_retry else None
    if session_id is None:
        route_of(call, chat.model)  # no session for a request that is wrong
        session_id = await call.runtime.start_session(idempotency_key=chat.key)
        if chat.may_be_retried:
            made[name] = session_id
            if len(made) > _MADE_KEPT:
                made.popitem(last=False)
    return msgspec.structs.replace(chat, session=session_id)


async def events_of(call: Call, chat: Chat) -> AsyncGenerator[TurnEvent, None]:
    """What happens in the turn, last of all `Finished`. A repeat by the client's library joins the first one;
    leaving early cancels the turn: a little later where nothing has been told yet and the client may repeat
    the request. Raises `Problem` for what is wrong before the turn begins."""
    chat = await opened(call, chat)
    async with aclosing(_followed(call, chat, streams=True)) as events:
        async for event in events:
            if isinstance(event, Finished) and not isinstance(event.result, Err):
                chats(call.server).continuations.remember(
                    call.principal.owner, chat.messages, event.result.value
                )
            yield event


async def _last(call: Call, chat: Chat) -> Result[Answer, TurnReason]:
    """The result of a turn that a repeat may join."""
    async with aclosing(_followed(call, chat, streams=False)) as events:
        async for event in events:
            if isinstance(event, Finished):
                return event.result
    raise Problem(499, "cancelled", "the request was cancelled")


async def _followed(call: Call, chat: Chat, *, streams: bool) -> AsyncGenerator[TurnEvent, None]:
    """The events of the request's flight, or of that of the request which it repeats. What has failed is
    tried again: that is what it was repeated for."""
    known, name = chats(call.server).flights, _name(call, chat)
    flight = known.find(name) if chat.is_retry else None
    if flight is None or _has_failed(flight):
        flight = Flight(_source(call, chat, _turn(call, chat), streams=streams))
        if chat.may_be_retried:
            known.add(name, flight)
    grace_s = RETRY_GRACE_S if chat.may_be_retried else 0.0
    has_told = False
    async with aclosing(flight.follow(grace_s=grace_s)) as events:
        try:
            async for event in events:
                has_told = True
                yield event
        except (GeneratorExit, asyncio.CancelledError):
            # No library repeats a request of whose answer it has read a part.
            if has_told and not flight.is_shared:
                flight.cancel()
            raise


def _has_failed(flight: Flight[TurnEvent]) -> bool:
    """Whether there is no answer to be had from a flight."""
    if not flight.is_over:
        return False
    last = flight.events[-1] if flight.events else None
    return not isinstance(last, Finished) or isinstance(last.result, Err)


def _name(call: Call, chat: Chat) -> str:
    """What a request has in common with its repeats, and with no other."""
    return f"{call.principal.token_id}:{chat.session}:{chat.key}:{chat.fingerprint}"


async def _source(
    call: Call, chat: Chat, turn: TurnKeywords, *, streams: bool
) -> AsyncGenerator[TurnEvent, None]:
    if not streams:
        yield Finished(await _submitted(call, chat, turn))
        return
    messages, turn = _prepared(call, chat, turn)
    if chat.session is None:
        events = call.runtime.stream_request(messages, **turn)
    else:
        text, turn["attachments"] = _newest(messages)
        events = call.runtime.stream_turn(chat.session, text, **turn)
    async with aclosing(events):
        async for event in events:
            yield event


async def _submitted(call: Call, chat: Chat, turn: TurnKeywords) -> Result[Answer, TurnReason]:
    messages, turn = _prepared(call, chat, turn)
    if chat.session is None:
        return await call.runtime.submit_request(messages, **turn)
    text, turn["attachments"] = _newest(messages)
    return await call.runtime.submit_turn(chat.session, text, **turn)


def chats(server: Server) -> Chats:
    """What the server remembers of requests."""
    if not isinstance(server.chats, Chats):
        server.chats = Chats()
    return server.chats


# Models


def route_of(call: Call, name: str) -> tuple[RouteChoice, str | None]:
    """The route and the model that a name asks for; a model's own name means the slot that lists it, the
    local one first. Raises `Problem` for one that there is not, or that the token may not use."""
    if call.principal.models is not None and name not in call.principal.models:
        raise Problem(403, "forbidden", "the token may not use this model", param="model")
    if name in ("mead-auto", "mead-local", "mead-cloud"):
        return ("auto" if name == "mead-auto" else "local" if name == "mead-local" else "cloud"), None
    slot, _, model = name.partition("/")
    for route in _SLOTS:
        known = _models(call.server, route)
        if slot == route and model in known:
            return route, model
        if name in known:  # clients that cannot be told another name than the vendor's
            return route, name
    listed = ", ".join(model_names(call))
    raise Problem(404, "model_not_found", f"there is no such model; there are {listed}", param="model")


def model_names(call: Call) -> tuple[str, ...]:
    """The models that the caller may ask for."""
    names = ["mead-auto", "mead-local", "mead-cloud"]
    names += [f"{route}/{model}" for route in _SLOTS for model in _models(call.server, route)]
    allowed = call.principal.models
    return tuple([name for name in names if allowed is None or name in allowed])


def _models(server: Server, route: Route) -> tuple[str, ...]:
    slot = server.runtime.slots[route]
    if slot is None:
        return ()
    found = [name for one in slot.backends for name in (one.options.model, *one.models) if name]
    return tuple(dict.fromkeys(found))


# What a request asks for, as keywords of a turn


def _turn(call: Call, chat: Chat) -> TurnKeywords:
    route, model = route_of(call, chat.model)
    wishes, principal = chat.wishes, call.principal
    if wishes.tools == "effect":
        call.demand("tools:effect")
        if chat.key is None:
            said = "tools with side effects need an Idempotency-Key, so that a repeat runs none of them again"
            raise invalid(said, param="mead.tools")
    if wishes.allow_private:
        call.demand("private:send")
    if any(tag.startswith(TAG_PREFIX) for tag in wishes.tags):
        raise invalid(f"tags that begin with {TAG_PREFIX} are the tokens' own", param="mead.tags")
    turn = TurnKeywords(
        route=route,
        tools=_TOOLS[wishes.tools],
        options=Options(model=model).over(chat.options) if model else chat.options,
        allow_private=wishes.allow_private,
        tags=(*principal.tags, *wishes.tags),
        client_tools=chat.client_tools,
        idempotency_key=chat.key,
        from_client=True,
    )
    if wishes.timeout_s is not None:
        if not 0 < wishes.timeout_s <= MAX_TIMEOUT_S:
            raise invalid(f"timeout_s must be over 0 and at most {MAX_TIMEOUT_S:.0f}", param="mead.timeout_s")
        turn["turn_timeout_s"] = wishes.timeout_s
    return turn


MAX_TIMEOUT_S = 3600.0
_TOOLS: dict[HubTools, ToolChoice] = {"none": "none", "read": None, "effect": "effect"}


def _prepared(call: Call, chat: Chat, turn: TurnKeywords) -> tuple[Sequence[Message], TurnKeywords]:
    """The messages with what the client was not shown; a turn that a local model began stays with it, or is
    refused where it is forced to the cloud."""
    known, owner, route = chats(call.server).continuations, call.principal.owner, turn["route"]
    messages, is_local = known.resumed(owner, chat.messages, route)
    if not is_local:
        return messages, turn
    if route == "cloud" and not turn["allow_private"]:
        raise problem_of(_ASKED_LOCALLY)
    turn = turn.copy()
    if route == "auto":
        turn["route"] = "local"
    return messages, turn


_ASKED_LOCALLY = PrivateContent(
    kinds=("local_text",),
    detail="a local model asked for the results of tools that the request brings, so they are for it alone; "
    "use the local model, or allow it for this turn",
)


def _newest(messages: Sequence[Message]) -> tuple[str, tuple[ImageBlock | DocumentBlock, ...]]:
    """The person's newest message, for a session that has the others already."""
    if not messages or messages[-1].role != "user":
        raise invalid("the last message must be the person's", param="messages")
    blocks = blocks_of(messages[-1])
    text = "\n\n".join([block.text for block in blocks if isinstance(block, TextBlock)])
    return text, tuple([block for block in blocks if isinstance(block, (ImageBlock, DocumentBlock))])


# What an answer says besides


def mead_fields(answer: Answer, session_id: str | None) -> dict[str, object]:
    """The `mead` object of an answer: route, reasons, label, warnings and the session."""
    decision = answer.decision
    return {
        "route": answer.route,
        "provider": decision.provider if decision else None,
        "model": decision.model if decision else None,
        "reasons": [msgspec.to_builtins(cause) for cause in decision.causes] if decision else [],
        "label": answer.label,
        "withheld": decision.withheld if decision else 0,
        "warnings": answer.warnings,
        "session": session_id,
    }


def mead_headers(answer: Answer, session_id: str | None) -> dict[str, str]:
    """The same in short, as headers."""
    decision = answer.decision
    headers: dict[str, str] = {"x-mead-label": answer.label}
    if decision is not None:
        headers["x-mead-route"] = decision.route
        headers["x-mead-reasons"] = ",".join([cause.code for cause in decision.causes])
    if session_id is not None:
        headers["x-mead-session"] = session_id
    return headers
