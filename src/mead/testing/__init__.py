"""For tests of programs that use mead: a scripted provider, a server that misbehaves, pytest fixtures, and
the suites that any provider (`mead.testing.providers`) and any store (`mead.testing.stores`) must pass."""

from mead.testing.scripted import ProviderRequest, ScriptedProvider, Step, calls, quote_everything
from mead.testing.server import Answer, FakeServer, Received, ndjson, sse

__all__ = [
    "Answer",
    "FakeServer",
    "ProviderRequest",
    "Received",
    "ScriptedProvider",
    "Step",
    "calls",
    "ndjson",
    "quote_everything",
    "sse",
]
