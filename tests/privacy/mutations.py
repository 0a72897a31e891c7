"""Faults that the proof must find: each breaks one of the rules that keep what is private from the cloud."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mead import router
from mead.core.options import TurnOptions
from mead.core.result import Err
from mead.core.turns import Turn
from mead.providers._errors import Sent
from mead.router import attempt, views
from mead.sessions import compact, session, transfer

decide = importlib.import_module("mead.router.decide")  # the package has a function of that name


def everywhere(patch: pytest.MonkeyPatch, old: object, new: object) -> None:
    """Puts `new` in the place of a function wherever a module of mead has it."""
    for name, module in list(sys.modules.items()):
        if name == "mead" or name.startswith("mead."):
            for attribute, value in list(vars(module).items()):
                if value is old:
                    patch.setattr(module, attribute, new)


def the_view_shows_everything(patch: pytest.MonkeyPatch) -> None:
    def view(earlier: Any) -> views.CloudView:
        shown = [views._as_seen_by("cloud", turn) for turn in earlier]
        return views.CloudView(shown, proof=views._PROOF)

    everywhere(patch, views.cloud_view, view)


def the_view_shows_tool_traffic(patch: pytest.MonkeyPatch) -> None:
    """Of local turns that are shareable otherwise: a turn with tools is `local_only`, so that goes too."""

    def view(earlier: Any) -> views.CloudView:
        shown = [turn.messages for turn in earlier if turn.label == "shareable" or not turn.messages.plain]
        return views.CloudView(shown, proof=views._PROOF)

    everywhere(patch, views.cloud_view, view)


def what_follows_from_private_turns_is_shareable(patch: pytest.MonkeyPatch) -> None:
    original = decide._label

    def label(route: Any, options: TurnOptions, *, saw_private: bool, **rest: Any) -> Any:
        return original(route, options, saw_private=False, **rest)

    patch.setattr(decide, "_label", label)


def forced_local_turns_are_shareable(patch: pytest.MonkeyPatch) -> None:
    original = decide._label

    def label(route: Any, options: TurnOptions, **rest: Any) -> Any:
        return original(route, msgspec.structs.replace(options, route="auto"), **rest)

    patch.setattr(decide, "_label", label)


def tool_results_leave_the_label(patch: pytest.MonkeyPatch) -> None:
    original = attempt.Attempt._run_call

    async def run_call(self: Any, call: Any, tools: Any) -> Any:
        before = self._label
        result = await original(self, call, tools)
        self._label = before
        return result

    patch.setattr(attempt.Attempt, "_run_call", run_call)


def nothing_is_scanned(patch: pytest.MonkeyPatch) -> None:
    """Neither results for the cloud nor answers of the local model."""
    original = attempt.Attempt.__init__

    def init(self: Any, *given: Any, **named: Any) -> None:
        original(self, *given, **{**named, "scan": lambda text: ()})

    patch.setattr(attempt.Attempt, "__init__", init)


def private_turns_are_not_refused(patch: pytest.MonkeyPatch) -> None:
    original = decide._refusal

    def refusal(decision: Any, slot: Any, options: TurnOptions) -> Any:
        return original(decision, slot, msgspec.structs.replace(options, allow_private=True))

    patch.setattr(decide, "_refusal", refusal)


def summaries_are_made_by_whoever_was_last(patch: pytest.MonkeyPatch) -> None:
    def route(runtime: Any, turns: Any, *, kept_local: bool) -> Any:
        return turns[-1].route or "cloud" if turns else "auto"

    patch.setattr(compact, "_route", route)


def imports_are_shareable(patch: pytest.MonkeyPatch) -> None:
    original = session._imported_turn

    def turn(*given: Any) -> Turn:
        return msgspec.structs.replace(original(*given), label="shareable")

    patch.setattr(session, "_imported_turn", turn)


def lines_without_labels_are_shareable(patch: pytest.MonkeyPatch) -> None:
    class Line(transfer._Line, frozen=True):
        label: Any = "shareable"

    patch.setattr(transfer, "_Line", Line)


def a_turn_that_failed_is_sent_to_the_cloud(patch: pytest.MonkeyPatch) -> None:
    original = router.route

    async def route(turns: Any, state: Any, options: TurnOptions, *rest: Any, **more: Any) -> Any:
        result = await original(turns, state, options, *rest, **more)
        if isinstance(result, Err) and options.route != "cloud":
            forced = msgspec.structs.replace(options, route="cloud", allow_private=True)
            return await original(turns, state, forced, *rest, **more)
        return result

    everywhere(patch, original, route)


def notes_and_prompts_are_logged(patch: pytest.MonkeyPatch) -> None:
    original = attempt.Attempt._once

    async def once(self: Any, newest: Any) -> Any:
        attempt._log.debug("asking %s", newest.data)
        return await original(self, newest)

    patch.setattr(attempt.Attempt, "_once", once)


def reasons_quote_the_conversation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sent, "clean", lambda self, detail: detail)


MUTATIONS: tuple[Callable[[pytest.MonkeyPatch], None], ...] = (
    the_view_shows_everything,
    the_view_shows_tool_traffic,
    what_follows_from_private_turns_is_shareable,
    forced_local_turns_are_shareable,
    tool_results_leave_the_label,
    nothing_is_scanned,
    private_turns_are_not_refused,
    summaries_are_made_by_whoever_was_last,
    imports_are_shareable,
    lines_without_labels_are_shareable,
    a_turn_that_failed_is_sent_to_the_cloud,
    notes_and_prompts_are_logged,
    reasons_quote_the_conversation,
)


def the_view_shows_nothing(patch: pytest.MonkeyPatch) -> None:
    """Nothing leaks, and nothing is shared any more: the controls must find it."""
    everywhere(patch, views.cloud_view, lambda earlier: views.CloudView([], proof=views._PROOF))
