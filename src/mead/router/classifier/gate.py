"""The privacy gate: must a text stay on this machine?

Three layers look, and any one decides: rules that check what they find, the person's own lists, and a
classifier of evidence for what is private by its meaning.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Literal

from mead.core.turns import Finding
from mead.router.classifier import evidence
from mead.router.classifier.lists import PrivateLists
from mead.router.classifier.normalise import Plain, normalise
from mead.router.classifier.patterns import find_plain, mask
from mead.router.classifier.seams import SEAM_CHARS, find_at_seam

EVIDENCE_MASK = "•••"
_REMEMBERED_SEAMS = 4_096


class PrivacyGate:
    """Finds what is private in texts.

    `profile` chooses how much evidence is enough: `balanced` seldom keeps an ordinary prompt from the cloud,
    `strict` would rather keep one too many. `words`, `paths`, `patterns` and `prefixes` are the person's own
    (see `PrivateLists`); a pattern that is no regular expression raises a `ValueError` that names it.
    `classifier` replaces the evidence classifier that mead brings.
    """

    def __init__(
        self,
        *,
        profile: Literal["balanced", "strict"] = "balanced",
        words: Sequence[str] = (),
        paths: Sequence[str] = (),
        patterns: Sequence[str] = (),
        prefixes: Sequence[str] = (),
        classifier: evidence.Evidence | None = None,
    ) -> None:
        if profile not in ("balanced", "strict"):
            raise ValueError(f"the profile must be 'balanced' or 'strict', not {profile!r}")
        self._lists = PrivateLists(words=words, paths=paths, patterns=patterns, prefixes=prefixes)
        self._profile = profile
        self._own_classifier = classifier
        self._seams: OrderedDict[bytes, tuple[Finding, ...]] = OrderedDict()

    @property
    def version(self) -> str:
        """A short hash of the classifier's weights; `custom` for weights that mead does not bring."""
        return "custom" if self._own_classifier else evidence.load()[1]

    @property
    def classifier(self) -> evidence.Evidence:
        """The evidence classifier."""
        # The weights are read where they are first needed, not where a gate is made.
        return self._own_classifier or evidence.load()[0]

    def scan(self, text: str) -> tuple[Finding, ...]:
        """What is private in a text, in its order; offsets are the text's own, and nothing of it is quoted.

        Where the rules or lists find something, the evidence is not asked: the text is private already.
        Evidence is of the kind `evidence` and covers the window of the text that it is of.
        """
        plain = normalise(text)
        certain = self._certain(text, plain)
        if certain:
            return certain
        classifier = self.classifier
        least = classifier.thresholds[self._profile]
        return tuple(
            [
                Finding("evidence", *plain.span(window.start, window.end), EVIDENCE_MASK)
                for window in classifier.judge(plain.text)
                if window.probability >= least
            ]
        )

    def probability(self, text: str) -> float:
        """How likely the text is private: 1 where a rule or list decides, else its likeliest window's."""
        plain = normalise(text)
        if self._certain(text, plain):
            return 1.0
        return max([window.probability for window in self.classifier.judge(plain.text)], default=0.0)

    def scan_joined(self, texts: Sequence[str]) -> tuple[Finding, ...]:
        """What is private only where texts meet: a value that begins in one and goes on in the next.

        Looks at no more than the ends of the texts, each seam once as long as it is remembered, so that it is
        cheap to ask again for a conversation that grew; what stands within one text is for `scan`. A text
        between the two (an answer) may part them. Offsets are those of the later text. Not found: a value in
        three parts or more, and parts that stand deep inside their texts.
        """
        found: list[Finding] = []
        for place in range(1, len(texts)):
            found += self._seam(texts[place - 1], texts[place])
            if place >= 2:
                found += self._seam(texts[place - 2], texts[place])
        return tuple(dict.fromkeys(found))

    def _seam(self, earlier: str, later: str) -> tuple[Finding, ...]:
        tail, head = earlier[-SEAM_CHARS:], later[:SEAM_CHARS]
        # Only a hash is kept of what may be private.
        digest = hashlib.blake2b(tail.encode("utf-8", "surrogatepass"), digest_size=16)
        digest.update(b"\xff" + head.encode("utf-8", "surrogatepass"))
        key = digest.digest()
        found = self._seams.get(key)
        if found is None:
            found = self._seams[key] = find_at_seam(tail, head)
            if len(self._seams) > _REMEMBERED_SEAMS:
                self._seams.popitem(last=False)
        return found

    def _certain(self, text: str, plain: Plain) -> tuple[Finding, ...]:
        found = find_plain(text, plain)
        own = []
        for hit in self._lists.hits(plain.text):
            start, end = plain.span(hit.start, hit.end)
            own.append(Finding(hit.kind, start, end, mask(text[start:end])))
        return tuple(sorted((*found, *own), key=lambda finding: finding.start)) if own else found
