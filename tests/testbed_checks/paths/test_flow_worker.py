"""The worker of a host, on loopback: it sends what it is told, counts what arrived, and begins anew when told."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.testbed.paths import flow_worker
from tests.testbed.services import free_port
from tests.waiting import eventually

ROUND = 200_000


class Play:
    """A worker that sends to itself."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int) -> None:
        self._process, self.port = process, port

    def tell(self, **command: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode().strip()

    def count(self) -> Any:  # Any: JSON
        self.tell(count=True)
        return json.loads(self.hear())

    def open(self, *names: str) -> None:
        self.tell(open=[[name, "127.0.0.1", self.port] for name in names])

    def run_round(self) -> dict[str, int]:
        """Return what each flow has carried when the round is over."""
        self.tell(round=ROUND)
        assert self.hear() == "done"
        return dict(self.count()["acked"])


@contextmanager
def worker() -> Iterator[Play]:
    port = free_port()
    command = [sys.executable, flow_worker.__file__, str(1 << 18), "127.0.0.1", str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        play = Play(process, port)
        try:
            assert play.hear() == "ready"
            yield play
        finally:
            process.kill()


@pytest.fixture
def play() -> Iterator[Play]:
    with worker() as made:
        yield made


def test_flow_sends_all_the_time_until_the_first_round(play: Play) -> None:
    play.open("a")
    first = play.count()["acked"]["a"]

    eventually(lambda: play.count()["acked"]["a"] > first + ROUND)


def test_every_flow_carries_what_a_round_says_and_no_more(play: Play) -> None:
    play.open("a", "b")
    eventually(lambda: len(play.count()["sports"]) == 2)
    before = play.run_round()
    after = play.run_round()

    assert {name: after[name] - before[name] for name in after} == {"a": ROUND, "b": ROUND}
    assert play.count()["acked"] == after


def test_flow_that_is_opened_anew_has_another_port_and_keeps_its_count(play: Play) -> None:
    play.open("a")
    before = play.run_round()
    ports = play.count()["sports"]
    play.open("a")
    after = play.run_round()

    assert play.count()["sports"] != ports
    assert after["a"] - before["a"] == ROUND


def test_flows_that_are_ended_are_forgotten(play: Play) -> None:
    play.open("a")
    play.run_round()
    play.tell(end=True)

    assert play.count()["acked"] == {}


def test_worker_ends_with_its_commands(play: Play) -> None:
    assert play._process.stdin is not None
    play._process.stdin.close()

    assert play._process.wait(20) == 0
