"""GPUs show heat and idleness, look healthy when only their work is slow, and are named as NVML names things."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from collector.sources.gpu import throttle_words
from lockstep.clock import NS_PER_S
from simulator.devices import HOT, IDLE, gpu_uuid, host_clocks
from simulator.scenario import Clocks, JobShape, Scenario
from tests.simulator.build import Row, cluster, follow, rows_at, scenario

JOB = JobShape(compute_ms=300.0, allreduce_mb=(64, 32))


def heated(*lines: str, spares: int = 0) -> Scenario:
    """Return a scenario with steps of 0.3 s."""
    return scenario(*lines, cluster=cluster(spares=spares), job=JOB, duration_s=30.0)


def readings(told: Scenario, second: int) -> dict[str, Row]:
    """Return the readings at a second, by GPU as verdicts name it."""
    rows = rows_at(follow(told, second), "gpu_health", second)
    return {f"{row['host']}/{row['gpu']}": row for row in rows}


def differing(told: Scenario, *columns: str) -> dict[str, set[str]]:
    """Return which GPUs show something else than in the same scenario without faults, by column."""
    healthy, found = readings(heated(), 10), readings(told, 10)
    changes = {column: {gpu for gpu in found if found[gpu][column] != healthy[gpu][column]} for column in columns}
    return {column: gpus for column, gpus in changes.items() if gpus}


def test_gpus_that_work_run_at_full_clock_and_spares_are_idle() -> None:
    rows = readings(heated(spares=2), 10)
    assert len({row["gpu_uuid"] for row in rows.values()}) == len(rows) == 24
    assert rows["h1/2"]["gpu_uuid"] == gpu_uuid("h1", 2)
    for gpu, row in rows.items():
        if gpu[:2] in ("h4", "h5"):
            assert (row["util"], row["sm_mhz"], row["throttle"]) == (0.0, 345, "gpu_idle")
            continue
        assert (row["sm_mhz"], row["throttle"]) == (1980, "")
        assert row["util"] > 0.9
        assert 50 < row["temp_c"] < 75
        assert 300 < row["power_w"] < 700
        assert (row["ecc_sbe"], row["ecc_dbe"], row["nvlink_errors"], row["pcie_replays"]) == (0, 0, 0, 0)
    assert {HOT, IDLE} <= set(throttle_words((1 << 11) - 1).split(","))  # the words are NVML's


def test_heat_lowers_the_clock_little_by_little_and_those_who_wait_draw_less() -> None:
    told = heated("at 2 s fail gpu:h1/2 to 60 % over 10 s")
    tables = follow(told, 15)
    hot = [rows_at(tables, "gpu_health", second)[1 * 4 + 2] for second in (0, 5, 10, 15)]
    assert [row["sm_mhz"] for row in hot] == [345, 1742, 1346, 1188]  # before its first operation it is not in use
    assert [row["throttle"] for row in hot[1:]] == ["hw_thermal_slowdown"] * 3
    assert all(row["temp_c"] > 80 for row in hot[1:])
    assert differing(told, "sm_mhz", "throttle") == {"sm_mhz": {"h1/2"}, "throttle": {"h1/2"}}
    rows = readings(heated("at 0 s fail gpu:h1/2 to 30 %"), 10)
    busy_w = rows.pop("h1/2")["power_w"]
    assert all(row["power_w"] < busy_w - 100 for row in rows.values())
    assert all(row["util"] > 0.9 for row in rows.values())


@pytest.mark.parametrize(
    ("kind", "columns"), [("pcie", {"pcie_replays"}), ("nvlink", {"nvlink_errors"}), ("gpu", set())]
)
def test_bad_connection_of_a_gpu_counts_errors_and_a_slow_gpu_looks_healthy(kind: str, columns: set[str]) -> None:
    told = heated(f"at 2 s fail {kind}:h1/2 to 50 %")
    found = differing(told, "pcie_replays", "nvlink_errors", "sm_mhz", "throttle", "temp_c")
    assert found == {column: {"h1/2"} for column in columns}


def test_whoever_hangs_in_an_operation_looks_busy_and_whoever_was_killed_idle() -> None:
    rows = readings(heated("at 2 s fail rank:6 killed"), 15)
    dead = rows.pop("h1/2")
    assert (dead["util"], dead["throttle"]) == (0.0, "gpu_idle")
    assert all(row["util"] > 0.9 and row["throttle"] == "" and row["power_w"] < 300 for row in rows.values())
    assert all(row["util"] > 0.9 for row in readings(heated("at 2 s fail gpu:h1/2 stuck"), 15).values())


SKEWED = scenario(
    clocks=Clocks(skew_ms=10.0, drift_ppm=50.0, known_to_us=200.0),
    cluster=cluster(spares=2),
    job=JobShape(compute_ms=900.0),
)


def test_offsets_and_drifts_fill_the_range_that_the_scenario_names_and_are_those_of_the_seed() -> None:
    drawn = [host_clocks(SKEWED, seed) for seed in range(50)]
    offsets_ms = np.concatenate([offset_ns for offset_ns, _ in drawn]) / 1e6
    drifts_ppm = np.concatenate([drift for _, drift in drawn]) * 1e6
    assert len(offsets_ms) == len(drifts_ppm) == 50 * 6
    assert 9.0 < np.abs(offsets_ms).max() <= 10.0
    assert 45.0 < np.abs(drifts_ppm).max() <= 50.0
    assert offsets_ms.min() < 0 > drifts_ppm.min()
    assert_array_equal(host_clocks(SKEWED, 3), drawn[3])
    assert (host_clocks(SKEWED, 4)[0] != drawn[3][0]).all()
    assert not np.any(host_clocks(scenario(), 1)), "clocks are exact unless the scenario says otherwise"


def test_what_hosts_say_of_their_clocks_is_true_within_its_bound() -> None:
    tables, (offset_ns, drift) = follow(SKEWED, 30), host_clocks(SKEWED, 1)
    missed_ns = []
    for second in (0, 10, 20, 30):
        rows = rows_at(tables, "clocks", second)
        assert [row["host"] for row in rows] == [f"h{host}" for host in range(6)]
        assert {(row["error_ns"], row["source"]) for row in rows} == {(200_000, "ntp")}
        truth_ns = offset_ns + drift * second * NS_PER_S
        missed_ns += [row["offset_ns"] - true_ns for row, true_ns in zip(rows, truth_ns, strict=True)]
    assert 0 < np.abs(missed_ns).max() <= 200_001  # the truth is rounded to nanoseconds
    assert len(set(missed_ns)) == len(missed_ns)
