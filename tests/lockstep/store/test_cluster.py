"""The same SQL files on a cluster: two real shards, each with its share, read and written as one.

The servers have cluster.xml and users.xml of deploy/clickhouse, without what needs a Keeper: the first replica of
each shard, and tables that are not replicated.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from api.views.returned import sightings_at
from lockstep.errors import StoreAway
from lockstep.records import Agent, Collective, Comm
from lockstep.store.maintenance import DEFAULT_RETENTION_DAYS, apply_retention
from lockstep.store.migrations import Layout, check_migrated, migrate
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLE_BY_NAME
from tests.builders import T0, make, rows
from tests.conftest import REPO
from tests.testbed.clickhouse import ClickHouseServer
from tests.testbed.services import free_port

pytestmark = pytest.mark.slow

LAYOUT = Layout("lockstep", cluster="fleet")
PASSWORD = "of the services"
DEPLOY = REPO / "deploy/clickhouse"
JOBS = [f"job{number}" for number in range(16)]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ClickHouseServer]]:
    """Two servers that know each other as the two shards of one cluster, migrated."""
    ports = [free_port(), free_port()]
    servers = [make_server(tmp_path_factory.mktemp(f"shard{number}"), ports, number) for number in range(2)]
    for server in servers:
        server.start()
        with open_store(url_of(server)) as store:
            migrate(store, LAYOUT, now_ns=1)
    yield servers
    for server in servers:
        server.kill()


def make_server(directory: Path, ports: list[int], number: int) -> ClickHouseServer:
    secrets, digest = directory / "secrets.xml", hashlib.sha256(PASSWORD.encode()).hexdigest()
    known = dict.fromkeys(("store_password_sha256", "grafana_store_password_sha256"), digest)
    known |= {"cluster_secret": "among us", "interserver_password": "among us"}
    lines = [f"<{name}>{text}</{name}>" for name, text in known.items()]
    secrets.write_text(f"<clickhouse>{''.join(lines)}</clickhouse>")
    for kind, text in (("config.d", without_keeper(ports)), ("users.d", (DEPLOY / "users.xml").read_text())):
        (directory / "run" / kind).mkdir(parents=True)
        (directory / "run" / kind / "lockstep.xml").write_text(re.sub(r"/run/secrets/\S+?\.xml", str(secrets), text))
    return ClickHouseServer(directory, user="testbed", tcp_port=ports[number])


def without_keeper(ports: list[int]) -> str:
    """Return cluster.xml with one replica a shard, which is the server at that port."""
    text = (DEPLOY / "cluster.xml").read_text()
    for name in ("zookeeper", "macros", "interserver_http_port", "interserver_http_credentials"):
        text = re.sub(f"<{name}>.*?</{name}>", "", text, flags=re.DOTALL)
    text = re.sub(r"<interserver_http_host .*/>|<replica><host>\w+b</host>.*</replica>", "", text)
    for shard, port in enumerate(ports, start=1):
        node = f"<host>clickhouse{shard}a</host><port>9000</port>"
        assert node in text
        text = text.replace(node, f"<host>127.0.0.1</host><port>{port}</port>")
    return text


def url_of(server: ClickHouseServer, user: str = "lockstep") -> str:
    return f"http://{user}:{quote(PASSWORD)}@127.0.0.1:{server.http_port}/lockstep"


@pytest.fixture
def nodes(shards: list[ClickHouseServer]) -> Iterator[list[Store]]:
    stores = [open_store(url_of(server)) for server in shards]
    yield stores
    for store in stores:
        used = "SELECT DISTINCT table FROM system.parts WHERE database = 'lockstep_local' AND table != 'migrations'"
        for table in store.query_system(used)["table"].to_pylist():
            store.command(f"TRUNCATE TABLE lockstep_local.{table}")
        store.close()


def local_jobs(store: Store, table: str) -> set[str]:
    return set(store.query_system(f"SELECT DISTINCT job FROM lockstep_local.{table}")["job"].to_pylist())


def counts(store: Store) -> tuple[int, int]:
    sql = "SELECT (SELECT count() FROM collectives) AS raw, (SELECT sum(n) FROM operations) AS rolled"
    (row,) = store.query(sql).to_pylist()
    return row["raw"], row["rolled"]


def insert_jobs(store: Store) -> None:
    batch = rows(*(make(Collective, job=job) for job in JOBS))
    store.insert(TABLE_BY_NAME["collectives"], batch, token="all jobs")


def test_each_job_lives_on_one_shard_once_and_is_read_from_both(nodes: list[Store]) -> None:
    first, second = nodes
    for store in (*nodes, *nodes):
        insert_jobs(store)  # a batch that is repeated through the other node is stored once
    here, there = local_jobs(first, "collectives"), local_jobs(second, "collectives")
    assert here | there == set(JOBS)
    assert here & there == set()
    assert here
    assert there
    assert [counts(store) for store in nodes] == [(len(JOBS), len(JOBS))] * 2


def test_host_tables_are_spread_and_lists_are_whole_from_either_node(nodes: list[Store]) -> None:
    hosts = [f"h{number}" for number in range(16)]
    nodes[0].insert(TABLE_BY_NAME["agents"], rows(*(make(Agent, host=host) for host in hosts)), token="a")
    shares = [store.query_system("SELECT count() AS n FROM lockstep_local.agents")["n"][0].as_py() for store in nodes]
    assert (sum(shares), min(shares) > 0) == (16, True)
    found = [make(Comm, job=job, gpu=number, gpu_uuid=f"GPU-{number}") for number, job in enumerate(JOBS)]
    nodes[0].insert(TABLE_BY_NAME["comms"], rows(*found), token="lists")
    for store in nodes:
        known = store.query("SELECT job FROM attempts WHERE job IN {jobs:Array(String)} GROUP BY job", {"jobs": JOBS})
        assert set(known["job"].to_pylist()) == set(JOBS)
        assert {seen.gpu_uuid for seen in sightings_at(store, ["h0"])} == {f"GPU-{n}" for n in range(len(JOBS))}


def test_tables_of_one_job_are_joined_where_they_lie(nodes: list[Store]) -> None:
    for job in JOBS:
        for node, destroy_ns in zip(nodes, (None, T0 + 9), strict=True):  # the newest version wins
            mine = make(Comm, job=job, host=f"on-{job}", destroy_ns=destroy_ns)
            node.insert(TABLE_BY_NAME["comms"], rows(mine), token=f"{job} {destroy_ns}")
        nodes[0].insert(TABLE_BY_NAME["collectives"], rows(make(Collective, job=job)), token=job)
    joined = nodes[1].query(
        "SELECT collectives.job AS job, comms.host AS host, destroy_ns FROM collectives "
        "JOIN comms FINAL ON comms.job = collectives.job AND comms.comm = collectives.comm ORDER BY job"
    )
    assert joined.to_pylist() == [{"job": job, "host": f"on-{job}", "destroy_ns": T0 + 9} for job in sorted(JOBS)]


def test_both_nodes_have_the_schema_and_retention_lies_on_the_local_tables(nodes: list[Store]) -> None:
    for store in nodes:
        check_migrated(store, LAYOUT)
        assert migrate(store, LAYOUT, now_ns=2) == ()
        apply_retention(store, LAYOUT, {})
        full = store.query_system(
            "SELECT engine_full FROM system.tables WHERE database = 'lockstep_local' AND name = 'collectives'"
        )
        assert f"toIntervalDay({DEFAULT_RETENTION_DAYS['collectives']})" in full["engine_full"][0].as_py()
        apply_retention(store, LAYOUT, dict.fromkeys(DEFAULT_RETENTION_DAYS, 0))  # rows of tests are years old


def test_grafana_reads_all_shards_and_writes_to_none(shards: list[ClickHouseServer], nodes: list[Store]) -> None:
    insert_jobs(nodes[0])
    address = url_of(shards[1], "grafana").removesuffix("lockstep")
    read = httpx.post(address, content="SELECT count() FROM lockstep.collectives", trust_env=False)
    assert read.text == f"{len(JOBS)}\n"
    into = [f"INSERT INTO {name}.collectives (job) VALUES ('x')" for name in ("lockstep", "lockstep_local")]
    for statement in (*into, "SELECT * FROM remote('127.0.0.1', system.one)"):
        refused = httpx.post(address, content=statement, trust_env=False)
        assert "ACCESS_DENIED" in refused.text


def test_a_shard_that_is_away_fails_the_read_instead_of_hiding_its_share(
    shards: list[ClickHouseServer], nodes: list[Store]
) -> None:
    insert_jobs(nodes[0])
    shards[1].kill()
    try:
        with pytest.raises(StoreAway, match="code: 279"):
            counts(nodes[0])
    finally:
        shards[1].start()
    assert counts(nodes[0]) == (len(JOBS), len(JOBS))
