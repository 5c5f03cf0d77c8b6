"""One task of a Slurm job: a rank that trains with torch, beside one that sends as NCCL does and drives the plugin.

`python -m tests.testbed.slurm_rank SITE -- COMMAND…` runs COMMAND (the training) and a worker of nccl_plugin/tests,
whose ring file the collector reads: torch on gloo tells Lockstep nothing, so the worker speaks for the task, and sets
the training's pace. Both live in the namespace of the task's host and share its fate: what ends one ends the other,
and what SITE/faults/NODE says happens to both.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.namespaces import FOLDER, enter_network
from tests.testbed.workers.job import environment_of
from tests.testbed.workers.plan import KIB, Collective, Compute, JobPlan, Layout, write_job

_POLL_S = 0.1
_LIMIT_S = 600  # a worker that does no step for so long ends by itself
NICS = ("eth0", "eth1")
# A step of a tenth of a second, most of it compute: a job whose rhythm is plain after some seconds.
_STEP = (Compute(60.0, noise=0.02), Collective("world", "AllReduce", 256 * KIB))


@dataclass(frozen=True, slots=True)
class Task:
    rank: int
    node: str
    job: str
    nodes: tuple[str, ...]  # of all ranks


def faults_of(site: Path, node: str) -> Path:
    """Return the file that makes a node faulty; it holds how many seconds a task must have run before it freezes."""
    return site / "faults" / node


def rings_of(site: Path, node: str) -> Path:
    return site / "rings" / node


def write_seat(site: Path, node: str, fabric: Fabric) -> None:
    """Write down where the tasks of a node live: its namespace, and the addresses of its NICs."""
    words = [fabric.namespace_of(node), *(fabric.address_of(node, nic) for nic in NICS)]
    _seat_of(site, node).parent.mkdir(exist_ok=True)
    _seat_of(site, node).write_text(" ".join(words))


def _seat_of(site: Path, node: str) -> Path:
    return site / "seats" / node


def main(arguments: Sequence[str]) -> int:
    """Run both processes until one ends; return the training's exit code, or that of a killed one."""
    site, training = Path(arguments[0]), arguments[2:]
    task = _read_task()
    namespace, *addresses = _seat_of(site, task.node).read_text().split()
    with open(FOLDER / namespace) as home:
        enter_network(home.fileno())
    worker = _start_worker(site, task, addresses)
    paced_by = site / "jobs" / task.job / f"rank{task.rank}.out"
    trainer = subprocess.Popen([*training, "--paced-by", str(paced_by)])
    try:
        _watch(site, task, (worker, trainer))
    finally:
        for process in (worker, trainer):
            process.kill()
            process.wait()
    return trainer.returncode if trainer.returncode >= 0 else 1


def _read_task() -> Task:
    listed = subprocess.run(
        ["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]],
        capture_output=True,
        text=True,
        check=True,
    )
    return Task(
        int(os.environ["SLURM_PROCID"]),
        os.environ["SLURMD_NODENAME"],
        os.environ["SLURM_JOB_ID"],
        tuple(listed.stdout.split()),
    )


def _start_worker(site: Path, task: Task, addresses: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start the worker of this rank; ranks find each other through the job's folder."""
    folder = site / "jobs" / task.job
    folder.mkdir(parents=True, exist_ok=True)
    plan = JobPlan(job=task.job, hosts=task.nodes, layout=Layout(dp=len(task.nodes)), step=_STEP, nics=NICS)
    (folder / f"rank{task.rank}.job").write_text(write_job(plan, task.rank, addresses))
    os.mkfifo(folder / f"rank{task.rank}.control")
    os.open(folder / f"rank{task.rank}.control", os.O_RDWR)  # kept open: the end of its lines would end it
    ring = {"LOCKSTEP_RING_DIR": str(rings_of(site, task.node))}
    command = [str(site / "built" / "worker"), str(site / "built" / "liblockstep-nccl.so"), str(folder)]
    return subprocess.Popen(
        [*command, str(task.rank), "--limit-s", str(_LIMIT_S)],
        env=os.environ | environment_of(plan, task.rank, folder) | ring,
        stdin=subprocess.DEVNULL,
    )


def _watch(site: Path, task: Task, processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Return when one of the processes has ended; freeze both where the node is faulty."""
    began, is_frozen, fault = time.monotonic(), False, faults_of(site, task.node)
    while all(process.poll() is None for process in processes):
        time.sleep(_POLL_S)
        if not is_frozen and fault.exists() and time.monotonic() - began > float(fault.read_text() or 0):
            is_frozen = True
            for process in processes:
                process.send_signal(signal.SIGSTOP)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
