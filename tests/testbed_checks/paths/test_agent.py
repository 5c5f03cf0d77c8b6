"""The agent on a host answers the shim with ports that take the planned way, in the direction that is planned."""

import socket
from collections.abc import Iterator

import pytest

from lockstep.fabrics import FabricOptions, leaf_spine
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.oracle import Flow
from tests.testbed.paths.agent import PathAgent
from tests.testbed.paths.flows import Nic
from tests.testbed.paths.ports import PortFinder
from tests.testbed.paths.probing import PathProber
from tests.testbed.paths.shim import AGENT

pytestmark = pytest.mark.needs_root
HERE, THERE, OTHER = ("h0", "eth0"), ("h2", "eth0"), ("h3", "eth0")
UP = "leaf0--spine1"
BACK = "leaf1--spine1"  # Linux hashes both directions of a flow alike, so that answers come over the same spine
DPORT = 4242


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    options = FabricOptions(gpus_per_host=1, gbps=0.05)
    with build_fabric(leaf_spine(4, 1, leaves=2, spines=2, options=options)) as built:
        yield built


@pytest.fixture(scope="module")
def finder(fabric: Fabric) -> Iterator[PortFinder]:
    prober = PathProber(fabric)
    yield PortFinder(prober, seed=3)
    prober.close()


def ask(fabric: Fabric, question: str) -> str:
    """Ask from inside h0, by a socket that is made there: its thread itself is needed for probes."""
    with fabric.homes["h0"].run(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as asker:
        asker.settimeout(20)
        asker.connect(AGENT.replace("@", "\0", 1))
        asker.send(question.encode())
        return asker.recv(1024).decode()


def question(fabric: Fabric, dst: Nic) -> str:
    return f"1 {fabric.address_of(*HERE)} {fabric.address_of(*dst)} {DPORT}"


def test_ports_take_the_planned_way_there_and_back(fabric: Fabric, finder: PortFinder) -> None:
    plan = {(HERE, THERE): [UP], (THERE, HERE): [BACK]}
    with PathAgent(fabric, "h0", finder, plan) as agent:
        ports = [int(port) for port in ask(fabric, question(fabric, THERE)).split(",")]

    assert ports
    for port in ports:
        assert UP in fabric.route_of(HERE, THERE, Flow("tcp", port, DPORT))
        assert BACK in fabric.route_of(THERE, HERE, Flow("tcp", DPORT, port))
    assert [(asked.src, asked.dst, asked.dport) for asked in agent.asked] == [(HERE, THERE, DPORT)]


def test_only_the_way_back_may_be_planned(fabric: Fabric, finder: PortFinder) -> None:
    with PathAgent(fabric, "h0", finder, {(THERE, HERE): [BACK]}):
        ports = [int(port) for port in ask(fabric, question(fabric, THERE)).split(",")]

    ways = [fabric.route_of(THERE, HERE, Flow("tcp", DPORT, port)) for port in ports]
    assert all(BACK in way for way in ways)


def test_no_port_is_given_twice(fabric: Fabric, finder: PortFinder) -> None:
    with PathAgent(fabric, "h0", finder, {(HERE, THERE): [UP]}):
        answers = [ask(fabric, question(fabric, THERE)).split(",") for _ in range(4)]

    given = [port for answer in answers for port in answer]
    assert len(given) == len(set(given))


@pytest.mark.parametrize("text", ["", "hello", "1 10.9.9.9 10.9.9.8 1", "2 {here} {there} 1", "1 {there} {here} 1"])
def test_what_is_no_question_of_this_host_gets_no_port(fabric: Fabric, finder: PortFinder, text: str) -> None:
    asked = text.format(here=fabric.address_of(*HERE), there=fabric.address_of(*THERE)) or "\n"
    with PathAgent(fabric, "h0", finder, {(HERE, THERE): [UP]}):
        assert ask(fabric, asked) == "-"


def test_pair_that_is_not_planned_gets_no_port(fabric: Fabric, finder: PortFinder) -> None:
    with PathAgent(fabric, "h0", finder, {(HERE, THERE): [UP]}):
        assert ask(fabric, question(fabric, OTHER)) == "-"


def test_way_that_no_port_takes_gets_no_port(fabric: Fabric, finder: PortFinder) -> None:
    plan = {(HERE, THERE): [UP], (THERE, HERE): ["leaf1--spine0"]}
    with PathAgent(fabric, "h0", finder, plan):
        assert ask(fabric, question(fabric, THERE)) == "-"
