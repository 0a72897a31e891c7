"""What of a random conversation is private for certain, found out without asking mead.

Every canary that is planted is private until something says that it is not. A canary may be allowed to reach
the cloud for as long as one turn lasts: that is a turn which a person sent there in spite of its content.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from mead.core.turns import Label
from mead.testing.canaries import Canaries, Canary
from mead.testing.recording import Leak, Recorder


class Entry(Struct, frozen=True, kw_only=True):
    """A turn of the history. `is_private` for certain, or by mead's own `label`; `control` is a canary in its
    text that a cloud model must be shown from now on."""

    number: int
    is_private: bool
    label: Label
    control: Canary | None = None


class Window(Struct, frozen=True):
    """What a recorder got while something went on: the pieces from `first` to before `last`."""

    first: int
    last: int


class Knowledge:
    """The canaries, and who may see them."""

    def __init__(self, seed: int) -> None:
        self._canaries = Canaries(seed)
        self._free: set[Canary] = set()
        self._allowed: dict[Canary, list[Window]] = {}

    @property
    def planted(self) -> list[Canary]:
        """All of them."""
        return self._canaries.made

    @property
    def private(self) -> list[Canary]:
        """Those that no cloud model may ever see, but for what was allowed."""
        return [canary for canary in self.planted if canary not in self._free]

    def plant(self, kind: str) -> Canary:
        """Makes one. It is private until it is freed."""
        return self._canaries.make(kind)

    def free(self, canaries: Iterable[Canary]) -> None:
        """The cloud may see these from now on."""
        self._free.update(canaries)

    def allow(self, canaries: Iterable[Canary], window: Window) -> None:
        """The cloud may see these in this window, and never again."""
        for canary in canaries:
            self._allowed.setdefault(canary, []).append(window)

    def leaks_to(self, cloud: Recorder) -> list[Leak]:
        """What reached the cloud and should not have."""
        private = self.private
        always = [canary for canary in private if canary not in self._allowed]
        leaks = cloud.find(always)
        for canary, windows in self._allowed.items():
            if canary in self._free:
                continue
            edges = [0, *[edge for window in windows for edge in (window.first, window.last)], None]
            for first, last in zip(edges[::2], edges[1::2], strict=True):
                leaks += cloud.find([canary], first=first or 0, last=last)
        return leaks


class Outcome(Struct, kw_only=True):
    """What became of some conversations: all but the upper part should be empty."""

    conversations: int = 0
    turns: Counter[str] = field(default_factory=Counter)
    steps: Counter[str] = field(default_factory=Counter)
    cloud_requests: int = 0
    local_requests: int = 0
    canaries: int = 0
    private: int = 0
    private_shown: int = 0
    controls_reached: int = 0
    escalated: int = 0

    leaks: list[str] = []
    controls_missing: list[str] = []
    wrong_labels: list[str] = []
    odd: list[str] = []

    def add(self, other: Outcome) -> None:
        """Takes over what another one counted."""
        for name in self.__struct_fields__:
            value, more = getattr(self, name), getattr(other, name)
            setattr(self, name, value + more)

    @property
    def faults(self) -> dict[str, list[str]]:
        """What was wrong, by its kind; empty if nothing was."""
        return {name: found for name in FAULTS if (found := getattr(self, name))}


FAULTS = ("leaks", "controls_missing", "wrong_labels", "odd")
