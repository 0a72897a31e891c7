"""pytest fixtures, there as soon as mead is installed: `mead_scripted` and `mead_runtime`.

Each gives a function that makes the thing, and cleans up after the test. Importing this module is cheap; mead
itself is loaded by the first test that uses one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mead.sessions.sync import SyncRuntime
    from mead.testing.scripted import ScriptedProvider


@pytest.fixture
def mead_scripted() -> Callable[..., ScriptedProvider]:
    """Makes a `ScriptedProvider`: `mead_scripted("Hello.", "Bye.")`."""
    from mead.testing.scripted import ScriptedProvider

    return ScriptedProvider


@pytest.fixture
def mead_runtime() -> Iterator[Callable[..., SyncRuntime]]:
    """Makes a `SyncRuntime` over given providers: `mead_runtime(local=provider, cloud=…, tools=[…])`.

    It is closed when the test is over.
    """
    from mead.router.slots import Slot, Slots
    from mead.sessions.runtime import Runtime
    from mead.sessions.sync import SyncRuntime

    opened: list[SyncRuntime] = []

    def make(*, local: object = None, cloud: object = None, **keywords: object) -> SyncRuntime:
        slots = Slots(
            local=None if local is None else Slot(local),  # type: ignore[arg-type]  # whatever the test gives
            cloud=None if cloud is None else Slot(cloud),  # type: ignore[arg-type]  # as above
        )
        runtime = SyncRuntime(lambda: Runtime(slots=slots, **keywords))  # type: ignore[arg-type]  # as above
        opened.append(runtime)
        return runtime

    yield make
    for runtime in opened:
        runtime.close()
