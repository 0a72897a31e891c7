"""Work that a cancel does not break off."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any


async def unbroken(work: Coroutine[Any, Any, None]) -> None:
    """Lets `work` end although its caller is being cancelled meanwhile; the cancel comes through after it."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            with contextlib.suppress(Exception):
                await asyncio.wait([task])
        raise
