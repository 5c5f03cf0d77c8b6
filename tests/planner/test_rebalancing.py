"""Between faults nodes that lie idle go back to the jobs that lost them, and a plan over several jobs is linked."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.control.database import ControlDatabase
from lockstep.control.executions import find_execution, list_executions, save_execution
from lockstep.control.incidents import save_incidents
from lockstep.control.leases import Lease
from tests.planner.recovery.build import SAVED, crash, incident, seconds
from tests.planner.site import Site, add_job, end_job, make_site, make_unequal, shrunk


@pytest.fixture
def site(tmp_path: Path, control: ControlDatabase, lease: Lease) -> Site:
    return make_site(tmp_path, control, lease)


def test_where_no_node_is_idle_nothing_is_decided(site: Site) -> None:
    assert [site.run(at) for at in (100, 111, 122)] == [0, 0, 0]


def test_node_that_came_back_goes_to_the_job_that_lost_it(site: Site) -> None:
    site.run(100)
    site.bring_back()
    assert site.run(111) == 1
    (grow,) = site.plans()
    assert (grow.action, grow.mode, grow.job, grow.incident) == ("grow", "observe", "train+1", "i1")
    assert (grow.target, grow.after, grow.trigger) == ({"nnodes": 8}, (), "node h3 joined")
    assert grow.resume == {"source": "remote", "checkpoint": "/ckpt/train/400", "format": "dcp"}
    assert grow.reason.startswith(
        "node h3 joined: train+1 gets back h3, 7 -> 8 nodes, +14% of its work (measured; measured on 7, 8 nodes); "
    )
    assert "(looked up: worked out 11 s before the event)" in grow.reason
    assert (grow.cost.downtime_s, grow.cost.waf_after) == (150.0, 1.0)
    (nothing,) = grow.alternatives
    assert (nothing.action, nothing.cost.waf_after) == ("none", 0.875)
    assert (nothing.cost.gpu_hours or 0.0) > (grow.cost.gpu_hours or 0.0)


def test_in_mode_observe_nothing_is_begun(site: Site) -> None:
    site.run(100)
    site.bring_back()
    for at in (111, 112, 113):
        site.run(at)
    assert [run.decision for run in list_executions(site.control)] == ["d0"]


def test_grow_that_the_policy_lets_is_carried_out_to_the_end(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute")
    site.run(100)
    site.bring_back()
    for at in range(111, 118):
        site.run(at)
    (grow,) = site.plans()
    run = find_execution(control, grow.id)
    assert run is not None
    assert (run.state, run.approved_by, run.component) == ("done", "policy", f"plan:{grow.part_of}")
    assert site.controller.world.acts[-1] == "restart train+1 on h0,h1,h2,h3,h4,h5,h6,h7"
    assert [site.run(at) for at in (200, 260, 320)] == [0, 0, 0], "it has what it had"


def test_nodes_of_a_job_that_ended_go_to_the_one_that_was_shrunk(site: Site) -> None:
    add_job(site, "chat", ["h8", "h9"])
    site.run(100)
    end_job(site, "chat")
    site.run(111)
    (grow,) = site.plans()
    assert (grow.job, grow.target) == ("train+1", {"nnodes": 8})
    assert grow.trigger == "job chat ended"


def test_job_that_is_only_silent_keeps_its_nodes(site: Site) -> None:
    add_job(site, "chat", ["h8", "h9"])
    site.run(100)
    site.reader.silent.add("chat")
    assert [site.run(at) for at in (111, 122)] == [0, 0]
    assert site.plans() == []


def test_job_is_not_grown_beyond_what_it_had(site: Site) -> None:
    add_job(site, "chat", ["h8", "h9"])
    site.run(100)
    site.bring_back()
    end_job(site, "chat")
    site.run(111)
    (grow,) = site.plans()
    assert grow.target == {"nnodes": 8}
    assert grow.trigger == "node h3 joined, job chat ended"


def test_plan_is_renewed_under_its_id_while_it_is_the_same(site: Site) -> None:
    site.run(100)
    site.bring_back()
    site.run(111)
    (first,) = site.plans()
    site.run(111 + 601)
    (second,) = site.plans()
    assert (second.id, second.created_ns, second.trigger) == (first.id, first.created_ns, first.trigger)
    assert second.expires_ns > first.expires_ns


def test_plan_that_nobody_would_make_any_more_expires(site: Site) -> None:
    site.run(100)
    site.bring_back()
    site.run(111)
    assert site.controller.isolate("h3", "d9", "again").is_good
    site.run(122)
    (grow,) = site.plans()
    assert grow.expires_ns == seconds(122)


def test_job_with_an_open_incident_is_left_to_it(site: Site) -> None:
    site.run(100)
    site.bring_back()
    open_one = incident(crash(job="train+1", last_seen_ns=seconds(110)), name="i2", opened_s=105)
    save_incidents(site.control, [open_one], None)
    site.run(111)
    assert site.plans() == []


def test_what_a_person_has_rejected_is_held_from_then_on(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="propose")
    site.run(100)
    site.bring_back()
    site.run(111)
    (grow,) = site.plans()
    site.say(grow, "reject", 112)
    site.run(111 + 601)
    (held,) = site.plans()
    assert held.held_because == f"a person has undone or rejected decision {grow.id}, which was to grow train+1"


def test_without_a_checkpoint_for_the_new_count_there_is_no_decision(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute", resume=None)
    site.run(100)
    site.bring_back()
    assert site.run(111) == 0


def test_approved_grow_waits_for_the_next_checkpoint_and_starts_from_it(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute", next_save_s=60.0)
    site.run(100)
    site.bring_back()
    site.run(111)
    (grow,) = site.plans()
    assert grow.waits_until_ns == seconds(171)
    assert "wait: the next checkpoint is 60 s away" in grow.reason
    assert find_execution(control, grow.id) is None
    site.reader.resume = replace(SAVED, path="/ckpt/train/500", age_s=5.0)
    site.reader.next_save_s = 595.0
    for at in (150, 202, 203):
        site.run(at)
    (fresh,) = site.plans()
    assert (fresh.id, fresh.waits_until_ns) == (grow.id, None)
    assert (fresh.resume or {})["checkpoint"] == "/ckpt/train/500"
    assert find_execution(control, grow.id) is not None


def test_job_that_is_still_settling_has_its_turn_later(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease)
    site.run(30)
    busy = shrunk().model_copy(update={"decision": "d5", "job": "train+1", "new_job": "train+1"})
    save_execution(control, busy.model_copy(update={"began_ns": seconds(80), "ended_ns": seconds(90)}), lease)
    site.bring_back()
    assert [site.run(at) for at in (111, 122, 151)] == [0, 0, 1]
    assert site.plans()[0].trigger == "node h3 joined"


def test_plan_waits_until_the_controller_answers_again(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease)
    site.run(100)
    site.bring_back()
    site.reader.trouble = "it is down"
    assert site.run(111) == 0
    site.reader.trouble = None
    assert site.run(122) == 1


def test_two_jobs_on_one_node_are_not_planned_over(site: Site) -> None:
    add_job(site, "chat", ["h0"])
    site.bring_back()
    assert site.run(111) == 0
    end_job(site, "chat")
    assert site.run(122) == 1, "by now it is clear whose it is"


def test_job_that_is_worth_less_gives_before_the_other_takes_and_both_need_a_person(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_unequal(tmp_path, control, lease)
    site.run(100)
    plans = {each.job: each for each in site.plans()}
    give, take = plans["chat"], plans["train+1"]
    assert (give.action, give.target, take.action, take.target) == (
        "reconfigure",
        {"nnodes": 1},
        "grow",
        {"nnodes": 8},
    )
    assert (give.mode, take.mode) == ("propose", "propose"), "execute, but somebody gives"
    assert give.part_of == take.part_of
    assert (give.after, take.after) == ((), (give.id,))
    assert give.incident == take.incident == "i1"
    site.say(take, "approve", 101)
    for at in range(101, 106):
        site.run(at)
    assert find_execution(control, take.id) is None, "the giver comes first"
    site.say(give, "approve", 106)
    for at in range(106, 130):
        site.run(at)
    began = [find_execution(control, each.id) for each in (give, take)]
    assert [run.state for run in began if run] == ["done", "done"]
    assert [act.split(" on ")[0] for act in site.controller.world.acts] == ["restart chat", "restart train+1"]


def test_giver_that_failed_keeps_the_taker_where_it_is(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_unequal(tmp_path, control, lease)
    site.run(100)
    for each in site.plans():
        site.say(each, "approve", 101)
    world = site.controller.world
    world.refuses = ["restart"]
    site.controller.save(world)
    for at in range(101, 120):
        site.run(at)
    runs = {each.job: find_execution(control, each.id) for each in site.plans()}
    assert runs["chat"] is not None
    assert runs["chat"].state == "failed"
    assert runs["train+1"] is None


def test_equal_jobs_are_not_shuffled(site: Site) -> None:
    add_job(site, "chat", ["h8", "h9"])
    assert site.run(100) == 0


def test_planner_that_begins_looks_once_without_a_trigger(site: Site) -> None:
    site.bring_back()
    site.run(111)
    (grow,) = site.plans()
    assert grow.trigger == "the planner has looked at all jobs"
