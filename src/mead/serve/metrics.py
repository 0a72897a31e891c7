"""`GET /metrics`: what has happened in this process, for Prometheus. Needs the extra `prometheus`."""

from __future__ import annotations

import datetime
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from mead.core.result import Ok
from mead.ledger.budgets import EACH_OWNER, Claim, PlannedCall, claims_for
from mead.ledger.money import NANO
from mead.mcp.hub import McpHub
from mead.serve.endpoint import Call, Server, endpoint
from mead.serve.errors import Problem, native_shape
from mead.settings.values import BudgetSettings
from mead.storage import Store, StoreError

if TYPE_CHECKING:
    from mead.telemetry.prometheus import BudgetLeft, Metrics, Readings

_NO_EXTRA = "metrics need an extra: pip install 'mead-runtime[prometheus]'"
_log = logging.getLogger("mead.serve")


def routes(server: Server) -> list[Route]:
    """The route of the metrics. It counts while the server runs; without the extra it answers 501 and says
    how to install it."""
    metrics = _metrics(server)
    if metrics is not None:
        server.started.append(lambda: _counting(metrics))

    async def show(call: Call) -> Response:
        if metrics is None:
            raise Problem(501, "extra_missing", _NO_EXTRA)
        body, content_type = await metrics.scrape(call.request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    return [Route("/metrics", endpoint(show, scope="admin", shape=native_shape))]


def _metrics(server: Server) -> Metrics | None:
    try:
        from mead.telemetry.prometheus import Metrics
    except ImportError:
        return None
    return Metrics(owners=server.runtime.settings.telemetry.owners, read=lambda: _read(server))


@asynccontextmanager
async def _counting(metrics: Metrics) -> AsyncIterator[None]:
    detach = metrics.attach()
    try:
        yield
    finally:
        detach()


async def _read(server: Server) -> Readings:
    """The state of the budgets and of the MCP servers."""
    from mead.telemetry.prometheus import Readings

    runtime = server.runtime
    health = runtime.hub.health() if isinstance(runtime.hub, McpHub) else ()
    budgets: Sequence[BudgetLeft] = ()
    if runtime.store is not None:
        of_tokens = server.tokens.budgets() if server.tokens is not None else ()
        try:
            budgets = await _left(runtime.store, (*runtime.settings.budgets, *of_tokens))
        except StoreError as error:
            _log.warning("the budgets cannot be read for the metrics: %s", error)
    return Readings(budgets=budgets, servers={one.name: one.state for one in health})


async def _left(store: Store, budgets: Sequence[BudgetSettings]) -> list[BudgetLeft]:
    """What is left of each budget; what is reserved counts as used. One that every session or every owner has
    for itself has no single figure, and is left out."""
    from mead.telemetry.prometheus import BudgetLeft

    now, found = datetime.datetime.now(datetime.UTC), []
    for budget in budgets:
        if budget.per == "session" or budget.owner == EACH_OWNER:
            continue
        claim = _claim(budget, now)
        used = sum(await store.spent(claim.scope, claim.window_start))
        size = NANO if claim.unit == "usd" else 1
        left, limit = (claim.limit - used) / size, claim.limit / size
        found.append(BudgetLeft(name=budget.name, unit=claim.unit, left=left, limit=limit))
    return found


def _claim(budget: BudgetSettings, at: datetime.datetime) -> Claim:
    """Where the store counts a budget: where a call of the least size would be counted."""
    call = PlannedCall(
        route="cloud",
        at=at,
        tokens=1,
        nano_usd=1,
        owner=budget.owner or "local",
        tags=() if budget.tag is None else (budget.tag,),
    )
    claims = claims_for((budget,), call)
    assert isinstance(claims, Ok)  # its price is given
    return claims.value[0]
