"""Ports are found whose way is the planned one, also where probes get lost, and none is given twice."""

import pytest

from collector.path_ports import PORTS, WANTED, PortFinder
from lockstep.errors import NotPresent
from tests.collector.paths.switches import addressed_fabric, prober, spine_of

FABRIC = addressed_fabric()


def test_the_path_of_each_port_is_the_one_that_switches_report() -> None:
    ports = [(port, 5201) for port in range(40_000, 40_020)]
    paths = prober(FABRIC).find_paths("eth0", "h2", "eth0", ports)
    assert set(paths) == set(ports)
    for (sport, dport), links in paths.items():
        spine = spine_of(sport, dport)
        assert links == ("h0/eth0--leaf0", f"leaf0--{spine}", f"leaf1--{spine}", "h2/eth0--leaf1")


@pytest.mark.parametrize("lost", [0, 5])
@pytest.mark.parametrize("spine", range(4))
def test_ports_lead_over_the_planned_links(spine: int, lost: int) -> None:
    finder = PortFinder(prober(FABRIC, lost), seed=1)
    found = finder.find("eth0", "h2", "eth0", 5201, [f"leaf0--spine{spine}"])
    assert len(found) == WANTED
    assert {spine_of(port, 5201) for port in found} == {f"spine{spine}"}
    assert all(port in PORTS for port in found)


def test_no_port_is_given_twice() -> None:
    finder = PortFinder(prober(FABRIC), seed=1, ports=range(40_000, 41_000))
    given = [port for _ in range(20) for port in finder.find("eth0", "h2", "eth0", 5201, ["leaf0--spine0"])]
    assert len(given) == len(set(given)) == 20 * WANTED


def test_a_path_that_does_not_exist_has_no_port() -> None:
    assert PortFinder(prober(FABRIC), seed=1).find("eth0", "h2", "eth0", 5201, ["leaf0--spine9"]) == ()


def test_what_the_topology_does_not_join_is_a_sentence() -> None:
    with pytest.raises(NotPresent, match="there is no way over switches from h0/eth0 to h9/eth0"):
        prober(FABRIC).find_paths("eth0", "h9", "eth0", [(1, 2)])
