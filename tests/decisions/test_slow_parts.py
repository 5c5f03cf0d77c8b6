"""A part is slow and the job goes on: cure it once waiting has cost as much as the cure, never onto the same part."""

from typing import Any

import pytest

from lockstep.state.database import ControlDatabase
from lockstep.state.leases import Lease
from lockstep.verdict import Impact, Verdict
from tests.decisions.handbook import HOUR_S, SLURM, Case, aged, check, large, name_of, offers, tried
from tests.planner.build import verdict


def slow(ratio: float | None, component: str = "nic:h3/eth1", **changes: object) -> Verdict:
    impact = Impact(step_time_ratio=ratio, ranks_waiting=1023, gpus=1024)
    return verdict(**({"component": component, "grade": "alert", "impact": impact} | changes))


LONG: dict[str, Any] = {"at_s": 10 * HOUR_S, "job": large()}  # Any: fields of a case
TABLE = [
    *(
        Case(
            f"a NIC is {ratio} times slower for ten hours and a spare is idle",
            [slow(ratio)],
            "replace",
            "a restart costs a quarter of an hour; ten hours of slowness cost many; that the part is not certain is "
            "a reason to ask, not to wait",
            takes=("h3",),
            asks="held",
            says=["graded alert", "starts again with h8 instead of h3"],
            hours=(240.0, 2000.0),
            **LONG,
        )
        for ratio in (1.2, 2.9)
    ),
    Case(
        "a NIC is 2.9 times slower for ten hours and it is certain",
        [slow(2.9, grade="isolate")],
        "replace",
        "the same answer, and nobody has to be asked",
        takes=("h3",),
        hours=(240.0, 2000.0),
        **LONG,
    ),
    Case(
        "a NIC is 3.5 times slower under Slurm",
        [slow(3.5)],
        "replace",
        "as bad as a hang, and a restart on the same nodes would come back onto the same NIC",
        takes=("h3",),
        asks="held",
        cluster=SLURM,
        **LONG,
    ),
    Case(
        "a NIC is 3.5 times slower and every process could restart in place",
        [slow(3.5, grade="isolate")],
        "replace",
        "a new process sends through the same NIC",
        takes=("h3",),
        **LONG,
    ),
    Case(
        "a NIC is 3.5 times slower and no other node is to be had",
        [slow(3.5)],
        "none",
        "slow is better than restarted onto the same NIC; a person finds a node",
        says=["waiting costs"],
        at_s=10 * HOUR_S,
        job=large(min_nodes=128),
        cluster={"spares": ()},
    ),
    Case(
        "a NIC is slower since a minute",
        [slow(1.5)],
        "none",
        "it may be over in a minute, and a restart costs more than it has lost so far",
        says=["replace costs", "waiting has cost", "it is time in", "cable and optics of nic:h3/eth1"],
        at_s=60.0,
        job=large(),
    ),
    Case(
        "a NIC is slower for an hour and the next checkpoint is two minutes away",
        [slow(2.0)],
        "none",
        "after the checkpoint the same restart does no work again",
        says=["replace waits for the next checkpoint"],
        at_s=HOUR_S,
        job=large(next_save_s=100.0),
    ),
    Case(
        "a NIC is slower for ten hours and no spare is idle",
        [slow(2.9)],
        "reconfigure",
        "127 of 128 nodes at full speed beat 128 at a third",
        takes=("h3",),
        asks="held",
        cluster={"spares": ()},
        **LONG,
    ),
    Case(
        "a GPU is 1.3 times slower for ten hours",
        [slow(1.3, "gpu:h3/0", fault_class="noncomm_slow")],
        "replace",
        "heat or age: everybody waits for the slowest GPU at each step",
        takes=("h3",),
        asks="held",
        **LONG,
    ),
    Case(
        "a NIC is slower for ten hours, as a note says",
        [slow(2.0, grade="note", confidence=0.5)],
        "none",
        "a note is worth knowing and nobody should act on it",
        **LONG,
    ),
    Case(
        "a NIC is slower for ten hours and the job has never saved",
        [slow(2.0)],
        "none",
        "half the speed is better than all the work of the job done again",
        at_s=10 * HOUR_S,
        job=large(**aged(50 * HOUR_S)),
    ),
    Case(
        "a NIC is slower and what it costs is not known",
        [slow(None)],
        "none",
        "without steps nobody knows whether the job suffers at all",
        says=["what it costs the job is not known yet"],
        **LONG,
    ),
    Case(
        "a NIC is slow again although its node was replaced",
        [slow(2.0)],
        "none",
        "what was blamed is gone and the slowness is not: a person has to think",
        says=["a person is needed", "replace did not cure nic:h3/eth1"],
        tried=[tried("replace", "nic:h3/eth1")],
        at_s=HOUR_S / 2,
        job=large(),
    ),
]


@pytest.mark.parametrize("case", TABLE, ids=name_of)
def test_slow_part_is_answered_as_an_sre_would(case: Case, control: ControlDatabase, lease: Lease) -> None:
    assert "restart_process" not in offers(check(case, control, lease)), "never onto the accused part"
