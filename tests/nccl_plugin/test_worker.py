"""The worker refuses what it cannot do with a sentence, obeys its standard input, and is clean under sanitizers."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.testbed.ranks import PLUGIN_SOURCES
from tests.testbed.workers.job import Loopback, start_job
from tests.testbed.workers.plan import Collective, Compute, Hop, JobPlan, Layout
from tests.tiers import long_except
from tests.waiting import LIMIT_S

ALONE = """\
# a job of one rank, which computes and has nobody to talk to
rank 0 1
host 0 h0
nic lo 127.0.0.1
sizes 65536 65536
steps {steps} 1
comm 2a world 0
compute 1 0 {how}
op 0 AllReduce RING 4096 1 -1
"""


def run(built: Path, folder: Path, job: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "rank0.job").write_text(job)
    limited = options or ("--limit-s", "20")
    command: list[str | Path] = [built / "worker", built / "liblockstep-nccl.so", folder, "0", *limited]
    environment = os.environ | {"LOCKSTEP_RING_DIR": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, input="", env=environment)


def test_rank_alone_computes_and_leaves_when_its_input_ends_and_half_a_command_or_job_is_refused(
    built: Path, tmp_path: Path
) -> None:
    done = run(built, tmp_path, ALONE.format(steps=0, how="sleep"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ready\n")
    without_a_limit = run(built, tmp_path, ALONE.format(steps=1, how="spin"), "--limit-s")
    assert without_a_limit.returncode == 2
    assert without_a_limit.stderr.startswith("usage: ")
    without_steps = run(built, tmp_path, "rank 0 1\n")
    assert without_steps.returncode == 2
    assert "lacks rank, nic, sizes, or what a step is" in without_steps.stderr


SENSELESS = """\
dance
rank 3 2
host 1 h1
comm 2b other 1
compute -1 0 sleep
compute 1 0 dance
op 0 AllReduce RING 0 1 -1
op 1 AllReduce RING 8 1 -1
op 0 AllToAll RING 8 1 -1
op 0 Send RING 8 1 0
op 0 AllReduce RING 8 99 -1
with 0 AllReduce RING 8
"""


@pytest.mark.parametrize("line", SENSELESS.splitlines())
def test_line_that_makes_no_sense_is_refused_with_its_number(built: Path, tmp_path: Path, line: str) -> None:
    done = run(built, tmp_path, ALONE.format(steps=1, how="sleep") + line + "\n")

    assert done.returncode == 2
    assert f"rank0.job, line 10 is not understood: {line}" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", long_except(["tsan"], ["asan", "tsan"]))
def test_sanitizers_find_nothing_in_a_parallel_job(sanitizer: str, tmp_path: Path) -> None:
    missing = [tool for tool in ("make", "cc") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"building the worker needs {', '.join(missing)}")
    folder = tmp_path / sanitizer
    targets = [str(folder / name) for name in ("worker", "liblockstep-nccl.so")]
    subprocess.run(["make", "--silent", "-j2", "-C", str(PLUGIN_SOURCES), f"BUILD={tmp_path}", *targets], check=True)
    size, seed = 1 << 20, random.SystemRandom().randrange(1 << 32)
    step = (
        Compute(2, noise=0.2),
        Hop("Send", 1, size),
        Hop("Recv", -1, size, joined=True),
        Collective("tp", "AllReduce", size),
        Collective("dp", "ReduceScatter", size // 4),
        Collective("world", "AllReduce", size, algo="TREE"),
        Collective("world", "Broadcast", size),
    )
    hosts = tuple(f"h{rank // 2}" for rank in range(8))
    plan = JobPlan("clean", hosts, Layout(tp=2, pp=2, dp=2), step, nics=("eth0", "eth1"), steps=30, seed=seed)
    options = {"TSAN_OPTIONS": "halt_on_error=1"}
    with start_job(Loopback(), plan, folder, tmp_path / "job", environment=options) as job:
        job.wait_for_step(5)
        job.ranks[3].command("slow 2")
        job.ranks[2].command("pace 0 50000000")
        job.wait_for_step(10)
        job.command("heal")
        job.wait_for("done")

        # On aarch64 gcc's leak check takes 4 s in each of the eight.
        assert job.leave(limit_s=LIMIT_S) == [0] * 8, f"seed {seed}"
        assert [rank.complaints for rank in job.ranks] == [""] * 8
