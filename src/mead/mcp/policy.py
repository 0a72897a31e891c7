"""The policy: what a tool may change, and whether a turn may see and call it (H2, R8): data, and pure
functions over it."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

import msgspec
from msgspec import Struct

from mead.core.options import TurnOptions
from mead.settings import ArgumentRule, McpServerSettings


class EffectClass(Struct, frozen=True):
    """Whether a tool has side effects, and how that is known."""

    effect: bool
    reason: str


class Verdict(Struct, frozen=True):
    """Whether a tool may be used, and the rule that says so."""

    allowed: bool
    reason: str


class Policy(Struct, frozen=True, kw_only=True):
    """Rules by tool name, with `*` and `?` as wildcards.

    `deny` wins over `allow`; a non-empty `allow` shuts out what it does not name. What passes is then judged
    by its effect class: a tool with side effects needs a turn that opts in with `tools="effect"`. `read` and
    `effect` set the class; without them a tool's own hint counts only where `trusted`. `rules` look at the
    arguments of a call.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    effect: tuple[str, ...] = ()
    trusted: bool = False
    rules: tuple[ArgumentRule, ...] = ()

    @classmethod
    def of(cls, server: McpServerSettings) -> Policy:
        """The policy that a server's settings describe."""
        return cls(
            allow=server.allow,
            deny=server.deny,
            read=server.read,
            effect=server.effect,
            trusted=server.trusted,
            rules=server.rules,
        )

    def classify(self, name: str, *, read_only_hint: bool) -> EffectClass:
        """A tool's effect class. One that nobody vouches for has side effects."""
        if _matches(name, self.effect):
            return EffectClass(True, "the settings say that it has side effects")
        if _matches(name, self.read):
            return EffectClass(False, "the settings say that it only reads")
        if not self.trusted:
            return EffectClass(True, "its server is not trusted, so it counts as having side effects")
        if read_only_hint:
            return EffectClass(False, "its trusted server says that it only reads")
        return EffectClass(True, "its server does not say that it only reads")

    def names(self, name: str) -> Verdict:
        """May the tool be used at all?"""
        if _matches(name, self.deny):
            return Verdict(False, "denied by the settings")
        if self.allow and not _matches(name, self.allow):
            return Verdict(False, "not on the settings' allow list")
        return Verdict(True, "allowed")

    def judge(self, name: str, *, effect: bool, options: TurnOptions) -> Verdict:
        """May this turn see and call the tool?"""
        if options.tools == "none":
            return Verdict(False, "the turn shows no tools")
        verdict = self.names(name)
        if not verdict.allowed:
            return verdict
        if effect and options.tools != "effect":
            return Verdict(False, "it has side effects and the turn did not opt in")
        return Verdict(True, "has side effects; the turn opted in" if effect else "only reads")

    def judge_arguments(self, name: str, arguments: Mapping[str, object]) -> Verdict:
        """May the tool be called with these arguments? The reason names the argument, and quotes no value."""
        for rule in self.rules:
            if not fnmatchcase(name, rule.tool):
                continue
            value = _as_text(arguments.get(rule.argument))
            allowed = not rule.allow or _matches(value, rule.allow)
            if not allowed or _matches(value, rule.deny):
                said = f"; allowed: {', '.join(rule.allow)}" if rule.allow else ""
                return Verdict(False, f"the settings do not allow this {rule.argument}{said}")
        return Verdict(True, "no rule is against the arguments")


def _as_text(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
