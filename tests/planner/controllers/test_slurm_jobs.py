"""What Slurm printed (tests/data/slurm) becomes nodes, jobs and marks, and the command that starts a job again."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import ControllerDown
from planner.controllers import slurm_jobs
from planner.controllers.protocol import JobView, Node, Restart, find_variables
from planner.controllers.running import Notes
from planner.controllers.slurm import SlurmController
from planner.controllers.slurm_jobs import EXCLUDED, SlurmJob, Submission, parse_jobs, parse_nodes
from tests.planner.controllers.fake_slurm import RUNNING, FakeSlurm
from tests.planner.controllers.test_slurm import ORDER, REQUEUED, TIMED_OUT, control

DATA = Path(__file__).parents[2] / "data" / "slurm"


def read(name: str) -> str:
    return (DATA / name).read_text()


def test_nodes_are_as_they_were_that_day_with_who_drained_them() -> None:
    seen = [node.as_node() for node in parse_nodes(read("nodes.txt"))]
    ours = "lockstep d-17: NIC eth0 sends at 0.4 of its rate, since = 03:12"
    assert seen == [
        Node("n1", False, "d-17", f"DRAIN+IDLE: {ours}", is_idle=True),
        Node("n2", False, None, "ALLOCATED+DRAIN: fan [left] broken, Ticket=4711", is_idle=False),
        Node("n3", True, is_idle=False),
        Node("n4", False, None, "DOWN: switched off", is_idle=False),
    ]
    other = parse_nodes(read("nodes.txt"))[1]
    assert (other.who, other.when) == ("root", "2026-11-16T03:32:24")


def test_times_are_as_configured_and_else_as_slurm_has_them() -> None:
    assert slurm_jobs.parse_times(read("config.txt")) == slurm_jobs.SlurmTimes(
        kill_wait_s=2, memory_s=300, answer_s=10
    )
    assert slurm_jobs.parse_times("MinJobAge = 0 sec\n") == slurm_jobs.SlurmTimes(30, 0, 10)
    assert slurm_jobs.parse_times("") == slurm_jobs.SlurmTimes(30, 300, 10)


def test_a_node_is_usable_when_new_work_may_start() -> None:
    usable = ["IDLE", "MIXED+PLANNED", "IDLE+CLOUD+POWERED_DOWN"]
    others = ["IDLE*", "DOWN*+DRAIN", "IDLE+NOT_RESPONDING", "MIXED+DRAIN", "IDLE+MAINTENANCE", "UNKNOWN"]
    lines = [f"NodeName=n1 Arch=x State={state} Weight=1" for state in (*usable, *others)]
    assert [node.is_usable for node in parse_nodes("\n".join(lines))] == [True] * 3 + [False] * 6


def test_jobs_are_as_they_were_that_day() -> None:
    (job,) = parse_jobs(read("job_running.txt"))
    assert job.as_view() == JobView("2", "running", ("n2", "n3"), restarts=0, mark="d-17")
    assert job.user == "root"
    assert job.fields["JobName"] == "train me"
    assert "QOS" not in job.fields, "(null) is no value"
    (job,) = parse_jobs(read("job_cancelled.txt"))
    assert job.as_view() == JobView("1", "ended", ("n2", "n3"), restarts=2, mark="d1")
    assert [(job.id, job.state) for job in parse_jobs(read("job_array.txt"))] == [("4", "running"), ("3", "waiting")]


def test_a_state_of_slurm_is_one_of_four() -> None:
    states = {
        "PENDING": "waiting",
        "COMPLETING": "running",
        "TIMEOUT": "failed",
        "REQUEUED": "waiting",
        "": "waiting",
    }
    assert {word: slurm_jobs.read_state(word) for word in states} == states
    for word in ("COMPLETING", "CONFIGURING"):  # one that ends or boots is not seen to run
        (job,) = parse_jobs(read("job_running.txt").replace("JobState=RUNNING", f"JobState={word}"))
        assert (job.state, job.as_view().state) == ("running", "waiting")


def test_newest_job_with_the_mark_is_found_in_the_queue() -> None:
    assert slurm_jobs.find_marked(read("queue.txt"), "d-17") == "2"
    assert slurm_jobs.find_marked(read("queue.txt"), "d-1") is None
    assert slurm_jobs.find_marked("9|CANCELLED|lockstep m\n10|RUNNING|lockstep m\n", "m") == "10"
    assert slurm_jobs.find_marked("9|RUNNING|lockstep m: resume from /a|b\n", "m") == "9"


def test_words_of_others_and_a_reason_that_outlived_its_drain_are_no_mark() -> None:
    for text in ("", "lockstep", "bad fan", "lockstepd-17: x", "by lockstep d-17", "lockstep a b"):
        assert slurm_jobs.read_mark(text) is None
    (node,) = parse_nodes("NodeName=n1 State=DOWN Reason=lockstep d-17: slow [root@2026-11-16T03:32:24]")
    assert node.mark is None
    assert node.why == "lockstep d-17: slow"


MARKS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,30}", fullmatch=True)


@given(MARKS, st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=60))
def test_a_mark_survives_whatever_the_reason_says(mark: str, reason: str) -> None:
    words = slurm_jobs.write_mark(mark, reason)
    (node,) = parse_nodes(f"NodeName=n1 State=IDLE+DRAIN Reason={words} [ada@2026-11-16T03:32:24]")
    assert (node.mark, node.who) == (mark, "ada")


RESTART = Restart("d-18", "2", exclude=("n2",), checkpoint="/ckpt/step,7", environment={"LOCKSTEP_TP": "2"})


def read_job(name: str = "job_running.txt") -> SlurmJob:
    return parse_jobs((DATA / name).read_text())[0]


def with_fields(**fields: str) -> SlurmJob:
    job = read_job()
    return replace(job, fields=dict(job.fields) | fields)


def build(job: SlurmJob | None = None, order: Restart = RESTART, own_user: str = "root") -> list[str]:
    return slurm_jobs.build_sbatch("sbatch", Submission(job or read_job(), "#!/bin/sh\n"), order, own_user)


def test_the_whole_command() -> None:
    assert "|".join(build()) == (
        "sbatch|--parsable|--comment=lockstep d-18|--export=ALL|--open-mode=append|--job-name=train me|"
        "--partition=debug|--time=01:00:00|--chdir=/srv/ada|--cpus-per-task=1|--mem=0|--output=/srv/ada/slurm-%j.out|"
        "--error=/srv/ada/slurm-%j.out|--nodes=2|--ntasks=2|--exclude=n1,n2|/dev/stdin|--lr|3e-4"
    )


def test_a_value_with_a_comma_travels_in_the_environment() -> None:
    assert find_variables(RESTART) == {"LOCKSTEP_TP": "2", "LOCKSTEP_RESUME_FROM": "/ckpt/step,7"}
    assert "step,7" not in " ".join(build())
    assert find_variables(Restart("m", "2")) == {}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"UserId": "ada(1000)"}, "--uid=ada"),
        ({"TresPerNode": "gres:gpu:8", "Account": "llm"}, "--gres=gres:gpu:8 --account=llm"),
        ({"Reservation": "night", "CPUs/Task": "16"}, "--reservation=night --cpus-per-task=16"),
        ({"MinMemoryNode": "64G", "NtasksPerN:B:S:C": "8:0:*:*"}, "--mem=64G --ntasks-per-node=8"),
        ({"OverSubscribe": "NO", "TresPerJob": "gres:gpu:h100:16"}, "--exclusive --gpus=h100:16"),
        ({"StdOut": "/l/2/train-12.log"}, "--output=/l/2/train-12.log"),  # only the file's name follows the job
        ({"StdErr": "/logs/2/err-2x"}, "--error=/logs/2/err-%jx"),
    ],
)
def test_what_slurm_knows_of_the_job_is_kept(fields: dict[str, str], expected: str) -> None:
    assert set(expected.split()) <= set(build(with_fields(**fields)))


def test_owner_submits_as_himself_and_a_job_without_arguments_has_only_its_script() -> None:
    assert "--uid=ada" not in build(with_fields(UserId="ada(1000)"), own_user="ada")
    assert build(with_fields(Command="/srv/ada/train.sh"))[-1] == "--exclude=n1,n2"


def test_fewer_nodes_have_fewer_tasks_and_gpus() -> None:
    job = with_fields(NumNodes="4", NumTasks="32", NumCPUs="128")
    assert slurm_jobs.find_shape(job, 3) == {"NumNodes": "3", "NumTasks": "24", "NumCPUs": "96"}
    assert slurm_jobs.find_shape(job, None) == {"NumNodes": "4", "NumTasks": "32", "NumCPUs": "128"}
    assert slurm_jobs.find_shape(with_fields(NumNodes="4", NumTasks="6", NumCPUs="2"), None) == {"NumNodes": "4"}
    waiting = with_fields(NumNodes="2-4", NumTasks="2", NumCPUs="2-4")
    assert slurm_jobs.find_shape(waiting, 1) == dict.fromkeys(("NumNodes", "NumTasks", "NumCPUs"), "1")

    def gpus(reported: str) -> str:
        command = build(with_fields(NumNodes="4", TresPerJob=reported), replace(RESTART, nnodes=3))
        return next(word for word in command if word.startswith("--gpus="))

    assert [gpus(reported) for reported in ("gres:gpu:32", "gres/gpu:h100:32")] == ["--gpus=24", "--gpus=h100:24"]
    assert gpus("gres:gpu:30") == "--gpus=30", "nobody knows how many of them a node gives"


def test_a_sites_own_command_is_filled() -> None:
    template = ("submit", "--like={job}", "--not={exclude}", "-N{nnodes}", "--note={comment}", "{script}", "{user}")
    filled = slurm_jobs.fill_template(template, Submission(read_job(), ""), RESTART, "/spool/x.sh")
    assert "|".join(filled) == "submit|--like=2|--not=n1,n2|-N2|--note=lockstep d-18|/spool/x.sh|root"


def test_what_cannot_be_submitted_or_requeued_is_known_before() -> None:
    assert slurm_jobs.why_not_submitted(read_job()) is None
    assert "job 4 is a task of array 3" in str(slurm_jobs.why_not_submitted(read_job("job_array.txt")))
    assert "started by srun or salloc" in str(slurm_jobs.why_not_submitted(with_fields(BatchFlag="0")))
    assert "heterogeneous job 7" in str(slurm_jobs.why_not_submitted(with_fields(HetJobId="7")))
    assert slurm_jobs.why_not_requeued(read_job()) is None
    assert slurm_jobs.why_not_requeued(with_fields(Requeue="0")) == "job 2 was submitted with --no-requeue"
    assert "batch jobs only" in str(slurm_jobs.why_not_requeued(with_fields(BatchFlag="0")))


GROW = Restart("d-19", "17", nnodes=3)  # in which n2 is excluded no more


def show_next(slurm: FakeSlurm, job: str = "17", excluded: str = "n1,n2") -> None:
    """Let the attempt run that was started without n2, as we said, and without n1, as its owner had said."""
    running = RUNNING.replace("JobId=2 ", f"JobId={job} ").replace("lockstep d-17", "lockstep d-18")
    slurm.say("scontrol-show-job", running.replace("ExcNodeList=n1", f"ExcNodeList={excluded}"))
    slurm.say("squeue", f"{job}|RUNNING|lockstep d-18\n")


def find_excluded(slurm: FakeSlurm) -> list[str]:
    return [call.split("ExcNodeList=")[1].split(" ")[0] for call in slurm.calls("scontrol update")]


def read_ours(slurm: FakeSlurm, mark: str) -> str:
    return (Notes(slurm.options().spool).read(mark) or {})[EXCLUDED]


@pytest.mark.parametrize(("still_out", "excluded", "ours"), [((), "n1", ""), (("n2",), "n1,n2", "n2")])
def test_node_that_is_back_is_open_to_the_next_submission(
    slurm: FakeSlurm, still_out: tuple[str, ...], excluded: str, ours: str
) -> None:
    assert control(slurm).restart(ORDER).job == "17"
    assert "--exclude=n1,n2 " in slurm.calls("sbatch")[-1]
    show_next(slurm)
    control(slurm).restart(replace(GROW, exclude=still_out))
    assert f"--exclude={excluded} " in slurm.calls("sbatch")[-1]
    assert read_ours(slurm, "d-19") == ours


@pytest.mark.parametrize(("owners", "expected"), [("n1", ["n1,n2", "n1"]), ("", ["n2", ""])])
def test_node_that_is_back_is_open_to_a_requeued_job(slurm: FakeSlurm, owners: str, expected: list[str]) -> None:
    slurm.say("scontrol-requeuehold", do=REQUEUED)
    slurm.say("scontrol-show-job", RUNNING if owners else RUNNING.replace("ExcNodeList=n1 ", ""))
    controller = SlurmController(replace(slurm.options(), way="requeue"))
    assert controller.restart(ORDER).outcome == "done"
    show_next(slurm, job="2", excluded=expected[0])
    assert controller.restart(replace(GROW, job="2")).outcome == "done"
    assert find_excluded(slurm) == expected


def test_death_in_the_middle_of_a_requeue_requeues_once_and_our_node_stays_ours(slurm: FakeSlurm) -> None:
    away = "slurm_update error: Unable to contact slurm controller\n"
    changed = "-e 's/ExcNodeList=n1 /ExcNodeList=n1,n2 /' -e 's/lockstep d-17/lockstep d-18/'"
    slurm.say("scontrol-requeuehold", do=REQUEUED)
    slurm.say("scontrol-update", err=away, code=1)
    controller = SlurmController(replace(slurm.options(), way="requeue"))
    with pytest.raises(ControllerDown):
        controller.restart(ORDER)
    slurm.say("scontrol-update", do=f"sed -i {changed} scontrol-show-job.out")
    slurm.say("scontrol-release", err=away, code=1)
    with pytest.raises(ControllerDown):
        controller.restart(ORDER)
    slurm.say("scontrol-release")
    assert controller.restart(ORDER).outcome == "done"
    assert len(slurm.calls("scontrol requeuehold")) == 1
    assert slurm.calls("scontrol release") == ["scontrol release 2"] * 2
    assert read_ours(slurm, "d-18") == "n2"


def test_submission_whose_answer_was_lost_remembers_which_node_is_ours(slurm: FakeSlurm) -> None:
    slurm.say("sbatch", err=TIMED_OUT, code=1, do='echo "17|RUNNING|lockstep d-18" > squeue.out')
    with pytest.raises(ControllerDown):
        control(slurm).restart(ORDER)
    report = control(slurm).restart(ORDER)
    assert (report.outcome, report.job) == ("already", "17")
    assert len(slurm.calls("sbatch")) == 1
    assert read_ours(slurm, "d-18") == "n2"


def test_node_that_the_owner_excluded_is_never_ours() -> None:
    job = SlurmJob("2", "running", {"ExcNodeList": "n[1-2]"})
    assert slurm_jobs.find_ours(job, Restart("d-18", "2", exclude=("n2", "n3"))) == "n3"
