"""Judges whether a value fits a JSON schema that a client brought: in bounded time, contacting nothing.

What cannot be judged so counts as fitting: the answer is not to blame for its schema.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

MAX_SCHEMA_BYTES = 65_536
MAX_VALUE_BYTES = 262_144
MAX_STEPS = 20_000
"""How many keywords are looked at: references can make a small schema endless."""

# Regular expressions take as long as their author likes, and these look at each pair of parts.
_UNJUDGED = (
    "pattern",
    "patternProperties",
    "format",
    "uniqueItems",
    "unevaluatedItems",
    "unevaluatedProperties",
)
# Where patterns are left out, these would say no to what the patterns allow.
_WITH_PATTERNS = ("additionalProperties", "not", "if", "contains")

_Keyword = Callable[[Any, Any, Any, Any], Any]


class _TooLongError(Exception):
    """The schema takes too many steps."""


def fits(value: object, schema: Mapping[str, object]) -> bool:
    """Whether a decoded value fits the schema, as far as can be told.

    Regular expressions and formats are not judged, references to other documents are not followed. True for a
    schema that is wrong, too large or too costly, and where the package jsonschema is not installed.
    """
    try:
        written = msgspec.json.encode(schema)
        if len(written) > MAX_SCHEMA_BYTES or len(msgspec.json.encode(value)) > MAX_VALUE_BYTES:
            return True
        return _fits(value, msgspec.json.decode(written), has_patterns=b'"pattern' in written)
    except Exception:
        return True


def _fits(value: object, schema: dict[str, object], *, has_patterns: bool) -> bool:
    """The same. Raises whatever the packages raise for what they cannot judge."""
    jsonschema: Any = importlib.import_module("jsonschema")
    registry = importlib.import_module("referencing").Registry()  # one that fetches nothing
    base = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    base.check_schema(schema, format_checker=None)
    left = [MAX_STEPS]
    keywords = {name: _counted(judge, left) for name, judge in base.VALIDATORS.items()}
    if has_patterns:
        keywords.update(dict.fromkeys(_WITH_PATTERNS, _unjudged))
        keywords["oneOf"] = keywords.get("anyOf", _unjudged)
    keywords.update(dict.fromkeys(_UNJUDGED, _unjudged))
    limited = jsonschema.validators.extend(base, keywords)
    return next(limited(schema, registry=registry).iter_errors(value), None) is None


def _counted(judge: _Keyword, left: list[int]) -> _Keyword:
    """A keyword's judgement that takes a step of those that are left."""

    def counted(validator: Any, argument: Any, instance: Any, schema: Any) -> Iterator[Any]:
        left[0] -= 1
        if left[0] < 0:
            raise _TooLongError
        yield from judge(validator, argument, instance, schema) or ()

    return counted


def _unjudged(validator: Any, argument: Any, instance: Any, schema: Any) -> tuple[()]:
    return ()
