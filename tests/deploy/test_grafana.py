"""deploy/grafana: the data source can log in and only read, and every query of the dashboard finds what it shows."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import yaml

from lockstep.records import HostRecord, OpStat, TransferStat
from lockstep.store.store import Store
from lockstep.tables import TABLES
from tests.builders import SECOND, T0, make, rows
from tests.conftest import REPO
from tests.deploy.clickhouse_config import read_users
from tests.deploy.compose_file import load_compose

COMPOSE = load_compose()
SERVICE = COMPOSE.services["grafana"]
PROVISIONING = REPO / "deploy/grafana/provisioning"
DASHBOARDS = REPO / "deploy/grafana/dashboards"

Document = dict[str, Any]  # Any: JSON and YAML of another program, taken apart here

# What the plugin puts in place of its macros, for a time range of ten minutes around T0 and points a minute apart.
MACROS = {
    "$__fromTime": f"toDateTime({T0 // SECOND - 300})",
    "$__toTime": f"toDateTime({T0 // SECOND + 300})",
    "$__interval_s": "60",
    "${job:singlequote}": "'j1'",
}


def provisioned(kind: str, key: str) -> Document:
    (file,) = (PROVISIONING / kind).glob("*.yml")
    (entry,) = yaml.safe_load(file.read_text())[key]
    return dict(entry)


def dashboard() -> Document:
    return dict(json.loads((DASHBOARDS / "lockstep.json").read_text()))


def panels() -> dict[str, str]:
    """Return the query of each panel by its title."""
    return {
        panel["title"]: target["rawSql"] for panel in dashboard()["panels"] for target in panel.get("targets", ())
    }


def literal(sql: str) -> str:
    for macro, value in MACROS.items():
        sql = sql.replace(macro, value)
    assert "$" not in sql, f"a macro or variable that this test does not know: {sql}"
    return sql


def insert(store: Store, *records: HostRecord) -> None:
    table = next(table for table in TABLES if table.record is type(records[0]))
    store.insert(table, rows(*records), token=f"test/{table.name}")


def shown(store: Store, title: str) -> pa.Table:
    return store.query(literal(panels()[title]))


def test_the_data_source_logs_in_as_a_user_that_can_only_read() -> None:
    source = provisioned("datasources", "datasources")["jsonData"]
    user = read_users()[source["username"]]

    assert user.profile["readonly"] == "1"
    assert all(grant.startswith("GRANT SELECT ON ") for grant in user.grants)
    assert f"GRANT SELECT ON {source['defaultDatabase']}.*" in user.grants


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
    board = dashboard()
    choose, job = board["templating"]["list"]
    asked = [panel for panel in board["panels"] if "targets" in panel]

    assert (choose["name"], choose["type"], choose["query"]) == (
        "datasource",
        "datasource",
        provisioned("datasources", "datasources")["type"],
    )
    for source in [
        job["datasource"],
        *(p["datasource"] for p in asked),
        *(p["targets"][0]["datasource"] for p in asked),
    ]:
        assert source == {"type": choose["query"], "uid": "${datasource}"}


@pytest.mark.parametrize("title", panels())
def test_a_panel_without_rows_is_empty_and_no_error(embedded_store: Store, title: str) -> None:
    assert shown(embedded_store, title).num_rows == 0


def test_rows_per_second_are_counted_by_table(embedded_store: Store) -> None:
    insert(embedded_store, *(make(OpStat, rank=rank) for rank in range(6)))
    insert(embedded_store, *(make(TransferStat, rank=rank) for rank in range(12)))

    found = shown(embedded_store, "Rows per second, by table").to_pylist()

    assert {row["kind"]: row["rows_per_second"] for row in found} == {"op_stats": 0.1, "transfer_stats": 0.2}


def test_rows_out_of_the_time_range_are_not_counted(embedded_store: Store) -> None:
    insert(embedded_store, make(OpStat, ts_ns=T0 - 301 * SECOND), make(OpStat, ts_ns=T0 + 300 * SECOND))

    assert shown(embedded_store, "Rows per second, by table").num_rows == 0


def test_of_many_ranks_the_one_that_others_wait_for_is_shown(embedded_store: Store) -> None:
    usual = [make(OpStat, rank=rank, n=2, dur_sum_ns=2 * SECOND) for rank in range(40)]
    insert(embedded_store, *usual, make(OpStat, rank=40, n=2, dur_sum_ns=SECOND))

    found = shown(embedded_store, "Mean operation time of the 20 most unusual ranks").to_pylist()

    assert len(found) == 20
    assert {row["who"]: row["mean_seconds"] for row in found}["rank 40 of 0x07"] == 0.5


def test_the_slowest_pair_comes_first_with_its_rate(embedded_store: Store) -> None:
    fast = make(TransferStat, rank=0, peer=1, bytes=1_000_000, wire_ns=40_000)
    slow = make(TransferStat, rank=1, peer=2, bytes=1_000_000, wire_ns=80_000, wire_max_ns=SECOND, nic="eth1")
    unknown = make(TransferStat, rank=2, peer=3, wire_ns=None, wire_max_ns=None)
    received = make(TransferStat, rank=3, peer=2, direction="recv", wire_ns=1_000_000)
    insert(embedded_store, fast, slow, unknown, received)

    found = shown(embedded_store, "Slowest pairs").to_pylist()

    assert [(row["rank"], row["peer"], row["gbps"]) for row in found] == [(1, 2, 100.0), (0, 1, 200.0)]
    assert (found[0]["host"], found[0]["nic"], found[0]["longest_seconds"]) == ("h0", "eth1", 1.0)


def test_another_jobs_rows_are_not_shown(embedded_store: Store) -> None:
    insert(embedded_store, make(OpStat, job="j2"))
    insert(embedded_store, make(TransferStat, job="j2"))

    assert shown(embedded_store, "Mean operation time of the 20 most unusual ranks").num_rows == 0
    assert shown(embedded_store, "Slowest pairs").num_rows == 0


def test_the_newest_job_is_offered_first(embedded_store: Store) -> None:
    insert(embedded_store, make(OpStat, job="old"), make(OpStat, job="new", ts_ns=T0 + 3600 * SECOND))
    job = next(variable for variable in dashboard()["templating"]["list"] if variable["name"] == "job")

    assert embedded_store.query(job["query"])["job"].to_pylist() == ["new", "old"]
    assert job["definition"] == job["query"], "Grafana shows the one and runs the other"


def test_there_is_one_dashboard_file() -> None:
    assert list(DASHBOARDS.iterdir()) == [Path(DASHBOARDS / "lockstep.json")]
