"""A node that we kept a job from is open to its next attempt once it is back; what its owner excluded stays out."""

from dataclasses import replace

import pytest

from lockstep.errors import ControllerDown
from planner.controllers.notes import Notes
from planner.controllers.protocol import Restart
from planner.controllers.slurm import SlurmController
from planner.controllers.slurm_parsing import SlurmJob
from planner.controllers.slurm_submission import EXCLUDED, find_ours
from tests.planner.controllers.fake_slurm import RUNNING, FakeSlurm
from tests.planner.controllers.test_slurm import ORDER, TIMED_OUT, control

GROW = Restart("d-19", "17", nnodes=3)  # in which n2 is excluded no more

REQUEUED = "sed -i -e s/JobState=RUNNING/JobState=PENDING/ -e s/Restarts=0/Restarts=1/ scontrol-show-job.out"


def show_next(slurm: FakeSlurm, job: str = "17", excluded: str = "n1,n2") -> None:
    """Let the attempt run that was started without n2, as we said, and without n1, as its owner had said."""
    running = RUNNING.replace("JobId=2 ", f"JobId={job} ").replace("lockstep d-17", "lockstep d-18")
    slurm.say("scontrol-show-job", running.replace("ExcNodeList=n1", f"ExcNodeList={excluded}"))
    slurm.say("squeue", f"{job}|RUNNING|lockstep d-18\n")


def find_excluded(slurm: FakeSlurm) -> list[str]:
    """Return the lists that requeued jobs were given."""
    return [call.split("ExcNodeList=")[1].split(" ")[0] for call in slurm.calls("scontrol update")]


def read_ours(slurm: FakeSlurm, mark: str) -> str:
    return (Notes(slurm.options().spool).read(mark) or {})[EXCLUDED]


def test_node_that_is_back_is_open_to_the_next_submission(slurm: FakeSlurm) -> None:
    assert control(slurm).restart(ORDER).job == "17"
    assert "--exclude=n1,n2 " in slurm.calls("sbatch")[-1]
    show_next(slurm)
    control(slurm).restart(GROW)
    assert "--exclude=n1 " in slurm.calls("sbatch")[-1]


def test_node_that_is_still_out_stays_excluded_and_is_ours_again(slurm: FakeSlurm) -> None:
    control(slurm).restart(ORDER)
    show_next(slurm)
    control(slurm).restart(replace(GROW, exclude=("n2",)))
    assert "--exclude=n1,n2 " in slurm.calls("sbatch")[-1]
    assert read_ours(slurm, "d-19") == "n2"


def test_node_that_is_back_is_open_to_a_requeued_job(slurm: FakeSlurm) -> None:
    slurm.say("scontrol-requeuehold", do=REQUEUED)
    controller = SlurmController(replace(slurm.options(), way="requeue"))
    assert controller.restart(ORDER).outcome == "done"
    show_next(slurm, job="2")
    assert controller.restart(replace(GROW, job="2")).outcome == "done"
    assert find_excluded(slurm) == ["n1,n2", "n1"]


def test_list_of_a_requeued_job_that_held_only_our_nodes_is_emptied(slurm: FakeSlurm) -> None:
    slurm.say("scontrol-requeuehold", do=REQUEUED)
    slurm.say("scontrol-show-job", RUNNING.replace("ExcNodeList=n1 ", ""))
    controller = SlurmController(replace(slurm.options(), way="requeue"))
    assert controller.restart(ORDER).outcome == "done"
    show_next(slurm, job="2", excluded="n2")
    assert controller.restart(replace(GROW, job="2")).outcome == "done"
    assert find_excluded(slurm) == ["n2", ""]


def test_death_in_the_middle_of_a_requeue_does_not_make_our_node_the_owners(slurm: FakeSlurm) -> None:
    slurm.say("scontrol-requeuehold", do=REQUEUED)
    changed = "-e 's/ExcNodeList=n1 /ExcNodeList=n1,n2 /' -e 's/lockstep d-17/lockstep d-18/'"
    slurm.say("scontrol-update", do=f"sed -i {changed} scontrol-show-job.out")
    slurm.say("scontrol-release", err="slurm_update error: Unable to contact slurm controller\n", code=1)
    controller = SlurmController(replace(slurm.options(), way="requeue"))
    with pytest.raises(ControllerDown):
        controller.restart(ORDER)
    slurm.say("scontrol-release")
    assert controller.restart(ORDER).outcome == "done"
    assert read_ours(slurm, "d-18") == "n2"


def test_submission_whose_answer_was_lost_remembers_which_node_is_ours(slurm: FakeSlurm) -> None:
    slurm.say("sbatch", err=TIMED_OUT, code=1, do='echo "17|RUNNING|lockstep d-18" > squeue.out')
    with pytest.raises(ControllerDown):
        control(slurm).restart(ORDER)
    assert control(slurm).restart(ORDER).outcome == "already"
    assert read_ours(slurm, "d-18") == "n2"


def test_node_that_the_owner_excluded_is_never_ours() -> None:
    job = SlurmJob("2", "running", {"ExcNodeList": "n[1-2]"})
    assert find_ours(job, Restart("d-18", "2", exclude=("n2", "n3"))) == "n3"
