"""`mead token`: tokens are shown once, listed without their secret, and end when they are revoked."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.commands import run, run_json
from mead.serve.tokens import Tokens

pytestmark = pytest.mark.usefixtures("echoing")


@pytest.fixture
def tokens(home: Path) -> Tokens:
    return Tokens(home / "data")


def test_a_token_is_shown_once_and_only_its_hash_is_kept(tokens: Tokens) -> None:
    made, status = run_json("token", "create", "laptop", "--scope", "chat", "--scope", "approve")

    found = tokens.find(made["token"])
    assert status == 0
    assert found is not None
    assert found.scopes == {"chat", "approve"}
    secret = made["token"].split("_", 2)[2]
    assert secret not in tokens.path.read_text()
    assert tokens.path.stat().st_mode & 0o777 == 0o600
    listed = run("token", "list").stdout
    assert made["token_id"] in listed
    assert made["token"] not in listed
    assert "laptop" in listed


def test_the_plain_output_is_the_token_alone(tokens: Tokens) -> None:
    result = run("token", "create", "laptop")

    assert tokens.find(result.stdout.strip()) is not None


def test_a_revoked_token_does_not_hold_any_more(tokens: Tokens) -> None:
    made, _ = run_json("token", "create", "laptop")

    revoked, status = run_json("token", "revoke", made["token_id"])

    assert (revoked, status) == ({"ok": True, "token_id": made["token_id"]}, 0)
    assert tokens.find(made["token"]) is None
    assert run_json("token", "list")[0]["tokens"][0]["state"] == "revoked"
    again = run("token", "revoke", made["token_id"])
    assert again.exit_code == 2
    assert "mead token list" in again.stderr


def test_rights_limits_and_a_budget_are_kept(tokens: Tokens) -> None:
    made, _ = run_json(
        *("token", "create", "app", "--owner", "ada", "--model", "mead-auto", "--tag", "app", "--days", "2"),
        *("--budget-usd", "2.50", "--per", "day"),
    )

    found = tokens.find(made["token"])
    assert found is not None
    assert (found.owner, found.models) == ("ada", ("mead-auto",))
    assert found.tags == ("app", f"token:{made['token_id']}")
    [budget] = tokens.budgets()
    assert (str(budget.usd), budget.per, budget.tag) == ("2.50", "day", f"token:{made['token_id']}")


@pytest.mark.parametrize(
    "arguments,said",
    [
        (("--budget-usd", "much"), "a number over 0"),
        (("--budget-usd", "-1"), "a number over 0"),
        (("--budget-usd", "1", "--budget-tokens", "1"), "either in US dollars or in tokens"),
        (("--scope", "everything"), "everything"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[str, ...], said: str) -> None:
    result = run("token", "create", "x", *arguments)

    assert result.exit_code == 2
    assert said in result.stderr


def test_what_is_done_to_tokens_stands_in_the_audit_chain_without_their_secret() -> None:
    made, _ = run_json("token", "create", "laptop")
    run("token", "revoke", made["token_id"])

    rows = run_json("audit", "list")[0]["rows"]

    assert [row["action"] for row in rows if row["action"].startswith("token.")] == [
        "token.create",
        "token.revoke",
    ]
    assert made["token"].split("_", 2)[2] not in str(rows)


def test_without_a_token_it_says_how_to_make_one() -> None:
    assert "mead token create" in run("token", "list").stderr


def test_a_file_that_holds_something_else_is_said(tokens: Tokens) -> None:
    tokens.path.parent.mkdir(parents=True, exist_ok=True)
    tokens.path.write_text("[]")

    result = run("token", "list")

    assert result.exit_code == 2
    assert "does not hold tokens" in result.stderr
