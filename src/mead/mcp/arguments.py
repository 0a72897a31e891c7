"""Checks a call's arguments against the tool's schema before they are sent, so that a model is told what is
wrong with them. Nothing that a schema refers to is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MAX_SAID_CHARS = 500


class ArgumentCheck:
    """The check for one schema. A schema that is none is no reason to refuse a call: the server decides."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for
        from referencing import Registry

        self._validator: Any = None
        kind = validator_for(schema)
        try:
            kind.check_schema(schema)
        except SchemaError:
            return
        self._validator = kind(schema, registry=Registry())

    def problem(self, arguments: Mapping[str, object]) -> str | None:
        """What is wrong with the arguments, in a sentence; `None` if nothing is."""
        if self._validator is None:
            return None
        from referencing.exceptions import Unresolvable

        try:
            errors = list(self._validator.iter_errors(arguments))
        except Unresolvable:
            return None
        if not errors:
            return None
        said = "; ".join([_said(error) for error in errors[:5]])
        return said if len(said) <= _MAX_SAID_CHARS else said[:_MAX_SAID_CHARS] + " …"


def _said(error: Any) -> str:
    where = ".".join(map(str, error.path))
    return f"{where}: {error.message}" if where else str(error.message)
