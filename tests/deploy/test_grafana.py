"""deploy/grafana: the data source can log in and only read, and the boards are sound and what their sources describe.

The names of fields are those of `dashboard_types.gen` in @grafana/schema 11.6, the oldest release that our data
source runs in. What it does not know, Grafana would silently drop.
"""

import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from tests.conftest import REPO
from tests.deploy.compose_file import load_compose, read_users
from tests.deploy.grafana_boards import DASHBOARDS, GRAFANA, Document, boards, panels
from tests.waiting import LIMIT_S

COMPOSE = load_compose()
SERVICE = COMPOSE.services["grafana"]
PROVISIONING = GRAFANA / "provisioning"

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
        *("editable", "links", "panels", "refresh", "tags", "templating", "time", "timezone", "title", "uid"),
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


def provisioned(kind: str, key: str) -> Document:
    (file,) = (PROVISIONING / kind).glob("*.yml")
    (entry,) = yaml.safe_load(file.read_text())[key]
    return dict(entry)


SOURCE = provisioned("datasources", "datasources")


def test_the_data_source_logs_in_as_a_user_that_can_only_read_what_queries_ask_for() -> None:
    told = SOURCE["jsonData"]
    user = read_users()[told["username"]]
    allowed = {grant.removeprefix("GRANT SELECT ON ") for grant in user.grants}
    named = {name for panel in panels() for name in re.findall(r"FROM (\w+\.\w+)", panel.sql or "")}
    assert user.profile["readonly"] == "1"
    assert all(grant.startswith("GRANT SELECT ON ") for grant in user.grants)
    assert f"{told['defaultDatabase']}.*" in allowed
    assert named == {"system.tables"}
    assert named <= allowed
    assert int(told["queryTimeout"]) <= int(user.profile["max_execution_time"])


def test_the_data_source_reaches_the_server_with_the_secret_and_its_plugin_is_installed() -> None:
    file = SERVICE.environment[f"{SOURCE['secureJsonData']['password'].removeprefix('$')}__FILE"]
    plugin, _, version = SERVICE.environment["GF_PLUGINS_PREINSTALL_SYNC"].partition("@")
    assert COMPOSE.secrets[SERVICE.secrets[file]] == "deploy/secrets/grafana-store-password"
    assert plugin == SOURCE["type"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert SOURCE["jsonData"]["host"] == urlsplit(COMPOSE.services["api"].settings.store_url).hostname
    assert set(SERVICE.networks) & set(COMPOSE.services[SOURCE["jsonData"]["host"]].networks)
    mounted = {mount.target: (REPO / mount.source).resolve() for mount in SERVICE.mounts}
    assert mounted["/etc/grafana/provisioning"] == PROVISIONING
    assert mounted[provisioned("dashboards", "providers")["options"]["path"]] == DASHBOARDS


def test_dashboards_are_what_their_sources_describe_under_names_of_their_own(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(GRAFANA / "make_dashboards.py"), str(tmp_path)], check=True, timeout=LIMIT_S)
    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    kept = {file.name: file.read_text() for file in DASHBOARDS.iterdir()}
    assert made == kept, "run deploy/grafana/make_dashboards.py"
    titles = [panel.title for panel in panels()]
    assert boards().keys() == {"jobs", "incidents", "wires", "hosts", "ingest"}
    assert {board["uid"] for board in boards().values()} == {f"lockstep-{name}" for name in boards()}
    assert len(titles) == len(set(titles))


EACH = [pytest.param(board, id=name) for name, board in boards().items()]


@pytest.mark.parametrize("board", EACH)
def test_board_is_of_the_schema_places_its_panels_apart_and_asks_the_source_that_was_chosen(board: Document) -> None:
    some, variables = board["panels"], board["templating"]["list"]
    parts = [("board", board), *(("panel", each) for each in some), *(("link", each) for each in board["links"])]
    parts += [("variable", each) for each in variables] + [("gridPos", each["gridPos"]) for each in some]
    parts += [("fieldConfig", each["fieldConfig"]) for each in some if "fieldConfig" in each]
    for kind, part in parts:
        assert REQUIRED[kind] - part.keys() == set(), kind
        assert part.keys() - REQUIRED[kind] - OPTIONAL[kind] == set(), kind
    assert board["schemaVersion"] == SCHEMA_VERSION
    assert re.fullmatch(r"[A-Za-z0-9_-]{8,40}", board["uid"])
    assert {link["type"] for link in board["links"]} <= {"link", "dashboards"}
    for variable in variables:
        assert variable["type"] in {"query", "datasource"}
        assert variable["refresh"] in {1, 2}, "asked when the page is opened, or when its times change"
        assert variable.get("sort", 0) in range(9)
    numbers = [panel["id"] for panel in some]
    assert len(set(numbers)) == len(numbers)
    assert all(isinstance(number, int) and number > 0 for number in numbers)
    places = [panel["gridPos"] for panel in some]
    assert all(place["h"] > 0 and place["w"] > 0 for place in places)
    sides = [[range(place[at], place[at] + place[length]) for at, length in ("xw", "yh")] for place in places]
    cells = [cell for across, down in sides for cell in product(across, down)]
    assert len(cells) == len(set(cells))
    assert {min(x for x, _ in cells), min(y for _, y in cells)} == {0}
    assert max(x for x, _ in cells) < 24, "the grid has 24 columns"
    chosen = {f"${{{one['name']}}}": one["query"] for one in variables if one["type"] == "datasource"}
    assert chosen.items() <= {"${datasource}": SOURCE["type"], "${prometheus}": "prometheus"}.items()
    asked = [one["datasource"] for one in variables if one["type"] == "query"]
    for panel in (panel for panel in board["panels"] if "targets" in panel):
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters), panel["title"]
        asked += [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        used = {name for target in panel["targets"] for name in re.findall(r"\$\{(\w+)", target.get("rawSql", ""))}
        assert used <= {one["name"] for one in variables} | {"__from", "__to"}, panel["title"]
    assert all(source == {"type": chosen[source["uid"]], "uid": source["uid"]} for source in asked)
