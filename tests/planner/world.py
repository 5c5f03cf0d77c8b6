"""Planners over a real control database and the fake controller, with readers that know all: one job, or several."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from lockstep.decision import Decision, Mode
from lockstep.execution import Execution, Order, OrderKind, Step
from lockstep.sections import PlannerSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import find_execution, give_order, list_decisions, list_executions, save_execution
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease
from lockstep.verdict import Incident
from planner.context import ClusterFacts, JobFacts, Resume
from planner.decide import PlannerOptions
from planner.execute import Executor
from planner.node_return import Returner
from planner.rebalance import Rebalancer
from planner.service import PlannerService
from planner.snapshot import Overview, Snapshot
from tests.fixtures.control import hold_lease
from tests.planner.build import HOSTS, SAVED, cluster, crash, execution, incident, isolated, job, seconds
from tests.planner.fake_controller import FakeController, make_world

NODES = [*HOSTS, "h8", "h9"]


@dataclass
class FakeReader:
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
    save_incidents(control, [about or incident(crash(last_seen_ns=seconds(10)))], None)
    return make_world(folder / "cluster.json", NODES)


def planner_of(
    control: ControlDatabase,
    controller: FakeController,
    executor: Executor | None = None,
    returner: Returner | None = None,
    mode: Mode = "execute",
    restarts_per_hour: int = 6,
) -> PlannerService:
    modes: dict[str, Mode] = dict.fromkeys(("replace", "reconfigure", "reattempt", "restart_process"), mode)
    settings = PlannerSettings(modes=modes, restarts_per_hour=restarts_per_hour)
    options = PlannerOptions(settings)
    reader = FakeReader(controller, job(), cluster())
    return PlannerService(control, reader, options, executor or Executor(control, controller), returner)


@dataclass
class Harness:
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

    @property
    def acts(self) -> list[str]:
        return self.controller.world.acts

    @property
    def mark(self) -> str | None:
        """Under which h3 is isolated."""
        return self.controller.world.nodes["h3"]

    def order(self, kind: OrderKind, at_s: float) -> None:
        given = Order(decision=self.decision.id, kind=kind, who="ada", why="I know", ts_ns=seconds(at_s))
        give_order(self.control, given)


def lease_of(control: ControlDatabase, holder: str = "planner-1", at_s: float = 10.0) -> Lease:
    return hold_lease(control, "planner", holder, ttl_ns=10**13, now_ns=seconds(at_s))


@dataclass
class FakeSurveyor:
    """Knows every job that the fake controller runs, with tables by their first names."""

    controller: FakeController
    tables: dict[str, dict[int, float]]
    silent: set[str] = field(default_factory=set)
    weights: dict[str, float] = field(default_factory=dict)
    least: dict[str, int] = field(default_factory=dict)
    resume: Resume | None = SAVED
    next_save_s: float | None = None
    spares: tuple[str, ...] = ()
    trouble: str | None = None

    def survey(self, now_ns: int) -> Overview:
        world = self.controller.world
        found = [job for job in world.jobs.values() if job["state"] == "running" and job["id"] not in self.silent]
        jobs = [self._facts(job["id"], tuple(job["nodes"])) for job in found]
        held = {node for job in jobs for node in job.nodes}
        free = tuple(node for node in self.spares if node not in held and world.nodes[node] is None)
        nodes = None if self.trouble else self.controller.nodes()
        return Overview(jobs, ClusterFacts(spares=free, can_restart=True), nodes, self.trouble)

    def _facts(self, name: str, nodes: tuple[str, ...]) -> JobFacts:
        first = name.partition("+")[0]
        return JobFacts(
            name,
            nodes=nodes,
            gpus=8 * len(nodes),
            resume=self.resume,
            resume_smaller=self.resume,
            next_save_s=self.next_save_s,
            throughput=self.tables.get(first, {}),
            weight=self.weights.get(first, 1.0),
            min_nodes=self.least.get(first, 1),
            throughput_from="measured on 7, 8 nodes",
            measured=frozenset({7, 8}),
        )

    def read(self, incident: Incident, now_ns: int) -> Snapshot:
        view = self.survey(now_ns)
        mine = [job for job in view.jobs if job.job == incident.job]
        others = [job for job in view.jobs if job.job != incident.job]
        return Snapshot(mine[0], view.cluster, others, nodes=view.nodes)

    def resume_on(self, job: JobFacts, nodes: int, now_ns: int) -> Resume | None:
        return self.resume

    def is_over(self, job: str) -> bool:
        view = self.controller.job(job)
        return view is not None and view.state in ("ended", "failed")


LINEAR = {count: 8.0 * count for count in range(1, 9)}


@dataclass
class Site:
    """A cluster in which train lost h3 and goes on with seven nodes as train+1."""

    control: ControlDatabase
    controller: FakeController
    reader: FakeSurveyor
    planner: PlannerService
    lease: Lease

    def run(self, at_s: float) -> int:
        return self.planner.run_once(self.lease, seconds(at_s))

    def end_job(self, name: str) -> None:
        jobs = self.controller.world.jobs
        self.controller.change(jobs=jobs | {name: jobs[name] | {"state": "ended"}})

    def grow(self, at_s: float = 111) -> Decision:
        self.run(100)
        self.bring_back()
        self.run(at_s)
        (found,) = self.plans()
        return found

    def plans(self) -> list[Decision]:
        return [each for each in list_decisions(self.control) if each.part_of]

    def say(self, decision: Decision, kind: OrderKind, at_s: float) -> None:
        give_order(self.control, Order(decision=decision.id, kind=kind, who="ada", ts_ns=seconds(at_s)))

    def find_run(self, decision: Decision) -> Execution | None:
        return find_execution(self.control, decision.id)

    def run_all(self, from_s: int, to_s: int) -> list[str]:
        """Run once a second; return what the controller has started again by then, and on which nodes."""
        for at_s in range(from_s, to_s):
            self.run(at_s)
        return [act for act in self.controller.world.acts if act.startswith("restart")]

    def bring_back(self, node: str = "h3", at_s: float = 100.0) -> None:
        assert self.controller.release(node, "d0").is_good
        row = isolated(decision="d0", state="returned", since_ns=seconds(10), changed_ns=seconds(at_s))
        save_execution(self.control, shrunk(), self.lease, [row])


def shrunk(**changes: object) -> Execution:
    fields = {"decision": "d0", "action": "reconfigure", "began_ns": seconds(10), "ended_ns": seconds(20)}
    return execution(**(fields | {"new_job": "train+1"} | changes))


def restarted(job: str, new_job: str, at_s: float) -> Execution:
    done = {"state": "done", "began_ns": seconds(at_s - 3), "ended_ns": seconds(at_s)}
    step = Step(act="restart", subject=job, **done)
    return shrunk(decision=f"d-{job}", job=job, action="restart_process", new_job=new_job, steps=(step,), **done)


@dataclass
class SiteMaker:
    folder: Path
    control: ControlDatabase
    lease: Lease

    def make(self, mode: Mode = "observe", surveyor: type[FakeSurveyor] = FakeSurveyor, **known: object) -> Site:
        control, controller = self.control, make_world(self.folder / "cluster.json", NODES)
        over = incident(crash()).model_copy(update={"state": "closed", "closed_ns": seconds(30)})
        save_incidents(control, [over], None)
        controller.mark(h3="d0")
        controller.run_job("train+1", [node for node in NODES[:8] if node != "h3"])
        save_execution(control, shrunk(), self.lease, [isolated(decision="d0", at_s=10)])
        reader = surveyor(controller, {"train": LINEAR, "chat": LINEAR}, **known)  # type: ignore[arg-type]
        settings = PlannerSettings(modes={"grow": mode, "reconfigure": mode, "replace": mode})
        options = PlannerOptions(settings, survey_s=10.0)
        rebalancer = Rebalancer(control, reader, options)
        planner = PlannerService(control, reader, options, Executor(control, controller), None, rebalancer)
        site = Site(control, controller, reader, planner, self.lease)
        site.end_job("train")
        return site

    def make_unequal(self, mode: Mode = "execute") -> Site:
        """Return a site in which train is worth ten times as much as chat, which has two nodes and needs one."""
        site = self.make(mode, weights={"train": 10.0})
        site.controller.run_job("chat", ["h8", "h9"])
        return site
