"""The native API under ``/api``: all of a runtime's features over HTTP."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from mead.serve import _json, native_records, native_sessions, native_turns
from mead.serve.endpoint import Call, Handle, Server, endpoint
from mead.serve.errors import native_shape
from mead.serve.native_records import Approvals
from mead.serve.native_sessions import JSONL, MARKDOWN
from mead.serve.native_turns import Turns
from mead.serve.openapi import document
from mead.serve.operations import OF_TURNS, WITH_BODY, WITH_PLACE, WITH_STORE, Operation, routes_of
from mead.sessions import bodies, shapes
from mead.sessions.sent import EgressShape
from mead.sessions.usage import UsageShape

DOCUMENT_PATH = "/api/openapi.json"
_SSE = "text/event-stream"
_KEY = ("Idempotency-Key", "A repeat under the same key gives the first result, and runs nothing again.")
_PREFER = ("Prefer", "`respond-async` answers at once with the turn's id.")
_LAST = ("Last-Event-ID", "The id of the last event that was seen: the stream goes on after it.")
_TURN_SCOPES = (
    "`tools:effect` for tools with side effects, `private:send` for `allow_private`, "
    "`admin` for `options.extra`."
)


def routes(server: Server) -> Sequence[BaseRoute]:
    """The routes of the native API."""
    offered = operations()
    made: list[bytes] = []

    async def tell(call: Call) -> Response:
        """The OpenAPI document."""
        if not made:
            made.append(msgspec.json.encode(document(offered, call.request.app.routes)))
        return Response(made[0], media_type="application/json")

    told = endpoint(tell, scope=None, shape=native_shape)
    return [*routes_of(offered), Route(DOCUMENT_PATH, told, methods=["GET"])]


def operations() -> tuple[Operation, ...]:
    """Every endpoint of the native API, for one server."""
    turns = Turns()
    return (*_sessions(turns), *_turns(turns), *_approvals(Approvals(turns)), *_records())


def _sessions(turns: Turns) -> tuple[Operation, ...]:
    one = "/api/sessions/{session_id}"
    on_one = (*WITH_PLACE, *WITH_STORE)
    with_body = (*on_one, *WITH_BODY)
    return (
        Operation(
            method="POST",
            path="/api/sessions",
            handle=native_sessions.start,
            scope="chat",
            summary="Start a session",
            body=bodies.StartBody,
            status=201,
            answer=shapes.MadeShape,
            errors=(*WITH_BODY, 503),
            more_scopes="`declassify` for `turns` that are `shareable`, `admin` for `options.extra`.",
        ),
        Operation(
            method="GET",
            path="/api/sessions",
            handle=native_sessions.list_all,
            scope="chat",
            summary="List the sessions, the last used first",
            query=_json.PageQuery,
            answer=shapes.SessionPage,
            errors=WITH_STORE,
        ),
        Operation(
            method="GET",
            path=one,
            handle=native_sessions.get,
            scope="chat",
            summary="Get a session without its turns",
            answer=shapes.SessionShape,
            errors=on_one,
        ),
        Operation(
            method="PATCH",
            path=one,
            handle=native_sessions.change,
            scope="chat",
            summary="Change a session's title and tags",
            body=bodies.ChangeBody,
            answer=shapes.SessionShape,
            errors=with_body,
        ),
        Operation(
            method="DELETE",
            path=one,
            handle=_deleting(turns),
            scope="chat",
            summary="End a session and delete it",
            status=204,
            errors=WITH_PLACE,
        ),
        Operation(
            method="GET",
            path=f"{one}/history",
            handle=native_sessions.history,
            scope="chat",
            summary="Get a session's turns",
            answer=shapes.HistoryShape,
            errors=WITH_PLACE,
        ),
        Operation(
            method="POST",
            path=f"{one}/fork",
            handle=native_sessions.fork,
            scope="chat",
            summary="Make a session of this one's turns",
            body=bodies.ForkBody,
            status=201,
            answer=shapes.MadeShape,
            errors=with_body,
        ),
        Operation(
            method="POST",
            path=f"{one}/rewind",
            handle=native_sessions.rewind,
            scope="chat",
            summary="Take the turns after one away",
            body=bodies.RewindBody,
            answer=shapes.SessionShape,
            errors=(*with_body, 409),
        ),
        Operation(
            method="POST",
            path=f"{one}/declassify",
            handle=native_sessions.declassify,
            scope="declassify",
            summary="Make a session in which some turns may be seen by a cloud model",
            body=bodies.DeclassifyBody,
            status=201,
            answer=shapes.MadeShape,
            errors=with_body,
        ),
        Operation(
            method="GET",
            path=f"{one}/export",
            handle=native_sessions.export,
            scope="chat",
            summary="Export a session as JSON Lines or Markdown",
            query=_json.ExportQuery,
            media=(JSONL, MARKDOWN),
            errors=on_one,
        ),
        Operation(
            method="POST",
            path="/api/import",
            handle=native_sessions.bring_in,
            scope="chat",
            summary="Bring sessions in: JSON Lines of mead, or an export of Open WebUI",
            body_media=(JSONL, "application/json"),
            status=201,
            answer=shapes.ImportPage,
            errors=(*WITH_STORE, *WITH_BODY),
            more_scopes="Without `declassify` every turn becomes `local_only`.",
        ),
    )


def _deleting(turns: Turns) -> Handle:
    async def delete(call: Call) -> Response:
        """Ends a session and deletes it, with what is remembered of its turns."""
        response = await native_sessions.delete(call)
        turns.running.forget(call.principal.owner, call.request.path_params["session_id"])
        return response

    return delete


def _turns(turns: Turns) -> tuple[Operation, ...]:
    turn_errors = tuple(dict.fromkeys([*OF_TURNS, *WITH_BODY]))
    return (
        Operation(
            method="POST",
            path="/api/sessions/{session_id}/turns",
            handle=turns.submit_turn,
            scope="chat",
            summary="Submit a session's next turn",
            body=bodies.TurnBody,
            answer=shapes.AnswerShape,
            media=(_SSE,),
            accepted=shapes.RunningShape,
            errors=turn_errors,
            headers=(_KEY, _PREFER),
            more_scopes=_TURN_SCOPES,
        ),
        Operation(
            method="POST",
            path="/api/requests",
            handle=turns.submit_request,
            scope="chat",
            summary="Answer a conversation that is brought along, and keep nothing of it",
            body=bodies.RequestBody,
            answer=shapes.AnswerShape,
            media=(_SSE,),
            accepted=shapes.RunningShape,
            errors=turn_errors,
            headers=(_KEY, _PREFER),
            more_scopes=_TURN_SCOPES,
        ),
        Operation(
            method="POST",
            path="/api/sessions/{session_id}/cancel",
            handle=turns.cancel_session_turn,
            scope="chat",
            summary="Cancel the turn that a session runs",
            answer=shapes.CancelledShape,
            errors=WITH_PLACE,
        ),
        Operation(
            method="POST",
            path="/api/sessions/{session_id}/compact",
            handle=native_turns.compact,
            scope="chat",
            summary="Start a session that goes on from a summary of this one",
            body=bodies.CompactBody,
            status=201,
            answer=shapes.MadeShape,
            errors=turn_errors,
            more_scopes="`private:send` for `allow_private`, `admin` for `options.extra`.",
        ),
        Operation(
            method="GET",
            path="/api/turns/{turn_id}",
            handle=turns.turn,
            scope="chat",
            summary="Get a turn by its id, once it is over or after some time",
            query=_json.WaitQuery,
            answer=shapes.RunningShape,
            errors=(*WITH_PLACE, 499),
        ),
        Operation(
            method="GET",
            path="/api/turns/{turn_id}/events",
            handle=turns.events,
            scope="chat",
            summary="Follow a turn's events, from the beginning or after the last one that was seen",
            media=(_SSE,),
            errors=WITH_PLACE,
            headers=(_LAST,),
        ),
        Operation(
            method="POST",
            path="/api/turns/{turn_id}/cancel",
            handle=turns.cancel_turn,
            scope="chat",
            summary="Cancel a turn by its id",
            answer=shapes.CancelledShape,
            errors=WITH_PLACE,
        ),
        Operation(
            method="POST",
            path="/api/explain",
            handle=native_turns.explain,
            scope="chat",
            summary="Say where a turn would go, and why; nothing is sent",
            body=bodies.ExplainBody,
            answer=shapes.ExplanationShape,
            errors=turn_errors,
            more_scopes=_TURN_SCOPES,
        ),
    )


def _approvals(approvals: Approvals) -> tuple[Operation, ...]:
    return (
        Operation(
            method="GET",
            path="/api/approvals",
            handle=approvals.list_all,
            scope="approve",
            summary="List the tool calls that wait for a person's word",
            answer=_json.ApprovalsShape,
        ),
        Operation(
            method="POST",
            path="/api/approvals/{approval_id}",
            handle=approvals.answer,
            scope="approve",
            summary="Give a person's word",
            body=bodies.ApprovalBody,
            status=204,
            errors=(*WITH_PLACE, *WITH_BODY),
        ),
    )


def _records() -> tuple[Operation, ...]:
    for_others = "`admin` for another `owner`."
    return (
        Operation(
            method="GET",
            path="/api/usage",
            handle=native_records.usage,
            scope="chat",
            summary="What the provider calls took and cost",
            query=_json.UsageQuery,
            answer=UsageShape,
            errors=WITH_STORE,
            more_scopes=for_others,
        ),
        Operation(
            method="GET",
            path="/api/egress",
            handle=native_records.egress,
            scope="chat",
            summary="What left the server's machine, and where it went",
            query=_json.EgressQuery,
            answer=EgressShape,
            more_scopes=for_others,
        ),
        Operation(
            method="GET",
            path="/api/models",
            handle=native_records.models,
            scope="chat",
            summary="The models that the token may ask for",
            answer=_json.ModelsShape,
        ),
        Operation(
            method="GET",
            path="/api/tools",
            handle=native_records.tools,
            scope="chat",
            summary="The tools that a turn would be shown",
            query=_json.ToolsQuery,
            answer=_json.ToolsShape,
            more_scopes="`tools:effect` for those with side effects.",
        ),
        Operation(
            method="GET",
            path="/api/servers",
            handle=native_records.servers,
            scope="admin",
            summary="The MCP servers and their health, and every tool with its class",
            answer=_json.ServersShape,
        ),
        Operation(
            method="GET",
            path="/api/audit",
            handle=native_records.audit,
            scope="admin",
            summary="Rows of the audit chain",
            query=_json.AuditQuery,
            answer=_json.AuditShape,
            errors=WITH_STORE,
        ),
        Operation(
            method="GET",
            path="/api/audit/verify",
            handle=native_records.verify_audit,
            scope="admin",
            summary="Whether the audit chain is as it was written",
            answer=_json.AuditCheckShape,
            errors=WITH_STORE,
        ),
    )
