"""A live connection moves to another spine while it sends, and neither end notices."""

from collections.abc import Iterator

import pytest

from tests.testbed.paths.bench import BenchOptions, PathBench
from tests.testbed.paths.flows import shift_by_a_leaf, ways_between
from tests.testbed.paths.translating import Direction, Translation
from tests.testbed.paths.trials import eight_hosts, open_bench

pytestmark = [pytest.mark.needs_root, pytest.mark.slow]


@pytest.fixture
def bench() -> Iterator[PathBench]:
    with open_bench(eight_hosts(), shift_by_a_leaf(eight_hosts())[:1], BenchOptions(most_mbps=160.0)) as opened:
        yield opened


def busy_spines(bench: PathBench, length: int) -> set[str]:
    """Return the spines that carry most of what the flow sends in a round."""
    before = bench.fabric.counters()
    bench.traffic.run_round(length)
    after = bench.fabric.counters()
    sent = {
        name: after["leaf0", name].tx_bytes - before["leaf0", name].tx_bytes
        for name in bench.fabric.plan.switches
        if ("leaf0", name) in after
    }
    return {name for name, count in sent.items() if count > length / 2}


def test_connection_moves_to_another_spine_and_back_while_it_sends(bench: PathBench) -> None:
    (flow,) = bench.flows
    bench.plan({flow: ways_between(bench.fabric.topology, "leaf0", "leaf1")[0]})
    bench.traffic.open([flow])
    sport = bench.traffic.wait_until_open().sports[flow]
    bench.traffic.run_round(1)
    assert busy_spines(bench, 1 << 20) == {"spine0"}

    (other, *_) = bench.finder.find(flow.src, flow.dst, flow.dport, ["leaf0--spine2"])
    with Translation(bench.fabric, Direction(flow.src, flow.dst, sport, flow.dport), other):
        assert busy_spines(bench, 1 << 20) == {"spine2"}
        assert bench.traffic.count().sports == {flow: sport}
    assert busy_spines(bench, 1 << 20) == {"spine0"}
