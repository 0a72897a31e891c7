"""Runs many random conversations, in surroundings that would betray them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from mead.testing.privacy import Watch
from mead.testing.recording import Recorder, RecordingServer
from privacy.conversation import Conversation
from privacy.knowledge import Outcome
from privacy.plan import Plan, make_plan


async def converse(plan: Plan, folder: Path, elsewhere: Recorder) -> Outcome:
    """Runs a plan. `elsewhere` is a place that must not be reached; what it holds already does not count."""
    with Watch() as watch:
        conversation = Conversation(plan, folder, watch, elsewhere)
        try:
            await conversation.run()
        except Exception as error:  # which conversation it was must not get lost
            where = traceback.format_tb(error.__traceback__)[-1].strip().replace("\n", ";")
            conversation.outcome.odd.append(f"conversation {plan.seed}: {error!r}, {where}")
    return conversation.judge()


async def converse_all(seeds: Sequence[int], folder: Path) -> Outcome:
    """The conversations of these seeds, one after the other."""
    outcome, elsewhere = Outcome(), Recorder("elsewhere")
    async with RecordingServer(elsewhere) as server:
        with _proxies(server.url):
            for seed in seeds:
                outcome.add(await converse(make_plan(seed), folder, elsewhere))
    return outcome


def run_batch(seeds: Sequence[int]) -> Outcome:
    """The same, in a loop and a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(converse_all(seeds, Path(folder)))


@contextlib.contextmanager
def _proxies(url: str) -> Iterator[None]:
    """An environment that sends everything through a proxy, which nothing here may use."""
    upper = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
    names = (*upper, *[name.lower() for name in upper])
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update({name: url for name in names if not name.lower().startswith("no_")})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
