"""Budgets of the cloud route: which of them a call falls under, what it may take, and whether that fits.

A call is counted before it is sent, at the most that it may take (`estimate`), and set right when it is over.
So calls that run at the same time cannot spend the same money twice. What a budget counts by day or month
begins and ends in UTC: so do the vendors' bills, and several machines on one store then agree.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from mead.core.options import Route
from mead.core.reasons import (
    BudgetExceeded,
    HttpStatus,
    InvalidOptions,
    MissingApiKey,
    SlotBusy,
    Timeout,
    ToolsUnsupported,
    Transport,
    TurnReason,
)
from mead.core.result import Err, Ok, Result
from mead.ledger.money import nano_usd, shown_usd
from mead.settings.values import BudgetSettings

SAFE_BYTES_PER_TOKEN = 2
"""Fewer bytes than a token has in any usual text: 4 in English, 3 and more in Chinese, code and JSON."""
IMAGE_TOKENS = 5_000
"""More than the vendors count for a picture."""
DEFAULT_ANSWER_TOKENS = 4_096
"""How long an answer may become where nobody limits it."""
EACH_OWNER = "*"
# Windows that are long over may be swept away; that of a session must stay as long as the session.
_LIFELONG = datetime.datetime(9999, 1, 1, tzinfo=datetime.UTC).timestamp()

_UNSENT = (MissingApiKey, InvalidOptions, ToolsUnsupported, SlotBusy, BudgetExceeded)
_NOT_CONNECTED = ("refused", "dns", "tls", "not_local", "engine")


class Estimate(Struct, frozen=True, gc=False):
    """The most tokens that a call should take."""

    input_tokens: int
    output_tokens: int

    @property
    def tokens(self) -> int:
        """Both together."""
        return self.input_tokens + self.output_tokens


def estimate(prompt_bytes: int, *, images: int = 0, max_tokens: int | None = None) -> Estimate:
    """What to reserve for a call. `prompt_bytes` are those of all text that is sent (system prompt, tools and
    history included), without attachments; `max_tokens` limits the answer, and an answer without a limit
    counts `DEFAULT_ANSWER_TOKENS`."""
    input_tokens = -(-prompt_bytes // SAFE_BYTES_PER_TOKEN) + images * IMAGE_TOKENS
    return Estimate(input_tokens, DEFAULT_ANSWER_TOKENS if max_tokens is None else max_tokens)


class PlannedCall(Struct, frozen=True, kw_only=True):
    """A provider call that is about to be made: whose it is, and the most that it may take.

    `at` is an aware time. `nano_usd` is in 1e-9 USD, `None` where the price of `model` is unknown.
    """

    route: Route
    at: datetime.datetime
    tokens: int
    nano_usd: int | None
    model: str | None = None
    owner: str = "local"
    session_id: str | None = None
    tags: tuple[str, ...] = ()


class Claim(Struct, frozen=True, kw_only=True):
    """What a call takes of a budget: `amount` of `limit`, in `unit` (tokens, or 1e-9 USD).

    What has the same `scope` and `window_start` (seconds since the epoch) is counted together. `until` is the
    end of the window; `None` for the life of a session. `reservation_id` is the claim's own.
    """

    reservation_id: str
    budget: BudgetSettings
    scope: str
    window_start: float
    until: datetime.datetime | None
    unit: Literal["tokens", "usd"]
    amount: int
    limit: int
    owner: str


def applies(budget: BudgetSettings, call: PlannedCall) -> bool:
    """Whether a call falls under a budget. A call outside a session falls under none that is per session."""
    return (
        call.route == "cloud"
        and (budget.tag is None or budget.tag in call.tags)
        and (budget.owner in (None, EACH_OWNER) or budget.owner == call.owner)
        and (budget.per != "session" or call.session_id is not None)
    )


def claims_for(
    budgets: Sequence[BudgetSettings], call: PlannedCall
) -> Result[tuple[Claim, ...], BudgetExceeded]:
    """What a call takes of each budget that it falls under.

    Fails if one of them is in USD and the price is unknown: a call that nobody can price cannot be promised
    to fit.
    """
    claims = []
    for budget in budgets:
        if not applies(budget, call):
            continue
        amount = call.tokens if budget.tokens is not None else call.nano_usd
        if amount is None:
            return Err(_unpriced(budget, call.model))
        if amount:
            claims.append(_claim(budget, call, amount))
    return Ok(tuple(claims))


def _claim(budget: BudgetSettings, call: PlannedCall, amount: int) -> Claim:
    started, until = window_of(budget.per, call.at)
    session = call.session_id if budget.per == "session" else ""
    unit: Literal["tokens", "usd"] = "usd" if budget.tokens is None else "tokens"
    # The owner stands last: he is the only part that may hold any character.
    owner = call.owner if budget.owner is not None else ""
    return Claim(
        reservation_id=secrets.token_urlsafe(12),
        budget=budget,
        scope=f"{budget.name}/{unit}/{session}/{owner}",
        window_start=started,
        until=until,
        unit=unit,
        amount=amount,
        limit=limit_of(budget),
        owner=call.owner,
    )


def limit_of(budget: BudgetSettings) -> int:
    """What a budget allows, in tokens or in 1e-9 USD."""
    if budget.tokens is not None:
        return budget.tokens
    assert budget.usd is not None  # the settings see to it
    return nano_usd(budget.usd)


def window_of(
    per: Literal["day", "month", "session"], at: datetime.datetime
) -> tuple[float, datetime.datetime | None]:
    """The window that `at` (an aware time) falls in: when it began, in seconds since the epoch, and when it
    ends. Days and months are UTC's."""
    if per == "session":
        return _LIFELONG, None
    today = at.astimezone(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if per == "day":
        return today.timestamp(), today + datetime.timedelta(days=1)
    first = today.replace(day=1)
    # 32 days after its first, a month is over, and the next one is not.
    return first.timestamp(), (first + datetime.timedelta(days=32)).replace(day=1)


def exceeded(claim: Claim, spent: int) -> BudgetExceeded:
    """The refusal of a claim: which budget, how much of it is used or reserved, and until when."""
    said = (
        f"the budget {_described(claim.budget)} allows {_shown(claim.limit, claim)}; "
        f"{_shown(spent, claim)} are used or reserved, and this call may take {_shown(claim.amount, claim)}"
    )
    if claim.amount > claim.limit:
        return BudgetExceeded(detail=f"{said}, more than all of it: lower max_tokens or shorten the text")
    if claim.until is None:
        return BudgetExceeded(detail=f"{said}; it holds until the session ends")
    return BudgetExceeded(detail=f"{said}; it holds until {claim.until:%Y-%m-%d %H:%M} UTC")


def _unpriced(budget: BudgetSettings, model: str | None) -> BudgetExceeded:
    named = f"the model {model!r}" if model is not None else "a model without a name"
    return BudgetExceeded(
        detail=f"the budget {_described(budget)} is in USD and the price of {named} is not known: give it a "
        "table in [prices], install mead-runtime[prices], or make the budget one in tokens"
    )


_EACH = {"day": "a day", "month": "a month", "session": "a session"}


def _described(budget: BudgetSettings) -> str:
    parts = [f"{budget.name!r} ({_EACH[budget.per]}"]
    if budget.tag is not None:
        parts.append(f", tag {budget.tag!r}")
    if budget.owner is not None:
        parts.append(", for each owner" if budget.owner == EACH_OWNER else f", owner {budget.owner!r}")
    return "".join([*parts, ")"])


def _shown(amount: int, claim: Claim) -> str:
    return shown_usd(amount) if claim.unit == "usd" else f"{amount:,} tokens"


def nothing_was_spent(reason: TurnReason) -> bool:
    """Whether a call that failed so has certainly cost nothing: it did not reach the model, or was refused.

    All else may have been charged for: a call that ran out of time, was cancelled or cut off.
    """
    match reason:
        case HttpStatus():
            return True
        case Timeout(limit=limit):
            return limit in ("connect", "queue")
        case Transport(cause=cause):
            return cause in _NOT_CONNECTED
    return isinstance(reason, _UNSENT)
