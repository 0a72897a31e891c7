"""The built-in classifier: what is private stays local, then what the local model lacks, then how hard it is.

The order is fixed: privacy decides alone; then which slots there are; then a marker for the cloud model; then
what the local model cannot do; and only then the difficulty. What it cannot judge stays with the local model.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Sequence, Set
from pathlib import Path
from typing import NamedTuple

from mead.core.options import Route
from mead.core.turns import Cause, Finding, Verdict
from mead.router.classifier import ClassifierInput
from mead.router.classifier.difficulty import Difficulty, DifficultyModel
from mead.router.classifier.gate import PrivacyGate
from mead.router.classifier.normalise import PARAGRAPH, normalise
from mead.router.classifier.traffic import Traffic

DEFAULT_CLOUD_SHARE = 0.3
REMEMBERED_SCANS = 8_192
"""How many texts a classifier remembers having scanned, by their hash."""

_HARDER = "It looks harder than {:.0%} of ordinary turns"
_CLOUD_MARKER = re.compile(r"\s*\[?cloud\]?\s*[:\]]", re.IGNORECASE)
_PRIVATE_MARKER = re.compile(
    rf"{PARAGRAPH}\[?(local|private|confidential)\]?[^\S\r\n]*[:\]](?P<rest>[^\r\n]*)", re.IGNORECASE
)


class _Scan(NamedTuple):
    """What a text holds: what is private in it, and the markers that say that it is."""

    findings: tuple[Finding, ...]
    markers: tuple[str, ...]


class AutoClassifier:
    """Judges by the privacy gate and the difficulty score.

    `gate` finds what is private. Of the turns that are not, about the hardest `cloud_share` (0 to 1) go to
    the cloud model: of ordinary turns at first, then more and more of those that it is told of (`observe`).
    `traffic_file` keeps what it has learned of them, which is counts of scores; it learns nothing without.
    """

    def __init__(
        self,
        *,
        gate: PrivacyGate | None = None,
        cloud_share: float = DEFAULT_CLOUD_SHARE,
        traffic_file: Path | None = None,
    ) -> None:
        if not 0 <= cloud_share <= 1:
            raise ValueError(f"cloud_share must be between 0 and 1, not {cloud_share}")
        self._gate = gate if gate is not None else PrivacyGate()
        self._cloud_share = cloud_share
        self._traffic_file = traffic_file
        self._traffic: Traffic | None = None
        self._scans: OrderedDict[bytes, _Scan] = OrderedDict()

    def classify(self, turn: ClassifierInput) -> Verdict:
        """Privacy first; the rest in the order that the module says."""
        text = turn.question
        scans = [self._scanned(each) for each in turn.texts]
        markers = {*_private_markers(text), *[marker for scan in scans for marker in scan.markers]}
        findings = (*[found for scan in scans for found in scan.findings], *turn.known_private)
        findings = (*findings, *self._gate.scan_joined((*turn.earlier, *(turn.said or (text,)))))
        causes = _private_causes(findings, markers, turn.unreadable)
        if causes:
            return Verdict(route="local", private=True, causes=causes, findings=findings)
        if turn.is_forced:
            return Verdict(route="cloud", private=False, causes=())
        given = _given(turn)
        if given is not None:
            route, cause = given
            return Verdict(route=route, private=False, causes=(cause,))
        return self._by_difficulty(DifficultyModel.load().judge(text, tools=turn.tools))

    def scan(self, text: str) -> Sequence[Finding]:
        """What is private in a text. Each text is looked through once, as long as it is remembered."""
        return self._scanned(text).findings

    def _scanned(self, text: str) -> _Scan:
        key = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest()
        found = self._scans.get(key)
        if found is None:
            found = self._scans[key] = _Scan(self._gate.scan(text), _private_markers(text))
            if len(self._scans) > REMEMBERED_SCANS:
                self._scans.popitem(last=False)
        else:
            self._scans.move_to_end(key)
        return found

    def observe(self, verdict: Verdict) -> None:
        """Counts the score of a turn that was decided."""
        if verdict.score is not None and self._traffic_file is not None:
            self._known_traffic().note(verdict.score)

    async def aclose(self) -> None:
        """Writes down what was learned."""
        if self._traffic is not None:
            self._traffic.save()

    def _by_difficulty(self, found: Difficulty) -> Verdict:
        threshold = self._threshold()
        route: Route = "local"
        if found.uncertain:
            cause = Cause("uncertain", "How hard it is cannot be told from this text, so it stays local.")
        elif self._cloud_share == 0:
            cause = Cause("difficulty", f"{_HARDER.format(found.score)}, and none go to the cloud model.")
        elif found.score >= threshold:
            route = "cloud"
            said = f"{_HARDER.format(found.score)}; from {threshold:.0%} on the cloud model is asked."
            cause = Cause("difficulty", said)
        else:
            cause = Cause("difficulty", f"{_HARDER.format(found.score)}, which is less than {threshold:.0%}.")
        return Verdict(
            route=route,
            private=False,
            causes=(cause,),
            score=found.score,
            threshold=threshold,
            contributions=found.contributions,
            version=DifficultyModel.load().version,
        )

    def _threshold(self) -> float:
        if self._traffic_file is None:
            return 1 - self._cloud_share
        return self._known_traffic().threshold(self._cloud_share)

    def _known_traffic(self) -> Traffic:
        if self._traffic is None:
            self._traffic = Traffic(DifficultyModel.load().version, self._traffic_file)
        return self._traffic


def _given(turn: ClassifierInput) -> tuple[Route, Cause] | None:
    """Where a turn goes for which nobody needs to know how hard it is; `None` for every other."""
    if not turn.has_cloud:
        return "local", Cause("only_local", "No cloud model is configured.")
    if not turn.has_local:
        return "cloud", Cause("only_cloud", "No local model is configured, and nothing private was found.")
    if _CLOUD_MARKER.match(normalise(turn.question).text):
        return "cloud", Cause("marker", "The text begins with a marker for the cloud model.")
    return None if turn.lacks is None else ("cloud", turn.lacks)


def _private_markers(text: str) -> tuple[str, ...]:
    """The markers at the start of a text and of its paragraphs: clients put several texts into one. In the
    midst of a text one with nothing after it on its line is none: in C++ it begins a part of a class."""
    found = [
        match[1].lower()
        for match in _PRIVATE_MARKER.finditer(normalise(text).text)
        if match.start() == 0 or match["rest"].strip()
    ]
    return tuple(dict.fromkeys(found))


def _private_causes(findings: Sequence[Finding], markers: Set[str], unreadable: int) -> tuple[Cause, ...]:
    causes = [
        Cause("marker", f"The text, or a paragraph of it, begins with the marker {marker!r}.")
        for marker in ("local", "private", "confidential")
        if marker in markers
    ]
    kinds = dict.fromkeys([finding.kind for finding in findings])
    causes += [
        Cause("private", _SAID.get(kind, f"The text holds something of the kind {kind!r}.")) for kind in kinds
    ]
    if unreadable:
        causes.append(Cause("unreadable", "An attachment cannot be looked into, so it counts as private."))
    return tuple(causes)


_SAID = {
    "evidence": "The text reads like something private.",
    "local_text": "The text holds what only the local model has seen.",
}
