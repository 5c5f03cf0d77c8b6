"""A real fabric: packets take the ways of the topology, processes live on hosts, and the switches answer probes."""

import socket
import subprocess
from collections.abc import Iterator

import pytest

from lockstep.errors import BadInput, LockstepError
from lockstep.fabrics import FabricOptions, dual_plane, leaf_spine
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.options import ShapeOptions
from tests.testbed.fabric.oracle import Flow
from tests.testbed_checks.fabric.talking import can_talk, datagrams, find_answerers

pytestmark = pytest.mark.needs_root
TOPOLOGY = leaf_spine(
    hosts=4, nics_per_host=2, leaves=2, spines=2, options=FabricOptions(gpus_per_host=2, gbps=100, uplink_gbps=200)
)
HERE, THERE = ("h0", "eth1"), ("h3", "eth1")
PORTS = range(50_000, 50_032)


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    """A fabric that tests only look at and send over."""
    with build_fabric(TOPOLOGY) as built:
        yield built


def sent_by(fabric: Fabric, node: str) -> dict[str, int]:
    return {name: counted.tx_packets for (where, name), counted in fabric.counters().items() if where == node}


def send_megabyte(fabric: Fabric, server: socket.socket, port: int) -> None:
    """Send a megabyte from a port of HERE to a server, and wait until it has all of it."""
    source = (fabric.address_of(*HERE), port)
    with fabric.homes[HERE[0]].run(lambda: socket.create_connection(server.getsockname(), 20, source)) as sender:
        accepted, _ = server.accept()
        accepted.settimeout(20)
        with accepted, accepted.makefile("rb") as arrived:
            for _ in range(8):
                sender.sendall(bytes(1 << 17))
                assert len(arrived.read(1 << 17)) == 1 << 17


def test_every_nic_reaches_every_nic_of_other_hosts(fabric: Fabric) -> None:
    nics = [(host.id, nic.id) for host in fabric.topology.hosts for nic in host.nics]
    mute = [(src, dst) for src in nics for dst in nics if src[0] != dst[0] and not can_talk(fabric, src, dst)]
    assert mute == []


@pytest.mark.parametrize("nic", ["eth0", "eth1"])
def test_a_socket_bound_to_a_nics_address_leaves_and_is_answered_through_that_nic(fabric: Fabric, nic: str) -> None:
    assert can_talk(fabric, ("h0", nic), ("h2", "eth0"))  # neighbours know each other from now on
    before = fabric.counters()
    for _ in range(20):
        assert can_talk(fabric, ("h0", nic), ("h2", "eth0"))
    after = fabric.counters()
    other = "eth0" if nic == "eth1" else "eth1"
    for counter in ("tx_packets", "rx_packets"):
        moved = {
            each: getattr(after["h0", each], counter) - getattr(before["h0", each], counter) for each in (nic, other)
        }
        assert moved[nic] >= 20
        assert moved[other] < 5  # a neighbour that asks who is there


def test_the_way_that_the_kernels_tell_is_the_way_that_packets_take(fabric: Fabric) -> None:
    ways = {port: fabric.route_of(HERE, THERE, Flow("udp", port, 4791)) for port in PORTS}
    assert {way[1] for way in ways.values()} == {"leaf0--spine0", "leaf0--spine1"}
    for uplink in ("spine0", "spine1"):
        port = next(port for port, way in ways.items() if way[1] == f"leaf0--{uplink}")
        before = sent_by(fabric, "leaf0")
        with datagrams(fabric, HERE, port) as sender:
            for _ in range(100):
                sender.sendto(b"x", (fabric.address_of(*THERE), 4791))
        after = sent_by(fabric, "leaf0")
        assert after[uplink] - before[uplink] >= 100
        other = "spine1" if uplink == "spine0" else "spine0"
        assert after[other] - before[other] < 10


def test_connections_take_the_way_that_the_kernels_tell(fabric: Fabric) -> None:
    """Eight connections: a switch that hashes something else than the ports follows them all once in 256 times."""
    with fabric.homes[THERE[0]].run(lambda: socket.create_server((fabric.address_of(*THERE), 0))) as server:
        for port in PORTS[:8]:
            way = fabric.route_of(HERE, THERE, Flow("tcp", port, server.getsockname()[1]))
            before = fabric.counters()
            send_megabyte(fabric, server, port)
            after = fabric.counters()
            carried = {
                f"leaf0--{spine}": after["leaf0", spine].tx_bytes - before["leaf0", spine].tx_bytes
                for spine in ("spine0", "spine1")
            }
            assert carried.pop(way[1]) >= 1 << 20
            assert max(carried.values()) < 1 << 16


def test_the_way_begins_and_ends_with_the_cables_of_the_nics(fabric: Fabric) -> None:
    way = fabric.route_of(HERE, THERE, Flow("tcp", 50_000, 4791))
    assert (way[0], way[-1], len(way)) == ("h0/eth1--leaf0", "h3/eth1--leaf1", 4)
    assert fabric.route_of(HERE, ("h1", "eth0"), Flow("tcp", 1, 2)) == ("h0/eth1--leaf0", "h1/eth0--leaf0")


def test_switches_answer_every_probe_from_the_address_where_it_came_in(fabric: Fabric) -> None:
    for port in PORTS:  # far more than the kernel answers with the limits that it has by itself
        way = fabric.route_of(HERE, THERE, Flow("udp", port, 33_434))
        answerers = find_answerers(fabric, HERE, THERE, port)
        spine = way[1].removeprefix("leaf0--")
        address = {(node, name): port.address for (node, name), (_, port) in fabric.plan.cable_by_port.items()}
        assert answerers == [address["leaf0", "h0-eth1"], address[spine, "leaf0"], address["leaf1", spine]]


def test_a_process_on_a_host_sees_only_that_host(fabric: Fabric) -> None:
    shown = ["sh", "-c", "ls /sys/class/net; ls -d /sys/fs/cgroup; echo $MINE"]
    process = fabric.run_in("h2", shown, env={"MINE": "yes", "PATH": "/usr/bin:/bin"}, stdout=subprocess.PIPE)
    assert process.communicate()[0].split() == [b"eth0", b"eth1", b"lo", b"mgmt", b"/sys/fs/cgroup", b"yes"]


def test_hosts_reach_this_machine_beside_the_fabric(fabric: Fabric) -> None:
    before = fabric.counters()
    with socket.create_server((fabric.head_address, 0)) as gateway:
        gateway.settimeout(20)
        for host in fabric.plan.hosts:
            visit = fabric.homes[host].run(lambda: socket.create_connection(gateway.getsockname(), 20))
            accepted, who = gateway.accept()
            assert who[0] == fabric.management.address_of(host)
            with visit, accepted, accepted.makefile("rb") as arrived:
                visit.sendall(bytes(1 << 16))
                assert len(arrived.read(1 << 16)) == 1 << 16
    after = fabric.counters()
    assert max(after[port].tx_bytes - before[port].tx_bytes for port in after) < 2_000  # neighbours ask who is there


def test_both_ends_of_every_link_have_its_scaled_rate(fabric: Fabric) -> None:
    rates = {port: counted.rate_mbps for port, counted in fabric.counters().items()}
    assert len(rates) == 2 * len(TOPOLOGY.links)
    assert rates["h0", "eth0"] == pytest.approx(1500 / 8, rel=0.001)
    assert rates["leaf0", "h0-eth0"] == rates["h0", "eth0"]
    assert rates["leaf0", "spine1"] == rates["spine1", "leaf0"] == pytest.approx(2 * 1500 / 8, rel=0.001)


def test_what_is_not_there_is_refused_by_name(fabric: Fabric) -> None:
    with pytest.raises(BadInput, match="there is no h9 in this fabric; there are h0, h1"):
        fabric.run_in("h9", ["true"])
    with pytest.raises(BadInput, match="no cabled NIC h0/eth7"):
        fabric.address_of("h0", "eth7")


def test_two_fabrics_at_once_do_not_meet(fabric: Fabric) -> None:
    with build_fabric(TOPOLOGY) as other:
        assert other.prefix != fabric.prefix
        assert other.head_address != fabric.head_address
        assert other.address_of(*HERE) == fabric.address_of(*HERE)
        before = fabric.counters()["h0", "eth1"].tx_packets
        assert all(can_talk(other, HERE, THERE) for _ in range(50))
        assert fabric.counters()["h0", "eth1"].tx_packets - before < 10  # a neighbour that asks who is there
    assert can_talk(fabric, HERE, THERE)


@pytest.mark.parametrize(("seed", "is_same"), [(7, True), (8, False)])
def test_a_port_takes_the_same_spine_in_every_build_with_the_same_seed(
    fabric: Fabric, seed: int, is_same: bool
) -> None:
    flows = [Flow("tcp", port, 29_500) for port in PORTS]
    ways = [fabric.route_of(HERE, THERE, flow) for flow in flows]
    with build_fabric(TOPOLOGY, ShapeOptions(hash_seed=seed)) as again:
        assert ([again.route_of(HERE, THERE, flow) for flow in flows] == ways) == is_same


def test_planes_that_are_never_joined_are_not_joined() -> None:
    with build_fabric(dual_plane(hosts=2, leaves_per_plane=2, spines_per_plane=1)) as planes:
        assert can_talk(planes, ("h0", "eth0"), ("h1", "eth0"))
        assert can_talk(planes, ("h0", "eth1"), ("h1", "eth1"))
        with pytest.raises((LockstepError, OSError)):
            planes.route_of(("h0", "eth0"), ("h1", "eth1"), Flow("tcp", 1, 2))
