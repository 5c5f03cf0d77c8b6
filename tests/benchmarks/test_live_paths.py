"""What trials on the testbed gave is told with its floors and beside what chance gave."""

from benchmarks.live_paths import describe_cuts, describe_gloo, describe_loops, describe_pairs, describe_reroute
from tests.testbed.paths.flows import PlannedFlow
from tests.testbed.paths.gloo_reroute import Reroute
from tests.testbed.paths.gloo_trials import GlooRun
from tests.testbed.paths.results import CutTrial, Pair, PairedTrials, Round
from tests.testbed.paths.traffic import Rates
from tests.testbed_checks.paths.test_timeline import told


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


def test_step_times_of_gloo_are_told_side_by_side() -> None:
    (figure,) = describe_gloo([GlooRun(False, 1300.0), GlooRun(False, 1500.0), GlooRun(True, 640.0)])
    assert (figure.value, figure.reference) == (640.0, "ports by chance: 1400 ms (1300 to 1500)")


def test_a_slow_link_is_told_before_through_and_after() -> None:
    steps = (900.0, 660.0, 660.0, 2000.0, 3200.0, 3200.0, 1500.0, 670.0, 670.0)
    (figure,) = describe_reroute(Reroute("leaf0--spine0", steps, 3, 6, 2, 0.06))
    assert figure.value == 670.0
    assert figure.reference == "before 660 ms, through the slow link 3200 ms; moved in 0.06 s"


def test_loops_are_told_with_how_many_closed_and_how_soon() -> None:
    share, seconds, ratio = describe_loops([told(), told(heard="nobody said anything")])
    assert (share.value, seconds.value, ratio.value) == (0.5, 10.5, 1.0)
    assert seconds.reference == "planned after 8.0 s; slowest 10.5 s"
    assert ratio.reference == "through the slow link 4.00"


def test_loops_of_which_none_closed_have_no_times() -> None:
    (share,) = describe_loops([told(heard="nobody said anything")])
    assert share.value == 0.0
