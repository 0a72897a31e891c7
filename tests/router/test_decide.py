"""Where a turn goes (R1–R3, R16, R18): a pure function of what it is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mead.core.options import Options, RouteChoice, TurnOptions
from mead.core.reasons import CloudUnavailable, InvalidOptions, LocalUnavailable, PrivateContent
from mead.core.turns import Cause, Decision, Finding, Label, Verdict
from mead.router import Refused, Slot, Slots
from mead.router.decide import decide
from support import newest, past, slots, two_models

EASY = Verdict(route="local", private=False, score=0.1, causes=(Cause("difficulty", "easy"),))
HARD = Verdict(route="cloud", private=False, score=0.9, causes=(Cause("difficulty", "hard"),))
CARD = Finding("card", 0, 16, "••")
PRIVATE = Verdict(
    route="local", private=True, score=0.1, causes=(Cause("private", "a card"),), findings=(CARD,)
)
BOTH = slots(*two_models())


def decided(options: TurnOptions, verdict: Verdict | None, of: Slots = BOTH, *earlier: object) -> Decision:
    decision = decide([*earlier, newest("hello")], options, of, verdict)  # type: ignore[list-item]  # turns
    assert isinstance(decision, Decision)
    return decision


@pytest.mark.parametrize("verdict", [EASY, HARD])
@pytest.mark.parametrize("route", ["local", "cloud"])
def test_r01_a_forced_route_wins(route: RouteChoice, verdict: Verdict) -> None:
    decision = decided(TurnOptions(route=route), verdict)

    assert (decision.route, decision.source) == (route, "forced")
    assert decision.causes[0].code == "forced"


@pytest.mark.parametrize("verdict", [EASY, HARD])
def test_r01_otherwise_the_classifier_decides(verdict: Verdict) -> None:
    decision = decided(TurnOptions(), verdict)

    assert (decision.route, decision.source) == (verdict.route, "classified")
    assert decision.causes == verdict.causes


def test_a_turn_on_auto_without_a_verdict_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="verdict"):
        decide([newest("hello")], TurnOptions(), BOTH, None)


def test_r02_the_decision_names_the_slots_provider_and_model() -> None:
    local, cloud = two_models()
    named = Slots(local=Slot(local, Options(model="small"), ("tiny",)), cloud=Slot(cloud))

    assert decided(TurnOptions(), EASY, named).provider == "local-model"
    assert decided(TurnOptions(), EASY, named).model == "small"
    assert decided(TurnOptions(options=Options(model="tiny")), EASY, named).model == "tiny"


def test_s9_a_model_that_the_slot_does_not_list_is_refused() -> None:
    refused = decide([newest("hello")], TurnOptions(options=Options(model="other")), BOTH, EASY)

    assert isinstance(refused, Refused)
    assert isinstance(refused.reason, InvalidOptions)
    assert "'other'" in str(refused.reason)


def test_r03_an_empty_slot_refuses_the_turn() -> None:
    local, cloud = two_models()
    without_local = decide([newest("hello")], TurnOptions(route="local"), slots(cloud=cloud), None)
    without_cloud = decide([newest("hello")], TurnOptions(), slots(local=local), HARD)

    assert isinstance(without_local, Refused)
    assert isinstance(without_local.reason, LocalUnavailable)
    assert isinstance(without_cloud, Refused)
    assert isinstance(without_cloud.reason, CloudUnavailable)
    assert without_cloud.decision.provider is None


def test_r16_private_content_forced_to_the_cloud_is_refused_by_kind() -> None:
    refused = decide([newest("4111")], TurnOptions(route="cloud"), BOTH, PRIVATE)

    assert isinstance(refused, Refused)
    assert refused.reason == PrivateContent(kinds=("card",), detail=refused.reason.detail)


def test_r16_a_person_may_allow_it_for_one_turn_which_stays_local_only() -> None:
    decision = decided(TurnOptions(route="cloud", allow_private=True), PRIVATE)

    assert (decision.route, decision.label, decision.private) == ("cloud", "local_only", True)


@pytest.mark.parametrize(
    "options,verdict,earlier,label",
    [
        (TurnOptions(route="local"), None, (), "local_only"),
        (TurnOptions(), EASY, (), "shareable"),
        (TurnOptions(), PRIVATE, (), "local_only"),
        (TurnOptions(), HARD, (), "shareable"),
        (TurnOptions(), EASY, (past("a", "b", label="local_only"),), "local_only"),
        (TurnOptions(), EASY, (past("a", "b"),), "shareable"),
        (TurnOptions(), HARD, (past("a", "b", label="local_only"),), "shareable"),
    ],
)
def test_r16_the_label_follows_what_the_model_is_shown(
    options: TurnOptions, verdict: Verdict | None, earlier: tuple[object, ...], label: Label
) -> None:
    assert decided(options, verdict, BOTH, *earlier).label == label


def test_r16_what_is_withheld_is_counted_for_the_cloud_only() -> None:
    earlier = (past("a", "b", label="local_only"), past("c", "d"), past("e", "f", label="local_only"))

    assert decided(TurnOptions(route="cloud"), HARD, BOTH, *earlier).withheld == 2
    assert decided(TurnOptions(route="local"), None, BOTH, *earlier).withheld == 0


@given(
    st.sampled_from(["auto", "local", "cloud"]),
    st.sampled_from([EASY, HARD, PRIVATE]),
    st.lists(st.sampled_from(["shareable", "local_only"]), max_size=4),
    st.booleans(),
)
def test_r04_nothing_private_is_decided_for_the_cloud_unless_a_person_said_so(
    route: RouteChoice, verdict: Verdict, labels: list[Label], allow: bool
) -> None:
    turns = [*[past("a", "b", label=label) for label in labels], newest("hello")]

    decision = decide(turns, TurnOptions(route=route, allow_private=allow), BOTH, verdict)
    again = decide(turns, TurnOptions(route=route, allow_private=allow), BOTH, verdict)

    assert decision == again, "it is pure"
    if isinstance(decision, Decision) and decision.route == "cloud" and decision.private:
        assert allow
        assert decision.label == "local_only"
    if isinstance(decision, Decision) and route != "auto":
        assert decision.route == route
