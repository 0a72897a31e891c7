"""What a streamed turn yields: previews while it runs, then exactly one `Finished`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from mead.core.reasons import TurnReason
from mead.core.result import Result
from mead.core.scope import Approval, ApprovalRequest
from mead.core.turns import Answer


class Delta(Struct, frozen=True, gc=False):
    """A fragment of the answer's text. A preview: the answer is what `Finished` holds."""

    text: str


class ToolCalled(Struct, frozen=True, gc=False):
    """A tool is about to be run. `effect` says whether it may change something."""

    name: str
    effect: bool


class ToolReturned(Struct, frozen=True, gc=False):
    """A tool call is over."""

    name: str
    is_error: bool


class ApprovalNeeded(Struct, frozen=True):
    """A tool call waits for a person's word. `answer` gives it, from any thread; the first answer counts.

    Comes only in a stream whose turn was submitted with `asks=True`. The turn's clock stands still meanwhile.
    """

    request: ApprovalRequest
    answer: Callable[[Approval], None]


class Finished(Struct, frozen=True):
    """The turn is over: always the last event."""

    result: Result[Answer, TurnReason]


TurnEvent: TypeAlias = Delta | ToolCalled | ToolReturned | ApprovalNeeded | Finished
