"""A program's connections leave from planned ports where the plan names them, and as ever where anything is amiss."""

import json
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.host_paths import MOST_BYTES, PathEntry
from tests.path_shim.playing import Stage, build_shim, stage
from tests.testbed.paths.shim import LIBRARY

ONE = "tell(local(connect(int(sys.argv[1]))))"


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path, agent=str(tmp_path / "agent")) as made:
        yield made


Entries = Callable[[Stage, int, int], list[PathEntry]]  # of a stage and two ports that are free
V6 = "tell(local(connect(int(sys.argv[1]), '::ffff:127.0.0.1', family=socket.AF_INET6)))"
BOUND_ADDRESS = """
peer = socket.socket()
peer.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
peer.bind(("127.0.0.3", 0))
peer.connect(("127.0.0.1", int(sys.argv[1])))
tell(local(peer))
"""
ELSEWHERE = "203.0.113.7"


@pytest.mark.parametrize(
    ("entries", "program", "address", "lease_end_s"),
    [
        (lambda shim, a, b: [shim.entry(a)], ONE, "127.0.0.1", 1 << 40),
        (lambda shim, a, b: [shim.entry(a)], ONE, "127.0.0.1", 1),  # in force although its lease is over
        (lambda shim, a, b: [shim.entry(shim.busy_port(), a)], ONE, "127.0.0.1", 1 << 40),
        (lambda shim, a, b: [PathEntry("127.0.0.1", (a,))], ONE, "127.0.0.1", 1 << 40),  # any port there
        (
            lambda shim, a, b: [shim.entry(b, source=ELSEWHERE), shim.entry(a, source="127.0.0.2")],
            ONE,
            "127.0.0.2",
            1 << 40,
        ),
        (lambda shim, a, b: [shim.entry(b, source="127.0.0.2"), shim.entry(a)], BOUND_ADDRESS, "127.0.0.3", 1 << 40),
        (lambda shim, a, b: [shim.entry(a)], V6, "::ffff:127.0.0.1", 1 << 40),
    ],
    ids=["planned", "lease over", "busy first", "any port", "our own address", "bound to an address", "v4 in v6"],
)
def test_planned_connection_leaves_from_its_port_and_is_reported(
    shim: Stage, entries: Entries, program: str, address: str, lease_end_s: int
) -> None:
    port, other = shim.free_ports(2)
    shim.plan(*entries(shim, port, other), lease_end_s=lease_end_s)
    assert shim.play(program) == [address, port]
    (report,) = shim.reports
    assert (report.sport, report.remote, report.dport) == (port, "127.0.0.1", shim.port)
    assert report.local == address.removeprefix("::ffff:")
    assert (report.generation, report.outcome) == (1, "enforced")


@pytest.mark.parametrize(
    ("entries", "outcomes"),
    [
        (lambda shim, a, b: [shim.entry(shim.busy_port())], ["busy"]),
        (lambda shim, a, b: [shim.entry(a, dport=1), PathEntry("127.0.0.9", (b,))], []),  # not what it names
        (lambda shim, a, b: [shim.entry(a, source=ELSEWHERE), PathEntry("127.0.0.1", (), None, ELSEWHERE)], []),
    ],
    ids=["all busy", "other destinations", "other hosts"],
)
def test_without_a_free_port_the_connection_is_made(shim: Stage, entries: Entries, outcomes: list[str]) -> None:
    free = shim.free_ports(2)
    shim.plan(*entries(shim, *free))
    told = shim.play(ONE)
    assert told[1] not in free
    assert shim.outcomes == outcomes
    assert [report.sport for report in shim.reports] == [told[1]] * len(outcomes)


def test_several_connections_take_one_planned_port_after_the_other_and_none_is_shared(shim: Stage) -> None:
    """Two sockets on one port, to one server: connect() itself would fail then, and the program with it."""
    ports = shim.free_ports(3)
    shim.plan(shim.entry(*ports))
    told = shim.play(
        """
peers = [socket.socket() for _ in range(3)]
for reuse, peer in enumerate(peers):
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, min(reuse, 1))
    peer.connect(("127.0.0.1", int(sys.argv[1])))
tell([[local(p)[1], p.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)] for p in peers])
"""
    )
    assert told == [[ports[0], 0], [ports[1], 1], [ports[2], 1]]
    assert shim.outcomes == ["enforced"] * 3


def test_socket_that_the_program_has_bound_stays_so_and_an_ipv6_destination_is_planned(shim: Stage) -> None:
    planned, chosen = shim.free_ports(2)
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        shim.plan(shim.entry(planned), PathEntry("::1", (planned,)))
        told = shim.play(
            f"tell([local(connect(int(sys.argv[1]), source=('127.0.0.1', {chosen}))),"
            f"local(connect({server.getsockname()[1]}, '::1', family=socket.AF_INET6))])"
        )
    assert told == [["127.0.0.1", chosen], ["::1", planned]]
    assert shim.outcomes == ["bound", "enforced"]


TWICE = """
tell(local(connect(int(sys.argv[1]))))
wait()
tell(local(connect(int(sys.argv[1]))))
"""


def hear(process: "subprocess.Popen[str]", go_on: bool = False) -> int:
    """Return the port that the program tells next, after a line that lets it go on."""
    assert process.stdin is not None
    assert process.stdout is not None
    if go_on:
        process.stdin.write("\n")
        process.stdin.flush()
    return int(json.loads(process.stdout.readline())[1])


def test_running_process_follows_a_new_plan(shim: Stage) -> None:
    first, second = shim.free_ports(2)
    shim.plan(shim.entry(first))
    with shim.start(TWICE) as process:
        assert hear(process) == first
        shim.plan(shim.entry(second))
        assert hear(process, go_on=True) == second
    assert [report.generation for report in shim.reports] == [1, 2]


def test_running_process_does_not_go_back_to_an_older_plan(shim: Stage) -> None:
    first, second = shim.free_ports(2)
    shim.plan()
    shim.plan(shim.entry(first))
    with shim.start(TWICE) as process:
        assert hear(process) == first
        older = shim.files.plan.read_text().replace("lockstep-paths 1 2 ", "lockstep-paths 1 1 ")
        shim.files.plan.write_text(older.replace(str(first), str(second)))
        assert hear(process, go_on=True) not in (first, second)
    assert shim.outcomes == ["enforced", "stale"]


def test_damaged_plan_is_no_plan(shim: Stage) -> None:
    (port,) = shim.free_ports(1)
    shim.plan(shim.entry(port))
    shim.files.plan.write_bytes(shim.files.plan.read_bytes()[:-1])

    assert shim.play(ONE)[1] != port
    assert shim.outcomes == ["damaged"]


@pytest.mark.parametrize("kind", ["nothing", "fifo", "directory", "too large", "unreadable"])
def test_what_is_no_file_of_a_plan_holds_nobody_up(shim: Stage, kind: str) -> None:
    plan = shim.files.plan
    plan.parent.mkdir()
    if kind == "fifo":
        os.mkfifo(plan)
    elif kind == "directory":
        plan.mkdir()
    elif kind == "too large":
        plan.write_bytes(b"x" * (MOST_BYTES + 1))
    elif kind == "unreadable":
        plan.symlink_to(plan)

    assert shim.play(ONE)[0] == "127.0.0.1"
    assert [each for each in shim.outcomes if each != "damaged"] == []


def test_report_of_a_process_does_not_grow_without_end(shim: Stage) -> None:
    shim.plan(shim.entry(*shim.free_ports(1)))
    shim.play(
        """
file = os.path.join(os.environ["LOCKSTEP_PATHS_REPORT_DIR"], str(os.getpid()))
open(file, "wb").write(bytes(1 << 20))
tell(local(connect(int(sys.argv[1]))))
"""
    )
    (report,) = shim.files.reports.iterdir()
    assert report.stat().st_size == 1 << 20


def test_forked_child_reports_under_its_own_number(shim: Stage) -> None:
    shim.plan(shim.entry(*shim.free_ports(4)))
    told = shim.play(
        """
keep = connect(int(sys.argv[1]))
child = os.fork()
if child == 0:
    connect(int(sys.argv[1]))
    os._exit(0)
os.waitpid(child, 0)
tell([os.getpid(), child])
"""
    )
    assert sorted(report.pid for report in shim.reports) == sorted(told)
    assert shim.outcomes == ["enforced", "enforced"]


def output_of(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_only_connect_is_exported_only_libc_is_needed_and_nothing_is_allocated() -> None:
    if shutil.which("readelf") is None:
        pytest.skip("looking into the library needs readelf")
    library = build_shim() / LIBRARY
    symbols = output_of("readelf", "--dyn-syms", "--wide", library)
    entries = [row for row in map(str.split, symbols.splitlines()) if len(row) == 8 and row[0].rstrip(":").isdigit()]
    assert [row[7] for row in entries if row[4] != "LOCAL" and row[6] != "UND"] == ["connect"]
    assert re.findall(r"\b(malloc|calloc|realloc|free|pthread_mutex_lock)@", symbols) == []
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", output_of("readelf", "--dynamic", "--wide", library))
    assert set(needed) - {"libdl.so.2"} == {"libc.so.6"}  # glibc before 2.34 has dlsym in a library of its own
