"""Worlds are the same each time, the chain lets through what it says, and truth knows what nobody can see."""

from dataclasses import replace
from functools import cache
from typing import Any  # fields of scenarios

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.accuracy_faults import KINDS, Chain
from benchmarks.accuracy_score import Hit, Named, Score, score
from benchmarks.accuracy_table import figures_of_worlds
from benchmarks.accuracy_truth import Facts, Step, find_truth, find_twins
from benchmarks.accuracy_worlds import World, draw_world
from lockstep.verdict import Side
from simulator.faults import parse_fault
from simulator.network import Network
from simulator.rows import Identity
from simulator.scenario import Expectation, build_topology
from simulator.simulation import Simulation
from simulator.telemetry import SimulatedTelemetry
from tests.builders import SECOND, T0
from tests.simulator.build import cluster, scenario

RING = frozenset((f"h{host}/eth{nic}", f"h{(host + 1) % 4}/eth{nic}") for host in range(4) for nic in range(2))
NAME = "nic:h1/eth0"


def test_world_is_the_same_however_many_are_drawn_and_in_which_order() -> None:
    draw = draw_world.__wrapped__
    forwards = [draw(3, number) for number in range(6)]
    assert [draw(3, number) for number in reversed(range(6))] == forwards[::-1]
    assert draw(4, 0) != forwards[0]


def test_worlds_span_what_was_asked_for() -> None:
    worlds = [draw_world(9, number) for number in range(91)]
    scenarios = [world.scenario for world in worlds]
    assert {world.kind for world in worlds} == set(KINDS)
    assert {each.cluster.nics_per_host for each in scenarios} == {1, 2, 4, 8}
    assert (min(each.duration_s for each in scenarios), max(each.ranks for each in scenarios)) == (2.0, 64)
    assert max(each.duration_s for each in scenarios) > 300
    assert any(fault.after_s == 0 for each in scenarios for fault in each.expect), "broken before the first row"
    assert any(len(world.chain.untold) == world.scenario.cluster.hosts for world in worlds), "nobody tells anything"
    assert all(any(getattr(world.chain, name) for world in worlds) for name in vars(worlds[0].chain))
    assert any(world.neighbour for world in worlds)


@cache
def recorded() -> dict[str, pa.Table]:
    """What three seconds of a healthy job leave in each table."""
    return dict(SimulatedTelemetry(Simulation(scenario(), 1), Identity("test", T0)).advance(T0 + 3 * SECOND))


def arrived(chain: Chain, name: str, *batches: pa.Table) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = pa.concat_tables([chain.pass_on(name, rows, T0) for rows in batches]).to_pylist()
    return rows


def test_what_arrives_does_not_depend_on_how_rows_are_cut_into_batches() -> None:
    rows = recorded()["collectives"]
    chain = Chain(seed=7, lost_rows=0.3, lost_batches=0.1, hole_every_s=1.5)
    whole = arrived(chain, "collectives", rows)
    assert whole == arrived(chain, "collectives", rows.slice(0, 40), rows.slice(40))
    assert 0.4 < len(whole) / rows.num_rows < 0.8
    unseen = [row for row in whole if row["untimed"]]
    assert unseen
    assert {(row["start_ns"], row["end_ns"], row["clock"]) for row in unseen} == {(None, None, "none")}


def test_hosts_end_unevenly_say_less_or_nothing_at_all() -> None:
    rows = recorded()["transfers"]
    chain = Chain(seed=7, ends_s={"h0": 1.0}, untold=frozenset({"h1"}), coarse=frozenset({"h2"}), fuses=True)
    there = arrived(chain, "transfers", rows)
    assert max(int(str(row["last_ns"])) for row in there if row["host"] == "h0") <= T0 + SECOND
    assert {row["host"] for row in there} == {"h0", "h2", "h3"}
    assert {row["wire_ns"] for row in there if row["host"] == "h2"} == {None}
    assert {row["nic"] for row in there} == {"eth0,eth1"}
    assert arrived(replace(chain, tables=frozenset({"transfers"})), "transfers", rows) == []


def slow_world(chain: Chain | None = None, at_s: float = 10.0, **fields: Any) -> World:
    """A NIC that sends slowly, in a capture of 30 s."""
    right = Expectation.model_validate(
        {"class": "comm_slow", "component": NAME, "side": "tx", "after_s": at_s, "within_s": 30.0}
    )
    told = scenario(parse_fault(f"at {at_s} s fail {NAME} tx to 50 %"), duration_s=30.0, expect=(right,), **fields)
    return World(told.model_copy(update={"family": "slow NIC"}), chain or Chain(seed=1), seed=1)


def steps(*lengths: float) -> list[Step]:
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    return [(end - length, length) for end, length in zip(ends, lengths, strict=True)]


HEALTHY = steps(*[1.0] * 30)
SLOW = steps(*[1.0] * 10, *[1.5] * 13)


def test_fault_that_costs_something_and_shows_is_to_be_found_by_all_its_names() -> None:
    known = find_truth(slow_world(), Facts(SLOW, HEALTHY, RING, stands_still=False))
    assert [fault.component for fault in known.expect] == [NAME]
    assert "link:h1/eth0--h2/eth0" in known.expect[0].also_right, "in a ring nobody can tell the two ends apart"
    meshed = RING | {("h1/eth0", "h3/eth0")}
    assert not find_truth(slow_world(), Facts(SLOW, HEALTHY, meshed, stands_still=False)).expect[0].also_right


@pytest.mark.parametrize(("beside", "allowed"), [(SLOW, ["job:neighbour"]), (HEALTHY, [])])
def test_job_beside_it_may_be_called_slower_where_its_steps_are(beside: list[Step], allowed: list[str]) -> None:
    known = find_truth(slow_world(), Facts(SLOW, HEALTHY, RING, stands_still=False, neighbour_steps=beside))
    assert [fault.component for fault in known.allowed] == allowed


def twins_of(part: str, side: Side | None = None, **shape: int) -> set[str]:
    """Return what cannot be told from a part while each host sends to the next, around."""
    place = cluster(nics_per_host=1, **shape)
    network, hosts = Network(build_topology(place), 1), np.arange(place.hosts)
    return set(find_twins(part, side, network, network.choose_paths(hosts, np.roll(hosts, -1), hosts)))


def test_parts_that_the_same_connections_cross_are_one_answer() -> None:
    alone = {"switch:leaf1", "nic:h1/eth0", "link:h1/eth0--leaf1", "link:leaf1--spine0", "host:h1"}
    for part in alone:
        assert twins_of(part, hosts_per_leaf=1, spines=1) == alone - {part}
    assert twins_of("switch:leaf0", spines=1) == set(), "with two hosts, what stays inside tells it from its uplink"
    sent = twins_of("nic:h1/eth0", "tx", hosts_per_leaf=1, spines=1)
    assert {"link:h1/eth0--h2/eth0", "nic:h2/eth0"} <= sent, "in a ring nobody can tell the two ends apart"
    assert twins_of("gpu:h1/0") == set()


@pytest.mark.parametrize(
    ("world", "became", "why"),
    [
        (slow_world(Chain(seed=1, untold=frozenset({"h1"}))), SLOW, "its host tells nothing"),
        (slow_world(Chain(seed=1, untold=frozenset({"h2", "h3"}))), SLOW, "half of the hosts tell nothing"),
        (slow_world(Chain(seed=1, coarse=frozenset({"h1"}))), SLOW, "its host records no waits"),
        (slow_world(Chain(seed=1, coarse=frozenset({"h0", "h3"}))), SLOW, "half of the hosts record no waits"),
        (slow_world(Chain(seed=1, tables=frozenset({"transfers", "transfer_stats"}))), SLOW, "no transfers"),
        (slow_world(), HEALTHY, "it costs 0.0% of a step"),
        (slow_world(), SLOW[:11], "before two steps after it"),
        (slow_world(at_s=0.0, cluster=cluster(hosts=2, hosts_per_leaf=1)), SLOW, "too few pairs"),
    ],
)
def test_silence_or_its_name_is_right_where_a_fault_is_unseen(world: World, became: list[Step], why: str) -> None:
    pairs = RING if world.scenario.cluster.hosts == 4 else frozenset({("h0/eth0", "h1/eth0"), ("h1/eth0", "h0/eth0")})
    known = find_truth(world, Facts(became, HEALTHY, pairs, stands_still=False))
    assert known.expect == ()
    assert why in known.why[0]
    told = world.scenario.model_copy(update={"expect": known.expect})
    said = [Named(NAME, "comm_slow", 20.0, 30.0), Named("gpu:h3/1", "noncomm_slow", 20.0, 30.0)]
    assert [one.component for one in score(told, 1, said, allowed=known.allowed).alarms] == ["gpu:h3/1"]


def test_each_world_that_went_wrong_is_listed_with_its_number() -> None:
    told = {"scenario": "world", "family": "slow NIC", "group": "hard", "ranks": 8, "seed": 1_000}
    right = Hit(Named(NAME, "comm_slow", 20.0, 30.0), True, True, 8.0, in_time=True)
    found = Score(**told, hits=(right,), fault_classes=("comm_slow",), world=1)  # type: ignore[arg-type]  # of a dict
    missed = Score(**told, missed=(NAME,), fault_classes=("comm_slow",), world=7)  # type: ignore[arg-type]
    figures = {figure.name: figure for figure in figures_of_worlds([found, found, found, missed])}
    assert figures["worlds: recall, part exact"].value == 75.0
    assert "95 % interval 30.1 to 95.4" in figures["worlds: recall, part exact"].reference
    assert figures["world 7 of seed 1000, slow NIC"].reference == f"missed {NAME}"
    assert [name for name in figures if name.startswith("world ")] == ["world 7 of seed 1000, slow NIC"]
