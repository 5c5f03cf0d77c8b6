"""What is right and who does it are two questions: the answer is the same whoever may carry it out, and says so."""

from dataclasses import replace

import pytest

from lockstep.state.database import ControlDatabase
from lockstep.state.leases import Lease
from lockstep.verdict import Impact
from tests.decisions.handbook import NOBODY, SLURM, Case, check, name_of
from tests.planner.build import crash, verdict

H3 = crash(component="host:h3", reason="h3 is gone")
HOUR_LONG = verdict(impact=Impact(step_time_ratio=2.0, ranks_waiting=63), grade="isolate")
TABLE = [
    Case(
        "a host dies, Slurm is only watched",
        [H3],
        "replace",
        "observing is no reason to keep the answer to oneself: whoever is on call can type it",
        takes=("h3",),
        asks="observed",
        says=["scontrol update NodeName=h3 State=DRAIN Reason='h3 is gone (incident i0)'", "scontrol requeue train"],
        hours=(14.0, 1500.0),
        mode="observe",
        cluster=SLURM,
    ),
    Case(
        "a host dies, Slurm is only watched and no spare is idle",
        [H3],
        "reconfigure",
        "the size of a job is changed while it waits",
        takes=("h3",),
        asks="observed",
        says=["scontrol requeuehold train", "scontrol update JobId=train NumNodes=7", "scontrol release train"],
        mode="observe",
        cluster=SLURM | {"spares": ()},
    ),
    Case(
        "a host dies, Kubernetes is only watched",
        [H3],
        "replace",
        "the same in the words of that cluster",
        takes=("h3",),
        asks="observed",
        says=["kubectl cordon h3", "kubectl delete pods -l jobset.sigs.k8s.io/jobset-name=train"],
        mode="observe",
        cluster=SLURM | {"controller": "kubernetes"},
    ),
    Case(
        "a host dies and nobody is set who could act",
        [H3],
        "replace",
        "somebody will have to, and wants to know what",
        takes=("h3",),
        asks="no_controller",
        mode="observe",
        cluster=NOBODY,
    ),
    Case(
        "a host dies and people want to be asked",
        [H3],
        "replace",
        "it waits for a yes",
        takes=("h3",),
        asks="proposed",
        mode="propose",
    ),
    Case(
        "communication hangs and nobody is set who could act",
        [crash(fault_class="comm_hang", component="nic:h3/eth1", grade="alert")],
        "restart_process",
        "nobody can try again in place by hand; a restart is what a person can do",
        asks="no_controller",
        mode="observe",
        cluster=NOBODY,
    ),
    Case(
        "a NIC is slow for an hour and nobody is set who could act",
        [HOUR_LONG],
        "replace",
        "break-even counts for people as well",
        takes=("h3",),
        asks="no_controller",
        at_s=3600.0,
        mode="observe",
        cluster=NOBODY,
    ),
    Case(
        "a host dies under a command of the site that can only restart",
        [H3],
        "replace",
        "right, and a person drains: the command for it is not set",
        takes=("h3",),
        asks="unable",
        cluster=SLURM | {"controller": "command", "acts": frozenset({"restart"})},
    ),
    Case(
        "the analyzer is three minutes behind on a busy head node",
        [H3],
        "replace",
        "nobody has looked since, which says nothing against what was seen",
        takes=("h3",),
        at_s=200.0,
        behind_s=180.0,
    ),
    Case(
        "the analyzer has been down for half an hour",
        [H3],
        "replace",
        "the host may be back: still the best answer, and a person looks first",
        takes=("h3",),
        asks="held",
        says=["the job was last evaluated 1800 s ago"],
        at_s=2000.0,
        behind_s=1800.0,
    ),
]


@pytest.mark.parametrize("case", TABLE, ids=name_of)
def test_answer_is_recommended_whoever_may_carry_it_out(case: Case, control: ControlDatabase, lease: Lease) -> None:
    found = check(case, control, lease)
    assert found.action != "none", "never nothing beside a job that stands still"
    assert (found.mode == "execute") == (case.asks is None)


def test_answer_does_not_change_with_who_may_act(control: ControlDatabase, lease: Lease) -> None:
    watched = next(case for case in TABLE if case.seen == "a host dies, Slurm is only watched")
    automatic = check(replace(watched, mode="execute", asks=None), control, lease)
    assert automatic.by_hand, "who is asked in the meantime may want to do it himself"
