"""What really happens, written down by those who do it, and the model and the tool that do it.

The world is a file to which each process appends one line for each deed, at the moment of the deed. A line
that is written survives the process, so the file says what was done in truth, whatever the store says of it.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

import mead
from mead.core.reasons import TurnReason
from mead.router import Slot, Slots
from mead.storage import Store, open_store
from mead.testing import ProviderRequest, ScriptedProvider, Step, calls

Deed: TypeAlias = Literal["submit", "repeat", "call", "tool", "ack", "cut", "fail"]
"""`submit` and `repeat` come before a turn is handed in, `ack` after its answer came back; `call` is a
provider call and `tool` a run of the tool. `cut` is a repeated turn that was interrupted the first time,
`fail` one that failed, which none should."""

LONGEST_PAUSE_S = 0.002
"""How long the model and the tool take at most, before and after their deed."""


class Line(Struct, frozen=True, kw_only=True):
    """A deed of `process`, for the turn that `marker` stands for. `detail` is the call's number, the reason
    of a failure, or the idempotency key of a turn that has one; `-` is none."""

    deed: Deed
    process: str
    session_id: str
    marker: str
    detail: str = "-"


class World:
    """The file, as the process called `process` writes it. `progress` is a pipe that gets a byte a line."""

    def __init__(self, path: Path, process: str, *, progress: int | None = None) -> None:
        self.process = process
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._progress = progress

    def write(self, deed: Deed, session_id: str, marker: str, detail: str = "-") -> None:
        """Writes a deed down: a single write, so that it is there whole or not at all."""
        os.write(self._file, f"{deed} {self.process} {session_id} {marker} {detail}\n".encode())
        if self._progress is not None:
            os.write(self._progress, b".")

    def close(self) -> None:
        os.close(self._file)


def read_world(path: Path) -> list[Line]:
    """All that has happened, in its order."""
    lines = []
    for text in path.read_text(encoding="utf-8").splitlines():
        deed, process, session_id, marker, detail = text.split(" ")
        assert deed in get_args(Deed), text
        lines.append(
            Line(deed=deed, process=process, session_id=session_id, marker=marker, detail=detail)  # type: ignore[arg-type]  # checked above
        )
    return lines


def question(session_id: str, marker: str) -> str:
    """What the person says in the turn of a marker."""
    return f"{session_id} {marker}"


def answer(marker: str) -> str:
    """What the model says at last."""
    return f"It has rung for {marker}."


def runtime(url: str, world: World, chance: random.Random, *, store: Store | None = None) -> mead.Runtime:
    """A runtime over the store, with a local model that asks for the tool in each turn and then answers."""

    async def pause() -> None:
        await asyncio.sleep(chance.random() * LONGEST_PAUSE_S)

    @mead.tool(effect=True)
    async def ring(session_id: str, marker: str) -> str:
        "Rings the bell."
        await pause()
        world.write("tool", session_id, marker)
        await pause()
        return "rung"

    async def act(request: ProviderRequest) -> Step:
        model.requests.clear()  # nobody reads them, and each holds the whole history
        said = [m.content for m in request.messages if m.role == "user" and isinstance(m.content, str)][-1]
        session_id, marker = said.split(" ")
        is_first = request.messages[-1].content == said
        await pause()
        world.write("call", session_id, marker, "1" if is_first else "2")
        await pause()
        return calls("ring", session_id=session_id, marker=marker) if is_first else answer(marker)

    model = ScriptedProvider(otherwise=act)
    return mead.Runtime(
        slots=Slots(local=Slot(model), cloud=None), tools=[ring], store=store or open_store(url)
    )


async def take_turn(
    runtime: mead.Runtime, session_id: str, marker: str, *, key: str | None = None
) -> mead.Result[mead.Answer, TurnReason]:
    """The turn of a marker. Its rows in the ledger bear the marker as a tag."""
    return await runtime.submit_turn(
        session_id,
        question(session_id, marker),
        route="local",
        tools="effect",
        tags=[marker],
        idempotency_key=key,
    )
