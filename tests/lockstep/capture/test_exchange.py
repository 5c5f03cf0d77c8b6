"""A capture goes into a store once however often it is loaded, and comes out of it with the same rows."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lockstep.capture import exchange
from lockstep.capture.exchange import export_capture, load_capture
from lockstep.capture.files import Capture, CaptureInfo, CaptureWriter, read_capture
from lockstep.errors import BadCapture, NotPresent
from lockstep.records import Agent, Collective, Comm, HostRecord
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME, TABLES
from tests.builders import SECOND, T0, make, rows
from tests.lockstep.capture.build import INFO, TOPOLOGY, sample, whole_capture, write_capture, write_directory


def as_set(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def counts(store: Store) -> dict[str, int]:
    sizes = {table.name: "count()" for table in TABLES} | dict.fromkeys(("operations", "rank_minutes"), "sum(n)")
    parts = [f"SELECT '{name}' AS name, toUInt64({size}) AS n FROM {name}" for name, size in sizes.items()]
    return {row["name"]: row["n"] for row in store.query(" UNION ALL ".join(parts)).to_pylist()}


def exported(store: Store, target: Path, info: CaptureInfo = INFO) -> Capture:
    with CaptureWriter(target) as writer:
        export_capture(store, writer, info.job, info.start_ns, info.end_ns, TOPOLOGY)
    return read_capture(target)


def load(store: Store, *records: HostRecord) -> None:
    table = rows(*records)
    name = next(table.name for table in TABLES if table.record is type(records[0]))
    load_capture(store, Capture(INFO, tables={name: table}))


def test_loading_twice_is_loading_once_and_export_gives_it_back(store: Store, tmp_path: Path) -> None:
    capture = whole_capture()
    assert load_capture(store, capture) == sum(table.num_rows for table in capture.tables.values())
    once = counts(store)
    assert load_capture(store, capture) == 5 * len(TABLES)
    assert counts(store) == once == {table.name: 5 for table in TABLES} | {"operations": 1, "rank_minutes": 10}
    found = exported(store, tmp_path / "case.tar.zst")
    assert found.info == INFO.model_copy(update={"hosts": tuple(f"h{number}" for number in range(5))})
    assert found.topology == TOPOLOGY
    assert set(found.tables) == set(capture.tables)
    for name, table in capture.tables.items():
        assert as_set(found.tables[name]) == as_set(table), name


def test_a_job_that_came_as_a_capture_is_in_the_list_whatever_tells_of_it(embedded_store: Store) -> None:
    for name in ("comms", "op_stats", "collectives", "steps"):
        table, info = sample(TABLE_BY_NAME[name]), INFO.model_copy(update={"job": name})
        at = table.schema.get_field_index("job")
        told = table.set_column(at, table.schema.field(at), pa.array([name] * table.num_rows, pa.string()))
        load_capture(embedded_store, Capture(info, tables={name: told}))
        asked = "SELECT min(first_ns) AS at FROM attempts WHERE job = {job:String}"
        (known,) = embedded_store.query(asked, {"job": name}).to_pylist()
        assert known["at"] in table[TABLE_BY_NAME[name].time].to_pylist()


def test_same_rows_are_the_same_capture_however_they_come(
    embedded_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = sample(TABLE_BY_NAME["steps"])
    capture = Capture(INFO, tables={"steps": steps})
    chunks = Capture(INFO, tables={"steps": pa.concat_tables([steps.slice(0, 2), steps.slice(2)])})
    for each in (capture, chunks):
        load_capture(embedded_store, each)
    for name in ("case", "case.tar.zst"):
        write_capture(tmp_path / name, capture)
        load_capture(embedded_store, read_capture(tmp_path / name))
    assert counts(embedded_store)["steps"] == 5
    load(embedded_store, make(Agent, ts_ns=T0))
    load(embedded_store, make(Agent, ts_ns=T0 + 1))
    assert counts(embedded_store)["agents"] == 2, "another capture adds its rows"
    monkeypatch.setattr(exchange, "_ROWS_PER_INSERT", 2)
    for _ in range(2):
        assert load_capture(embedded_store, Capture(INFO, tables={"events": sample(TABLE_BY_NAME["events"])})) == 5
    assert counts(embedded_store)["events"] == 5, "many rows go in pieces, and still once"


def test_export_has_what_is_of_the_job_of_its_hosts_and_between_its_ends_and_no_minute(
    embedded_store: Store, tmp_path: Path
) -> None:
    timestamps = [T0 - 1, T0, T0 + 59 * SECOND, T0 + 60 * SECOND, T0 + 130 * SECOND - 1, T0 + 130 * SECOND]
    operations = [make(Collective, seq=seq, enqueue_ns=timestamp) for seq, timestamp in enumerate(timestamps)]
    load(embedded_store, *operations, make(Collective, host="h1", job="j2"))
    load(embedded_store, *(make(Agent, host=host, ts_ns=ts_ns) for host in ("h0", "h1") for ts_ns in timestamps))
    found = exported(embedded_store, tmp_path / "case", INFO.model_copy(update={"end_ns": T0 + 130 * SECOND}))
    assert found.info.hosts == ("h0",)
    assert found.tables["collectives"].equals(rows(*operations[1:-1]))
    assert found.tables["agents"].select(["host", "ts_ns"]).to_pylist() == [
        {"host": "h0", "ts_ns": ts_ns} for ts_ns in timestamps[1:-1]
    ]


def test_newest_version_of_a_communicator_is_exported_however_old(embedded_store: Store, tmp_path: Path) -> None:
    made = make(Comm, init_ns=T0 - 3_600 * SECOND)
    load(embedded_store, made)
    load(embedded_store, replace(made, destroy_ns=T0 + SECOND))
    found = exported(embedded_store, tmp_path / "case")
    assert found.tables["comms"]["destroy_ns"].to_pylist() == [T0 + SECOND]
    assert set(found.tables) == {"comms"}


def test_job_without_a_communicator_can_be_exported(embedded_store: Store, tmp_path: Path) -> None:
    steps = sample(TABLE_BY_NAME["steps"])
    load_capture(embedded_store, Capture(INFO, tables={"steps": steps}))
    found = exported(embedded_store, tmp_path / "case").tables
    assert {name: as_set(rows) for name, rows in found.items()} == {"steps": as_set(steps)}


def test_unknown_job_is_not_present_and_leaves_no_file(embedded_store: Store, tmp_path: Path) -> None:
    load(embedded_store, make(Comm))
    for job in ("j2", "", "j1' OR '1'='1"):
        with pytest.raises(NotPresent, match="the store knows no job"):
            exported(embedded_store, tmp_path / "case", INFO.model_copy(update={"job": job}))
    assert [entry.name for entry in tmp_path.iterdir() if "case" in entry.name] == []


def test_invalid_capture_leaves_the_store_untouched(embedded_store: Store, tmp_path: Path) -> None:
    odd = sample(TABLE_BY_NAME["transfers"]).to_pylist()
    odd[-1]["last_ns"] = -1
    tables = {"collectives": sample(TABLE_BY_NAME["collectives"]), "transfers": pa.Table.from_pylist(odd)}
    with pytest.raises(BadCapture, match=r"transfers\.parquet, column last_ns, row 4: negative time"):
        load_capture(embedded_store, read_capture(write_directory(tmp_path / "case", tables)))
    assert set(counts(embedded_store).values()) == {0}
