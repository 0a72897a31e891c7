"""The rule classifier: what is marked or looks private stays local, the rest goes by how hard it seems.

The difficulty score is a rough guess from the surface of the text (length, code, words that ask for
reasoning) and says so; it is enough to keep small talk local and long technical work in the cloud.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mead.core.options import Route
from mead.core.turns import Cause, Finding, Verdict
from mead.router.classifier import ClassifierInput
from mead.router.classifier.patterns import find, mask

DEFAULT_THRESHOLD = 0.5

_MARKER = re.compile(r"\s*(?:\[?(local|private|confidential|cloud)\]?\s*[:\]])", re.IGNORECASE)
_REASONING = re.compile(
    r"(?i)\b(?:prove|derive|analy[sz]e|design|architect|optimi[sz]e|refactor|debug|implement|algorithm|theorem"
    r"|compare|evaluate|step[- ]by[- ]step|trade-?offs?|explain why|complexity|proof|strategy|plan for)\b"
)
_CODE = re.compile(
    r"```|\bdef \w+\(|\bclass \w+|#include|\bSELECT\b.{1,200}?\bFROM\b|=>|\bfn \w+\(|Traceback \(most"
)
_FULL_LENGTH_CHARS = 2000
# How much of a text is looked at to judge how hard it is. What is private is looked for in all of it.
_REASONING_CHARS, _CODE_CHARS = 8_000, 32_000


class RuleClassifier:
    """Judges by rules that a person can read.

    `private_words` are the person's own: a text that holds one of them, whatever the case of its letters, is
    private. Turns that score at least `threshold` (0 to 1) are for the cloud model.
    """

    def __init__(self, *, private_words: Sequence[str] = (), threshold: float = DEFAULT_THRESHOLD) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold must be between 0 and 1, not {threshold}")
        self._threshold = threshold
        words = [re.escape(word) for word in private_words if word.strip()]
        self._private_words = re.compile("|".join(words), re.IGNORECASE) if words else None

    def classify(self, turn: ClassifierInput) -> Verdict:
        """Privacy first; then which slots there are; then difficulty."""
        text = turn.texts[0] if turn.texts else ""
        score = difficulty(text)
        findings = tuple([finding for text in turn.texts for finding in self.scan(text)])
        marker = _marker(text)
        causes = _private_causes(findings, marker, turn.unreadable)
        if causes:
            return Verdict(route="local", private=True, score=score, causes=causes, findings=findings)
        route, cause = self._by_difficulty(score, marker, turn)
        return Verdict(route=route, private=False, score=score, causes=(cause,))

    def scan(self, text: str) -> Sequence[Finding]:
        """Secrets, identifiers and the person's private words in a text."""
        found = find(text)
        if self._private_words is not None:
            own = [
                Finding("private_word", match.start(), match.end(), mask(match.group()))
                for match in self._private_words.finditer(text)
            ]
            return (*found, *own)
        return found

    def _by_difficulty(self, score: float, marker: str | None, turn: ClassifierInput) -> tuple[Route, Cause]:
        if not turn.has_cloud:
            return "local", Cause("only_local", "No cloud model is configured.")
        if not turn.has_local:
            return "cloud", Cause(
                "only_cloud", "No local model is configured, and nothing private was found."
            )
        if marker == "cloud":
            return "cloud", Cause("marker", "The text begins with a marker for the cloud model.")
        if score >= self._threshold:
            said = f"Difficulty {score:.2f} reaches the threshold {self._threshold:.2f}."
            return "cloud", Cause("difficulty", said)
        return "local", Cause(
            "difficulty", f"Difficulty {score:.2f} is under the threshold {self._threshold:.2f}."
        )


def _marker(text: str) -> str | None:
    match = _MARKER.match(text)
    return match.group(1).lower() if match else None


def _private_causes(findings: Sequence[Finding], marker: str | None, unreadable: int) -> tuple[Cause, ...]:
    causes = []
    if marker in ("local", "private", "confidential"):
        causes.append(Cause("marker", f"The text begins with the marker {marker!r}."))
    kinds = dict.fromkeys([finding.kind for finding in findings])
    causes += [Cause("private", f"The text holds something of the kind {kind!r}.") for kind in kinds]
    if unreadable:
        causes.append(Cause("unreadable", "An attachment cannot be looked into, so it counts as private."))
    return tuple(causes)


def difficulty(text: str) -> float:
    """How hard the text seems for a small model: 0 easy, 1 hard. A guess from its surface."""
    length = min(len(text) / _FULL_LENGTH_CHARS, 1.0)
    reasoning = min(len(_REASONING.findall(text, 0, _REASONING_CHARS)), 3) / 3
    code = 1.0 if _CODE.search(text, 0, _CODE_CHARS) else 0.0
    questions = min(text.count("?"), 3) / 3
    return min(1.0, 0.45 * length + 0.35 * reasoning + 0.3 * code + 0.1 * questions)
