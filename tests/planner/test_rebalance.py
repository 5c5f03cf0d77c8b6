"""Between faults nodes that lie idle go back to the jobs that lost them, and a plan over several jobs is linked."""

from dataclasses import replace

import pytest

from lockstep.state.decisions import list_executions, save_execution
from lockstep.state.incidents import save_incidents
from lockstep.verdict import Incident
from planner.allocation.cluster import Event
from planner.context import JobFacts
from planner.rebalance import Seen, find_triggers, say
from planner.snapshot import Snapshot
from tests.planner.build import SAVED, crash, incident, seconds
from tests.planner.world import NODES, FakeSurveyor, Site, SiteMaker, restarted


@pytest.fixture
def site(sites: SiteMaker) -> Site:
    return sites.make()


def test_node_that_came_back_goes_to_the_job_that_lost_it(site: Site) -> None:
    grow = site.grow()
    assert (grow.action, grow.mode, grow.job, grow.incident) == ("grow", "observe", "train+1", "i1")
    assert (grow.target, grow.after, grow.trigger) == ({"nnodes": 8}, (), "node h3 joined")
    assert grow.resume == {"source": "remote", "checkpoint": "/ckpt/train/400", "format": "dcp"}
    what = "train+1 gets back h3, 7 -> 8 nodes, +14% of its work (measured; measured on 7, 8 nodes); "
    assert grow.reason.startswith(f"node h3 joined: {what}")
    assert "(looked up: worked out 11 s before the event)" in grow.reason
    (nothing,) = grow.alternatives
    assert (nothing.action, nothing.cost.throughput_after) == ("none", 0.875)
    for at in (112, 113):
        site.run(at)
    assert [run.decision for run in list_executions(site.control)] == ["d0"], "nothing is begun in mode observe"


def test_grow_that_the_policy_lets_is_carried_out_once_its_job_has_settled(sites: SiteMaker) -> None:
    site = sites.make(mode="execute")
    site.run(100)
    site.bring_back()
    start_again(site, at_s=110)
    assert site.run_all(111, 114) == []
    assert site.run_all(171, 178) == ["restart train+1+5 on h0,h1,h2,h3,h4,h5,h6,h7"]
    (grow,) = site.plans()
    run = site.find_run(grow)
    assert run is not None
    assert (run.state, run.approved_by, run.component) == ("done", "policy", f"plan:{grow.part_of}")
    assert [site.run(at) for at in (260, 320, 380)] == [0, 0, 0], "it has what it had"


def test_plan_is_renewed_under_its_id_while_it_is_the_same_and_expires_when_nobody_would_make_it(site: Site) -> None:
    first = site.grow()
    site.run(111 + 601)
    (second,) = site.plans()
    assert (second.id, second.created_ns, second.trigger) == (first.id, first.created_ns, first.trigger)
    assert second.expires_ns > first.expires_ns
    assert site.controller.isolate("h3", "d9", "again").is_good
    site.run(730)
    assert [each.expires_ns for each in site.plans()] == [seconds(730)]


@pytest.mark.parametrize("reason", ["an open incident", "silent", "no checkpoint"])
def test_job_is_left_alone_where_it_has(sites: SiteMaker, reason: str) -> None:
    site = sites.make(mode="execute", resume=None if reason == "no checkpoint" else SAVED)
    site.controller.run_job("chat", ["h8", "h9"])
    site.run(100)
    if reason == "silent":
        site.reader.silent.add("chat")
    else:
        site.bring_back()
    if reason == "an open incident":
        open_one = incident(crash(job="train+1", last_seen_ns=seconds(110)), name="i2", opened_s=105)
        save_incidents(site.control, [open_one], None)
    for at_s in (111, 122):
        site.run(at_s)
    assert site.plans() == []


def test_job_that_is_worth_less_gives_before_the_other_takes_and_both_need_a_person(sites: SiteMaker) -> None:
    site = sites.make_unequal()
    site.run(100)
    plans = {each.job: each for each in site.plans()}
    give, take = plans["chat"], plans["train+1"]
    assert (give.action, give.target) == ("reconfigure", {"nnodes": 1})
    assert (take.action, take.target) == ("grow", {"nnodes": 8})
    assert (give.mode, take.mode) == ("propose", "propose"), "execute, but somebody gives"
    assert give.part_of == take.part_of
    assert (give.after, take.after) == ((), (give.id,))
    assert give.incident == take.incident == "i1"
    site.say(take, "approve", 101)
    site.run_all(101, 104)
    assert site.find_run(take) is None, "the giver comes first"
    site.say(give, "approve", 106)
    site.run_all(106, 114)
    began = [site.find_run(each) for each in (give, take)]
    assert [run.state for run in began if run] == ["done", "done"]
    assert [act.split(" on ")[0] for act in site.controller.world.acts] == ["restart chat", "restart train+1"]


def test_giver_that_failed_keeps_the_taker_where_it_is(sites: SiteMaker) -> None:
    site = sites.make_unequal()
    site.run(100)
    for each in site.plans():
        site.say(each, "approve", 101)
    site.controller.change(refuses_restarts=True)
    site.run_all(101, 106)
    runs = {each.job: site.find_run(each) for each in site.plans()}
    assert runs["chat"] is not None
    assert runs["chat"].state == "failed"
    assert runs["train+1"] is None


def test_planner_that_begins_looks_once_without_a_trigger(site: Site) -> None:
    site.bring_back()
    site.run(111)
    assert [each.trigger for each in site.plans()] == ["the planner has looked at all jobs"]


class Surveyor(FakeSurveyor):
    """Also remembers where a job that is over has run."""

    def read(self, incident: Incident, now_ns: int) -> Snapshot:
        if not self.is_over(incident.job):
            return super().read(incident, now_ns)
        view = self.survey(now_ns)
        nodes = tuple(self.controller.world.jobs[incident.job]["nodes"])
        return Snapshot(JobFacts(incident.job, nodes=nodes, gpus=8, is_over=True), view.cluster, view.jobs)


def test_node_that_an_open_incident_names_is_given_to_nobody(sites: SiteMaker) -> None:
    site = sites.make(mode="execute", surveyor=Surveyor)
    site.controller.run_job("chat", ["h9"])
    site.run(100)
    blamed = crash(job="chat", component="gpu:h9/0", last_seen_ns=seconds(105), since_ns=seconds(104))
    save_incidents(site.control, [incident(blamed, name="i9", opened_s=105)], None)
    site.end_job("chat")
    assert site.run_all(111, 114) == []
    assert site.plans() == []


def test_spare_that_is_promised_to_one_job_is_not_given_to_another(sites: SiteMaker) -> None:
    site = sites.make(spares=("h8",))
    replaced = restarted("chat", "chat+1", at_s=99).model_copy(update={"action": "replace"})
    save_execution(site.control, replaced, site.lease)
    assert [site.run(at_s) for at_s in (100, 111, 122)] == [0, 0, 0]
    assert site.run(800) == 1, "who sends nothing for so long does not run"
    assert [(each.job, each.trigger) for each in site.plans()] == [("train+1", "node h8 joined")]


def test_job_with_a_node_that_somebody_drains_is_not_restarted_to_grow(sites: SiteMaker) -> None:
    site = sites.make(mode="execute")
    site.run(100)
    nodes = site.controller.world.nodes
    site.controller.change(nodes={node: nodes[node] for node in NODES[:8]})
    site.controller.isolate("h0", "admin", "maintenance")
    site.bring_back()
    assert site.run_all(111, 114) == []
    assert site.controller.world.jobs["train+1"]["state"] == "running", "restarted, it would have seven nodes again"


def test_grow_that_has_waited_for_a_checkpoint_waits_for_no_other(sites: SiteMaker) -> None:
    site = sites.make(mode="execute")
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
    for at_s in (712, 1313, 1801, *range(1831, 1837)):  # when it has expired, when it is saved, and then
        run(at_s)
    (grow,) = site.plans()
    assert grow.reason.endswith("; it has waited for the checkpoint that is there now")
    assert site.controller.world.acts[-1] == "restart train+1 on h0,h1,h2,h3,h4,h5,h6,h7"


def start_again(site: Site, at_s: float) -> None:
    site.end_job("train+1")
    site.controller.run_job("train+1+5", [node for node in NODES[:8] if node != "h3"])
    save_execution(site.control, restarted("train+1", "train+1+5", at_s), site.lease)


def test_nodes_of_a_job_are_its_own_until_its_next_attempt_is_seen(sites: SiteMaker) -> None:
    site = sites.make(mode="execute")
    site.controller.run_job("chat", ["h8", "h9"])
    site.run(100)
    site.end_job("chat")
    site.controller.run_job("chat+9", ["h8", "h9"])
    site.reader.silent.add("chat+9")  # its first telemetry comes minutes later
    save_execution(site.control, restarted("chat", "chat+9", 105), site.lease)
    assert site.run_all(111, 114) == []
    assert site.plans() == []
    site.end_job("chat+9")
    site.run(121)
    (grow,) = site.plans()
    assert grow.trigger == "node h8 joined, node h9 joined, job chat ended"


def test_what_a_person_has_rejected_is_held_also_under_the_next_name_of_the_job(sites: SiteMaker) -> None:
    site = sites.make(mode="execute", next_save_s=50.0)
    grow = site.grow()
    site.say(grow, "reject", 112)
    site.run(200)
    start_again(site, at_s=210)
    site.reader.next_save_s = None
    assert site.run_all(290, 294) == []
    message = f"a person has undone or rejected decision {grow.id}, which was to grow"
    held = {each.job: each.held_because for each in site.plans()}
    assert held == {"train+1": f"{message} train+1", "train+1+5": f"{message} train+1+5"}


def test_approval_of_a_plan_that_expired_long_ago_approves_no_other(sites: SiteMaker) -> None:
    site = sites.make(mode="propose", next_save_s=50.0)
    site.controller.run_job("chat", ["h8"])
    site.run(100)
    site.end_job("chat")
    site.run(111)
    (approved,) = site.plans()
    assert approved.waits_until_ns is not None
    site.say(approved, "approve", 112)
    site.controller.isolate("h8", "d9", "again")
    site.run(122)
    assert site.plans()[0].expires_ns == seconds(122)
    site.reader.next_save_s = None
    site.controller.run_job("other", ["h9"])
    site.run(7200)
    site.end_job("other")  # the same plan as two hours ago
    assert site.run_all(7211, 7214) == []
    fresh = next(each for each in site.plans() if each.id != approved.id)
    assert (fresh.job, fresh.target, fresh.mode) == (approved.job, approved.target, "propose")


def seen(nodes: str, jobs: str) -> Seen:
    return Seen(frozenset(nodes.split()), frozenset(jobs.split()))


def test_nodes_and_jobs_that_came_and_went_are_named() -> None:
    assert find_triggers(seen("h0 h1", "a b"), seen("h1 h2", "b c")) == [
        Event("node_joins", "h2"),
        Event("node_lost", "h0"),
        Event("job_starts", "c"),
        Event("job_ends", "a"),
    ]
    assert find_triggers(None, seen("h0 h1", "a")) == find_triggers(seen("h0", "a"), seen("h0", "a")) == []


def test_many_triggers_are_not_all_listed() -> None:
    events = [Event("node_joins", f"h{number}") for number in range(6)]
    assert say(events) == "node h0 joined, node h1 joined, node h2 joined, node h3 joined and 2 more"
    assert say([]) == "the planner has looked at all jobs"
