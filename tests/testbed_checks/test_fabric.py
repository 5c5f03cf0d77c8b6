"""A real fabric: packets take the ways of the topology, processes live on hosts, and nothing is left behind."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.errors import BadInput, LockstepError, NotPresent
from lockstep.fabrics import FabricOptions, dual_plane, leaf_spine
from tests.testbed.fabric import ownership
from tests.testbed.fabric.building import build_fabric, open_fabric, take_down
from tests.testbed.fabric.fabric import Fabric, Flow
from tests.testbed.fabric.plan import ShapeOptions
from tests.testbed.fabric.sweeping import sweep
from tests.testbed_checks.talking import can_talk, datagrams, find_answerers, find_remains, is_running
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.needs_root
REPO = Path(__file__).resolve().parents[2]
TOPOLOGY = leaf_spine(
    hosts=4, nics_per_host=2, leaves=2, spines=2, options=FabricOptions(gpus_per_host=2, gbps=100, uplink_gbps=200)
)
SMALL = leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=1, options=FabricOptions(gbps=100))
HERE, THERE = ("h0", "eth1"), ("h3", "eth1")
ENDS = ("h0", "eth0"), ("h1", "eth0")
PORTS = range(50_000, 50_032)
UP = """
from lockstep.fabrics import FabricOptions, leaf_spine
from tests.testbed.fabric.building import bring_up

for line in bring_up(leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=2, options=FabricOptions(gbps=100))):
    print(line)
"""
BUILDER = """
import os, sys, time
from tests.testbed.fabric import building
from tests.testbed_checks.test_fabric import SMALL

fatal = int(sys.argv[2])
calls = 0
def die(*_, real=getattr(building, sys.argv[1]), **named):
    global calls
    calls += 1
    if calls == fatal:
        print(f"lk{os.getpid()}-0", 0, flush=True)
        time.sleep(600)
    return real(*_, **named)

setattr(building, sys.argv[1], die)
fabric = building.build_fabric(SMALL)
process = fabric.run_in("h1", ["sleep", "600"])
from tests.testbed.faults.breaker import starve
starve(fabric, "h0", [], 0.1)
print(fabric.prefix, process.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with build_fabric(TOPOLOGY) as built:
        yield built


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
    assert [(a, b) for a in nics for b in nics if a[0] != b[0] and not can_talk(fabric, a, b)] == []


def test_a_socket_bound_to_a_nics_address_leaves_and_is_answered_through_that_nic(fabric: Fabric) -> None:
    nic, other = "eth1", "eth0"  # without a rule of its own everything would leave through eth0
    assert can_talk(fabric, ("h0", nic), ("h2", "eth0"))  # neighbours know each other from now on
    before = fabric.counters()
    for _ in range(20):
        assert can_talk(fabric, ("h0", nic), ("h2", "eth0"))
    after = fabric.counters()
    for counter in ("tx_packets", "rx_packets"):
        here, there = (getattr(after["h0", n], counter) - getattr(before["h0", n], counter) for n in (nic, other))
        assert here >= 20
        assert there < 5  # a neighbour that asks who is there


def test_datagrams_and_connections_take_the_way_that_the_kernels_tell(fabric: Fabric) -> None:
    """Eight connections: a switch that hashes something else than the ports follows them all once in 256 times."""

    def sent_up() -> dict[str, tuple[int, int]]:
        counters = fabric.counters()
        ports = {f"leaf0--{spine}": counters["leaf0", spine] for spine in ("spine0", "spine1")}
        return {link: (port.tx_packets, port.tx_bytes) for link, port in ports.items()}

    ways = {port: fabric.route_of(HERE, THERE, Flow("udp", port, 4791)) for port in PORTS}
    assert {(way[0], way[-1], len(way)) for way in ways.values()} == {("h0/eth1--leaf0", "h3/eth1--leaf1", 4)}
    assert {way[1] for way in ways.values()} == {"leaf0--spine0", "leaf0--spine1"}
    assert fabric.route_of(HERE, ("h1", "eth0"), Flow("tcp", 1, 2)) == ("h0/eth1--leaf0", "h1/eth0--leaf0")
    for uplink, other in (("leaf0--spine0", "leaf0--spine1"), ("leaf0--spine1", "leaf0--spine0")):
        before = sent_up()
        with datagrams(fabric, HERE, next(port for port, way in ways.items() if way[1] == uplink)) as sender:
            for _ in range(100):
                sender.sendto(b"x", (fabric.address_of(*THERE), 4791))
        after = sent_up()
        assert after[uplink][0] - before[uplink][0] >= 100
        assert after[other][0] - before[other][0] < 10
    with fabric.homes[THERE[0]].run(lambda: socket.create_server((fabric.address_of(*THERE), 0))) as server:
        for port in PORTS[:8]:
            way = fabric.route_of(HERE, THERE, Flow("tcp", port, server.getsockname()[1]))
            before = sent_up()
            send_megabyte(fabric, server, port)
            carried = {link: count[1] - before[link][1] for link, count in sent_up().items()}
            assert carried.pop(way[1]) >= 1 << 20
            assert max(carried.values()) < 1 << 16


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


@pytest.mark.slow
@pytest.mark.long
def test_two_fabrics_at_once_do_not_meet_and_ports_take_the_same_spines_in_both(fabric: Fabric) -> None:
    flows = [Flow("tcp", port, 29_500) for port in PORTS]
    ways = [fabric.route_of(HERE, THERE, flow) for flow in flows]
    with build_fabric(TOPOLOGY, ShapeOptions(hash_seed=7)) as other:
        assert [other.route_of(HERE, THERE, flow) for flow in flows] == ways
        assert other.prefix != fabric.prefix
        assert other.head_address != fabric.head_address
        assert other.address_of(*HERE) == fabric.address_of(*HERE)
        before = fabric.counters()["h0", "eth1"].tx_packets
        assert all(can_talk(other, HERE, THERE) for _ in range(50))
        assert fabric.counters()["h0", "eth1"].tx_packets - before < 10  # a neighbour that asks who is there
    assert can_talk(fabric, HERE, THERE)


def test_planes_that_are_never_joined_are_not_joined() -> None:
    with build_fabric(dual_plane(hosts=2, leaves_per_plane=2, spines_per_plane=1)) as planes:
        assert can_talk(planes, ("h0", "eth0"), ("h1", "eth0"))
        assert can_talk(planes, ("h0", "eth1"), ("h1", "eth1"))
        with pytest.raises((LockstepError, OSError)):
            planes.route_of(("h0", "eth0"), ("h1", "eth1"), Flow("tcp", 1, 2))


def build_and_kill(function: str = "sweep", call: int = 99) -> tuple[str, int]:
    """Kill a builder when it has built, or at a certain call of a function; return its fabric and its process."""
    command = [sys.executable, "-c", BUILDER, function, str(call)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPO) as builder:
        assert builder.stdout is not None
        words = builder.stdout.readline().split()
        builder.send_signal(signal.SIGKILL)
        builder.wait(LIMIT_S)
    return words[0], int(words[1])


def test_after_its_end_nothing_of_a_fabric_is_left() -> None:
    with build_fabric(SMALL) as fabric:
        process = fabric.run_in("h0", ["sleep", "600"])
        assert len(find_remains(fabric.prefix)) == 5 + 3 + 1  # namespaces, a bridge with two ports, a note
    assert find_remains(fabric.prefix) == []
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.long
def test_what_a_killed_builder_left_is_swept_with_its_processes_and_nothing_of_others() -> None:
    prefix, pid = build_and_kill()
    assert is_running(pid)
    assert len(find_remains(prefix)) == 5 + 3 + 1 + 1  # and a control group
    with build_fabric(SMALL) as mine, build_fabric(SMALL, is_kept=True) as kept:  # the first sweeps by itself
        assert find_remains(prefix) == []
        eventually(lambda: not is_running(pid))
        note = ownership.read_note(kept.prefix)
        assert note is not None
        ownership.write_note(kept.prefix, note.model_copy(update={"owner_start": 1}))  # as if its builder had ended
        assert not {mine.prefix, kept.prefix} & set(sweep())
        assert can_talk(mine, *ENDS)
        assert can_talk(kept, *ENDS)


def test_what_a_builder_left_that_was_killed_while_building_is_swept() -> None:
    prefix, _ = build_and_kill("_lay", 3)
    assert find_remains(prefix) != []
    sweep()
    assert find_remains(prefix) == []


def test_a_fabric_is_up_until_another_process_takes_it_down() -> None:
    done = subprocess.run([sys.executable, "-c", UP], capture_output=True, text=True, cwd=REPO, check=True)
    lines = done.stdout.splitlines()
    prefix = lines[0].partition(":")[0]
    assert lines[0] == f"{prefix}: 2 hosts, 4 switches, 6 links"
    assert "  h1: eth0 10.2.0.2" in lines
    assert "links carry 750 Mbit/s" in lines
    with pytest.raises(NotPresent, match=f"there is no fabric lk1-0; there are: .*{prefix}"):
        take_down("lk1-0")
    fabric = open_fabric(prefix)
    assert can_talk(fabric, *ENDS)
    fabric.leave()
    assert prefix in take_down(prefix)
    assert find_remains(prefix) == []


def test_what_is_missing_or_refused_is_said_and_nothing_stays_half_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("no memory for another route")

    def refuse(what: int) -> None:
        raise PermissionError(1, "no namespace of our own: Operation not permitted")

    prefix = ownership.choose_prefix()
    with pytest.raises(BadInput, match="but this testbed carries 1500"):
        build_fabric(SMALL, ShapeOptions(mbps_per_gbps=100))
    with pytest.raises(NotPresent, match="there is no fabric lk1-7 here"):
        open_fabric("lk1-7")
    for target, failing, error, reason in (
        ("building.lay_route", fail, OSError, "no memory for another route"),
        ("namespaces.unshare", refuse, NotPresent, r"right to make network namespaces: .*Operation not permitted"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"tests.testbed.fabric.{target}", failing)
            with pytest.raises(error, match=reason):
                build_fabric(SMALL)
    assert find_remains(prefix) == []
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for act in (lambda: build_fabric(SMALL), take_down):
        with pytest.raises(NotPresent, match="the testbed needs root"):
            act()
