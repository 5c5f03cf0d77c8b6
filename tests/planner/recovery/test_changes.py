"""Each job that a plan touches gets one decision: priced, held where something speaks against it, and linked."""

from dataclasses import replace
from typing import Any

import pytest

from lockstep.decision import Decision, Mode
from planner.recovery.allocation.jobs import Cluster
from planner.recovery.allocation.planning import Allocation, plan_allocation
from planner.recovery.changes import Cause, Part, decide_parts, identify
from planner.recovery.decide import Policy
from planner.recovery.facts import Durations, JobFacts, Layout
from planner.recovery.limits import Limits, Surroundings
from planner.recovery.sharing import build_cluster
from tests.planner.recovery.build import SAVED, cluster, job, seconds
from tests.planner.recovery.test_steps import decision

LINEAR = {count: 8.0 * count for count in range(1, 9)}
SHRUNK = job(nodes=tuple(f"h{number}" for number in range(7)), gpus=56, throughput=LINEAR)


def planned(*jobs: JobFacts, free: tuple[str, ...] = ()) -> tuple[Cluster, Allocation]:
    found = build_cluster(jobs, cluster(spares=(), free=free), Durations())
    return found, plan_allocation(found)


def decided(
    *jobs: JobFacts,
    free: tuple[str, ...] = ("h8",),
    around: Surroundings | None = None,
    mode: Mode = "execute",
    price: float | None = None,
    **policy: Any,
) -> list[Decision]:  # Any: whatever field of the policy a test cares about
    _, plan = planned(*jobs, free=free)
    by_name = {each.job: each for each in jobs}
    parts = [Part(each, by_name[each.job], SAVED, "i1") for each in plan.jobs if each.after != each.before]
    modes = Policy(modes={"grow": mode, "reconfigure": mode}, **policy)
    cause = Cause("node h8 joined", plan, 120.0, price)
    return decide_parts(parts, cause, around or Surroundings(), modes, generation=4, now_ns=seconds(10))


def test_growing_onto_an_idle_node_is_priced_against_staying() -> None:
    (grow,) = decided(SHRUNK, price=2.0)
    (stay,) = grow.alternatives
    assert (grow.mode, grow.generation, grow.severity, grow.after) == ("execute", 4, 3, ())
    assert (grow.cost.downtime_s, grow.cost.waf_after, stay.cost.waf_after) == (150.0, 1.0, 0.875)
    assert grow.cost.gpu_hours == pytest.approx(64 * 750 / 3600, abs=0.01)
    assert grow.cost.money == pytest.approx(2 * 64 * 750 / 3600, abs=0.01)
    assert (stay.cost.gpu_hours or 0.0) > (grow.cost.gpu_hours or 0.0)


def test_layout_grows_by_whole_replicas() -> None:
    (grow,) = decided(replace(SHRUNK, layout=Layout(tensor=8, replicas=7)))
    assert grow.target == {"nnodes": 8, "tp": 8, "pp": 1, "dp": 8}


def test_job_that_expects_its_next_checkpoint_waits_and_repeats_nothing() -> None:
    (grow,) = decided(replace(SHRUNK, next_save_s=120.0))
    assert grow.waits_until_ns == seconds(130)
    assert grow.expires_ns == seconds(160), "then it is looked at again, from the new checkpoint"
    assert grow.cost.gpu_hours == pytest.approx(64 * 150 / 3600, abs=0.01)


@pytest.mark.parametrize(
    ("around", "resume", "sentence"),
    [
        (Surroundings(controller_trouble="it is down"), SAVED, "the controller does not answer: it is down"),
        (Surroundings(restarts=6), SAVED, "6 jobs were restarted in the last hour, and 6 is the limit"),
        (
            Surroundings(undone=[decision("grow", ())]),
            SAVED,
            "a person has undone or rejected decision d1, which was to grow train",
        ),
        (Surroundings(), replace(SAVED, obstacle="nobody can convert it"), "nobody can convert it"),
    ],
)
def test_what_speaks_against_it_is_said_and_leaves_it_to_a_person(
    around: Surroundings, resume: Any, sentence: str
) -> None:
    _, plan = planned(SHRUNK, free=("h8",))
    parts = [Part(plan.jobs[0], SHRUNK, resume, "i1")]
    policy = Policy(modes={"grow": "execute"}, limits=Limits(restarts_per_hour=6))
    (grow,) = decide_parts(parts, Cause(None, plan, 120.0), around, policy, 1, seconds(10))
    assert (grow.mode, grow.held_because) == ("propose", sentence)


def test_plan_is_the_same_while_the_counts_are() -> None:
    _, plan = planned(SHRUNK, free=("h8",))
    part = Part(plan.jobs[0], SHRUNK, SAVED, "i1")
    assert identify([part]) == identify([replace(part, incident="i2")])
    assert identify([part]) != identify([replace(part, plan=replace(part.plan, after=9))])


def test_those_who_give_come_first_and_nobody_gives_by_policy_alone() -> None:
    chat = JobFacts("chat", nodes=("h8", "h9"), gpus=16, resume=SAVED, throughput={1: 8.0, 2: 16.0}, weight=0.1)
    give, take = decided(SHRUNK, chat, free=())
    assert (give.job, give.action, take.job, take.action) == ("chat", "reconfigure", "train", "grow")
    assert (give.mode, take.mode, take.after, give.after) == ("propose", "propose", (give.id,), ())
    assert give.part_of == take.part_of
    assert "chat gives h9, 2 -> 1 nodes, -50% of its work" in give.reason


def test_restarts_of_one_plan_count_against_the_limit_one_after_the_other() -> None:
    chat = replace(SHRUNK, job="chat", nodes=("h7",), gpus=8, throughput={1: 8.0, 2: 16.0})
    first, second = decided(SHRUNK, chat, free=("h8", "h9"), limits=Limits(restarts_per_hour=1))
    assert (first.action, first.mode, first.held_because) == ("grow", "execute", None)
    assert (second.action, second.mode) == ("grow", "propose")
    assert second.held_because == "1 jobs were restarted in the last hour, and 1 is the limit"
