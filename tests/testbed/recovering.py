"""A real training job under a real Slurm loses a host: decided, drained, restarted and returned, with the seconds.

The job is torch on gloo with torch's own distributed checkpoints, the planner is `lockstep serve planner` as a
process, the controller a Slurm on this machine. Only the verdict is told to the control database by us, as the
analyzer would write it: these ranks have no NCCL to listen to.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from lockstep.clock import NS_PER_S
from lockstep.decision import Decision
from lockstep.execution import Execution
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.decisions import find_execution, list_decisions, list_isolated
from lockstep.state.incidents import save_incidents
from lockstep.verdict import Impact, Incident, Verdict
from tests.testbed.services import Service, free_port, wait_until
from tests.testbed.slurm import QUICK, LocalSlurm, local_slurm
from tests.testbed.training.checkpointed import LoggedStep, read_log
from tests.waiting import LIMIT_S

_STEP_S = 0.25
_STEPS = 4_000  # more than the trial lasts
_NODES = 3

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Recovery:
    """Seconds of each phase, and what the job did."""

    decided_s: float  # from the verdict
    drained_s: float  # from the decision
    restarted_s: float  # from then until the new attempt was ordered
    running_s: float  # until Slurm runs it
    stepping_s: float  # until its first step: processes, imports, meeting, checkpoint
    returned_s: float  # from the drain until the node was tested and back in service
    nodes_before: tuple[str, ...]
    nodes_after: tuple[str, ...]
    resumed_from: int  # step of the checkpoint
    steps_again: int  # that had been done after it

    @property
    def total_s(self) -> float:
        """From the verdict to the first step of the new attempt."""
        return self.decided_s + self.drained_s + self.restarted_s + self.running_s + self.stepping_s


@dataclass
class Site:
    """A cluster of one trial."""

    folder: Path
    slurm: LocalSlurm
    control: ControlDatabase
    job: str

    @property
    def log(self) -> dict[int, LoggedStep]:
        return read_log(self.folder / "steps.jsonl")

    def nodes_of(self, job: str) -> tuple[str, ...]:
        listed = self.slurm.call("squeue", "--noheader", f"--job={job}", "--format=%N").strip()
        return tuple(self.slurm.call("scontrol", "show", "hostnames", listed).split()) if listed else ()

    def state_of(self, node: str) -> str:
        return self.slurm.call("sinfo", "--noheader", "--Node", f"--nodes={node}", "--format=%T").strip()

    def report(self, name: str, node: str, confidence: float = 0.99) -> Incident:
        """Write a verdict on a host into the control database, as the analyzer does."""
        now_ns = time.time_ns()
        verdict = Verdict(
            id=f"v-{name}",
            job=self.job,
            fault_class="crash",
            component=f"host:{node}",
            confidence=confidence,
            grade="isolate",
            since_ns=now_ns,
            last_seen_ns=now_ns,
            impact=Impact(ranks_waiting=_NODES - 1),
            reason=f"{node} is gone",
            coverage=1.0,
        )
        incident = Incident(id=name, job=self.job, state="open", opened_ns=now_ns, updated_ns=now_ns, verdict=verdict)
        save_incidents(self.control, [incident], None)
        return incident

    def close(self, incident: Incident) -> None:
        """Let an incident end, as the analyzer does when its attempt is over."""
        over = {"state": "closed", "closed_ns": time.time_ns(), "closed_because": "the attempt is over"}
        save_incidents(self.control, [incident.model_copy(update=over)], None)


@contextmanager
def running_site(folder: Path, spares: tuple[str, ...] = ("n4",)) -> Iterator[Site]:
    """Give a Slurm of four nodes on three of which a job trains, with a planner that may act by itself."""
    with local_slurm(folder / "slurm", nodes=4, extra=QUICK) as slurm, open_control(control_url(folder)) as control:
        job = submit(folder, slurm)
        site = Site(folder, slurm, control, job)
        planner = _planner(folder, slurm, spares)
        with planner:
            # Two checkpoints: the newest may still be in the making.
            await_found(lambda: max(site.log, default=0) >= 12, "the job has done twelve steps")
            yield site


def recover(site: Site, node: str, note: Callable[[str], None]) -> Recovery:
    """Let a node be named, and follow what happens until it is back in service."""
    before, done_before = site.nodes_of(site.job), max(site.log)
    incident = site.report("i1", node)
    (decision, *_) = await_found(
        lambda: [one for one in list_decisions(site.control, incident=incident.id) if one.action != "none"],
        "there is a decision",
    )
    note(f"decided: {decision.action}: {decision.reason}")
    run = await_found(lambda: _finished(site, decision), "the decision is carried out")
    note(f"carried out: {[(step.act, step.state, step.message) for step in run.steps]}")
    assert run.state == "done", run
    assert run.new_job is not None
    site.close(incident)
    after = site.nodes_of(run.new_job)
    resumed = await_found(lambda: _first_step_after(site, run), "the new attempt does its first step")
    returned_ns = await_found(lambda: find_returned_ns(site, node), f"{node} is back in service")
    isolate, restart, watch = (_ended_ns(run, act) for act in ("isolate", "restart", "watch"))
    return Recovery(
        decided_s=between_s(incident.opened_ns, decision.created_ns),
        drained_s=between_s(decision.created_ns, isolate),
        restarted_s=between_s(isolate, restart),
        running_s=between_s(restart, watch),
        stepping_s=between_s(watch, resumed.time_ns),
        returned_s=between_s(isolate, returned_ns),
        nodes_before=before,
        nodes_after=after,
        resumed_from=resumed.resumed_from,
        steps_again=done_before - resumed.resumed_from,
    )


def submit(folder: Path, slurm: LocalSlurm, before: str = "") -> str:
    """Submit the training job and return its number; `before` is what each task runs it with."""
    program = "tests.testbed.training.checkpointed"
    words = f"{sys.executable} -m {program} --dir {folder}/checkpoints --log {folder}/steps.jsonl"
    more = (
        f"--steps {_STEPS} --step-s {_STEP_S} --every 5 --timeout-s 600 --rendezvous {folder}/meeting-$SLURM_JOB_ID"
    )
    script = folder / "train.sh"
    script.write_text(
        "#!/bin/sh\n"
        f"export GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1\nmkdir -p {folder}/meeting-$SLURM_JOB_ID\n"
        f"srun --kill-on-bad-exit=1 {before} {words} {more}\n"
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


def _planner(folder: Path, slurm: LocalSlurm, spares: tuple[str, ...]) -> Service:
    port = free_port()
    settings = planner_settings(folder, slurm, spares) | {
        "LOCKSTEP_STATE_DIR": str(folder / "planner"),
        "LOCKSTEP_PLANNER_LISTEN": f"127.0.0.1:{port}",
    }
    return Service(("serve", "planner"), settings, f"http://127.0.0.1:{port}/healthz", folder / "planner.log")


def planner_settings(folder: Path, slurm: LocalSlurm, spares: tuple[str, ...]) -> dict[str, str]:
    """Return settings of a planner that acts by itself through this Slurm, once an hour."""
    (folder / "spool").mkdir()
    options = {"spool": str(folder / "spool"), "environment": dict(slurm.environment), "timeout_s": 20}
    modes = dict.fromkeys(("restart_process", "replace", "reconfigure"), "execute")
    return {
        "LOCKSTEP_CONTROL_URL": control_url(folder),
        "LOCKSTEP_PLANNER_CONTROLLER": "slurm",
        "LOCKSTEP_PLANNER_CONTROLLER_OPTIONS": json.dumps(options),
        "LOCKSTEP_PLANNER_MODES": json.dumps(modes),
        "LOCKSTEP_PLANNER_SPARES": json.dumps(spares),
        "LOCKSTEP_PLANNER_CHECKPOINTS": str(folder / "checkpoints"),
        "LOCKSTEP_PLANNER_CHECKPOINT_QUIET_S": "0.5",
        "LOCKSTEP_PLANNER_TEST_COMMAND": json.dumps(["echo", "{node} is well"]),
        "LOCKSTEP_PLANNER_TEST_AFTER_S": "2",
        "LOCKSTEP_PLANNER_NODES_PER_HOUR": "1",
        "LOCKSTEP_LOG_LEVEL": "info",
    }


def control_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'control.db'}"


def _finished(site: Site, decision: Decision) -> Execution | None:
    run = find_execution(site.control, decision.id)
    return run if run is not None and run.ended_ns is not None else None


def _first_step_after(site: Site, run: Execution) -> LoggedStep | None:
    began_ns = _ended_ns(run, "restart")
    steps = [step for step in site.log.values() if step.time_ns > began_ns and step.resumed_from > 0]
    return min(steps, key=lambda step: step.time_ns, default=None)


def find_returned_ns(site: Site, node: str) -> int | None:
    back = [each for each in list_isolated(site.control) if each.node == node and each.state == "returned"]
    return back[0].changed_ns if back else None


def _ended_ns(run: Execution, act: str) -> int:
    return next(step.ended_ns or 0 for step in run.steps if step.act == act)


def between_s(start_ns: int, end_ns: int) -> float:
    return (end_ns - start_ns) / NS_PER_S


def await_found(find: Callable[[], Found | None], what: str, limit_s: float = LIMIT_S) -> Found:
    """Return what is found as soon as it is there."""
    found: list[Found] = []

    def is_there() -> bool:
        seen = find()
        found.extend([seen] if seen else [])
        return bool(found)

    wait_until(is_there, what, limit_s)
    return found[0]
