"""Jobs are told through their folder, once for each mark, and nothing that they have not announced."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lockstep.clock import ManualClock, SystemClock
from lockstep.decision import Action
from lockstep.errors import BadInput, ControllerDown
from lockstep.in_job import Effect, JobFolder, Order
from lockstep.sections import PlannerSettings
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_decisions, list_executions
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease
from lockstep.training.meeting import Meeting, Patience, TrainingOptions
from planner.assembly import make_controller
from planner.controllers.in_job import InJobController, InJobOptions
from planner.controllers.protocol import EVERY_ACT, Controller, InJob, JobView, OwnSpelling, Restart, Shrink
from planner.decide import PlannerOptions
from planner.execute import Executor, check_effect
from planner.service import PlannerService
from planner.snapshot import FactReader
from tests.planner.build import cluster, crash, incident, seconds
from tests.planner.conftest import lease
from tests.planner.fake_controller import FakeController, make_world

__all__ = ["lease"]
NODES = ("h0", "h1", "h2")
WITHOUT_H1 = Shrink("d1", "train", "drop_replica", ("h1",))


@pytest.fixture
def beside(tmp_path: Path) -> FakeController:
    return make_world(tmp_path / "world.json", NODES, on=3)


def controller(tmp_path: Path, beside: Controller, **options: object) -> InJobController:
    given = {"folder": f"{tmp_path}/jobs/{{job}}", "controller": "fake", **options}
    return InJobController(InJobOptions(**given), beside, SystemClock())  # type: ignore[arg-type]  # of a test's own


def described(ours: Controller) -> JobView:
    view = ours.job("train")
    assert view is not None
    return view


def replicas(tmp_path: Path, stages: int = 0) -> list[Meeting]:
    """Return a job of three replicas in its first generation; each has a node, and its stages a worker each."""
    path, options = tmp_path / "jobs" / "train", {"silence_s": 99.0, "micro_batches": 12 if stages else 6}
    places = [{"stage": stage, "stages": stages} for stage in range(stages)] if stages else [{}]
    every: list[dict[str, Any]] = [  # Any: options of a worker
        {"replica": n, "replicas": 3, "node": node, **options, **place}
        for n, node in enumerate(NODES)
        for place in places
    ]
    job = [Meeting(TrainingOptions(path, "train", **each)) for each in every]
    for _ in range(2):
        for each in job:
            each.announce()
            each.beat()
        job[0].begin(0.0)
    for each in job:
        each.move_on()
    return job


def workers(tmp_path: Path) -> list[Meeting]:
    return replicas(tmp_path, stages=2)


@contextmanager
def at_work(job: list[Meeting]) -> Iterator[None]:
    """Let the replicas look at their folder, as between two steps."""
    over = threading.Event()

    def work() -> None:
        while not over.wait(0.005):
            for each in job:
                each.beat()
                each.tend(Patience(99.0, 99.0), takes_new=True)
                each.move_on()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_other_acts_are_those_of_the_controller_beside_it(tmp_path: Path, beside: FakeController) -> None:
    ours = controller(tmp_path, beside)
    assert (ours.name, ours.acts, ours.restarts_whole_job) == ("fake", EVERY_ACT, False)
    assert ours.isolate("h0", "d1", "gone").outcome == "done"
    assert [node.mark for node in ours.nodes()] == ["d1", None, None]
    assert ours.release("h0", "d2").outcome == "refused"
    assert ours.restart(Restart("d3", "train", ("h0",), 2)).job == "train+1"
    assert ours.reattempt("train", "d4").is_good
    assert beside.world.acts == ["isolate h0", "restart train on h1,h2", "reattempt train"]
    assert isinstance(ours, InJob)
    assert not isinstance(beside, InJob)


def test_a_job_is_described_by_what_it_has_announced_while_it_lives(tmp_path: Path, beside: FakeController) -> None:
    ours = controller(tmp_path, beside)
    before = described(ours)
    assert (list(before.can), before.replicas) == ([], None)
    replicas(tmp_path)
    view = described(ours)
    assert (view.nodes, view.can, view.replicas, view.micro_batches) == (NODES, ("drop_replica",), 3, 2)
    much_later = ManualClock(SystemClock().now_ns() + 10**12)
    options = InJobOptions(f"{tmp_path}/jobs/{{job}}", "fake")
    assert described(InJobController(options, beside, much_later)) == before


def test_an_order_is_carried_out_once_and_its_effect_told(tmp_path: Path, beside: FakeController) -> None:
    job, ours = replicas(tmp_path), controller(tmp_path, beside)
    with at_work(job):
        for outcome, asked in (("done", ours), ("already", controller(tmp_path, beside))):
            report = asked.shrink(WITHOUT_H1)
            assert (report.outcome, report.what) == (outcome, "generation 2 goes on with 2 replicas")
        assert ours.shrink(Shrink("d2", "train", "drop_replica", ("h1",))).outcome == "already"
    assert job[0].now is not None
    assert (job[0].now.number, job[0].now.mark, job[0].now.out) == (2, "d1", ("h1",))
    assert ours.effect("train", "d1") is None
    measured = Effect(generation=2, step=7, standstill_s=1.5, speed_after=0.7)
    job[0].folder.write("effects/2.json", measured)
    assert ours.effect("train", "d1") == measured
    assert described(ours).standstill_s == 1.5


@pytest.mark.parametrize("h1", ["h1", "h1.site.example"])
def test_a_node_that_is_given_back_may_join_again(tmp_path: Path, beside: FakeController, h1: str) -> None:
    job, ours = replicas(tmp_path), controller(tmp_path, OwnSpelling(beside))
    with at_work(job):
        ours.isolate(h1, "d1", "gone")
        assert ours.shrink(Shrink("d1", "train", "drop_replica", (h1,))).outcome == "done"
        ours.release(h1, "d1")
        over = threading.Event()
        while job[0].now is None or job[0].now.out:
            over.wait(0.005)
    assert "h1" in [member.node for member in job[0].now.members]


def test_a_job_that_says_nothing_is_not_pressed(tmp_path: Path, beside: FakeController) -> None:
    ours = controller(tmp_path, beside, timeout_s=0.05)
    assert ours.shrink(WITHOUT_H1).outcome == "refused"
    job = replicas(tmp_path)
    unable = ours.shrink(Shrink("d1", "train", "recycle", ("h1",)))
    assert unable.what == "train has not announced that it can recycle"
    silent = ours.shrink(WITHOUT_H1)
    assert (silent.outcome, silent.what) == ("failed", "train has not answered within 0.05 s")
    with at_work(job):  # the order is still there, and it is the same one
        assert controller(tmp_path, beside).shrink(WITHOUT_H1).is_good


def test_a_pipeline_is_told_to_hand_work_to_peers_and_to_nothing_else(tmp_path: Path, beside: FakeController) -> None:
    job, ours = workers(tmp_path), controller(tmp_path, beside)
    job[0].speed_after = 0.8
    job[0].announce()
    view = described(ours)
    assert (view.can, view.replicas, view.stages, view.micro_batches) == (("recycle",), 3, 2, 4)
    assert view.speed_after == 0.8
    with at_work(job):
        assert ours.shrink(WITHOUT_H1).what == "train has not announced that it can drop_replica"
        report = ours.shrink(Shrink("d1", "train", "recycle", ("h1",)))
        assert (report.outcome, report.what) == ("done", "generation 2 goes on with 4 workers")
    assert job[0].now is not None
    assert [member.place for member in job[0].now.members] == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert job[0].now.cause == "ordered out: h1 (replica 1, stage 0, replica 1, stage 1)"


def test_an_order_for_a_generation_that_is_over_is_given_anew(tmp_path: Path, beside: FakeController) -> None:
    job = replicas(tmp_path)
    stale = Order(mark="d1", act="drop_replica", nodes=("h1",), generation=0)
    with at_work(job):
        job[0].folder.write_first("orders/d1.drop_replica.0.json", stale)
        assert controller(tmp_path, beside).shrink(WITHOUT_H1).outcome == "done"


def test_a_dry_run_says_what_would_be_ordered(tmp_path: Path, beside: FakeController) -> None:
    replicas(tmp_path)
    report = controller(tmp_path, beside, dry_run=True).shrink(WITHOUT_H1)
    assert (report.outcome, report.what) == ("would", "would have train go on without h1")
    assert not list(JobFolder(tmp_path / "jobs" / "train").orders())


def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, beside: FakeController) -> None:
    ours = controller(tmp_path, beside)
    with pytest.raises(BadInput, match="no name of a job"):
        ours.job("../secrets")
    (tmp_path / "jobs" / "train" / "job.json").mkdir(parents=True)
    with pytest.raises(ControllerDown, match="the folder of the job cannot be used"):
        ours.shrink(WITHOUT_H1)


def test_settings_name_the_controller_beside_it_with_its_options(tmp_path: Path) -> None:
    options = {"folder": "/shared/{job}", "controller": "nvrx", "controller_options": {"directory": "/shared/out"}}
    assert make_controller("in_job", options).name == "nvrx"
    with pytest.raises(BadInput, match="there is no controller 'elsewhere'"):
        make_controller("in_job", options | {"controller": "elsewhere"})
    with pytest.raises(BadInput, match="unknown fields"):
        make_controller("in_job", options | {"folder": "/shared/{node}"})


@pytest.mark.parametrize(("job_of", "action"), [(replicas, "drop_replica"), (workers, "recycle")])
def test_a_dead_host_is_decided_on_ordered_out_and_what_that_brought_is_measured(
    tmp_path: Path,
    beside: FakeController,
    control: ControlDatabase,
    lease: Lease,
    job_of: Callable[[Path], list[Meeting]],
    action: Action,
) -> None:
    job, ours = job_of(tmp_path), controller(tmp_path, beside)
    save_incidents(control, [incident(crash(component="host:h1", last_seen_ns=seconds(10)))], None)
    around = cluster(spares=(), hosts=frozenset(NODES), block_of={})
    reader = FactReader(None, ours, None, None, around, {})
    options = PlannerOptions(PlannerSettings(modes={action: "execute"}))
    planner = PlannerService(control, reader, options, Executor(control, ours))
    with at_work(job):
        for at_s in (10, 11, 12):
            planner.run_once(lease, seconds(at_s))
    (made,) = list_decisions(control)
    assert (made.action, [part.node for part in made.isolate], made.cost.downtime_s) == (action, ["h1"], 15.0)
    (run,) = list_executions(control)
    done = [("isolate", "done"), (action, "done"), ("watch", "begun")]
    assert ([(step.act, step.state) for step in run.steps], beside.world.acts) == (done, ["isolate h1"])
    job[0].folder.write("effects/2.json", Effect(generation=2, step=7, standstill_s=1.5, speed_after=0.66))
    planner.run_once(lease, seconds(20))
    (run,) = list_executions(control)
    assert run.state == "done"
    assert run.steps[-1].message == "train goes on with step 7: 1.5 s without progress, and 66% of the speed before"


def test_progress_is_waited_for_longer() -> None:
    measured = Effect(generation=2, step=7, standstill_s=1.5)
    for told, waited_s, says in (
        (None, 599.0, None),
        (None, 601.0, "train has settled no step in 601 s"),
        (measured, 59.0, None),
        (measured, 61.0, "train goes on with step 7: 1.5 s without progress"),
    ):
        report = check_effect("train", told, waited_s)
        assert (report.what if report else None) == says
