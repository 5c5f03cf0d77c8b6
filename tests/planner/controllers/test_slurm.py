"""The Slurm controller against commands that say what real ones said: refusals, outages, deaths in the middle."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from lockstep.clock import NS_PER_S, ManualClock
from lockstep.errors import BadInput, ControllerDown, HalfDone
from planner.controllers.protocol import JobView, Restart
from planner.controllers.slurm import SlurmController
from planner.controllers.slurm_commands import LOOKED, SUBMITTING, SlurmOptions, judge_arrival
from planner.controllers.slurm_jobs import SlurmTimes
from tests.planner.controllers.fake_slurm import NODES, RUNNING, SCRIPT, FakeSlurm

DRAINED_AGAIN = f"{NODES[2].replace('ALLOCATED', 'ALLOCATED+DRAIN').strip()} Reason=lockstep d-18: slow"
DOWN = "slurm_load_node error: Unable to contact slurm controller (connect failure)\n"
TIMED_OUT = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
SURELY_LOST_S = 20  # twice Slurm's MessageTimeout
NO_KILL_WAIT = "KillWait                = 0 sec\n"
REQUEUED = "sed -i -e s/JobState=RUNNING/JobState=PENDING/ -e s/Restarts=0/Restarts=1/ scontrol-show-job.out"
ORDER = Restart("d-18", "2", exclude=("n2",), checkpoint="/ckpt/7")


# Everything that a controller may be asked for first.
ACTS: tuple[Callable[[SlurmController], object], ...] = (
    lambda c: c.nodes(),
    lambda c: c.job("2"),
    lambda c: c.isolate("n1", "m", "x"),
    lambda c: c.restart(ORDER),
)


def control(slurm: FakeSlurm, dry_run: bool = False, clock: ManualClock | None = None) -> SlurmController:
    return SlurmController(slurm.options(dry_run), clock)


def lose_answer(slurm: FakeSlurm) -> ManualClock:
    """Submit a job again and hear nothing; return the time by which that was."""
    clock = ManualClock()
    slurm.say("sbatch", err=TIMED_OUT, code=1)
    with pytest.raises(HalfDone, match="Socket timed out"):
        control(slurm, clock=clock).restart(ORDER)
    return clock


def test_nodes_and_jobs_are_seen(slurm: FakeSlurm) -> None:
    assert [(node.name, node.mark) for node in control(slurm).nodes()] == [
        *(("n1", "d-17"), ("n2", None), ("n3", None), ("n4", None))
    ]
    assert control(slurm).job("2") == JobView("2", "running", ("n2", "n3"), mark="d-17")


def test_isolating_drains_and_a_drain_that_did_not_take_or_is_not_allowed_is_a_failure(slurm: FakeSlurm) -> None:
    slurm.say("scontrol-update", err="slurm_update error: Invalid user id\n", code=1)
    report = control(slurm).isolate("n3", "d-18", "slow")
    assert report.outcome == "failed"
    assert "Slurm does not allow it to " in report.what
    assert "scontrol ended with 1: slurm_update error: Invalid user id" in report.what
    slurm.say("scontrol-update")
    report = control(slurm).isolate("n3", "d-18", "slow")
    assert (report.outcome, report.what) == ("failed", "n3 was to be drained and is ALLOCATED")
    slurm.say("scontrol-update", do=f"echo '{DRAINED_AGAIN}' > scontrol-show-node.out")
    report = control(slurm).isolate("n3", "d-18", "slow\n NIC")
    assert (report.outcome, report.what) == ("done", 'n3 is drained with the reason "lockstep d-18: slow NIC"')
    assert slurm.changes()[2:] == ["scontrol update NodeName=n3 State=DRAIN Reason=lockstep d-18: slow NIC"]


def test_a_node_that_a_person_or_another_mark_drained_or_nobody_knows_is_left_alone(slurm: FakeSlurm) -> None:
    drained = 'drained by root since 2026-11-16T03:32:24 with the reason "fan [left] broken, Ticket=4711"'
    assert drained in control(slurm).isolate("n2", "d-18", "slow").what
    assert control(slurm).isolate("n1", "d-17", "slow").outcome == "already"
    assert "was not drained under d-18" in control(slurm).release("n1", "d-18").what
    for node in ("n1", "n2", "n9", "ALL"):  # scontrol knows the last as all nodes
        assert control(slurm).isolate(node, "d-18", "slow").outcome == "refused"
        assert control(slurm).release(node, "d-18").outcome == "refused"
    slurm.say("scontrol-show-node", "Node n9 not found\n", code=1)
    assert control(slurm).isolate("n9", "m", "x").what == "Slurm knows no node n9"
    with pytest.raises(BadInput, match="is no name of a node"):
        control(slurm).isolate("n[1-4]", "m", "x")
    assert slurm.changes() == []


def test_a_release_undrains_and_never_brings_up_what_is_down(slurm: FakeSlurm) -> None:
    slurm.say("scontrol-update", do="sed -i s/IDLE+DRAIN/IDLE+NOT_RESPONDING/ scontrol-show-node.out")
    assert control(slurm).release("n1", "d-17").what == "n1 is undrained; it is IDLE+NOT_RESPONDING"
    assert control(slurm).release("n1", "d-17").outcome == "already"
    assert control(slurm).release("n4", "d-17").what == "n4 is not drained; it is DOWN"
    assert slurm.changes() == ["scontrol update NodeName=n1 State=UNDRAIN"]


def test_a_controller_that_is_down_or_hangs_is_raised(slurm: FakeSlurm) -> None:
    for key in ("scontrol-show-node", "scontrol-show-job", "squeue"):
        slurm.say(key, err=DOWN, code=1)
    for act in ACTS:
        with pytest.raises(ControllerDown, match=r"Slurm does not answer: .*connect failure"):
            act(control(slurm))
    slurm.say("scontrol-show-node", do="sleep 600")
    with pytest.raises(ControllerDown, match=r"scontrol show node did not end within 0\.1 s and was killed"):
        SlurmController(slurm.options(timeout_s=0.1)).isolate("n1", "m", "x")


def test_a_job_is_cancelled_and_submitted_once_without_the_node_and_without_our_secrets(
    slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    report = control(slurm).restart(ORDER)
    assert (report.outcome, report.job) == ("done", "17")
    assert report.what == "job 2 is cancelled and submitted again as job 17, to run without n1,n2"
    assert [call.split()[0] for call in slurm.changes()] == ["scancel", "sbatch"]
    assert (slurm.home / "script").read_text() == SCRIPT
    environment = (slurm.home / "environment").read_text()
    assert "LOCKSTEP_RESUME_FROM=/ckpt/7" in environment
    assert "hunter2" not in environment
    slurm.say("squeue")
    report = control(slurm).restart(ORDER)
    assert (report.outcome, report.job) == ("already", "17")
    assert len(slurm.calls("sbatch")) == 1


def test_death_between_scancel_and_sbatch_loses_nothing(slurm: FakeSlurm) -> None:
    slurm.say("sbatch", err=DOWN, code=1)
    with pytest.raises(ControllerDown, match="Slurm does not answer: sbatch ended with 1"):
        control(slurm).restart(ORDER)
    slurm.say("scontrol-show-job", err="slurm_load_jobs error: Invalid job id specified\n", code=1)  # forgotten
    slurm.say("scontrol-write-batch_script", err="job script retrieval failed: Invalid job id specified\n")
    slurm.say("sbatch", "17\n", do="cat > script")
    report = control(slurm).restart(ORDER)
    assert (report.outcome, report.job) == ("done", "17")
    assert len(slurm.calls("scancel")) == 1
    assert (slurm.home / "script").read_text() == SCRIPT
    assert "--exclude=n1,n2" in slurm.calls("sbatch")[-1]


def test_a_refused_submission_may_be_asked_for_again(slurm: FakeSlurm) -> None:
    slurm.say("sbatch", err="sbatch: error: Requested node configuration is not available\n", code=1)
    report = control(slurm).restart(ORDER)
    assert (report.outcome, report.job, report.is_half_done) == ("failed", None, True)
    assert "Requested node configuration is not available" in report.what
    slurm.say("sbatch", "thank you\n")
    assert "printed no job number: 'thank you'" in control(slurm).restart(ORDER).what
    slurm.say("squeue", err=DOWN, code=1)
    with pytest.raises(HalfDone):
        control(slurm).restart(ORDER)
    slurm.say("squeue")
    slurm.say("sbatch", "17;cluster\n")
    assert control(slurm).restart(ORDER).job == "17"


NOT_AVAILABLE = "allocation failure: Requested node configuration is not available"


def test_a_job_that_could_never_start_again_is_not_cancelled(slurm: FakeSlurm) -> None:
    refusals = ("sbatch: error: --uid only permitted by root user", "sbatch: error: Invalid account or partition")
    for why in (NOT_AVAILABLE, *refusals):
        slurm.say("sbatch-test", err=f"{why}\n", code=1)
        report = control(slurm).restart(ORDER)
        assert report.outcome == "refused"
        assert "job 2 is left as it is, as it could not start again: sbatch ended with 1" in report.what
        assert why in report.what
    slurm.say("scontrol-write-batch_script", err="job script retrieval failed: Invalid user id\n")
    report = control(slurm).restart(ORDER)
    assert (report.outcome, "the batch script of job 2 cannot be had" in report.what) == ("failed", True)
    assert slurm.changes() == []


def test_neither_a_limit_of_the_moment_nor_a_forgotten_node_keeps_a_job_from_starting_again(slurm: FakeSlurm) -> None:
    slurm.say("sbatch-test", err="allocation failure: Job violates accounting/QOS policy\n", code=1)
    assert control(slurm).restart(replace(ORDER, exclude=("n2", "scrapped"))).outcome == "done"
    assert "--exclude=n1,n2 " in slurm.calls("sbatch")[0]


COMPLETING = "-e s/JobState=RUNNING/JobState=COMPLETING/"
ENDING = f"sed -i {COMPLETING} -e 's/ NodeList=[^ ]*/ NodeList=n3/' scontrol-show-job.out"


def test_two_attempts_never_run_at_once(slurm: FakeSlurm) -> None:
    clock = ManualClock()
    slurm.say("scancel", do=ENDING)
    slurm.say("scontrol-show-config", NO_KILL_WAIT)
    impatient = SlurmController(replace(slurm.options(), grace_s=0), clock)
    for waited_s in (0, 1000):  # n3 is a good node: its processes must be gone, however long that takes
        clock.advance(waited_s)
        report = impatient.restart(ORDER)
        assert (report.outcome, report.is_half_done) == ("failed", True)
        ending = f"job 2 is cancelled and after {waited_s} s still ending on n3 (KillWait is 0 s)"
        assert report.what == f"{ending}: it is submitted again when it has ended"
    assert slurm.calls("sbatch") == []
    slurm.say("scancel", do="sed -i s/JobState=COMPLETING/JobState=CANCELLED/ scontrol-show-job.out")
    assert control(slurm, clock=clock).restart(ORDER).outcome == "done"


def test_a_dead_node_that_is_taken_out_keeps_nobody_waiting(slurm: FakeSlurm) -> None:
    clock, order = ManualClock(), replace(ORDER, exclude=("n3",))
    slurm.say("scancel", do=ENDING)
    slurm.say("scontrol-show-config", NO_KILL_WAIT)
    controller = SlurmController(replace(slurm.options(), grace_s=0.1), clock)
    assert controller.restart(order).outcome == "failed"
    clock.advance(0.1)
    report = controller.restart(order)
    assert (report.outcome, report.job) == ("done", "17")
    assert "job 2 has not quite ended on n3, which the new one does not use" in report.what


def test_a_submission_whose_answer_is_lost_is_looked_for_before_it_is_made_again(slurm: FakeSlurm) -> None:
    clock, note = lose_answer(slurm), slurm.home / "spool" / "d-18.json"
    slurm.say("sbatch-test", err=NOT_AVAILABLE, code=1)  # it is cancelled already: nobody calls it left alone
    clock.advance(SURELY_LOST_S - 1)
    before = note.read_text()
    assert control(slurm, dry_run=True, clock=clock).restart(ORDER).outcome == "failed"
    assert note.read_text() == before, "a dry run leaves it as it is"
    report = control(slurm, clock=clock).restart(ORDER)
    assert (report.outcome, report.is_half_done) == ("failed", True)
    assert report.what == (
        "sbatch was called for job 2 19 s ago and its answer is lost: it is called again when "
        'no job with the comment "lockstep d-18" has come after 20 s'
    )
    slurm.say("squeue", "17|RUNNING|lockstep d-18\n")  # it arrives late
    before = note.read_text()
    assert control(slurm, dry_run=True, clock=clock).restart(ORDER).outcome == "already"
    assert note.read_text() == before
    report = control(slurm, clock=clock).restart(ORDER)
    assert (report.outcome, report.job) == ("already", "17")
    slurm.say("squeue")  # it ends, and Slurm forgets it
    assert control(slurm, clock=clock).restart(ORDER).job == "17"
    assert len(slurm.calls("sbatch")) == 1


def test_a_planner_that_looks_too_late_asks_a_person(slurm: FakeSlurm) -> None:
    clock = lose_answer(slurm)
    clock.advance(300)
    report = control(slurm, clock=clock).restart(ORDER)
    assert report.outcome == "refused"
    assert "this needs a person: sbatch was called for job 2, its answer is lost" in report.what
    assert "Slurm forgets an ended job after 300 s (MinJobAge)" in report.what
    assert len(slurm.calls("sbatch")) == 1


@pytest.mark.parametrize("way", ["submit", "requeue"])
def test_a_job_that_is_over_gone_or_claims_an_owner_is_left_alone(slurm: FakeSlurm, way: Any) -> None:
    controller = SlurmController(replace(slurm.options(), way=way))
    for state in ("COMPLETED", "CANCELLED"):
        slurm.say("scontrol-show-job", RUNNING.replace("JobState=RUNNING", f"JobState={state}"))
        report = controller.restart(ORDER)
        assert (report.outcome, f"job 2 is over ({state})" in report.what) == ("refused", True)
    if way == "submit":
        forged = RUNNING.replace("JobName=train me UserId=root(0)", "JobName=x UserId=root(0) y UserId=mallory(1000)")
        slurm.say("scontrol-show-job", forged)
        assert "has no owner, or two" in controller.restart(ORDER).what
    slurm.say("scontrol-show-job", err="slurm_load_jobs error: Invalid job id specified\n", code=1)
    report = controller.restart(Restart("m", "99"))
    assert report.outcome == "refused"
    assert report.what == "Slurm knows no job 99: it never was, or it ended and is forgotten"
    assert (control(slurm).job("99"), slurm.changes()) == (None, [])


def test_a_dry_run_says_what_it_would_do(slurm: FakeSlurm) -> None:
    dry = control(slurm, dry_run=True)
    assert dry.isolate("n3", "m", "slow").what == 'would drain n3 with the reason "lockstep m: slow"'
    assert dry.release("n1", "d-17").what == "would undrain n1"
    assert "would cancel job 2 and run " in dry.restart(ORDER).what
    assert "--exclude=n1,n2" in dry.restart(ORDER).what
    requeued = SlurmController(replace(slurm.options(dry_run=True), way="requeue")).restart(ORDER)
    assert (requeued.outcome, requeued.what) == ("would", "would requeue job 2 without n1,n2")
    assert dry.reattempt("2", "m").what.startswith("Slurm cannot let job 2 try again in place: restart it")
    assert slurm.changes() == []
    assert not (slurm.home / "spool").exists()


def test_a_sites_own_command_submits(slurm: FakeSlurm) -> None:
    own = slurm.home / "own"
    own.write_text(f'#!/bin/sh\necho "$@" > {slurm.home}/own.args; cat "$4" > {slurm.home}/script; echo job 21\n')
    own.chmod(0o755)
    template = (str(own), "{job}", "{exclude}", "{comment}", "{script}")
    report = SlurmController(replace(slurm.options(), resubmit=template)).restart(ORDER)
    assert (report.outcome, report.job) == ("done", "21")
    assert (slurm.home / "own.args").read_text().startswith("2 n1,n2 lockstep d-18 /")
    assert (slurm.home / "script").read_text() == SCRIPT
    assert slurm.calls("sbatch") == []


def test_a_requeued_job_is_held_until_its_nodes_are_excluded(slurm: FakeSlurm) -> None:
    slurm.say("scontrol-requeuehold", do=REQUEUED)
    controller = SlurmController(replace(slurm.options(), way="requeue"))
    report = controller.restart(replace(ORDER, nnodes=1))
    assert (report.outcome, report.job) == ("done", "2")
    assert "wait for cred_expire (120 s unless configured)" in report.what
    assert "without LOCKSTEP_RESUME_FROM" in report.what
    comment, shape = "lockstep d-18: resume from /ckpt/7", "NumNodes=1 NumTasks=1 NumCPUs=1"
    assert slurm.changes() == [
        "scontrol requeuehold 2",
        f"scontrol update JobId=2 Comment={comment} ExcNodeList=n1,n2 {shape}",
        "scontrol release 2",
    ]
    assert controller.restart(ORDER).outcome == "already"


def test_a_requeued_job_that_is_still_ending_stays_held(slurm: FakeSlurm) -> None:
    slurm.say("scontrol-requeuehold", do="sed -i s/JobState=RUNNING/JobState=COMPLETING/ scontrol-show-job.out")
    controller = SlurmController(replace(slurm.options(), way="requeue", grace_s=0))
    for _ in range(2):
        assert "is requeued, held, and still ending" in controller.restart(ORDER).what
    assert slurm.changes() == ["scontrol requeuehold 2"]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"timeout_s": 0}, "timeout_s=0"),
        ({"resubmit": ("submit", "{host}")}, "unknown fields"),
        ({"resubmit": ("submit", "{script}")}, r"must set the job's \{comment\}"),
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        SlurmOptions(tmp_path, **options)


TIMES = SlurmTimes()


def note(called_s: float, looked_s: float | None = None) -> dict[str, str]:
    reported = {"job": "2", SUBMITTING: str(round(called_s * NS_PER_S))}
    return reported | ({LOOKED: str(round(looked_s * NS_PER_S))} if looked_s is not None else {})


def judge(reported: dict[str, str], now_s: float, times: SlurmTimes = TIMES) -> str:
    return judge_arrival(reported, "d-1", times, round(now_s * NS_PER_S)).state


def test_an_answer_is_waited_for_twice_the_time_a_command_waits_by_looks_closer_than_slurms_memory() -> None:
    assert judge({"job": "2"}, 1000) == "absent"
    assert judge(note(100), 119) == "open"
    assert judge(note(100), 120) == "absent"
    assert judge(note(100), 139, SlurmTimes(answer_s=20)) == "open"
    assert judge(note(100), 400) == "unknowable"
    assert judge(note(100, looked_s=399), 698) == "absent"
    assert judge(note(100), 100_000, SlurmTimes(memory_s=0)) == "absent", "this Slurm never forgets"


@given(some.integers(0, 20), some.integers(0, 60), some.integers(1, 900), some.integers(1, 600))
def test_a_job_that_came_is_never_taken_for_absent(arrives_s: int, lives_s: int, gap_s: int, memory_s: int) -> None:
    """Play a slurmctld that takes the request late, and a planner that looks every so often and may submit again."""
    times, reported, now_s = SlurmTimes(memory_s=memory_s), note(0), 0
    while now_s < 2000:
        now_s += gap_s
        if arrives_s <= now_s < arrives_s + lives_s + memory_s:
            return  # it is found
        state = judge(reported, now_s, times)
        assert state != "absent", f"submitted a second time after {now_s} s"
        if state == "unknowable":
            return
        reported[LOOKED] = str(round(now_s * NS_PER_S))
    raise AssertionError("it waits for ever")
