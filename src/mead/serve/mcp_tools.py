"""The tools that mead offers to MCP clients, and what they do.

Nothing here knows of the protocol. A tool is a function of a call and its typed input, and raises `Problem`
or `TurnFailed` for whatever cannot be done.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from mead.core.messages import Message, clean_text
from mead.core.reasons import PrivateContent, ShuttingDown
from mead.core.result import Err
from mead.core.turns import Answer
from mead.serve._json import store_of
from mead.serve.endpoint import Call
from mead.serve.errors import Problem, invalid, problem_of
from mead.serve.mcp_handles import Asked, Handles, Tell
from mead.serve.mcp_sessions import (
    STARTED_TAG,
    SessionList,
    Transcript,
    asker_of,
    not_yours,
    own_tags,
    record_of,
    session_list,
    transcript,
    withheld_turns,
)
from mead.serve.mcp_shapes import (
    AskInput,
    AskOutput,
    CancelInput,
    CancelOutput,
    HistoryInput,
    ResultInput,
    SessionsInput,
    StopInput,
    StopOutput,
    UsageInput,
)
from mead.serve.native_checks import turn_keywords
from mead.sessions import shelf
from mead.sessions.bodies import OptionsShape, TurnBody
from mead.sessions.events import Finished, TurnEvent
from mead.sessions.keywords import TurnKeywords
from mead.sessions.usage import UsageShape, usage_rows, usage_shape

_InputT = TypeVar("_InputT", bound=Struct)


class Hints(Struct, frozen=True, kw_only=True):
    """What hosts are told of a tool; see `ToolAnnotations` in the protocol."""

    reads_only: bool = False
    destructive: bool = False
    idempotent: bool = False
    open_world: bool = False


class Given(Struct, frozen=True):
    """What a tool gives: structured output, and texts for a model; without texts it is the output as JSON."""

    output: Struct
    texts: tuple[str, ...] = ()


class Used(Struct, frozen=True):
    """A use of a tool. `tell` tells the client of progress."""

    call: Call
    tell: Tell


class TurnFailed(Exception):  # noqa: N818 - it is an answer, raised where it is found
    """A turn that failed, and the session that it would have gone on with, which may be asked again."""

    def __init__(self, problem: Problem, session_id: str | None) -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.session_id = session_id


@dataclass(frozen=True, kw_only=True)
class ToolSpec(Generic[_InputT]):
    """A tool."""

    name: str
    title: str
    description: str
    input: type[_InputT]
    output: type[Struct]
    hints: Hints
    run: Callable[[Used, _InputT], Awaitable[Given]]

    async def use(self, used: Used, arguments: object) -> Given:
        """Runs the tool. Raises `TurnFailed` or `Problem`, this also for arguments that are wrong."""
        try:
            typed = msgspec.convert(arguments, type=self.input)
        except (msgspec.ValidationError, OverflowError) as error:
            raise invalid(clean_text(str(error))) from None
        return await self.run(used, typed)


class McpTools:
    """The tools of one server, and the turns that they have begun."""

    def __init__(self) -> None:
        self.handles = Handles()
        self.specs: tuple[ToolSpec[Any], ...] = self._specs()
        self._by_name = {spec.name: spec for spec in self.specs}

    def find(self, name: str) -> ToolSpec[Any] | None:
        """The tool of this name."""
        return self._by_name.get(name)

    async def ask(self, used: Used, wanted: AskInput) -> Given:
        """Asks. A call that is cancelled takes its turn along, as long as no handle was given for it."""
        call, asker = used.call, asker_of(used.call.principal)
        turn, session_id = await self._prepared(call, asker, wanted)
        asked = self.handles.begin(asker, session_id, _events(call, session_id, wanted.text, turn))
        try:
            await asked.wait(wanted.wait_s, used.tell)
        except BaseException:
            asked.cancel()
            self.handles.forget(asked)
            raise
        if asked.result is not None:
            self.handles.forget(asked)
        return _given(asked)

    async def _prepared(self, call: Call, asker: str, wanted: AskInput) -> tuple[TurnKeywords, str | None]:
        """The turn's keywords, and its session, started if need be. Raises `Problem` if it may not be."""
        session_id = wanted.session_id
        if session_id is not None:
            await record_of(call, session_id)
        body = TurnBody(
            text=wanted.text,
            route=wanted.route,
            tools=wanted.tools,
            options=OptionsShape(model=wanted.model, system=wanted.system),
            allow_private=wanted.allow_private,
            turn_timeout_s=wanted.timeout_s,
        )
        turn = await turn_keywords(call, body, session_id)
        turn["tags"] = tuple(dict.fromkeys([*turn["tags"], *own_tags(call.principal)]))
        self.handles.check_room(asker)
        if session_id is None:
            return turn, await _start_session(call)
        if wanted.route != "cloud" and (withheld := await withheld_turns(call, session_id)):
            raise problem_of(PrivateContent(detail=not_yours(withheld)))
        return turn, session_id

    async def result(self, used: Used, wanted: ResultInput) -> Given:
        """Waits for a turn. A call that is cancelled leaves it to itself."""
        asked = self.handles.find(asker_of(used.call.principal), wanted.handle)
        await asked.wait(wanted.wait_s, used.tell)
        return _given(asked)

    async def cancel(self, used: Used, wanted: CancelInput) -> Given:
        """Cancels a turn."""
        asked = self.handles.find(asker_of(used.call.principal), wanted.handle)
        return Given(CancelOutput(cancelled=await asked.end()))

    async def aclose(self) -> None:
        """Ends the turns that still run."""
        await self.handles.aclose()

    def _specs(self) -> tuple[ToolSpec[Any], ...]:
        reading = Hints(reads_only=True, idempotent=True)
        return (
            ToolSpec(
                name="ask",
                title="Ask mead",
                description="Asks a question, or goes on with a session, and gives the answer. If that takes "
                "longer than wait_s, it gives a handle: call `result` with it. Private texts are answered by "
                "the local model.",
                input=AskInput,
                output=AskOutput,
                # With tools="effect" whatever those tools do may happen.
                hints=Hints(destructive=True, open_world=True),
                run=self.ask,
            ),
            ToolSpec(
                name="result",
                title="Get an answer",
                description="Gives the answer of a turn by its handle, or says that it still runs.",
                input=ResultInput,
                output=AskOutput,
                hints=reading,
                run=self.result,
            ),
            ToolSpec(
                name="cancel",
                title="Cancel a turn",
                description="Cancels a turn by its handle. Nothing of it enters the session's history.",
                input=CancelInput,
                output=CancelOutput,
                hints=Hints(idempotent=True),
                run=self.cancel,
            ),
            ToolSpec(
                name="sessions",
                title="List sessions",
                description="Lists the sessions, the last used first.",
                input=SessionsInput,
                output=SessionList,
                hints=reading,
                run=_sessions,
            ),
            ToolSpec(
                name="history",
                title="Read a session",
                description="Gives the newest turns of a session. Turns that must not leave the machine are "
                "withheld, and counted.",
                input=HistoryInput,
                output=Transcript,
                hints=reading,
                run=_history,
            ),
            ToolSpec(
                name="stop",
                title="Stop a session",
                description="Ends a session that was started here, and deletes its history.",
                input=StopInput,
                output=StopOutput,
                hints=Hints(destructive=True, idempotent=True),
                run=_stop,
            ),
            ToolSpec(
                name="usage",
                title="Show usage",
                description="Tells how many tokens the calls took and what they cost. Unknown is not zero.",
                input=UsageInput,
                output=UsageShape,
                hints=reading,
                run=_usage,
            ),
        )


async def _start_session(call: Call) -> str | None:
    """A new session's id; `None` where nothing is kept: nobody could say later whose turns were whose."""
    if call.server.is_stopping:
        raise problem_of(ShuttingDown(detail="the server stops"))
    if call.server.runtime.store is None:
        return None
    try:
        return await call.runtime.start_session(tags=(STARTED_TAG,))
    except RuntimeError:
        raise problem_of(ShuttingDown(detail="the server stops")) from None


async def _events(
    call: Call, session_id: str | None, text: str, turn: TurnKeywords
) -> AsyncGenerator[TurnEvent, None]:
    if session_id is None:
        events = call.runtime.stream_request([Message("user", text)], **turn)
    else:
        events = call.runtime.stream_turn(session_id, text, **turn)
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Finished) and session_id is not None:
                event = await _gated(call, session_id, event)
            yield event


async def _gated(call: Call, session_id: str, end: Finished) -> Finished:
    """The end of a turn, without an answer that could quote what others have asked in the session since."""
    if isinstance(end.result, Err) or end.result.value.label == "shareable":
        return end
    withheld = await withheld_turns(call, session_id)
    return Finished(Err(PrivateContent(detail=not_yours(withheld)))) if withheld else end


def _given(asked: Asked) -> Given:
    """What is told of a turn. Raises `TurnFailed` for one that failed."""
    if asked.result is None:
        output = AskOutput(status="running", session_id=asked.session_id, handle=asked.handle)
        said = f"The turn still runs; call result with the handle {asked.handle} later."
        return Given(output, (said,))
    if isinstance(asked.result, Err):
        raise TurnFailed(problem_of(asked.result.reason), asked.session_id)
    return _answered(asked.result.value, asked.session_id)


def _answered(answer: Answer, session_id: str | None) -> Given:
    decision = answer.decision
    output = AskOutput(
        status="done",
        session_id=session_id,
        text=clean_text(answer.text),
        route=answer.route,
        provider=decision.provider if decision else None,
        model=decision.model if decision else None,
        label=answer.label,
        stop_reason=answer.stop_reason,
        withheld=decision.withheld if decision else 0,
        tool_calls=answer.tool_calls,
        warnings=answer.warnings,
        usage=answer.usage,
    )
    # Some hosts show their model the texts only: so it learns how to go on.
    notes = [
        f"session_id: {session_id}" if session_id else "",
        f"route: {answer.route}" if answer.route else "",
        "the answer was cut off by max_tokens" if answer.stop_reason == "max_tokens" else "",
        *answer.warnings,
    ]
    said = "; ".join([note for note in notes if note])
    return Given(output, (clean_text(answer.text), *([f"({said})"] if said else [])))


async def _sessions(used: Used, wanted: SessionsInput) -> Given:
    return Given(await session_list(used.call, wanted.limit, wanted.cursor))


async def _history(used: Used, wanted: HistoryInput) -> Given:
    found = await transcript(used.call, wanted.session_id, limit=wanted.limit, before=wanted.before)
    return Given(found)


async def _usage(used: Used, wanted: UsageInput) -> Given:
    if wanted.since is not None and wanted.until is not None and wanted.since > wanted.until:
        raise invalid("since is later than until", param="since")
    report = await usage_rows(
        store_of(used.call),
        wanted.by,
        since=wanted.since,
        until=wanted.until,
        owner=used.call.principal.owner,
        session_id=wanted.session_id,
    )
    return Given(usage_shape(report, wanted.since, wanted.until))


async def _stop(used: Used, wanted: StopInput) -> Given:
    call = used.call
    record = await record_of(call, wanted.session_id)
    if STARTED_TAG not in record.tags and not call.principal.may("admin"):
        said = "the session was not started by an MCP client; to delete it the scope admin is needed"
        raise Problem(403, "forbidden", said)
    stopped = await call.runtime.stop_session(record.session_id)
    by = f"MCP, token {call.principal.token_id}"
    await shelf.note(store_of(call), record.owner, "delete", record.session_id, by=by)
    return Given(StopOutput(session_id=record.session_id, stopped=stopped))
