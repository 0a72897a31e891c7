"""Judges a local answer: whether the cloud model should be asked too. Pure functions.

Difficulty shows in the attempt: an answer that breaks the shape that was asked for, refuses, was cut off, or
comes out differently the second time is likely to be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from mead.core.options import Options
from mead.core.turns import Answer, Cause
from mead.router.schema import fits
from mead.settings.values import EscalationTrigger

AGREEMENT = 0.5
"""Which part of their words two answers must share to agree."""
_LOOKED_AT_CHARS = 300

_CAUSES: Mapping[EscalationTrigger, Cause] = {
    "schema": Cause("escalated_schema", "The local answer does not have the format that was asked for."),
    "refusal": Cause("escalated_refusal", "The local model refused, or had no answer."),
    "cut_off": Cause("escalated_cut_off", "The local answer was cut off by its limit."),
    "disagreement": Cause("escalated_disagreement", "Two local answers do not agree."),
}
_REFUSAL = re.compile(
    r"(?i)\bI(?:['’]m| am)? (?:sorry|afraid)\b.{0,60}\b(?:can(?:no|['’])t|unable|don['’]t|do not)\b"
    r"|\bI (?:can(?:no|['’])t|am (?:not able|unable) to|don['’]t (?:know|have (?:access|information|enough))"
    r"|do not (?:know|have (?:access|information|enough)))\b"
    r"|\bas an? (?:AI|language model)\b|\bich kann (?:das|dir|ihnen)? ?(?:leider )?nicht\b"
    r"|\bje (?:ne peux pas|suis désolé)\b|\bno puedo\b|抱歉|无法"
)
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"-?\d+(?:[.,]\d+)*")


def why_escalate(answer: Answer, options: Options, when: Sequence[EscalationTrigger]) -> Cause | None:
    """Why the answer is not good enough, as far as the answer alone shows; `None` if nothing speaks
    against it."""
    if "cut_off" in when and answer.stop_reason == "max_tokens":
        return _CAUSES["cut_off"]
    if "refusal" in when and refuses(answer.text):
        return _CAUSES["refusal"]
    if "schema" in when and options.response_format is not None:
        schema = options.response_format.schema
        if not has_format(answer.text, schema):
            return _CAUSES["schema"]
    return None


def with_warning(answer: Answer, text: str) -> Answer:
    """The answer with something more for the person to know."""
    return msgspec.structs.replace(answer, warnings=(*answer.warnings, text))


def why_disagreement(first: str, second: str) -> Cause | None:
    """Why two samples of an answer show that the model does not know; `None` if they agree."""
    return None if agree(first, second) else _CAUSES["disagreement"]


def refuses(text: str) -> bool:
    """Whether an answer says, at its beginning, that there is none."""
    beginning = text.strip()[:_LOOKED_AT_CHARS]
    return not beginning or _REFUSAL.search(beginning) is not None


def has_format(text: str, schema: Mapping[str, object] | None) -> bool:
    """Whether a text is a JSON object, or JSON that fits the schema; the schema itself can be checked only
    where the package jsonschema is installed (it comes with the extra `mcp`); see `fits`."""
    value: object
    try:
        value = msgspec.json.decode(text.encode(errors="replace"))
    except msgspec.DecodeError:
        return False
    except RecursionError:  # nested too deep to be judged
        return True
    if schema is None:
        return isinstance(value, dict)
    return fits(value, schema)


def agree(first: str, second: str) -> bool:
    """Whether two answers say the same, as far as their words show: they end with the same number, or share
    half of their words.

    >>> agree("It is 42.", "So the answer: 42"), agree("Paris", "Lyon, I think")
    (True, False)
    """
    numbers: list[str] = _NUMBER.findall(first)
    others: list[str] = _NUMBER.findall(second)
    if numbers and others:
        return numbers[-1].replace(",", "") == others[-1].replace(",", "")
    words, more = _words_of(first), _words_of(second)
    return len(words & more) >= AGREEMENT * max(1, len(words | more))


def _words_of(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
