"""Every open incident has one decision that has not expired, written by whoever holds the lease."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.control.database import ControlDatabase, open_control
from lockstep.control.decisions import list_decisions
from lockstep.control.incidents import save_incidents
from lockstep.control.leases import Lease, take_lease
from lockstep.errors import LeaseLost
from planner.recovery.decide import DecideOptions
from planner.service import PlannerService
from tests.lockstep.control.build import incident

LIFETIME_NS = 100
TTL_NS = 1_000


@pytest.fixture
def control(tmp_path: Path) -> Iterator[ControlDatabase]:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


@pytest.fixture
def planner(control: ControlDatabase) -> PlannerService:
    return PlannerService(control, DecideOptions(lifetime_ns=LIFETIME_NS))


@pytest.fixture
def lease(control: ControlDatabase) -> Lease:
    taken = take_lease(control, "planner", "me", TTL_NS, now_ns=0)
    assert taken is not None
    return taken


def test_without_incidents_nothing_is_decided(planner: PlannerService, lease: Lease) -> None:
    assert planner.run_once(lease, now_ns=0) == 0


def test_every_open_incident_gets_a_decision(planner: PlannerService, control: ControlDatabase, lease: Lease) -> None:
    save_incidents(control, [incident("i1"), incident("i2"), incident("i3", state="closed")], None)
    assert planner.run_once(lease, now_ns=5) == 2
    assert {found.incident for found in list_decisions(control)} == {"i1", "i2"}
    assert {found.generation for found in list_decisions(control)} == {lease.generation}


def test_cost_counts_the_part_s_own_rank_and_those_that_wait(
    planner: PlannerService, control: ControlDatabase, lease: Lease
) -> None:
    save_incidents(control, [incident("i1")], None)  # 255 ranks wait for one, and steps take 1.42 times as long
    planner.run_once(lease, now_ns=5)
    (found,) = list_decisions(control)
    assert found.cost.gpu_hours == pytest.approx(256 * (1 - 1 / 1.42), abs=0.01)


def test_incident_that_is_decided_is_left_alone_until_the_decision_expires(
    planner: PlannerService, control: ControlDatabase, lease: Lease
) -> None:
    save_incidents(control, [incident("i1")], None)
    assert planner.run_once(lease, now_ns=0) == 1
    assert planner.run_once(lease, now_ns=LIFETIME_NS - 1) == 0
    assert planner.run_once(lease, now_ns=LIFETIME_NS) == 1
    assert planner.run_once(lease, now_ns=LIFETIME_NS) == 0


def test_new_decision_stands_beside_the_one_that_expired(
    planner: PlannerService, control: ControlDatabase, lease: Lease
) -> None:
    save_incidents(control, [incident("i1")], None)
    planner.run_once(lease, now_ns=0)
    planner.run_once(lease, now_ns=LIFETIME_NS)
    assert [found.created_ns for found in list_decisions(control, incident="i1")] == [LIFETIME_NS, 0]


def test_planner_that_lost_its_lease_decides_nothing(
    planner: PlannerService, control: ControlDatabase, lease: Lease
) -> None:
    save_incidents(control, [incident("i1")], None)
    take_lease(control, "planner", "another", TTL_NS, now_ns=TTL_NS)
    with pytest.raises(LeaseLost):
        planner.run_once(lease, now_ns=TTL_NS)
    assert list_decisions(control) == []
