"""A decision is the cheapest way that its severity allows, at the right moment, with its price and its reason."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.clock import NS_PER_S
from lockstep.decision import Decision, Mode
from lockstep.sections import PlannerSettings
from lockstep.verdict import Impact, Verdict
from planner.checkpoints.intervals import find_failure_rate
from planner.context import Context, JobFacts, Resume
from planner.decide import advise_saving, cost_of_nothing, decide, find_break_even
from planner.escalation import Level, severity_of
from planner.limits import Constraints
from tests.planner.build import IN_JOB, cluster, context, crash, incident, job, pipeline, seconds, verdict


def decided(
    of: Context | None = None,
    *,
    at_s: float = 10.0,
    level: Level | None = None,
    mode: Mode = "execute",
    constraints: Constraints | None = None,
    **policy: Any,
) -> Decision:  # Any: whatever field of the policy a test cares about
    found = of or context()
    seen = found.verdict.model_copy(update={"last_seen_ns": seconds(at_s)})
    found = Context(seen, found.job, found.cluster, found.durations, found.gpu_hour_price)
    modes: dict[Any, Mode] = dict.fromkeys(
        ("reroute", "reattempt", "restart_process", "reconfigure", "replace", "recycle"), mode
    )
    return decide(
        incident(seen),
        found,
        level or Level(*severity_of(seen)),
        constraints or Constraints(),
        PlannerSettings(modes=modes, **policy),
        generation=3,
        now_ns=seconds(at_s),
    )


def test_dead_host_is_replaced_at_once_with_every_figure_and_every_alternative() -> None:
    made = decided(context(crash()))
    assert (made.action, made.mode, made.severity, made.target) == ("replace", "execute", 1, {"nnodes": 8})
    assert made.resume == {"source": "remote", "checkpoint": "/ckpt/train/400", "format": "dcp"}
    assert (made.generation, made.checkpoint_age_s, made.verdicts) == (3, 600.0, ("v1",))
    others = {"none", "reroute", "reattempt", "restart_process", "recycle", "drop_replica", "reconfigure"}
    assert {option.action for option in made.alternatives} == others
    for cost in (made.cost, cost_of_nothing(made)):
        assert None not in (cost.downtime_s, cost.throughput_after, cost.gpu_hours, cost.risk)


def test_layout_shrinks_by_whole_replicas_and_the_others_get_exactly_as_much_more() -> None:
    decision = decided(context(crash(), job(layout=pipeline(tensor=1, stages=2, replicas=32)), cluster(spares=())))
    assert decision.action == "reconfigure"
    assert decision.target == {"nnodes": 7, "tp": 1, "pp": 2, "dp": 28}
    shrinkable = job(layout=pipeline(stages=1, tensor=8), min_nodes=8, can=IN_JOB)
    decision = decided(context(crash(), shrinkable, cluster(spares=())))
    assert decision.action == "drop_replica"
    assert decision.target == {"nnodes": 7, "tp": 8, "pp": 1, "dp": 7, "grad_accum": 37}


def test_slow_part_waits_until_waiting_has_cost_as_much_as_the_cure() -> None:
    early, late = decided(at_s=60), decided(at_s=3600)
    assert early.action == "none"
    assert "costs 13.3 GPU-hours at once and waiting has cost 0.5 so far: it is time in 1440 s" in early.reason
    assert early.expires_ns <= seconds(60) + 10 * NS_PER_S
    assert late.action == "replace"
    assert decided(at_s=1495).expires_ns == seconds(1500)
    link = context(verdict(component="link:leaf0--spine1"), within=cluster(can_reroute=True))
    assert decided(link, at_s=1).action == "reroute"
    assert decided(at_s=1).id != decided(at_s=2).id


def test_restart_waits_for_a_near_checkpoint_where_the_job_does_not_stand_still() -> None:
    soon, far = (decided(context(of=job(next_save_s=each)), at_s=3600) for each in (100.0, 3000.0))
    assert (soon.action, far.action) == ("none", "replace")
    assert soon.reason == (
        "replace waits for the next checkpoint: the next checkpoint is 2 minutes away and waiting costs 50 s of "
        "healthy work, acting now does 10 minutes of work again"
    )
    assert decided(context(crash(), job(next_save_s=1.0))).action == "replace"


def test_checkpoint_of_the_new_layout_is_named_with_its_conversion_or_needs_a_person() -> None:
    converted = Resume("/c_universal", "universal", 600.0, 30.0, ("python", "-m", "x y"), 45.0)
    made = decided(context(crash(), job(resume_smaller=converted), cluster(spares=())))
    assert (made.action, made.mode) == ("reconfigure", "execute")
    named = {"source": "remote", "checkpoint": "/c_universal", "format": "universal", "convert": "python -m 'x y'"}
    assert made.resume == named
    blocked = replace(converted, obstacle="no converter is set")
    made = decided(context(crash(), job(resume_smaller=blocked), cluster(spares=())))
    assert (made.mode, made.held_because) == ("propose", "no converter is set")


def test_what_is_not_done_by_itself_says_why() -> None:
    made = decided(context(crash()), level=Level(1, "replace did not cure host:h3", is_exhausted=True))
    assert made.action == "none"
    assert made.reason == "a person is needed: replace did not cure host:h3, and nothing is left to try"
    made = decided(context(verdict(impact=Impact(step_time_ratio=None, ranks_waiting=3))))
    assert made.reason == "nic:h3/eth1 is watched; what it costs the job is not known yet"
    assert made.expires_ns == seconds(10) + 10 * NS_PER_S


ANY_VERDICT = st.builds(
    lambda fault_class, component, ratio, confidence, grade: verdict(
        fault_class=fault_class,
        component=component,
        confidence=confidence,
        grade=grade,
        impact=Impact(step_time_ratio=ratio, ranks_waiting=7),
    ),
    st.sampled_from(
        ["comm_slow", "noncomm_slow", "global_slow", "comm_hang", "noncomm_hang", "crash", "software"]
        + ["telemetry_lost"]
    ),
    st.sampled_from(["nic:h3/eth1", "gpu:h3/0", "host:h3", "link:h3/eth1--leaf0", "link:leaf0--spine1", "job:train"]),
    st.none() | st.floats(0.5, 20),
    st.floats(0, 1),
    st.sampled_from(["isolate", "alert", "note"]),
)
ANY_JOB = st.builds(
    lambda resume, min_nodes, layout: job(resume=resume, min_nodes=min_nodes, layout=layout),
    st.none() | st.builds(Resume, st.just("/c"), st.just("dcp"), st.floats(0, 1e5), st.floats(0, 1e4)),
    st.integers(1, 9),
    st.none() | st.just(pipeline()),
)


@given(ANY_VERDICT, ANY_JOB, st.floats(0, 1e5), st.booleans())
def test_whatever_happens_the_rules_hold(about: Verdict, of: JobFacts, at_s: float, can_shrink: bool) -> None:
    facts = replace(of, can=IN_JOB if can_shrink else frozenset())
    decision = decided(context(about, facts, cluster(can_reroute=True)), at_s=at_s)
    assert decision.reason
    if decision.action in ("reconfigure", "replace"):
        assert of.resume is not None or decision.held_because, "never without a verified checkpoint, or a person"
        assert (decision.target or {})["nnodes"] >= of.min_nodes
    if about.fault_class in ("software", "telemetry_lost"):
        assert decision.isolate == ()
    if about.fault_class == "telemetry_lost":
        assert decision.action == "none"
    if decision.held_because:
        assert decision.mode != "execute"
    if decision.action != "none":
        assert (decision.cost.gpu_hours or 0.0) <= (cost_of_nothing(decision).gpu_hours or 0.0)


def test_time_comes_when_the_loss_reaches_the_price() -> None:
    due_ns = 9000 * NS_PER_S
    assert find_break_even(2.0, 1800 * NS_PER_S, lost_per_hour=4.0, price_gpu_hours=10.0) == due_ns
    assert find_break_even(10.0, due_ns, 4.0, 10.0) == due_ns
    assert find_break_even(0, 0, lost_per_hour=4.0, price_gpu_hours=0.0) == 0
    assert find_break_even(0, 10**18, lost_per_hour=0.0, price_gpu_hours=1.0) is None


SEEN = find_failure_rate(30, 1000.0)  # one node of eight fails every four days


TOO_SELDOM = "train saves every 24.0 hours: save every 77 minutes: a save holds 8 nodes up for 30 s"


@pytest.mark.parametrize(
    ("save_every_s", "more", "says"),
    [
        (86_400.0, {}, TOO_SELDOM),
        (300.0, {}, "10.0% at the 5 minutes of today"),
        *((every_s, {}, None) for every_s in (3600.0, 5400.0, None)),
        *((86_400.0, more, None) for more in ({"resume": None}, {"nodes": ()})),
    ],
)
def test_job_that_saves_too_seldom_or_too_often_is_advised_and_no_other(
    save_every_s: float | None, more: dict[str, Any], says: str | None
) -> None:
    of, within = job(save_every_s=save_every_s, **more), cluster(failure_rate=SEEN)
    advice = advise_saving(of, within)
    assert (advice is None) == (says is None)
    assert (says or "") in (advice or "")
    assert ("(if a save lasts as long as loading one)" in (advice or "")) == (advice is not None)
    assert advise_saving(of, cluster()) is None, "without a rate of failures"
    if not more:
        assert decided(context(crash(), of, within)).advice == advice
