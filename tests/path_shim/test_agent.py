"""Where the plan leaves the port open, the shim asks the host's agent, and does not wait for one that is silent."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lockstep.host_paths import PathEntry
from tests.path_shim.playing import Stage, stage

ONE = "tell(local(connect(int(sys.argv[1]))))"
THREE = "tell([local(connect(int(sys.argv[1]))) for _ in range(3)])"


@contextmanager
def agent(path: str, answer: str | None) -> Iterator[list[str]]:
    """An agent that says the same to everybody, or nothing; gives the questions it got."""
    questions: list[str] = []
    kept = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(path.replace("@", "\0", 1))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    asker, _ = server.accept()
                except OSError:
                    return
                kept.append(asker)
                questions.append(asker.recv(1024).decode())
                if answer is not None:
                    asker.send(answer.encode())

        thread = threading.Thread(target=serve)
        thread.start()
        yield questions
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for asker in kept:
        asker.close()


@pytest.fixture
def shim(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    with stage(tmp_path, f"{getattr(request, 'param', '')}{tmp_path}/agent") as made:
        made.plan(PathEntry("127.0.0.1"))
        yield made


path_or_abstract = pytest.mark.parametrize("shim", ["", "@"], ids=["path", "abstract"], indirect=True)


@path_or_abstract
def test_agent_is_asked_with_the_port_of_the_destination_and_the_first_free_port_is_used(shim: Stage) -> None:
    (port,) = shim.free_ports(1)
    with agent(shim.files.agent, f"{shim.busy_port()},{port}") as questions:
        assert shim.play(ONE)[1] == port
    assert questions == [f"1 * 127.0.0.1 {shim.port}"]
    assert shim.outcomes == ["enforced"]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [("-", "agent-refused"), ("99999", "agent-refused"), ("4000,", "agent-refused"), ("", "agent-silent")],
)
def test_agent_without_a_usable_answer_changes_nothing(shim: Stage, answer: str, outcome: str) -> None:
    with agent(shim.files.agent, answer):
        shim.play(ONE)
    assert shim.outcomes == [outcome]


def test_silent_agent_is_not_asked_again_at_once(shim: Stage) -> None:
    with agent(shim.files.agent, None) as questions:
        shim.play(THREE)
    assert len(questions) == 1
    assert shim.outcomes == ["agent-silent"] * 3


@path_or_abstract
def test_agent_that_is_not_there_holds_nobody_up_and_one_is_not_asked_about_other_hosts(shim: Stage) -> None:
    assert shim.play(ONE)[0] == "127.0.0.1"
    assert shim.outcomes == ["agent-silent"]
    shim.plan(PathEntry("127.0.0.1", source="203.0.113.7"))
    with agent(shim.files.agent, "4000") as questions:
        shim.play(ONE)
    assert questions == []


def test_signals_do_not_lengthen_the_wait_for_an_agent(shim: Stage) -> None:
    """The timer fires every 20 ms: a wait that began anew each time would never end."""
    with agent(shim.files.agent, None):
        told = shim.play(
            """
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, True)
signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
end = local(connect(int(sys.argv[1])))
signal.setitimer(signal.ITIMER_REAL, 0)  # on its way out Python hears no signals, and the next would kill it
tell(end)
"""
        )
    assert told[0] == "127.0.0.1"
    assert shim.outcomes == ["agent-silent"]
