"""GPUs show heat and idleness, look healthy when only their work is slow, and are named as NVML names things."""

import pytest

from collector.gpus.readings import throttle_words
from lockstep.sim.gpu_readings import HOT, IDLE, gpu_uuid
from lockstep.sim.story import JobShape, Story
from tests.lockstep.sim import build
from tests.lockstep.sim.following import Row, follow, rows_at

JOB = JobShape(compute_ms=300.0, allreduce_mb=(64, 32))


def story(*lines: str, spares: int = 0) -> Story:
    """Return a story with steps of 0.3 s."""
    return build.story(*lines, cluster=build.cluster(spares=spares), job=JOB, duration_s=30.0)


def readings(told: Story, second: int) -> dict[str, Row]:
    """Return the readings at a second, by GPU as verdicts name it."""
    rows = rows_at(follow(told, second), "gpu_health", second)
    return {f"{row['host']}/{row['gpu']}": row for row in rows}


def differing(told: Story, *columns: str) -> dict[str, set[str]]:
    """Return which GPUs show something else than in the same story without faults, by column."""
    healthy, found = readings(story(), 10), readings(told, 10)
    changes = {column: {gpu for gpu in found if found[gpu][column] != healthy[gpu][column]} for column in columns}
    return {column: gpus for column, gpus in changes.items() if gpus}


def test_words_are_those_of_nvml() -> None:
    known = throttle_words((1 << 11) - 1).split(",")
    assert {HOT, IDLE} <= set(known)


def test_gpus_that_work_run_at_full_clock() -> None:
    for row in readings(story(), 10).values():
        assert (row["sm_mhz"], row["throttle"]) == (1980, "")
        assert row["util"] > 0.9
        assert 50 < row["temp_c"] < 75
        assert 300 < row["power_w"] < 700
        assert (row["ecc_sbe"], row["ecc_dbe"], row["nvlink_errors"], row["pcie_replays"]) == (0, 0, 0, 0)


def test_heat_lowers_the_clock_little_by_little_and_says_so() -> None:
    told = story("at 2 s fail gpu:h1/2 to 60 % over 10 s")
    tables = follow(told, 15)
    hot = [rows_at(tables, "gpu_health", second)[1 * 4 + 2] for second in (0, 5, 10, 15)]
    assert [row["sm_mhz"] for row in hot] == [345, 1742, 1346, 1188]  # before its first operation it is not in use
    assert [row["throttle"] for row in hot[1:]] == ["hw_thermal_slowdown"] * 3
    assert all(row["temp_c"] > 80 for row in hot[1:])
    assert differing(told, "sm_mhz", "throttle") == {"sm_mhz": {"h1/2"}, "throttle": {"h1/2"}}


def test_gpu_that_is_slow_by_defect_looks_healthy() -> None:
    told = story("at 2 s fail gpu:h1/2 to 60 %")
    assert differing(told, "sm_mhz", "throttle", "temp_c") == {}


def test_those_who_wait_for_a_slow_gpu_draw_less_than_it_does() -> None:
    rows = readings(story("at 0 s fail gpu:h1/2 to 30 %"), 10)
    busy_w = rows.pop("h1/2")["power_w"]
    assert all(row["power_w"] < busy_w - 100 for row in rows.values())
    assert all(row["util"] > 0.9 for row in rows.values())


@pytest.mark.parametrize(("kind", "column"), [("pcie", "pcie_replays"), ("nvlink", "nvlink_errors")])
def test_bad_connection_of_a_gpu_counts_errors(kind: str, column: str) -> None:
    told = story(f"at 2 s fail {kind}:h1/2 to 50 %")
    assert differing(told, "pcie_replays", "nvlink_errors", "sm_mhz", "throttle") == {column: {"h1/2"}}


def test_whoever_hangs_in_an_operation_looks_busy_and_whoever_was_killed_idle() -> None:
    rows = readings(story("at 2 s fail rank:6 killed"), 15)
    dead = rows.pop("h1/2")
    assert (dead["util"], dead["throttle"]) == (0.0, "gpu_idle")
    assert all(row["util"] > 0.9 and row["throttle"] == "" and row["power_w"] < 300 for row in rows.values())


def test_kernel_that_never_ends_looks_busy() -> None:
    rows = readings(story("at 2 s fail gpu:h1/2 stuck"), 15)
    assert all(row["util"] > 0.9 for row in rows.values())


def test_spares_are_idle() -> None:
    rows = readings(story(spares=2), 10)
    idle = {gpu for gpu, row in rows.items() if row["throttle"] == "gpu_idle"}
    assert idle == {f"h{host}/{gpu}" for host in (4, 5) for gpu in range(4)}
    assert {(rows[gpu]["util"], rows[gpu]["sm_mhz"]) for gpu in idle} == {(0.0, 345)}


def test_gpus_have_names_that_last() -> None:
    rows = readings(story(), 0)
    assert len({row["gpu_uuid"] for row in rows.values()}) == len(rows) == 16
    assert rows["h1/2"]["gpu_uuid"] == gpu_uuid("h1", 2)
