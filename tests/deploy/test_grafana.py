"""deploy/grafana: the data source can log in and only read, and the boards are those that their sources describe."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.conftest import REPO
from tests.deploy.clickhouse_config import read_users
from tests.deploy.compose_file import load_compose
from tests.deploy.grafana_boards import DASHBOARDS, GRAFANA, Document, boards, panels

COMPOSE = load_compose()
SERVICE = COMPOSE.services["grafana"]
PROVISIONING = GRAFANA / "provisioning"


def provisioned(kind: str, key: str) -> Document:
    (file,) = (PROVISIONING / kind).glob("*.yml")
    (entry,) = yaml.safe_load(file.read_text())[key]
    return dict(entry)


def test_the_data_source_logs_in_as_a_user_that_can_only_read() -> None:
    source = provisioned("datasources", "datasources")["jsonData"]
    user = read_users()[source["username"]]

    assert user.profile["readonly"] == "1"
    assert all(grant.startswith("GRANT SELECT ON ") for grant in user.grants)
    assert f"GRANT SELECT ON {source['defaultDatabase']}.*" in user.grants


def test_queries_read_only_what_their_user_may_read() -> None:
    source = provisioned("datasources", "datasources")["jsonData"]
    allowed = {grant.removeprefix("GRANT SELECT ON ") for grant in read_users()[source["username"]].grants}
    named = {name for panel in panels() for name in re.findall(r"FROM (\w+\.\w+)", panel.sql or "")}

    assert named == {"system.tables"}
    assert named <= allowed


def test_the_data_source_asks_for_no_more_time_than_its_user_has() -> None:
    source = provisioned("datasources", "datasources")["jsonData"]

    assert int(source["queryTimeout"]) <= int(read_users()[source["username"]].profile["max_execution_time"])


def test_the_password_is_the_secret_that_the_servers_hash_was_made_from() -> None:
    password = provisioned("datasources", "datasources")["secureJsonData"]["password"]
    file = SERVICE.environment[f"{password.removeprefix('$')}__FILE"]

    assert COMPOSE.secrets[SERVICE.secrets[file]] == "deploy/secrets/grafana-store-password"


def test_the_data_source_reaches_the_server_and_its_plugin_is_installed() -> None:
    source = provisioned("datasources", "datasources")
    plugin, _, version = SERVICE.environment["GF_PLUGINS_PREINSTALL_SYNC"].partition("@")

    assert plugin == source["type"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert source["jsonData"]["host"] == urlsplit(COMPOSE.services["api"].settings.store_url).hostname
    assert set(SERVICE.networks) & set(COMPOSE.services[source["jsonData"]["host"]].networks)


def test_provisioning_and_dashboards_are_mounted_where_grafana_looks() -> None:
    mounted = {mount.target: (REPO / mount.source).resolve() for mount in SERVICE.mounts}

    assert mounted["/etc/grafana/provisioning"] == PROVISIONING
    assert mounted[provisioned("dashboards", "providers")["options"]["path"]] == DASHBOARDS


def test_every_query_goes_to_the_source_that_was_chosen() -> None:
    kinds = {"${datasource}": provisioned("datasources", "datasources")["type"], "${prometheus}": "prometheus"}
    for name, board in boards().items():
        variables = board["templating"]["list"]
        chosen = {f"${{{one['name']}}}": one["query"] for one in variables if one["type"] == "datasource"}
        asked = [one["datasource"] for one in variables if one["type"] == "query"]
        asked += [source for p in board["panels"] if "targets" in p for source in (p["datasource"], *_sources(p))]
        assert chosen.items() <= kinds.items(), name
        assert all(source == {"type": chosen[source["uid"]], "uid": source["uid"]} for source in asked), name


def test_variables_that_queries_use_can_be_chosen_on_their_board() -> None:
    for panel in panels():
        offered = {one["name"] for one in boards()[panel.board]["templating"]["list"]}
        assert set(re.findall(r"\$\{(\w+)", panel.sql or "")) <= offered, panel.title


def test_boards_have_addresses_of_their_own_and_panels_names_of_their_own() -> None:
    titles = [panel.title for panel in panels()]

    assert boards().keys() == {"jobs", "incidents", "wires", "hosts", "ingest"}
    assert {board["uid"] for board in boards().values()} == {f"lockstep-{name}" for name in boards()}
    assert len(titles) == len(set(titles))


def test_no_panel_lies_over_another() -> None:
    for name, board in boards().items():
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in board["panels"])
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(cells) == len(set(cells)), name
        assert max(x for x, _ in cells) < 24, name


def test_dashboards_are_what_their_sources_describe(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(GRAFANA / "make_dashboards.py"), str(tmp_path)], check=True, timeout=60)

    made = {file.name: file.read_text() for file in tmp_path.iterdir()}
    kept = {file.name: file.read_text() for file in DASHBOARDS.iterdir()}
    assert made == kept, "run deploy/grafana/make_dashboards.py"


def _sources(panel: Document) -> list[Document]:
    return [target["datasource"] for target in panel["targets"]]
