"""The catalogue: every event that mead emits, what it measures and what it tells.

Durations are seconds on a monotonic clock. No event holds text of a conversation, arguments, results or a
secret (T3). Names and fields are stable (`docs/stability.md`).

`mead.router.route`: a turn was routed (R13). Not emitted when a provider raises (R14).
    measurements: `duration`; `deciding`: how much of it the decision took; `input_tokens`, `output_tokens`:
    summed over the turn's provider calls, zero when the first one failed; `tool_calls`: how many the model
    asked for.
    metadata: `route` (`local`, `cloud`), `route_source` (`classified`, `forced`), `provider` (its name,
    `None` for an empty slot), `status` (`ok`, `error`), `session_id` (`None` outside a session), `reason`
    (the tag of a failure, else `None`), `causes` (the codes of why it went there, with commas between them),
    `tokens_unknown` (whether some call did not say its count), `withheld` (how many earlier turns a cloud
    model was not shown), `withheld_results` (how many tool results were kept from it), `left_out` (how many
    of the oldest turns did not fit the model's context).

`mead.session.turn`: a turn of a session ended, however it ended, or was refused (T2).
    measurements: `duration`: from its start; `queued`: the wait before it. Both are zero for one that was
    refused.
    metadata: `session_id`, `owner`, `turn` (its number; `None` for one that was refused), `status` (`ok`,
    `error`), `reason`.

`mead.provider.call`: a provider call of a turn ended.
    measurements: `duration`, `input_tokens`, `output_tokens` (`None` when the provider did not say).
    metadata: `route`, `provider`, `model`, `status`, `reason`, `session_id`.

`mead.mcp.call`: a tool call ended.
    measurements: `duration`. metadata: `tool`, `server` (`None` for a Python function), `effect`, `status`,
    `kind` (how it ended: `ok`, `tool_error`, `timeout`, `server_down` …), `session_id`.

`mead.mcp.server`: an MCP server's state changed.
    measurements: `restarts`. metadata: `server`, `state`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

ROUTE = "mead.router.route"
TURN = "mead.session.turn"
PROVIDER_CALL = "mead.provider.call"
TOOL_CALL = "mead.mcp.call"
SERVER = "mead.mcp.server"

NAMES = (ROUTE, TURN, PROVIDER_CALL, TOOL_CALL, SERVER)


class Event(Struct, frozen=True, gc=False):
    """Something that happened. The catalogue above lists the fields of each `name`."""

    name: str
    measurements: Mapping[str, float | int | None]
    metadata: Mapping[str, str | int | bool | None]
