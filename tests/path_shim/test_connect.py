"""A program's connections leave from planned ports where the plan names them, and as ever where anything is amiss."""

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.path_file import MOST_BYTES, PathEntry
from tests.path_shim.playing import Stage, stage

ONE = "tell(local(connect(int(sys.argv[1]))))"


@pytest.fixture
def shim(tmp_path: Path) -> Iterator[Stage]:
    with stage(tmp_path, agent=str(tmp_path / "agent")) as made:
        yield made


def test_planned_connection_leaves_from_its_port_and_is_reported(shim: Stage) -> None:
    (port,) = shim.free_ports(1)
    shim.plan(shim.entry(port))

    assert shim.play(ONE) == ["127.0.0.1", port]
    (report,) = shim.reports
    assert (report.local, report.sport, report.remote, report.dport) == ("127.0.0.1", port, "127.0.0.1", shim.port)
    assert (report.generation, report.outcome) == (1, "enforced")


def test_several_connections_take_one_planned_port_after_the_other(shim: Stage) -> None:
    ports = shim.free_ports(3)
    shim.plan(shim.entry(*ports))

    told = shim.play("tell([local(p)[1] for p in [connect(int(sys.argv[1])) for _ in range(3)]])")

    assert told == ports
    assert shim.outcomes == ["enforced"] * 3


def test_busy_port_is_passed_over_for_the_next(shim: Stage) -> None:
    (port,) = shim.free_ports(1)
    shim.plan(shim.entry(shim.busy_port(), port))

    assert shim.play(ONE)[1] == port


def test_where_all_ports_are_busy_the_connection_is_made_all_the_same(shim: Stage) -> None:
    busy = shim.busy_port()
    shim.plan(shim.entry(busy))

    told = shim.play(ONE)
    assert told[1] != busy
    assert shim.outcomes == ["busy"]
    assert shim.reports[0].sport == told[1]


def test_port_is_not_shared_even_where_the_program_allows_it(shim: Stage) -> None:
    """Two sockets on one port, to one server: connect() itself would fail then, and the program with it."""
    first, second = shim.free_ports(2)
    shim.plan(shim.entry(first, second))

    told = shim.play(
        """
peers = [socket.socket() for _ in range(2)]
for peer in peers:
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    peer.connect(("127.0.0.1", int(sys.argv[1])))
tell([[local(p)[1], p.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)] for p in peers])
"""
    )
    assert told == [[first, 1], [second, 1]]


def test_destination_that_the_plan_does_not_name_is_left_alone(shim: Stage) -> None:
    (port,) = shim.free_ports(1)
    shim.plan(shim.entry(port, dport=1), PathEntry("127.0.0.9", (port,)))

    assert shim.play(ONE)[1] != port
    assert shim.reports == []


def test_entry_for_any_port_of_a_destination_is_used(shim: Stage) -> None:
    (port,) = shim.free_ports(1)
    shim.plan(PathEntry("127.0.0.1", (port,)))

    assert shim.play(ONE)[1] == port


def test_entries_of_other_hosts_are_passed_over_and_our_own_gives_the_address(shim: Stage) -> None:
    theirs, ours = shim.free_ports(2)
    shim.plan(shim.entry(theirs, source="203.0.113.7"), shim.entry(ours, source="127.0.0.2"))

    assert shim.play(ONE) == ["127.0.0.2", ours]


def test_destination_that_is_planned_on_other_hosts_only_is_not_ours_to_report(shim: Stage) -> None:
    shim.plan(shim.entry(4000, source="203.0.113.7"), PathEntry("127.0.0.1", (), None, "203.0.113.7"))
    shim.play(ONE)

    assert shim.reports == []


def test_socket_that_the_program_has_bound_stays_so(shim: Stage) -> None:
    planned, chosen = shim.free_ports(2)
    shim.plan(shim.entry(planned))

    told = shim.play(f"tell(local(connect(int(sys.argv[1]), source=('127.0.0.1', {chosen}))))")
    assert told[1] == chosen
    assert shim.outcomes == ["bound"]


def test_address_without_a_port_that_the_program_has_bound_is_kept(shim: Stage) -> None:
    elsewhere, here = shim.free_ports(2)
    shim.plan(shim.entry(elsewhere, source="127.0.0.2"), shim.entry(here))

    told = shim.play(
        """
peer = socket.socket()
peer.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
peer.bind(("127.0.0.3", 0))
peer.connect(("127.0.0.1", int(sys.argv[1])))
tell(local(peer))
"""
    )
    assert told == ["127.0.0.3", here]


def test_ipv6_socket_to_an_ipv4_address_is_planned_by_that_address(shim: Stage) -> None:
    (port,) = shim.free_ports(1)
    shim.plan(shim.entry(port))

    told = shim.play("tell(local(connect(int(sys.argv[1]), '::ffff:127.0.0.1', family=socket.AF_INET6)))")
    assert told[1] == port
    assert shim.reports[0].remote == "127.0.0.1"


def test_ipv6_destination_is_planned(shim: Stage) -> None:
    (port,) = shim.free_ports(1)
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        shim.plan(PathEntry("::1", (port,)))
        told = shim.play(f"tell(local(connect({server.getsockname()[1]}, '::1', family=socket.AF_INET6)))")

    assert told == ["::1", port]


def test_plan_stays_in_force_when_its_lease_is_over(shim: Stage) -> None:
    (port,) = shim.free_ports(1)
    shim.plan(shim.entry(port), lease_end_s=1)

    assert shim.play(ONE)[1] == port


TWICE = """
tell(local(connect(int(sys.argv[1]))))
wait()
tell(local(connect(int(sys.argv[1]))))
"""


def say(process: "subprocess.Popen[str]") -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def hear(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    return int(json.loads(process.stdout.readline())[1])


def test_running_process_follows_a_new_plan(shim: Stage) -> None:
    first, second = shim.free_ports(2)
    shim.plan(shim.entry(first))
    with shim.start(TWICE) as process:
        assert hear(process) == first
        shim.plan(shim.entry(second))
        say(process)
        assert hear(process) == second

    assert [report.generation for report in shim.reports] == [1, 2]


def test_running_process_does_not_go_back_to_an_older_plan(shim: Stage) -> None:
    first, second = shim.free_ports(2)
    shim.plan()
    shim.plan(shim.entry(first))
    with shim.start(TWICE) as process:
        assert hear(process) == first
        older = shim.files.plan.read_text().replace("lockstep-paths 1 2 ", "lockstep-paths 1 1 ")
        shim.files.plan.write_text(older.replace(str(first), str(second)))
        say(process)
        assert hear(process) not in (first, second)

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
