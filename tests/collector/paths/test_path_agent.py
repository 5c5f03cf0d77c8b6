"""The agent answers questions of the shim with ports on the planned path, and everything else with none."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.path_ports import PORTS, WANTED, AnswerServer, PathAgent, PortFinder, PortProber, Send, listen
from collector.probes.packets import Arrival, Shot
from collector.probes.paths import AddressBook, addresses_in
from lockstep.errors import NotPresent
from lockstep.fabrics import leaf_spine
from lockstep.host_paths import PathChoice
from lockstep.topology import Topology

SPINES = 4


def addressed_fabric() -> Topology:
    """Return 4 hosts under 2 leaves and 4 spines, with addresses for everybody."""
    plain = leaf_spine(hosts=4, nics_per_host=1, leaves=2, spines=SPINES)
    nodes = []
    for number, node in enumerate(plain.nodes):
        if node.kind == "host":
            nics = tuple(nic.model_copy(update={"address": f"10.0.0.{number + 1}"}) for nic in node.nics)
            nodes.append(node.model_copy(update={"nics": nics}))
        else:
            nodes.append(node.model_copy(update={"addresses": (f"10.1.0.{number + 1}",)}))
    return plain.model_copy(update={"nodes": tuple(nodes)})


def fake_switches(topology: Topology, lost: int = 0) -> Send:
    """Return what answers from leaf, spine and leaf by the hash of the ports; every `lost`-th probe gets none."""
    address = {node.id: node.addresses[0] for node in topology.switches if node.addresses}

    def answer(shot: Shot) -> Arrival:
        who = {1: "leaf0", 2: spine_of(shot.flow.sport, shot.flow.dport), 3: "leaf1"}[shot.ttl]
        return Arrival(0, 1, address[who], "expired")

    return lambda shots: [None if lost and n % lost == 0 else answer(shot) for n, shot in enumerate(shots)]


def spine_of(sport: int, dport: int) -> str:
    return f"spine{hash((sport, dport)) % SPINES}"


def prober(topology: Topology, lost: int = 0) -> PortProber:
    return PortProber(topology, "h0", AddressBook(topology, addresses_in(topology)), fake_switches(topology, lost))


FABRIC = addressed_fabric()


QUESTION = b"1 10.0.0.1 10.0.0.3 5201"


def choice(spine: int) -> PathChoice:
    links = ("h0/eth0--leaf0", f"leaf0--spine{spine}", f"leaf1--spine{spine}", "h2/eth0--leaf1")
    ends = {"nic": "eth0", "dst": "h2", "dst_nic": "eth0", "source": "10.0.0.1", "destination": "10.0.0.3"}
    return PathChoice.model_validate({"connection": f"f{spine}", "links": links, **ends})


@pytest.fixture
def choices() -> list[PathChoice]:
    return [choice(1), choice(3)]


@pytest.fixture
def agent(tmp_path: Path, choices: list[PathChoice]) -> Iterator[PathAgent]:
    knowing = PathAgent(PortFinder(prober(FABRIC), seed=1), lambda: choices)
    server = AnswerServer(listen(str(tmp_path / "agent")), knowing.answer)
    yield knowing
    server.close()


def spines(answer: bytes) -> set[str]:
    return {spine_of(int(port), 5201) for port in answer.decode().split(",")}


def test_connections_between_two_nics_take_their_paths_by_turns_until_a_new_plan_comes(
    agent: PathAgent, choices: list[PathChoice]
) -> None:
    answers = [agent.answer(QUESTION) for _ in range(3)]
    assert [spines(answer) for answer in answers] == [{"spine1"}, {"spine3"}, {"spine1"}]
    assert (agent.answered, agent.refused) == (3, 0)
    choices[:] = [choice(2)]
    assert spines(agent.answer(QUESTION)) == {"spine2"}
    for no_path in ({"proto": "roce"}, {"dst": "h9"}):  # for queue pairs, and one that cannot be probed
        choices[:] = [choice(1).model_copy(update=no_path)]
        assert agent.answer(QUESTION) == b"-"


def test_what_is_no_question_about_a_path_gets_none(agent: PathAgent) -> None:
    ends = [b"10.0.0.9 5201", b"10.0.0.3 x", b"10.0.0.3 0", b"10.0.0.3 70000", b"10.0.0.3 1 more"]
    questions = [*(b"1 10.0.0.1 " + end for end in ends), b"", b"\xff\xfe", QUESTION.replace(b"1", b"2", 1)]
    assert [agent.answer(question) for question in questions] == [b"-"] * 8
    assert agent.refused == 8


def test_it_is_asked_over_a_socket_that_all_users_may_open_and_goes_on_when_one_hangs_up(
    agent: PathAgent, tmp_path: Path
) -> None:
    assert (tmp_path / "agent").stat().st_mode & 0o777 == 0o666
    for is_asking in (False, True):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
            asker.settimeout(60)
            asker.connect(str(tmp_path / "agent"))
            if is_asking:
                asker.send(QUESTION)
                assert spines(asker.recv(1024)) == {"spine1"}


@pytest.mark.parametrize("lost", [0, 5])
def test_ports_lead_over_the_planned_links_and_none_is_given_twice(lost: int) -> None:
    for spine in range(SPINES):
        finder = PortFinder(prober(FABRIC, lost), seed=1)
        found = finder.find("eth0", "h2", "eth0", 5201, [f"leaf0--spine{spine}"])
        assert len(found) == WANTED
        assert {spine_of(port, 5201) for port in found} == {f"spine{spine}"}
        assert all(port in PORTS for port in found)
    ends, through = (40_000, 5201), spine_of(40_000, 5201)
    links = ("h0/eth0--leaf0", f"leaf0--{through}", f"leaf1--{through}", "h2/eth0--leaf1")
    assert prober(FABRIC).find_paths("eth0", "h2", "eth0", [ends]) == {ends: links}
    finder = PortFinder(prober(FABRIC), seed=1, ports=range(40_000, 41_000))
    given = [port for _ in range(20) for port in finder.find("eth0", "h2", "eth0", 5201, ["leaf0--spine0"])]
    assert len(given) == len(set(given)) == 20 * WANTED


def test_a_path_that_does_not_exist_has_no_port_and_what_is_not_joined_is_a_sentence() -> None:
    assert PortFinder(prober(FABRIC), seed=1).find("eth0", "h2", "eth0", 5201, ["leaf0--spine9"]) == ()
    with pytest.raises(NotPresent, match="there is no way over switches from h0/eth0 to h9/eth0"):
        prober(FABRIC).find_paths("eth0", "h9", "eth0", [(1, 2)])
