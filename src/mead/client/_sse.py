"""Reads server-sent events with their ids: what a stream needs to be taken up again."""

from __future__ import annotations

from typing import NamedTuple

MAX_EVENT_BYTES = 64 * 1024 * 1024


class Received(NamedTuple):
    """An event: its number, its name and its data. The number is 0 for one that has none."""

    number: int
    name: str
    data: bytes


class EventReader:
    """Is fed with chunks of any size, and gives the events that they complete. Comments are passed over; an
    event cut off by the end of the stream is dropped."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[Received]:
        """The events that this chunk completes. Raises `ValueError` for one that is far too long."""
        # A carriage return may be one half of a line's end: it waits for what follows.
        text = self._rest + chunk
        held = b"\r" if text.endswith(b"\r") else b""
        text = text[: len(text) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *events, rest = text.split(b"\n\n")
        self._rest = rest + held
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError("an event of the stream is too long")
        found = [_event(event) for event in events]
        return [event for event in found if event is not None]


def _event(text: bytes) -> Received | None:
    number, name, data = 0, "", list[bytes]()
    for line in text.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode(errors="replace")
        elif field == b"id" and value.isdigit() and len(value) <= 9:
            number = int(value)
    return Received(number, name, b"\n".join(data)) if data else None
