"""The budget bounds what a host sends, requests come first, and a round takes only the packets that it needs."""

import socket
from contextlib import closing

import pytest

from collector.probes.packets import Arrival, Flow
from collector.probes.paths import AddressBook, Atlas, FlowPath, PathCatalogue, PathFinder
from collector.probes.schedule import (
    MeshOptions,
    Outcome,
    PacketBudget,
    ProbeOrders,
    Round,
    Schedule,
    read_outcomes,
    shots_of,
)
from lockstep.fabrics import leaf_spine
from lockstep.probing import Mesh
from lockstep.topology import Topology
from tests.builders import SECOND, T0
from tests.collector.probes.test_detail_requests import every_address, request

FABRIC = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=2)


class Host:
    """h0 with all that it chooses its turns from."""

    def __init__(self, options: MeshOptions, topology: Topology = FABRIC, address: str = "127.0.0.1") -> None:
        book = AddressBook(topology, every_address(topology) | {"h0/eth0": address})
        self.orders = ProbeOrders("h0", topology, book)
        self.catalogue = PathCatalogue(fresh_s=600)
        atlas = Atlas("h0", PathFinder(topology, "h0"), book, self.catalogue)
        self.schedule = Schedule(atlas, Mesh(topology, "h0"), self.orders, options)


@pytest.mark.parametrize(
    "steps",
    [
        [(0, 10, True), (0, 1, False), (0.5, 5, True), (0.5, 1, False), (3600, 10, True), (3600, 1, False)],
        [(0, 10, True), (-3600, 1, False), (-3599, 10, True)],
        [(0, 30, True), (2, 1, False), (3, 10, True)],
    ],
    ids=["the rate, and one burst saved up", "a clock that is set back", "more than a burst is paid back"],
)
def test_budget_lets_the_rate_through(steps: list[tuple[float, int, bool]]) -> None:
    budget = PacketBudget(per_s=10, burst=10)
    for at_s, packets, is_granted in steps:
        budget.refill(T0 + round(at_s * SECOND))
        assert budget.take(packets) == is_granted


def test_mesh_stays_within_the_rate_leaves_no_pair_out_and_changes_its_ports_from_lap_to_lap() -> None:
    host = Host(MeshOptions(packets_per_s=20, ports=2))
    seconds = round(host.schedule.lap_s) + 1
    rounds = [each for second in range(seconds) for each in host.schedule.choose(T0 + second * SECOND)]
    assert {each.flow.dst for each in rounds} == {"h1", "h2", "h3"}
    assert sum(each.packets for each in rounds) <= 20 * seconds + 40
    host = Host(MeshOptions(packets_per_s=1000, ports=2), leaf_spine(hosts=2, nics_per_host=1, leaves=1, spines=1))
    laps = [host.schedule.choose(T0 + number * host.schedule.step_ns) for number in range(3)]
    ports = [tuple(each.flow.sport for each in lap) for lap in laps]
    assert len(set(ports)) == 3
    assert all(0xC000 <= sport < 0xC000 + 128 for pair in ports for sport in pair)


def test_step_is_long_enough_to_trace_every_flow_of_a_pair_and_a_thousand_hosts_take_seven_minutes() -> None:
    # Two ports of two protocols, each with one packet to the end and one to the spine that may be either.
    host = Host(MeshOptions(packets_per_s=20, ports=2, protos=("roce", "tcp")))
    assert host.schedule.step_ns == 8 * SECOND // 20
    topology = leaf_spine(hosts=1_000, nics_per_host=1, leaves=40, spines=2)
    assert Host(MeshOptions(packets_per_s=20), topology).schedule.lap_s == 390.0


def test_detail_requests_come_first_within_the_same_budget_and_a_pause_is_not_made_up_for() -> None:
    host = Host(MeshOptions(packets_per_s=10, is_on=False), address="127.0.0.1")
    host.orders.take_in([request(dst="h1", proto="roce", count=50)])
    first = host.schedule.choose(T0)
    second = host.schedule.choose(T0 + SECOND // 2)
    assert [len(first), len(second)] == [20, 5]  # one burst, then the rate; h1 is on the same leaf: one packet each
    meshed = Host(MeshOptions(packets_per_s=10))
    meshed.schedule.choose(T0)
    assert sum(each.packets for each in meshed.schedule.choose(T0 + 86_400 * SECOND)) <= 20


def test_only_tcp_without_a_live_socket_goes_to_the_host_and_a_fresh_path_is_not_asked_for_again() -> None:
    host = Host(MeshOptions(packets_per_s=100, is_on=False))
    with closing(socket.create_server(("127.0.0.1", 0))) as live:
        port = live.getsockname()[1]
        host.orders.take_in([request(dst="h2", sport=port)])
        (held,) = host.schedule.choose(T0)
    host.orders.take_in([request("free", dst="h2", sport=port)])
    (free,) = host.schedule.choose(T0)
    assert [(each.ends_at_host, each.end_ttl) for each in (held, free)] == [(False, 3), (True, 64)]
    for proto in ("udp", "roce"):
        host.orders.take_in([request(proto, dst="h2", proto=proto)])
        (unknown,) = host.schedule.choose(T0)
        assert (unknown.end_ttl, unknown.asked, unknown.packets) == (3, (2,), 2)
        host.catalogue.learn(unknown.flow, FlowPath(("leaf0", "spine1", "leaf1"), ("a", "b", "c", "d")), T0)
        host.orders.take_in([request(f"{proto} again", dst="h2", proto=proto)])
        assert [each.asked for each in host.schedule.choose(T0)] == [()]


def round_of(proto: str = "tcp", end_ttl: int = 64, asked: tuple[int, ...] = (2,)) -> Round:
    return Round(Flow("eth0", "h2", "eth0", proto, 1, 2), "10.0.0.1", "10.0.0.3", end_ttl, True, asked)


def test_each_packet_has_a_token_of_its_own_and_those_that_ran_out_name_the_switches_in_order() -> None:
    shots = shots_of([round_of(), round_of("roce", 3), round_of(asked=(2, 3, 4))], first_token=0xFFFF - 2)
    assert [shot.ttl for shot in shots] == [64, 2, 3, 2, 64, 2, 3, 4]
    assert len({shot.key for shot in shots}) == 8
    rounds = [round_of(), round_of("roce", 3)]
    spine, leaf = Arrival(T0, 5, "10.7.7.7", "expired"), Arrival(T0 + 1, 9, "10.8.8.8", "expired")
    outcomes = list(read_outcomes(rounds, [None, spine, leaf, spine]))  # the first round was not sent
    assert outcomes == [(rounds[1], Outcome(T0 + 1, 9, ("10.7.7.7", "10.8.8.8")))]


@pytest.mark.parametrize(
    ("each", "end", "expected"),
    [
        (round_of(), Arrival(T0, 50, "10.0.0.3", "reached"), 50),
        (round_of(), Arrival(T0, 50, "10.7.7.7", "refused"), None),
        (round_of(), Arrival(T0, 50, "10.7.7.7", "expired"), None),
        (round_of("roce", 3), Arrival(T0, 50, "10.7.7.7", "expired"), 50),
        (round_of("roce", 3), Arrival(T0, 50, "10.0.0.3", "reached"), 50),
        (round_of(), Arrival(T0), None),
    ],
    ids=["reset", "refused on the way", "lost in a loop", "last switch", "host after all", "nothing"],
)
def test_first_packet_decides_the_round_trip(each: Round, end: Arrival, expected: int | None) -> None:
    ((_, outcome),) = read_outcomes([each], [end, None])
    assert outcome.rtt_ns == expected
