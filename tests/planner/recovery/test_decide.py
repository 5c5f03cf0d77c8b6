"""A decision says what waiting costs, rests on its verdict, and takes nothing out of service that is not hardware."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.decision import Cost, Decision
from lockstep.incident import Incident
from lockstep.verdict import Impact
from planner.recovery.decide import DecideOptions, decide
from tests.lockstep.control.build import incident

NOW_NS = 1_000


def told(ratio: float | None = 2.0, **verdict: Any) -> Incident:
    """Return an incident whose steps take that many times as long, its verdict changed as given."""
    whole = incident("i1", job="train")
    impact = Impact(step_time_ratio=ratio, ranks_waiting=63)
    return whole.model_copy(update={"verdict": whole.verdict.model_copy(update={"impact": impact, **verdict})})


def decided(about: Incident, *, ranks: int = 64, generation: int = 3, now_ns: int = NOW_NS) -> Decision:
    return decide(about, ranks, generation, now_ns, DecideOptions(lifetime_ns=500))


def test_decision_observes_and_does_nothing() -> None:
    decision = decided(told())
    assert (decision.mode, decision.action) == ("observe", "none")


def test_decision_names_job_incident_verdict_and_generation() -> None:
    decision = decided(told().model_copy(update={"attempt": 2}))
    assert (decision.job, decision.attempt, decision.incident) == ("train", 2, "i1")
    assert (decision.verdicts, decision.generation) == (("v1",), 3)


def test_decision_expires() -> None:
    decision = decided(told())
    assert (decision.created_ns, decision.expires_ns) == (NOW_NS, NOW_NS + 500)


@pytest.mark.parametrize(
    ("ratio", "share", "gpu_hours"), [(2.0, 0.5, 32.0), (1.25, 0.8, 12.8), (1.0, 1.0, 0.0), (0.9, 1.0, 0.0)]
)
def test_waiting_costs_the_share_of_time_that_is_lost(ratio: float, share: float, gpu_hours: float) -> None:
    decision = decided(told(ratio))
    assert decision.cost == Cost(downtime_s=0.0, waf_after=share, gpu_hours=gpu_hours)
    assert decision.reason == f"nic:h3/eth1 is watched; waiting costs {gpu_hours} GPU-hours every hour"


@pytest.mark.parametrize("ratio", [None, 0.0, -1.0])
def test_cost_that_nothing_is_known_of_is_unknown_and_not_zero(ratio: float | None) -> None:
    decision = decided(told(ratio))
    assert decision.cost == Cost(downtime_s=0.0)
    assert decision.reason == "nic:h3/eth1 is watched; what it costs the job is not known yet"


@given(ratio=st.floats(1.0, 1e9), ranks=st.integers(1, 100_000))
def test_waiting_never_costs_more_than_all_gpus_nor_less_than_nothing(ratio: float, ranks: int) -> None:
    cost = decided(told(ratio), ranks=ranks).cost
    assert cost.gpu_hours is not None
    assert cost.waf_after is not None
    assert 0 <= cost.gpu_hours <= ranks
    assert 0 <= cost.waf_after <= 1


def test_alternative_whose_cost_is_not_known_is_listed_without_one() -> None:
    (replace,) = decided(told()).alternatives
    assert (replace.action, replace.cost) == ("replace", Cost())
    assert "needs a checkpoint, a spare and a controller" in replace.reason


@pytest.mark.parametrize(
    "component",
    ["nic:h3/eth1", "link:leaf1--spine2", "gpu:h3/0", "host:h3", "switch:leaf1", "nvlink:h3/0", "pcie:h3/0"],
)
def test_hardware_that_justifies_draining_is_named_for_isolation(component: str) -> None:
    decision = decided(told(component=component))
    (isolation,) = decision.isolate
    assert (isolation.component, isolation.evidence) == (component, ("v1",))
    assert isolation.reason == "h3's eth1 sends at a tenth of its rate, says Zoë"
    assert decision.severity == 2


@pytest.mark.parametrize("grade", ["alert", "note"])
def test_part_that_does_not_justify_draining_is_not_isolated(grade: str) -> None:
    decision = decided(told(grade=grade))
    assert (decision.isolate, decision.severity) == ((), 3)


@pytest.mark.parametrize(
    "change",
    [{"component": "job:train"}, {"component": "rank:7"}, {"component": "host:h3", "fault_class": "software"}],
)
def test_software_is_never_a_reason_to_isolate_hardware(change: dict[str, Any]) -> None:
    assert decided(told(**change)).isolate == ()


def test_same_decision_has_the_same_id_and_each_other_one_its_own() -> None:
    first = decided(told())
    assert decided(told()) == first
    others = [decided(told(), generation=4), decided(told(), now_ns=NOW_NS + 1)]
    assert len({first.id, *(other.id for other in others)}) == 3
