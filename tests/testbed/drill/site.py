"""A site to drill on: a Slurm whose nodes are hosts of a fabric, a torch job on them, and a head that acts by itself.

Everything is real but the hosts, which share this machine, and the GPUs: beside each torch rank a fake of its NCCL, a
worker of nccl_plugin/tests, sends over the host's NICs and drives the plugin, and torch does a step for some of the
worker's. A collector per host reads the plugin's rings, and `lockstep up` stores, judges, decides and acts.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.execution import Execution
from lockstep.fabrics import FabricOptions, leaf_spine
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_executions, list_isolated
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.plan import ShapeOptions
from tests.testbed.faults.breaker import Undo, list_processes, stop
from tests.testbed.ranks import build_ranks
from tests.testbed.scenarios.head_node import HeadNode
from tests.testbed.services import await_found, wait_until
from tests.testbed.slurm import QUICK, LocalSlurm, local_slurm
from tests.testbed.slurm_rank import NICS, rings_of, write_seat
from tests.testbed.training.checkpointed import LoggedStep, read_lines, read_log
from tests.waiting import LIMIT_S

# A job, and a spare. Of four hosts three are heard when one is dead, as many as a verdict that drains asks for.
_HOSTS, _NODES = 5, 4
_NIC_GBPS = 0.1
_STEPS = 4_000  # more than a drill lasts
_WARM_UP_STEPS = 40  # of an attempt, before its rhythm is known
_START_S = 15.0  # from the order to the first step, here


@dataclass
class Site:
    """What runs; `job` is the attempt that trains now."""

    folder: Path
    slurm: LocalSlurm
    fabric: Fabric
    head: HeadNode
    control: ControlDatabase
    job: str

    def nodes_of(self, job: str) -> tuple[str, ...]:
        listed = self.slurm.call("squeue", "--noheader", f"--job={job}", "--format=%N").strip()
        return tuple(self.slurm.call("scontrol", "show", "hostnames", listed).split()) if listed else ()

    def state_of(self, node: str) -> str:
        return self.slurm.call("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T").strip()

    def stop_host(self, node: str) -> Undo:
        """Stop all that runs on a host where it is; to the others it is without power, and closes no connection."""
        return stop(list_processes(self.fabric, node))

    def stop_daemon(self, node: str) -> Undo:
        self.slurm.send_signal(node, signal.SIGSTOP)
        return lambda: self.slurm.send_signal(node, signal.SIGCONT)

    def await_warm(self, since_ns: int = 0) -> None:
        """Return when an attempt has done some steps since then."""

        def is_warm() -> bool:
            newest = self.find_newest_step(since_ns)
            return newest is not None and newest.step - newest.resumed_from >= _WARM_UP_STEPS

        wait_until(is_warm, f"{_WARM_UP_STEPS} steps of an attempt are done", LIMIT_S)

    def await_step(self, since_ns: int) -> LoggedStep:
        """Return a step that ends after then, as soon as there is one."""
        return await_found(lambda: self.find_newest_step(since_ns), "the job steps again")

    def find_newest_step(self, since_ns: int) -> LoggedStep | None:
        """Return the newest step of the job, if it ended after then."""
        log = self.folder / "steps.jsonl"
        lines = log.read_text().splitlines()[-1:] if log.exists() else []
        steps = [LoggedStep.model_validate_json(line) for line in lines if line.endswith("}")]
        return next((step for step in steps if step.time_ns > since_ns), None)

    def await_taken(self, node: str, since_ns: int = 0) -> Execution:
        """Return the execution that took a node away and started the job elsewhere."""

        def find() -> Execution | None:
            runs = [run for run in list_executions(self.control) if run.state == "done" and run.began_ns > since_ns]
            return next((run for run in runs if ("isolate", node) in {(s.act, s.subject) for s in run.steps}), None)

        return await_found(find, f"{node} is taken away")

    def await_returned(self, node: str) -> int:
        def find() -> int | None:
            mine = [each for each in list_isolated(self.control) if each.node == node]
            is_back = mine and all(each.state == "returned" for each in mine)
            return max(each.changed_ns for each in mine) if is_back else None

        return await_found(find, f"{node} is back in service")


@contextmanager
def drill_site(folder: Path, nodes_per_hour: int) -> Iterator[Site]:
    """Give a site on which a job trains; its planner takes so many nodes away in an hour without a person."""
    build_ranks(folder / "built")
    (folder / "faults").mkdir()
    with ExitStack() as stack:
        fabric = stack.enter_context(_build_fabric())
        slurm = stack.enter_context(
            local_slurm(folder / "slurm", nodes=[host.id for host in fabric.topology.hosts], extra=QUICK)
        )
        stack.callback(_let_go, folder, slurm)
        head = stack.enter_context(
            HeadNode(folder / "state", fabric, _planner_settings(folder, slurm, nodes_per_hour))
        )
        for node in slurm.nodes:
            write_seat(folder, node, fabric)
            rings_of(folder, node).mkdir(parents=True)
            rings_of(folder, node).chmod(0o1777)
            head.start_collector(node, rings_of(folder, node))
        control = stack.enter_context(head.open_control())
        site = Site(folder, slurm, fabric, head, control, _submit(folder, slurm))
        site.await_warm()
        yield site


def find_loss_difference(folder: Path) -> float:
    """Return by how much a step's loss differs at most from that of a job of one rank which nothing happened to."""
    lines = read_lines(folder / "steps.jsonl")
    last = max(line.step for line in lines)
    words = ["--dir", folder / "alone", "--steps", last, "--every", last + 1, "--log", folder / "alone.jsonl"]
    command = [sys.executable, "-m", "tests.testbed.training.checkpointed", "--ranks", 1, *words]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    alone = read_log(folder / "alone.jsonl")
    return max(abs(line.loss / alone[line.step].loss - 1) for line in lines)


def _build_fabric() -> Fabric:
    options = FabricOptions(gpus_per_host=1, gbps=_NIC_GBPS, uplink_gbps=_HOSTS * _NIC_GBPS)
    topology = leaf_spine(_HOSTS, len(NICS), leaves=1, spines=1, options=options)
    return build_fabric(topology, ShapeOptions(mbps_per_gbps=1000.0))


def _planner_settings(folder: Path, slurm: LocalSlurm, nodes_per_hour: int) -> dict[str, str]:
    (folder / "spool").mkdir()
    options = {"spool": str(folder / "spool"), "environment": dict(slurm.environment), "timeout_s": 20}
    modes = dict.fromkeys(("restart_process", "replace", "reconfigure"), "execute")
    # A test lasts until the host is repaired: how long people take for that is not ours to guess.
    test = f'while test -e {folder}/faults/"$0"; do sleep 0.2; done; echo "$0 is well"'
    return {
        "LOCKSTEP_PLANNER_CONTROLLER": "slurm",
        "LOCKSTEP_PLANNER_CONTROLLER_OPTIONS": json.dumps(options),
        "LOCKSTEP_PLANNER_MODES": json.dumps(modes),
        "LOCKSTEP_PLANNER_SPARES": json.dumps(slurm.nodes[_NODES:]),
        "LOCKSTEP_PLANNER_CHECKPOINTS": str(folder / "checkpoints"),
        "LOCKSTEP_PLANNER_CHECKPOINT_QUIET_S": "0.5",
        "LOCKSTEP_PLANNER_START_S": str(_START_S),
        "LOCKSTEP_PLANNER_TEST_COMMAND": json.dumps(["sh", "-c", test, "{node}"]),
        "LOCKSTEP_PLANNER_TEST_AFTER_S": "2",
        "LOCKSTEP_PLANNER_NODES_PER_HOUR": str(nodes_per_hour),
        "LOCKSTEP_LOG_LEVEL": "info",
    }


def _submit(folder: Path, slurm: LocalSlurm) -> str:
    training = f"{sys.executable} -m tests.testbed.training.checkpointed --dir {folder}/checkpoints"
    options = f"--log {folder}/steps.jsonl --steps {_STEPS} --every 5 --timeout-s 600"
    script = folder / "train.sh"
    script.write_text(
        "#!/bin/sh\n"
        f"export GLOO_SOCKET_IFNAME={NICS[0]} OMP_NUM_THREADS=1\nmkdir -p {folder}/meeting-$SLURM_JOB_ID\n"
        f"srun --kill-on-bad-exit=1 {sys.executable} -m tests.testbed.slurm_rank {folder} -- "
        f"{training} {options} --rendezvous {folder}/meeting-$SLURM_JOB_ID\n"
    )
    output = slurm.call(
        "sbatch",
        "--parsable",
        f"--nodes={_NODES}",
        "--ntasks-per-node=1",
        f"--output={folder}/job-%j.out",
        f"--chdir={os.getcwd()}",
        str(script),
    )
    return output.strip()


def _let_go(folder: Path, slurm: LocalSlurm) -> None:
    """End tests that wait for a repair, and let daemons run that are stopped, so that they can be told to end."""
    for fault in (folder / "faults").iterdir():
        fault.unlink()
    for node in slurm.nodes:
        slurm.send_signal(node, signal.SIGCONT)
