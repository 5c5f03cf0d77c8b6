"""On a real fabric of namespaces, unmodified senders with the shim take exactly the planned spines."""

from collections.abc import Iterator

import pytest

from lockstep.path_file import read_plan, read_reports
from tests.testbed.fabric.oracle import Flow
from tests.testbed.paths.bench import BenchOptions, PathBench
from tests.testbed.paths.cut_trials import CutOptions, run_cuts
from tests.testbed.paths.cutting import LinkCut
from tests.testbed.paths.flows import PlannedFlow, shift_by_a_leaf
from tests.testbed.paths.trials import TrialOptions, eight_hosts, open_bench, run_pairs
from tests.testbed_checks.paths.spreading import spread

pytestmark = [pytest.mark.slow, pytest.mark.needs_root]
QUICK = TrialOptions(pairs=1, settle_s=0.5, measure_s=1.0)


@pytest.fixture(scope="module")
def bench() -> Iterator[PathBench]:
    with open_bench(eight_hosts(), shift_by_a_leaf(eight_hosts()), BenchOptions(most_mbps=160.0)) as opened:
        yield opened


def true_way(bench: PathBench, flow: PlannedFlow, sport: int) -> tuple[str, ...]:
    """Return the links of a flow as the kernels of the switches tell them."""
    return bench.fabric.route_of(flow.src, flow.dst, Flow("tcp", sport, flow.dport))


def test_probes_see_the_ways_that_the_kernels_take(bench: PathBench) -> None:
    flow = bench.flows[0]
    ports = [(sport, flow.dport) for sport in range(40_000, 40_064)]
    seen = bench.prober.find_paths(flow.src, flow.dst, ports)

    assert len(seen) == len(ports)
    assert {sport: way for (sport, _), way in seen.items()} == {
        sport: true_way(bench, flow, sport) for sport, _ in ports
    }
    assert len(set(seen.values())) == 4


def test_planned_flows_take_exactly_the_planned_links(bench: PathBench) -> None:
    ways = spread(bench.fabric.topology, bench.flows, {})
    bench.plan(ways)
    before = bench.fabric.counters()
    bench.traffic.open(bench.flows)
    sports = bench.traffic.wait_until_open().sports
    carried = bench.traffic.measure(1.0)
    bench.traffic.close()
    after = bench.fabric.counters()

    for flow, way in ways.items():
        assert true_way(bench, flow, sports[flow])[1:-1] == tuple(way)
    assert bench.enforced_share() == 1.0
    assert bench.sports() == sports
    sent = {
        (leaf, f"spine{spine}"): after[leaf, f"spine{spine}"].tx_bytes - before[leaf, f"spine{spine}"].tx_bytes
        for leaf in ("leaf0", "leaf1")
        for spine in range(4)
    }
    one_flow = carried.aggregate_mbps / len(ways) * 1e6 / 8  # bytes a second, and all flows sent longer than that
    assert min(sent.values()) > 0.5 * one_flow, sent


def test_without_a_plan_the_same_senders_have_ports_of_the_kernel(bench: PathBench) -> None:
    bench.forget_plan()
    reports = len(list(read_reports(bench.files.reports)))
    bench.traffic.open(bench.flows)
    sports = bench.traffic.wait_until_open().sports
    bench.traffic.close()

    assert read_plan(bench.files.plan) is None
    assert min(sports.values()) >= 32_768  # net.ipv4.ip_local_port_range
    assert len(list(read_reports(bench.files.reports))) == reports


def test_cut_link_is_routed_around_and_comes_back(bench: PathBench) -> None:
    flow = bench.flows[0]
    ports = range(41_000, 41_032)
    whole = {sport: true_way(bench, flow, sport) for sport in ports}
    with LinkCut(bench.fabric, "leaf1--spine2", withdraw_s=0.0) as cut:
        cut.cut()
        cut.withdraw()
        around = {sport: true_way(bench, flow, sport) for sport in ports}

    assert any("leaf1--spine2" in way for way in whole.values())
    assert not any("spine2" in link for way in around.values() for link in way)
    assert {sport: true_way(bench, flow, sport) for sport in ports} == whole


def test_pair_of_trials_gives_rates_of_all_flows() -> None:
    told = run_pairs(eight_hosts(), spread, QUICK)

    (pair,) = told.pairs
    assert (told.hosts, told.flows, pair.enforced) == (8, 8, 1.0)
    assert pair.random.worst_mbps > 0
    assert pair.planned.worst_mbps > 0.5 * told.single_mbps  # two flows on one link would have less


def test_plan_that_follows_a_cut_moves_flows_off_the_dead_link() -> None:
    ((static, dynamic),) = run_cuts(
        eight_hosts(), spread, ["leaf0--spine1"], CutOptions(QUICK, rounds_before=2, watch_s=3.0)
    )
    assert (static.moved, static.decided_s) == (0, None)
    assert dynamic.moved >= 1  # three were on the link, and the switch may have brought some where they shall be
    assert dynamic.decided_s is not None
    assert dynamic.after > 0.7  # four flows a link; six would give 0.67
