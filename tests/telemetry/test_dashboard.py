"""The dashboard that comes with mead shows metrics and labels that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Histogram
from prometheus_client.metrics import MetricWrapperBase

from mead.telemetry.prometheus import Metrics

FILE = Path(__file__).parents[2] / "docs" / "grafana" / "mead.json"
PAGE = FILE.parents[1] / "telemetry.md"
FROM_PROMETHEUS = {"instance", "le"}


def dashboard() -> dict[str, Any]:
    return json.loads(FILE.read_text(encoding="utf-8"))  # type: ignore[no-any-return]  # the file's shape is tested


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def grouped_by(query: str) -> set[str]:
    """The labels that a query groups by."""
    return {label.strip() for by in re.findall(r"by \(([^)]*)\)", query) for label in by.split(",")}


def exported() -> dict[str, frozenset[str]]:
    """Every series that the collector makes, with its labels."""
    found = {}
    for metric in Metrics().registry._collector_to_names:
        assert isinstance(metric, MetricWrapperBase)
        labels = frozenset(metric._labelnames)
        (family,) = metric.describe()
        if isinstance(metric, Histogram):
            found.update({f"{family.name}{end}": labels for end in ("_bucket", "_count", "_sum")})
        else:
            found[f"{family.name}_total" if family.type == "counter" else family.name] = labels
    return found


def test_the_dashboard_is_what_grafana_reads() -> None:
    board = dashboard()
    ids = [panel["id"] for panel in board["panels"]]

    assert (board["title"], board["uid"], board["schemaVersion"] >= 39) == ("mead", "mead", True)
    assert len(set(ids)) == len(ids)
    assert {variable["name"] for variable in board["templating"]["list"]} == {"datasource", "instance"}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]


def test_no_two_panels_lie_on_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("query", queries())
def test_every_query_names_series_and_labels_that_are_exported(query: str) -> None:
    known = exported()
    names = re.findall(r"mead_[a-z0-9_]+", query)

    assert names
    assert not [name for name in names if name not in known]
    assert query.count("(") == query.count(")")
    for name, chosen in re.findall(r"(mead_[a-z0-9_]+){([^}]*)}", query):
        used = grouped_by(query) | set(re.findall(r"([a-z_]+)(?:=~|=|!=)\"", chosen))
        assert used <= known[name] | FROM_PROMETHEUS


def test_a_legend_names_only_labels_that_its_query_keeps() -> None:
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert named <= grouped_by(target["expr"]), target["expr"]


def test_the_page_lists_every_metric() -> None:
    page = PAGE.read_text(encoding="utf-8")
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported()}

    assert not [name for name in names if f"`{name}`" not in page]


def test_everything_that_is_exported_but_the_version_is_shown() -> None:
    shown = " ".join(queries())
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in exported()}

    assert {name for name in names if name not in shown} == {"mead_build_info"}
