"""Checks what a handler returned: nothing enters the history that breaks a later turn (S7)."""

from __future__ import annotations

from typing import get_args

import msgspec

from mead.core.conversation import EncodedMessages, encode
from mead.core.messages import Message, StopReason
from mead.core.reasons import Reason
from mead.core.result import Err, Ok
from mead.core.turns import Answer, Decision, Label, TurnResult
from mead.core.usage import UsageTotal

_FIELDS: tuple[tuple[str, type], ...] = (
    ("text", str),
    ("usage", UsageTotal),
    ("tool_calls", int),
    ("left_out", int),
    ("warnings", tuple),
    ("told_note", bool),
)
_LABELS, _STOP_REASONS = get_args(Label), get_args(StopReason)


class HandlerError(TypeError):
    """What a handler returned is no result. The message names types only, and quotes nothing."""


def checked_result(result: object) -> TurnResult:
    """What a handler returned, with the messages encoded where it has not done so.

    Raises `HandlerError` for anything else: handlers are other people's code.
    """
    if isinstance(result, Err) and isinstance(result.reason, Reason):
        return result
    if isinstance(result, Ok) and isinstance(result.value, Answer):
        return Ok(_checked_answer(result.value))
    said = type(result).__name__
    if isinstance(result, Ok | Err):
        inner = result.value if isinstance(result, Ok) else result.reason
        said = f"{said} of {type(inner).__name__}"
    raise HandlerError(f"handle_turn() must return Ok(Answer) or Err(reason), not {said}")


def _checked_answer(answer: Answer) -> Answer:
    for name, expected in _FIELDS:
        value = getattr(answer, name)
        if not isinstance(value, expected):
            raise HandlerError(f"an Answer's {name} must be {expected.__name__}, not {type(value).__name__}")
    if answer.label not in _LABELS:
        raise HandlerError(f"an Answer's label must be one of {', '.join(_LABELS)}")
    if answer.stop_reason not in _STOP_REASONS:
        raise HandlerError(f"an Answer's stop_reason must be one of {', '.join(_STOP_REASONS)}")
    if not isinstance(answer.decision, Decision | None):
        raise HandlerError(f"an Answer's decision must be Decision, not {type(answer.decision).__name__}")
    if not isinstance(answer.messages, EncodedMessages):
        answer = msgspec.structs.replace(answer, messages=_encoded(answer.messages))
    if not answer.messages.data:
        raise HandlerError("an Answer's messages must hold at least one")
    return answer


def _encoded(messages: object) -> EncodedMessages:
    if not isinstance(messages, list | tuple) or not all(isinstance(m, Message) for m in messages):
        raise HandlerError(f"an Answer's messages must be messages, not {type(messages).__name__}")
    try:
        encoded = encode(messages)
        encoded.decode()
    except (TypeError, ValueError, AttributeError) as error:
        raise HandlerError("an Answer's messages have a role or a content that no message has") from error
    return encoded
