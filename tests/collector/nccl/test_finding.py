"""Ring files are found where the plugin puts them, also inside of containers, and nothing leads us astray."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from collector.nccl.finding import SCAN_NS, RingDirectories
from collector.sources.nccl_rings import NcclRingsSource
from tests.collector.nccl.forging import forge
from tests.collector.sources.imitated_rings import USUAL, Follower, make_root, recording, show_process
from tests.waiting import eventually

SHARED = Path("/dev/shm/lockstep")


@pytest.fixture
def host(tmp_path: Path) -> Path:
    make_root(tmp_path)
    return tmp_path


def contain(host: Path, pid: int = 50, namespace: int = 2) -> Path:
    """Make a container: a process in another mount namespace that holds a ring in its shared memory."""
    process = show_process(host, pid)
    (process / "ns/mnt").unlink()
    (process / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
    (process / "fd").mkdir()
    (process / "fd/9").symlink_to("/dev/shm/lockstep/7-1.ring")
    inside = process / "root/dev/shm/lockstep"
    inside.mkdir(parents=True)
    inside.chmod(0o1777)
    forge(inside / "7-1.ring")
    with (host / "proc/locks").open("a") as locks:
        locks.write(f"1: POSIX  ADVISORY  WRITE {pid} 00:19:7 0 EOF\n")
    return inside


@pytest.fixture
def directories(host: Path) -> Iterator[RingDirectories]:
    with closing(RingDirectories(host, (USUAL, SHARED))) as found:
        yield found


def files(directories: RingDirectories, now_ns: int = 0) -> list[Path]:
    return sorted(file.shown for directory in directories.scan(now_ns, set()) for file in directory.files())


def test_files_of_host_and_containers_are_found_a_mounted_directory_once_and_a_link_inside_is_not_followed(
    host: Path, directories: RingDirectories
) -> None:
    ours = forge(host / USUAL.relative_to("/") / "1-1.ring")
    (host / USUAL.relative_to("/") / "run-1.json").touch()
    inside = contain(host)
    assert files(directories) == sorted([ours, inside / "7-1.ring"])
    shutil.rmtree(inside.parents[2])
    (host / "proc/50/root").symlink_to(host)  # the same directory by another way
    linked = contain(host, 51, 3)
    away = host / "elsewhere"
    shutil.move(linked.parent, away)
    linked.parent.symlink_to(away)
    assert files(directories, SCAN_NS) == [ours]


def test_directory_comes_and_goes_with_its_container(host: Path, directories: RingDirectories) -> None:
    assert files(directories) == []
    inside = contain(host)
    assert files(directories, SCAN_NS - 1) == []  # looked for every few seconds only
    assert files(directories, SCAN_NS) == [inside / "7-1.ring"]
    (host / "proc/locks").write_text("")
    (found,) = [each for each in directories.scan(SCAN_NS, set()) if each.is_contained]
    assert found in directories.scan(2 * SCAN_NS, {found.inode})  # still in use
    assert found not in directories.scan(3 * SCAN_NS, set())


@pytest.mark.needs_root
def test_directory_in_shared_memory_may_be_anybodys_but_not_open_to_all_and_that_of_the_host_must_be_roots(
    host: Path, directories: RingDirectories
) -> None:
    usual, inside = host / USUAL.relative_to("/"), contain(host)
    forge(usual / "1-1.ring")
    inside.chmod(0o777)
    os.chown(usual, 12_345, 12_345)
    assert files(directories) == []
    of_host, of_container = directories.complaints
    assert "belongs to uid 12345" in of_host
    assert "not sticky" in of_container
    inside.chmod(0o1777)
    os.chown(inside, 12_345, 12_345)
    assert files(directories, SCAN_NS) == [inside / "7-1.ring"]


def test_file_is_removed_only_while_its_name_means_the_same(host: Path, directories: RingDirectories) -> None:
    path = forge(host / USUAL.relative_to("/") / "1-1.ring")
    ((found,),) = [list(directory.files()) for directory in directories.scan(0, set())]
    path.rename(path.with_name("kept.ring"))
    forge(path)
    found.remove()
    assert path.exists()
    os.replace(path.with_name("kept.ring"), path)
    found.remove()
    assert not path.exists()


@pytest.mark.needs_root
def test_rank_in_its_own_mount_and_process_namespace_is_followed(tmp_path: Path, plugin_library: Path) -> None:
    """The shared memory of the container is its own: on the host its ring is nowhere but below /proc/PID/root."""
    # The plugin's own path may be below what is mounted over; its descriptor stays.
    script = f"exec 9<'{plugin_library}' && mount -t tmpfs tmpfs /dev/shm && mkdir -m 1777 /dev/shm/lockstep"
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", f'{script} && exec "$@"', "sh"]
    probe = subprocess.run([*unshare, "true"], capture_output=True, text=True)
    if probe.returncode:
        pytest.skip(f"namespaces cannot be made here: {probe.stderr.strip()}")
    given = {"LOCKSTEP_JOB": "contained", "RANK": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        closing(NcclRingsSource("h0", directories=(tmp_path, SHARED))) as source,
        recording(Path("/proc/self/fd/9"), SHARED, *unshare, **given),
    ):
        follower = Follower(source)

        def is_followed() -> bool:
            follower.has("comms")
            return any(row["job"] == "contained" for row in follower.rows.get("comms", []))

        eventually(is_followed)
        (process,) = [each for each in source._processes if each.origin.job == "contained"]
        assert process.ring.identity.pid != process.owner.pid  # each namespace has its own number
        assert process.file.directory.is_contained
        assert not [path for path in SHARED.glob("*.ring") if path.name == process.file.name]
