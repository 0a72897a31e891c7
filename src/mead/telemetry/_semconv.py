"""The names of OpenTelemetry's conventions for generative AI, and the values that mead's words have in them.

The conventions are still in development and their Python constants move, so the names stand here; a test
compares them with the installed package `opentelemetry-semantic-conventions`.
"""

from __future__ import annotations

CONVERSATION_ID = "gen_ai.conversation.id"
ERROR_TYPE = "error.type"
FINISH_REASONS = "gen_ai.response.finish_reasons"
OPERATION_NAME = "gen_ai.operation.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_STREAM = "gen_ai.request.stream"
TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
TOKEN_TYPE = "gen_ai.token.type"
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
USAGE_CACHE_CREATION = "gen_ai.usage.cache_creation.input_tokens"
USAGE_CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
USAGE_INPUT = "gen_ai.usage.input_tokens"
USAGE_OUTPUT = "gen_ai.usage.output_tokens"
USAGE_REASONING = "gen_ai.usage.reasoning.output_tokens"

EXECUTE_TOOL, INVOKE_AGENT = "execute_tool", "invoke_agent"

OPERATION_DURATION = "gen_ai.client.operation.duration"
OPERATION_TIME_TO_FIRST_CHUNK = "gen_ai.client.operation.time_to_first_chunk"
TOKEN_USAGE = "gen_ai.client.token.usage"

# The boundaries that the conventions name, in seconds and in tokens.
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
TOKENS = tuple([4**power for power in range(14)])

FINISHED = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_call"}
"""mead's stop reasons as the conventions call them."""
