"""Where a store is, and the embedded engine's guards: one process a directory, and no foreign config.xml."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lockstep.errors import BadInput, StoreAway, StoreBusy, StoreRefused
from lockstep.store.engine import Embedded, Server, parse_address
from lockstep.store.store import open_store
from tests.testbed.clickhouse import ClickHouseServer


def run_child(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
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
        ("http://db:99999/t", "not a URL"),
        ("http://db/drop table", "cannot be a database name"),
    ],
)
def test_a_bad_address_is_refused_with_the_reason(url: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        parse_address(url)


@pytest.mark.parametrize(
    "config",
    [
        "garbage",
        "<clickhouse><users><default><password>x</password></default></users></clickhouse>",
        "<clickhouse><max_server_memory_usage>1</max_server_memory_usage></clickhouse>",
    ],
)
def test_a_config_xml_in_the_working_directory_changes_nothing(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.xml").write_text(config)
    child = run_child(
        f"""
        from lockstep.store.store import open_store
        with open_store("chdb://{tmp_path}/store", memory_bytes=1 << 30) as store:
            memory = store.query_system(
                "SELECT value FROM system.server_settings"
                " WHERE name IN ('max_server_memory_usage', 'memory_worker_use_cgroup') ORDER BY name"
            )
            print(*memory["value"].to_pylist())
        """,
        tmp_path,
    )
    assert child.stdout.split() == [str(1 << 30), "0"], child.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.xml", "store"]


def test_a_second_process_is_told_who_holds_the_store(tmp_path: Path) -> None:
    with open_store(f"chdb://{tmp_path}") as store:
        store.query_system("SELECT 1")
        child = run_child(
            f"""
            from lockstep.errors import StoreBusy
            from lockstep.store.store import open_store
            try:
                open_store("chdb://{tmp_path}")
            except StoreBusy as busy:
                print(busy)
            """,
            tmp_path,
        )
    assert f"in use by process {os.getpid()}" in child.stdout, child.stderr


def test_the_same_process_cannot_open_it_twice_but_again(tmp_path: Path) -> None:
    for _ in range(2):
        with open_store(f"chdb://{tmp_path}") as store:
            store.query_system("SELECT 1")
            with pytest.raises(StoreBusy, match="in use"):
                open_store(f"chdb://{tmp_path}")


def test_a_process_that_died_holds_nothing(tmp_path: Path) -> None:
    child = run_child(
        f"""
        import os, signal
        from lockstep.store.store import open_store
        open_store("chdb://{tmp_path}").query_system("SELECT 1")
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    assert child.returncode == -9
    with open_store(f"chdb://{tmp_path}") as store:
        store.query_system("SELECT 1")


def test_a_wrong_password_is_refused_without_showing_it(clickhouse: ClickHouseServer) -> None:
    wrong = clickhouse.url.replace(clickhouse.password, "hush-hush")
    with open_store(wrong) as store, pytest.raises(StoreRefused, match="refuses this user or password") as caught:
        store.query_system("SELECT 1")
    assert "hush-hush" not in str(caught.value)


def test_a_server_that_is_not_there_is_away(tmp_path: Path) -> None:
    with open_store("http://u@127.0.0.1:1/x") as store, pytest.raises(StoreAway, match="Connection refused"):
        store.query_system("SELECT 1")


def test_engine_keeps_few_questions_and_merges_parts_as_it_is_told(tmp_path: Path) -> None:
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
        with open_store("chdb://{tmp_path}/store") as store:
            print({{row["name"]: row["value"] for row in store.query_system({changed!r}).to_pylist()}})
            store.command("CREATE TABLE t (p UInt16, v UInt32) ENGINE = MergeTree PARTITION BY p ORDER BY p")
            store.command("INSERT INTO t SELECT number % 200, number FROM numbers(2000)")
            for number in range(100):
                store.query_system(f"SELECT count() AS n FROM t WHERE v > {{2000 + number}}")
            print(store.query_system(cache)["bytes"][0])
        """,
        tmp_path,
    )
    settings, cached = child.stdout.splitlines()
    assert settings == str(wanted), child.stderr
    assert 0 < int(cached) <= 1 << 20, "questions that are asked once are not remembered without end"
