"""Tokens: whoever calls has one, and it says whose they are and what they may do.

A token is `mead_ID_SECRET`. Of the secret only a hash is kept, in a file that its owner alone may read; it is
read anew when it changes, so that a token that was revoked is refused from the next request on.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

from mead.core.private_files import read_private, write_private
from mead.settings.values import BudgetSettings

Scope: TypeAlias = Literal["chat", "tools:effect", "approve", "private:send", "declassify", "admin"]
"""What a token may do: talk to models; let tools with side effects be shown; answer approvals; send private
content to the cloud model; lift labels; see and change what is the server's."""
SCOPES: tuple[Scope, ...] = get_args(Scope)
TOKENS_FILE = "tokens.json"
TAG_PREFIX = "token:"
"""How the tags begin by which the turns of a token with a budget are counted."""
_TOKEN = re.compile(r"mead_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")


class TokenBudget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much the turns of a token may spend on the cloud route: `tokens` or `usd`, `per` day or month."""

    per: Literal["day", "month"]
    tokens: int | None = None
    usd: Decimal | None = None


class TokenRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token without its secret. Times are seconds since the epoch. `models` are the names that it may ask
    for, `None` all; `tags` are put on each of its turns."""

    token_id: str
    name: str
    owner: str = "local"
    scopes: tuple[Scope, ...] = ("chat",)
    sha256: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    models: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()
    budget: TokenBudget | None = None


class Principal(Struct, frozen=True, kw_only=True):
    """Who calls. `token_id` is `None` where no token is asked for."""

    owner: str
    scopes: frozenset[Scope]
    token_id: str | None = None
    models: tuple[str, ...] | None = None
    tags: tuple[str, ...] = ()

    def may(self, scope: Scope) -> bool:
        """Whether the caller has a scope."""
        return scope in self.scopes


ANYBODY = Principal(owner="local", scopes=frozenset(SCOPES))
"""Who calls a server that asks for no token."""


class _Kept(Struct, frozen=True):
    tokens: tuple[TokenRecord, ...] = ()


class Tokens:
    """The tokens in a file; a folder without one has none yet. Its methods raise `OSError` for a file that
    cannot be read or written, and `ValueError` for one that holds something else."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / TOKENS_FILE
        self._seen: tuple[int, int] | None = None
        self._records: dict[str, TokenRecord] = {}

    @property
    def version(self) -> object:
        """Another value after each change of the file that was seen."""
        return self._seen

    def records(self) -> tuple[TokenRecord, ...]:
        """Every token, the oldest first."""
        self._refresh()
        return tuple(self._records.values())

    def create(
        self,
        name: str,
        *,
        owner: str = "local",
        scopes: Sequence[Scope] = ("chat",),
        lifetime_s: float | None = None,
        models: Sequence[str] | None = None,
        tags: Sequence[str] = (),
        budget: TokenBudget | None = None,
    ) -> tuple[TokenRecord, str]:
        """Makes a token, and gives it with its text, which nobody can read again later."""
        secret, now = secrets.token_urlsafe(32), time.time()
        record = TokenRecord(
            token_id=secrets.token_hex(6),
            name=name,
            owner=owner,
            scopes=tuple(dict.fromkeys(scopes)),
            sha256=_hashed(secret),
            created_at=now,
            expires_at=None if lifetime_s is None else now + lifetime_s,
            models=None if models is None else tuple(models),
            tags=tuple(tags),
            budget=budget,
        )
        self._refresh()
        self._write({**self._records, record.token_id: record})
        return record, f"mead_{record.token_id}_{secret}"

    def revoke(self, token_id: str) -> bool:
        """Ends a token. False if there is none of that id that still holds."""
        self._refresh()
        record = self._records.get(token_id)
        if record is None or record.revoked_at is not None:
            return False
        revoked = msgspec.structs.replace(record, revoked_at=time.time())
        self._write({**self._records, token_id: revoked})
        return True

    def find(self, text: str) -> Principal | None:
        """Who has this token; `None` for one that is unknown, was revoked, or has expired."""
        match = _TOKEN.fullmatch(text)
        if match is None:
            return None
        self._refresh()
        record = self._records.get(match[1])
        if record is None or not hmac.compare_digest(record.sha256, _hashed(match[2])):
            return None
        if record.revoked_at is not None or (
            record.expires_at is not None and record.expires_at <= time.time()
        ):
            return None
        return Principal(
            owner=record.owner,
            scopes=frozenset(record.scopes),
            token_id=record.token_id,
            models=record.models,
            tags=(*record.tags, *([_tag(record.token_id)] if record.budget else ())),
        )

    def budgets(self) -> tuple[BudgetSettings, ...]:
        """The budgets of the tokens that have one: each counts the turns with the token's own tag."""
        return tuple(
            [
                BudgetSettings(
                    name=f"token-{record.token_id}",
                    per=record.budget.per,
                    tokens=record.budget.tokens,
                    usd=record.budget.usd,
                    tag=_tag(record.token_id),
                )
                for record in self.records()
                if record.budget is not None
            ]
        )

    def _refresh(self) -> None:
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except FileNotFoundError:
            self._seen, self._records = None, {}
            return
        seen = (found.st_mtime_ns, found.st_ino)
        if seen == self._seen:
            return
        try:
            kept = msgspec.json.decode(read_private(self.path), type=_Kept)
        except msgspec.MsgspecError as error:
            raise ValueError(f"{self.path} does not hold tokens; move it away, and make new ones") from error
        self._records = {record.token_id: record for record in kept.tokens}
        self._seen = seen

    def _write(self, records: dict[str, TokenRecord]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.path, msgspec.json.encode(_Kept(tuple(records.values()))))
        self._seen = None


def _tag(token_id: str) -> str:
    return f"{TAG_PREFIX}{token_id}"


def _hashed(secret: str) -> str:
    # The secret is as random as the hash is long: nothing slower is needed.
    return hashlib.sha256(secret.encode()).hexdigest()
