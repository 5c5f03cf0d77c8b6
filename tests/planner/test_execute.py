"""What is decided is carried out once, whole, and can be undone; what fails is tried again; a person's word wins."""

import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.decision import Decision
from lockstep.errors import BadInput, ControllerDown, LeaseLost
from lockstep.execution import Execution, PartIdentity
from lockstep.state.decisions import (
    find_execution,
    list_decisions,
    list_executions,
    list_isolated,
    save_decisions,
    save_execution,
    save_isolated,
)
from lockstep.state.documents import list_audit
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import release_lease
from planner.checkpoints.convert import Converter
from planner.controllers.protocol import OwnSpelling, Report, Restart
from planner.execute import Executor
from planner.steps import begin, find_unloadable
from tests.planner.build import crash, decision, incident, seconds
from tests.planner.checkpoints.build import copy_real
from tests.planner.checkpoints.test_convert import COPY, wanted
from tests.planner.world import Harness, lease_of, planner_of
from tests.waiting import eventually

RESTART = "restart train on h0,h1,h2,h4,h5,h6,h7,h8"


def confirm_later(harness: Harness) -> None:
    """Let the fault still be there when the first decision has expired."""
    again = incident(crash(last_seen_ns=seconds(700))).model_copy(update={"updated_ns": seconds(700)})
    save_incidents(harness.control, [again], None)


def approve(harness: Harness, made: Decision) -> None:
    save_decisions(harness.control, [made], harness.lease)
    save_execution(harness.control, begin(made, "host:h3", "policy", 1, seconds(10)), harness.lease)


def states(harness: Harness) -> list[tuple[str, str]]:
    return [(each.node, each.state) for each in list_isolated(harness.control)]


def test_dead_host_is_drained_and_its_job_starts_again_and_is_over_under_its_old_name(harness: Harness) -> None:
    harness.run(*range(10, 14))
    assert harness.acts == ["isolate h3", RESTART]
    assert (harness.execution.state, harness.execution.approved_by) == ("done", "policy")
    assert states(harness) == [("h3", "isolated")]
    begun, *then = (line.why for line in reversed(list_audit(harness.control, 100)))
    assert begun.startswith("begun by policy: host:h3: the job starts again with h8 instead of h3")
    watched = "watch train: train+1 is running on h0, h1, h2, h4, h5, h6, h7, h8"
    assert then == ["isolate h3: isolate h3", f"restart train: {RESTART}", watched]
    harness.run(700)  # the first decision has expired, and nobody closed the incident
    assert harness.decision.reason == "train is over: there is nothing to bring back"
    assert len(harness.acts) == 2


def test_proposal_waits_for_a_person_and_a_rejection_holds_while_the_answer_is_the_same(harness: Harness) -> None:
    harness.use_mode("propose")
    harness.run(10)
    assert harness.acts == []
    harness.order("reject", at_s=11)
    confirm_later(harness)
    harness.run(700)
    assert (len(list_decisions(harness.control)), harness.acts) == (1, [])
    rest = harness.decision.isolate[0].model_copy(update={"until_ns": seconds(760)})  # a minute, when it was decided
    save_decisions(harness.control, [harness.decision.model_copy(update={"isolate": (rest,)})], harness.lease)
    harness.order("approve", at_s=1000)
    harness.run(1001)
    assert (harness.acts, harness.execution.approved_by) == (["isolate h3"], "ada")
    assert list_isolated(harness.control)[0].until_ns == seconds(1061), "it rests from its isolation on"


def test_undo_gives_the_node_back_and_is_remembered(harness: Harness) -> None:
    harness.run(10)
    assert harness.mark == harness.decision.id
    harness.order("undo", at_s=11)
    harness.run(12)
    confirm_later(harness)
    harness.run(700)
    assert (harness.acts, harness.execution.state) == (["isolate h3", "release h3"], "undone")
    assert harness.decision.mode == "propose"
    assert (harness.decision.held_because or "").startswith("a person has undone or rejected decision")


def test_undo_of_what_is_long_done_keeps_what_persons_have_said_of_the_node(harness: Harness) -> None:
    harness.run(*range(10, 14))
    (row,) = list_isolated(harness.control)
    known = {"tests": 2, "last_order": 7, "part": PartIdentity(serial="132"), "repaired_ns": seconds(15)}
    out = {"state": "repair", "until_ns": seconds(600)}
    save_isolated(harness.control, row.model_copy(update=known | out), harness.lease)
    harness.order("undo", at_s=20)
    harness.run(21)
    known |= {"state": "returned", "until_ns": None, "changed_ns": seconds(21), "message": "release h3"}
    assert list_isolated(harness.control) == [row.model_copy(update=known)]
    assert harness.mark is None


def test_job_that_gets_no_nodes_is_given_up_and_the_bad_node_stays_out(harness: Harness) -> None:
    harness.controller.mark(h8="somebody", h9="somebody")
    harness.run(10, 11, 12, 700)
    assert (harness.execution.state, harness.execution.reason) == ("failed", "train+1 does not run after 688 s")
    assert harness.mark == harness.execution.decision


def test_two_incidents_of_one_job_do_not_start_it_twice(harness: Harness) -> None:
    later = crash(id="v2", component="host:h5", since_ns=seconds(0) - 10**12, last_seen_ns=seconds(10))
    save_incidents(harness.control, [incident(later, name="i2", opened_s=6)], None)
    harness.run(10)
    assert (len(list_executions(harness.control)), len(harness.acts)) == (1, 1)
    harness.run(*range(11, 15), 100, 101, 102)
    assert [act.split(" on ")[0] for act in harness.acts] == ["isolate h5", "isolate h3", "restart train"]


def test_planner_that_was_replaced_stops_at_its_next_write(harness: Harness) -> None:
    harness.run(10)
    release_lease(harness.control, harness.lease)
    heir = lease_of(harness.control, "planner-2", at_s=20)
    with pytest.raises(LeaseLost):
        harness.run(20)
    assert harness.acts == ["isolate h3"]
    planner_of(harness.control, harness.controller).run_once(heir, seconds(21))
    assert (harness.acts[1:], harness.execution.generation) == ([RESTART], heir.generation)


@pytest.mark.parametrize("is_one_round", [False, True])
def test_blast_radius_holds_the_third_node_of_an_hour(harness: Harness, is_one_round: bool) -> None:
    for number, host in enumerate(("h6", "h7")):
        if not is_one_round:
            harness.run(10 + number)
        harness.controller.run_job(f"job{number}")
        about = crash(id=f"v{host}", job=f"job{number}", component=f"host:{host}", last_seen_ns=seconds(10))
        save_incidents(harness.control, [incident(about, name=f"i{host}")], None)
    harness.run(12)
    (held,) = (each for each in list_decisions(harness.control) if each.held_because)
    assert (held.action, held.mode) == ("reconfigure", "propose"), "the only spare is promised already"
    if not is_one_round:  # in which the other node of the leaf comes first
        assert held.held_because == "2 nodes were isolated in the last hour, and 2 is the limit"
    assert len([act for act in harness.acts if act.startswith("isolate")]) == 2


def test_nonsense_is_undone(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(order: Restart) -> Report:
        raise BadInput("this mark cannot be written")

    monkeypatch.setattr(harness.controller, "restart", refuse)
    harness.run(*range(10, 14))
    assert (harness.execution.state, harness.execution.reason) == ("failed", "this mark cannot be written")
    assert harness.mark is None


def test_node_that_somebody_else_drained_is_left_to_them_and_the_job_goes_on_without_it(harness: Harness) -> None:
    harness.controller.mark(h3="a health check")
    harness.run(*range(10, 14))
    assert harness.acts == [RESTART]
    assert (harness.mark, list_isolated(harness.control)) == ("a health check", [])


def test_node_that_the_controller_knows_with_its_domain_is_drained_and_given_back(harness: Harness) -> None:
    controller = harness.controller
    controller.change(nodes={f"{name}.site.example": None for name in controller.world.nodes})
    executor = Executor(harness.control, OwnSpelling(controller))
    approve(harness, decision())
    for at_s in (11, 12, 13, 80):  # at 80 it is seen whether nodes are as they were left
        executor.run_once(harness.lease, seconds(at_s))
    assert states(harness) == [("h3", "isolated")], "it is no other node, and not gone"
    executor.undo(harness.execution, "a mistake", harness.lease, seconds(90))
    executor.run_once(harness.lease, seconds(91))
    isolate, restart, release = harness.acts
    assert (isolate, release) == ("isolate h3.site.example", "release h3.site.example")
    assert restart.startswith("restart train on h0.site.example,")
    assert "h3" not in restart


def test_node_that_a_person_gave_back_or_took_away_is_out_no_more_but_for_an_rma(harness: Harness) -> None:
    harness.run(*range(10, 14))
    harness.controller.mark(h3=None)
    harness.run(100)
    (row,) = list_isolated(harness.control)
    assert (row.state, row.message) == ("returned", "h3 is in service, says fake: somebody did that")
    nodes = harness.controller.world.nodes
    harness.controller.change(nodes={name: nodes[name] for name in nodes if name != "h3"})
    for at_s, state, expected in ((200, "rma", "rma"), (300, "repair", "returned")):
        save_isolated(harness.control, row.model_copy(update={"state": state}), harness.lease)
        harness.run(at_s)
        assert list_isolated(harness.control)[0].state == expected


def test_controller_that_is_down_is_asked_again_after_a_while_and_then_given_up(harness: Harness) -> None:
    harness.run(10)
    harness.controller.change(is_down=True)
    harness.run(11, 12, 15)
    assert (harness.execution.state, harness.execution.steps[1].tries) == ("executing", 1)  # not once a second
    harness.use_mode("execute")
    harness.run(15)
    assert harness.execution.steps[1].tries == 1  # a planner that comes after waits as long
    harness.run(16, 26, 46, 86, 146)
    assert harness.execution.state == "undoing"
    message = "the fake controller does not answer"
    assert [each.message for each in harness.execution.steps[1].failures] == [message] * 6
    harness.controller.change(is_down=False)
    harness.run(180, 190)
    assert (harness.mark, harness.execution.state) == (None, "failed")


def test_release_that_fails_for_ever_holds_up_no_next_decision(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(node: str, mark: str) -> Report:
        raise ControllerDown("no route to slurmctld")

    monkeypatch.setattr(harness.controller, "release", fail)
    harness.run(10)
    harness.order("undo", at_s=11)
    harness.run(12, 17, 27, 47, 87, 167)
    run = harness.execution
    assert (run.state, run.outcome) == ("release_failed", "undone")
    assert run.steps[-1].message == "release failed 6 times, a person must look: no route to slurmctld"
    assert any("a person must look" in line.why for line in list_audit(harness.control, 100))
    save_incidents(harness.control, [incident(crash(last_seen_ns=seconds(700)))], None)
    harness.run(700)
    assert harness.decision.id != run.decision  # the job gets its next decision
    monkeypatch.undo()
    harness.run(1100)
    assert harness.mark is None
    assert find_execution(harness.control, run.decision).state == "undone"  # type: ignore[union-attr]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    copy_real("zero_1/global_step3", tmp_path / "job" / "global_step3")
    return tmp_path / "job"


Prepare = Callable[..., Callable[..., Execution]]


@pytest.fixture
def prepare(harness: Harness, job: Path) -> Prepare:
    """Approve a decision that begins by converting; return how to run the executor at some seconds."""

    def make(script: str = COPY, of: Path = job) -> Callable[..., Execution]:
        conversion = wanted(of, script)
        resume = {"checkpoint": conversion.destination, "convert": shlex.join(conversion.command)}
        save_incidents(harness.control, [incident()], None)
        approve(harness, decision(resume=resume))
        executor = Executor(harness.control, harness.controller)

        def run(*at_s: float) -> Execution:
            for second in at_s:
                executor.run_once(harness.lease, seconds(second))
            return harness.execution

        return run

    return make


def test_job_restarts_from_what_was_converted(
    harness: Harness, prepare: Prepare, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, orders, restart = prepare(), list[Restart](), harness.controller.restart

    def note(order: Restart) -> Report:
        orders.append(order)
        return restart(order)

    monkeypatch.setattr(harness.controller, "restart", note)
    assert run(11, 12).steps[1].message == f"{job}/global_step3 is being converted"
    assert harness.acts == ["isolate h3"]
    eventually(lambda: run(13).steps[1].state == "done")
    run(14)
    (order,) = orders
    assert order.checkpoint == f"{job}/global_step3_universal"
    assert Path(order.checkpoint).is_dir()
    assert order.environment["LOCKSTEP_RESUME_FORMAT"] == "universal"


@pytest.mark.parametrize("fails_at_s", [13, 60, 300])
def test_checkpoint_from_which_the_job_fails_at_once_is_marked(harness: Harness, fails_at_s: int) -> None:
    """It fails before it was seen to run, while it loads, or later for another reason."""
    harness.run(*range(10, 13))
    harness.run(*([13] if fails_at_s > 13 else []))
    jobs = harness.controller.world.jobs
    harness.controller.change(jobs=jobs | {"train+1": jobs["train+1"] | {"state": "failed"}})
    harness.run(fails_at_s, fails_at_s + 11)
    marked = find_unloadable(list_executions(harness.control))
    if fails_at_s == 300:
        assert marked == {}
    else:
        assert marked["/ckpt/train/400"][1].startswith("train+1 was started from it and failed (")
        (run,) = [run for run in list_executions(harness.control) if run.unloadable]
        older = run.model_copy(update={"unloadable": ("/ckpt/train/300",)})
        assert find_unloadable([older, run]) == {}, "it fails from any: no checkpoint is the cause"


def test_heir_converts_again_and_undo_ends_it(harness: Harness, prepare: Prepare, job: Path) -> None:
    prepare("sleep 1000")
    first, second = Converter(), Converter()
    for converter, *at_s in ((first, 11, 12), (second, 13, 14)):
        planner = Executor(harness.control, harness.controller, converter=converter)
        for second_s in at_s:
            planner.run_once(harness.lease, seconds(second_s))
    assert (harness.execution.steps[1].tries, len(list(job.glob("*.partial")))) == (2, 1)
    planner.undo(harness.execution, "ada: not now", harness.lease, seconds(15))
    planner.run_once(harness.lease, seconds(16))
    assert (list(job.glob("*.partial")), harness.mark, harness.execution.state) == ([], None, "undone")
    first.forget(wanted(job))


def test_conversion_that_fails_never_stops_the_job(harness: Harness, prepare: Prepare) -> None:
    run = prepare("echo disk full; exit 1")
    run(11)
    for tries, at_s in enumerate((12, 20, 40, 80, 150, 250), 1):
        if run(at_s).steps[1].state == "begun":
            eventually(lambda: len(run(at_s + 1).steps[1].failures) == tries)  # noqa: B023  # called at once
    message = "the converter failed with 1: disk full"
    assert (harness.execution.reason, [each.message for each in harness.execution.steps[1].failures]) == (
        message,
        [message] * 6,
    )
    assert run(260).state == "failed"
    assert harness.acts == ["isolate h3", "release h3"]


def test_checkpoint_that_is_not_seen_stops_nothing(harness: Harness, prepare: Prepare, tmp_path: Path) -> None:
    run = prepare(of=tmp_path / "nowhere")(11, 12, 13)
    assert run.reason.startswith(f"the planner cannot see {tmp_path}/nowhere/global_step3")
    assert harness.acts == ["isolate h3", "release h3"]
