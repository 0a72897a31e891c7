"""The catalogue: every event that mead emits, what it measures and what it tells.

Durations are seconds on a monotonic clock. No event holds text of a conversation, arguments, results or a
secret (T3). Names and fields are stable (`docs/stability.md`). Every event of a turn has its `session_id` and
`turn`, the turn's number; both are `None` outside a session. `owner` is whose turn it is.

`mead.router.route`: a turn was routed (R13). Not emitted when a provider raises (R14).
    measurements: `duration`; `deciding`: how much of it the decision took; `input_tokens`, `output_tokens`:
    summed over the turn's provider calls, zero when the first one failed; `tool_calls`: how many the model
    asked for.
    metadata: `route` (`local`, `cloud`), `route_source` (`classified`, `forced`), `provider` (its name,
    `None` for an empty slot), `status` (`ok`, `error`), `session_id`, `turn`, `owner`, `reason` (the tag of a
    failure, else `None`), `causes` (the codes of why it went there, with commas between them),
    `tokens_unknown` (whether some call did not say its count), `withheld` (how many earlier turns a cloud
    model was not shown), `withheld_results` (how many tool results were kept from it), `left_out` (how many
    of the oldest turns did not fit the model's context).

`mead.session.stage`: a turn of a session waits for the one before it, or begins to run.
    measurements: `queued`: the wait before it, zero for one that begins to wait.
    metadata: `session_id`, `owner`, `stage` (`waiting`, `running`), `waited` (whether it was waiting before).

`mead.session.turn`: a turn of a session ended, however it ended, or was refused (T2).
    measurements: `duration`: from its start; `queued`: the wait before it. Both are zero for one that was
    refused.
    metadata: `session_id`, `owner`, `turn` (`None` for one that was refused), `status` (`ok`, `error`),
    `reason`, `stage`: in which stage it ended; `None` for one that was refused.

`mead.provider.call`: a provider call ended.
    measurements: `duration`, `input_tokens`, `output_tokens`, `cached_tokens`, `cache_write_tokens`,
    `reasoning_tokens` (parts of the two before; each `None` when the provider did not say), `first_delta`:
    how long until the first text of a streamed answer, `None` if there was none; `cost_usd`: `None` when
    nobody knows it, or nobody counts.
    metadata: `operation` (`chat`, `embeddings`), `route`, `provider`, `model`, `status`, `reason`,
    `stop_reason` (why the model ended, `None` for a failure), `streamed`, `call` (its number within the turn,
    `None` outside one), `session_id`, `turn`, `owner`.

`mead.mcp.call`: a tool call ended.
    measurements: `duration`. metadata: `tool`, `server` (`None` for a Python function), `effect`, `status`,
    `kind` (how it ended: `ok`, `tool_error`, `timeout`, `server_down` …), `session_id`, `turn`, `owner`.

`mead.mcp.server`: an MCP server's state changed.
    measurements: `restarts`. metadata: `server`, `state`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

ROUTE = "mead.router.route"
STAGE = "mead.session.stage"
TURN = "mead.session.turn"
PROVIDER_CALL = "mead.provider.call"
TOOL_CALL = "mead.mcp.call"
SERVER = "mead.mcp.server"

NAMES = (ROUTE, STAGE, TURN, PROVIDER_CALL, TOOL_CALL, SERVER)


class Event(Struct, frozen=True, gc=False):
    """Something that happened. The catalogue above lists the fields of each `name`."""

    name: str
    measurements: Mapping[str, float | int | None]
    metadata: Mapping[str, str | int | bool | None]
