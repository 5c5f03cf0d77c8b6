"""A flow gets the port that leads over its planned links, nobody else's, or a reason and a detail request."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.fabrics import fat_tree, leaf_spine
from lockstep.records import Path
from lockstep.topology import Link
from planner.paths.catalogue import Catalogue, Circumstances, LeftOut, build_catalogue
from planner.paths.health import Evidence, LinkHealth
from planner.paths.network import Network, build_network, with_rates, without
from planner.paths.planning import PathPlan, plan_paths
from planner.paths.ports import (
    PortChoice,
    SweepOptions,
    choose_ports,
    count_paths,
    count_ports,
    explain_ports,
    request_probes,
)
from planner.paths.report import all_links
from tests.builders import T0
from tests.planner.paths.build import PORT, answer, entry, flows_between, fold_probes, networks, some_flows

FABRIC = build_network(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2))


def plan(*pairs: tuple[str, str]) -> PathPlan:
    return plan_paths(FABRIC, flows_between(list(pairs)))


ONE, TWO, FOUR = (plan(*[("h0", "h2")] * count) for count in (1, 2, 4))
SPINE = all_links(ONE)[0][1].removeprefix("leaf0--")  # that the one flow is planned over
OTHER = {"spine0": "spine1", "spine1": "spine0"}[SPINE]


def choose(paths: list[Path], of: PathPlan = ONE, **fields: Any) -> list[PortChoice]:
    return choose_ports(of, Catalogue(tuple(paths)), **fields)


def has_all_ports(choices: list[PortChoice]) -> bool:
    return all(choice.port for choice in choices if choice.is_needed)


def left_out(why: str) -> Catalogue:
    return Catalogue(left_out=(LeftOut(entry(SPINE), why, f"it is {why}", T0),))  # type: ignore[arg-type]  # a parameter


def test_the_likeliest_port_that_leads_over_the_planned_links_is_chosen() -> None:
    (choice,) = choose([entry(OTHER), entry(SPINE, sport=PORT + 1)])
    assert (choice.flow, choice.port, choice.confidence, choice.why) == ("f0", PORT + 1, 0.9, "")
    assert choice.links == tuple(all_links(ONE)[0])
    assert choice.reason == "port 49153 was seen to take this path"
    (choice,) = choose([entry(SPINE, confidence=0.6), entry(SPINE, sport=PORT + 1, confidence=0.8)])
    assert choice.port == PORT + 1


def test_two_flows_never_share_a_port_also_of_two_protocols() -> None:
    both = [entry(spine, sport=PORT + index) for index, spine in enumerate(("spine0", "spine1"))]
    assert sorted(choice.port or 0 for choice in choose(both, TWO)) == [PORT, PORT + 1]
    assert [choice.why for choice in choose(both, FOUR)].count("taken") == 2
    known = [entry(SPINE, proto=proto) for proto in ("udp", "roce")]
    assert sum(choice.port is not None for choice in choose(known, FOUR)) == 1


def test_a_flow_keeps_a_port_that_leads_over_its_links_although_others_chose_before() -> None:
    known = [entry(SPINE, confidence=0.99), entry(SPINE, sport=PORT + 1)]
    (choice,) = choose(known, held={"f0": PORT + 1})
    assert choice.port == PORT + 1
    known = [entry(spine, sport=PORT + index) for spine in ("spine0", "spine1") for index in range(2)]
    held = {choice.flow: choice.port for choice in choose(known, FOUR) if choice.port}
    last = {flow: held[flow] for flow in sorted(held)[-1:]}
    kept = {choice.flow: choice.port for choice in choose(known, FOUR, held=last)}
    assert all(kept[flow] == sport for flow, sport in last.items())
    first, second = choose(known, TWO, held={"f1": PORT})
    assert (first.port, second.port) == (PORT + 1, PORT)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"confidence": 0.4}, "doubtful"),
        ({"sport": 40_000}, "doubtful"),
        ({"dport": 99}, "unmet"),
        ({"proto": "tcp"}, "doubtful"),
        ({"dst": "h3"}, "unprobed"),
        ({"proto": "udp"}, ""),  # to the port of RoCE it is hashed as RoCE
    ],
)
def test_ports_that_do_not_fit_are_not_chosen(fields: dict[str, Any], why: str) -> None:
    (choice,) = choose([entry(SPINE, **fields)])
    assert (choice.port, choice.why) == (None if why else PORT, why)


def test_a_path_whose_ports_left_the_catalogue_is_told_with_their_reason() -> None:
    for why in ("dead", "lossy", "changed", "old"):
        (choice,) = choose_ports(ONE, left_out(why))
        assert (choice.port, choice.why, choice.reason) == (None, why, f"it is {why}")


def test_the_share_of_flows_with_a_port_is_told_with_the_reasons() -> None:
    both = [entry("spine0"), entry("spine1", sport=PORT + 1)]
    assert explain_ports(choose(both, plan(("h0", "h2"), ("h1", "h3"), ("h0", "h1"))))[0].startswith("1 of 2 flows")
    lines = explain_ports(choose(both, TWO))
    assert lines == ["2 of 2 flows have a port for their planned path"]
    assert explain_ports(choose([], TWO))[1] == "2 flows have none: their NICs have not been probed yet"


def test_flows_without_a_port_become_detail_requests_for_probes() -> None:
    (request,) = request_probes(TWO, choose([], TWO), Catalogue())
    named = {"src_nic": "eth0", "dst": "h2", "dst_nic": "eth0", "proto": "roce", "dport": 4791}
    assert request.src == "h0"
    assert request.details == {**named, "sport": PORT, "ports": count_ports(2)}, "what a collector reads"
    (request,) = request_probes(FOUR, choose([], FOUR), Catalogue())
    assert request.ports == 2 * count_ports(2), "more flows than paths need more ports"
    known = Catalogue((entry(SPINE),))
    assert request_probes(ONE, choose_ports(ONE, known), known) == []


def test_detail_requests_are_bounded_and_begin_with_what_was_never_probed() -> None:
    known = Catalogue((entry("spine0", sport=PORT), entry("spine1", sport=PORT + 1)))
    wanted = plan(*[("h0", "h2")] * 4, ("h1", "h3"))
    requests = request_probes(wanted, choose_ports(wanted, known), known, SweepOptions(most_probes=11))
    assert [(request.src, request.ports) for request in requests] == [("h1", count_ports(2)), ("h0", 3)]


@given(networks(), st.integers(0, 9))
def test_links_are_those_of_the_plan_on_any_fabric(network: Network, seed: int) -> None:
    wanted = plan_paths(network, some_flows(network, 12, seed))
    choices = choose_ports(wanted, Catalogue())
    assert [list(choice.links) for choice in choices] == all_links(wanted)
    assert {choice.flow for choice in choices if choice.why == "no path"} == set(wanted.unreachable)
    assert all(choice.src in network.ports and choice.dst in network.ports for choice in choices)


def test_after_a_link_died_every_flow_has_a_port_around_it() -> None:
    network = build_network(leaf_spine(hosts=8, nics_per_host=2, leaves=4, spines=4))
    flows = some_flows(network, 40, seed=2)
    before = plan_paths(network, flows)
    sweep = request_probes(before, choose_ports(before, Catalogue()), Catalogue(), SweepOptions(coverage=0.999999))
    known = build_catalogue(fold_probes(*answer(sweep, network, T0)), Circumstances(network.topology, T0))
    held = {choice.flow: choice.port for choice in choose_ports(before, known) if choice.port}

    died = Evidence(T0, "leaf0--spine0", "port leaf0/spine0", 0.0, "no carrier")
    health, (change,) = LinkHealth().observe([died], T0)
    after = plan_paths(with_rates(network, health.weights), flows, before)
    choices = choose_ports(after, known, held=held)

    assert change.link == "leaf0--spine0"
    assert has_all_ports(choices)
    assert all("leaf0--spine0" not in choice.links for choice in choices)
    stayed = [choice for choice, links in zip(choices, all_links(before), strict=True) if list(choice.links) == links]
    assert len(stayed) > len(flows) / 2
    assert all(choice.port == held[choice.flow] for choice in stayed if choice.is_needed)


@pytest.mark.parametrize("paths", [2, 16])
def test_so_many_ports_meet_all_paths_as_often_as_promised(paths: int) -> None:
    ports = count_ports(paths, coverage=0.99)
    rng = np.random.default_rng(5)
    trials = [len(np.unique(rng.integers(0, paths, ports))) == paths for _ in range(5000)]
    fewer = [len(np.unique(rng.integers(0, paths, ports * 2 // 3))) == paths for _ in range(5000)]
    assert np.mean(trials) > 0.985
    assert np.mean(fewer) < 0.98


@pytest.mark.parametrize(("known", "first"), [(PORT + 4, PORT + 5), (0xFFFF, PORT)])
def test_a_sweep_goes_on_behind_the_ports_that_are_known_and_begins_anew_at_their_end(known: int, first: int) -> None:
    seen = Catalogue((entry(OTHER, sport=known),))
    (request,) = request_probes(ONE, choose_ports(ONE, seen), seen)
    assert request.sport == first


def test_doubtful_ports_that_follow_each_other_are_probed_together() -> None:
    doubtful = (LeftOut(entry(SPINE, sport=PORT + each), "changed", "r", T0) for each in (0, 1, 2, 9))
    known = Catalogue(left_out=tuple(doubtful))
    requests = request_probes(ONE, choose_ports(ONE, known), known)
    assert [(request.sport, request.ports) for request in requests] == [(PORT, 3), (PORT + 9, 1)]


def test_paths_are_counted_over_links_that_carry_and_parallel_cables() -> None:
    tree = build_network(fat_tree(4))
    assert sorted(np.unique(count_paths(tree)).tolist()) == [2, 4]
    four = build_network(leaf_spine(hosts=8, nics_per_host=1, leaves=4, spines=4))
    cut = count_paths(without(four, ["leaf0--spine0"]))
    assert (cut[0, 1], cut[1, 2]) == (3, 4)
    more = (Link(id=f"more{leaf}", a=f"leaf{leaf}", b="spine0", gbps=400) for leaf in (0, 1))
    links = (*FABRIC.topology.links, *more)  # a second cable from leaf0 to spine0 and from leaf1 to spine0
    doubled = build_network(FABRIC.topology.model_copy(update={"links": links}))
    assert count_paths(doubled)[0, 1] == 2 * 2 + 1
    assert count_paths(without(doubled, ["more1"]))[0, 1] == 2 * 1 + 1
