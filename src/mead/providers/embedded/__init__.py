"""The embedded model: a small model in a child process, with nothing to set up (extra `local`)."""

from mead.providers.embedded.provider import EmbeddedProvider

__all__ = ["EmbeddedProvider"]
