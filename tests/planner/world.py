"""A planner over a real control database and the fake controller, for tests of whole executions."""

from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.decision import Decision, Mode
from lockstep.execution import Execution, Order, OrderKind
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import give_order, list_decisions, list_executions
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease
from lockstep.verdict import Incident
from planner.context import ClusterFacts, JobFacts, Resume
from planner.decide import PlannerOptions, Policy
from planner.execute import Executor
from planner.limits import Limits
from planner.node_return import Returner
from planner.service import PlannerService
from planner.snapshot import Snapshot
from tests.fixtures.control import hold_lease
from tests.planner.build import HOSTS, cluster, crash, incident, job, seconds
from tests.planner.fake_controller import FakeController, make_world

NODES = [*HOSTS, "h8", "h9"]


@dataclass
class FakeReader:
    """Knows every job by heart, and asks the fake controller for nodes."""

    controller: FakeController
    job: JobFacts
    cluster: ClusterFacts

    def read(self, incident: Incident, now_ns: int) -> Snapshot:
        try:
            return Snapshot(replace(self.job, job=incident.job), self.cluster, nodes=self.controller.nodes())
        except Exception as error:  # noqa: BLE001  # as the real reader does with a controller that is down
            return Snapshot(replace(self.job, job=incident.job), self.cluster, trouble=str(error))

    def resume_on(self, job: JobFacts, nodes: int, now_ns: int) -> Resume | None:
        return job.resume if nodes >= len(job.nodes) else job.resume_smaller


def start(folder: Path, control: ControlDatabase, about: Incident | None = None) -> FakeController:
    """Return a cluster in which a job of eight nodes runs and h3 has just been named."""
    save_incidents(control, [about or incident(crash(last_seen_ns=seconds(10)))], None)
    return make_world(folder / "cluster.json", NODES)


def planner_of(
    control: ControlDatabase,
    controller: FakeController,
    executor: Executor | None = None,
    returner: Returner | None = None,
    mode: Mode = "execute",
    limits: Limits | None = None,
) -> PlannerService:
    """Return a planner that does everything by itself, unless told otherwise."""
    modes: dict[str, Mode] = dict.fromkeys(("replace", "reconfigure", "reattempt", "restart_process"), mode)
    options = PlannerOptions(policy=Policy(modes=modes, limits=limits or Limits()))  # type: ignore[arg-type]  # keys are actions
    reader = FakeReader(controller, job(), cluster())
    return PlannerService(control, reader, options, executor or Executor(control, controller), returner)


@dataclass
class Harness:
    """A planner at work, round by round."""

    control: ControlDatabase
    controller: FakeController
    lease: Lease
    planner: PlannerService

    def run(self, *at_s: float) -> None:
        for second in at_s:
            self.planner.run_once(self.lease, seconds(second))

    def use_mode(self, mode: Mode) -> None:
        self.planner = planner_of(self.control, self.controller, mode=mode)

    @property
    def decision(self) -> Decision:
        return list_decisions(self.control)[0]

    @property
    def execution(self) -> Execution:
        (only,) = list_executions(self.control)
        return only

    def order(self, kind: OrderKind, at_s: float) -> None:
        given = Order(decision=self.decision.id, kind=kind, who="ada", why="I know", ts_ns=seconds(at_s))
        give_order(self.control, given)


def lease_of(control: ControlDatabase, holder: str = "planner-1", at_s: float = 10.0) -> Lease:
    """Return the planner's lease, taken from whoever had it."""
    return hold_lease(control, "planner", holder, ttl_ns=10**13, now_ns=seconds(at_s))
