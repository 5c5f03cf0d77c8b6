"""Verdicts are held against what a scenario breaks: by part and other right names, class, side and time."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.accuracy_run import find_lost_s
from benchmarks.accuracy_score import (
    FIRST_SEED,
    HARD,
    Case,
    Named,
    family_names,
    group_of,
    healthy_until_s,
    named_of,
    plan_cases,
    score,
)
from simulator.scenario import Scenario, find_scenario, list_scenarios
from tests.lockstep.state.build import incident

NIC = find_scenario("nic-tx-strong-ib")  # nic:h3/eth1 tx from second 20 to 65, within 30 s


def told(component: str = "nic:h3/eth1", **words: object) -> Named:
    """A verdict in time on what is broken in NIC."""
    right = Named(component, "comm_slow", opened_s=28.0, last_seen_s=60.0, side="tx")
    return replace(right, **words)  # type: ignore[arg-type]  # words are fields of Named


@pytest.mark.parametrize(
    ("named", "class_right", "side_right", "in_time"),
    [
        (told(), True, True, True),
        (told("link:h3/eth1--leaf1"), True, True, True),  # another name that the scenario calls right
        (told(fault_class="comm_hang"), False, True, True),
        (told(side="rx"), True, False, True),
        (told(opened_s=51.0), True, True, False),  # late is neither in time nor wrong
        (told(opened_s=79.0), True, True, False),
    ],
)
def test_verdict_on_what_broke_is_a_hit_whose_class_side_and_time_are_judged_apart(
    named: Named, class_right: bool, side_right: bool, in_time: bool
) -> None:
    scored = score(NIC, 7, [named])
    (hit,) = scored.hits
    assert (hit.class_right, hit.side_right, hit.in_time) == (class_right, side_right, in_time)
    assert hit.delay_s == named.opened_s - 20.0
    assert (scored.missed, scored.wrong, scored.alarms) == ((), (), ())
    assert (scored.group, scored.seed, scored.healthy_s) == ("single strong", 7, 20.0)


@pytest.mark.parametrize(
    ("named", "field", "count"),
    [
        ([], "wrong", 0),
        ([told("nic:h4/eth1")], "wrong", 1),
        ([told(opened_s=81.0)], "wrong", 1),  # long after the part was healed
        ([told(opened_s=19.0)], "alarms", 1),  # before the fault, even on the right part
    ],
)
def test_silence_other_parts_and_other_times_miss_the_fault(named: list[Named], field: str, count: int) -> None:
    scored: Any = score(NIC, 1, named)
    assert scored.missed == ("nic:h3/eth1",)
    assert {name: len(getattr(scored, name)) for name in ("wrong", "alarms")} == {"wrong": 0, "alarms": 0} | {
        field: count
    }


def test_what_else_is_counted_of_verdicts() -> None:
    assert score(NIC, 1, [told("nic:h4/eth1", ambiguous_with=("nic:h3/eth1",))]).covered == 1
    assert [score(NIC, 1, [told(last_seen_s=last_s)]).outlasting for last_s in (70.0, 81.0)] == [0, 1]
    receiver = find_scenario("testbed-nic-rx-strong-socket")  # a wire begins at its sender: no side to judge
    assert score(receiver, 1, [told("link:h4/eth1--h5/eth0", opened_s=30.0)]).hits[0].side_right is None
    late = find_scenario("data-loader-strong-ib")  # a peer's rank is right by any of its names
    rank = told("gpu:h4/3", fault_class="noncomm_slow", side=None, aliases=("host:h4", "rank:35"))
    assert score(late, 1, [rank]).hits[0].class_right


def test_second_verdict_on_a_fault_is_a_repeat_and_the_better_one_counts() -> None:
    scored = score(NIC, 1, [told(side="rx", opened_s=25.0), told("link:h3/eth1--leaf1", opened_s=30.0)])
    assert (scored.hits[0].named.component, scored.repeats, scored.wrong) == ("link:h3/eth1--leaf1", 1, ())
    both = find_scenario("two-faults-strong-ib")  # each needs its own
    scored = score(both, 1, [told("nic:h1/eth2"), told("nic:h1/eth2", opened_s=31.0)])
    assert (len(scored.hits), scored.missed, scored.repeats) == (1, ("nic:h6/eth0",), 1)


@pytest.mark.parametrize("name", ["nic-tx-healthy-ib", "pauses-strong-ib"])
def test_any_verdict_is_a_false_alarm_where_silence_is_right(name: str) -> None:
    scenario = find_scenario(name)
    scored = score(scenario, 1, [told()])
    assert (len(scored.alarms), scored.group, scored.healthy_s) == (1, "silence", scenario.duration_s)
    assert healthy_until_s(find_scenario("spare-joins-strong-ib")) == 50.0, "a fault that joins later"


@pytest.mark.parametrize(
    ("scenario", "named", "count"),
    [
        (NIC, told(grade="isolate"), 0),
        (NIC, told("nic:h4/eth1", grade="isolate"), 1),
        (NIC, told("nic:h4/eth1"), 0),
        (NIC, told(opened_s=1.0, grade="isolate"), 1),
        (find_scenario("mismatched-ib"), told("job:mismatched-ib", fault_class="crash", grade="isolate"), 1),
    ],
)
def test_isolation_is_wrong_on_what_is_well_and_on_software(scenario: Scenario, named: Named, count: int) -> None:
    assert len(score(scenario, 1, [named]).wrong_isolations) == count


def test_incident_is_told_in_the_time_of_its_scenario() -> None:
    named = named_of(incident(opened_ns=3_000_000_000), start_ns=1_000_000_000)
    assert (named.component, named.side, named.opened_s, named.grade) == ("nic:h3/eth1", "tx", 2.0, "isolate")
    assert named.ambiguous_with == ("link:h3/eth1--leaf1",)


def test_every_family_has_twenty_runs_at_its_own_size_and_fewer_at_larger_ones() -> None:
    families = {scenario.name: scenario.family for scenario in list_scenarios()}
    runs = Counter((max(case.ranks, 64), families[case.scenario]) for case in plan_cases(full=False))
    assert {runs[64, family] for family in family_names()} == {20}
    assert (runs[512, "nic-tx"], runs[4_096, "nic-tx"]) == (5, 1)
    assert runs[512, "testbed-nic-tx"] == 0, "the testbed has as many ranks as one machine can run"
    assert min(case.seed for full in (False, True) for case in plan_cases(full)) == FIRST_SEED > 99, "none for tuning"
    variants = [case.scenario for case in plan_cases(False, ["nic-tx"]) if case.ranks == 64]
    assert set(variants) == {name for name, family in families.items() if family == "nic-tx"}
    assert variants[0] == variants[6] != variants[1]
    every = [case for case in plan_cases(True, ["nic-tx"]) if case.ranks == 64]
    assert len(every) == len(set(every)) == 6 * 20
    assert plan_cases(False, ["healthy"], [3, 4]) == [Case("healthy", 64, 3), Case("healthy", 64, 4)]


def test_scenarios_are_counted_under_what_they_ask() -> None:
    groups = {"single strong": ["nic-tx-strong-ib", "hang-absent-ib"]}
    groups |= {"hard": ["nic-tx-mild-ib", "two-faults-strong-socket"]}
    groups |= {"silence": ["nic-tx-healthy-ib", "two-faults-healthy-ib", "moe-strong-ib"]}
    assert all(group_of(find_scenario(name)) == group for group, names in groups.items() for name in names)
    assert set(HARD) <= set(family_names())
    assert all(HARD.values())


def test_large_jobs_are_sampled_and_keep_their_scenario() -> None:
    large = Case("nic-tx-strong-ib", 4_096, FIRST_SEED).scenario_at_size()
    assert (large.ranks, large.telemetry.sample, large.expect) == (4_096, 0.1, NIC.expect)
    assert Case("nic-tx-strong-ib", 64, FIRST_SEED).scenario_at_size() == NIC


def test_cost_is_held_against_what_the_steps_of_the_simulator_lost() -> None:
    healthy = [(number * 0.5, 0.5) for number in range(40)]
    slow = [(20.0 + number, 1.0) for number in range(45)]
    after = [(65.0 + number * 0.5, 0.5) for number in range(50)]
    assert find_lost_s([*healthy, *slow, *after], False, NIC) == pytest.approx(22.5), "from second 20 to 65"
    assert find_lost_s(healthy, True, NIC) == pytest.approx(NIC.duration_s - 20.0), "it never ends another step"
    assert find_lost_s(slow, False, NIC) is None, "nothing was before it"
    off = [score(NIC, 7, [told(lost_s=lost)], lost_s=20.0).cost_off for lost in (19.0, 26.0, None)]
    assert off == [pytest.approx(0.05), pytest.approx(0.3), float("inf")]
    assert score(NIC, 7, [told(lost_s=1.0)], lost_s=0.1).cost_off is None, "steps differ by as much by themselves"
    assert score(NIC, 7, [], lost_s=20.0).cost_off is None
