"""Cuts a byte stream into messages: server-sent events (WHATWG HTML standard, 9.2) and lines of JSON.

Both are fed in chunks of any size, and give the same messages however the bytes were cut. Only the data of an
event is given on; what a provider names an event by is inside its data as well.
"""

from __future__ import annotations

from mead.providers.http import AnswerTooLongError

MAX_MESSAGE_BYTES = 16 * 1024 * 1024


class SseParser:
    """Server-sent events. Lines end in LF, CRLF or CR; the lines of one event's data are joined by LF;
    comments and unknown fields are passed over; an event cut off by the end of the stream is dropped.

    `is_other` says that the body is no event stream: it begins like a JSON object or a page. Then `rest` is
    all of it.
    """

    __slots__ = ("_skip_lf", "_started", "is_other", "rest")

    def __init__(self) -> None:
        self.rest = b""
        self.is_other = False
        self._skip_lf = False
        self._started = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of each event that this chunk completes."""
        if not self._started:
            chunk = self._without_bom(chunk)
        if self._skip_lf or b"\r" in chunk:
            chunk = self._with_lf_only(chunk)
        events = [self.rest + chunk] if self.is_other else (self.rest + chunk).split(b"\n\n")
        self.rest = events.pop()
        if len(self.rest) > MAX_MESSAGE_BYTES:
            raise AnswerTooLongError
        found = []
        for event in events:
            data = event[6:] if event[:6] == b"data: " and b"\n" not in event else _data_of(event)
            if data is not None:
                found.append(data)
        return found

    def _without_bom(self, chunk: bytes) -> bytes:
        chunk = self.rest + chunk
        self.rest = b""
        if len(chunk) < 3 and b"\xef\xbb\xbf".startswith(chunk):
            self.rest = chunk
            return b""
        chunk = chunk.removeprefix(b"\xef\xbb\xbf")
        self._started = bool(chunk.strip())
        self.is_other = chunk.lstrip()[:1] in (b"{", b"<")
        return chunk

    def _with_lf_only(self, chunk: bytes) -> bytes:
        if self._skip_lf and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._skip_lf = False
        if chunk.endswith(b"\r"):
            self._skip_lf = True
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _data_of(event: bytes) -> bytes | None:
    """The joined data lines of an event, `None` if it has none."""
    lines = []
    for line in event.split(b"\n"):
        if line[:5] == b"data:":
            lines.append(line[6:] if line[5:6] == b" " else line[5:])
        elif line == b"data":
            lines.append(b"")
    return b"\n".join(lines) if lines else None


class NdjsonParser:
    """Newline-delimited JSON. Blank lines are passed over; `rest` is what stands after the last newline."""

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Each line that this chunk completes."""
        lines = (self.rest + chunk).split(b"\n")
        self.rest = lines.pop()
        if len(self.rest) > MAX_MESSAGE_BYTES:
            raise AnswerTooLongError
        return [line for line in lines if line.strip()]
