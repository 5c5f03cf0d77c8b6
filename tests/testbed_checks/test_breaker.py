"""A real fabric is broken and healed as the lines of a scenario say."""

import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.errors import BadScenario, NotPresent
from lockstep.fabrics import FabricOptions, leaf_spine
from simulator.faults import parse_fault
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.cgroups import find_hierarchy
from tests.testbed.fabric.fabric import Fabric, Flow
from tests.testbed.faults.breaker import Breaker
from tests.testbed_checks.talking import (
    can_talk,
    count_arrivals,
    count_held_arrivals,
    datagrams,
    find_answerers,
    find_remains,
    is_running,
)
from tests.waiting import LIMIT_S, eventually

pytestmark = pytest.mark.needs_root
HERE, THERE = ("h0", "eth0"), ("h1", "eth0")
TOPOLOGY = leaf_spine(
    hosts=2, nics_per_host=1, leaves=2, spines=2, options=FabricOptions(gpus_per_host=1, gbps=0.1)
)  # 100 Mbit/s everywhere
PORTS = range(50_000, 50_012)
SOON_S = 0.3  # for answers that must not come; those that come take a millisecond


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with build_fabric(TOPOLOGY) as built:
        yield built


@pytest.fixture
def breaker(fabric: Fabric) -> Iterator[Breaker]:
    """A breaker that heals everything, after which both hosts talk as before."""
    with Breaker(fabric) as made:
        yield made
    eventually(lambda: can_talk(fabric, HERE, THERE))
    assert slow_ports(fabric) == {}


def fail(breaker: Breaker, what: str) -> None:
    breaker.apply(parse_fault(f"at 0 s fail {what}"))


def slow_ports(fabric: Fabric) -> dict[tuple[str, str], float]:
    rates = {port: round(counted.rate_mbps or 0) for port, counted in fabric.counters().items()}
    return {port: rate for port, rate in rates.items() if rate != 100}


def uplinks_of(fabric: Fabric) -> list[str]:
    return [fabric.route_of(HERE, THERE, Flow("tcp", port, 1))[1] for port in PORTS]


def test_rates_are_lowered_by_direction_and_part(fabric: Fabric, breaker: Breaker) -> None:
    fail(breaker, "nic:h0/eth0 tx to 50 %")
    assert slow_ports(fabric) == {("h0", "eth0"): 50}
    fail(breaker, "nic:h0/eth0 rx to 30 %")
    for what, error, reason in (
        ("nic:h7/eth0 tx to 10 %", BadScenario, "there is no nic:h7/eth0"),
        ("nic:leaf0/spine0 to 50 %", BadScenario, "there is no nic:leaf0/spine0"),
        ("link:leaf0--leaf1 to 50 %", BadScenario, "there is no link:leaf0--leaf1"),
        ("switch:h0 to 50 %", BadScenario, "there is no switch:h0"),
        ("gpu:h0/0 to 50 %", NotPresent, r"cannot do this to gpu:h0/0: .* no GPUs"),
        ("rank:3 late 300 ms", NotPresent, "ranks do themselves"),
        ("link:leaf0--spine1 to 30 % above 1 MB", NotPresent, "how large an operation is"),
        ("nic:h0/eth0 to 30 % in 5 % of steps", NotPresent, "does not know steps"),
    ):
        with pytest.raises(error, match=reason):
            fail(breaker, what)
    assert slow_ports(fabric) == {("h0", "eth0"): 50, ("leaf0", "h0-eth0"): 30}
    breaker.heal("nic:h0/eth0")
    fail(breaker, "switch:spine0 to 50 %")
    fail(breaker, "link:leaf0--spine0 tx to 20 %")
    assert slow_ports(fabric)["leaf0", "spine0"] == 20  # of two rates the lower counts
    breaker.apply(parse_fault("at 9 s heal link:leaf0--spine0"))
    assert slow_ports(fabric) == dict.fromkeys(
        [("leaf0", "spine0"), ("leaf1", "spine0"), ("spine0", "leaf0"), ("spine0", "leaf1")], 50
    )
    assert [fault.part for fault in breaker.broken] == ["switch:spine0"]


def test_what_does_not_fit_through_a_lowered_rate_waits_and_then_is_dropped(fabric: Fabric, breaker: Breaker) -> None:
    before = fabric.counters()["h0", "eth0"].dropped
    fail(breaker, "nic:h0/eth0 tx to 0.1 %")  # 12 packets a second, after a burst of 31
    with datagrams(fabric, HERE) as here, datagrams(fabric, THERE) as there:
        for _ in range(200):
            here.sendto(bytes(1000), there.getsockname())
        counted = fabric.counters()["h0", "eth0"]
        assert counted.dropped - before >= 100
        assert counted.waiting_bytes > 0
        breaker.heal()
        for _ in range(200 - (counted.dropped - before)):
            assert len(there.recv(2000)) == 1000


def test_loss_is_as_large_as_told_and_no_counter_knows_it(fabric: Fabric, breaker: Breaker) -> None:
    before = fabric.counters()
    fail(breaker, "nic:h1/eth0 rx losing 20 %")
    arrived = count_arrivals(fabric, HERE, THERE, 1000)
    assert 700 <= arrived <= 900  # 800 are expected; eight standard deviations are 100
    assert count_arrivals(fabric, THERE, HERE, 200) == 200  # the other direction
    after = fabric.counters()
    assert after["h1", "eth0"].rx_packets - before["h1", "eth0"].rx_packets >= 1000
    assert all(counted.dropped == before[port].dropped for port, counted in after.items())
    breaker.heal()
    assert count_arrivals(fabric, HERE, THERE, 200) == 200
    fail(breaker, "nic:h1/eth0 rx down")  # a direction that is dead alone keeps its carrier
    assert count_arrivals(fabric, HERE, THERE, 50) == 0
    assert fabric.counters()["h1", "eth0"].is_up


def test_delay_comes_on_top_hides_no_switch_and_goes_again(fabric: Fabric, breaker: Breaker) -> None:
    answerers = [find_answerers(fabric, HERE, THERE, port) for port in PORTS[:8]]
    fail(breaker, "switch:leaf1 delayed 1 ms")
    assert [find_answerers(fabric, HERE, THERE, port) for port in PORTS[:8]] == answerers
    breaker.heal()
    fail(breaker, "link:h1/eth0--leaf1 delayed 20 ms")  # both directions
    with datagrams(fabric, HERE) as here, datagrams(fabric, THERE) as there:
        began_s = time.monotonic()
        here.sendto(b"ask", there.getsockname())
        there.sendto(b"answer", there.recvfrom(100)[1])
        assert here.recv(100) == b"answer"
        assert time.monotonic() - began_s >= 0.04
    breaker.heal()
    assert fabric.homes["h1"].change(lambda route: route.link_lookup(ifname="d-eth0")) == []
    assert [find_answerers(fabric, HERE, THERE, port) for port in PORTS[:8]] == answerers


@pytest.mark.slow
@pytest.mark.long
def test_loss_and_delay_on_one_cable_do_not_hide_each_other(fabric: Fabric, breaker: Breaker) -> None:
    fail(breaker, "nic:h1/eth0 rx delayed 5 ms")
    fail(breaker, "nic:h1/eth0 rx losing 20 %")
    assert 700 <= count_held_arrivals(fabric, HERE, THERE, 1000) <= 900
    with datagrams(fabric, HERE) as here, datagrams(fabric, THERE) as there:
        for _ in range(100):  # one of them gets through
            here.sendto(str(time.monotonic_ns()).encode(), there.getsockname())
        sent_ns = int(there.recv(100))
        assert time.monotonic_ns() - sent_ns >= 5_000_000


def test_a_nic_that_is_down_has_no_carrier_on_its_host_and_comes_back(fabric: Fabric, breaker: Breaker) -> None:
    fail(breaker, "nic:h0/eth0 down")
    assert not fabric.counters()["h0", "eth0"].is_up
    assert not can_talk(fabric, HERE, THERE, SOON_S)
    breaker.heal()
    eventually(lambda: fabric.counters()["h0", "eth0"].is_up)
    assert can_talk(fabric, HERE, THERE)


@pytest.mark.slow
@pytest.mark.long
def test_switches_that_come_back_one_by_one_are_used_as_before(fabric: Fabric, breaker: Breaker) -> None:
    before = uplinks_of(fabric)
    assert set(before) == {"leaf0--spine0", "leaf0--spine1"}
    fail(breaker, "switch:spine0 down")
    assert set(uplinks_of(fabric)) == {"leaf0--spine1"}
    fail(breaker, "switch:spine1 down")
    with pytest.raises(OSError, match="unreachable"):
        uplinks_of(fabric)
    breaker.heal("switch:spine1")
    assert set(uplinks_of(fabric)) == {"leaf0--spine1"}
    breaker.heal("switch:spine0")
    assert uplinks_of(fabric) == before


def test_a_flap_and_a_ramp_are_followed(fabric: Fabric, breaker: Breaker) -> None:
    timeline = (
        parse_fault("at 20 s fail nic:h1/eth0 down for 2 s every 60 s"),
        parse_fault("at 20 s fail nic:h0/eth0 tx to 60 % over 10 s"),
        parse_fault("at 20 s fail gpu:h0/0 to 60 %"),  # for the ranks
        parse_fault("at 90 s heal"),
    )
    seen = []
    for now_s in (19, 21, 25, 40, 81, 91):
        breaker.follow(timeline, now_s)
        counted = fabric.counters()
        seen.append((counted["leaf1", "h1-eth0"].is_up, round(counted["h0", "eth0"].rate_mbps or 0)))
    assert seen == [(True, 100), (False, 96), (True, 80), (True, 60), (False, 60), (True, 100)]


def test_a_silent_host_reaches_the_others_but_not_this_machine(fabric: Fabric, breaker: Breaker) -> None:
    with socket.create_server((fabric.head_address, 0)) as gateway:

        def visit(patience_s: float) -> bool:
            def connect() -> bool:
                try:
                    socket.create_connection(gateway.getsockname(), patience_s).close()
                except OSError:
                    return False
                return True

            return fabric.homes["h1"].run(connect)

        assert visit(20)
        fail(breaker, "host:h1 silent")
        assert not visit(SOON_S)
        assert can_talk(fabric, HERE, THERE)
        breaker.heal()
        eventually(lambda: visit(1))


def test_a_host_that_is_gone_has_no_processes_and_no_network(fabric: Fabric, breaker: Breaker) -> None:
    victim = fabric.run_in("h1", ["sh", "-c", "sleep 600 & sleep 600"])
    other = fabric.run_in("h0", ["sleep", "600"])
    fail(breaker, "host:h1 gone")
    assert victim.wait(LIMIT_S) == -signal.SIGKILL
    assert other.poll() is None
    assert not fabric.counters()["h1", "eth0"].is_up
    other.kill()


def test_ranks_are_stopped_go_on_and_are_killed(fabric: Fabric) -> None:
    rank = fabric.run_in("h0", ["sleep", "600"])

    def state() -> str:
        return Path(f"/proc/{rank.pid}/stat").read_text().rpartition(")")[2].split()[0]

    def pids_of(part: str) -> list[int]:
        return [rank.pid] if part == "rank:5" else []

    with Breaker(fabric, pids_of) as breaker:
        fail(breaker, "rank:5 stopped")
        eventually(lambda: state() == "T")
        with pytest.raises(BadScenario, match="no process of rank:6"):
            fail(breaker, "rank:6 stopped")
    eventually(lambda: state() == "S")  # who was stopped goes on when the block ends
    with Breaker(fabric, pids_of) as breaker:
        fail(breaker, "rank:5 killed")
        assert rank.wait(LIMIT_S) == -signal.SIGKILL


def test_a_starved_host_is_held_back_again_and_again_until_it_is_healed(fabric: Fabric, breaker: Breaker) -> None:
    rank = fabric.run_in("h0", [sys.executable, "-c", "while True: pass"])
    fail(breaker, "host:h0 starved to 20 %")
    hierarchy = find_hierarchy()
    assert hierarchy is not None
    group = hierarchy.top / f"{fabric.prefix}-h0"
    members = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    assert rank.pid in members
    assert len(members) == 2  # and the one that takes the CPU away
    eventually(lambda: "nr_throttled 0" not in (group / "cpu.stat").read_text())
    breaker.heal()
    assert not group.exists()
    assert rank.poll() is None
    assert not any(is_running(pid) for pid in members if pid != rank.pid)
    rank.kill()


def test_a_broken_fabric_leaves_nothing_behind_either() -> None:
    with build_fabric(TOPOLOGY) as broken:
        breaker = Breaker(broken)
        for what in ("nic:h0/eth0 delayed 5 ms", "nic:h1/eth0 losing 5 %", "host:h0 starved to 10 %"):
            fail(breaker, what)
    assert find_remains(broken.prefix) == []
