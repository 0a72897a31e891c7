"""The rows that the evidence classifier learns from, and which of them belong together.

Rows of one group never stand on both sides of a cross-validation: a group is a template, so that what is
measured is how well unseen sentences are judged, not unseen names in known ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mead.router.classifier.evidence import windows
from mead.router.classifier.normalise import normalise
from mead.router.classifier.patterns import find
from training.privacy_sentences import FILLERS, PAIRS, PUBLIC, REQUESTS

Rows = Mapping[str, Sequence[Mapping[str, object]]]

# What a private value is called where it is not told.
_NOUNS = {
    "card": "my card", "CREDIT_CARD": "my card", "address": "an address", "ADDRESS": "an address",
    "STREET_ADDRESS": "an address", "phone": "a number", "PHONE_NUMBER": "a number", "email": "an email",
    "EMAIL_ADDRESS": "an email", "ssn": "a number", "US_SSN": "a number",
    "iban": "an account", "IBAN_CODE": "an account",
    "ip_address": "a host", "IP_ADDRESS": "a host", "birth_date": "long ago", "api_key": "a key",
    "password": "a password",
    "private_key": "a key",
}  # fmt: skip
_IDENTIFIERS = frozenset(
    [
        "CREDIT_CARD",
        "ADDRESS",
        "STREET_ADDRESS",
        "PHONE_NUMBER",
        "EMAIL_ADDRESS",
        "US_SSN",
        "IBAN_CODE",
        "IP_ADDRESS",
        "US_DRIVER_LICENSE",
    ]
)
# Words that make a sentence one's own, and those that make it anybody's.
_OWN_WORDS = {
    "our": "a", "internal": "public", "proprietary": "open source", "private": "public",
    "confidential": "published", "customer": "sample", "customers": "examples", "employee": "example",
    "unpublished": "published", "company": "textbook",
    "我们公司": "某个项目", "我们": "一个", "内部": "公开",
    "专有": "开源", "私有": "公开", "客户": "示例", "员工": "示例",
    "未公开": "公开", "未发表": "已发表",
}  # fmt: skip
_OWN = re.compile(r"(?i)\b(?:" + "|".join([w for w in _OWN_WORDS if w.isascii()]) + r")\b|"
                  + "|".join([w for w in _OWN_WORDS if not w.isascii()]))  # fmt: skip


FOUND_WEIGHT, CONTEXT_WEIGHT, LESS_WEIGHT = 0.02, 2.0, 0.5
WRITTEN_WEIGHT, WRAPPED_WEIGHT = 2.0, 0.5


class Example(NamedTuple):
    """A window of text to learn from. `weight` is how much it counts."""

    text: str
    private: bool
    group: str
    weight: float


def template_of(row: Mapping[str, object]) -> str:
    """A row's text with its spans masked, in small letters."""
    text = str(row["prompt"])
    spans = row.get("spans")
    for span in sorted(spans if isinstance(spans, list) else [], key=lambda span: -int(span["start"])):
        text = f"{text[: span['start']]}<{span['type']}>{text[span['end'] :]}"
    # ADDRESS, STREET_ADDRESS, LOCATION and GPE fill the same place of a template.
    text = re.sub(r"<(?:STREET_ADDRESS|LOCATION|GPE|ADDRESS)>", "<PLACE>", text)
    return re.sub(r"\W*<PLACE>[\W\d]*|\s+", " ", text).lower().strip()


def wrappers(texts: Sequence[str]) -> dict[str, str]:
    """For each text the sentence around its value: the longest beginning or end that many texts share."""
    starts = Counter([text[:12] for text in texts])
    ends = Counter([text[-12:] for text in texts])
    found = {}
    for text in texts:
        start, end = text[:12], text[-12:]
        named = f"^{start}" if starts[start] >= max(8, ends[end]) else f"{end}$" if ends[end] >= 8 else text
        found[text] = named
    return found


def groups(rows: Rows) -> dict[str, str]:
    """Each row's group, by the row's id."""
    found = {}
    for name, of_set in rows.items():
        around = wrappers([str(row["prompt"]) for row in of_set]) if name == "synthetic" else {}
        for row in of_set:
            key = around.get(str(row["prompt"])) or (template_of(row) if row.get("spans") else str(row["id"]))
            found[str(row["id"])] = f"{name}:{key}"
    return found


def texts_of(row: Mapping[str, object]) -> list[str]:
    """A row's messages, or its prompt."""
    messages = row.get("messages")
    if isinstance(messages, list) and messages:
        return [str(message["content"]) for message in messages]
    return [str(row["prompt"])]


def examples(rows: Rows) -> Iterator[Example]:
    """What there is to learn of the rows: they themselves, and their counterparts with nothing private."""
    of = groups(rows)
    for name, of_set in rows.items():
        for row in of_set:
            if row.get("private") in (0, 1):
                yield from _of_row(name, row, of[str(row["id"])])


def _of_row(name: str, row: Mapping[str, object], group: str) -> Iterator[Example]:
    private = row["private"] == 1
    for original in texts_of(row):
        text = normalise(original).text
        parts = list(windows(text))
        found = find(text)
        if not private:
            for start, end in parts:
                yield Example(text[start:end], False, group, 1.0)
            continue
        spans = [*_spans(row), *[(finding.start, finding.end, finding.kind) for finding in found]]
        for start, end in parts:
            if len(parts) == 1 or any(start <= begin < end for begin, _, _ in spans):
                # A rule finds these already; of their words less is to be learned.
                yield Example(text[start:end], True, group, FOUND_WEIGHT if found else CONTEXT_WEIGHT)
        said_less = _without(text, spans) if spans else None
        if said_less is None and name != "synthetic":
            said_less = _OWN.sub(lambda match: _OWN_WORDS[match.group().lower()], text)
        if said_less is not None and said_less != text and len(parts) == 1:
            yield Example(said_less, False, group, LESS_WEIGHT)


def _spans(row: Mapping[str, object]) -> list[tuple[int, int, str]]:
    spans = row.get("spans")
    listed = spans if isinstance(spans, list) else []
    return [(int(s["start"]), int(s["end"]), str(s["type"])) for s in listed if s["type"] in _IDENTIFIERS]


def _without(text: str, spans: Sequence[tuple[int, int, str]]) -> str:
    """The text with what the spans cover called by its name only."""
    result, done = "", 0
    for start, end, kind in sorted(spans):
        if start >= done:
            result += text[done:start] + _NOUNS.get(kind, "something")
        done = max(done, end)
    return result + text[done:]


def written() -> Iterator[Example]:
    """The sentences written for this, each filled a few times, bare and inside a request. They belong to no
    row's group."""
    for number, (private, public) in enumerate(PAIRS):
        for is_private, sentence in ((True, private), (False, public)):
            yield from _wrapped(_filled(sentence), is_private, f"written:{number}")
    for number, public in enumerate(PUBLIC):
        yield from _wrapped(_filled(public), False, f"written public:{number}")


def _wrapped(sentences: Sequence[str], private: bool, group: str) -> Iterator[Example]:
    # A sentence counts the same however often it is filled, or private ones, which name more, would outweigh.
    weight = WRITTEN_WEIGHT / len(sentences)
    for place, sentence in enumerate(sentences):
        yield Example(sentence, private, group, weight)
        request = REQUESTS[(place * 7 + len(sentence)) % len(REQUESTS)]
        yield Example(request.format(sentence), private, group, weight * WRAPPED_WEIGHT)


def _filled(sentence: str) -> list[str]:
    """The sentence filled in up to six ways, without chance."""
    fields = re.findall(r"\{(\w+)\}", sentence)
    times = max([min(6, len(FILLERS[field])) for field in fields], default=1)
    result = []
    for turn in range(times):
        text = sentence
        for place, field in enumerate(fields):
            values = FILLERS[field]
            text = text.replace(
                f"{{{field}}}", values[(turn * 3 + place * 5 + len(sentence)) % len(values)], 1
            )
        result.append(text)
    return list(dict.fromkeys(result))
