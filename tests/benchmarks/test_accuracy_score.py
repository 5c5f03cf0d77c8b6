"""Verdicts are held against what a scenario breaks: by part and other right names, class, side and time."""

from dataclasses import replace

import pytest

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


def test_right_verdict_is_a_hit_with_its_delay() -> None:
    scored = score(NIC, 7, [told()])
    (hit,) = scored.hits
    assert (hit.class_right, hit.side_right, hit.delay_s, hit.in_time) == (True, True, 8.0, True)
    assert (scored.missed, scored.wrong, scored.alarms) == ((), (), ())
    assert (scored.group, scored.seed, scored.healthy_s) == ("single strong", 7, 20.0)


def test_other_name_that_the_scenario_calls_right_is_right() -> None:
    assert score(NIC, 1, [told("link:h3/eth1--leaf1")]).hits[0].side_right is True


def test_silence_misses_the_fault() -> None:
    assert score(NIC, 1, []).missed == ("nic:h3/eth1",)


def test_other_part_is_wrong_and_the_fault_is_missed() -> None:
    scored = score(NIC, 1, [told("nic:h4/eth1")])
    assert ([named.component for named in scored.wrong], scored.missed) == (["nic:h4/eth1"], ("nic:h3/eth1",))


def test_wrong_verdict_that_names_the_part_beside_is_counted_as_such() -> None:
    assert score(NIC, 1, [told("nic:h4/eth1", ambiguous_with=("nic:h3/eth1",))]).covered == 1


@pytest.mark.parametrize(
    ("words", "class_right", "side_right"),
    [({"fault_class": "comm_hang"}, False, True), ({"side": "rx"}, True, False)],
)
def test_class_and_side_are_judged_apart(words: dict[str, str], class_right: bool, side_right: bool) -> None:
    (hit,) = score(NIC, 1, [told(**words)]).hits
    assert (hit.class_right, hit.side_right) == (class_right, side_right)


def test_side_of_a_wire_that_begins_at_its_sender_is_not_judged() -> None:
    receiver = find_scenario("testbed-nic-rx-strong-socket")
    named = told("link:h4/eth1--h5/eth0", side="tx", opened_s=30.0)
    assert score(receiver, 1, [named]).hits[0].side_right is None


def test_verdict_before_the_fault_is_a_false_alarm_even_on_the_right_part() -> None:
    scored = score(NIC, 1, [told(opened_s=19.0)])
    assert (len(scored.alarms), scored.missed, scored.wrong) == (1, ("nic:h3/eth1",), ())


def test_late_verdict_is_neither_in_time_nor_wrong() -> None:
    scored = score(NIC, 1, [told(opened_s=51.0)])
    assert (scored.hits[0].in_time, scored.wrong, scored.missed) == (False, (), ())


def test_verdict_long_after_the_part_was_healed_is_wrong() -> None:
    assert len(score(NIC, 1, [told(opened_s=79.0)]).hits) == 1
    assert len(score(NIC, 1, [told(opened_s=81.0)]).wrong) == 1


@pytest.mark.parametrize(("last_seen_s", "count"), [(70.0, 0), (81.0, 1)])
def test_verdict_that_is_told_on_and_on_after_the_healing_is_counted(last_seen_s: float, count: int) -> None:
    assert score(NIC, 1, [told(last_seen_s=last_seen_s)]).outlasting == count


def test_second_verdict_on_a_fault_is_a_repeat_and_the_better_one_counts() -> None:
    scored = score(NIC, 1, [told(side="rx", opened_s=25.0), told("link:h3/eth1--leaf1", opened_s=30.0)])
    assert (scored.hits[0].named.component, scored.repeats, scored.wrong) == ("link:h3/eth1--leaf1", 1, ())


def test_each_of_several_faults_needs_its_own_verdict() -> None:
    both = find_scenario("two-faults-strong-ib")
    scored = score(both, 1, [told("nic:h1/eth2"), told("nic:h1/eth2", opened_s=31.0)])
    assert (len(scored.hits), scored.missed, scored.repeats) == (1, ("nic:h6/eth0",), 1)


@pytest.mark.parametrize("name", ["nic-tx-healthy-ib", "pauses-strong-ib"])
def test_any_verdict_is_a_false_alarm_where_silence_is_right(name: str) -> None:
    scenario = find_scenario(name)
    scored = score(scenario, 1, [told()])
    assert (len(scored.alarms), scored.group, scored.healthy_s) == (1, "silence", scenario.duration_s)


def test_fault_that_joins_later_leaves_the_time_before_healthy() -> None:
    assert healthy_until_s(find_scenario("spare-joins-strong-ib")) == 50.0


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


def test_rank_of_a_peer_is_right_by_any_of_its_names() -> None:
    late = find_scenario("data-loader-strong-ib")
    named = told("gpu:h4/3", fault_class="noncomm_slow", side=None, aliases=("host:h4", "rank:35"))
    assert score(late, 1, [named]).hits[0].class_right


def test_incident_is_told_in_the_time_of_its_scenario() -> None:
    named = named_of(incident(opened_ns=3_000_000_000), start_ns=1_000_000_000)
    assert (named.component, named.side, named.opened_s, named.grade) == ("nic:h3/eth1", "tx", 2.0, "isolate")
    assert named.ambiguous_with == ("link:h3/eth1--leaf1",)


def test_every_family_has_twenty_runs_at_its_own_size_and_fewer_at_larger_ones() -> None:
    runs = {(size, family): 0 for size in (64, 512, 4_096) for family in family_names()}
    families = {scenario.name: scenario.family for scenario in list_scenarios()}
    for case in plan_cases(full=False):
        runs[64 if case.ranks < 512 else case.ranks, families[case.scenario]] += 1
    assert {runs[64, family] for family in family_names()} == {20}
    assert runs[512, "nic-tx"] == 5
    assert runs[4_096, "nic-tx"] == 1
    assert runs[512, "testbed-nic-tx"] == 0, "the testbed has as many ranks as one machine can run"


def test_no_seed_for_tuning_is_ever_scored() -> None:
    assert min(case.seed for full in (False, True) for case in plan_cases(full)) == FIRST_SEED > 99


def test_variants_of_a_family_take_turns() -> None:
    told = [case.scenario for case in plan_cases(False, ["nic-tx"]) if case.ranks == 64]
    assert set(told) == {scenario.name for scenario in list_scenarios() if scenario.family == "nic-tx"}
    assert told[0] == told[6] != told[1]


def test_full_table_has_every_variant_with_every_seed() -> None:
    cases = [case for case in plan_cases(True, ["nic-tx"]) if case.ranks == 64]
    assert len(cases) == len(set(cases)) == 6 * 20


def test_seeds_that_are_asked_for_replace_all_others() -> None:
    assert plan_cases(False, ["healthy"], [3, 4]) == [Case("healthy", 64, 3), Case("healthy", 64, 4)]


@pytest.mark.parametrize(
    ("scenario", "group"),
    [
        ("nic-tx-strong-ib", "single strong"),
        ("nic-tx-mild-ib", "hard"),
        ("nic-tx-healthy-ib", "silence"),
        ("two-faults-strong-socket", "hard"),
        ("two-faults-healthy-ib", "silence"),
        ("hang-absent-ib", "single strong"),
        ("moe-strong-ib", "silence"),
    ],
)
def test_scenarios_are_counted_under_what_they_ask(scenario: str, group: str) -> None:
    assert group_of(find_scenario(scenario)) == group


def test_hard_families_are_there_and_have_their_reason() -> None:
    assert set(HARD) <= set(family_names())
    assert all(HARD.values())


def test_large_jobs_are_sampled_and_keep_their_scenario() -> None:
    large = Case("nic-tx-strong-ib", 4_096, FIRST_SEED).tell()
    assert (large.ranks, large.telemetry.sample) == (4_096, 0.1)
    assert large.expect == find_scenario("nic-tx-strong-ib").expect
    assert Case("nic-tx-strong-ib", 64, FIRST_SEED).tell() == find_scenario("nic-tx-strong-ib")
