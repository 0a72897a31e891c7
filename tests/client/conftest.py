"""What the tests of the client share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

import mead
from mead.serve.tokens import Tokens
from serve.api import DOORS
from serve.served import served

Serve = Callable[..., str]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """`serve(runtime, tokens=None)` gives the address of a server with the native API, which ends with the
    test."""
    monkeypatch.setattr("mead.serve.app._doors", lambda: DOORS)
    with ExitStack() as stack:

        def begin(runtime: mead.Runtime, tokens: Tokens | None = None) -> str:
            return stack.enter_context(served(runtime, tokens))

        yield begin
