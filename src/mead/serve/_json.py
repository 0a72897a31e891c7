"""What the native API's endpoints have in common: queries as types, answers as JSON, and shapes that only the
server knows."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from starlette.responses import Response

from mead.core.messages import clean_text
from mead.mcp.connection import State
from mead.mcp.entries import ToolListing
from mead.serve.endpoint import Call
from mead.serve.errors import Problem, invalid
from mead.sessions.shapes import ApprovalShape
from mead.storage import Store
from mead.storage.protocol import UsageGroup

_QueryT = TypeVar("_QueryT", bound=Struct)

# Queries


class PageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A page of sessions: how many, and after which one (the `next` of the page before)."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 50
    cursor: str | None = None


class ExportQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """JSON Lines can be imported, Markdown is to be read."""

    format: Literal["jsonl", "markdown"] = "jsonl"


class WaitQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """How long to wait for the end of the turn, in seconds."""

    wait_s: Annotated[float, Meta(ge=0, le=60)] = 0


class UsageQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which calls, added up by what. `since` and `until` are days in UTC, and the last one counts too.
    `owner` is for the scope `admin`: another's name, or `*` for all."""

    by: UsageGroup = "day"
    since: datetime.date | None = None
    until: datetime.date | None = None
    session_id: str | None = None
    owner: str | None = None


class EgressQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which records: of a session, from a day (UTC) on, how many, with what stayed on the server's machine.
    `owner` is for the scope `admin`: another's name, or `*` for all."""

    session_id: str | None = None
    since: datetime.date | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 100
    all: bool = False
    owner: str | None = None


class ToolsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """For a turn that sees tools that only read, or also those with side effects."""

    tools: Literal["read", "effect"] = "read"


class AuditQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Rows after a number, of one owner or of all, how many."""

    after: Annotated[int, Meta(ge=0, le=2**53)] = 0
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    owner: str | None = None


# Answers


class Fault(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is wrong. `tag` is stable, `detail` is for a person, `param` names the field that is wrong. The
    reasons of turns have fields of their own besides."""

    tag: str
    detail: str | None = None
    param: str | None = None


class ErrorShape(Struct, frozen=True, kw_only=True):
    """An answer that tells of an error."""

    error: Fault


class ApprovalsShape(Struct, frozen=True, kw_only=True):
    """The tool calls that wait for a person's word, the oldest first."""

    approvals: tuple[ApprovalShape, ...]


class ModelShape(Struct, frozen=True, kw_only=True):
    """A model by the name that the OpenAI and Anthropic doors know it by; a turn here names `route` and, in
    its options, `model`."""

    name: str
    route: Literal["auto", "local", "cloud"]
    model: str | None


class ModelsShape(Struct, frozen=True, kw_only=True):
    """The models that the token may ask for."""

    models: tuple[ModelShape, ...]


class ToolShape(Struct, frozen=True, kw_only=True):
    """A tool as a model sees it."""

    name: str
    description: str | None
    input_schema: Mapping[str, object]


class ToolsShape(Struct, frozen=True, kw_only=True):
    """The tools of a turn. `known` is false until a turn has started the servers."""

    known: bool
    tools: tuple[ToolShape, ...]


class ServerShape(Struct, frozen=True, kw_only=True):
    """How an MCP server is; see `mead mcp list`."""

    name: str
    state: State
    since_s: float
    error: str | None
    tools: int
    restarts: int
    notes: tuple[str, ...]


class ServersShape(Struct, frozen=True, kw_only=True):
    """The MCP servers, and every tool of the hub with its class and who sees it."""

    servers: tuple[ServerShape, ...]
    tools: tuple[ToolListing, ...]


class AuditRowShape(Struct, frozen=True, kw_only=True):
    """A row of the audit chain."""

    number: int
    at: float
    owner: str
    action: str
    subject: str
    details: Mapping[str, str]
    hash: str


class AuditShape(Struct, frozen=True, kw_only=True):
    """Rows of the audit chain, the oldest first."""

    rows: tuple[AuditRowShape, ...]


class AuditCheckShape(Struct, frozen=True, kw_only=True):
    """The chain, verified. `broken` is the first row that is not as it was written."""

    ok: bool
    rows: int
    head: str
    broken: int | None


def reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer as JSON."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")


def query(call: Call, kind: type[_QueryT]) -> _QueryT:
    """The query of a request. Raises `Problem` that names the field that is wrong."""
    given: dict[str, str] = {}
    for name, value in call.request.query_params.multi_items():
        if name in given:
            raise invalid("the query names this twice", param=clean_text(name)[:100])
        given[name] = value
    try:
        return msgspec.convert(given, type=kind, strict=False)
    except (msgspec.ValidationError, OverflowError) as error:
        said, _, path = str(error).partition(" - at `$")
        raise invalid(clean_text(said), param=path.strip("`.") or None) from None


def store_of(call: Call) -> Store:
    """The store. Raises `Problem` where nothing is kept."""
    store = call.server.runtime.store
    if store is None:
        raise Problem(501, "no_store", "the server keeps nothing: it was started without a store")
    return store


def owner_of(call: Call, wanted: str | None) -> str | None:
    """Whose records are meant: the caller's, or with the scope `admin` another's; `None` is everybody's."""
    if wanted is None or wanted == call.principal.owner:
        return call.principal.owner
    call.demand("admin")
    return None if wanted == "*" else wanted
