"""`mead token`: who may use the server."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import click

from mead.cli._json import write_json
from mead.cli._store import one_line, store_settings, with_store
from mead.cli._terminal import fail_usage, safe, say, write
from mead.serve.tokens import SCOPES, Scope, TokenBudget, TokenRecord, Tokens
from mead.settings import Settings
from mead.storage import Store
from mead.storage.protocol import AuditEntry

_DAY_S = 86_400.0


@click.group("token")
def command() -> None:
    """Make, list and revoke the tokens of `mead serve`."""


@command.command("create")
@click.argument("name")
@click.option("--owner", default="local", show_default=True, help="Whose sessions it sees.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(SCOPES),
    multiple=True,
    default=("chat",),
    show_default=True,
    help="What it may do; may be given several times.",
)
@click.option("--days", type=click.IntRange(min=1), help="How long it holds; for ever without it.")
@click.option("--model", "models", multiple=True, help="A model that it may ask for; all without it.")
@click.option("--tag", "tags", multiple=True, help="A tag for each of its turns.")
@click.option("--budget-usd", help="How much its turns may spend on the cloud model, in US dollars.")
@click.option("--budget-tokens", type=click.IntRange(min=1), help="The same in tokens.")
@click.option(
    "--per",
    type=click.Choice(["day", "month"]),
    default="month",
    show_default=True,
    help="The time that the budget is for.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def create_command(
    config: Path | None,
    /,
    name: str,
    owner: str,
    scopes: tuple[Scope, ...],
    days: int | None,
    models: tuple[str, ...],
    tags: tuple[str, ...],
    budget_usd: str | None,
    budget_tokens: int | None,
    per: Any,
    as_json: bool,
) -> None:
    """Make a token. It is shown once; only its hash is kept."""
    if budget_usd is not None and budget_tokens is not None:
        fail_usage("a budget is either in US dollars or in tokens")
    settings = store_settings(config)
    budget = None
    if budget_usd is not None or budget_tokens is not None:
        budget = TokenBudget(per=per, tokens=budget_tokens, usd=_usd(budget_usd))
    tokens = Tokens(settings.data_folder)
    try:
        record, text = tokens.create(
            name,
            owner=owner,
            scopes=scopes,
            lifetime_s=None if days is None else days * _DAY_S,
            models=models or None,
            tags=tags,
            budget=budget,
        )
    except (OSError, ValueError) as error:
        fail_usage(str(error))
    _audit(settings, "token.create", record, {"name": name, "scopes": ",".join(record.scopes)})
    if as_json:
        write_json({"ok": True, "token": text, **_record_json(record)})
        return
    write(text)
    say("This is the only time that it is shown. Give it as Authorization: Bearer …, or as the API key.")


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def list_command(config: Path | None, /, as_json: bool) -> None:
    """List the tokens, without their secrets."""
    records = _records(Tokens(store_settings(config).data_folder))
    if as_json:
        write_json({"ok": True, "tokens": [_record_json(record) for record in records]})
        return
    for record in records:
        words = (record.token_id, record.name, record.owner, ",".join(record.scopes), _state(record))
        write(safe("  ".join([one_line(word) for word in words])))
    if not records:
        say("There is no token yet: mead token create NAME makes one.")


@command.command("revoke")
@click.argument("token_id")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
@click.pass_obj
def revoke_command(config: Path | None, /, token_id: str, as_json: bool) -> None:
    """End a token, from the next request on. TOKEN_ID as `mead token list` shows it."""
    settings = store_settings(config)
    tokens = Tokens(settings.data_folder)
    record = next((record for record in _records(tokens) if record.token_id == token_id), None)
    try:
        done = record is not None and tokens.revoke(token_id)
    except OSError as error:
        fail_usage(str(error))
    if record is None or not done:
        fail_usage(f"there is no token {token_id!r} that holds; mead token list shows them")
    _audit(settings, "token.revoke", record, {"name": record.name})
    if as_json:
        write_json({"ok": True, "token_id": token_id})
    else:
        say(f"revoked {token_id}")


def _records(tokens: Tokens) -> Sequence[TokenRecord]:
    try:
        return tokens.records()
    except (OSError, ValueError) as error:
        fail_usage(str(error))


def _audit(settings: Settings, action: str, record: TokenRecord, details: Mapping[str, str]) -> None:
    """Writes down what was done to a token: its id and its rights, not its secret."""

    async def note(store: Store) -> None:
        entry = AuditEntry(
            at=time.time(), owner=record.owner, action=action, subject=record.token_id, details=details
        )
        await store.append_audit(entry)

    with_store(settings, note, makes=True)


def _usd(text: str | None) -> Decimal | None:
    if text is None:
        return None
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or amount <= 0:
        fail_usage("--budget-usd must be a number over 0, for example 2.50")
    return amount


def _state(record: TokenRecord) -> str:
    if record.revoked_at is not None:
        return "revoked"
    if record.expires_at is None:
        return "holds"
    if record.expires_at <= time.time():
        return "expired"
    until = datetime.datetime.fromtimestamp(record.expires_at).astimezone()
    return f"holds until {until:%Y-%m-%d}"


def _record_json(record: TokenRecord) -> dict[str, object]:
    return {
        "token_id": record.token_id,
        "name": record.name,
        "owner": record.owner,
        "scopes": record.scopes,
        "models": record.models,
        "tags": record.tags,
        "budget": record.budget,
        "created_at": record.created_at,
        "expires_at": record.expires_at,
        "state": _state(record).split()[0],
    }
