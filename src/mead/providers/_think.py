"""Takes a leading `<think>…</think>` out of a text as it streams.

Some local models write their reasoning into the answer between these tags. Only a block that opens the answer
is taken out: further on, the tags are words like any other.
"""

from __future__ import annotations

_OPEN, _CLOSE = "<think>", "</think>"


class ThinkFilter:
    """Fed with fragments, gives back the fragments that are answer text."""

    __slots__ = ("_held", "_state")

    def __init__(self) -> None:
        self._state = "start"
        self._held = ""

    def feed(self, fragment: str) -> str:
        """The answer text that this fragment brings, possibly none yet."""
        if self._state == "answer":
            return fragment
        self._held += fragment
        if self._state == "start":
            text = self._held.lstrip()
            if text.startswith(_OPEN):
                self._state = "thinking"
            elif _OPEN.startswith(text):
                return ""
            else:
                return self._release(self._held)
        _, found, after = self._held.partition(_CLOSE)
        if self._state == "thinking" and found:
            self._held, self._state = after, "gap"
        if self._state == "gap":
            text = self._held.lstrip()
            return self._release(text) if text else ""
        return ""

    def rest(self) -> str:
        """What is still held back when the stream has ended: text that never became a tag."""
        return self._release(self._held) if self._state == "start" else ""

    def _release(self, text: str) -> str:
        self._state, self._held = "answer", ""
        return text


def without_thinking(text: str) -> str:
    """The same for a whole text.

    >>> without_thinking("<think>hm</think>\\n\\nok")
    'ok'
    """
    think_filter = ThinkFilter()
    return think_filter.feed(text) + think_filter.rest()
