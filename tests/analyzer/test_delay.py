"""A pair is slow when it needs much longer per byte than its own kind, and only then."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.delay import DelayMatrix, DelayOptions, build_matrix
from lockstep.fabrics import leaf_spine
from lockstep.topology import Link, Topology, TopologyIndex
from tests.analyzer.build import NS_PER_BYTE, Names, fabric, measured, mesh, ring, row, table

OPTIONS = DelayOptions()
QUICK = settings(max_examples=40, deadline=None)  # no deadline: machines that run tests differ
SLOW: Names = ("h3/eth1", "h4/eth1")


def build(rows: pa.Table, topology: TopologyIndex | None = None) -> DelayMatrix:
    matrix = build_matrix(rows, topology, OPTIONS)
    assert matrix is not None
    return matrix


def hot_pairs(matrix: DelayMatrix) -> set[tuple[str, str]]:
    return {(str(src), str(dst)) for (src, dst), hot in zip(matrix.pairs, matrix.hot, strict=True) if hot}


def ratio_of(matrix: DelayMatrix, pair: Names) -> float:
    names = [(str(src), str(dst)) for src, dst in matrix.pairs]
    return float(matrix.ratio[names.index(pair)])


def noisy(pairs: list[Names], spread: float, slow_times: float = 1.0) -> pa.Table:
    """Return rows whose wire times differ by chance; the seed makes it the same chance each time."""
    chance = np.random.default_rng(7).normal(1.0, spread, len(pairs))
    return table(
        row(pair, times * (slow_times if pair == SLOW else 1.0)) for pair, times in zip(pairs, chance, strict=True)
    )


def with_rates(topology: Topology, gbps: dict[str, float]) -> TopologyIndex:
    """Return the topology with other rates on the cables of some hosts."""

    def changed(link: Link) -> Link:
        return link.model_copy(update={"gbps": gbps.get(link.a.split("/")[0], link.gbps)})

    return TopologyIndex(topology.model_copy(update={"links": tuple(map(changed, topology.links))}))


def test_alike_pairs_are_all_normal() -> None:
    matrix = build(measured(ring()))
    assert not matrix.hot.any()
    assert matrix.ratio == pytest.approx(np.ones(32))
    assert matrix.ns_per_byte == pytest.approx(np.full(32, NS_PER_BYTE))


def test_pairs_that_differ_by_chance_are_all_normal() -> None:
    assert not build(noisy(ring(), 0.05)).hot.any()


def test_pair_at_twice_the_wire_time_is_slow_and_no_other() -> None:
    matrix = build(noisy(ring(), 0.02, slow_times=2.0))
    assert hot_pairs(matrix) == {SLOW}
    assert ratio_of(matrix, SLOW) == pytest.approx(2.0, rel=0.1)


@pytest.mark.parametrize(("times", "slow"), [(1.2, False), (1.3, True)])
def test_pair_must_be_slow_enough_to_matter_even_in_a_quiet_cluster(times: float, slow: bool) -> None:
    matrix = build(measured(ring(), lambda *pair: pair == SLOW, times))
    assert ratio_of(matrix, SLOW) == pytest.approx(times)
    assert bool(matrix.hot.any()) is slow


def test_pair_must_stand_out_of_the_noise_even_when_it_is_slow_enough() -> None:
    matrix = build(noisy(ring(), 0.2, slow_times=1.5))
    assert ratio_of(matrix, SLOW) > OPTIONS.hot_ratio
    assert matrix.sigmas.max() < OPTIONS.hot_sigmas
    assert not matrix.hot.any()


def test_sigmas_are_counted_in_the_spread_between_pairs() -> None:
    times = [0.95, 0.95, 0.95, 1.0, 1.0, 1.05, 1.05, 1.05, 2.0]
    rows = table(row(pair, factor) for pair, factor in zip(ring(nics=2), times, strict=False))
    matrix = build(rows)
    spread = 1.4826 * np.median(np.abs(np.log(times)))
    assert matrix.sigmas == pytest.approx(np.log(times) / spread)


def test_hosts_with_slower_links_are_not_slow() -> None:
    """Four of sixteen hosts have links of 100 instead of 200 Gb/s, so all pairs with them need twice the time."""
    old = {f"h{host}" for host in range(4)}
    topology = leaf_spine(hosts=16, nics_per_host=1, leaves=4, spines=2)
    index = with_rates(topology, {f"h{host}": 100.0 if f"h{host}" in old else 200.0 for host in range(16)})
    rows = measured(mesh(hosts=16), lambda src, dst: bool({src.split("/")[0], dst.split("/")[0]} & old))
    assert build(rows).hot.any(), "without the topology the old hosts look slow"
    assert not build(rows, index).hot.any()


def test_slow_pair_is_found_among_links_of_mixed_speed() -> None:
    topology = leaf_spine(hosts=16, nics_per_host=1, leaves=4, spines=2)
    index = with_rates(topology, {f"h{host}": 100.0 for host in range(4)} | {"h9": 50.0})
    rates = {f"h{host}/eth0": 400.0 for host in range(16)} | {f"h{host}/eth0": 100.0 for host in range(4)}
    rates["h9/eth0"] = 50.0
    slow = ("h1/eth0", "h9/eth0")
    rows = table(
        row(pair, 400.0 / min(rates[pair[0]], rates[pair[1]]) * (2.0 if pair == slow else 1.0))
        for pair in mesh(hosts=16)
    )
    assert hot_pairs(build(rows, index)) == {slow}


def test_rate_of_an_unknown_nic_is_that_of_its_host() -> None:
    """The receiving NICs of two hosts are unknown, as when those hosts are silent; their links are slower."""
    old = {"h6", "h7"}
    topology = leaf_spine(hosts=8, nics_per_host=4, leaves=4, spines=2)
    index = with_rates(topology, dict.fromkeys(old, 100.0))
    pairs = [(src, dst.split("/")[0] if dst.split("/")[0] in old else dst) for src, dst in ring()]
    rows = table(row(pair, 4.0 if {pair[0].split("/")[0], pair[1].split("/")[0]} & old else 1.0) for pair in pairs)
    assert not build(rows, index).hot.any()


@pytest.mark.parametrize(("needs", "slow"), [(0.9, False), (1.1, True)])
def test_pair_that_needs_less_than_its_link_allows_is_not_slow_however_fast_the_others_are(
    needs: float, slow: bool
) -> None:
    """On sockets the kernel takes what its buffers hold at once: the others may need next to nothing."""
    index = with_rates(leaf_spine(hosts=8, nics_per_host=4, leaves=4, spines=2), {})  # 400 Gb/s: 0.02 ns a byte
    least = 8 / 400 / NS_PER_BYTE
    rows = table(row(pair, least * (needs if pair == SLOW else 0.01)) for pair in ring())
    assert hot_pairs(build(rows, index)) == ({SLOW} if slow else set())
    assert hot_pairs(build(rows)) == {SLOW}, "without a topology nobody knows what a link allows"


@pytest.mark.parametrize("known", [1, 7])
def test_topology_that_knows_only_some_hosts_makes_nobody_slow(known: int) -> None:
    index = TopologyIndex(leaf_spine(hosts=known, nics_per_host=1, leaves=1, spines=1))
    assert not build(measured(mesh(hosts=8)), index).hot.any()


def test_large_and_small_operations_are_compared_among_their_own() -> None:
    """A small operation needs ten times as long per byte, because of its latency."""
    small = [row(pair, 10.0, size_class=16, bytes=100_000) for pair in ring()]
    large = [row(pair, 1.0) for pair in ring()[:16]]
    matrix = build(table(small + large))
    assert not matrix.hot.any()
    assert matrix.ratio == pytest.approx(np.ones(32))


def test_transports_are_compared_among_their_own() -> None:
    sockets = [row((f"a{src}", f"a{dst}"), 20.0, transport="socket") for src, dst in mesh(hosts=4)]
    matrix = build(table([row(pair) for pair in ring()] + sockets))
    assert not matrix.hot.any()
    assert matrix.transports == {"ib", "socket"}


def test_unknown_transport_is_a_kind_of_its_own() -> None:
    unknown = [row((f"a{src}", f"a{dst}"), 20.0, transport=None) for src, dst in mesh(hosts=4)]
    matrix = build(table([row(pair) for pair in ring()] + unknown))
    assert not matrix.hot.any()
    assert matrix.transports == {"ib", None}


def test_size_classes_of_a_pair_are_pooled_by_their_bytes() -> None:
    """The pair is four times slower in a class that makes a quarter of its bytes."""
    rows = [row(pair, 4.0 if pair == SLOW else 1.0, size_class=20, bytes=1_000_000) for pair in ring()]
    rows += [row(pair, 1.0, size_class=21, bytes=3_000_000) for pair in ring()]
    matrix = build(table(rows))
    assert ratio_of(matrix, SLOW) == pytest.approx(4.0**0.25)
    assert matrix.ns_per_byte.max() == pytest.approx(NS_PER_BYTE * (4 + 3) / 4)


def test_ratio_is_held_against_the_usual_pair() -> None:
    """Of ten pairs four are slow in one size and four others in another, so that the usual pair is slow in one."""
    pairs = ring(hosts=10, nics=1)
    rows = [row(pair, 2.0 if number < 4 else 1.0, size_class=20) for number, pair in enumerate(pairs)]
    rows += [row(pair, 2.0 if 4 <= number < 8 else 1.0, size_class=21) for number, pair in enumerate(pairs)]
    assert build(table(rows)).ratio == pytest.approx([1.0] * 8 + [0.5**0.5] * 2)


def test_kind_that_too_few_pairs_carry_is_not_compared() -> None:
    """Of seven pairs with another size one would be judged by six; nobody else carries that size."""
    few = [row(pair, 3.0 if pair == SLOW else 1.0, size_class=12, bytes=10**12) for pair in ring()[12:19]]
    assert SLOW in ring()[12:19]
    matrix = build(table([row(pair) for pair in ring()] + few))
    assert not matrix.hot.any()
    assert ratio_of(matrix, SLOW) == pytest.approx(1.0)


@pytest.mark.parametrize("pairs", [0, 1, OPTIONS.min_pairs - 1])
def test_too_few_pairs_give_no_matrix(pairs: int) -> None:
    assert build_matrix(measured(ring()[:pairs]), None, OPTIONS) is None


def test_enough_pairs_give_a_matrix() -> None:
    assert len(build(measured(ring()[: OPTIONS.min_pairs])).pairs) == OPTIONS.min_pairs


@pytest.mark.parametrize("broken", [{"wire_ns": 0}, {"bytes": 0}, {"wire_ns": -1}])
def test_row_without_wire_time_or_bytes_is_not_compared(broken: dict[str, Any]) -> None:
    rows = [row(pair, **(broken if pair == SLOW else {})) for pair in ring()]
    matrix = build(table(rows))
    assert len(matrix.pairs) == 31
    assert not matrix.hot.any()
    assert np.isfinite(matrix.ratio).all()


def test_clock_too_coarse_for_most_pairs_does_not_make_the_others_slow() -> None:
    rows = [row(pair, **({} if number % 3 == 0 else {"wire_ns": 0})) for number, pair in enumerate(ring())]
    assert not build(table(rows)).hot.any()


def test_window_without_any_wire_time_gives_no_matrix() -> None:
    assert build_matrix(table(row(pair, wire_ns=0) for pair in ring()), None, OPTIONS) is None


def test_numbers_of_any_size_give_finite_ratios() -> None:
    rows = [row(pair, bytes=2**64 - 1, wire_ns=2**63 - 1) for pair in ring()]
    rows[0] |= {"bytes": 1}
    rows[1] |= {"wire_ns": 1}
    matrix = build(table(rows))
    assert np.isfinite(matrix.ratio).all()
    assert np.isfinite(matrix.sigmas).all()
    assert hot_pairs(matrix) == {ring()[0]}


def test_same_row_twice_is_one_pair() -> None:
    assert len(build(table([row(pair) for pair in ring()] * 2)).pairs) == 32


factors = st.lists(st.floats(0.5, 4.0), min_size=32, max_size=32)


@QUICK
@given(times=factors, scale=st.floats(0.01, 100.0))
def test_scaling_all_times_leaves_the_ratios_alone(times: list[float], scale: float) -> None:
    matrix, scaled = (
        build(table(row(pair, factor * by) for pair, factor in zip(ring(), times, strict=True)))
        for by in (1.0, scale)
    )
    assert scaled.ratio == pytest.approx(matrix.ratio, rel=1e-5)
    assert scaled.ns_per_byte == pytest.approx(matrix.ns_per_byte * scale, rel=1e-5)


@QUICK
@given(times=factors, order=st.permutations(range(32)))
def test_order_of_rows_changes_nothing(times: list[float], order: list[int]) -> None:
    rows = [row(pair, factor) for pair, factor in zip(ring(), times, strict=True)]
    matrix, shuffled = build(table(rows)), build(table(rows[number] for number in order))
    assert shuffled.pairs == tuple(matrix.pairs[number] for number in order)
    assert shuffled.ratio == pytest.approx(matrix.ratio[order])
    assert (shuffled.hot == matrix.hot[order]).all()


@QUICK
@given(times=factors, names=st.permutations([f"node-{number}" for number in range(8)]))
def test_renaming_hosts_changes_nothing_but_the_names(times: list[float], names: list[str]) -> None:
    rows = [row(pair, factor) for pair, factor in zip(ring(), times, strict=True)]
    new = {f"h{number}": name for number, name in enumerate(names)}
    renamed = [given | {end: new[given[end]] for end in ("src_host", "dst_host")} for given in rows]
    matrix, other = build(table(rows)), build(table(renamed))
    assert [(src.host, dst.host) for src, dst in other.pairs] == [
        (new[src.host], new[dst.host]) for src, dst in matrix.pairs
    ]
    assert (other.ratio == matrix.ratio).all()
    assert (other.hot == matrix.hot).all()


def test_fabric_of_the_stories_changes_no_ratio() -> None:
    """All its links are alike, so knowing them must make no difference."""
    rows = noisy(ring(), 0.02, slow_times=2.0)
    assert build(rows, fabric()).ratio == pytest.approx(build(rows).ratio)
