"""The command that starts a job again carries over what Slurm knows, and changes what the order says."""

from dataclasses import replace
from pathlib import Path

from planner.controllers.orders import find_variables
from planner.controllers.protocol import Restart
from planner.controllers.slurm_parsing import SlurmJob, parse_jobs
from planner.controllers.slurm_submission import (
    Submission,
    build_sbatch,
    fill_template,
    find_shape,
    why_not_requeued,
    why_not_submitted,
)

DATA = Path(__file__).parents[2] / "data" / "slurm"
ORDER = Restart("d-18", "2", exclude=("n2",), checkpoint="/ckpt/step,7", environment={"LOCKSTEP_TP": "2"})


def read_job(name: str = "job_running.txt") -> SlurmJob:
    return parse_jobs((DATA / name).read_text())[0]


def with_fields(**fields: str) -> SlurmJob:
    job = read_job()
    return replace(job, fields=dict(job.fields) | fields)


def build(job: SlurmJob | None = None, order: Restart = ORDER, own_user: str = "root") -> list[str]:
    return build_sbatch("sbatch", Submission(job or read_job(), "#!/bin/sh\n"), order, own_user)


def test_the_whole_command() -> None:
    assert build() == [
        "sbatch",
        "--parsable",
        "--comment=lockstep d-18",
        "--export=ALL",
        "--open-mode=append",
        "--job-name=train me",
        "--partition=debug",
        "--time=01:00:00",
        "--chdir=/srv/ada",
        "--cpus-per-task=1",
        "--mem=0",
        "--output=/srv/ada/slurm-%j.out",
        "--error=/srv/ada/slurm-%j.out",
        "--nodes=2",
        "--ntasks=2",
        "--exclude=n1,n2",
        "/dev/stdin",
        "--lr",
        "3e-4",
    ]


def test_a_value_with_a_comma_travels_in_the_environment() -> None:
    assert find_variables(ORDER) == {"LOCKSTEP_TP": "2", "LOCKSTEP_RESUME_FROM": "/ckpt/step,7"}
    assert "step,7" not in " ".join(build())


def test_without_a_checkpoint_nothing_is_resumed() -> None:
    assert find_variables(Restart("m", "2")) == {}


def test_root_submits_as_the_jobs_owner() -> None:
    assert "--uid=ada" in build(with_fields(UserId="ada(1000)"))
    assert "--uid=ada" not in build(with_fields(UserId="ada(1000)"), own_user="ada")


def test_gpus_account_and_reservation_are_kept() -> None:
    command = build(with_fields(TresPerNode="gres:gpu:8", Account="llm", Reservation="night"))
    assert {"--gres=gres:gpu:8", "--account=llm", "--reservation=night"} <= set(command)


def test_memory_processors_and_gpus_of_the_command_line_are_kept() -> None:
    said = {"CPUs/Task": "16", "MinMemoryNode": "64G", "NtasksPerN:B:S:C": "8:0:*:*", "OverSubscribe": "NO"}
    command = build(with_fields(**said, TresPerJob="gres:gpu:h100:16"))
    wanted = {"--cpus-per-task=16", "--mem=64G", "--ntasks-per-node=8", "--exclusive", "--gpus=h100:16"}
    assert wanted <= set(command)


def test_fewer_nodes_have_fewer_tasks() -> None:
    job = with_fields(NumNodes="4", NumTasks="32", NumCPUs="128")
    assert find_shape(job, 3) == {"NumNodes": "3", "NumTasks": "24", "NumCPUs": "96"}
    assert find_shape(job, None) == {"NumNodes": "4", "NumTasks": "32", "NumCPUs": "128"}


def test_fewer_nodes_have_fewer_gpus() -> None:
    def gpus(told: str) -> str:
        command = build(with_fields(NumNodes="4", TresPerJob=told), replace(ORDER, nnodes=3))
        return next(word for word in command if word.startswith("--gpus="))

    assert [gpus(told) for told in ("gres:gpu:32", "gres/gpu:h100:32")] == ["--gpus=24", "--gpus=h100:24"]
    assert gpus("gres:gpu:30") == "--gpus=30", "nobody knows how many of them a node gives"


def test_a_task_count_that_is_no_multiple_is_left_to_the_script() -> None:
    assert find_shape(with_fields(NumNodes="4", NumTasks="6", NumCPUs="2"), None) == {"NumNodes": "4"}


def test_a_job_that_waits_has_a_range_of_nodes() -> None:
    assert find_shape(with_fields(NumNodes="2-4", NumTasks="2", NumCPUs="2-4"), 1) == {
        "NumNodes": "1",
        "NumTasks": "1",
        "NumCPUs": "1",
    }


def test_of_an_output_file_only_the_name_follows_the_job() -> None:
    command = build(with_fields(StdOut="/logs/2/train-12.log", StdErr="/logs/2/err-2x"))
    assert "--output=/logs/2/train-12.log" in command
    assert "--error=/logs/2/err-%jx" in command


def test_a_job_without_arguments_has_only_its_script() -> None:
    assert build(with_fields(Command="/srv/ada/train.sh"))[-1] == "--exclude=n1,n2"


def test_a_sites_own_command_is_filled() -> None:
    template = (
        "submit",
        "--like={job}",
        "--not-on={exclude}",
        "-N{nnodes}",
        "--note={comment}",
        "{script}",
        "{user}",
    )
    assert fill_template(template, Submission(read_job(), ""), ORDER, "/spool/x.sh") == [
        *("submit", "--like=2", "--not-on=n1,n2", "-N2", "--note=lockstep d-18", "/spool/x.sh", "root")
    ]


def test_what_has_no_batch_script_of_its_own_cannot_be_submitted() -> None:
    assert why_not_submitted(read_job()) is None
    assert "job 4 is a task of array 3" in str(why_not_submitted(read_job("job_array.txt")))
    assert "started by srun or salloc" in str(why_not_submitted(with_fields(BatchFlag="0")))
    assert "heterogeneous job 7" in str(why_not_submitted(with_fields(HetJobId="7")))


def test_what_slurm_would_not_requeue_is_known_before() -> None:
    assert why_not_requeued(read_job()) is None
    assert why_not_requeued(with_fields(Requeue="0")) == "job 2 was submitted with --no-requeue"
    assert "batch jobs only" in str(why_not_requeued(with_fields(BatchFlag="0")))
