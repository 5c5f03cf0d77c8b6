"""Each job that a plan touches gets one decision: priced, held where something speaks against it, and linked."""

from dataclasses import replace
from typing import Any

import pytest

from lockstep.decision import AllJobs, Decision, Mode
from lockstep.sections import PlannerSettings
from lockstep.state.decisions import list_decisions
from lockstep.state.incidents import list_incidents, save_incidents
from planner.allocation.allocate import Allocation, WarmAnswers, plan_allocation
from planner.allocation.cluster import Cluster
from planner.context import Durations, JobFacts, Layout
from planner.limits import Constraints
from planner.multi_job import Cause, Part, build_cluster, decide_parts, describe, identify, share_nodes
from tests.planner.build import SAVED, cluster, context, crash, decision, incident, job, seconds
from tests.planner.world import LINEAR, Site, SiteMaker

SHRUNK = job(nodes=tuple(f"h{number}" for number in range(7)), gpus=56, throughput=LINEAR)


def planned(*jobs: JobFacts, free: tuple[str, ...] = ()) -> tuple[Cluster, Allocation]:
    found = build_cluster(jobs, cluster(spares=(), free=free), Durations())
    return found, plan_allocation(found)


def decided(
    *jobs: JobFacts,
    free: tuple[str, ...] = ("h8",),
    constraints: Constraints | None = None,
    mode: Mode = "execute",
    price: float | None = None,
    **policy: Any,
) -> list[Decision]:  # Any: whatever field of the policy a test cares about
    _, plan = planned(*jobs, free=free)
    by_name = {each.job: each for each in jobs}
    parts = [Part(each, by_name[each.job], SAVED, "i1") for each in plan.jobs if each.after != each.before]
    settings = PlannerSettings(modes={"grow": mode, "reconfigure": mode}, **policy)
    cause = Cause("node h8 joined", plan, 120.0, price)
    return decide_parts(parts, cause, constraints or Constraints(), settings, generation=4, now_ns=seconds(10))


def test_growing_is_priced_against_staying_by_whole_replicas_and_waits_for_a_near_checkpoint() -> None:
    (grow,) = decided(SHRUNK, price=2.0)
    (stay,) = grow.alternatives
    assert (grow.mode, grow.generation, grow.severity, grow.after) == ("execute", 4, 3, ())
    assert (grow.cost.downtime_s, grow.cost.throughput_after, stay.cost.throughput_after) == (150.0, 1.0, 0.875)
    assert grow.cost.gpu_hours == pytest.approx(64 * 750 / 3600, abs=0.01)
    assert grow.cost.money == pytest.approx(2 * 64 * 750 / 3600, abs=0.01)
    assert (stay.cost.gpu_hours or 0.0) > (grow.cost.gpu_hours or 0.0)
    (grow,) = decided(replace(SHRUNK, layout=Layout(tensor=8, replicas=7)))
    assert grow.target == {"nnodes": 8, "tp": 8, "pp": 1, "dp": 8}
    (grow,) = decided(replace(SHRUNK, next_save_s=120.0))
    assert grow.waits_until_ns == seconds(130)
    assert grow.expires_ns == seconds(160), "then it is looked at again, from the new checkpoint"
    assert grow.cost.gpu_hours == pytest.approx(64 * 150 / 3600, abs=0.01)


@pytest.mark.parametrize(
    ("constraints", "resume", "sentence"),
    [
        (Constraints(controller_trouble="it is down"), SAVED, "the controller does not answer: it is down"),
        (Constraints(restarts=6), SAVED, "6 jobs were restarted in the last hour, and 6 is the limit"),
        (
            Constraints(undone=[decision("grow", ())]),
            SAVED,
            "a person has undone or rejected decision d1, which was to grow train",
        ),
        (Constraints(), replace(SAVED, obstacle="nobody can convert it"), "nobody can convert it"),
    ],
)
def test_what_speaks_against_it_is_said(constraints: Constraints, resume: Any, sentence: str) -> None:
    _, plan = planned(SHRUNK, free=("h8",))
    parts = [Part(plan.jobs[0], SHRUNK, resume, "i1")]
    settings = PlannerSettings(modes={"grow": "execute"}, restarts_per_hour=6)
    (grow,) = decide_parts(parts, Cause(None, plan, 120.0), constraints, settings, 1, seconds(10))
    assert (grow.mode, grow.held_because) == ("propose", sentence)


def test_a_plan_is_the_same_while_the_counts_are() -> None:
    _, plan = planned(SHRUNK, free=("h8",))
    part = Part(plan.jobs[0], SHRUNK, SAVED, "i1")
    assert identify([part]) == identify([replace(part, incident="i2")])
    assert identify([part]) != identify([replace(part, plan=replace(part.plan, after=9))])


def test_restarts_of_one_plan_count_against_the_limit_one_after_the_other() -> None:
    chat = replace(SHRUNK, job="chat", nodes=("h7",), gpus=8, throughput={1: 8.0, 2: 16.0})
    first, second = decided(SHRUNK, chat, free=("h8", "h9"), restarts_per_hour=1)
    assert (first.action, first.mode, first.held_because) == ("grow", "execute", None)
    assert (second.action, second.mode) == ("grow", "propose")
    assert second.held_because == "1 jobs were restarted in the last hour, and 1 is the limit"


def make_hit(sites: SiteMaker, mode: Mode = "execute") -> Site:
    """Return a site in which train+1 needs its seven nodes and has just lost h5, while chat could give one."""
    site = sites.make_unequal(mode)
    site.reader.tables = {"train": {7: 56.0, 8: 64.0}, "chat": {1: 8.0, 2: 16.0}}
    site.reader.least = {"train": 7}
    site.run(100)
    fault = crash(job="train+1", component="host:h5", last_seen_ns=seconds(110), since_ns=seconds(105))
    save_incidents(site.control, [incident(fault, name="i2", opened_s=106)], None)
    return site


def approve_all(site: Site) -> None:
    for each in list_decisions(site.control, incident="i2"):
        site.say(each, "approve", 112)


def hit_and_lender(site: Site) -> tuple[Decision, Decision]:
    found = {each.job: each for each in list_decisions(site.control, incident="i2")}
    return found["chat"], found["train+1"]


def test_job_that_cannot_go_on_borrows_a_node_once_its_lender_has_saved(sites: SiteMaker) -> None:
    site = make_hit(sites)
    site.reader.next_save_s = 300.0
    site.run(111)
    give, take = hit_and_lender(site)
    assert (give.action, give.target, give.mode) == ("reconfigure", {"nnodes": 1}, "propose")
    assert (take.action, take.target, take.mode) == ("replace", {"nnodes": 7}, "propose")
    assert (take.after, take.part_of, [part.node for part in take.isolate]) == ((give.id,), give.part_of, ["h5"])
    assert "chat gives h9, 2 -> 1 nodes, -50% of its work" in give.reason
    assert "is lent by chat" in take.reason
    assert "(looked up: worked out 11 s before the event)" in take.reason
    assert take.all_jobs is not None
    assert (give.waits_until_ns, give.expires_ns) == (seconds(411), seconds(441))
    assert (take.waits_until_ns, take.expires_ns) == (None, seconds(441))
    approve_all(site)
    site.reader.resume, site.reader.next_save_s = replace(SAVED, age_s=30.0), 570.0
    site.run_all(441, 450)
    acts = [act.split(" on ")[0] for act in site.controller.world.acts]
    assert acts == ["restart chat", "isolate h5", "restart train+1"]
    give, _ = hit_and_lender(site)
    assert "act now: acting now does 30 s of work again" in give.reason, "the other job stands still meanwhile"


def test_job_with_an_answer_of_its_own_does_not_wait_for_others(sites: SiteMaker) -> None:
    site = make_hit(sites)
    site.reader.tables["train"] = LINEAR
    site.reader.least = {}
    site.run(111)
    (own,) = list_decisions(site.control, incident="i2")
    assert (own.job, own.action, own.mode, own.part_of) == ("train+1", "reconfigure", "execute", None)


def test_job_in_trouble_gives_nothing(sites: SiteMaker) -> None:
    site = make_hit(sites)
    theirs = crash(job="chat", component="host:h9", last_seen_ns=seconds(110), since_ns=seconds(105))
    save_incidents(site.control, [incident(theirs, name="i3", opened_s=106)], None)
    site.run(111)
    assert {each.job for each in list_decisions(site.control, incident="i2")} == {"train+1"}


def test_nobody_lends_to_a_job_whose_incident_is_over(sites: SiteMaker) -> None:
    site = make_hit(sites)
    site.run(111)
    approve_all(site)
    (hit,) = [each for each in list_incidents(site.control) if each.id == "i2"]
    healed = {"state": "closed", "closed_ns": seconds(112), "closed_because": "it healed"}
    save_incidents(site.control, [hit.model_copy(update=healed)], None)
    assert site.run_all(113, 117) == []


TENS = {count: 10.0 * count for count in range(1, 11)}


def share(of: JobFacts, *others: JobFacts, spares: int = 2) -> Allocation | None:
    free = tuple(f"h{number}" for number in range(8, 8 + spares))
    return share_nodes(context(crash(), of, cluster(spares=free[:1], free=free[1:])), others, WarmAnswers(), 0)


def shared(of: JobFacts, *others: JobFacts, spares: int = 2) -> AllJobs:
    plan = share(of, *others, spares=spares)
    assert plan is not None
    return describe(plan)


def other(**changes: object) -> JobFacts:
    fields = {"job": "chat", "nodes": ("h8", "h9"), "gpus": 16, "resume": SAVED, "throughput": TENS}
    return JobFacts(**(fields | changes))  # type: ignore[arg-type]  # whatever a test replaces


def test_lost_node_is_replaced_by_an_idle_one_that_is_known_to_be_free() -> None:
    for spares, after in ((2, 9), (0, 7)):
        found = shared(job(throughput=TENS, min_nodes=2), spares=spares)
        (shift,) = found.shifts
        assert (shift.job, shift.nodes_before, shift.nodes_after) == ("train", 8, after)
        assert found.throughput_after == 10.0 * after
    assert share(job()) is None
    assert share(job(throughput=TENS), other(nodes=("h7", "h8"))) is None, "h7 is held twice"


def test_job_that_is_pinned_gives_no_node_to_one_that_is_worth_more() -> None:
    both, only = {"train", "chat"}, {"train"}
    for light, changed in ((other(), both), (other(throughput={}), only), (other(resume=None), only)):
        found = shared(job(throughput=TENS), replace(light, weight=0.1, min_nodes=1))
        assert ({shift.job for shift in found.shifts}, bool(found.reason)) == (changed, True)
    (train,) = build_cluster([job(throughput=TENS)], cluster(), Durations(), pinned=["train"]).jobs
    assert train.throughput.counts == (8,)


def test_tables_of_two_units_are_brought_to_one() -> None:
    measured = other(throughput={1: 8.0, 2: 16.0}, is_in_gpus=True, measured=frozenset({2}))
    planned = build_cluster([job(throughput=TENS), measured], cluster(), Durations())
    chat, train = planned.jobs
    assert (chat.id, chat.throughput.at(2), chat.throughput.measured) == ("chat", 16.0, frozenset({2}))
    assert train.throughput.at(8) == 64.0, "80 of the site's units are what its 64 GPUs do"


def test_planned_move_costs_the_work_since_the_checkpoint_unless_the_next_is_near() -> None:
    blind, told = (
        build_cluster([job(throughput=TENS, next_save_s=wait)], cluster(), Durations()).jobs[0].recovery
        for wait in (None, 60.0)
    )
    assert (blind.save_s, told.save_s, told.restart_s) == (600.0, 0.0, 150.0)


def test_job_of_unknown_work_is_not_compared_with_what_a_site_counts() -> None:
    hit = job(nodes=("h0", "h1", "h3"), gpus=24, min_nodes=1)  # without a table it counts as its GPUs
    told = other(nodes=("h5", "h6"), throughput={1: 0.9, 2: 1.8}, weight=5.0)  # steps a second
    plan = share(hit, told, spares=0)
    assert plan is not None
    assert {each.job: (each.before, each.after) for each in plan.jobs} == {"chat": (2, 2), "train": (3, 2)}
    assert "the 1 healthy jobs stay as they are" in plan.reason
