"""Who uses NCCL is found by ring, environment or library, and asked again only after a while."""

import os
from pathlib import Path

import pytest

from collector.connections.processes import NcclProcesses, find_job, socket_inodes
from lockstep.errors import NotPresent
from tests.collector.sources.imitated_nccl import imitate_process

LIBRARY = "7f00 r-xp 00000000 00:1b 10 /usr/lib/libnccl.so.2\n"


def pids(root: Path, *holders: int) -> list[int]:
    return [process.pid for process in NcclProcesses(root, lambda: holders).look()]


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
    assert processes.look() == []
    (folder / "maps").write_text(LIBRARY)
    found = [len(processes.look()) for _ in range(12)]
    assert (found[0], found[-1]) == (0, 1)


def test_process_reports_its_own_number_user_and_names(tmp_path: Path) -> None:
    folder = imitate_process(tmp_path, 300, {"NCCL_DEBUG_FILE": "x", "HOSTNAME": "pod-1"}, namespace_pid=7)
    (folder / "root/etc").mkdir()
    (folder / "root/etc/hostname").write_text("pod-2\n")
    (process,) = NcclProcesses(tmp_path, lambda: ()).look()
    assert (process.namespace_pid, process.uid, process.hostnames) == (7, os.getuid(), ("pod-1", "pod-2"))


def test_name_of_a_container_is_not_read_through_a_link(tmp_path: Path) -> None:
    folder = imitate_process(tmp_path, 300, {"NCCL_DEBUG_FILE": "x"})
    (folder / "root/etc").mkdir()
    (tmp_path / "secret").write_text("secret")
    (folder / "root/etc/hostname").symlink_to(tmp_path / "secret")
    (process,) = NcclProcesses(tmp_path, lambda: ()).look()
    assert process.hostnames == ()


def test_process_on_another_host_that_this_machine_plays_is_left_out(tmp_path: Path) -> None:
    """Only one that says so and has a network of its own: a name may be spelt differently, and pods have networks."""
    for pid, host, network in ((3, "h1", "net:[2]"), (4, "h0.rack1", "net:[1]"), (5, "h0", "net:[2]")):
        folder = imitate_process(tmp_path, pid, {"NCCL_DEBUG_FILE": "x", "LOCKSTEP_HOST": host})
        (folder / "ns").mkdir(exist_ok=True)
        (folder / "ns/net").symlink_to(network)
    (tmp_path / "proc/self/ns").mkdir(parents=True)
    (tmp_path / "proc/self/ns/net").symlink_to("net:[1]")
    assert [process.pid for process in NcclProcesses(tmp_path, lambda: (), host="h0").look()] == [4, 5]


@pytest.mark.parametrize("broken", ["stat", "status", "environ"])
def test_process_of_which_the_kernel_says_nonsense_is_passed_over(tmp_path: Path, broken: str) -> None:
    folder = imitate_process(tmp_path, 3, {"NCCL_DEBUG_FILE": "x"})
    (folder / broken).write_text("nonsense")
    imitate_process(tmp_path, 4, {"NCCL_DEBUG_FILE": "x"})
    assert pids(tmp_path) == [4]


def test_job_is_that_of_the_control_group_before_the_environment(tmp_path: Path) -> None:
    folder = imitate_process(tmp_path, 3, {"NCCL_DEBUG_FILE": "x", "LOCKSTEP_JOB": "told"})
    (process,) = NcclProcesses(tmp_path, lambda: ()).look()
    assert find_job(tmp_path / "proc", process) == "told"
    (folder / "cgroup").write_text("0::/system.slice/slurmstepd.scope/job_4711/step_0\n")
    assert find_job(tmp_path / "proc", process) == "4711"


def test_sockets_of_a_process_are_those_among_its_open_files(tmp_path: Path) -> None:
    folder = imitate_process(tmp_path, 3, sockets=[7, 8])
    (folder / "fd/9").symlink_to("/dev/null")
    (folder / "fd/10").symlink_to("socket:[x]")
    assert socket_inodes(tmp_path / "proc", 3) == {7, 8}
    assert socket_inodes(tmp_path / "proc", 4) == set()


def test_host_without_proc_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotPresent, match=f"no processes in {tmp_path}/proc"):
        NcclProcesses(tmp_path).look()
