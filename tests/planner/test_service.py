"""Every open incident has one decision that has not expired, written by whoever holds the lease."""

import pytest

from lockstep.errors import LeaseLost
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import list_decisions
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease, release_lease
from lockstep.verdict import Impact
from planner.context import ClusterFacts
from planner.service import PlannerService
from planner.snapshot import FactReader
from tests.planner.build import crash, incident, seconds, verdict
from tests.planner.world import Harness, lease_of, planner_of


@pytest.fixture
def planner(control: ControlDatabase) -> PlannerService:
    """A planner that knows nothing but verdicts: no store, no controller, no checkpoints."""
    return PlannerService(control, FactReader(None, None, None, None, ClusterFacts(), {}))


def test_every_open_incident_gets_one_decision(
    planner: PlannerService, lease: Lease, control: ControlDatabase
) -> None:
    assert planner.run_once(lease, seconds(10)) == 0
    over = {"state": "closed", "closed_ns": seconds(5), "closed_because": "it healed"}
    closed = incident(name="i3").model_copy(update=over)
    save_incidents(control, [incident(name="i1"), incident(name="i2"), closed], None)
    assert planner.run_once(lease, seconds(10)) == 2
    save_incidents(control, [incident(name="i4")], None)
    release_lease(control, lease)
    lease_of(control, "another", at_s=11)
    with pytest.raises(LeaseLost):
        planner.run_once(lease, seconds(12))
    made = {(found.incident, found.generation) for found in list_decisions(control)}
    assert made == {("i1", lease.generation), ("i2", lease.generation)}


def test_where_only_the_verdict_is_known_the_decision_observes(
    planner: PlannerService, control: ControlDatabase, lease: Lease
) -> None:
    save_incidents(control, [incident(verdict(impact=Impact(step_time_ratio=1.25, ranks_waiting=255)))], None)
    planner.run_once(lease, seconds(10))
    (found,) = list_decisions(control)
    assert (found.mode, found.action) == ("observe", "none")
    assert found.reason == "nic:h3/eth1 is watched; waiting costs 51.2 GPU-hours every hour"


def test_decision_that_expires_is_made_again(planner: PlannerService, control: ControlDatabase, lease: Lease) -> None:
    save_incidents(control, [incident()], None)
    assert [planner.run_once(lease, seconds(at)) for at in (10, 19.9, 20, 20)] == [1, 0, 1, 0]
    assert [found.created_ns for found in list_decisions(control)] == [seconds(10)]
    save_incidents(control, [incident(crash(fault_class="comm_hang", grade="alert"))], None)
    planner.run_once(lease, seconds(200))
    assert [found.severity for found in list_decisions(control)] == [3, 1]


def test_surer_verdict_is_decided_at_once(planner: PlannerService, control: ControlDatabase, lease: Lease) -> None:
    """As a NIC without carrier was seen live: its page said isolate, and advised a restart on the same nodes."""
    made, at = [], 10.0
    for changes in ({"grade": "alert"}, {}, {}, {"component": "nic:h4/eth1"}, {"component": "nic:h4/eth1"}):
        save_incidents(control, [incident(crash(fault_class="comm_hang", **changes))], None)
        made.append(planner.run_once(lease, seconds(at)))
        at += 0.1
    assert made == [1, 1, 0, 1, 0]


def test_one_spare_is_promised_to_one_job(harness: Harness) -> None:
    harness.controller.run_job("chat", ["h4", "h5"])
    theirs = crash(id="v2", job="chat", component="host:h5", last_seen_ns=seconds(10))
    save_incidents(harness.control, [incident(theirs, name="i2")], None)
    harness.run(*range(11, 18))
    found = {each.action: each.reason for each in list_decisions(harness.control)}
    assert sorted(found) == ["reconfigure", "replace"]
    assert "starts again with h8 instead of" in found["replace"]
    assert "starts again on 7 nodes" in found["reconfigure"]


def test_restarts_that_the_same_round_has_begun_count_against_the_limit(harness: Harness) -> None:
    for job in ("train", "chat", "code", "draw"):
        hang = crash(
            id=f"v{job}", job=job, component=f"job:{job}", fault_class="noncomm_hang", last_seen_ns=seconds(10)
        )
        save_incidents(harness.control, [incident(hang, name="i1" if job == "train" else f"i{job}")], None)
        harness.controller.run_job(job)
    harness.planner = planner_of(harness.control, harness.controller, restarts_per_hour=2)
    harness.run(*range(11, 16))
    held = [each.held_because for each in list_decisions(harness.control) if each.held_because]
    assert held == ["2 jobs were restarted in the last hour, and 2 is the limit"] * 2
    assert len(harness.controller.world.acts) == 2
