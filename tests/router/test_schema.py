"""A client's schema is judged in bounded time and contacts nothing; what cannot be judged fits."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator

import pytest

from mead.router.schema import MAX_STEPS, fits

BAD_REGEX = "^(a+)+$"
SLOW = "a" * 40 + "!"


def nested(depth: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


def bomb(depth: int) -> dict[str, object]:
    """A small schema with 2^depth references."""
    steps = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(depth)}
    return {"$defs": {**steps, f"a{depth}": {}}, "$ref": "#/$defs/a0"}


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """The address of a server with schemas, and the paths that it was asked for."""
    paths: list[str] = []

    class Schemas(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Schemas)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/secret", paths
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_reference_to_an_address_is_not_fetched(asked: tuple[str, list[str]]) -> None:
    url, paths = asked

    assert fits("a", {"$ref": url})
    assert fits("a", {"$schema": url, "$ref": url})
    assert paths == []


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#/nope"},
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"type": "no such type"},
        {"required": "abc"},
        nested(3_000),
        nested(900),
        bomb(60),
        {"enum": ["x" * 70_000]},
    ],
    ids=["dangling", "endless", "type", "required", "deep", "less-deep", "bomb", "large"],
)
def test_what_cannot_be_judged_fits(schema: dict[str, object]) -> None:
    assert fits("a", schema)
    assert fits([[[]]], schema)


@pytest.mark.parametrize(
    "schema,value",
    [
        ({"type": "string", "pattern": BAD_REGEX}, SLOW),
        ({"patternProperties": {BAD_REGEX: {"type": "integer"}}, "additionalProperties": False}, {SLOW: 1}),
        ({"patternProperties": {BAD_REGEX: {}}, "unevaluatedProperties": False}, {SLOW: 1}),
        ({"not": {"pattern": BAD_REGEX}}, SLOW),
        ({"oneOf": [{"pattern": "a"}, {"pattern": "b"}]}, SLOW),
        ({"pattern": "("}, SLOW),
    ],
)
def test_regular_expressions_are_not_judged(schema: dict[str, object], value: object) -> None:
    assert fits(value, schema)


def test_the_rest_of_a_schema_with_expressions_is_judged() -> None:
    schema = {
        "type": "object",
        "required": ["a"],
        "properties": {"a": {"type": "string", "pattern": BAD_REGEX}},
    }

    assert fits({"a": "b"}, schema)
    assert not fits({"a": 1}, schema)
    assert not fits({}, schema)


def test_a_property_may_be_called_as_a_keyword() -> None:
    assert not fits({"pattern": 1}, {"properties": {"pattern": {"type": "string"}}})


def test_a_long_answer_is_judged() -> None:
    schema = {"items": {"type": "integer"}}
    numbers: list[object] = list(range(MAX_STEPS // 4))

    assert fits(numbers, schema)
    assert not fits([*numbers, "x"], schema)
