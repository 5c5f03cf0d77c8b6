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
    """Return how far a rank has come at T0, with an operation that is open for so long."""
    is_open = {} if open_s is None else {"oldest_open_ns": T0 - open_s * SECOND, "head_state": "wire"}
    return make(Progress, rank=rank, enqueued=enqueued, started=done, done=done, **is_open)


def gpu(index: int, *, at_s: int, throttle: str = "", errors: int = 0) -> GpuHealth:
    counted = dict.fromkeys(("ecc_sbe", "ecc_dbe", "nvlink_errors", "pcie_replays"), errors)
    state = {"sm_mhz": 1200, "temp_c": 81.5, "power_w": 640.0, "util": 0.5, "throttle": throttle}
    return make(GpuHealth, ts_ns=T0 + at_s * SECOND, gpu=index, gpu_uuid=f"GPU-{index}", **state, **counted)


def port(*, at_s: int, drops: int) -> FabricCounter:
    place = {"host": "head", "switch": "leaf1", "port": "swp1", "up": True, "speed_mbps": 400_000}
    return make(FabricCounter, ts_ns=T0 + at_s * SECOND, errors=0, drops=drops, pause_rx=0, **place)


RECORDS: tuple[tuple[HostRecord, ...], ...] = (
    (make(Comm, rank=0), make(Comm, rank=1, host="h1")),
    (make(Collective),),
    (make(OpStat), make(OpStat, rank=1, gap_sum_ns=SECOND)),
    (make(Transfer),),
    (make(TransferStat, peer_wait_ns=SECOND), make(TransferStat, rank=1, peer=0, host="h1")),
    (progress(0, enqueued=5, done=4, open_s=60), progress(1, enqueued=4, done=4, open_s=None)),
    (step("j1", 1, 0, T0, 1.0), step("j1", 2, 0, T0 + 280 * SECOND, 2.0)),
    (make(Agent, plugin_cost_ns=5), make(Agent, ts_ns=T0 + SECOND, plugin_cost_ns=9, cpu_ns=10**7)),
    (make(ClockQuality, offset_ns=-500, error_ns=900, source="ptp"),),
    (make(NicCounter), make(NicCounter, ts_ns=T0 + SECOND, up=False, speed_mbps=None, tx_bytes=7)),
    (port(at_s=0, drops=0), port(at_s=1, drops=12)),
    (gpu(3, at_s=0), gpu(3, at_s=1, throttle="hw_thermal", errors=2)),
    (make(Event, severity="error"), make(Event)),
    (make(Probe, sport=1, dport=2), make(Probe, sport=3, dport=2, rtt_ns=9)),
)


def test_every_query_finds_what_is_there_and_nothing_in_a_silent_hour(embedded_store: Store) -> None:
    for records in RECORDS:
        insert(embedded_store, *records)
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


def insert(store: Store, *records: HostRecord) -> None:
    put(store, records)


def shown(store: Store, title: str) -> Found:
    found: Found = store.query(sql_of(title)).to_pylist()
    return found


def test_rows_per_second_are_counted_by_table(embedded_store: Store) -> None:
    outside = make(OpStat, ts_ns=T0 - 301 * SECOND), make(OpStat, ts_ns=T0 + 300 * SECOND)
    insert(embedded_store, *(make(OpStat, rank=rank) for rank in range(6)), *outside)
    insert(embedded_store, *(make(TransferStat, rank=rank) for rank in range(12)))
    found = shown(embedded_store, "Rows per second, by table")
    assert {row["kind"]: row["rows_per_second"] for row in found} == {"op_stats": 0.1, "transfer_stats": 0.2}


def test_of_many_ranks_the_one_that_others_wait_for_is_shown(embedded_store: Store) -> None:
    usual = [make(OpStat, rank=rank, n=2, dur_sum_ns=2 * SECOND) for rank in range(40)]
    insert(embedded_store, *usual, make(OpStat, rank=40, n=2, dur_sum_ns=SECOND))
    found = shown(embedded_store, "Mean operation time of the 20 most unusual ranks")
    assert len(found) == 20
    assert {row["who"]: row["mean_seconds"] for row in found}["rank 40 of 0x07"] == 0.5


def test_the_latest_rank_has_the_longest_time_of_its_own(embedded_store: Store) -> None:
    insert(embedded_store, *(make(OpStat, rank=rank, n=4, gap_sum_ns=rank * SECOND) for rank in range(30)))
    found = shown(embedded_store, "Own time between operations of the 20 latest ranks")
    assert {row["who"] for row in found} == {f"rank {rank} of 0x07" for rank in range(10, 30)}
    assert {row["who"]: row["own_seconds"] for row in found}["rank 29 of 0x07"] == 7.25


def test_the_slowest_pair_comes_first_with_its_rate(embedded_store: Store) -> None:
    fast = make(TransferStat, rank=0, peer=1, bytes=1_000_000, wire_ns=40_000)
    slow = make(TransferStat, rank=1, peer=2, bytes=1_000_000, wire_ns=80_000, wire_max_ns=SECOND, nic="eth1")
    unknown = make(TransferStat, rank=2, peer=3, wire_ns=None, wire_max_ns=None)
    received = make(TransferStat, rank=3, peer=2, direction="recv", wire_ns=1_000_000)
    insert(embedded_store, fast, slow, unknown, received)
    found = shown(embedded_store, "Slowest pairs")
    assert [(row["rank"], row["peer"], row["gbps"]) for row in found] == [(1, 2, 100.0), (0, 1, 200.0)]
    assert (found[0]["host"], found[0]["nic"], found[0]["longest_seconds"]) == ("h0", "eth1", 1.0)
    (host,) = shown(embedded_store, "Wire time per megabyte, by sending host")
    assert host["seconds_per_mb"] == pytest.approx(60e-6)


def test_another_jobs_rows_are_not_shown(embedded_store: Store) -> None:
    insert(embedded_store, make(OpStat, job="j2"))
    insert(embedded_store, make(TransferStat, job="j2", peer_wait_ns=SECOND))

    for board in ("jobs", "wires"):
        titles = [panel["title"] for panel in boards()[board]["panels"] if "${job" in panel["targets"][0]["rawSql"]]
        assert len(titles) >= 4
        assert [title for title in titles if shown(embedded_store, title)] == []


def test_job_that_became_slower_comes_first_with_how_much(embedded_store: Store) -> None:
    before = [
        step(job, n, 0, T0 + at_s * SECOND, 2.0)
        for job in ("steady", "slower", "ended")
        for n, at_s in enumerate(range(-300, 240, 60))
    ]
    late_ns = T0 + 290 * SECOND
    steady, slower = step("steady", 99, 0, late_ns, 2.0), step("slower", 99, 0, late_ns, 3.0)
    insert(embedded_store, *before, steady, slower)
    found = shown(embedded_store, "Jobs, the slowest against itself first")
    assert [(row["job"], row["times_usual"]) for row in found] == [("slower", 1.5), ("steady", 1.0)]
    assert found[0]["last_step"] == 99


def test_operation_that_is_open_for_long_is_shown_with_whom_it_waits_for(embedded_store: Store) -> None:
    hangs = progress(0, enqueued=9, done=8, open_s=45)
    insert(
        embedded_store, hangs, progress(1, enqueued=8, done=8, open_s=None), progress(2, enqueued=9, done=8, open_s=3)
    )
    (found,) = shown(embedded_store, "Operations that do not end")
    assert (found["rank"], found["asked_for"], found["ended"]) == (0, 9, 8)
    assert (found["waits_for"], found["open_seconds"]) == ("wire", 45.0)


def test_rates_of_a_nic_survive_a_counter_that_begins_anew(embedded_store: Store) -> None:
    counts = [1000, 3000, 500, 1500]  # after the second sample the driver was loaded again
    insert(
        embedded_store, *(make(NicCounter, ts_ns=T0 + n * SECOND, tx_bytes=value) for n, value in enumerate(counts))
    )
    (found,) = shown(embedded_store, "NICs: sent")
    assert found["which"] == "h0/eth0"
    assert found["sent"] == 1000.0  # 2,000 and 1,000 within three seconds


def test_link_that_was_never_up_is_not_called_down(embedded_store: Store) -> None:
    spare = [make(NicCounter, nic="spare", ts_ns=T0 + n * SECOND, up=False) for n in range(3)]
    lost = [make(NicCounter, nic="eth1", ts_ns=T0 + n * SECOND, up=n == 0) for n in range(3)]
    insert(embedded_store, *spare, *lost)
    found = shown(embedded_store, "Links without a carrier")
    assert [(row["nic"], row["down_seconds"]) for row in found] == [("eth1", 2.0)]


def test_gpu_that_is_held_down_is_shown_with_the_reason(embedded_store: Store) -> None:
    insert(embedded_store, gpu(0, at_s=0), gpu(0, at_s=1), gpu(1, at_s=0), gpu(1, at_s=1, throttle="hw_thermal"))
    (found,) = shown(embedded_store, "GPUs with a lowered clock")
    assert (found["gpu"], found["because"], found["share_of_samples"]) == (1, "hw_thermal", 0.5)


def test_silent_agent_comes_before_one_that_is_behind(embedded_store: Store) -> None:
    end_ns = TO_S * SECOND
    insert(
        embedded_store,
        make(Agent, host="well", ts_ns=end_ns - SECOND, watermark_ns=end_ns - SECOND),
        make(Agent, host="behind", ts_ns=end_ns - SECOND, watermark_ns=end_ns - 61 * SECOND, spool_bytes=5),
        make(Agent, host="silent", ts_ns=end_ns - 100 * SECOND, watermark_ns=end_ns - 100 * SECOND),
    )
    found = shown(embedded_store, "Agents, the silent ones first")
    assert [row["host"] for row in found] == ["silent", "behind", "well"]
    assert (found[0]["silent_seconds"], found[1]["behind_seconds"], found[1]["waiting_bytes"]) == (100.0, 60.0, 5)
