"""What is decided is carried out once, whole, and can be undone; what a person says wins."""

from pathlib import Path

import pytest

from lockstep.decision import Decision
from lockstep.errors import BadInput, LeaseLost
from lockstep.execution import Execution, Order, OrderKind
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import find_execution, give_order, list_decisions, list_executions, list_isolated
from lockstep.state.documents import list_audit
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease, release_lease
from planner.controllers.protocol import Report, Restart
from tests.planner.build import crash, incident, seconds
from tests.planner.world import lease_of, planner_of, start


def newest(control: ControlDatabase) -> Decision:
    return list_decisions(control)[0]


def run_of(control: ControlDatabase) -> Execution:
    (run,) = list_executions(control)
    return run


def say(control: ControlDatabase, kind: OrderKind, at_s: float, who: str = "ada") -> None:
    give_order(control, Order(decision=newest(control).id, kind=kind, who=who, why="I know", ts_ns=seconds(at_s)))


def test_dead_host_is_drained_and_the_job_starts_again_without_it(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    controller = start(tmp_path, control)
    planner = planner_of(control, controller)
    for second in range(10, 14):
        planner.run_once(lease, seconds(second))
    assert controller.world.acts == ["isolate h3", "restart train on h0,h1,h2,h4,h5,h6,h7,h8"]
    assert (run_of(control).state, run_of(control).approved_by) == ("done", "policy")
    assert [(each.node, each.state) for each in list_isolated(control)] == [("h3", "isolated")]


def test_every_act_leaves_a_line_in_the_audit(tmp_path: Path, control: ControlDatabase, lease: Lease) -> None:
    planner = planner_of(control, start(tmp_path, control))
    for second in range(10, 14):
        planner.run_once(lease, seconds(second))
    message = [line.why for line in reversed(list_audit(control, 100))]
    assert message[0].startswith("begun by policy: host:h3: the job starts again with h8 instead of h3")
    assert message[1:] == [
        "isolate h3: isolate h3",
        "restart train: restart train on h0,h1,h2,h4,h5,h6,h7,h8",
        "watch train: train+1 is running on h0, h1, h2, h4, h5, h6, h7, h8",
    ]


def test_proposal_waits_for_a_person(tmp_path: Path, control: ControlDatabase, lease: Lease) -> None:
    controller = start(tmp_path, control)
    planner = planner_of(control, controller, mode="propose")
    planner.run_once(lease, seconds(10))
    assert controller.world.acts == []
    say(control, "approve", at_s=11)
    planner.run_once(lease, seconds(12))
    assert controller.world.acts == ["isolate h3"]
    assert run_of(control).approved_by == "ada"


def test_rejection_holds_while_the_answer_is_the_same(tmp_path: Path, control: ControlDatabase, lease: Lease) -> None:
    controller = start(tmp_path, control)
    planner = planner_of(control, controller, mode="propose")
    planner.run_once(lease, seconds(10))
    say(control, "reject", at_s=11)
    again = incident(crash(last_seen_ns=seconds(700))).model_copy(update={"updated_ns": seconds(700)})
    save_incidents(control, [again], None)
    planner.run_once(lease, seconds(700))  # the first decision has expired
    say_count = len(list_decisions(control))
    assert (say_count, controller.world.acts) == (1, [])


def test_undo_gives_the_node_back_and_is_remembered(tmp_path: Path, control: ControlDatabase, lease: Lease) -> None:
    controller = start(tmp_path, control)
    planner = planner_of(control, controller)
    planner.run_once(lease, seconds(10))
    assert controller.world.nodes["h3"] == newest(control).id
    say(control, "undo", at_s=11)
    planner.run_once(lease, seconds(12))
    assert controller.world.acts == ["isolate h3", "release h3"]
    assert run_of(control).state == "undone"
    again = incident(crash(last_seen_ns=seconds(700))).model_copy(update={"updated_ns": seconds(700)})
    save_incidents(control, [again], None)
    planner.run_once(lease, seconds(700))
    assert controller.world.acts == ["isolate h3", "release h3"]
    assert newest(control).mode == "propose"
    assert (newest(control).held_because or "").startswith("a person has undone or rejected decision")


def test_undo_of_what_is_long_done_releases_the_node(tmp_path: Path, control: ControlDatabase, lease: Lease) -> None:
    controller = start(tmp_path, control)
    planner = planner_of(control, controller)
    for second in range(10, 14):
        planner.run_once(lease, seconds(second))
    say(control, "undo", at_s=20)
    planner.run_once(lease, seconds(21))
    assert controller.world.nodes["h3"] is None
    assert [(each.node, each.state) for each in list_isolated(control)] == [("h3", "returned")]


def test_job_that_gets_no_nodes_is_given_up_and_the_bad_node_stays_out(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    controller = start(tmp_path, control)
    world = controller.world
    world.nodes |= {"h8": "somebody", "h9": "somebody"}
    controller.save(world)
    planner = planner_of(control, controller)
    for second in (10, 11, 12, 700):
        planner.run_once(lease, seconds(second))
    assert run_of(control).state == "failed"
    assert run_of(control).reason == "train+1 does not run after 688 s"
    assert controller.world.nodes["h3"] == run_of(control).decision


def test_two_incidents_of_one_job_are_answered_one_after_the_other(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    controller = start(tmp_path, control)
    later = crash(id="v2", component="host:h5", since_ns=seconds(0) - 10**12, last_seen_ns=seconds(10))
    save_incidents(control, [incident(later, name="i2", opened_s=6)], None)
    planner_of(control, controller).run_once(lease, seconds(10))
    assert len(list_executions(control)) == 1
    assert len(controller.world.acts) == 1


def test_job_that_was_started_again_under_another_name_is_over(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    controller = start(tmp_path, control)
    planner = planner_of(control, controller)
    for second in (*range(10, 14), 700):  # the first decision has expired, and nobody closed the incident
        planner.run_once(lease, seconds(second))
    assert newest(control).reason == "train is over: there is nothing to bring back"
    assert len(controller.world.acts) == 2


def test_planner_that_was_replaced_stops_at_its_next_write(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    controller = start(tmp_path, control)
    planner_of(control, controller).run_once(lease, seconds(10))
    release_lease(control, lease)
    heir = lease_of(control, "planner-2", at_s=20)
    with pytest.raises(LeaseLost):
        planner_of(control, controller).run_once(lease, seconds(20))
    assert controller.world.acts == ["isolate h3"]
    planner_of(control, controller).run_once(heir, seconds(21))
    assert controller.world.acts[1:] == ["restart train on h0,h1,h2,h4,h5,h6,h7,h8"]
    found = find_execution(control, newest(control).id)
    assert found is not None
    assert found.generation == heir.generation


def test_blast_radius_holds_the_third_node_of_an_hour(tmp_path: Path, control: ControlDatabase, lease: Lease) -> None:
    controller = start(tmp_path, control)
    planner = planner_of(control, controller)
    planner.run_once(lease, seconds(10))
    for number, host in enumerate(("h6", "h7")):
        world = controller.world
        world.jobs[f"job{number}"] = world.jobs["train"] | {"id": f"job{number}"}
        controller.save(world)
        about = crash(id=f"v{host}", job=f"job{number}", component=f"host:{host}", last_seen_ns=seconds(10))
        save_incidents(control, [incident(about, name=f"i{host}")], None)
        planner.run_once(lease, seconds(11 + number))
    (held,) = list_decisions(control, job="job1")
    assert (held.action, held.mode) == ("reconfigure", "propose"), "the only spare is promised already"
    assert held.held_because == "2 nodes were isolated in the last hour, and 2 is the limit"
    assert controller.world.nodes["h7"] is None


def test_limits_count_what_the_same_round_has_begun(tmp_path: Path, control: ControlDatabase, lease: Lease) -> None:
    controller = start(tmp_path, control)
    world = controller.world
    for number, host in enumerate(("h5", "h6", "h9")):
        world.jobs[f"job{number}"] = world.jobs["train"] | {"id": f"job{number}"}
        about = crash(id=f"v{host}", job=f"job{number}", component=f"host:{host}", last_seen_ns=seconds(10))
        save_incidents(control, [incident(about, name=f"i{host}")], None)
    controller.save(world)
    planner_of(control, controller).run_once(lease, seconds(10))
    assert len([act for act in controller.world.acts if act.startswith("isolate")]) == 2


def test_second_incident_of_a_job_does_not_start_it_a_second_time(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    controller = start(tmp_path, control)
    later = crash(id="v2", component="host:h5", since_ns=seconds(0) - 10**12, last_seen_ns=seconds(10))
    save_incidents(control, [incident(later, name="i2", opened_s=6)], None)
    planner = planner_of(control, controller)
    for second in (*range(10, 20), 100, 101, 102):
        planner.run_once(lease, seconds(second))
    assert [act for act in controller.world.acts if act.startswith("restart")] == controller.world.acts[1:2]


def test_nonsense_stops_neither_its_own_undo_nor_other_jobs(
    tmp_path: Path, control: ControlDatabase, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(order: Restart) -> Report:
        raise BadInput("this mark cannot be written")

    controller = start(tmp_path, control)
    monkeypatch.setattr(controller, "restart", refuse)
    planner = planner_of(control, controller)
    for second in range(10, 14):
        planner.run_once(lease, seconds(second))
    assert (run_of(control).state, run_of(control).reason) == ("failed", "this mark cannot be written")
    assert controller.world.nodes["h3"] is None


def test_node_that_somebody_else_drained_is_left_to_them_and_the_job_goes_on_without_it(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    controller = start(tmp_path, control)
    world = controller.world
    world.nodes["h3"] = "a health check"
    controller.save(world)
    planner = planner_of(control, controller)
    for second in range(10, 14):
        planner.run_once(lease, seconds(second))
    assert controller.world.acts == ["restart train on h0,h1,h2,h4,h5,h6,h7,h8"]
    assert (controller.world.nodes["h3"], list_isolated(control)) == ("a health check", [])


def test_node_that_a_person_gave_back_at_the_controller_is_back_for_us_too(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    controller = start(tmp_path, control)
    planner = planner_of(control, controller)
    for second in range(10, 14):
        planner.run_once(lease, seconds(second))
    world = controller.world
    world.nodes["h3"] = None
    controller.save(world)
    planner.run_once(lease, seconds(100))
    (row,) = list_isolated(control)
    assert (row.state, row.message) == ("returned", "h3 is in service, says fake: somebody did that")
