"""Each error has the severity of Unicron's table, and a verdict has one by itself."""

import pytest

from lockstep.verdict import Impact
from planner.recovery.taxonomy import classify, is_alarm, severity_of
from planner.recovery.weighing import weigh
from tests.planner.recovery.build import crash, event, situation, verdict


@pytest.mark.parametrize(
    ("kind", "message", "severity", "name"),
    [
        ("gpu_lost", "GPU 0000:3b:00 has fallen off the bus", 1, "GPU lost"),
        ("xid", "Xid 79 [XID 79: blame hardware]", 1, "XID of the hardware"),
        ("xid", "Xid 31 [XID 31: blame application]", 2, "error of the application on the GPU"),
        ("python_exception", "RuntimeError: CUDA error: uncorrectable ECC error encountered", 1, "ECC error"),
        ("python_exception", "RuntimeError: NVLink error on device 3", 1, "NVLink error"),
        ("python_exception", "RuntimeError: invalid DMA mapping", 1, "invalid DMA mapping"),
        ("python_exception", "DistBackendError: Connection reset by peer", 3, "connection broke"),
        ("python_exception", "DistBackendError: ncclRemoteError: A call failed", 3, "network error"),
        ("python_exception", "Watchdog caught collective operation timeout", 3, "NCCL timeout"),
        ("python_exception", "torch.OutOfMemoryError: CUDA out of memory", 2, "out of memory"),
        ("python_exception", "RuntimeError: CUDA error: an illegal memory access", 2, "CUDA error"),
        ("python_exception", "KeyError: 'tokens'", 2, "other error of the software"),
        ("process_exit", "rank 3 of job train was killed by SIGKILL", 2, "process ended abnormally"),
        ("link_flapping", "eth1 went down 4 times in 60 s", 3, "link down or flapping"),
        ("nic_health", "mlx5_0 is unhealthy", 3, "NIC error"),
    ],
)
def test_error_is_found_in_the_table(kind: str, message: str, severity: int, name: str) -> None:
    row = classify(event(kind, message))
    assert row is not None
    assert (row.severity, row.name) == (severity, name)


def test_what_is_no_error_has_no_row() -> None:
    assert classify(event("link_up", "eth1 is up")) is None


def test_the_worst_event_about_a_crash_counts() -> None:
    told = [event("process_exit", "rank 3 ended"), event("xid", "Xid 79 [XID 79: blame hardware]")]
    severity, why = severity_of(crash(component="rank:3"), told)
    assert severity == 1
    assert why == "XID of the hardware: Xid 79 [XID 79: blame hardware]"


def test_slow_part_that_would_be_drained_is_as_bad_as_a_dead_one_whatever_else_was_told() -> None:
    severity, why = severity_of(verdict(), [event("link_flapping", "eth1 flaps")])
    assert (severity, why) == (1, "the part stays slow whatever is done to the process")


@pytest.mark.parametrize(
    ("fault_class", "component", "severity"),
    [
        ("crash", "host:h3", 1),
        ("crash", "rank:3", 2),
        ("comm_hang", "nic:h3/eth1", 3),
        ("noncomm_hang", "host:h3", 2),
        ("software", "job:train", 2),
        ("global_slow", "job:train", 3),
    ],
)
def test_verdict_without_events_has_the_severity_of_its_class(
    fault_class: str, component: str, severity: int
) -> None:
    assert severity_of(verdict(fault_class=fault_class, component=component, grade="alert"))[0] == severity


def test_job_at_a_third_of_its_speed_is_restarted_where_nobody_is_to_blame() -> None:
    slow = verdict(fault_class="global_slow", grade="alert", impact=Impact(step_time_ratio=3.5, ranks_waiting=63))
    assert severity_of(slow) == (2, "steps take 3.5 times as long as usual")
    restart = next(each for each in weigh(situation(slow)) if each.action == "restart_process")
    assert restart.cost.gpu_hours is not None


@pytest.mark.parametrize(("ratio", "is_one"), [(None, False), (1.1, False), (2.99, False), (3.0, True)])
def test_three_times_the_usual_step_is_an_alarm(ratio: float | None, is_one: bool) -> None:
    assert is_alarm(ratio) is is_one
