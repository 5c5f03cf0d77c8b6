"""Every query of every dashboard runs on a real store and finds what is there; what single panels say is true."""

import pytest

from lockstep.records import (
    Agent,
    ClockQuality,
    Collective,
    Comm,
    Event,
    FabricCounter,
    GpuHealth,
    HostRecord,
    NicCounter,
    OpStat,
    Probe,
    Progress,
    Transfer,
    TransferStat,
)
from lockstep.store.store import Store
from tests.api.views.build import put, step
from tests.builders import SECOND, T0, make
from tests.deploy.grafana_boards import TO_S, boards, literal, panels, sql_of

Found = list[dict[str, object]]


def progress(rank: int, *, enqueued: int, done: int, open_s: int | None) -> Progress:
    is_open = {} if open_s is None else {"oldest_open_ns": T0 - open_s * SECOND, "head_state": "wire"}
    return make(Progress, rank=rank, enqueued=enqueued, started=done, done=done, **is_open)


def gpu(index: int, *, at_s: int, throttle: str = "", errors: int = 0) -> GpuHealth:
    counted = dict.fromkeys(("ecc_sbe", "ecc_dbe", "nvlink_errors", "pcie_replays"), errors)
    state = {"sm_mhz": 1200, "temp_c": 81.5, "power_w": 640.0, "util": 0.5, "throttle": throttle}
    return make(GpuHealth, ts_ns=T0 + at_s * SECOND, gpu=index, gpu_uuid=f"GPU-{index}", **state, **counted)


def port(*, at_s: int, drops: int) -> FabricCounter:
    place = {"host": "head", "switch": "leaf1", "port": "swp1", "up": True, "speed_mbps": 400_000}
    return make(FabricCounter, ts_ns=T0 + at_s * SECOND, errors=0, drops=drops, pause_rx=0, **place)


RECORDS: tuple[HostRecord, ...] = (
    *(make(Comm, rank=0), make(Comm, rank=1, host="h1")),
    *(make(Collective), make(Transfer), make(ClockQuality, offset_ns=-500, error_ns=900, source="ptp")),
    *(make(OpStat), make(OpStat, rank=1, gap_sum_ns=SECOND)),
    *(make(TransferStat, peer_wait_ns=SECOND), make(TransferStat, rank=1, peer=0, host="h1")),
    *(progress(0, enqueued=5, done=4, open_s=60), progress(1, enqueued=4, done=4, open_s=None)),
    *(step("j1", 1, 0, T0, 1.0), step("j1", 2, 0, T0 + 280 * SECOND, 2.0)),
    *(make(Agent, plugin_cost_ns=5), make(Agent, ts_ns=T0 + SECOND, plugin_cost_ns=9, cpu_ns=10**7)),
    *(make(NicCounter), make(NicCounter, ts_ns=T0 + SECOND, up=False, speed_mbps=None, tx_bytes=7)),
    *(port(at_s=0, drops=0), port(at_s=1, drops=12)),
    *(gpu(3, at_s=0), gpu(3, at_s=1, throttle="hw_thermal", errors=2)),
    *(make(Event, severity="error"), make(Event)),
    *(make(Probe, sport=1, dport=2), make(Probe, sport=3, dport=2, rtt_ns=9)),
)


def test_every_query_finds_what_is_there_and_nothing_in_a_silent_hour(embedded_store: Store) -> None:
    put(embedded_store, RECORDS)
    asking = [panel for panel in panels() if panel.sql]
    assert len(asking) > 20
    for panel in asking:
        found = embedded_store.query(literal(str(panel.sql)))
        assert found.num_rows > 0, panel.title
        units = {override["matcher"]["options"] for override in panel.document["fieldConfig"]["overrides"]}
        assert units <= set(found.column_names), f"{panel.title}: a unit for a column that is not there"
        assert ("time" in found.column_names) == (panel.document["type"] != "table"), panel.title
        hours_later = embedded_store.query(literal(str(panel.sql), later_s=10_000))
        is_timeless = panel.title in {"Communicators", "What the store holds"}
        assert (hours_later.num_rows == 0) != is_timeless, panel.title
    variables = [one for board in boards().values() for one in board["templating"]["list"] if one["type"] == "query"]
    choices = {one["name"]: embedded_store.query(literal(one["query"]))[one["name"]].to_pylist() for one in variables}
    assert choices == {"job": ["j1"], "host": ["h0"]}
    assert all(one["definition"] == one["query"] for one in variables), "Grafana shows the one and runs the other"


def shown(store: Store, title: str) -> Found:
    found: Found = store.query(sql_of(title)).to_pylist()
    return found


def at(second: float) -> int:
    return T0 + round(second * SECOND)


def test_panels_of_machines_tell_what_is_wrong_and_nothing_of_what_is_as_ever(embedded_store: Store) -> None:
    counts = [make(NicCounter, ts_ns=at(n), tx_bytes=sent) for n, sent in enumerate((1000, 3000, 500, 1500))]
    spare = [make(NicCounter, host="h1", nic="spare", ts_ns=at(n), up=False) for n in range(3)]
    lost = [make(NicCounter, host="h1", nic="eth1", ts_ns=at(n), up=n == 0) for n in range(3)]
    gpus = [gpu(0, at_s=0), gpu(0, at_s=1), gpu(1, at_s=0), gpu(1, at_s=1, throttle="hw_thermal")]
    silences_s = {"well": (1, 1), "behind": (1, 61), "silent": (100, 100)}
    end_ns = TO_S * SECOND
    agents = [
        make(Agent, host=host, ts_ns=end_ns - seen * SECOND, watermark_ns=end_ns - told * SECOND, spool_bytes=5)
        for host, (seen, told) in silences_s.items()
    ]
    put(embedded_store, [*counts, *spare, *lost, *gpus, *agents])
    sent = {row["which"]: row["sent"] for row in shown(embedded_store, "NICs: sent")}
    assert sent["h0/eth0"] == 1000.0, "2,000 and 1,000 within three seconds: the counter began anew between them"
    found = shown(embedded_store, "Links without a carrier")
    assert [(row["nic"], row["down_seconds"]) for row in found] == [("eth1", 2.0)], "a spare was never up"
    (found_gpu,) = shown(embedded_store, "GPUs with a lowered clock")
    assert (found_gpu["gpu"], found_gpu["because"], found_gpu["share_of_samples"]) == (1, "hw_thermal", 0.5)
    silent, behind, well = shown(embedded_store, "Agents, the silent ones first")
    assert (silent["host"], silent["silent_seconds"], well["host"]) == ("silent", 100.0, "well")
    assert (behind["host"], behind["behind_seconds"], behind["waiting_bytes"]) == ("behind", 60.0, 5)


def test_panels_of_jobs_tell_who_is_slow_and_who_is_waited_for(embedded_store: Store) -> None:
    usual = [step(job, n, 0, at(60 * n - 300), 2.0) for job in ("steady", "slower", "ended") for n in range(9)]
    put(embedded_store, [*usual, step("steady", 99, 0, at(290), 2.0), step("slower", 99, 0, at(290), 3.0)])
    slower, steady = shown(embedded_store, "Jobs, the slowest against itself first")
    assert (slower["job"], slower["times_usual"], slower["last_step"]) == ("slower", 1.5, 99)
    assert (steady["job"], steady["times_usual"]) == ("steady", 1.0)
    passing = (progress(1, enqueued=8, done=8, open_s=None), progress(2, enqueued=9, done=8, open_s=3))
    put(embedded_store, [progress(0, enqueued=9, done=8, open_s=45), *passing])
    (hangs,) = shown(embedded_store, "Operations that do not end")
    assert (hangs["rank"], hangs["asked_for"], hangs["ended"]) == (0, 9, 8)
    assert (hangs["waits_for"], hangs["open_seconds"]) == ("wire", 45.0)


def test_the_slowest_pair_comes_first_with_its_rate(embedded_store: Store) -> None:
    fast = make(TransferStat, rank=0, peer=1, bytes=1_000_000, wire_ns=40_000)
    slow = make(TransferStat, rank=1, peer=2, bytes=1_000_000, wire_ns=80_000, wire_max_ns=SECOND, nic="eth1")
    unknown = make(TransferStat, rank=2, peer=3, wire_ns=None, wire_max_ns=None)
    received = make(TransferStat, rank=3, peer=2, direction="recv", wire_ns=1_000_000)
    put(embedded_store, [fast, slow, unknown, received])
    found = shown(embedded_store, "Slowest pairs")
    assert [(row["rank"], row["peer"], row["gbps"]) for row in found] == [(1, 2, 100.0), (0, 1, 200.0)]
    assert (found[0]["host"], found[0]["nic"], found[0]["longest_seconds"]) == ("h0", "eth1", 1.0)
    (host,) = shown(embedded_store, "Wire time per megabyte, by sending host")
    assert host["seconds_per_mb"] == pytest.approx(60e-6)


def test_of_many_ranks_the_unusual_and_the_late_are_shown_and_rows_counted_by_table(embedded_store: Store) -> None:
    usual = [make(OpStat, rank=rank, n=2, dur_sum_ns=2 * SECOND, gap_sum_ns=rank * SECOND) for rank in range(40)]
    put(embedded_store, [*usual, make(OpStat, rank=40, n=2, dur_sum_ns=SECOND)])
    put(embedded_store, (make(TransferStat, rank=rank) for rank in range(12)))
    found = shown(embedded_store, "Mean operation time of the 20 most unusual ranks")
    assert len(found) == 20
    assert {row["who"]: row["mean_seconds"] for row in found}["rank 40 of 0x07"] == 0.5
    found = shown(embedded_store, "Own time between operations of the 20 latest ranks")
    assert {row["who"] for row in found} == {f"rank {rank} of 0x07" for rank in range(20, 40)}
    assert {row["who"]: row["own_seconds"] for row in found}["rank 39 of 0x07"] == 19.5
    put(embedded_store, (make(OpStat, ts_ns=at(second)) for second in (-301, 300)))  # outside of the range
    counted = {row["kind"]: row["rows_per_second"] for row in shown(embedded_store, "Rows per second, by table")}
    assert counted == {"op_stats": pytest.approx(41 / 60), "transfer_stats": 0.2}


def test_another_jobs_rows_are_not_shown(embedded_store: Store) -> None:
    put(embedded_store, [make(OpStat, job="j2"), make(TransferStat, job="j2", peer_wait_ns=SECOND)])
    for board in ("jobs", "wires"):
        titles = [panel["title"] for panel in boards()[board]["panels"] if "${job" in panel["targets"][0]["rawSql"]]
        assert len(titles) >= 4
        assert [title for title in titles if shown(embedded_store, title)] == []
