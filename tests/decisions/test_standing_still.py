"""The job stands still: every minute costs all of it, so the cheapest cure that can work comes at once."""

import pytest

from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_decisions
from lockstep.state.leases import Lease
from lockstep.verdict import Verdict
from planner.context import Layout
from tests.decisions.handbook import HOUR_S, SLURM, Case, aged, check, name_of, offers, tried
from tests.planner.build import crash, event, pipeline, verdict


def hang(component: str = "nic:h3/eth1", **changes: object) -> Verdict:
    return crash(**({"fault_class": "comm_hang", "component": component, "grade": "alert"} | changes))


TWO_SPARES = {"spares": ("h8", "h9"), "block_of": {}}
H3, H5 = crash(id="v3", component="host:h3"), crash(id="v5", component="host:h5")
RANK = crash(component="rank:5", grade="alert", reason="rank 5 on h3 is gone")
HANGS = [
    Case(
        "communication hangs under torchrun",
        [hang()],
        "reattempt",
        "ten seconds, and a fifth of such hangs is over with it",
    ),
    Case(
        "communication hangs under Slurm",
        [hang()],
        "restart_process",
        "Slurm cannot try again in place, so nobody asks it to: the job starts again from its checkpoint",
        says=["the controller restarts the whole job on its nodes"],
        cluster=SLURM,
    ),
    Case(
        "communication hangs under Slurm at a NIC that is certain",
        [hang(grade="isolate")],
        "replace",
        "a whole restart costs the same with another node, and does not come back onto the bad NIC",
        takes=("h3",),
        cluster=SLURM,
    ),
    Case(
        "communication hangs again after it was tried again",
        [hang()],
        "restart_process",
        "what did not help is not tried twice",
        tried=[tried("reattempt", "nic:h3/eth1")],
    ),
    Case(
        "communication hangs again after its process was restarted",
        [hang()],
        "replace",
        "the same NIC again and again: it is the NIC, however unsure the verdict is",
        takes=("h3",),
        tried=[tried("restart_process", "nic:h3/eth1")],
    ),
    Case(
        "the whole job hangs and nobody knows why",
        [hang("job:train", fault_class="noncomm_hang")],
        "restart_process",
        "no hardware is named, so none is taken away",
    ),
    Case(
        "a process is stopped on a host",
        [hang("host:h3", fault_class="noncomm_hang")],
        "restart_process",
        "a debugger or a full disk: no reason to take a node away the first time",
    ),
]
CRASHES = [
    Case(
        "a host dies and a spare is idle",
        [H3],
        "replace",
        "the node is gone; with the spare the job is whole again in three minutes",
        takes=("h3",),
        hours=(14.0, 1500.0),
    ),
    Case(
        "a host dies and no spare is idle",
        [H3],
        "reconfigure",
        "seven of eight nodes until the repair beat none",
        takes=("h3",),
        cluster={"spares": ()},
    ),
    Case(
        "a host dies, no spare is idle and the job needs all its nodes",
        [H3],
        "none",
        "nothing of ours helps: a person has to find a node, and is told what was weighed",
        says=["options unavailable", "no spare node is idle", "the job needs 8 nodes"],
        cluster={"spares": ()},
        job={"min_nodes": 8},
    ),
    Case(
        "a GPU falls off the bus",
        [crash(component="gpu:h3/0")],
        "replace",
        "a GPU is mended with its node out of service",
        takes=("h3",),
    ),
    Case(
        "two hosts die in the same second and two spares are idle",
        [H3, H5],
        "replace",
        "a power feed or a rack switch: both are gone, so both go in one restart",
        takes=("h3", "h5"),
        says=["starts again with h8 and h9 instead of h3 and h5"],
        cluster=TWO_SPARES,
    ),
    Case(
        "two hosts die in the same second and one spare is idle",
        [H3, H5],
        "reconfigure",
        "one restart on six nodes; two restarts would stop the job twice",
        takes=("h3", "h5"),
        says=["starts again on 6 nodes"],
        cluster=TWO_SPARES | {"spares": ("h8",)},
    ),
    Case(
        "three hosts die in the same second",
        [H3, H5, crash(id="v6", component="host:h6")],
        "reconfigure",
        "one answer again, and more nodes than may go without a person in an hour",
        takes=("h3", "h5", "h6"),
        asks="held",
        says=["0 nodes were isolated in the last hour, 3 would follow, and 2 is the limit"],
        cluster=TWO_SPARES,
    ),
    Case(
        "two hosts of one rack die in the same second",
        [H3, crash(id="v4", component="host:h4")],
        "replace",
        "the right answer, and a person should look at the rack first",
        takes=("h3", "h4"),
        asks="held",
        says=["hosts of leaf0 are out of service"],
        cluster={"spares": ("h8", "h9")},
    ),
    Case(
        "a host dies while a GPU elsewhere is called slow",
        [H3, verdict(id="v5", component="gpu:h5/0")],
        "replace",
        "two explanations of one moment: somebody should say which",
        takes=("h3",),
        asks="held",
        says=["two verdicts disagree"],
    ),
    Case(
        "a rank crashes",
        [RANK],
        "restart_process",
        "most crashes are the program's; its node may be well",
        seat="gpu:h3/5",
    ),
    Case(
        "a rank crashes with an XID of the hardware",
        [RANK],
        "replace",
        "the GPU says itself that it is broken",
        takes=("h3",),
        asks="held",
        events=[event("xid", "Xid 79 [XID 79: blame hardware]")],
        seat="gpu:h3/5",
    ),
    Case(
        "a rank crashes again after its restart",
        [RANK],
        "replace",
        "the same rank on the same GPU twice within the hour: it is what it runs on",
        takes=("h3",),
        tried=[tried("restart_process", "rank:5")],
        seat="gpu:h3/5",
    ),
    Case(
        "a rank crashes again after its restart elsewhere",
        [RANK],
        "none",
        "it crashed on two hosts: the program or its data, and no node is to blame",
        says=["rank:5 is not a part of one node", "stacks of the ranks that wait"],
        tried=[tried("restart_process", "rank:5")],
    ),
    Case(
        "rank 5 of another job crashed before",
        [RANK],
        "restart_process",
        "numbers of ranks are the same in all jobs and say nothing about each other",
        tried=[tried("restart_process", "rank:5", job="chat")],
        seat="gpu:h3/5",
    ),
    Case(
        "a host dies and the job has never saved",
        [H3],
        "replace",
        "the work is lost whatever is done; waiting loses time as well; a person says yes to that",
        takes=("h3",),
        asks="held",
        says=["from the beginning", "6.0 h of work are lost", "it would begin anew"],
        hours=(64 * 6.1, 64 * 6.1),
        job=aged(6 * HOUR_S),
    ),
    Case(
        "a rank crashes under Slurm and the job has never saved",
        [RANK],
        "restart_process",
        "the same, on the same nodes",
        asks="held",
        says=["from the beginning", "6.0 h of work are lost"],
        job=aged(6 * HOUR_S),
        cluster=SLURM,
    ),
    Case(
        "a host dies and nobody knows since when the job runs or whether it saved",
        [H3],
        "replace",
        "the answer does not depend on what is not known; it is said",
        takes=("h3",),
        asks="held",
        says=["how much work is lost is not known"],
        job={"resume": None, "resume_smaller": None},
    ),
    Case(
        "a host of a pipeline dies and its peers could do its work, but the job has not said that it can",
        [H3],
        "replace",
        "what no job does when it is told to is not offered",
        takes=("h3",),
        job={"layout": pipeline()},
    ),
]
DATA_PARALLEL: dict[str, object] = {"layout": Layout(tensor=8, replicas=8, micro_batches=21), "can": {"drop_replica"}}
IN_THE_JOB = [
    Case(
        "a host dies, no spare is idle and the job can lose a replica",
        [H3],
        "drop_replica",
        "the same seven nodes as after a restart, without one: no work is done again",
        takes=("h3",),
        says=["the replica is left out", "21 micro-batches of each step go to 7 replicas: 7 do 24"],
        cluster={"spares": ()},
        job=DATA_PARALLEL,
    ),
    Case(
        "a host dies, a spare is idle and the job can lose a replica",
        [H3],
        "replace",
        "three minutes once are less than an eighth of the speed until the repair",
        takes=("h3",),
        job=DATA_PARALLEL,
    ),
    Case(
        "a host dies, a spare is idle, the job can lose a replica and the node is back in an hour",
        [H3],
        "drop_replica",
        "the replica comes back with its node, before a restart would have paid",
        takes=("h3",),
        cluster={"repair_s": 3600.0},
        job=DATA_PARALLEL,
    ),
    Case(
        "a host dies and the job has never saved, but it can lose a replica",
        [H3],
        "drop_replica",
        "the survivors have all its work, so nothing begins anew and nobody need be asked",
        takes=("h3",),
        job=DATA_PARALLEL | aged(240 * HOUR_S),
    ),
    Case(
        "a host of a pipeline dies, no spare is idle and its peers can do its work",
        [H3],
        "recycle",
        "micro-batches of one stage fit into the others' bubbles: less is lost than with a whole replica",
        takes=("h3",),
        says=["peers of the lost worker take over its micro-batches"],
        cluster={"spares": ()},
        job={"layout": pipeline(), "can": {"recycle", "drop_replica"}},
    ),
    Case(
        "two hosts die in the same second, no spare is idle and the job can lose replicas",
        [H3, H5],
        "drop_replica",
        "both go in one order, and six replicas share the work of eight",
        takes=("h3", "h5"),
        says=["21 micro-batches of each step go to 6 replicas: 6 do 28"],
        cluster=TWO_SPARES | {"spares": ()},
        job=DATA_PARALLEL,
    ),
    Case(
        "the only replica of a job dies",
        [H3],
        "replace",
        "there is nobody who could go on",
        takes=("h3",),
        job={"layout": Layout(tensor=8, stages=8), "can": {"drop_replica"}},
    ),
]


@pytest.mark.parametrize("case", [*HANGS, *CRASHES, *IN_THE_JOB], ids=name_of)
def test_job_that_stands_still_is_answered_as_an_sre_would(
    case: Case, control: ControlDatabase, lease: Lease
) -> None:
    found = check(case, control, lease)
    offered, can = offers(found) & {"recycle", "drop_replica"}, case.job.get("can", ())
    assert offered <= set(can), "only what the job has said that it can"  # type: ignore[call-overload]  # a table


def test_the_other_dead_host_is_left_to_the_one_decision(control: ControlDatabase, lease: Lease) -> None:
    both = next(case for case in CRASHES if "two spares" in case.seen)
    found = check(both, control, lease)
    (other,) = list_decisions(control, incident="i1")
    assert (other.action, other.answered_by, other.isolate) == ("none", found.id, ())
    assert other.reason == f"decision {found.id} takes h3 and h5 out of service together"
    assert found.verdicts == ("v3", "v5")
