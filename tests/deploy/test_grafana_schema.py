"""The boards keep to the schema that Grafana publishes, as far as it can be checked without a Grafana.

The names are those of `dashboard_types.gen` in @grafana/schema 11.6, the oldest release that our data source runs in.
What it does not know, Grafana would silently drop.
"""

import re
from typing import Any

import pytest

from tests.deploy.grafana_boards import Document, boards

REQUIRED = {
    "board": {"schemaVersion"},
    "panel": {"type"},
    "link": {"asDropdown", "icon", "includeVars", "keepTime", "tags", "targetBlank", "title", "tooltip", "type"},
    "variable": {"name", "type"},
    "gridPos": {"h", "w", "x", "y"},
    "fieldConfig": {"defaults", "overrides"},
}
OPTIONAL = {
    "board": {
        "editable",
        "links",
        "panels",
        "refresh",
        "tags",
        "templating",
        "time",
        "timezone",
        "title",
        "uid",
        "version",
    },
    "panel": {"datasource", "description", "fieldConfig", "gridPos", "id", "options", "targets", "title"},
    "link": {"url"},
    # Grafana itself writes `definition`, what its list of variables shows; the schema does not have it.
    "variable": {"datasource", "definition", "includeAll", "label", "multi", "query", "refresh", "sort"},
    "gridPos": {"static"},
    "fieldConfig": set[str](),
}
SCHEMA_VERSION = 41  # of Grafana 11.6; an older Grafana refuses a newer number, a newer one migrates
UID = re.compile(r"[A-Za-z0-9_-]{8,40}")
EACH = [pytest.param(board, id=name) for name, board in boards().items()]


def parts_of(board: Document) -> list[tuple[str, Document]]:
    """Return everything on a board that the schema has a name for."""
    panels = board["panels"]
    found = [
        ("board", board),
        *(("panel", each) for each in panels),
        *(("gridPos", each["gridPos"]) for each in panels),
    ]
    found += [("fieldConfig", each["fieldConfig"]) for each in panels if "fieldConfig" in each]
    found += [("link", each) for each in board["links"]]
    return [*found, *(("variable", each) for each in board["templating"]["list"])]


@pytest.mark.parametrize("board", EACH)
def test_fields_are_those_of_the_schema_and_none_is_missing(board: Document) -> None:
    for kind, part in parts_of(board):
        assert REQUIRED[kind] - part.keys() == set(), kind
        assert part.keys() - REQUIRED[kind] - OPTIONAL[kind] == set(), kind


@pytest.mark.parametrize("board", EACH)
def test_values_are_of_those_that_grafana_knows(board: Document) -> None:
    assert board["schemaVersion"] == SCHEMA_VERSION
    assert UID.fullmatch(board["uid"])
    assert {link["type"] for link in board["links"]} <= {"link", "dashboards"}
    for variable in board["templating"]["list"]:
        assert variable["type"] in {"query", "datasource"}
        assert variable["refresh"] in {1, 2}, "asked when the page is opened, or when its times change"
        assert variable.get("sort", 0) in range(9)


@pytest.mark.parametrize("board", EACH)
def test_panels_have_numbers_of_their_own_and_a_place_on_the_grid(board: Document) -> None:
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(set(numbers)) == len(numbers)
    assert all(isinstance(number, int) and number > 0 for number in numbers)
    for place in (panel["gridPos"] for panel in board["panels"]):
        assert place["x"] >= 0
        assert place["y"] >= 0
        assert place["h"] > 0
        assert 0 < place["w"] <= 24 - place["x"], "the grid has 24 columns"


@pytest.mark.parametrize("board", EACH)
def test_queries_of_a_panel_have_letters_of_their_own_and_a_source_by_variable(board: Document) -> None:
    variables: list[dict[str, Any]] = board["templating"]["list"]
    sources = {f"${{{each['name']}}}": each["query"] for each in variables if each["type"] == "datasource"}
    for panel in board["panels"]:
        letters = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(letters)) == len(letters), panel["title"]
        for target in panel.get("targets", []):
            assert target["datasource"].keys() == {"type", "uid"}
            assert sources[target["datasource"]["uid"]] == target["datasource"]["type"], panel["title"]
