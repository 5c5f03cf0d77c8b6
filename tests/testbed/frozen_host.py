"""A host freezes under a real job: the analyzer names it, the ladder is climbed, Slurm drains it, the job goes on.

Everything is real but the hosts, which share this machine: ranks drive the plugin, a collector per host reads their
rings, and `lockstep up` stores, judges, decides and acts. The host freezes again after the first cure, a restart on
the same nodes, so that the second takes it away; it is repaired, tested, and returns.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.execution import Execution
from lockstep.state.database import open_control
from lockstep.state.decisions import list_executions
from lockstep.state.incidents import list_incidents
from lockstep.state.tokens import create_token
from tests.testbed.ranks import build_ranks
from tests.testbed.recovering import (
    Site,
    await_found,
    between_s,
    control_url,
    find_returned_ns,
    planner_settings,
    submit,
)
from tests.testbed.services import Service, collector_settings, free_port
from tests.testbed.slurm import QUICK, LocalSlurm, local_slurm
from tests.testbed.slurm_rank import faults_of, rings_of

_WARM_UP_S = 15.0  # that a new attempt runs before it freezes again: its rhythm must be known
_STEPS_BEFORE = 40  # of the training, before the first freeze
_REPAIRED_S = 30.0  # from drain to test: by then it is repaired, and the test finds it so
_SOURCES = ("nccl_rings", "processes")


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happened, with seconds since the host froze first."""

    runs: tuple[Execution, ...]  # what was carried out, the oldest first
    named_s: float  # first verdict
    stepping_s: float  # the job steps without the host
    returned_s: float  # the host is back in service
    verdicts: tuple[str, ...]  # class, component and confidence of all incidents


@contextmanager
def watched_site(folder: Path) -> Iterator[Site]:
    """Give a Slurm of four nodes with a collector each, and a head node that acts; a job trains on three of them."""
    build_ranks(folder / "built")
    (folder / "faults").mkdir()
    with ExitStack() as stack:
        slurm = stack.enter_context(local_slurm(folder / "slurm", nodes=4, extra=QUICK))
        control = stack.enter_context(open_control(control_url(folder)))
        head = stack.enter_context(_head(folder, slurm))
        for node in slurm.nodes:
            rings_of(folder, node).mkdir(parents=True)
            rings_of(folder, node).chmod(0o1777)
            token = create_token(control, scope="ingest", host=node, name=node, now_ns=1)
            stack.enter_context(_collector(folder, node, token, head.probe.removesuffix("/healthz")))
        job = submit(folder, slurm, before=f"{sys.executable} -m tests.testbed.slurm_rank {folder} --")
        site = Site(folder, slurm, control, job)
        await_found(lambda: max(site.log, default=0) >= _STEPS_BEFORE, f"{_STEPS_BEFORE} steps are done")
        yield site


def freeze(site: Site, node: str, note: Callable[[str], None]) -> Scenario:
    """Freeze a host until it has been taken away, repair it, and wait until it is back."""
    frozen_ns = time.time_ns()
    faults_of(site.folder, node).write_text(str(_WARM_UP_S))
    gone = await_found(lambda: _drained(site, node), f"{node} is taken away")
    note(f"taken away: {gone.reason or gone.action}")
    after_ns = await_found(lambda: _stepping_ns(site, gone), "the job steps without it")
    faults_of(site.folder, node).unlink()
    returned_ns = await_found(lambda: find_returned_ns(site, node), f"{node} is back in service")
    incidents = list(reversed(list_incidents(site.control)))
    verdicts = [incident.verdict for incident in incidents]
    return Scenario(
        runs=tuple(sorted(list_executions(site.control), key=lambda run: run.began_ns)),
        named_s=between_s(frozen_ns, incidents[0].opened_ns),
        stepping_s=between_s(frozen_ns, after_ns),
        returned_s=between_s(frozen_ns, returned_ns),
        verdicts=tuple(f"{each.fault_class} {each.component} {each.confidence:.2f}" for each in verdicts),
    )


def _head(folder: Path, slurm: LocalSlurm) -> Service:
    port = free_port()
    tested = ["sh", "-c", f'test ! -e {folder}/faults/"$0"', "{node}"]
    settings = planner_settings(folder, slurm, spares=("n4",)) | {
        "LOCKSTEP_STATE_DIR": str(folder / "head"),
        "LOCKSTEP_API_LISTEN": f"127.0.0.1:{port}",
        "LOCKSTEP_API_OPEN_READS": "true",
        "LOCKSTEP_PLANNER_TEST_COMMAND": json.dumps(tested),
        "LOCKSTEP_PLANNER_TEST_AFTER_S": str(_REPAIRED_S),
    }
    return Service(("up",), settings, f"http://127.0.0.1:{port}/healthz", folder / "head.log")


def _collector(folder: Path, node: str, token: str, server: str) -> Service:
    home, port = folder / "collectors" / node, free_port()
    home.mkdir(parents=True)
    (home / "token").write_text(token)
    settings = collector_settings(home, server, home / "token", node, _SOURCES, rings_of(folder, node))
    settings["LOCKSTEP_COLLECTOR_LISTEN"] = f"127.0.0.1:{port}"
    return Service(("collect",), settings, f"http://127.0.0.1:{port}/metrics", home / "collector.log")


def _drained(site: Site, node: str) -> Execution | None:
    """Return the execution that took the node away and started the job elsewhere."""
    runs = [run for run in list_executions(site.control) if run.state == "done"]
    return next(
        (run for run in runs if any(step.act == "isolate" and step.subject == node for step in run.steps)), None
    )


def _stepping_ns(site: Site, run: Execution) -> int | None:
    later = [step.time_ns for step in site.log.values() if step.time_ns > (run.ended_ns or 0)]
    return min(later, default=None)
