"""On a real fabric, unmodified senders and jobs take exactly the planned spines, and leave links that are ill."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lockstep.host_paths import read_plan, read_reports
from lockstep.topology import Topology, TopologyIndex
from tests.testbed.fabric.fabric import Flow
from tests.testbed.paths.cut_trials import CutOptions, LinkCut, run_cuts
from tests.testbed.paths.flows import FlowLinks, PlannedFlow, paths_between, plan_by_lockstep, shift_by_a_leaf
from tests.testbed.paths.gloo_trials import GlooOptions, run_gloo
from tests.testbed.paths.loop import LoopOptions, run_loop
from tests.testbed.paths.timeline import describe
from tests.testbed.paths.translating import Direction, Translation
from tests.testbed.paths.trials import BenchOptions, PathBench, TrialOptions, eight_hosts, open_bench, run_pairs

pytestmark = [pytest.mark.slow, pytest.mark.needs_root]
QUICK = TrialOptions(pairs=1, settle_s=0.5, measure_s=1.0)
DEAD = "leaf0--spine1"


def spread(topology: Topology, flows: Sequence[PlannedFlow], before: FlowLinks) -> dict[PlannedFlow, tuple[str, ...]]:
    """A planner for tests: each flow on the least loaded way that is up, and what has a good way keeps it."""
    index, alive = TopologyIndex(topology), {link.id for link in topology.links if link.up}
    planned = {flow: tuple(before[flow]) for flow in flows if flow in before and set(before[flow]) <= alive}
    load = Counter(place for flow, way in planned.items() for place in _places(flow, way))
    for flow in flows:
        if flow not in planned:
            choices = paths_between(topology, str(index.leaf_of(*flow.src)), str(index.leaf_of(*flow.dst)))
            planned[flow] = min(choices, key=lambda way: [load[place] for place in _places(flow, way)])
            load.update(_places(flow, planned[flow]))
    return planned


def _places(flow: PlannedFlow, way: Sequence[str]) -> list[tuple[str, ...]]:
    """Return what a flow takes room on, the scarcest first: links with a direction, and a host's share of them."""
    up, down = way
    return [("up", up), ("down", down), ("up", up, flow.src[0]), ("down", down, flow.dst[0])]


@pytest.fixture(scope="module")
def bench() -> Iterator[PathBench]:
    with open_bench(eight_hosts(), shift_by_a_leaf(eight_hosts()), BenchOptions(most_mbps=160.0)) as opened:
        yield opened


def true_path(bench: PathBench, flow: PlannedFlow, sport: int) -> tuple[str, ...]:
    return bench.fabric.route_of(flow.src, flow.dst, Flow("tcp", sport, flow.dport))


def test_probes_see_the_ways_that_the_kernels_take(bench: PathBench) -> None:
    flow = bench.flows[0]
    ports = [(sport, flow.dport) for sport in range(40_000, 40_064)]
    seen = bench.prober.find_paths(flow.src, flow.dst, ports)

    assert seen == {(sport, dport): true_path(bench, flow, sport) for sport, dport in ports}
    assert len(set(seen.values())) == 4


def test_planned_flows_take_exactly_the_planned_links_and_others_the_kernels_ports(bench: PathBench) -> None:
    ways = spread(bench.fabric.topology, bench.flows, {})
    bench.plan(ways)
    before = bench.fabric.counters()
    bench.traffic.open(bench.flows)
    sports = bench.traffic.wait_until_open().sports
    carried = bench.traffic.measure(1.0)
    bench.traffic.close()
    after = bench.fabric.counters()

    for flow, way in ways.items():
        assert true_path(bench, flow, sports[flow])[1:-1] == tuple(way)
    assert bench.enforced_share() == 1.0
    assert bench.sports() == sports
    sent = {
        (leaf, f"spine{spine}"): after[leaf, f"spine{spine}"].tx_bytes - before[leaf, f"spine{spine}"].tx_bytes
        for leaf in ("leaf0", "leaf1")
        for spine in range(4)
    }
    one_flow = carried.aggregate_mbps / len(ways) * 1e6 / 8  # bytes a second, and all flows sent longer than that
    assert min(sent.values()) > 0.5 * one_flow, sent

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
    whole = {sport: true_path(bench, flow, sport) for sport in ports}
    with LinkCut(bench.fabric, "leaf1--spine2", withdraw_s=0.0) as cut:
        cut.cut()
        cut.withdraw()
        around = {sport: true_path(bench, flow, sport) for sport in ports}

    assert any("leaf1--spine2" in way for way in whole.values())
    assert not any("spine2" in link for way in around.values() for link in way)
    assert {sport: true_path(bench, flow, sport) for sport in ports} == whole


def test_live_connection_moves_to_another_spine_and_back_while_it_sends(bench: PathBench) -> None:
    flow, length = bench.flows[0], 1 << 20

    def busy_spines() -> set[str]:
        """Return the spines that carry most of what the flow sends in a round."""
        before = bench.fabric.counters()
        bench.traffic.run_round(length)
        after = bench.fabric.counters()
        ports = [("leaf0", f"spine{number}") for number in range(4)]
        return {name[1] for name in ports if after[name].tx_bytes - before[name].tx_bytes > length / 2}

    bench.plan({flow: paths_between(bench.fabric.topology, "leaf0", "leaf1")[0]})
    bench.traffic.open([flow])
    sport = bench.traffic.wait_until_open().sports[flow]
    bench.traffic.run_round(1)
    assert busy_spines() == {"spine0"}
    (other, *_) = bench.finder.find(flow.src, flow.dst, flow.dport, ["leaf0--spine2"])
    with Translation(bench.fabric, Direction(flow.src, flow.dst, sport, flow.dport), other):
        assert busy_spines() == {"spine2"}
        assert bench.traffic.count().sports == {flow: sport}
    assert busy_spines() == {"spine0"}
    bench.traffic.close()


@pytest.mark.long
def test_pair_of_trials_gives_rates_of_all_flows() -> None:
    told = run_pairs(eight_hosts(), spread, QUICK)

    (pair,) = told.pairs
    assert (told.hosts, told.flows, pair.enforced) == (8, 8, 1.0)
    assert pair.random.worst_mbps > 0
    assert pair.planned.worst_mbps > 0.5 * told.single_mbps  # two flows on one link would have less


def test_plan_that_follows_a_cut_moves_flows_off_the_dead_link() -> None:
    ((static, dynamic),) = run_cuts(eight_hosts(), spread, [DEAD], CutOptions(QUICK, rounds_before=2, watch_s=3.0))
    assert (static.moved, static.decided_s) == (0, None)
    assert dynamic.moved >= 1  # three were on the link, and the switch may have brought some where they shall be
    assert dynamic.decided_s is not None
    assert dynamic.after > 0.7  # four flows a link; six would give 0.67


def test_connections_of_an_unmodified_job_get_planned_ports(tmp_path: Path) -> None:
    runs = run_gloo(plan_by_lockstep, tmp_path, GlooOptions(steps=3, skipped=1, bytes=1 << 18, runs=1))

    planned, plain = sorted(runs, key=lambda run: not run.is_planned)
    assert planned.enforced >= 8  # a pair of ranks each, and some meet at the store besides
    assert planned.refused == 0
    assert (plain.enforced, plain.refused) == (0, 0)


def test_job_leaves_a_link_that_the_analyzer_names_and_is_fast_again(tmp_path: Path) -> None:
    told = run_loop(tmp_path / "loop", LoopOptions(), note=print)

    print(*describe(told), sep="\n")
    assert told.incident is not None
    assert told.plan is not None
    assert told.plan.weights[told.link.removeprefix("link:")] < 0.5
    assert told.moved >= 2
    assert told.slow_s is not None
    assert told.slow_s > 2 * told.usual_s
    assert told.is_closed


@pytest.mark.long
def test_link_that_still_carries_more_than_the_job_needs_is_not_left(tmp_path: Path) -> None:
    told = run_loop(tmp_path / "loop", LoopOptions(share=0.9, watch_s=20.0, after_s=0.0), note=print)

    print(*describe(told), sep="\n")
    assert (told.incident, told.plan, told.moved) == (None, None, 0)
