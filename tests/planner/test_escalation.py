"""A cure that did not hold raises the severity of the same part, for an hour, and of no other."""

from typing import Any

import pytest

from lockstep.execution import Execution, ExecutionState
from lockstep.verdict import Impact
from planner.escalation import Level, Severity, classify, find_level, is_alarm, level_of, severity_of
from tests.planner.build import crash, event, execution, seconds, verdict

PART = "nic:h3/eth1"


def tried(action: str, *, at_s: float = 0.0, state: ExecutionState = "done", component: str = PART) -> Execution:
    when = {"decision": f"d{at_s}", "began_ns": seconds(at_s), "ended_ns": seconds(at_s + 1)}
    return execution(action=action, component=component, state=state, **when)


def level(base: Severity, *runs: Execution, now_s: float = 100.0) -> Level:
    return find_level(base, "as told", PART, runs, seconds(now_s))


def test_each_failure_raises_the_severity_in_whatever_order_it_is_read_and_none_lowers_it() -> None:
    runs = [tried("reattempt"), tried("restart_process", at_s=10)]
    assert level(3, runs[0]).severity == 2
    raised = Level(1, f"restart_process did not cure {PART}", is_raised=True)
    assert level(3, *runs) == level(3, *reversed(runs)) == raised
    assert level(1, tried("reattempt")).severity == 1
    assert level(1, tried("replace")).is_exhausted
    assert not level(1, tried("replace", state="failed")).is_exhausted
    assert [level_of(action) for action in ("reattempt", "restart_process", "replace", "recycle")] == [3, 2, 1, 1]
    others: list[dict[str, Any]] = [{"component": "nic:h4/eth1"}, {"state": "undone"}, {"at_s": -4000}]
    for other in others:
        assert level(3, tried("reattempt", **other)) == Level(3, "as told")


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
    assert classify(event("link_up", "eth1 is up")) is None
    row = classify(event(kind, message))
    assert row is not None
    assert (row.severity, row.name) == (severity, name)


def test_the_worst_event_about_a_crash_counts_and_a_slow_part_is_as_bad_as_a_dead_one() -> None:
    told = [event("process_exit", "rank 3 ended"), event("xid", "Xid 79 [XID 79: blame hardware]")]
    severity, why = severity_of(crash(component="rank:3"), told)
    assert severity == 1
    assert why == "XID of the hardware: Xid 79 [XID 79: blame hardware]"
    severity, why = severity_of(verdict(), [event("link_flapping", "eth1 flaps")])
    assert (severity, why) == (1, "the part stays slow whatever is done to the process")


def test_verdict_without_events_has_the_severity_of_its_class() -> None:
    for severity, fault_class, component in (
        (1, "crash", "host:h3"),
        (2, "crash", "rank:3"),
        (3, "comm_hang", "nic:h3/eth1"),
        (2, "noncomm_hang", "host:h3"),
        (2, "software", "job:train"),
        (3, "global_slow", "job:train"),
    ):
        assert severity_of(verdict(fault_class=fault_class, component=component, grade="alert"))[0] == severity


def test_rank_at_a_third_of_its_speed_is_restarted_and_no_job_where_nobody_is_to_blame() -> None:
    impact = Impact(step_time_ratio=3.5, ranks_waiting=63)
    rank = verdict(fault_class="noncomm_slow", component="rank:5", grade="alert", impact=impact)
    everybody = verdict(fault_class="global_slow", component="job:train", grade="alert", impact=impact)
    assert severity_of(rank) == (2, "steps take 3.5 times as long as usual")
    assert severity_of(everybody)[0] == 3
    assert [is_alarm(ratio) for ratio in (None, 1.1, 2.99, 3.0)] == [False, False, False, True]
