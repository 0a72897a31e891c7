"""What an endpoint of the native API is: how it is called, by whom, with what, and all that it may answer.

Routes and OpenAPI document are made of the same values: neither knows an endpoint that the other does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mead.serve.endpoint import Endpoint, Handle, endpoint
from mead.serve.errors import native_shape
from mead.serve.tokens import Scope

Method: TypeAlias = Literal["GET", "POST", "PATCH", "DELETE"]

COMMON = (400, 401, 403, 421, 429, 431, 500)
"""What any endpoint may answer: a wrong query or header, no token or not enough, a foreign host, too many
requests."""
WITH_BODY = (408, 413, 499)
"""What one with a body may answer besides: it came too slowly, it is too large, its client went away."""
WITH_PLACE = (404,)
WITH_STORE = (501,)
OF_TURNS = (402, 404, 409, 422, 499, 502, 503, 504, 529)
"""What a turn that failed may answer: the statuses of its reasons."""


class Operation(Struct, frozen=True, kw_only=True):
    """An endpoint. `scope` is what a token must have; `more_scopes` is a sentence on what else may be.

    `body` and `query` are the types that it reads, `status` and `answer` what it answers when it succeeds:
    a type is JSON, `None` is nothing. `media` are the forms of an answer or of a body that is no JSON.
    `errors` are the statuses that it may answer besides `COMMON`; `headers` are names with what they say.
    """

    method: Method
    path: str
    handle: Handle
    scope: Scope
    summary: str
    body: Any = None
    body_media: tuple[str, ...] = ()
    query: type[Struct] | None = None
    status: int = 200
    answer: Any = None
    media: tuple[str, ...] = ()
    accepted: Any = None
    errors: tuple[int, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    more_scopes: str = ""

    @property
    def operation_id(self) -> str:
        """A name of its own, for generated clients."""
        words = [word.strip("{}") for word in self.path.removeprefix("/api/").split("/")]
        return "_".join([self.method.lower(), *words]).replace(".", "_")


def routes_of(operations: Sequence[Operation]) -> list[Route]:
    """A route for each path, which knows all of its methods: a wrong one is told the right ones."""
    by_path: dict[str, dict[str, Endpoint]] = {}
    for each in operations:
        made = endpoint(each.handle, scope=each.scope, shape=native_shape)
        by_path.setdefault(each.path, {})[each.method] = made
    return [
        Route(path, _by_method(endpoints), methods=list(endpoints)) for path, endpoints in by_path.items()
    ]


def _by_method(endpoints: dict[str, Endpoint]) -> Endpoint:
    async def respond(request: Request) -> Response:
        return await endpoints["GET" if request.method == "HEAD" else request.method](request)

    return respond
