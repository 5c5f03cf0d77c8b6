"""Which scenarios real ranks can play, what is said of them, and one told from fault to verdict for real."""

import math
import os
from typing import Any

import pytest

from lockstep.clock import NS_PER_S
from lockstep.errors import NotPresent
from simulator.faults import parse_fault
from simulator.scenario import find_scenario, list_scenarios
from tests.testbed.fabric.ownership import owner_of, prefix_of
from tests.testbed.scenarios import runner
from tests.testbed.scenarios.runner import Listener, Outcome, Pace
from tests.tiers import long_except

SCENARIO = find_scenario("testbed-host-link-strong-socket")
BEGAN_NS = 1_000 * NS_PER_S


def test_scenarios_made_for_the_testbed_can_be_told_and_of_others_all_obstacles_are_said() -> None:
    made_for_it = [scenario for scenario in list_scenarios() if scenario.family.startswith("testbed-")]
    assert made_for_it
    assert [scenario.name for scenario in made_for_it if runner.find_obstacles(scenario)] == []
    said = r"^the testbed cannot tell moe-mild-ib: it has 64 ranks.*no RDMA"
    with pytest.raises(NotPresent, match=said) as refusal:
        runner.check_playable(find_scenario("moe-mild-ib"))
    assert "all-to-all" in str(refusal.value)
    for line, reason in (
        ("nvlink:h1/0 to 50 %", "inside a host"),
        ("nic:h3/eth1 over to eth0 after 4 s", "fail over to no other port"),
        ("nic:h3/eth1 to 50 % above 1 MB", "how large an operation is"),
    ):
        timeline = (parse_fault(f"at 20 s fail {line}"),)
        (obstacle,) = runner.find_obstacles(SCENARIO.model_copy(update={"timeline": timeline}))
        assert reason in obstacle


@pytest.mark.parametrize(
    ("line", "ranks", "told"),
    [
        ("fail host:h2 late 300 ms", [4, 5], "late 300"),
        ("fail gpu:h3/1 to 50 % in 10 % of steps", [7], "slow 2 0.1"),
        ("fail rank:3 absent", [3], "absent"),
        ("fail rank:3 mismatched", [3], "mismatch 2"),
        ("fail rank:3 deadlocked", [3], "reversed"),
        ("pause 12 s", [*range(16)], "pause 12000"),
        ("pause host:h1 2 s", [2, 3], "pause 2000"),
        ("second mix", [*range(16)], "second 12"),
        ("fail nic:h3/eth1 to 50 %", [], ""),  # the fabric's business
    ],
)
def test_ranks_are_told_what_only_they_can_do(line: str, ranks: list[int], told: str) -> None:
    fault = parse_fault(f"at 20 s {line}")
    assert runner.ranks_of(SCENARIO, fault) == ranks
    assert runner.lines_for(fault, step=10) == ([told] if told else [])


def test_wire_between_two_nics_is_right_by_the_name_it_has_here() -> None:
    for name, right in (
        ("testbed-nic-tx-strong-socket", ("link:h3/eth1--leaf0", "link:h3/eth1--h4/eth1")),
        ("testbed-spine-link-strong-socket", ("link:leaf1--spine1", "switch:spine1")),
        ("testbed-hang-absent-socket", ("rank:6", "gpu:h3/0")),
    ):
        (wanted,) = runner.cast_truth(find_scenario(name)).expect
        assert wanted.also_right == right


def at(after_s: float) -> int:
    return BEGAN_NS + int(after_s * NS_PER_S)


def pace(*step_ends_s: float) -> Pace:
    return Pace(at(20), tuple(map(at, step_ends_s)))


def incident(component: str, after_s: float, fault_class: str = "comm_slow", identity: str = "one") -> dict[str, Any]:
    verdict = {"class": fault_class, "component": component, "confidence": 0.9}
    return {"id": identity, "verdict": verdict, "opened_ns": at(after_s), "updated_ns": at(after_s)}


def test_expected_verdict_in_time_is_right_and_silence_only_where_nothing_breaks() -> None:
    for message, is_right in (
        (incident("link:h6/eth1--leaf1", after_s=35), True),
        (incident("nic:h6/eth1", after_s=35), True),
        (incident("nic:h5/eth1", after_s=35), False),
        (incident("nic:h6/eth1", after_s=51), False),  # the fault comes at 20 s, the verdict is due within 30
        (incident("nic:h6/eth1", after_s=35, fault_class="comm_hang"), False),
    ):
        judged = Outcome(SCENARIO, BEGAN_NS, (message,), pace())
        assert judged.is_right == is_right
        assert (judged.missed, judged.wrong) == (([], []) if is_right else (list(SCENARIO.expect), [message]))
    assert not Outcome(SCENARIO, BEGAN_NS, (), pace()).is_right
    assert Outcome(find_scenario("testbed-host-link-healthy-socket"), BEGAN_NS, (), pace()).is_right


def test_first_right_answer_counts_and_neither_a_wrong_one_nor_one_from_before_the_fault() -> None:
    listener = Listener()
    listener.receive([incident("nic:h6/eth1", after_s=10, identity="early")], at(12))
    listener.receive([incident("host:h6", after_s=24)], at(25))
    listener.receive([incident("host:h6", after_s=24)], at(26))
    assert Outcome(SCENARIO, BEGAN_NS, (), pace(), tuple(listener.reported)).first_right() is None
    listener.receive([incident("nic:h6/eth1", after_s=24)], at(29))
    assert [(reported.at_ns, reported.component) for reported in listener.reported[1:]] == [
        (at(25), "host:h6"),
        (at(29), "nic:h6/eth1"),
    ]
    assert Outcome(SCENARIO, BEGAN_NS, (), pace(), tuple(listener.reported)).first_right() == listener.reported[-1]


def test_delay_is_told_in_seconds_and_in_steps_that_the_broken_job_did() -> None:
    told = pace(18, 18.5, 19, 19.5, 21, 23, 25, 27, 29)
    assert told.usual_s == pytest.approx(0.5)
    assert (told.seconds_until(at(26)), told.steps_until(at(26))) == (6, 3)
    slow, hanging, unknown = pace(19, 19.5, 21, 23, 25, 27, 29), pace(19, 19.5, 20), pace(19)
    assert [slow.is_within(at(heard_s), steps=3, seconds=5) for heard_s in (30, 30.1)] == [True, False]
    assert [hanging.is_within(at(heard_s), steps=5, seconds=5) for heard_s in (27.5, 27.6)] == [True, False]
    assert math.isnan(unknown.usual_s)
    assert not unknown.is_within(at(21), steps=5, seconds=5)


@pytest.mark.slow
@pytest.mark.needs_root
@pytest.mark.parametrize(
    "name",
    long_except(
        ("testbed-host-link-strong-socket",),
        ("testbed-host-link-strong-socket", "testbed-host-link-healthy-socket", "testbed-hang-stopped-socket"),
    ),
)
def test_scenario_told_on_a_real_fabric_gets_the_verdicts_it_expects_and_no_other(name: str) -> None:
    told = runner.run_scenario(find_scenario(name), seed=7, note=print)
    assert told.is_right, told.incidents
    assert told.steps > 10
    left = [prefix for space in os.listdir("/run/netns") if (prefix := prefix_of(space))]
    assert os.getpid() not in map(owner_of, left)
