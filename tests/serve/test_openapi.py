"""The OpenAPI document: it knows every route, and every answer of the native API is as it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS
from starlette.routing import Mount, Route

import mead
from mead.serve.app import make_app
from mead.serve.errors import _STATUS
from mead.serve.native import operations
from mead.serve.openapi import plain_path
from mead.serve.operations import COMMON, OF_TURNS, WITH_BODY
from mead.serve.tokens import SCOPES, Tokens
from serve.api import DOORS, Api, kept, model, token
from serve.served import Serving, served

ROOT = Path(__file__).parents[2]
EXAMPLES = 15
"""How many requests are made up for each operation and phase."""
CHECKED = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
]


def test_every_route_of_the_server_is_in_the_document_and_the_other_way_round() -> None:
    app = make_app(kept(model()), None)
    routed: set[tuple[str, str]] = set()
    for route in app.routes:
        if isinstance(route, Route):
            methods = (route.methods or {"POST"}) - {"HEAD", "OPTIONS"}
            routed |= {(plain_path(route.path), method.lower()) for method in methods}
        else:
            assert isinstance(route, Mount), route
            routed |= {(route.path, method) for method in ("get", "post", "delete")}

    document = _document(app)

    described = {
        (path, method)
        for path, methods in document["paths"].items()
        for method in methods
        if method != "parameters"
    }
    assert described == routed
    assert len(described) > 25


def test_every_path_is_described_by_a_summary_and_operation_ids_are_unique() -> None:
    document = _document(make_app(kept(model()), None))

    each = [one for methods in document["paths"].values() for one in methods.values()]
    ids = [one["operationId"] for one in each]
    assert len(ids) == len(set(ids))
    assert all(one["summary"] for one in each)
    assert not [one["operationId"] for one in each if one["summary"] == "A path of another door"]


def test_the_document_is_one_of_openapi_and_says_how_to_prove_who_one_is() -> None:
    document = _document(make_app(kept(model()), None))

    assert document["openapi"].startswith("3.1")
    assert {scheme["type"] for scheme in document["components"]["securitySchemes"].values()} == {
        "http",
        "apiKey",
    }
    schemathesis.openapi.from_dict(document).validate()


def test_every_status_of_a_reason_is_documented_for_turns() -> None:
    may_be = {*COMMON, *OF_TURNS, *WITH_BODY}

    assert set(_STATUS.values()) <= may_be
    for each in operations():
        assert each.scope in SCOPES
        assert each.status not in (*COMMON, *each.errors)


def test_the_page_about_the_api_lists_every_path_with_its_scope() -> None:
    page = (ROOT / "docs" / "api.md").read_text()

    for each in operations():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{each.path}` |")]
        assert each.method in row
        assert f"| {each.scope} |" in row


def test_the_document_is_given_to_every_token(serving: Serving, tmp_path: Path) -> None:
    tokens = Tokens(tmp_path)
    _, token = tokens.create("nothing", scopes=())
    url = serving(kept(model()), tokens, doors=DOORS)

    assert Api(url, token).get("openapi.json")["info"]["title"] == "mead"
    assert Api(url).fault("GET", "openapi.json")[:2] == (401, "unauthorized")


# Requests that nobody has thought of


class Live(NamedTuple):
    """A server, a token, and what is there by the names of path parameters."""

    address: str
    token: str
    there: dict[str, str]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server with its token, a session with a turn, and a turn that is over."""
    tokens = Tokens(tmp_path_factory.mktemp("tokens"))
    text = token(tokens)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mead.serve.app._doors", lambda: DOORS)
        with served(kept(model(), model()), tokens) as address:
            api = Api(address, text)
            session_id = api.start(title="kept")
            api.turn(session_id, route="cloud")
            body = {"messages": [{"role": "user", "content": "x"}], "background": True}
            turn_id = api.post("requests", body)["turn_id"]
            yield Live(address, text, {"session_id": session_id, "turn_id": turn_id})


def _operations() -> list[str]:
    return [f"{each.method} {each.path}" for each in operations()]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("name", _operations())
def test_whatever_is_sent_the_answer_is_one_that_the_document_knows(
    live: Live, name: str, mode: GenerationMode
) -> None:
    method, path = name.split(" ")
    schema = schemathesis.openapi.from_dict(Api(live.address, live.token).get("openapi.json"))
    schema.config.update(base_url=live.address)
    operation = schema[path][method]
    checks = [CHECKS.get_one(check) for check in CHECKED]
    statuses: list[int] = []

    @hypothesis.seed(1)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), real=hypothesis.strategies.booleans())
    def ask(case: Any, real: bool) -> None:
        if real and method != "DELETE":
            case.path_parameters.update(
                {key: live.there[key] for key in case.path_parameters or {} if key in live.there}
            )
        response = case.call(headers={"authorization": f"Bearer {live.token}"}, timeout=20)
        statuses.append(response.status_code)
        case.validate_response(response, checks=checks)

    try:
        ask()
    except hypothesis.errors.Unsatisfiable:  # nothing wrong can be said to what takes nothing
        assert mode is GenerationMode.NEGATIVE
        return
    assert statuses


def _document(app: Any) -> dict[str, Any]:
    import json

    import msgspec

    from mead.serve.openapi import document

    made = document(operations(), app.routes)
    found: dict[str, Any] = json.loads(msgspec.json.encode(made))
    return found


def test_the_version_is_the_packages() -> None:
    assert _document(make_app(kept(model()), None))["info"]["version"] == mead.__version__
