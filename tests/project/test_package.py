"""What the package promises of itself: what it loads, needs, exports and tells."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from packaging.requirements import Requirement

import mead

ROOT = Path(__file__).parents[2]
HEAVY = (
    "mcp",
    "starlette",
    "uvicorn",
    "fastapi",
    "xllamacpp",
    "openai",
    "anthropic",
    "httpx",
    "pydantic",
    "rich",
    "opentelemetry",
    "prometheus_client",
)


def modules_after(program: str) -> set[str]:
    listing = f"{program}\nimport sys\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_importing_mead_loads_no_optional_library() -> None:
    assert not modules_after("import mead") & set(HEAVY)


def test_a_configured_slot_loads_only_its_own() -> None:
    program = """
import mead
from mead.settings import parse
mead.Runtime(parse('[router.slots.local]\\nprovider = "embedded"'))
"""

    assert not modules_after(program) & set(HEAVY)


def test_the_pytest_plugin_loads_no_mead_before_a_test_uses_it() -> None:
    loaded = modules_after("import mead.testing.fixtures")

    assert not loaded & set(HEAVY)


def test_the_core_needs_at_most_eighteen_distributions() -> None:
    needed: set[str] = set()
    waiting = ["mead-runtime"]
    while waiting:
        name = waiting.pop()
        for text in importlib.metadata.requires(name) or ():
            requirement = Requirement(text)
            wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            found = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if wanted and found not in needed:
                needed.add(found)
                waiting.append(found)

    assert 5 <= len(needed) <= 18, sorted(needed)


def test_every_public_name_is_there_and_documented() -> None:
    assert sorted(mead.__all__) == sorted(set(mead.__all__))
    for name in mead.__all__:
        value = getattr(mead, name)
        if callable(value) and isinstance(value, type):
            assert value.__doc__, f"mead.{name} says nothing of itself"


def test_every_reason_that_a_turn_can_fail_with_can_be_matched_by_its_public_name() -> None:
    reasons = [reason.__name__ for reason in get_args(mead.TurnReason)]

    assert len(reasons) > 20
    assert not set(reasons) - set(mead.__all__)


def test_the_types_are_announced() -> None:
    assert (Path(mead.__file__).parent / "py.typed").exists()


def test_the_versions_agree() -> None:
    assert importlib.metadata.version("mead-runtime") == mead.__version__


@pytest.mark.parametrize("document", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_the_links_of_the_documents_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_readmes_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", (ROOT / "README.md").read_text()):
        assert "://" in target or (ROOT / target).exists(), target


def test_every_document_is_listed_in_the_readme_or_the_architecture() -> None:
    listing = (ROOT / "README.md").read_text() + (ROOT / "docs" / "architecture.md").read_text()

    for document in (ROOT / "docs").glob("*.md"):
        assert document.name in listing, document.name
