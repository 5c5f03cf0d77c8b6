"""Who uses NCCL is found by ring, environment or library, and its rows are sent again only when they say more."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from collector.connections.flows import Kernel, KernelView
from collector.connections.log_report import LoggedConnection
from collector.connections.processes import NcclProcess, NcclProcesses, find_job, socket_inodes
from collector.connections.rows import (
    HostNics,
    Key,
    Owner,
    SentRows,
    is_better,
    network_transport,
    read_nics,
    rows_of_log,
    worth_of,
)
from collector.sources.connections import load_words
from collector.supervision import Membership
from lockstep.errors import NotPresent
from lockstep.records import Connection
from lockstep.topology import Gpu, Nic, Node, Topology
from tests.collector.sources.imitated_nccl import imitate_process
from tests.collector.sources.imitated_rdma import imitate_port

LIBRARY = "7f00 r-xp 00000000 00:1b 10 /usr/lib/libnccl.so.2\n"


def scan(root: Path, *holders: int, host: str | None = None) -> list[NcclProcess]:
    return NcclProcesses(root, lambda: holders, host=host).scan()


def pids(processes: list[NcclProcess]) -> list[int]:
    return [process.pid for process in processes]


def test_holder_of_a_ring_a_name_for_the_log_and_a_rank_with_the_library_are_found_and_nonsense_is_not(
    tmp_path: Path,
) -> None:
    with pytest.raises(NotPresent, match=f"no processes in {tmp_path}/proc"):
        NcclProcesses(tmp_path).scan()
    imitate_process(tmp_path, 1, {"PATH": "/bin"}, maps=LIBRARY)
    late = imitate_process(tmp_path, 2, {"RANK": "0"})
    imitate_process(tmp_path, 3, {"RANK": "0"}, maps=LIBRARY)
    imitate_process(tmp_path, 4, {"NCCL_DEBUG_FILE": "x"})
    imitate_process(tmp_path, 5, {})
    for pid, broken in enumerate(("stat", "status", "environ"), 6):
        (imitate_process(tmp_path, pid, {"NCCL_DEBUG_FILE": "x"}) / broken).write_text("nonsense")
    processes = NcclProcesses(tmp_path, lambda: (5,))
    assert pids(processes.scan()) == [5, 3, 4]
    (late / "maps").write_text(LIBRARY)  # asked again only after a while
    found = [pids(processes.scan()) for _ in range(12)]
    assert (found[0], sorted(found[-1])) == ([5, 3, 4], [2, 3, 4, 5])


def test_process_reports_its_number_user_names_job_and_sockets_and_no_name_through_a_link(tmp_path: Path) -> None:
    environ = {"NCCL_DEBUG_FILE": "x", "HOSTNAME": "pod-1", "LOCKSTEP_JOB": "told"}
    folder, proc = imitate_process(tmp_path, 300, environ, namespace_pid=7, sockets=[7, 8]), tmp_path / "proc"
    name = folder / "root/etc/hostname"
    name.parent.mkdir()
    name.write_text("pod-2\n")
    (process,) = scan(tmp_path)
    assert (process.namespace_pid, process.uid, process.hostnames) == (7, os.getuid(), ("pod-1", "pod-2"))
    assert find_job(proc, process) == "told"
    (folder / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_4711/step_0\n")
    assert find_job(proc, process) == "4711", "that of the control group first"
    for number, target in ((9, "/dev/null"), (10, "socket:[x]")):
        (folder / f"fd/{number}").symlink_to(target)
    assert (socket_inodes(proc, 300), socket_inodes(proc, 4)) == ({7, 8}, set())
    (tmp_path / "secret").write_text("secret")
    name.unlink()
    name.symlink_to(tmp_path / "secret")
    assert [each.hostnames for each in scan(tmp_path)] == [("pod-1",)]


def test_process_on_another_host_that_this_machine_plays_is_left_out(tmp_path: Path) -> None:
    """Only one that says so and has a network of its own: a name may be spelt differently, and pods have networks."""
    for pid, host, network in ((3, "h1", "net:[2]"), (4, "h0.rack1", "net:[1]"), (5, "h0", "net:[2]")):
        folder = imitate_process(tmp_path, pid, {"NCCL_DEBUG_FILE": "x", "LOCKSTEP_HOST": host})
        (folder / "ns").mkdir(exist_ok=True)
        (folder / "ns/net").symlink_to(network)
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/net").symlink_to("net:[1]")
    assert pids(scan(tmp_path, host="h0")) == [4, 5]


NODE = Node(
    id="h0",
    kind="host",
    nics=(Nic(id="eth0"), Nic(id="mlx5_1")),
    gpus=(Gpu(id="a", index=0, nics=("eth0",)), Gpu(id="b", index=1, nics=("eth0", "mlx5_1"))),
)
NICS = HostNics({"mlx5_0": ("eth0",), "mlx5_1": ("eth1",), "mlx4_0:1": (), "mlx4_0:2": ()}, ("eth0", "eth1"), NODE)


def test_nic_is_named_as_in_the_topology_or_as_its_counters_and_gpu_and_host_have_one_where_it_is_the_only_one() -> (
    None
):
    ports = {"mlx5_0:1": "eth0", "mlx5_1:1": "mlx5_1", "mlx4_0:2": "mlx4_0:2"}
    ports |= dict.fromkeys(("mlx5_9:1", "mlx5_9"), "mlx5_9")
    assert {port: NICS.name_port(port) for port in ports} == ports
    interfaces = {"eth0": "eth0", "eth1": "mlx5_1", "eth9": "eth9"}
    assert {interface: NICS.name_interface(interface) for interface in interfaces} == interfaces
    assert NICS.name_devices(("mlx5_0:1", "mlx5_1:1"), "ib") == "eth0,mlx5_1"
    assert NICS.name_devices((), "ib") is None
    assert [NICS.nic_of_gpu(gpu) for gpu in (0, 1, 2, None)] == ["eth0", None, None, None]
    hosts = NICS, HostNics({"mlx5_0": ("eth0",)}, ("eth0", "eth1")), HostNics({}, ("eth0",)), HostNics()
    assert [host.only_nic() for host in hosts] == [None, "mlx5_0", "eth0", None]


def test_nics_are_read_from_sysfs_without_those_that_are_software(tmp_path: Path) -> None:
    imitate_port(tmp_path, "mlx5_0", netdev="eth0")
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    (tmp_path / "sys/class/net/docker0").mkdir()
    topology = Topology(routing="ecmp", nodes=(NODE,), links=())
    assert read_nics(tmp_path, "h0", topology) == HostNics({"mlx5_0": ("eth0",)}, ("eth0",), NODE)
    assert read_nics(tmp_path / "none", "h9", topology) == HostNics()


def test_zombie_beside_a_rank_is_one_line_in_the_log_and_hides_nothing_of_the_others(tmp_path: Path) -> None:
    for pid in ("self", "7"):
        (tmp_path / "proc" / pid / "ns").mkdir(parents=True)
        (tmp_path / "proc" / pid / "ns/net").symlink_to("net:[1]")
    (tmp_path / "proc" / "8").mkdir()  # has no namespaces any more, and nobody waits for it
    zombie, rank = (NcclProcess(pid, pid, 0, pid, (), Membership(), "", 0, {}, holds_ring=False) for pid in (8, 7))
    view = KernelView(tmp_path, Kernel(sockets=lambda _: [], addresses=lambda _: {}, pairs=list))
    with capture_logs() as lines:
        found = [view.sockets_of([zombie, rank]) for _ in range(3)]
    assert [list(each) for each in found] == [[7]] * 3
    assert [line["event"] for line in lines] == ["the kernel does not show all of connections"]


OWNER = Owner((42, 7), "h0", "job", 0, 1)
LOGGED = LoggedConnection(1, 0, 1, 0, "send", "NET", "IB", ("mlx5_0:1",), "", None, confidence=0.9)


def row_of(logged: LoggedConnection = LOGGED) -> Connection:
    (row,) = rows_of_log(OWNER, [logged], HostNics(), load_words().networks).rows.values()
    return row


def better(row: Connection, sent: Connection) -> bool:
    return is_better(worth_of(row), worth_of(sent))


def test_row_with_more_confidence_or_another_field_is_better_and_one_seen_later_is_not() -> None:
    row = row_of()
    assert better(replace(row, confidence=0.95), replace(row, sport=1))
    assert not better(replace(row, confidence=0.5, sport=1), row)
    assert better(replace(row, sport=1), row)
    assert not better(row, replace(row, sport=1))
    assert not better(replace(row, seen_ns=9), row)
    nameless = row_of(replace(LOGGED, devices=()))
    assert (nameless.nic, nameless.confidence) == (None, 0.45)


def test_rows_beyond_the_limit_come_the_next_time_and_those_without_room_are_counted_once() -> None:
    sent = SentRows()
    rows: dict[Key, Connection] = {(42, 7, number): row_of() for number in range(5)}
    assert [len(sent.choose(rows, 3)), sent.has_more] == [3, True]
    assert [len(sent.choose(rows, 3)), sent.has_more] == [2, False]
    assert sent.choose(rows, 3) == []
    sent = SentRows()
    sent.MOST_ROWS = 2
    mine: dict[Key, Connection] = {(1, 1, number): row_of() for number in range(2)}
    others: dict[Key, Connection] = {(2, 1, number): row_of() for number in range(2)}
    for _ in range(3):
        sent.choose(mine, 10)
        sent.choose(others, 10)
    assert [sent.pop_lost(), sent.pop_lost()] == [2, 0]
    sent.forget_all_but([(2, 1)])
    assert len(sent.choose(others, 10)) == 2


def test_networks_are_known_by_how_they_begin() -> None:
    networks = load_words().networks
    names = ["IB", "IBext_v8", "ib", "Socket", "AWS Libfabric", "Libfabric", "FastSocket", "gIB", "Pigeon"]
    found = [network_transport(name, networks) for name in names]
    assert found == ["ib", "ib", "ib", "socket", "ofi", "ofi", "socket", "ib", None]
