"""Log lines for operators: as text or as JSON, each with the turn that it belongs to, and without content.

What mead's own lines say holds no text of a conversation (T3). Of other libraries nobody knows that, so of
their lines only the place is written. Of an exception its type and where it was raised are: its message may
quote anything.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from typing import IO, Literal

from mead.telemetry.context import REQUEST_ID, current_turn

OWN_TEXT = ("mead", "uvicorn.error")
"""The loggers whose lines are written with their text."""
_ELSEWHERE = "the text of another library is left out"


class _Formatter(logging.Formatter):
    """What both formats have in common."""

    def format_message(self, record: logging.LogRecord) -> str:
        """What the line says, without an exception."""
        own = any(record.name == name or record.name.startswith(f"{name}.") for name in OWN_TEXT)
        if own:
            return record.getMessage()
        return f"{_ELSEWHERE} ({record.module}:{record.lineno})"

    def fields(self, record: logging.LogRecord) -> dict[str, str | int]:
        """The line's fields, in their order; `session`, `turn` and `request_id` where they are known."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        said: dict[str, str | int] = {
            "time": at.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": self.format_message(record),
        }
        if (turn := current_turn()) is not None:
            said["session"], said["turn"] = turn.session_id, turn.turn
        if (request_id := REQUEST_ID.get()) is not None:
            said["request_id"] = request_id
        if record.exc_info and record.exc_info[0] is not None:
            said["exception"] = record.exc_info[0].__name__
            said["stack"] = "".join(traceback.format_tb(record.exc_info[2])).rstrip()
        return said


class JsonFormatter(_Formatter):
    """One JSON object a line: `time` (UTC), `level`, `logger`, `message`, and where they are known `session`,
    `turn`, `request_id`, `exception` (its type) and `stack`."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(self.fields(record))


class TextFormatter(_Formatter):
    """The same for people: `TIME LEVEL LOGGER [SESSION/TURN REQUEST] MESSAGE`. Further lines are indented, so
    that none can pass for an entry of its own."""

    def format(self, record: logging.LogRecord) -> str:
        said = self.fields(record)
        places = [f"{said['session']}/{said['turn']}"] if "session" in said else []
        places += [str(said["request_id"])] if "request_id" in said else []
        where = f" [{' '.join(places)}]" if places else ""
        line = f"{said['time']} {said['level']} {said['logger']}{where} {said['message']}"
        if "exception" in said:
            line = f"{line}: {said['exception']}\n{said['stack']}"
        return "\n    ".join(line.splitlines())


class _Lines(logging.StreamHandler[IO[str]]):
    """The handler that `configure_logging` has set, so that it can be found again."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the library's name
        """Says that a line could not be written, and not the line, as the library would."""
        with contextlib.suppress(OSError, ValueError, AttributeError):  # there may be no standard error
            sys.stderr.write(f"a log line of {record.name} could not be written\n")


def configure_logging(
    format: Literal["text", "json"] = "text", *, stream: IO[str] | None = None, level: int = logging.INFO
) -> None:
    """Writes the log lines of the whole process to `stream` (standard error), in place of what was set for
    the logger `mead`, and of what `configure_logging` has set before. `level` is for mead's lines; of other
    libraries come warnings.
    """
    handler = _Lines(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    root = logging.getLogger()
    for before in [each for each in root.handlers if isinstance(each, _Lines)]:
        root.removeHandler(before)
    root.addHandler(handler)
    own = logging.getLogger("mead")
    own.handlers.clear()
    own.setLevel(level)
