"""What the tests of the HTTP doors share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pytest

import mead
from mead.serve import app as app_module
from mead.serve.app import Door
from mead.serve.tokens import Tokens
from serve.served import Serving, close_clients, served


@pytest.fixture(autouse=True)
def no_client_is_left() -> Iterator[None]:
    """Closes the clients that a test has made."""
    yield
    close_clients()


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """Serves runtimes until the test ends; see `Serving`."""
    with ExitStack() as stack:

        def serve(
            runtime: mead.Runtime, tokens: Tokens | None = None, *, doors: Sequence[Door] | None = None
        ) -> str:
            if doors is not None:
                monkeypatch.setattr(app_module, "_doors", lambda: doors)
            return stack.enter_context(served(runtime, tokens))

        yield serve
