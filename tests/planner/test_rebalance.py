"""Between faults nodes that lie idle go back to the jobs that lost them, and a plan over several jobs is linked."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import find_execution, list_executions, save_execution
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease
from lockstep.verdict import Incident
from planner.allocation.cluster import Event
from planner.context import JobFacts
from planner.controllers.protocol import Node
from planner.rebalance import FreeNodes, Seen, find_triggers, say
from planner.snapshot import Snapshot
from tests.planner.build import SAVED, crash, incident, seconds
from tests.planner.site import NODES, FakeSurveyor, Site, add_job, end_job, make_site, make_unequal, restarted, shrunk


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
    assert (grow.cost.downtime_s, grow.cost.throughput_after) == (150.0, 1.0)
    (nothing,) = grow.alternatives
    assert (nothing.action, nothing.cost.throughput_after) == ("none", 0.875)
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


DAY_S = 86_400


def test_node_that_was_out_for_days_goes_back_to_its_job(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease)
    for at_s in (100, 3 * DAY_S):
        site.run(at_s)
    site.bring_back(at_s=3 * DAY_S + 1)
    site.run(3 * DAY_S + 20)
    assert [(each.job, each.trigger) for each in site.plans()] == [("train+1", "node h3 joined")]


class Surveyor(FakeSurveyor):
    """Also remembers where a job that is over has run."""

    def read(self, incident: Incident, now_ns: int) -> Snapshot:
        if not self.is_over(incident.job):
            return super().read(incident, now_ns)
        view = self.survey(now_ns)
        nodes = tuple(self.controller.world.jobs[incident.job]["nodes"])
        return Snapshot(JobFacts(incident.job, nodes=nodes, gpus=8, is_over=True), view.cluster, view.jobs)


def test_node_that_an_open_incident_names_is_given_to_nobody(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute", surveyor=Surveyor)
    add_job(site, "chat", ["h9"])
    site.run(100)
    blamed = crash(job="chat", component="gpu:h9/0", last_seen_ns=seconds(105), since_ns=seconds(104))
    save_incidents(control, [incident(blamed, name="i9", opened_s=105)], None)
    end_job(site, "chat")
    assert site.run_all(111, 120) == []
    assert site.plans() == []


def test_spare_that_is_promised_to_one_job_is_not_given_to_another(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, spares=("h8",))
    replaced = restarted("chat", "chat+1", at_s=99).model_copy(update={"action": "replace"})
    save_execution(control, replaced, lease)
    assert [site.run(at_s) for at_s in (100, 111, 122)] == [0, 0, 0]
    assert site.run(800) == 1, "who sends nothing for so long does not run"
    assert [(each.job, each.trigger) for each in site.plans()] == [("train+1", "node h8 joined")]


def test_job_with_a_node_that_somebody_drains_is_not_restarted_to_grow(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute")
    site.run(100)
    world = site.controller.world
    del world.nodes["h8"], world.nodes["h9"]
    site.controller.save(world)
    site.controller.isolate("h0", "admin", "maintenance")
    site.bring_back()
    assert site.run_all(111, 120) == []
    assert site.controller.world.jobs["train+1"]["state"] == "running", "restarted, it would have seven nodes again"


def test_grow_that_has_waited_for_a_checkpoint_waits_for_no_other(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute")
    site.reader.tables["train"] = {7: 63.5, 8: 64.0}  # so little is won that waiting always pays

    def run(at_s: int) -> None:
        site.reader.resume = replace(SAVED, age_s=float(at_s % 1800))
        site.reader.next_save_s = 1800.0 - at_s % 1800
        site.run(at_s)

    run(100)
    site.bring_back()
    run(111)
    (grow,) = site.plans()
    assert grow.waits_until_ns == seconds(1800)
    for at_s in range(121, 1851, 10):
        run(at_s)
    (grow,) = site.plans()
    assert grow.reason.endswith("; it has waited for the checkpoint that is there now")
    assert site.controller.world.acts[-1] == "restart train+1 on h0,h1,h2,h3,h4,h5,h6,h7"


SEVEN = [node for node in NODES[:8] if node != "h3"]


def start_again(site: Site, at_s: float) -> None:
    """Let train+1 be started again on its nodes, as train+1+5."""
    end_job(site, "train+1")
    add_job(site, "train+1+5", SEVEN)
    save_execution(site.control, restarted("train+1", "train+1+5", at_s), site.lease)


def test_nodes_of_a_job_are_its_own_until_its_next_attempt_is_seen(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute")
    add_job(site, "chat", ["h8", "h9"])
    site.run(100)
    end_job(site, "chat")
    add_job(site, "chat+9", ["h8", "h9"])
    site.reader.silent.add("chat+9")  # its first telemetry comes minutes later
    save_execution(control, restarted("chat", "chat+9", 105), lease)
    assert site.run_all(111, 120) == []
    assert site.plans() == []
    end_job(site, "chat+9")
    site.run(121)
    (grow,) = site.plans()
    assert grow.trigger == "node h8 joined, node h9 joined, job chat ended"


def test_job_that_was_just_started_again_settles_before_it_is_moved(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute")
    site.run(100)
    site.bring_back()
    start_again(site, at_s=110)
    assert site.run_all(111, 130) == []
    assert site.run_all(171, 185) == ["restart train+1+5 on h0,h1,h2,h3,h4,h5,h6,h7"]


def test_rejection_holds_under_the_next_name_of_the_job(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="execute", next_save_s=50.0)
    site.run(100)
    site.bring_back()
    site.run(111)
    (grow,) = site.plans()
    site.say(grow, "reject", 112)
    start_again(site, at_s=120)
    site.reader.next_save_s = None
    assert site.run_all(200, 230) == []
    held = next(each for each in site.plans() if each.job == "train+1+5")
    assert held.held_because == f"a person has undone or rejected decision {grow.id}, which was to grow train+1+5"


def test_approval_of_a_plan_that_expired_long_ago_approves_no_other(
    tmp_path: Path, control: ControlDatabase, lease: Lease
) -> None:
    site = make_site(tmp_path, control, lease, mode="propose", next_save_s=50.0)
    add_job(site, "chat", ["h8"])
    site.run(100)
    end_job(site, "chat")
    site.run(111)
    (approved,) = site.plans()
    assert approved.waits_until_ns is not None
    site.say(approved, "approve", 112)
    site.controller.isolate("h8", "d9", "again")
    site.run(122)
    assert site.plans()[0].expires_ns == seconds(122)
    site.reader.next_save_s = None
    add_job(site, "other", ["h9"])
    site.run(7200)
    end_job(site, "other")  # the same plan as two hours ago
    assert site.run_all(7211, 7230) == []
    fresh = next(each for each in site.plans() if each.id != approved.id)
    assert (fresh.job, fresh.target, fresh.mode) == (approved.job, approved.target, "propose")


def nodes(*unusable: str) -> list[Node]:
    return [Node(f"h{number}", f"h{number}" not in unusable) for number in range(6)]


def look(free: FreeNodes, jobs: dict[str, list[str]], at_s: float, **more: object) -> tuple[str, ...]:
    known: dict[str, object] = {"silent": (), "returned": {}, "nodes": nodes()}
    return free.update(jobs, now_ns=seconds(at_s), **(known | more))  # type: ignore[arg-type]


def test_idle_node_of_the_controller_is_not_free_by_itself() -> None:
    assert look(FreeNodes(), {"a": ["h0", "h1"]}, 0) == ()


def test_node_that_a_job_has_left_is_free_for_an_hour() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0", "h1"]}, 0)
    assert look(free, {"a": ["h0"]}, 10) == ("h1",)
    assert free.names == ("h1",)
    assert look(free, {"a": ["h0"]}, 3600) == ("h1",)
    assert look(free, {"a": ["h0"]}, 3611) == ()


def test_node_of_a_silent_job_stays_its_own() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0"], "b": ["h1"]}, 0)
    assert look(free, {"a": ["h0"]}, 10, silent=["b"]) == ()
    assert look(free, {"a": ["h0"]}, 20) == ("h1",), "by now it is known to be over"


def test_node_that_was_returned_is_free_until_somebody_has_it() -> None:
    free = FreeNodes()
    back = {"h3": seconds(5)}
    assert look(free, {"a": ["h0"]}, 10, returned=back) == ("h3",)
    assert look(free, {"a": ["h0", "h3"]}, 20, returned=back) == ()


def test_node_that_came_back_long_ago_is_not_free() -> None:
    assert look(FreeNodes(), {"a": ["h0"]}, 5000, returned={"h3": seconds(5)}) == ()


def test_node_that_is_out_of_service_is_not_free() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0", "h1"]}, 0)
    assert look(free, {"a": ["h0"]}, 10, nodes=nodes("h1")) == ()


def test_without_an_answer_of_the_controller_nothing_changes() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0", "h1"]}, 0)
    look(free, {"a": ["h0"]}, 10)
    assert look(free, {}, 20, nodes=None) == ("h1",)


def test_node_that_rested_for_long_is_free_from_its_return_on() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0", "h1"]}, 0)
    for at_s in (30, 4000):
        assert look(free, {"a+1": ["h0"]}, at_s, nodes=nodes("h1")) == ()
    assert look(free, {"a+1": ["h0"]}, 7201, returned={"h1": seconds(7200)}) == ("h1",)


def test_node_that_the_controller_no_longer_lists_is_not_free() -> None:
    back, listed = {"h3": seconds(1)}, [node for node in nodes() if node.name != "h3"]
    assert look(FreeNodes(), {"a": ["h0"]}, 2, returned=back, nodes=listed) == ()
    excluded = [node for node in nodes("h5") if not node.is_usable]
    assert look(FreeNodes(), {"a": ["h0"]}, 2, returned=back, nodes=excluded) == ("h3",), "it lists no sound ones"


def test_node_on_which_somebody_runs_without_telemetry_is_not_free() -> None:
    back = {"h3": seconds(1)}
    for is_idle, expected in ((False, ()), (True, ("h3",)), (None, ("h3",))):
        seen = [replace(node, is_idle=is_idle) for node in nodes()]
        assert look(FreeNodes(), {"a": ["h0"]}, 2, returned=back, nodes=seen) == expected


def test_node_that_an_incident_names_is_free_once_that_is_over() -> None:
    free = FreeNodes()
    look(free, {"a": ["h0", "h1"]}, 0)
    assert look(free, {"a": ["h0"]}, 10, blamed={"h1"}) == ()
    assert look(free, {"a": ["h0"]}, 20) == ("h1",)


def seen(nodes: str, jobs: str) -> Seen:
    return Seen(frozenset(nodes.split()), frozenset(jobs.split()))


def test_first_look_has_no_triggers() -> None:
    assert find_triggers(None, seen("h0 h1", "a")) == []


def test_nodes_and_jobs_that_came_and_went_are_named() -> None:
    assert find_triggers(seen("h0 h1", "a b"), seen("h1 h2", "b c")) == [
        Event("node_joins", "h2"),
        Event("node_lost", "h0"),
        Event("job_starts", "c"),
        Event("job_ends", "a"),
    ]


def test_same_look_again_has_none() -> None:
    assert find_triggers(seen("h0", "a"), seen("h0", "a")) == []


def test_many_are_not_all_listed() -> None:
    events = [Event("node_joins", f"h{number}") for number in range(6)]
    assert say(events) == "node h0 joined, node h1 joined, node h2 joined, node h3 joined and 2 more"
    assert say([]) == "the planner has looked at all jobs"
