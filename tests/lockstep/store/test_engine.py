"""Where a store is, and the embedded engine's guards: one process a directory, and no foreign config.xml."""

import os
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest

from lockstep.errors import BadInput, StoreAway, StoreBusy, StoreRefused
from lockstep.store.engine import Embedded, Server, parse_address
from lockstep.store.store import open_store
from tests.testbed.clickhouse import ClickHouseServer
from tests.testbed.tcp_proxy import TcpProxy


def run_child(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("chdb:///var/lib/x", Embedded(Path("/var/lib/x"), "lockstep")),
        ("chdb:///var/lib/my%20store", Embedded(Path("/var/lib/my store"))),
        ("https://ops:s%40fe@db.example:9443/tele", Server("db.example", 9443, "ops", "s@fe", "tele", secure=True)),
        ("http://db", Server("db", 8123, "default", "beside", "lockstep")),
        ("https://db", Server("db", 8443, "default", "beside", "lockstep", secure=True)),
        ("http://u:inside@db", Server("db", 8123, "u", "inside", "lockstep")),
        ("http://u@a:1,[::1],b", Server("a", 1, "u", "beside", "lockstep", others=(("::1", 8123), ("b", 8123)))),
    ],
)
def test_address_is_taken_apart_and_its_password_never_shown(url: str, address: Embedded | Server) -> None:
    found = parse_address(url, password="beside")
    assert found == address
    assert not any(secret in f"{found} {found!r}" for secret in ("beside", "inside", "s@fe"))


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("chdb://relative/dir", "absolute directory"),
        ("chdb:///", "absolute directory"),
        ("ftp://db/t", "not 'ftp'"),
        ("plainly wrong", "not 'plainly wrong'"),
        ("http:///t", "names no host"),
        ("http://a,/t", "names no host"),
        ("http://db:99999/t", "not a URL"),
        ("http://[db/t", "not a URL"),
        ("http://db/drop table", "cannot be a database name"),
    ],
)
def test_a_bad_address_is_refused_with_the_reason(url: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        parse_address(url)


OPEN = """
import os, signal
from lockstep.errors import StoreBusy
from lockstep.store.store import open_store
try:
    open_store("chdb://{}").query_system("SELECT 1")
except StoreBusy as busy:
    print(busy)
"""


def test_a_store_is_held_by_one_process_which_is_named_and_not_by_a_dead_one_whatever_config_xml_says(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.xml").write_text("garbage")  # the working directory's, and none of ours
    folder = tmp_path / "store"
    died = run_child(OPEN.format(folder) + "os.kill(os.getpid(), signal.SIGKILL)", tmp_path)
    assert died.returncode == -9, died.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.xml", "store"]
    with open_store(f"chdb://{folder}") as store:
        store.query_system("SELECT 1")
        with pytest.raises(StoreBusy, match="in use"):
            open_store(f"chdb://{folder}")
        assert f"in use by process {os.getpid()}" in run_child(OPEN.format(folder), tmp_path).stdout


@pytest.mark.slow
def test_a_wrong_password_is_refused_without_showing_it(clickhouse: ClickHouseServer) -> None:
    wrong = clickhouse.url.replace(clickhouse.password, "hush-hush")
    with open_store(wrong) as store, pytest.raises(StoreRefused, match="refuses this user or password") as caught:
        store.query_system("SELECT 1")
    assert "hush-hush" not in str(caught.value)


def test_a_server_that_is_not_there_is_away(tmp_path: Path) -> None:
    with open_store("http://u@127.0.0.1:1/x") as store, pytest.raises(StoreAway, match="Connection refused"):
        store.query_system("SELECT 1")


@pytest.mark.slow
def test_of_several_nodes_the_next_is_asked_when_one_stops_answering(clickhouse: ClickHouseServer) -> None:
    with TcpProxy(clickhouse.http_port) as first, TcpProxy(clickhouse.http_port) as second:
        url = clickhouse.url.replace(
            f":{clickhouse.http_port}/", f":1,127.0.0.1:{first.port},127.0.0.1:{second.port}/"
        )
        with open_store(url) as store:
            store.query_system("SELECT 1")
            for gone, there in ((first, second), (second, first)):
                gone.behaviour, there.behaviour = "refuse", "forward"
                gone.drop_connections()
                with suppress(StoreAway):  # whoever asks at that moment hears of it, and asks again
                    store.query_system("SELECT 1")
                assert store.query_system("SELECT 2 AS n")["n"].to_pylist() == [2]


@pytest.mark.slow
def test_engine_has_our_memory_and_merges_and_keeps_few_questions_whatever_config_xml_says(tmp_path: Path) -> None:
    users = "<users><default><password>x</password></default></users>"
    memory = "<max_server_memory_usage>1</max_server_memory_usage>"
    (tmp_path / "config.xml").write_text(f"<clickhouse>{users}{memory}</clickhouse>")
    wanted = {
        "max_cleanup_delay_period": 60,
        "min_bytes_for_wide_part": 128 << 20,
        "min_compressed_bytes_to_fsync_after_merge": 1,
        "old_parts_lifetime": 60,
    }
    changed = "SELECT name, toUInt64(value) AS value FROM system.merge_tree_settings WHERE changed ORDER BY name"
    child = run_child(
        f"""
        from lockstep.store.store import open_store
        cache = "SELECT sum(value) AS bytes FROM system.metrics WHERE metric = 'QueryConditionCacheBytes'"
        memory = "name IN ('max_server_memory_usage', 'memory_worker_use_cgroup')"
        with open_store("chdb://{tmp_path}/store", memory_bytes=1 << 30) as store:
            found = store.query_system(f"SELECT value FROM system.server_settings WHERE {{memory}} ORDER BY name")
            print(*found["value"].to_pylist())
            print({{row["name"]: row["value"] for row in store.query_system({changed!r}).to_pylist()}})
            store.command("CREATE TABLE t (p UInt16, v UInt32) ENGINE = MergeTree PARTITION BY p ORDER BY p")
            store.command("INSERT INTO t SELECT number % 200, number FROM numbers(2000)")
            for number in range(100):
                store.query_system(f"SELECT count() AS n FROM t WHERE v > {{2000 + number}}")
            print(store.query_system(cache)["bytes"][0])
        """,
        tmp_path,
    )
    given, settings, cached = child.stdout.splitlines()
    assert given.split() == [str(1 << 30), "0"], child.stderr
    assert settings == str(wanted)
    assert 0 < int(cached) <= 1 << 20, "questions that are asked once are not remembered without end"
