"""The SQL files say what the records say, on one server and on a replicated cluster, and can be run again."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest

from lockstep.store.maintenance import DEFAULT_RETENTION_DAYS
from lockstep.store.migrations import DEDUPLICATION_BLOCKS, Layout, distributed_table, known_migrations, render
from lockstep.store.store import Store
from lockstep.tables import TABLES, Column, columns_of
from tests.conftest import REPO

DEPLOY = REPO / "deploy/clickhouse"
PLAIN = Layout("lockstep")
CLUSTER = Layout("lockstep", cluster="fleet", replicated=True)
ROLLUPS = {"operations", "rank_minutes", "wire_minutes"}
BY_SEVERAL_VIEWS = {"attempts", "sightings"}
# Made or added unless it is there; smallest and largest of rows that come twice; a setting or query set again.
REPEATABLE = (
    r"CREATE (TABLE|MATERIALIZED VIEW) IF NOT EXISTS |INSERT INTO \w+\.(attempts|sightings)\s|"
    r"ALTER TABLE \S+\s+(MODIFY SETTING|MODIFY QUERY|ADD COLUMN IF NOT EXISTS)\s"
)

# What ClickHouse may call the type of a column of each kind, once null and low cardinality are taken off.
TYPES = {
    **{f"u{bits}": {f"UInt{bits}"} for bits in (8, 16, 32, 64)},
    **{kind: {"Int64"} for kind in ("i64", "timestamp", "duration")},
    **{kind: {"String"} for kind in ("str", "choice")},
    "i32": {"Int32"},
    "f64": {"Float64"},
    "bool": {"Bool"},
    "texts": {"Array(LowCardinality(String))", "Array(String)"},
    "counters": {"Map(LowCardinality(String), UInt64)", "Map(String, UInt64)"},
}

both_layouts = pytest.mark.parametrize("layout", [PLAIN, CLUSTER], ids=["plain", "cluster"])


def statements(layout: Layout) -> list[str]:
    return [statement for migration in known_migrations() for statement in render(migration.sql, layout)]


def created_tables(layout: Layout) -> dict[str, str]:
    """Return the text after each table's name by that name."""
    pattern = rf"CREATE TABLE IF NOT EXISTS {layout.local}\.(\w+)\s(.*)"
    found = [re.fullmatch(pattern, statement, re.DOTALL) for statement in statements(layout)]
    return {match[1]: match[2] for match in found if match}


def columns_in(body: str) -> dict[str, str]:
    lines = body[body.index("(\n") + 2 : body.index("\n)\n")].split("\n")
    named = [line.strip().removesuffix(",").split(None, 1) for line in lines]
    return {name: re.split(r" CODEC| MATERIALIZED", rest)[0] for name, rest in named if "MATERIALIZED" not in rest}


def fits(column: Column, given: str) -> bool:
    """Return whether a type of ClickHouse holds what a column may hold, null included, and nothing else."""
    bare = re.sub(r"^LowCardinality\((.*)\)$", r"\1", given)
    inner = re.sub(r"^Nullable\((.*)\)$", r"\1", bare)
    return inner in TYPES[column.kind] and (inner != bare) == column.nullable


def test_engine_has_exactly_the_columns_of_the_records_ordered_by_whose_rows_they_are(embedded_store: Store) -> None:
    here = {"database": embedded_store.database}
    rows = embedded_store.query_system(
        "SELECT table, name, type FROM system.columns "
        "WHERE database = {database:String} AND default_kind = '' ORDER BY table, position",
        here,
    ).to_pylist()
    sorting = "SELECT name, sorting_key FROM system.tables WHERE database = {database:String}"
    keys = {row["name"]: row["sorting_key"] for row in embedded_store.query_system(sorting, here).to_pylist()}
    for table in TABLES:
        given = {row["name"]: row["type"] for row in rows if row["table"] == table.name}
        assert list(given) == list(columns_of(table))
        misfits = {name: kind for name, kind in given.items() if not fits(columns_of(table)[name], kind)}
        assert misfits == {}, table.name
        first = keys[table.name].split(", ")[:2]
        assert first == ["job", "attempt"] if table.has_job else first[0] in ("host", "switch"), table.name


def test_there_are_no_tables_beside_records_and_rollups_and_none_twice() -> None:
    assert set(created_tables(PLAIN)) == {table.name for table in TABLES} | ROLLUPS | BY_SEVERAL_VIEWS
    assert set(DEFAULT_RETENTION_DAYS) == set(created_tables(PLAIN))
    names = re.findall(r"EXISTS lockstep\.(\w+)", "\n".join(statements(PLAIN)))
    assert len(names) == len(set(names))


@both_layouts
def test_every_statement_can_be_repeated_is_filled_in_and_survives_a_power_cut(layout: Layout) -> None:
    assert [statement for statement in statements(layout) if not re.match(REPEATABLE, statement)] == []
    assert [text for text in statements(layout) if "${" in text or "--" in text] == []
    for name, body in created_tables(layout).items():
        assert "fsync_after_insert = 1, fsync_part_directory = 1" in body, name


def test_every_table_remembers_inserts_those_in_one_piece_lose_old_rows_and_every_statement_can_be_repeated(
    embedded_store: Store,
) -> None:
    def tables() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = embedded_store.query_system(
            "SELECT name, engine, create_table_query AS made, engine_full, partition_key = '' AS whole "
            "FROM system.tables WHERE database = {database:String} ORDER BY name",
            {"database": embedded_store.database},
        ).to_pylist()
        return found

    before = tables()
    for statement in statements(Layout(embedded_store.database)):
        embedded_store.command(statement)
    assert tables() == before
    rows = [row for row in before if row["engine"].endswith("MergeTree") and row["name"] != "migrations"]
    assert {row["name"] for row in rows} == set(created_tables(PLAIN))
    window = f"non_replicated_deduplication_window = {DEDUPLICATION_BLOCKS}"
    assert [row["name"] for row in rows if window not in row["engine_full"]] == []
    by_row = {row["name"] for row in rows if "ttl_only_drop_parts = 0" in row["engine_full"]}
    assert by_row == {row["name"] for row in rows if row["whole"]} != set()


def test_every_rollup_is_filled_by_a_view_with_its_columns() -> None:
    for rollup in ROLLUPS:
        views = [text for text in statements(PLAIN) if text.split("lockstep.")[1].startswith(f"{rollup}_view")]
        assert f"TO lockstep.{rollup} AS" in views[0]
        for view in views:
            (selected,) = re.findall(r"SELECT\n(.*?)\nFROM", view, re.DOTALL)
            names = [line.strip().removesuffix(",").split(" AS ")[-1] for line in selected.split("\n")]
            assert names == list(columns_in(created_tables(PLAIN)[rollup]))


def test_text_is_cut_at_semicolons_and_its_placeholders_filled_in() -> None:
    sql = "-- one; two\nSELECT 1;\n  -- three\nSELECT ${local}.x;\n\n"
    assert render(sql, PLAIN) == ["SELECT 1", "SELECT lockstep.x"]
    assert render("${engine ReplacingMergeTree version}", PLAIN) == ["ReplacingMergeTree(version)"]
    assert render("${engine MergeTree}", PLAIN) == ["MergeTree"]
    with pytest.raises(ValueError, match="unknown placeholder 'colour'"):
        render("SELECT ${colour red}", PLAIN)
    assert not [text for text in statements(PLAIN) if "Replicated" in text or "_local" in text]


def test_cluster_keeps_its_share_locally_replicates_every_table_and_remembers_inserts_by_number() -> None:
    assert distributed_table("steps", "job", CLUSTER) == (
        "CREATE OR REPLACE TABLE lockstep.steps AS lockstep_local.steps "
        "ENGINE = Distributed('fleet', 'lockstep_local', 'steps', cityHash64(job))"
    )
    targets = [re.findall(r"(?:EXISTS|TO|FROM) (\w+)\.", text) for text in statements(CLUSTER)]
    assert {database for found in targets for database in found} == {"lockstep_local"}
    path = "'/clickhouse/tables/{shard}/{database}/{table}', '{replica}'"
    assert render("${engine MergeTree}", CLUSTER) == [f"ReplicatedMergeTree({path})"]
    assert f"ReplicatedReplacingMergeTree({path}, version)" in created_tables(CLUSTER)["comms"]
    engines = [re.findall(r"ENGINE = (\w+)\(", body) for body in created_tables(CLUSTER).values()]
    families = {"ReplicatedMergeTree", "ReplicatedReplacingMergeTree", "ReplicatedAggregatingMergeTree"}
    assert {engine for found in engines for engine in found} == families
    assert [len(found) for found in engines] == [1] * len(created_tables(CLUSTER))
    for body in created_tables(CLUSTER).values():
        (settings,) = re.findall(r"SETTINGS (.*)", body)
        pairs = dict(setting.split(" = ") for setting in settings.split(", "))
        assert int(pairs["replicated_deduplication_window"]) == DEDUPLICATION_BLOCKS
        assert int(pairs["replicated_deduplication_window_seconds"]) >= 10 * 365 * 86_400
        assert "non_replicated_deduplication_window" not in pairs


def test_the_example_has_two_replicas_a_shard_on_three_keepers_that_know_each_other() -> None:
    cluster, keeper = (ElementTree.parse(DEPLOY / name) for name in ("cluster.xml", "keeper.xml"))
    shards = cluster.findall("remote_servers/fleet/shard")
    hosts = [[str(host.text) for host in shard.iterfind("replica/host")] for shard in shards]
    assert [len(names) for names in hosts] == [2, 2]
    assert len(set().union(*hosts)) == 4
    assert {shard.findtext("internal_replication") for shard in shards} == {"true"}, "else a row is written twice"
    asked = {(node.findtext("host"), node.findtext("port")) for node in cluster.iterfind("zookeeper/node")}
    port = keeper.findtext("keeper_server/tcp_port")
    servers = keeper.findall("keeper_server/raft_configuration/server")
    assert asked == {(server.findtext("hostname"), port) for server in servers}
    assert [server.findtext("id") for server in servers] == ["1", "2", "3"]
    quorum = ElementTree.parse(DEPLOY / "users.xml").findtext("profiles/lockstep_services/insert_quorum")
    assert quorum == "2", "as many replicas as a shard has"
