"""Events of a simulated cluster come once, when it happens, and say what real collectors say of the real thing."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from collector.connections.log_lines import FailedCompletion, Warned, read_line, understand
from collector.kernel.links import Link
from collector.kernel.process import Exit
from collector.sources.connections import load_words
from collector.sources.links import LinkWatch
from collector.sources.processes import ProcessesSource, RunReports
from lockstep.clock import NS_PER_S
from simulator.events import CLOSING_S, FIRST_PID, RETRY_BUDGET_S, find_flapping
from simulator.scenario import JobShape, Scenario
from tests.builders import SECOND, T0
from tests.simulator import build
from tests.simulator.build import Row, follow
from tests.waiting import eventually

JOB = JobShape(compute_ms=400.0, allreduce_mb=(64,))


def scenario(*lines: str, transport: str = "socket", **shape: Any) -> Scenario:
    return build.scenario(*lines, cluster=build.cluster(transport=transport, **shape), job=JOB, duration_s=200.0)


def events(told: Scenario, seconds: int) -> list[Row]:
    tables = follow(told, seconds)
    return tables["events"].to_pylist() if "events" in tables else []


def timestamps(rows: list[Row], kind: str) -> list[float]:
    return [(row["ts_ns"] - T0) / NS_PER_S for row in rows if row["kind"] == kind]


class Exits:
    """Tells the ends of processes that a test has seen itself; the kernel tells them only to root."""

    def __init__(self) -> None:
        self.waiting: list[Exit] = []

    def read(self) -> list[Exit]:
        told, self.waiting = self.waiting, []
        return told

    def close(self) -> None:
        pass


@contextmanager
def real_rank(exits: Exits) -> Iterator[tuple["subprocess.Popen[bytes]", ProcessesSource]]:
    """Run a process that says it is rank 5, on what calls itself h1, and watch it."""
    with subprocess.Popen(("sleep", "1000"), env={"RANK": "5", "PATH": os.environ["PATH"]}) as process:
        eventually(lambda: b"RANK=5\0" in Path(f"/proc/{process.pid}/environ").read_bytes())
        reports = RunReports(Path("/"), (Path("/nowhere"),))
        source = ProcessesSource("h1", Path("/"), lambda: (process.pid,), lambda: exits, reports)
        source.read(T0, ())
        yield process, source
        process.kill()


def told_by(source: ProcessesSource, process: "subprocess.Popen[bytes]") -> list[Row]:
    """Return the events of a reading as if the process were the simulated one, without their times."""
    rows = source.read(T0 + SECOND, ()).tables["events"].to_pylist()
    return [
        without_time(row)
        | {"pid": 1001, "message": row["message"].replace(f"(pid {process.pid}, sleep)", "(pid 1001, python)")}
        for row in rows
    ]


def without_time(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "ts_ns"}


def has_state(process: "subprocess.Popen[bytes]", state: str) -> Callable[[], bool]:
    return lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == state


@pytest.mark.parametrize(("line", "number"), [("fail rank:5 killed", 9), ("restart after 5 s", 15)])
def test_end_of_a_process_is_told_as_that_of_a_real_one(line: str, number: int) -> None:
    exits = Exits()
    with real_rank(exits) as (process, source):
        process.send_signal(number)
        process.wait()
        exits.waiting = [Exit(process.pid, time.monotonic_ns(), number)]
        real = told_by(source, process)
    mine = [row for row in events(scenario(f"at 2 s {line}"), 3) if row["message"].startswith("rank 5 ")]
    assert [without_time(row) for row in mine] == real
    assert timestamps(mine, "process_exit") == [2.0]


def test_process_that_is_stopped_and_goes_on_is_told_as_a_real_one() -> None:
    real: list[Row] = []
    with real_rank(Exits()) as (process, source):
        for number, state in ((signal.SIGSTOP, "T"), (signal.SIGCONT, "S")):
            process.send_signal(number)
            eventually(has_state(process, state))
            real += told_by(source, process)
    rows = events(scenario("at 2.5 s fail rank:5 stopped", "at 4 s heal"), 6)
    assert [without_time(row) for row in rows] == real
    assert (timestamps(rows, "process_stopped"), timestamps(rows, "process_continued")) == ([2.5], [4.0])


def test_restart_ends_everybody_who_is_still_there_and_puts_ranks_elsewhere() -> None:
    rows = events(scenario("at 2 s fail rank:3 killed", "at 4 s restart without h2 after 3 s"), 8)
    ended = [row["message"].split()[1] for row in rows if "SIGTERM" in row["message"]]
    assert ended == [str(rank) for rank in range(16) if rank != 3]
    (row,) = [row for row in rows if row["kind"] == "process_exit" and "SIGKILL" in row["message"]]
    assert (row["rank"], row["pid"], row["signal"]) == (3, FIRST_PID + 3, 9)  # numbered by GPU
    assert f"(pid {FIRST_PID + 3}, " in row["message"]
    rows = events(scenario("at 2 s restart with h4 for h1 after 1 s", "at 5 s fail rank:5 killed", spares=2), 7)
    assert [row["host"] for row in rows if "SIGKILL" in row["message"]] == ["h4"]


def link(is_up: bool, downs: int, ups: int) -> Link:
    state = "up" if is_up else "down"
    return Link("eth0", 2, is_up, True, state, has_device=True, carrier_downs=downs, carrier_ups=ups)


def test_carrier_that_comes_and_goes_is_told_as_a_real_one() -> None:
    watch, real = LinkWatch("h1", "eth0"), []
    watch.observe(T0, link(True, 0, 1))
    for number in range(4):
        begin_ns = T0 + (5 + 10 * number) * SECOND
        real += watch.observe(begin_ns, link(False, number + 1, number + 1))
        real += watch.observe(begin_ns + 2 * SECOND, link(True, number + 1, number + 2))
    rows = events(scenario("at 5 s fail nic:h1/eth0 down for 2 s every 10 s"), 40)
    rows = [row for row in rows if row["source"] == "links"]
    assert rows == [asdict(event) for event in real]
    assert timestamps(rows, "link_flapping") == [25.0]


def test_a_link_flaps_again_after_it_was_quiet() -> None:
    assert find_flapping([0.0, 10.0]) == []
    assert find_flapping([0.0, 300.0, 601.0]) == []
    assert find_flapping([0.0, 10.0, 20.0, 30.0, 5000.0, 5010.0, 5020.0]) == [20.0, 5020.0]


DOWN, UP = ("h1", "nic:h1/eth0", "link_down"), ("h1", "nic:h1/eth0", "link_up")
GAVE_UP = ("h0", "nic:h0/eth0", "ib_completion_error")


@pytest.mark.parametrize(
    ("lines", "transport", "seconds", "expected"),
    [
        (("at 5 s fail link:h1/eth0--leaf0 down", "at 8 s heal link:h1/eth0--leaf0"), "socket", 12, [DOWN, UP]),
        (("at 5 s fail link:leaf0--spine0 down", "at 8 s heal"), "socket", 12, []),  # no host sees it
        (("at 0 s fail nic:h1/eth0 down", "at 4 s heal"), "socket", 6, [UP]),  # it was never there
        (("at 5 s fail nic:h1/eth0 down for 20 s",), "ib", 60, [DOWN, UP]),  # back before anybody gives up
        (("at 5 s fail host:h1 gone", "at 5.5 s fail nic:h1/eth0 down", "at 9 s heal"), "socket", 15, []),
        (("at 5 s fail host:h1 gone",), "ib", 60, [GAVE_UP, ("h0", "nic:h0/eth1", "ib_completion_error")]),
    ],
)
def test_links_and_hosts_that_go_are_told_by_those_who_see_it(
    lines: tuple[str, ...], transport: str, seconds: int, expected: list[tuple[str, str, str]]
) -> None:
    rows = events(scenario(*lines, transport=transport, spines=1), seconds)
    assert [(row["host"], row["component"], row["kind"]) for row in rows] == expected


def test_nobody_gives_up_after_a_restart() -> None:
    lines = ("at 5 s fail nic:h1/eth0 down", "at 20 s restart without h1 after 5 s")
    assert timestamps(events(scenario(*lines, transport="ib"), 60), "ib_completion_error") == []


def as_nccl_says(row: Row) -> str | None:
    """Check an event against what the collector makes of the warning it quotes, as in NCCL's log; return the port."""
    words = row["message"].partition(": ")[2]
    line = read_line(f"h1:1005:1006 [1] net.cc:1 NCCL WARN {words.partition(' (status 12')[0]}".encode())
    fact = understand(line) if line else None
    assert isinstance(fact, FailedCompletion | Warned)
    real = load_words().describe(fact)
    assert real is not None
    assert (row["kind"], row["severity"], words) == (real.kind, real.severity, real.message)
    return real.port


def test_peers_of_a_killed_process_find_its_sockets_closed() -> None:
    rows = [row for row in events(scenario("at 5 s fail rank:5 killed"), 40) if row["source"] == "connections"]
    assert {row["host"] for row in rows} <= {"h0", "h2"}
    assert timestamps(rows, "socket_closed") == [pytest.approx(5 + CLOSING_S)] * len(rows)
    assert rows
    for row in rows:
        as_nccl_says(row)
        assert "closed by remote peer h1<" in row["message"]
        assert row["component"] == f"host:{row['host']}"
    assert len({row["message"].split()[1] for row in rows}) == len(rows)


def test_sender_into_a_dead_wire_gives_up_when_its_retries_are_used_up() -> None:
    rows = events(scenario("at 5 s fail nic:h1/eth0 down", transport="ib"), 60)
    rows = [row for row in rows if row["source"] != "links"]
    assert timestamps(rows, "ib_completion_error") == [pytest.approx(5 + RETRY_BUDGET_S)] * len(rows)
    assert pytest.approx(30.0, abs=0.1) == RETRY_BUDGET_S
    assert "nic:h1/eth0" in {row["component"] for row in rows}
    assert {row["host"] for row in rows} == {"h0", "h1"}  # those who send into it, from either side
    assert [row["component"] for row in rows] == [f"nic:{row['host']}/{as_nccl_says(row)}" for row in rows]


UNSEEN = ["fail gpu:h1/0 stuck", "fail gpu:h1/0 to 50 %", "fail rank:5 absent", "fail rank:5 late 300 ms"]
UNSEEN += ["fail host:h1 starved to 20 %", "fail nic:h1/eth0 to 50 %", "fail link:h1/eth0--leaf0 losing 5 %"]


@pytest.mark.parametrize("line", [*UNSEEN, "pause 2 s"])
def test_what_no_collector_sees_is_no_event(line: str) -> None:
    assert events(scenario(f"at 2 s {line}"), 10) == []
