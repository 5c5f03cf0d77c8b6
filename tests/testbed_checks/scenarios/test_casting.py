"""Which scenarios real ranks can play, and what they are told: decided on paper, before anything is built."""

import pytest

from lockstep.errors import NotPresent
from simulator.faults import parse_fault
from simulator.scenario import Scenario, find_scenario, list_scenarios
from tests.testbed.scenarios.casting import cast_truth, check_playable, find_obstacles, lines_for, plan_job, ranks_of
from tests.testbed.workers.plan import Collective, Compute

SCENARIO = find_scenario("testbed-host-link-strong-socket")
MADE_FOR_IT = [scenario for scenario in list_scenarios() if scenario.family.startswith("testbed-")]


def changed(**fields: object) -> Scenario:
    return SCENARIO.model_copy(update=fields)


@pytest.mark.parametrize("scenario", MADE_FOR_IT, ids=lambda scenario: scenario.name)
def test_scenarios_made_for_the_testbed_can_be_told_on_it(scenario: Scenario) -> None:
    assert find_obstacles(scenario) == []


def test_everything_in_the_way_is_said_at_once() -> None:
    with pytest.raises(NotPresent) as refusal:
        check_playable(find_scenario("moe-mild-ib"))
    assert str(refusal.value).startswith("the testbed cannot tell moe-mild-ib: it has 64 ranks")
    assert "no RDMA" in str(refusal.value)
    assert "all-to-all" in str(refusal.value)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("at 20 s fail nvlink:h1/0 to 50 %", "inside a host"),
        ("at 20 s restart after 5 s", "restarts no jobs"),
        ("at 20 s fail nic:h3/eth1 over to eth0 after 4 s", "fail over to no other port"),
        ("at 20 s fail nic:h3/eth1 to 50 % above 1 MB", "how large an operation is"),
    ],
)
def test_what_the_testbed_cannot_break_is_said(line: str, reason: str) -> None:
    (obstacle,) = find_obstacles(changed(timeline=(parse_fault(line),)))
    assert reason in obstacle


def test_job_has_the_ranks_hosts_and_operations_of_the_scenario() -> None:
    plan = plan_job(SCENARIO, 1.0, seed=3)
    assert plan.hosts == tuple(f"h{rank // 2}" for rank in range(16))
    assert plan.nics == ("eth0", "eth1")
    assert plan.step == (
        Compute(200.0, SCENARIO.noise.compute),
        Collective("world", "AllReduce", 2_000_000, "RING", 2),
        Collective("world", "AllReduce", 2_000_000, "RING", 2),
    )
    assert (plan.job, plan.seed) == (SCENARIO.name, 3)


def test_bytes_are_scaled_with_the_links() -> None:
    sizes = [item.bytes for item in plan_job(SCENARIO, 0.5, seed=1).step if isinstance(item, Collective)]
    assert sizes == [1_000_000, 1_000_000]


@pytest.mark.parametrize(
    ("line", "ranks", "told"),
    [
        ("at 20 s fail host:h2 late 300 ms", [4, 5], ["late 300"]),
        ("at 20 s fail rank:7 late 20 ms", [7], ["late 20"]),
        ("at 20 s fail gpu:h3/1 to 50 % in 10 % of steps", [7], ["slow 2 0.1"]),
        ("at 20 s fail rank:3 absent", [3], ["absent"]),
        ("at 20 s fail rank:3 mismatched", [3], ["mismatch 2"]),
        ("at 20 s fail rank:3 deadlocked", [3], ["reversed"]),
        ("at 20 s pause 12 s", list(range(16)), ["pause 12000"]),
        ("at 20 s pause host:h1 2 s", [2, 3], ["pause 2000"]),
        ("at 20 s second mix", list(range(16)), ["second 12"]),
        ("at 20 s fail nic:h3/eth1 to 50 %", [], []),  # the fabric's business
    ],
)
def test_ranks_are_told_what_only_they_can_do(line: str, ranks: list[int], told: list[str]) -> None:
    fault = parse_fault(line)
    assert ranks_of(SCENARIO, fault) == ranks
    assert lines_for(fault, step=10) == told


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("testbed-nic-tx-strong-socket", ("link:h3/eth1--leaf0", "link:h3/eth1--h4/eth1")),
        ("testbed-nic-rx-strong-socket", ("link:h5/eth0--leaf1", "link:h4/eth0--h5/eth0")),
        ("testbed-spine-link-strong-socket", ("link:leaf1--spine1", "switch:spine1")),
        ("testbed-hang-absent-socket", ("rank:6", "gpu:h3/0")),
    ],
)
def test_wire_between_two_nics_is_right_by_the_name_it_has_here(name: str, right: tuple[str, ...]) -> None:
    (wanted,) = cast_truth(find_scenario(name)).expect
    assert wanted.also_right == right
