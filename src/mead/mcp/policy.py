"""The policy: which tools a turn may see and call (H2, R8). Data, and one pure function over it."""

from __future__ import annotations

from fnmatch import fnmatchcase

from msgspec import Struct

from mead.core.options import TurnOptions


class Verdict(Struct, frozen=True):
    """Whether a tool may be used, and the rule that says so."""

    allowed: bool
    reason: str


class Policy(Struct, frozen=True, kw_only=True):
    """Rules by tool name, with `*` and `?` as wildcards.

    `deny` wins over `allow`; a non-empty `allow` shuts out what it does not name. What passes is then judged
    by its effect class: a tool with side effects needs a turn that opts in with `tools="effect"`.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()

    def judge(self, name: str, *, effect: bool, options: TurnOptions) -> Verdict:
        """May this turn see and call the tool?"""
        if options.tools == "none":
            return Verdict(False, "the turn shows no tools")
        if _matches(name, self.deny):
            return Verdict(False, "denied by the settings")
        if self.allow and not _matches(name, self.allow):
            return Verdict(False, "not on the settings' allow list")
        if effect and options.tools != "effect":
            return Verdict(False, "it has side effects and the turn did not opt in")
        return Verdict(True, "has side effects; the turn opted in" if effect else "only reads")


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
