"""What a token may ask of the native API: scopes, models, tags, and the sessions of its owner."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeAlias

from mead.core.messages import clean_text
from mead.core.options import ToolChoice
from mead.core.reasons import NoSuchSession
from mead.serve.endpoint import Call
from mead.serve.errors import Problem, invalid, problem_of
from mead.serve.tokens import TAG_PREFIX
from mead.sessions.bodies import CompactBody, ExplainBody, OptionsShape, RequestBody, StartBody, TurnBody
from mead.sessions.keywords import TurnKeywords

_TOOLS: dict[str, ToolChoice] = {"none": "none", "read": None, "effect": "effect"}
Asked: TypeAlias = TurnBody | RequestBody | ExplainBody | CompactBody


async def turn_keywords(call: Call, body: Asked, session_id: str | None) -> TurnKeywords:
    """What the body asks for as keywords, if the token allows it. Raises `Problem` if not."""
    route = body.route
    check_options(call, body.options)
    await check_model(call, route or "auto", body.options.model, session_id)
    if body.allow_private:
        call.demand("private:send")
    turn = TurnKeywords(
        options=body.options.options(),
        allow_private=body.allow_private,
        turn_timeout_s=body.turn_timeout_s,
        tags=(*call.principal.tags, *checked_tags(body.tags)),
        from_client=True,
    )
    if route is not None:
        turn["route"] = route
    if not isinstance(body, CompactBody):
        if body.tools == "effect":
            call.demand("tools:effect")
        turn["tools"] = _TOOLS[body.tools]
        turn["attachments"] = body.attachments
        turn["busy"] = body.busy
        turn["asks"] = body.asks
        turn["client_tools"] = body.client_tools
    return turn


def check_options(call: Call, options: OptionsShape) -> None:
    """Raises `Problem` for options that the token may not give: `extra` may replace anything that is sent, so
    no gate and no limit of a token would hold."""
    if options.extra is not None:
        call.demand("admin")


def checked_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """The tags. Raises `Problem` for one that budgets of tokens count by."""
    if any(tag.startswith(TAG_PREFIX) for tag in tags):
        raise invalid(f"a tag may not begin with {TAG_PREFIX!r}", param="tags")
    return tags


def check_start(call: Call, body: StartBody) -> None:
    """Raises `Problem` for a session that the token may not start."""
    check_options(call, body.options)
    checked_tags(body.tags)
    allowed, model = call.principal.models, body.options.model
    if allowed is not None and model is not None and not {f"local/{model}", f"cloud/{model}"} & set(allowed):
        raise _not_for_token("options.model")
    if any(turn.label == "shareable" for turn in body.turns):
        call.demand("declassify")


async def check_model(
    call: Call, route: str, model: str | None, session_id: str | None, *, param: str = "options.model"
) -> None:
    """Raises `Problem` for a model that the token may not use: a turn that names none gets its session's."""
    allowed = call.principal.models
    if allowed is None:
        return
    if model is None and session_id is not None:
        options = await call.runtime.session_options(session_id)
        model = None if options is None else options.model
    if model is None:
        names = [f"mead-{route}"]
    else:
        names = [f"{slot}/{model}" for slot in (("local", "cloud") if route == "auto" else (route,))]
    if not all(name in allowed for name in names):
        raise _not_for_token(param)


def _not_for_token(param: str) -> Problem:
    return Problem(403, "forbidden", "the token may not use this model", param=param)


async def check_session(call: Call, session_id: str) -> None:
    """Raises `Problem` if the caller's owner has no such session."""
    store = call.server.runtime.store
    if store is not None:
        known = await store.get_session(call.principal.owner, session_id) is not None
    else:
        known = session_id in await call.runtime.sessions()
    if not known:
        raise no_such_session()


def no_such_session() -> Problem:
    """There is no such session: of this owner, which is the same."""
    return problem_of(NoSuchSession(detail="there is no such session; start one first"))


@contextlib.contextmanager
def refusing_bad_words() -> Iterator[None]:
    """Tells of a `ValueError` of the runtime, which is about its arguments, as the caller's mistake."""
    try:
        yield
    except ValueError as error:
        raise invalid(clean_text(str(error))) from None
