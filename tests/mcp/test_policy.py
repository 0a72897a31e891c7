"""The policy (H2, R8): classes, lists, rules over arguments; a pure function of data."""

from __future__ import annotations

import pytest

from mead.core.options import TurnOptions
from mead.mcp.policy import Policy
from mead.settings import ArgumentRule, McpServerSettings

EFFECT = TurnOptions(tools="effect")
PLAIN = TurnOptions()


@pytest.mark.parametrize(
    "policy,hint,effect,said",
    [
        (Policy(), False, True, "not trusted"),
        (Policy(), True, True, "not trusted"),
        (Policy(trusted=True), True, False, "trusted server says"),
        (Policy(trusted=True), False, True, "does not say"),
        (Policy(read=("lo*",)), False, False, "settings say that it only reads"),
        (Policy(trusted=True, effect=("log",)), True, True, "settings say that it has side effects"),
        (Policy(read=("log",), effect=("log",)), True, True, "settings say that it has side effects"),
    ],
)
def test_h2_a_tool_that_nobody_vouches_for_has_side_effects(
    policy: Policy, hint: bool, effect: bool, said: str
) -> None:
    found = policy.classify("log", read_only_hint=hint)

    assert found.effect is effect
    assert said in found.reason


@pytest.mark.parametrize(
    "policy,options,effect,allowed,said",
    [
        (Policy(), PLAIN, False, True, "only reads"),
        (Policy(), PLAIN, True, False, "did not opt in"),
        (Policy(), EFFECT, True, True, "opted in"),
        (Policy(), TurnOptions(tools="none"), False, False, "shows no tools"),
        (Policy(deny=("lo?",)), EFFECT, False, False, "denied"),
        (Policy(allow=("status",)), EFFECT, False, False, "allow list"),
        (Policy(allow=("log",), deny=("log",)), EFFECT, False, False, "denied"),
        (Policy(allow=("l*",)), PLAIN, False, True, "only reads"),
    ],
)
def test_r08_deny_wins_over_allow_and_allow_over_the_class(
    policy: Policy, options: TurnOptions, effect: bool, allowed: bool, said: str
) -> None:
    verdict = policy.judge("log", effect=effect, options=options)

    assert verdict.allowed is allowed
    assert said in verdict.reason


GIT = Policy(rules=(ArgumentRule(tool="git*", argument="command", allow=("status", "diff", "log*")),))
PATHS = Policy(rules=(ArgumentRule(tool="*", argument="path", deny=("/etc/*", "")),))


@pytest.mark.parametrize(
    "policy,tool,arguments,allowed",
    [
        (GIT, "git", {"command": "status"}, True),
        (GIT, "git", {"command": "log --oneline"}, True),
        (GIT, "git", {"command": "push"}, False),
        (GIT, "git", {}, False),
        (GIT, "git", {"command": ["status"]}, False),
        (GIT, "other", {"command": "push"}, True),
        (PATHS, "read", {"path": "/home/me/x"}, True),
        (PATHS, "read", {"path": "/etc/passwd"}, False),
        (PATHS, "read", {}, False),
    ],
)
def test_h2_rules_look_at_the_arguments(
    policy: Policy, tool: str, arguments: dict[str, object], allowed: bool
) -> None:
    verdict = policy.judge_arguments(tool, arguments)

    assert verdict.allowed is allowed
    assert "push" not in verdict.reason
    assert "passwd" not in verdict.reason


def test_a_servers_settings_are_its_policy() -> None:
    server = McpServerSettings(name="git", command="x", trusted=True, read=("a",), deny=("b",))

    assert Policy.of(server) == Policy(trusted=True, read=("a",), deny=("b",))
