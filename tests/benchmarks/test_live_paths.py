"""What trials on the testbed gave is told with its floors and beside what chance gave."""

from collections import Counter

import pytest

from benchmarks.live_paths import describe_cuts, describe_gloo, describe_loops, describe_pairs, describe_reroute
from lockstep.topology import Topology
from tests.testbed.paths.flows import PlannedFlow, plan_by_lockstep, shift_by_a_leaf, without
from tests.testbed.paths.gloo_trials import GlooRun, Reroute
from tests.testbed.paths.traffic import Rates
from tests.testbed.paths.trials import CutTrial, Pair, PairedTrials, Round, eight_hosts, sixteen_hosts
from tests.testbed_checks.test_timeline import told


def rates(*mbps: float) -> Rates:
    ends = (("h0", "eth0"), ("h1", "eth0"))
    return Rates({PlannedFlow(*ends, lane): rate for lane, rate in enumerate(mbps)})


def cut(is_dynamic: bool, share: float) -> CutTrial:
    return CutTrial("leaf0--spine0", is_dynamic, 0.97, tuple(Round(n, 1.0, share) for n in (1.0, 2.0)), 2, 0.3)


def test_pairs_meet_the_floor_or_not() -> None:
    by_chance, planned = rates(5.0, 15.0), rates(9.7, 9.7)
    figures = list(describe_pairs(PairedTrials(8, 2, 10.0, (Pair(by_chance, planned, 1.0),))))
    assert [figure.met for figure in figures] == [True, True, None, None]
    assert round(figures[1].value, 2) == 1.94
    assert "random ports: 1.000" in figures[0].reference


def test_a_plan_that_follows_is_told_beside_one_that_stays() -> None:
    share, seconds = describe_cuts(8, [(cut(False, 0.7), cut(True, 0.96))])
    assert (share.value, share.met, share.reference) == (0.96, True, "static plan: 0.700")
    assert seconds.reference == "1 of 1; static: 0"


def test_step_times_of_gloo_are_told_beside_chance_and_through_a_slow_link() -> None:
    (figure,) = describe_gloo([GlooRun(False, 1300.0), GlooRun(False, 1500.0), GlooRun(True, 640.0)])
    assert (figure.value, figure.reference) == (640.0, "ports by chance: 1400 ms (1300 to 1500)")
    steps = (900.0, 660.0, 660.0, 2000.0, 3200.0, 3200.0, 1500.0, 670.0, 670.0)
    (figure,) = describe_reroute(Reroute("leaf0--spine0", steps, 3, 6, 2, 0.06))
    assert figure.value == 670.0
    assert figure.reference == "before 660 ms, through the slow link 3200 ms; moved in 0.06 s"


def test_loops_are_told_with_how_many_closed_and_how_soon() -> None:
    share, seconds, ratio = describe_loops([told(), told(heard="nobody said anything")])
    assert (share.value, seconds.value, ratio.value) == (0.5, 10.5, 1.0)
    assert seconds.reference == "planned after 8.0 s; slowest 10.5 s"
    assert ratio.reference == "through the slow link 4.00"
    (share,) = describe_loops([told(heard="nobody said anything")])
    assert share.value == 0.0


@pytest.mark.parametrize("topology", [eight_hosts(), sixteen_hosts()])
@pytest.mark.parametrize(("per_pair", "dead", "most"), [(1, [], 1), (3, [], 3), (3, ["leaf0--spine1"], 4)])
def test_lockstep_gives_no_link_more_flows_than_it_must_and_moves_only_those_on_a_dead_one(
    topology: Topology, per_pair: int, dead: list[str], most: int
) -> None:
    flows = shift_by_a_leaf(topology, per_pair)
    before = plan_by_lockstep(topology, flows, {})
    after = plan_by_lockstep(without(topology, dead), flows, before)

    inner = [[link for link in way if "/" not in link] for way in after.values()]
    load = Counter(place for way in inner for place in zip(("up", "down"), way, strict=True))
    assert max(load.values()) == most
    one_way = shift_by_a_leaf(topology, per_pair, is_one_directional=True)
    before = plan_by_lockstep(topology, one_way, {})
    after = plan_by_lockstep(without(topology, dead), one_way, before)
    moved = {flow for flow in one_way if after[flow] != before[flow]}
    assert moved == {flow for flow in one_way if set(before[flow]) & set(dead)}
    assert len(moved) == (3 if dead else 0)


def test_fabric_has_recovered_when_the_last_flow_was_moved_and_a_good_round_begins() -> None:
    def trial(decided_s: float | None, *rounds: tuple[float, float]) -> CutTrial:
        ended = tuple(Round(end_s, 0.5 / share, share) for end_s, share in rounds)  # an ideal one takes half a second
        return CutTrial("leaf0--spine0", True, 1.0, ended, 0, decided_s)

    assert trial(None, (1.0, 0.5), (1.6, 0.95), (2.1, 1.0)).recovered_s == pytest.approx(1.6 - 0.5 / 0.95)
    assert trial(0.4, (0.5, 1.0), (1.0, 1.0)).recovered_s == pytest.approx(0.4)
    assert trial(None, (1.0, 0.5), (2.0, 0.7)).recovered_s is None
    assert trial(None, (1.0, 0.1), (2.0, 0.2), (3.0, 0.8), (4.0, 0.9)).after == pytest.approx(0.85)
