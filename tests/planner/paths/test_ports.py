"""A flow gets the port that leads over its planned links, nobody else's, or a reason and a wish."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.fabrics import leaf_spine
from lockstep.records import Path
from planner.paths.catalogue import Catalogue, Circumstances, LeftOut, build_catalogue
from planner.paths.health import Evidence, LinkHealth
from planner.paths.network import Network, build_network, with_rates, without
from planner.paths.plan_file import all_links
from planner.paths.planning import PathPlan, plan_paths
from planner.paths.ports import (
    PortChoice,
    PortOptions,
    choose_ports,
    explain_ports,
    share_with_port,
    wish_probes,
)
from planner.paths.routes import fold_probes
from planner.paths.sweeps import SweepOptions, count_ports
from tests.builders import T0
from tests.planner.paths.fabrics import flows_between, networks, some_flows
from tests.planner.paths.probed import PORT, answer, entry, packets

FABRIC = build_network(leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2))


def plan(*pairs: tuple[str, str]) -> PathPlan:
    return plan_paths(FABRIC, flows_between(list(pairs)))


ONE, TWO = plan(("h0", "h2")), plan(("h0", "h2"), ("h0", "h2"))
SPINE = all_links(ONE)[0][1].removeprefix("leaf0--")  # that the one flow is planned over
OTHER = {"spine0": "spine1", "spine1": "spine0"}[SPINE]


def choose(paths: list[Path], of: PathPlan = ONE, **fields: Any) -> list[PortChoice]:
    return choose_ports(of, Catalogue(tuple(paths)), **fields)


def left_out(why: str) -> Catalogue:
    return Catalogue(left_out=(LeftOut(entry(SPINE), why, f"it is {why}", T0),))  # type: ignore[arg-type]  # a parameter


def test_the_port_that_leads_over_the_planned_links_is_chosen() -> None:
    (choice,) = choose([entry(OTHER), entry(SPINE, sport=PORT + 1)])
    assert (choice.flow, choice.ports, choice.confidence, choice.why) == ("f0", (PORT + 1,), 0.9, "")
    assert choice.links == tuple(all_links(ONE)[0])
    assert choice.reason == "port 49153 was seen to take this road"


def test_the_likeliest_port_is_chosen() -> None:
    (choice,) = choose([entry(SPINE, confidence=0.6), entry(SPINE, sport=PORT + 1, confidence=0.8)])
    assert choice.ports == (PORT + 1,)


def test_two_flows_never_share_a_port() -> None:
    both = [entry(spine, sport=PORT + place) for place, spine in enumerate(("spine0", "spine1"))]
    assert sorted(choice.ports for choice in choose(both, TWO)) == [(PORT,), (PORT + 1,)]
    four = plan(*[("h0", "h2")] * 4)
    assert [choice.why for choice in choose(both, four)].count("taken") == 2


def test_a_flow_keeps_a_port_that_leads_over_its_links() -> None:
    known = [entry(SPINE, confidence=0.99), entry(SPINE, sport=PORT + 1)]
    (choice,) = choose(known, held={"f0": PORT + 1})
    assert choice.ports == (PORT + 1,)


def test_a_flow_keeps_its_port_although_others_chose_before() -> None:
    known = [entry(spine, sport=PORT + place) for spine in ("spine0", "spine1") for place in range(2)]
    four = plan(*[("h0", "h2")] * 4)
    held = {choice.flow: choice.ports[0] for choice in choose(known, four) if choice.ports}
    last = {flow: held[flow] for flow in sorted(held)[-1:]}
    kept = {choice.flow: choice.ports for choice in choose(known, four, held=last)}
    assert all(kept[flow] == (sport,) for flow, sport in last.items())


def test_a_port_that_another_flow_holds_is_not_given_away() -> None:
    known = [entry(spine, sport=port) for spine in ("spine0", "spine1") for port in (PORT, PORT + 1)]
    first, second = choose(known, TWO, held={"f1": PORT})
    assert (first.ports, second.ports) == ((PORT + 1,), (PORT,))


def test_a_port_that_two_protocols_know_is_one_port() -> None:
    known = [entry(SPINE, proto=proto) for proto in ("udp", "roce")]
    choices = choose(known, plan(*[("h0", "h2")] * 4))
    assert sum(bool(choice.ports) for choice in choices) == 1


def test_spare_ports_come_after_everybody_has_one() -> None:
    known = [entry(SPINE, sport=PORT + place, confidence=0.9 - place / 10) for place in range(3)]
    (choice,) = choose(known, options=PortOptions(most_ports=2))
    assert choice.ports == (PORT, PORT + 1)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"confidence": 0.4}, "doubtful"),
        ({"sport": 40_000}, "doubtful"),
        ({"dport": 99}, "unmet"),
        ({"proto": "tcp"}, "doubtful"),
        ({"dst": "h3"}, "unprobed"),
    ],
)
def test_ports_that_do_not_fit_are_not_chosen(fields: dict[str, Any], why: str) -> None:
    (choice,) = choose([entry(SPINE, **fields)])
    assert (choice.ports, choice.why) == ((), why)


def test_udp_to_the_port_of_roce_is_hashed_as_roce() -> None:
    assert choose([entry(SPINE, proto="udp")])[0].ports == (PORT,)


def test_a_flow_may_go_to_another_port() -> None:
    options = PortOptions(proto="tcp")
    (choice,) = choose([entry(SPINE, proto="tcp", dport=7000, sport=40_000)], options=options, dports={"f0": 7000})
    assert (choice.ports, choice.dport) == ((40_000,), 7000)


@pytest.mark.parametrize("why", ["dead", "lossy", "changed", "old"])
def test_a_road_whose_ports_left_the_catalogue_is_told_with_their_reason(why: str) -> None:
    (choice,) = choose_ports(ONE, left_out(why))
    assert (choice.ports, choice.why, choice.reason) == ((), why, f"it is {why}")


def test_inside_a_leaf_no_port_is_needed() -> None:
    (choice,) = choose([], plan(("h0", "h1")))
    assert (choice.why, choice.is_needed) == ("any", False)
    assert share_with_port([choice]) == 1.0


def test_without_a_way_no_port_is_needed() -> None:
    cut = without(FABRIC, ["leaf0--spine0", "leaf0--spine1"])
    (choice,) = choose_ports(plan_paths(cut, flows_between([("h0", "h2")])), Catalogue())
    assert choice.why == "no way"


def test_the_share_of_flows_with_a_port_is_told_with_the_reasons() -> None:
    both = [entry("spine0"), entry("spine1", sport=PORT + 1)]
    assert share_with_port(choose(both, plan(("h0", "h2"), ("h1", "h3"), ("h0", "h1")))) == 0.5
    lines = explain_ports(choose(both, TWO))
    assert lines == ["2 of 2 flows have a port for their planned road"]
    assert explain_ports(choose([], TWO))[1] == "2 flows have none: their NICs have not been probed yet"


def test_flows_without_a_port_become_wishes_for_probes() -> None:
    (wish,) = wish_probes(TWO, choose([], TWO), Catalogue())
    assert (wish.src, wish.dst, wish.sport) == ("h0", "h2", PORT)
    assert wish.ports == count_ports(2)


def test_more_flows_than_ways_need_more_ports() -> None:
    four = plan(*[("h0", "h2")] * 4)
    (wish,) = wish_probes(four, choose([], four), Catalogue())
    assert wish.ports == 2 * count_ports(2)


def test_a_doubtful_road_is_probed_again_at_the_same_port() -> None:
    known = left_out("changed")
    (wish,) = wish_probes(ONE, choose_ports(ONE, known), known)
    assert (wish.sport, wish.ports) == (PORT, 1)


def test_wishes_are_bounded_and_begin_with_what_was_never_probed() -> None:
    known = Catalogue((entry("spine0", sport=PORT), entry("spine1", sport=PORT + 1)))
    wanted = plan(*[("h0", "h2")] * 4, ("h1", "h3"))
    wishes = wish_probes(wanted, choose_ports(wanted, known), known, SweepOptions(most_probes=11))
    assert [(wish.src, wish.ports) for wish in wishes] == [("h1", count_ports(2)), ("h0", 3)]


def test_wishes_go_to_the_port_that_the_flow_goes_to() -> None:
    choices = choose([], TWO, dports={"f0": 7000, "f1": 7001}, options=PortOptions(proto="tcp"))
    wishes = wish_probes(TWO, choices, Catalogue(), SweepOptions(proto="tcp"))
    assert [(wish.proto, wish.dport, wish.sport) for wish in wishes] == [("tcp", 7000, 32_768), ("tcp", 7001, 32_768)]


def test_flows_with_a_port_wish_for_nothing() -> None:
    known = Catalogue((entry(SPINE),))
    assert wish_probes(ONE, choose_ports(ONE, known), known) == []


def test_wishes_that_come_true_give_every_flow_its_road() -> None:
    network = build_network(leaf_spine(hosts=8, nics_per_host=2, leaves=4, spines=4))
    wanted = plan_paths(network, some_flows(network, 40, seed=2))
    probes, known = answer([], network, T0), Catalogue()
    for turn in range(3):
        choices = choose_ports(wanted, known)
        probes += answer(wish_probes(wanted, choices, known, SweepOptions(coverage=0.999)), network, T0 + turn)
        known = build_catalogue(fold_probes(packets(*probes)), Circumstances(network.topology, T0 + turn))
    assert share_with_port(choose_ports(wanted, known)) == 1.0


@given(networks(), st.integers(0, 9))
def test_links_are_those_of_the_plan_on_any_fabric(network: Network, seed: int) -> None:
    wanted = plan_paths(network, some_flows(network, 12, seed))
    choices = choose_ports(wanted, Catalogue())
    assert [list(choice.links) for choice in choices] == all_links(wanted)
    assert {choice.flow for choice in choices if choice.why == "no way"} == set(wanted.unreachable)
    assert all(choice.src in network.ports and choice.dst in network.ports for choice in choices)


def test_after_a_link_died_every_flow_has_a_port_around_it() -> None:
    network = build_network(leaf_spine(hosts=8, nics_per_host=2, leaves=4, spines=4))
    flows = some_flows(network, 40, seed=2)
    before = plan_paths(network, flows)
    sweep = wish_probes(before, choose_ports(before, Catalogue()), Catalogue(), SweepOptions(coverage=0.999999))
    known = build_catalogue(fold_probes(packets(*answer(sweep, network, T0))), Circumstances(network.topology, T0))
    held = {choice.flow: choice.ports[0] for choice in choose_ports(before, known) if choice.ports}

    died = Evidence(T0, "leaf0--spine0", "port leaf0/spine0", 0.0, "no carrier")
    health, (change,) = LinkHealth().observe([died], T0)
    after = plan_paths(with_rates(network, health.weights), flows, before)
    choices = choose_ports(after, known, held=held)

    assert change.link == "leaf0--spine0"
    assert share_with_port(choices) == 1.0
    assert all("leaf0--spine0" not in choice.links for choice in choices)
    stayed = [choice for choice, links in zip(choices, all_links(before), strict=True) if list(choice.links) == links]
    assert len(stayed) > len(flows) / 2
    assert all(choice.ports == (held[choice.flow],) for choice in stayed if choice.is_needed)
