"""What a door answers when something cannot be done: the status of each reason, in the shape of each door."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec
from starlette.responses import Response

from mead.core.reasons import HttpStatus, Reason, SlotBusy

_STATUS: Mapping[str, int] = {
    "missing_api_key": 502,
    "timeout": 504,
    "malformed_response": 502,
    "invalid_options": 400,
    "tools_unsupported": 400,
    "http_status": 502,
    "transport": 502,
    "local_unavailable": 503,
    "cloud_unavailable": 503,
    "tool_loop_limit": 502,
    "private_content": 403,
    "context_overflow": 400,
    "budget_exceeded": 402,
    "slot_busy": 429,
    "no_such_session": 404,
    "session_busy": 409,
    "idempotency_conflict": 422,
    "interrupted": 409,
    "cancelled": 499,
    "crashed": 500,
    "shutting_down": 503,
}
"""The HTTP status of each reason's tag."""
_PASSED_ON = (429, 529)


class Problem(Exception):  # noqa: N818 - it is an answer, raised where it is found
    """A request that is answered with an error. `tag` is stable, `message` is for a person and quotes nothing
    of a conversation; `param` names the field that is wrong; `retry_after_s` is in seconds."""

    def __init__(
        self,
        status: int,
        tag: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        reason: Reason | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.tag = tag
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.reason = reason


def invalid(message: str, *, param: str | None = None) -> Problem:
    """A request that is wrong."""
    return Problem(400, "invalid_request", message, param=param)


def unsupported(field: str, why: str = "") -> Problem:
    """A field that mead does not take: nothing is dropped in silence."""
    return invalid(f"mead does not support {field}{f': {why}' if why else ''}; leave it out", param=field)


def problem_of(reason: Reason) -> Problem:
    """The answer for a turn that failed."""
    status, retry_after_s = _STATUS[reason.tag], None
    if isinstance(reason, HttpStatus):
        retry_after_s = reason.retry_after_s
        if reason.status in _PASSED_ON:
            status = reason.status
    elif isinstance(reason, SlotBusy):
        retry_after_s = reason.retry_after_s
    said = reason.detail or f"the turn failed: {reason.tag}"
    return Problem(status, reason.tag, said, retry_after_s=retry_after_s, reason=reason)


# The shapes

Shape: TypeAlias = Callable[[Problem], object]
"""Makes the JSON body of an error."""

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    404: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "conflict_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def openai_shape(problem: Problem) -> object:
    """As OpenAI writes errors."""
    kind = _OPENAI_TYPES.get(problem.status, "api_error")
    return {"error": {"message": problem.message, "type": kind, "param": problem.param, "code": problem.tag}}


def anthropic_shape(problem: Problem) -> object:
    """As Anthropic writes errors; `code` is mead's tag."""
    kind = _ANTHROPIC_TYPES.get(problem.status, "api_error")
    said = f"{problem.param}: {problem.message}" if problem.param else problem.message
    return {"type": "error", "error": {"type": kind, "message": said, "code": problem.tag}}


def native_shape(problem: Problem) -> object:
    """As mead writes errors: the reason as it stands in results, or a tag with what is said of it."""
    if problem.reason is not None:
        return {"error": problem.reason}
    return {"error": {"tag": problem.tag, "detail": problem.message, "param": problem.param}}


def answer(problem: Problem, shape: Shape) -> Response:
    """The response that tells of a problem."""
    headers = {}
    if problem.retry_after_s is not None:
        headers["retry-after"] = str(math.ceil(problem.retry_after_s))
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(
        msgspec.json.encode(shape(problem)), problem.status, headers, media_type="application/json"
    )
