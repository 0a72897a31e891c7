"""The HTTP doors: OpenAI and Anthropic compatible, native, and an MCP server. Needs the extra `serve`."""
