"""The OpenAPI document (version 3.1): made of the native API's operations and of the types that they read and
write, with the other doors' paths in short."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any

import msgspec
from msgspec import Struct
from starlette.routing import BaseRoute, Mount, Route

from mead.core.reasons import TurnReason
from mead.serve._json import ErrorShape
from mead.serve.operations import COMMON, Operation
from mead.serve.tokens import SCOPES
from mead.sessions import shapes

_REFERENCE = "#/components/schemas/{name}"
_EVENTS: dict[str, type[Struct]] = {
    "started": shapes.StartedEvent,
    "delta": shapes.DeltaEvent,
    "tool_called": shapes.ToolCalledEvent,
    "tool_returned": shapes.ToolReturnedEvent,
    "approval_needed": shapes.ApprovalShape,
    "finished": shapes.OutcomeShape,
}
_SSE = "text/event-stream"
_STREAM = (
    "Server-sent events, each with an `id`: first `started`, last `finished`, and in between what happens. "
    "The schema is that of one event."
)
_SAID = {
    400: "The request is wrong; `param` names the field.",
    401: "No token, or one that does not hold.",
    402: "A budget does not cover the turn.",
    403: "The token lacks a scope, or the turn holds private content.",
    404: "There is no such session, turn or approval of this owner.",
    408: "The body did not come in time.",
    409: "The session is busy, or the turn was replaced.",
    413: "The body is too large.",
    421: "The server is not called by this host name.",
    422: "The idempotency key is in use, with another request.",
    429: "Too many requests, or a full queue; see `Retry-After`.",
    431: "Too many or too long headers.",
    499: "The client went away, or the turn was cancelled.",
    500: "The server, or the turn, crashed.",
    501: "The server was started without a store.",
    502: "The model's service failed, or answered what is no answer.",
    503: "The slot is empty, or the server stops.",
    504: "The turn took too long.",
    529: "The model's service is overloaded.",
}
_OTHERS = {
    "/healthz": ("Whether the process lives", None),
    "/readyz": ("Whether turns are taken", None),
    "/metrics": ("Metrics for Prometheus", "prometheus"),
    "/mcp": ("mead as an MCP server", "mcp"),
    "/v1/chat/completions": ("Answer a chat as OpenAI's API does", "openai"),
    "/v1/embeddings": ("Embed texts as OpenAI's API does", "openai"),
    "/v1/models": ("List the models as OpenAI's API does", "openai"),
    "/v1/messages": ("Answer a chat as Anthropic's API does", "anthropic"),
    "/v1/messages/count_tokens": ("Estimate tokens as Anthropic's API does", "anthropic"),
    "/api/openapi.json": ("This document", None),
}
_FREE = frozenset(["/healthz"])


def document(operations: Sequence[Operation], routes: Iterable[BaseRoute]) -> dict[str, object]:
    """The document. `routes` are the application's; those of other doors are described in short."""
    kinds = _kinds(operations)
    schemas, components = msgspec.json.schema_components(
        kinds, schema_hook=_anything, ref_template=_REFERENCE
    )
    named = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, named)
    for path, methods in _others(routes, set(paths)):
        paths[path] = {method: _other(path, method) for method in methods}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mead",
            "version": version("mead-runtime"),
            "description": "Sessions and models behind one server; docs/api.md tells how they are used.",
        },
        "security": [{"token": []}, {"key": []}],
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {**components, "StreamEvent": _stream_event(named)},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": f"A token of mead. Its scopes: {', '.join(SCOPES)}.",
                },
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _kinds(operations: Sequence[Operation]) -> list[Any]:
    """Every type of the document, each once."""
    found = [kind for each in operations for kind in (each.body, each.answer, each.accepted)]
    kinds = [*[kind for kind in found if kind is not None], ErrorShape, *_EVENTS.values(), TurnReason]
    return list(dict.fromkeys(kinds))


def _anything(kind: type) -> dict[str, Any]:
    """The schema of what may be any JSON."""
    if kind is object:
        return {"description": "Any JSON."}
    raise NotImplementedError


def _operation(each: Operation, named: dict[Any, dict[str, Any]]) -> dict[str, object]:
    described = inspect.getdoc(each.handle) or ""
    more = f" {each.more_scopes}" if each.more_scopes else ""
    made: dict[str, object] = {
        "operationId": each.operation_id,
        "summary": each.summary,
        "description": f"{described} Scope: `{each.scope}`.{more}",
        "tags": [_tag(each.path)],
        "responses": _responses(each, named),
        "x-mead-scope": each.scope,
    }
    parameters = [*_path_parameters(each.path), *_query_parameters(each.query), *_headers(each)]
    if parameters:
        made["parameters"] = parameters
    if each.body is not None:
        content: dict[str, object] = {"application/json": {"schema": named[each.body]}}
        made["requestBody"] = {"required": True, "content": content}
    elif each.body_media:
        content = {media: {"schema": {"type": "string"}} for media in each.body_media}
        made["requestBody"] = {"required": True, "content": content}
    return made


def _responses(each: Operation, named: dict[Any, dict[str, Any]]) -> dict[str, object]:
    content: dict[str, object] = {media: {"schema": _of_media(media)} for media in each.media}
    if each.answer is not None:
        content = {"application/json": {"schema": named[each.answer]}, **content}
    said = _STREAM if _SSE in each.media and each.answer is None else "It is done."
    if _SSE in each.media and each.answer is not None:
        said = f"The answer; where `Accept` says `text/event-stream`, a stream. {_STREAM}"
    succeeded: dict[str, object] = {"description": said}
    if content:
        succeeded["content"] = content
    found: dict[str, object] = {str(each.status): succeeded}
    if each.accepted is not None:
        running = {"application/json": {"schema": named[each.accepted]}}
        found["202"] = {"description": "The turn runs in the background.", "content": running}
    error = {"application/json": {"schema": named[ErrorShape]}}
    for status in sorted({*COMMON, *each.errors}):
        found[str(status)] = {"description": _SAID[status], "content": error}
    return found


def _of_media(media: str) -> dict[str, str]:
    if media == _SSE:
        return {"$ref": _REFERENCE.format(name="StreamEvent")}
    return {"type": "string"}


def _stream_event(named: dict[Any, dict[str, Any]]) -> dict[str, object]:
    """The schema of an event of a stream. Its data is JSON as text."""
    kinds = [
        {
            "type": "object",
            "required": ["id", "event", "data"],
            "properties": {
                "id": {"type": "string", "pattern": "^[0-9]+$"},
                "event": {"const": name},
                "data": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": named[kind],
                },
            },
        }
        for name, kind in _EVENTS.items()
    ]
    return {"title": "StreamEvent", "oneOf": kinds}


def _path_parameters(path: str) -> list[dict[str, object]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)(?::\w+)?}", path)
    ]


def _query_parameters(kind: type[Struct] | None) -> list[dict[str, object]]:
    if kind is None:
        return []
    ((_,), components) = msgspec.json.schema_components([kind], ref_template=_REFERENCE)
    fields: dict[str, dict[str, Any]] = components[kind.__name__]["properties"]
    return [
        {"name": name, "in": "query", "required": False, "schema": _said_in_a_query(schema)}
        for name, schema in fields.items()
    ]


def _said_in_a_query(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema without `null`, which a query cannot say: what is not said is left out."""
    if "anyOf" not in schema:
        return schema
    kept = [each for each in schema["anyOf"] if each != {"type": "null"}]
    return kept[0] if len(kept) == 1 else {"anyOf": kept}


def _headers(each: Operation) -> list[dict[str, object]]:
    return [
        {"name": name, "in": "header", "required": False, "description": said, "schema": {"type": "string"}}
        for name, said in each.headers
    ]


def _tag(path: str) -> str:
    return path.removeprefix("/api/").partition("/")[0]


# The other doors


def _others(routes: Iterable[BaseRoute], known: set[str]) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for route in routes:
        if isinstance(route, Route) and route.path not in known:
            methods = sorted({method.lower() for method in route.methods or ()} - {"head", "options"})
            found.append((plain_path(route.path), methods or ["post"]))
        elif isinstance(route, Mount):
            found.append((route.path, ["get", "post", "delete"]))
    return found


def plain_path(path: str) -> str:
    """A path as OpenAPI writes it: without what Starlette converts."""
    return re.sub(r"{(\w+):\w+}", r"{\1}", path)


def _other(path: str, method: str) -> dict[str, object]:
    summary, door = _OTHERS.get(path, ("A path of another door", None))
    if path.startswith("/v1/models/"):
        summary, door = "Get a model as OpenAI's API does", "openai"
    made: dict[str, object] = {
        "summary": summary,
        "operationId": f"{method}{re.sub(r'[^a-z0-9]+', '_', path.lower())}".rstrip("_"),
        "responses": {"default": {"description": "As the door's own documentation says."}},
        "x-mead-door": door or "server",
    }
    parameters = _path_parameters(path)
    if parameters:
        made["parameters"] = parameters
    if path in _FREE:
        made["security"] = []
    return made
