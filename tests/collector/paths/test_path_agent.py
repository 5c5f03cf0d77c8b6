"""The agent answers questions of the shim with ports on the planned path, and everything else with none."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from collector.path_ports import AnswerServer, PathAgent, PortFinder, listen
from lockstep.host_paths import PathChoice
from tests.collector.paths.switches import addressed_fabric, prober, spine_of

FABRIC = addressed_fabric()


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


def test_connections_between_two_nics_take_their_paths_by_turns(agent: PathAgent) -> None:
    answers = [agent.answer(b"1 10.0.0.1 10.0.0.3 5201") for _ in range(3)]
    assert [spines(answer) for answer in answers] == [{"spine1"}, {"spine3"}, {"spine1"}]
    assert (agent.answered, agent.refused) == (3, 0)


def test_a_new_plan_counts_for_the_next_question(agent: PathAgent, choices: list[PathChoice]) -> None:
    choices[:] = [choice(2)]
    assert spines(agent.answer(b"1 10.0.0.1 10.0.0.3 5201")) == {"spine2"}


@pytest.mark.parametrize(
    "question",
    [
        b"",
        b"\xff\xfe",
        b"2 10.0.0.1 10.0.0.3 5201",
        b"1 10.0.0.1 10.0.0.9 5201",
        b"1 10.0.0.1 10.0.0.3 x",
        b"1 10.0.0.1 10.0.0.3 0",
        b"1 10.0.0.1 10.0.0.3 70000",
        b"1 10.0.0.1 10.0.0.3 5201 more",
    ],
)
def test_what_is_no_question_about_a_path_gets_none(agent: PathAgent, question: bytes) -> None:
    assert agent.answer(question) == b"-"
    assert agent.refused == 1


def test_ports_of_queue_pairs_are_not_those_of_sockets(agent: PathAgent, choices: list[PathChoice]) -> None:
    choices[:] = [choice(1).model_copy(update={"proto": "roce"})]
    assert agent.answer(b"1 10.0.0.1 10.0.0.3 5201") == b"-"


def test_a_path_that_cannot_be_probed_gets_none(agent: PathAgent, choices: list[PathChoice]) -> None:
    choices[:] = [choice(1).model_copy(update={"dst": "h9"})]
    assert agent.answer(b"1 10.0.0.1 10.0.0.3 5201") == b"-"


def test_it_is_asked_over_a_socket_that_all_users_may_open(agent: PathAgent, tmp_path: Path) -> None:
    assert (tmp_path / "agent").stat().st_mode & 0o777 == 0o666
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
        asker.settimeout(60)
        asker.connect(str(tmp_path / "agent"))
        asker.send(b"1 10.0.0.1 10.0.0.3 5201")
        assert spines(asker.recv(1024)) == {"spine1"}


def test_somebody_who_hangs_up_does_not_end_it(agent: PathAgent, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asker:
        asker.connect(str(tmp_path / "agent"))
    test_it_is_asked_over_a_socket_that_all_users_may_open(agent, tmp_path)
