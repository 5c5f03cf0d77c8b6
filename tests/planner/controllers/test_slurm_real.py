"""The Slurm controller on a real slurmctld with four slurmd: drained, cancelled, submitted, requeued, released."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.clock import ManualClock
from lockstep.errors import ControllerDown, HalfDone
from planner.controllers.protocol import JobView, Restart
from planner.controllers.running import Deadline
from planner.controllers.slurm import SlurmController
from planner.controllers.slurm_commands import SlurmCommands, SlurmOptions
from planner.controllers.slurm_jobs import SlurmNode, parse_jobs, parse_nodes
from tests.planner.controllers.conftest import KILL_WAIT_S
from tests.planner.controllers.contract import Rig, check_contract
from tests.testbed.services import wait_until
from tests.testbed.slurm import LocalSlurm

pytestmark = pytest.mark.slow

SCRIPT = """\
#!/bin/sh
#SBATCH --job-name="train me"
#SBATCH --nodes=2
echo "$SLURM_JOB_NODELIST attempt ${SLURM_RESTART_COUNT:-0} from ${LOCKSTEP_RESUME_FROM:-scratch} with $*"
exec sleep 600
"""


# Ends at SIGKILL alone, and says whether the attempt before was gone when it began.
STUBBORN = """\
#!/bin/sh
trap '' TERM
before=$(cat before 2>/dev/null)
if [ -n "$before" ] && kill -0 "$before"; then echo attempt together; else echo attempt alone; fi
echo $$ > before
while :; do sleep 0.1; done
"""


class Died(BaseException):
    """The planner's process is gone at this very place."""


@pytest.fixture
def slurm(cluster: LocalSlurm) -> Iterator[LocalSlurm]:
    yield from left_idle(cluster)


def left_idle(cluster: LocalSlurm) -> Iterator[LocalSlurm]:
    """Give the cluster, and leave it without jobs and with all nodes in service."""
    yield cluster
    cluster.call("scancel", "--partition=debug")
    wait_until(lambda: not cluster.call("squeue", "--noheader"), "all jobs have ended")
    put_in_service(cluster)


@pytest.fixture
def options(slurm: LocalSlurm, tmp_path: Path) -> SlurmOptions:
    return SlurmOptions(tmp_path / "spool", environment=slurm.environment)


def show_nodes(slurm: LocalSlurm) -> list[SlurmNode]:
    return parse_nodes(slurm.call("scontrol", "show", "node", "--oneliner"))


def put_in_service(slurm: LocalSlurm) -> None:
    for node in show_nodes(slurm):
        if node.is_drained:
            slurm.call("scontrol", "update", f"NodeName={node.name}", "State=UNDRAIN")
    wait_until(lambda: all(node.is_usable for node in show_nodes(slurm)), "all nodes are in service")


def look(slurm: LocalSlurm) -> list[SlurmNode]:
    """Return the nodes without what passes by itself: an undrained node answers only after a moment."""
    return [replace(node, states=node.states - {"NOT_RESPONDING"}) for node in show_nodes(slurm)]


def drain_as_somebody_else(slurm: LocalSlurm, node: str) -> None:
    slurm.call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=fan broken, Ticket=4711")


def start_training(slurm: LocalSlurm, directory: Path, *words: str, text: str = SCRIPT) -> str:
    """Submit the job of two nodes with an argument, and return its number when it runs."""
    script = directory / "train.sh"
    script.write_text(text)
    job = slurm.call("sbatch", "--parsable", f"--chdir={directory}", *words, str(script), "--lr=3e-4").strip()
    wait_until(lambda: bool(read_output(directory, job)), f"job {job} runs")
    return job


def read_output(directory: Path, job: str) -> list[str]:
    path = directory / f"slurm-{job}.out"
    return [line for line in path.read_text().splitlines() if "attempt" in line] if path.exists() else []


def see(options: SlurmOptions, job: str) -> JobView:
    view = SlurmController(options).job(job)
    assert view is not None, f"Slurm knows no job {job}"
    return view


def make_rig(slurm: LocalSlurm, options: SlurmOptions) -> Rig:
    return Rig(
        make=lambda dry_run: SlurmController(replace(options, dry_run=dry_run)),
        look=lambda: look(slurm),
        node="n1",
        other="n2",
        reset=lambda: put_in_service(slurm),
        occupy=lambda node: drain_as_somebody_else(slurm, node),
    )


def restart_to_the_end(controller: SlurmController, order: Restart, directory: Path) -> str:
    report = controller.restart(order)
    assert report.outcome == "done", report
    new = str(report.job)
    wait_until(lambda: bool(read_output(directory, new)), "the new job runs")
    return new


def test_a_real_slurm_keeps_the_contract(slurm: LocalSlurm, options: SlurmOptions) -> None:
    check_contract(make_rig(slurm, options))


def test_a_job_goes_on_on_a_drained_node_and_starts_again_without_it(
    slurm: LocalSlurm, options: SlurmOptions, tmp_path: Path
) -> None:
    job, controller = start_training(slurm, tmp_path), SlurmController(options)
    assert controller.isolate("n1", "d-1", "NIC eth0 is slow").outcome == "done"
    assert see(options, job) == JobView(job, "running", ("n1", "n2"))
    new = restart_to_the_end(controller, Restart("d-1", job, exclude=("n1",), checkpoint="/ckpt/a,b"), tmp_path)
    assert read_output(tmp_path, new) == ["n[2-3] attempt 0 from /ckpt/a,b with --lr=3e-4"]
    assert see(options, new) == JobView(new, "running", ("n2", "n3"), mark="d-1")
    assert see(options, job).state == "ended"
    assert parse_jobs(slurm.call("scontrol", "show", "job", new, "--oneliner"))[0].fields["JobName"] == "train me"


def test_a_mark_starts_one_job(slurm: LocalSlurm, options: SlurmOptions, tmp_path: Path) -> None:
    job = start_training(slurm, tmp_path)
    order = Restart("d-2", job, nnodes=1)
    new = SlurmController(options).restart(order).job
    assert new is not None
    slurm.call("scancel", new)  # a person's undo
    for spool in (options.spool, tmp_path / "a planner on another host"):
        again = SlurmController(replace(options, spool=spool)).restart(order)
        assert (again.outcome, again.job) == ("already", new)
    assert slurm.call("squeue", "--noheader", "--states=pending,running") == ""


def test_death_between_scancel_and_sbatch_loses_no_job(
    slurm: LocalSlurm, options: SlurmOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, clock = start_training(slurm, tmp_path), ManualClock()
    order = Restart("d-3", job, exclude=("n1",))

    def die(*_: object) -> str:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(SlurmCommands, "submit", die)
        with pytest.raises(Died):
            SlurmController(options, clock).restart(order)
    assert see(options, job).state == "ended"
    assert "its answer is lost" in SlurmController(options, clock).restart(order).what
    clock.advance(20)  # twice MessageTimeout
    new = restart_to_the_end(SlurmController(options, clock), order, tmp_path)
    assert see(options, new).nodes == ("n2", "n3")


def test_a_submission_that_arrives_late_is_found_and_not_made_again(
    slurm: LocalSlurm, options: SlurmOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, clock = start_training(slurm, tmp_path), ManualClock()
    order, submit = Restart("d-10", job, exclude=("n1",)), SlurmCommands.submit

    def submit_to_one_who_sleeps(commands: SlurmCommands, *given: Any) -> str:
        slurm.send_signal("slurmctld", signal.SIGSTOP)
        commands.deadline = Deadline(6)  # sbatch has connected and sent its request by then
        try:
            return submit(commands, *given)
        finally:
            slurm.send_signal("slurmctld", signal.SIGCONT)

    with monkeypatch.context() as patch:
        patch.setattr(SlurmCommands, "submit", submit_to_one_who_sleeps)
        with pytest.raises(HalfDone, match="did not end within 6 s and was killed"):
            SlurmController(options, clock).restart(order)
    wait_until(lambda: SlurmCommands(options).find_marked("d-10") is not None, "the request arrives after all")
    clock.advance(20)
    assert SlurmController(options, clock).restart(order).outcome == "already"
    assert len(slurm.call("squeue", "--noheader", "--states=pending,running").splitlines()) == 1


def test_attempts_never_meet(
    slurm: LocalSlurm, options: SlurmOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends when KillWait is over; who looks once and does not wait sees it before."""
    order = Restart("d-9", start_training(slurm, tmp_path, text=STUBBORN))
    controller = SlurmController(options)
    with monkeypatch.context() as patch:
        patch.setattr(SlurmCommands, "wait_until", lambda _, is_so, at_most_s: is_so())
        assert f"still ending on n1 (KillWait is {KILL_WAIT_S} s)" in controller.restart(order).what
    wait_until(lambda: controller.restart(order).is_good, "the job is started again")
    new = controller.restart(order).job
    assert new is not None
    wait_until(lambda: bool(read_output(tmp_path, new)), "the new job runs")
    assert read_output(tmp_path, new) == ["attempt alone"]


def test_a_requeued_job_keeps_its_number(slurm: LocalSlurm, options: SlurmOptions, tmp_path: Path) -> None:
    job = start_training(slurm, tmp_path)
    controller = SlurmController(replace(options, way="requeue"))
    order = Restart("d-4", job, exclude=("n1",), nnodes=1, checkpoint="/ckpt/7")
    report = controller.restart(order)
    assert (report.outcome, report.job) == ("done", job), report
    assert controller.restart(order).outcome == "already"
    again = ["n2 attempt 1 from scratch with --lr=3e-4"]  # Slurm begins the file anew
    wait_until(lambda: read_output(tmp_path, job) == again, "the job runs again, on n2")
    assert see(options, job) == JobView(job, "running", ("n2",), restarts=1, mark="d-4")


def test_a_job_that_could_not_start_is_left_alone(slurm: LocalSlurm, options: SlurmOptions, tmp_path: Path) -> None:
    job = start_training(slurm, tmp_path)
    report = SlurmController(options).restart(Restart("d-5", job, exclude=("n1",), nnodes=4))
    assert report.outcome == "refused"
    assert "Requested node configuration is not available" in report.what
    assert see(options, job).state == "running"


@pytest.mark.needs_root
def test_who_is_no_operator_is_told_so(slurm: LocalSlurm, options: SlurmOptions) -> None:
    scontrol = options.spool.parent / "scontrol-of-nobody"
    scontrol.write_text('#!/bin/sh\nexec setpriv --reuid=nobody --clear-groups scontrol "$@"\n')
    scontrol.chmod(0o755)
    report = SlurmController(replace(options, scontrol=str(scontrol))).isolate("n1", "m", "slow")
    assert report.outcome == "failed"
    assert "slurm_update error: Invalid user id" in report.what
    assert all(node.is_usable for node in show_nodes(slurm))


@pytest.mark.needs_root
def test_root_starts_a_users_job_as_that_user(slurm: LocalSlurm, options: SlurmOptions) -> None:
    words = ("--uid=nobody", "--gid=nogroup", "--output=/dev/null", "--chdir=/", "--wrap=exec sleep 600")
    job = slurm.call("sbatch", "--parsable", *words).strip()
    new = SlurmController(options).restart(Restart("d-6", job)).job
    assert new is not None
    (seen,) = parse_jobs(slurm.call("scontrol", "show", "job", new, "--oneliner"))
    assert seen.user == "nobody"
    slurm.call("scancel", new)


def test_a_controller_that_is_away_is_said_in_time(slurm: LocalSlurm, options: SlurmOptions) -> None:
    controller = SlurmController(options)
    assert controller.isolate("n1", "d-7", "slow").outcome == "done"
    slurm.stop("slurmctld")
    with pytest.raises(ControllerDown, match=r"scontrol show node did not end within 2 s and was killed"):
        SlurmController(replace(options, timeout_s=2.0)).release("n1", "d-7")
    slurm.start_controller()
    assert controller.isolate("n1", "d-7", "slow").outcome == "already"
    assert controller.release("n1", "d-7").outcome == "done"
