"""Results, reasons, usage and options."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from mead.core.options import NO_OPTIONS, Options
from mead.core.reasons import HttpStatus, Reason, Timeout, Transport, TurnReason
from mead.core.result import Err, MeadError, Ok
from mead.core.scope import NULL_SCOPE, NullScope
from mead.core.usage import Usage, UsageTotal, total

CONTRACT_TAGS = {
    *("missing_api_key", "timeout", "malformed_response", "invalid_options", "tools_unsupported"),
    *("http_status", "transport", "local_unavailable", "cloud_unavailable", "tool_loop_limit"),
    *("private_content", "context_overflow", "budget_exceeded", "slot_busy", "no_such_session"),
    *("session_busy", "idempotency_conflict", "interrupted", "cancelled", "crashed", "shutting_down"),
}


def test_p4_every_reason_of_the_contract_has_its_tag() -> None:
    kinds = get_args(TurnReason)
    tags = {str(kind.__struct_config__.tag) for kind in kinds}

    assert tags == CONTRACT_TAGS


def test_a_reason_can_be_stored_and_read_back() -> None:
    reason = HttpStatus(status=429, retry_after_s=2.5, detail="slow down")

    encoded = msgspec.json.encode(reason)

    assert msgspec.json.decode(encoded)["tag"] == reason.tag == "http_status"
    assert msgspec.json.decode(encoded, type=TurnReason) == reason
    assert str(reason) == "http_status: slow down"


def test_values_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Timeout().limit = "idle"  # type: ignore[misc]  # that is the point
    with pytest.raises(AttributeError):
        Ok(1).value = 2  # type: ignore[misc]  # that is the point


def test_unwrap_gives_the_value_or_raises_with_the_reason() -> None:
    cause = OSError("gone")
    assert Ok(3).unwrap() == 3
    with pytest.raises(MeadError, match="transport: no route") as caught:
        Err(Transport(cause="reset", detail="no route"), cause=cause).unwrap()

    assert caught.value.reason == Transport(cause="reset", detail="no route")
    assert caught.value.__cause__ is cause


def test_two_failures_with_one_reason_are_equal() -> None:
    assert Err(Timeout(), cause=OSError()) == Err(Timeout())
    assert isinstance(Err(Timeout()).reason, Reason)


def test_d13_an_unknown_count_is_unknown_and_not_zero() -> None:
    summed = total([Usage(input_tokens=5, output_tokens=2), Usage(output_tokens=3)])

    assert summed == UsageTotal(input_tokens=5, output_tokens=5, provider_calls=2, unknown=True)
    assert Usage().input_tokens is None
    assert total([]).unknown is False


def test_d20_the_calls_of_a_turn_are_added_up() -> None:
    summed = total([Usage(input_tokens=100, output_tokens=1), Usage(input_tokens=140, output_tokens=2)])

    assert (summed.input_tokens, summed.output_tokens, summed.provider_calls) == (240, 3, 2)
    assert not summed.unknown


def test_s9_the_nearest_layer_of_options_wins() -> None:
    turn = Options(temperature=0.0, deadline=5.0)
    slot = Options(temperature=0.7, max_tokens=100, deadline=9.0)

    layered = turn.over(slot)

    assert (layered.temperature, layered.max_tokens) == (0.0, 100)
    assert layered.deadline == 5.0, "what belongs to the call is not layered"
    assert NO_OPTIONS.over(NO_OPTIONS) is NO_OPTIONS


def test_s3_layering_keeps_the_calls_deadline_and_scope() -> None:
    scope = NullScope()

    layered = Options(deadline=1.0, scope=scope, route="local").over(Options(model="m"))

    assert (layered.deadline, layered.scope, layered.route, layered.model) == (1.0, scope, "local", "m")


async def test_the_scope_that_reports_to_nobody_approves_nothing() -> None:
    assert NULL_SCOPE.deadline is None
    assert not NULL_SCOPE.wants_deltas
    assert not await NULL_SCOPE.ask_approval(None)  # type: ignore[arg-type]  # whatever is asked
