"""A job whose flows the path planner spreads, and which it then leads around a dead link: real plans, real loads."""

from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import take_lease
from lockstep.store.store import Store
from lockstep.topology import Topology
from lockstep.verdict import Incident
from planner.paths.service import PathService
from simulator.scenario import parse_scenario
from simulator.simulation import Simulation
from tests.api.views.build import put
from tests.builders import SECOND, T0
from tests.lockstep.state.build import incident
from tests.simulated import JOB, load, tell, told_step
from tests.waiting import PunctualClock

SCENARIO = parse_scenario(
    """
    summary = "64 ranks on 8 hosts"
    duration_s = 50

    [cluster]
    hosts = 8
    gpus_per_host = 8
    nics_per_host = 2
    hosts_per_leaf = 4
    spines = 2
    nic_gbps = 200.0

    [job]
    compute_ms = 300.0
    allreduce_mb = [512]
    """,
    "planned",
)
DEAD = "leaf0--spine0"
SECONDS = 48  # of the scenario, after which a person looks
_STEP_S = 0.5


class StandingClock(PunctualClock):
    """A clock on which the scenario is always just over: loads of the last two minutes stay those of the scenario."""

    def now_ns(self) -> int:
        return T0 + SECONDS * SECOND


def planned_topology() -> Topology:
    return Simulation(SCENARIO, 1).topology


def load_planned(store: Store, control: ControlDatabase, topology: Topology) -> None:
    """Tell the scenario, let the planner plan for its flows, break a link, and let it plan again."""
    load(store, tell(SCENARIO, seed=1, every_s=50))
    put(store, (told_step(number, number * _STEP_S, _STEP_S) for number in range(2 * SECONDS)))
    service = PathService(store, control, topology)
    for second in (SECONDS - 2, SECONDS - 1):
        now_ns = T0 + second * SECOND
        lease = take_lease(control, "paths", "test", 10 * SECOND, now_ns)
        assert lease is not None
        assert service.run_once(lease, now_ns) is not None, f"no plan was made in second {second}"
        save_incidents(control, [_dead_link(now_ns)], None)


def _dead_link(now_ns: int) -> Incident:
    known = incident("i1", job=JOB, opened_ns=now_ns, updated_ns=now_ns)
    named = {"component": f"link:{DEAD}", "ambiguous_with": (), "side": None, "fault_class": "comm_hang"}
    times = {"since_ns": now_ns - 5 * SECOND, "last_seen_ns": now_ns}
    messages = {"reason": f"nothing passes {DEAD} any more: 6 transfers stand with it for 5 s"}
    return known.model_copy(update={"verdict": known.verdict.model_copy(update=named | times | messages)})
