"""Who uses NCCL is found by ring, environment or library, and asked again only after a while."""

import os
from pathlib import Path

import pytest

from collector.connections.processes import NcclProcesses, find_job, socket_inodes
from collector.connections.rows import HostNics, read_nics
from lockstep.errors import NotPresent
from lockstep.topology import Gpu, Nic, Node, Topology
from tests.collector.sources.imitated_nccl import imitate_process
from tests.collector.sources.imitated_rdma import imitate_port

LIBRARY = "7f00 r-xp 00000000 00:1b 10 /usr/lib/libnccl.so.2\n"


def pids(root: Path, *holders: int) -> list[int]:
    return [process.pid for process in NcclProcesses(root, lambda: holders).scan()]


def test_holder_of_a_ring_a_name_for_the_log_and_a_rank_with_the_library_are_found(tmp_path: Path) -> None:
    imitate_process(tmp_path, 1, {"PATH": "/bin"}, maps=LIBRARY)
    imitate_process(tmp_path, 2, {"RANK": "0"})
    imitate_process(tmp_path, 3, {"RANK": "0"}, maps=LIBRARY)
    imitate_process(tmp_path, 4, {"NCCL_DEBUG_FILE": "x"})
    imitate_process(tmp_path, 5, {})
    assert pids(tmp_path, 5) == [5, 3, 4]


def test_process_that_loads_nccl_late_is_found_after_a_while(tmp_path: Path) -> None:
    folder = imitate_process(tmp_path, 3, {"RANK": "0"})
    processes = NcclProcesses(tmp_path, lambda: ())
    assert processes.scan() == []
    (folder / "maps").write_text(LIBRARY)
    found = [len(processes.scan()) for _ in range(12)]
    assert (found[0], found[-1]) == (0, 1)


def test_process_reports_its_own_number_user_and_names_and_none_through_a_link(tmp_path: Path) -> None:
    folder = imitate_process(tmp_path, 300, {"NCCL_DEBUG_FILE": "x", "HOSTNAME": "pod-1"}, namespace_pid=7)
    name = folder / "root/etc/hostname"
    name.parent.mkdir()
    name.write_text("pod-2\n")
    (process,) = NcclProcesses(tmp_path, lambda: ()).scan()
    assert (process.namespace_pid, process.uid, process.hostnames) == (7, os.getuid(), ("pod-1", "pod-2"))
    (tmp_path / "secret").write_text("secret")
    name.unlink()
    name.symlink_to(tmp_path / "secret")
    (process,) = NcclProcesses(tmp_path, lambda: ()).scan()
    assert process.hostnames == ("pod-1",)


def test_process_on_another_host_that_this_machine_plays_is_left_out(tmp_path: Path) -> None:
    """Only one that says so and has a network of its own: a name may be spelt differently, and pods have networks."""
    for pid, host, network in ((3, "h1", "net:[2]"), (4, "h0.rack1", "net:[1]"), (5, "h0", "net:[2]")):
        folder = imitate_process(tmp_path, pid, {"NCCL_DEBUG_FILE": "x", "LOCKSTEP_HOST": host})
        (folder / "ns").mkdir(exist_ok=True)
        (folder / "ns/net").symlink_to(network)
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/net").symlink_to("net:[1]")
    assert [process.pid for process in NcclProcesses(tmp_path, lambda: (), host="h0").scan()] == [4, 5]


def test_process_of_which_the_kernel_says_nonsense_is_passed_over(tmp_path: Path) -> None:
    with pytest.raises(NotPresent, match=f"no processes in {tmp_path}/proc"):
        NcclProcesses(tmp_path).scan()
    for pid, broken in enumerate(("stat", "status", "environ"), 1):
        (imitate_process(tmp_path, pid, {"NCCL_DEBUG_FILE": "x"}) / broken).write_text("nonsense")
    imitate_process(tmp_path, 4, {"NCCL_DEBUG_FILE": "x"})
    assert pids(tmp_path) == [4]


def test_job_is_that_of_the_control_group_first_and_sockets_are_those_among_the_open_files(tmp_path: Path) -> None:
    folder = imitate_process(tmp_path, 3, {"NCCL_DEBUG_FILE": "x", "LOCKSTEP_JOB": "told"})
    (process,) = NcclProcesses(tmp_path, lambda: ()).scan()
    assert find_job(tmp_path / "proc", process) == "told"
    (folder / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_4711/step_0\n")
    assert find_job(tmp_path / "proc", process) == "4711"
    folder = imitate_process(tmp_path, 5, sockets=[7, 8])
    (folder / "fd/9").symlink_to("/dev/null")
    (folder / "fd/10").symlink_to("socket:[x]")
    assert socket_inodes(tmp_path / "proc", 5) == {7, 8}
    assert socket_inodes(tmp_path / "proc", 4) == set()


NODE = Node(
    id="h0",
    kind="host",
    nics=(Nic(id="eth0"), Nic(id="mlx5_1")),
    gpus=(Gpu(id="a", index=0, nics=("eth0",)), Gpu(id="b", index=1, nics=("eth0", "mlx5_1"))),
)
NICS = HostNics({"mlx5_0": ("eth0",), "mlx5_1": ("eth1",), "mlx4_0:1": (), "mlx4_0:2": ()}, ("eth0", "eth1"), NODE)


def test_nic_is_named_as_in_the_topology_or_as_its_counters() -> None:
    ports = {"mlx5_0:1": "eth0", "mlx5_1:1": "mlx5_1", "mlx4_0:2": "mlx4_0:2"}
    ports |= dict.fromkeys(("mlx5_9:1", "mlx5_9"), "mlx5_9")
    assert {port: NICS.name_port(port) for port in ports} == ports
    interfaces = {"eth0": "eth0", "eth1": "mlx5_1", "eth9": "eth9"}
    assert {interface: NICS.name_interface(interface) for interface in interfaces} == interfaces
    assert NICS.name_devices(("mlx5_0:1", "mlx5_1:1"), "ib") == "eth0,mlx5_1"
    assert NICS.name_devices((), "ib") is None


def test_gpu_and_host_have_a_nic_where_there_is_only_one() -> None:
    assert [NICS.nic_of_gpu(gpu) for gpu in (0, 1, 2, None)] == ["eth0", None, None, None]
    assert NICS.only_nic() is None
    assert HostNics({"mlx5_0": ("eth0",)}, ("eth0", "eth1")).only_nic() == "mlx5_0"
    assert HostNics({}, ("eth0",)).only_nic() == "eth0"
    assert HostNics().only_nic() is None


def test_nics_are_read_from_sysfs_without_those_that_are_software(tmp_path: Path) -> None:
    imitate_port(tmp_path, "mlx5_0", netdev="eth0")
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    (tmp_path / "sys/class/net/docker0").mkdir()
    topology = Topology(routing="ecmp", nodes=(NODE,), links=())
    assert read_nics(tmp_path, "h0", topology) == HostNics({"mlx5_0": ("eth0",)}, ("eth0",), NODE)
    assert read_nics(tmp_path / "none", "h9", topology) == HostNics()
