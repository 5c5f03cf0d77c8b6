"""What breaks changes what it should: rates, delays and CPU by degrees, and standstills from when to when."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from lockstep.clock import NS_PER_S
from simulator.conditions import PROXY_NS, Condition, Conditions
from simulator.faults import parse_fault
from simulator.job import place_ranks
from simulator.network import Network
from simulator.pairs import NEVER
from simulator.scenario import build_topology
from tests.simulator.build import cluster, scenario

SHAPE = cluster()
NETWORK = Network(build_topology(SHAPE), SHAPE.nics_per_host)


def conditions(*lines: str, transport: str = "ib", begin_s: float = 0.0) -> Conditions:
    faults = tuple(parse_fault(line) for line in lines)
    return Conditions(faults, NETWORK, place_ranks(scenario()), transport, begin_s * NS_PER_S)


def at(now_s: float, *lines: str, size: int = 0, transport: str = "ib") -> Condition:
    return conditions(*lines, transport=transport).at(now_s * NS_PER_S, size)


def changed_links(there: Condition) -> dict[int, float]:
    share = there.capacity[:-1] / NETWORK.capacity[:-1]
    return {int(link): round(float(share[link]), 3) for link in np.flatnonzero(share != 1)}


NIC = "nic:h2/eth1"


@pytest.mark.parametrize(
    ("lines", "now_s", "size", "tx", "rx"),
    [
        (("at 1 s fail nic:h2/eth1 tx to 25 %",), 2, 0, 0.25, 1),
        (("at 1 s fail nic:h2/eth1 rx to 25 %",), 2, 0, 1, 0.25),
        (("at 1 s fail nic:h2/eth1 to 25 %", "at 2 s heal nic:h2/eth1"), 0.5, 0, 1, 1),
        (("at 1 s fail nic:h2/eth1 to 25 %", "at 2 s heal nic:h2/eth1"), 1.5, 0, 0.25, 0.25),
        (("at 1 s fail nic:h2/eth1 to 25 %", "at 2 s heal nic:h2/eth1"), 2.5, 0, 1, 1),
        (("at 0 s fail nic:h2/eth1 tx to 50 %", "at 0 s fail nic:h2/eth1 rx to 40 %"), 1, 0, 0.5, 0.4),
        (("at 0 s fail nic:h2/eth1 to 50 %", "at 1 s fail nic:h2/eth1 to 20 %"), 2, 0, 0.2, 0.2),
        (("at 0 s fail nic:h2/eth1 to 30 % above 1 MB",), 1, 999_999, 1, 1),
        (("at 0 s fail nic:h2/eth1 to 30 % above 1 MB",), 1, 1_000_000, 0.3, 0.3),
        (("at 0 s fail nic:h2/eth1 tx delayed 2 ms",), 1, 0, 1, 1),
    ],
)
def test_slow_nic_slows_the_links_on_its_slow_side_in_its_time(
    lines: tuple[str, ...], now_s: float, size: int, tx: float, rx: float
) -> None:
    there, links = at(now_s, *lines, size=size), NETWORK.links_of_nic(2 * 2 + 1)
    assert changed_links(there) == {link: share for link, share in zip(links, (tx, rx), strict=True) if share != 1}
    delays = {links[0]: 2e6} if "delayed" in lines[0] else {}
    assert {int(link): there.delay_ns[link] for link in np.flatnonzero(there.delay_ns)} == delays


@pytest.mark.parametrize(
    ("part", "links"), [("link:leaf0--spine1", 2), ("switch:spine1", 4), ("switch:leaf0", 12), ("fabric", 8)]
)
def test_links_and_switches_slow_what_hangs_on_them(part: str, links: int) -> None:
    assert list(changed_links(at(2, f"at 1 s fail {part} to 50 %")).values()) == [0.5] * links


def test_loss_costs_rdma_more_than_tcp() -> None:
    left = {}
    for transport in ("ib", "socket"):
        lossy = at(1, "at 0 s fail link:leaf0--spine1 losing 1 %", transport=transport)
        (left[transport],) = set(changed_links(lossy).values())
    assert left["ib"] < 0.1
    assert left["socket"] > 0.9


def test_gpus_and_hosts_are_felt_by_their_ranks() -> None:
    slow = "gpu:h3/2 to 50 %", "pcie:h0/1 to 30 %", "nvlink:h0/3 to 40 %"
    late = "host:h1 starved to 20 %", "rank:15 late 300 ms", "host:h2 late 100 ms"
    there = at(1, *(f"at 0 s fail {what}" for what in (*slow, *late)))
    assert np.flatnonzero(there.compute != 1).tolist() == [14]
    assert np.flatnonzero(there.pcie != 1).tolist() == [1]
    assert np.flatnonzero(there.nvlink != 1).tolist() == [3]
    assert np.flatnonzero(there.cpu != 1).tolist() == [4, 5, 6, 7]
    assert_allclose(there.proxy_ns[4:8], 4 * PROXY_NS)
    assert there.late_ns[8:].tolist() == [1e8] * 4 + [0.0] * 3 + [3e8]


def test_fault_that_ramps_or_spares_steps_is_felt_by_degrees() -> None:
    line = "at 10 s fail gpu:h1/0 to 50 % over 20 s"
    assert [float(at(now_s, line).compute[4]) for now_s in (10.2, 20, 30, 40)] == [0.995, 0.75, 0.5, 0.5]
    rare = "at 1 s fail gpu:h1/0 to 50 % in 5 % of steps"
    answers = conditions(rare)
    assert answers.at(NS_PER_S, 0).compute[4] == 0.5
    assert answers.at(NS_PER_S, 0, frozenset({parse_fault(rare)})).compute[4] == 1.0
    assert answers.at(0, 0) is answers.at(NS_PER_S // 2, 7)  # the same state is worked out once
    assert answers.at(0, 0) is not answers.at(NS_PER_S, 0)


def stalled_until(now_s: float, *lines: str, begin_s: float = 0.0) -> dict[str, dict[int, tuple[float, float]]]:
    """Return what stands still, by kind and number, from when to when in seconds."""
    still = conditions(*lines, begin_s=begin_s).outages(now_s * NS_PER_S)
    assert still is not None
    kinds = {"links": still.links, "gpus": still.gpus, "proxies": still.proxies}
    return {
        kind: {
            int(n): (float(out.begin[n]) / NS_PER_S, float(out.end[n]) / NS_PER_S)
            for n in np.flatnonzero(out.begin < NEVER)
        }
        for kind, out in kinds.items()
    }


FOREVER = NEVER / NS_PER_S


@pytest.mark.parametrize(
    ("what", "gpus", "proxies"),
    [
        ("gpu:h1/0 stuck", [4], []),
        ("rank:4 stopped", [], [4]),
        ("rank:4 killed", [4], [4]),
        ("host:h1 gone", [4, 5, 6, 7], [4, 5, 6, 7]),
    ],
)
def test_ranks_stand_still_with_their_gpu_or_process_or_both(what: str, gpus: list[int], proxies: list[int]) -> None:
    found = stalled_until(0, f"at 3 s fail {what}")
    assert found == {
        "links": {},
        "gpus": dict.fromkeys(gpus, (3, FOREVER)),
        "proxies": dict.fromkeys(proxies, (3, FOREVER)),
    }


@pytest.mark.parametrize(
    ("now_s", "begin_s"), [(0, 20), (21, 20), (23, 80), (81, 80), (82, 140), (230, None)], ids=str
)
def test_flap_comes_again_and_again_until_it_is_healed(now_s: float, begin_s: float | None) -> None:
    lines = ("at 20 s fail nic:h3/eth1 down for 2 s every 60 s", "at 220 s heal")
    found = stalled_until(now_s, *lines)["links"]
    assert set(found.values()) == ({(begin_s, begin_s + 2)} if begin_s else set())
    down = ("at 3 s fail link:leaf0--spine1 down", "at 8 s heal")
    assert stalled_until(0, *down)["links"] == dict.fromkeys(NETWORK.links_of("leaf0--spine1"), (3, 8))
    assert stalled_until(9, *down)["links"] == {}
    assert conditions("at 0 s fail gpu:h1/0 to 50 %").outages(0.0) is None


def test_new_attempt_has_new_processes_but_the_same_hardware() -> None:
    lines = ("at 3 s fail rank:4 stopped", "at 3 s fail gpu:h2/0 stuck", "at 3 s fail nic:h0/eth0 down")
    found = stalled_until(20, *lines, begin_s=10.0)
    assert (list(found["proxies"]), list(found["gpus"]), len(found["links"])) == ([], [8], 2)


def test_port_that_fails_over_stands_still_for_a_while_and_then_shares_the_other() -> None:
    told = conditions("at 1 s fail nic:h2/eth0 over to eth1 after 2 s", "at 9 s heal nic:h2/eth0")
    dead, other = (list(NETWORK.links_of_nic(2 * 2 + nic)) for nic in (0, 1))
    still = told.outages(0.0)
    assert still is not None
    assert_array_equal(np.flatnonzero(still.links.begin < NEVER), sorted(dead))
    assert {float(end) for end in still.links.end[dead]} == {3 * NS_PER_S}
    uses = {now_s: told.at(now_s * NS_PER_S, 0).links[dead].tolist() for now_s in (0.5, 2, 4, 10)}
    assert uses == {0.5: dead, 2: dead, 4: other, 10: dead}
    assert told.at(4 * NS_PER_S, 0).nics[4] == 5
