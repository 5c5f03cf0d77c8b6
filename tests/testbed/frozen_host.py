"""A host freezes under a real job: the analyzer names it, the ladder is climbed, Slurm drains it, the job goes on.

Everything is real but the hosts, which share this machine: ranks drive the plugin, a collector per host reads their
rings, and `lockstep up` stores, judges, decides and acts. The host freezes again after the first cure, a restart on
the same nodes, so that the second takes it away; it is repaired, tested, and returns.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.clock import NS_PER_S
from lockstep.execution import Execution
from lockstep.state.decisions import list_executions
from lockstep.state.incidents import list_incidents
from tests.testbed.drill.site import Site
from tests.testbed.slurm_rank import faults_of

_WARM_UP_S = 15.0  # that a new attempt runs before it freezes again: its rhythm must be known


@dataclass(frozen=True, slots=True)
class Scenario:
    """What happened, with seconds since the host froze first."""

    runs: tuple[Execution, ...]  # what was carried out, the oldest first
    named_s: float  # first verdict
    stepping_s: float  # the job steps without the host
    returned_s: float  # the host is back in service
    verdicts: tuple[str, ...]  # class, component and confidence of all incidents


def freeze(site: Site, node: str, note: Callable[[str], None]) -> Scenario:
    """Freeze a host until it has been taken away, repair it, and wait until it is back."""
    frozen_ns = time.time_ns()
    faults_of(site.folder, node).write_text(str(_WARM_UP_S))
    gone = site.await_taken(node)
    note(f"taken away: {gone.reason or gone.action}")
    stepping = site.await_step(gone.ended_ns or frozen_ns)
    faults_of(site.folder, node).unlink()
    returned_ns = site.await_returned(node)
    incidents = list(reversed(list_incidents(site.control)))
    verdicts = [incident.verdict for incident in incidents]
    return Scenario(
        runs=tuple(sorted(list_executions(site.control), key=lambda run: run.began_ns)),
        named_s=(incidents[0].opened_ns - frozen_ns) / NS_PER_S,
        stepping_s=(stepping.time_ns - frozen_ns) / NS_PER_S,
        returned_s=(returned_ns - frozen_ns) / NS_PER_S,
        verdicts=tuple(f"{each.fault_class} {each.component} {each.confidence:.2f}" for each in verdicts),
    )
