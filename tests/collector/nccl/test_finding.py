"""Ring files are found where the plugin puts them, also inside of containers, and are whose the kernel says."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collector.nccl.finding import (
    SCAN_NS,
    Claim,
    Group,
    RingDirectories,
    attempt_of,
    find_gpu,
    group_of,
    host_gpus,
    job_of,
    judge_job,
    read_uids,
)
from collector.sources.nccl_rings import NcclRingsSource
from tests.collector.nccl.forging import forge
from tests.collector.sources.imitated_rings import USUAL, Follower, held, make_root, recording, show_process
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


POD = "0e5ad5b1-8c3f-4b34-9a0c-0123456789ab"
SLURM = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n"


@contextmanager
def following(root: Path) -> Iterator[Follower]:
    with closing(NcclRingsSource("h0", root, (USUAL,))) as source:
        yield Follower(source)


GROUPS = {
    "0::/user.slice/user-0.slice/session-1.scope\n": Group(),
    SLURM: Group(job="4711"),
    "5:memory:/slurm/uid_1000/job_12/step_batch/task_0\n0::/\n": Group(job="12"),
    "4:cpu:/slurm_node7/uid_5/job_8\n": Group(job="8"),
    "0::/srv/job_5/x\n": Group(),
    f"0::/kubepods/burstable/pod{POD}/abc\n": Group(container=f"pod-{POD}"),
    f"0::/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-1.scope\n": Group(container=f"pod-{POD}"),
    f"0::/system.slice/docker-{'ab' * 32}.scope\n": Group(container="docker-abababababab"),
    f"3:cpu:/docker/{'cd' * 32}\n": Group(container="docker-cdcdcdcdcdcd"),
    "": Group(),
}


@given(st.text(st.sampled_from("/:\n-_.0789adefobcjklmprsu\x00é\u2028")))
def test_control_group_names_the_job_or_the_container_and_none_breaks_the_reader(cgroup: str) -> None:
    assert {known: group_of(known) for known in GROUPS} == GROUPS
    assert isinstance(group_of(cgroup), Group)


CLAIMS: list[tuple[str, dict[str, str], Group, str, str]] = [
    ("7", {"SLURM_JOB_ID": "7"}, Group("7"), "7", ""),
    ("run-a", {"LOCKSTEP_JOB": "run-a", "SLURM_JOB_ID": "7"}, Group("7"), "7", ""),
    ("8", {"LOCKSTEP_JOB": "8"}, Group("7"), "7", "claims job 8, and its process is in job 7"),
    ("run-b", {"LOCKSTEP_JOB": "run-a"}, Group(), "run-a", "claims job run-b, and its process is in job run-a"),
    ("run-b", {}, Group(), "uid-5", "claims job run-b, and its process is in job none"),
    ("", {}, Group(container="pod-1"), "pod-1", ""),
    ("", {}, Group(), "uid-5", ""),
]


def test_job_is_the_kernels_and_another_claim_is_a_problem() -> None:
    for claimed, environment, group, job, problem in CLAIMS:
        assert judge_job(Claim("a.ring", 5, claimed), environment, group) == (job, problem)


def test_job_and_attempt_are_read_as_the_plugin_reads_them_and_users_as_the_kernel_shows(tmp_path: Path) -> None:
    assert job_of({"LOCKSTEP_JOB": "", "SLURM_JOB_ID": "9", "TORCHELASTIC_RUN_ID": "x"}) == "9"
    assert job_of({"LOCKSTEP_JOB": "a\x1b" + "é" * 60}) == "a" + "é" * 38 + "\ufffd"  # 79 bytes, cut inside a letter
    slurm = [attempt_of({"SLURM_RESTART_COUNT": count}) for count in ("3", "-1")]
    assert (attempt_of({}), slurm) == (0, [3, 0])
    assert attempt_of({"TORCHELASTIC_RESTART_COUNT": "99999999999", "SLURM_RESTART_COUNT": "3"}) == 65_535
    show_process(tmp_path, 5, uid=1000)
    (tmp_path / "proc/6").mkdir()
    (tmp_path / "proc/6/status").write_text("Uid: many\n")
    assert [read_uids(tmp_path / "proc", pid) for pid in (5, 6, 7)] == [{1000}, set(), set()]


def test_ring_of_its_own_job_is_followed_until_it_turns_bad_and_others_are_refused_once(tmp_path: Path) -> None:
    rings, us = make_root(tmp_path), os.geteuid()
    with ExitStack() as stack:
        follower = stack.enter_context(following(tmp_path))
        jobs = {"1-1": b"4711", "2-2": b"train", "3-3": b"4712", "4-4": b"train", "5-5": b"train"}
        good, ours, liar, stranger, hidden = (
            stack.enter_context(held(rings / f"{name}.ring", job=job)) for name, job in jobs.items()
        )
        show_process(tmp_path, good, us, "SLURM_JOB_ID=4711\0SLURM_RESTART_COUNT=1\0", SLURM)
        show_process(tmp_path, ours, us, "LOCKSTEP_JOB=train\0")
        show_process(tmp_path, liar, us, "LOCKSTEP_JOB=4712\0", SLURM)
        show_process(tmp_path, stranger, us + 1, "LOCKSTEP_JOB=train\0")
        (show_process(tmp_path, hidden, us) / "environ").unlink()
        follower.read()
        one, other = sorted((each.origin for each in follower.source._processes), key=lambda origin: origin.job)
        assert (one.job, one.attempt, one.pid, other.pid) == ("4711", 1, good, ours)
        events = {event["message"].rpartition("/")[2][:3]: event for event in follower.rows["events"]}
        assert sorted(events) == ["3-3", "4-4", "5-5"]
        assert events["3-3"]["message"] == f"{rings}/3-3.ring: claims job 4712, and its process is in job 4711"
        assert f"is held by process {stranger} of uid {us + 1}" in events["4-4"]["message"]
        assert "CAP_SYS_PTRACE" in events["5-5"]["message"]
        reported = {name: events["3-3"][name] for name in ("source", "kind", "component", "severity", "host")}
        assert list(reported.values()) == ["nccl_rings", "ring_refused", "host:h0", "warning", "h0"]
        os.truncate(rings / "1-1.ring", 5_000)
        for _ in range(3):
            follower.has("comms")
        assert [process.owner.pid for process in follower.source._processes] == [ours]
    assert len(follower.refusals()) == 4
    assert "was cut" in follower.refusals()[3]
    assert set(follower.rows) == {"events", "plugins"}


def test_garbage_and_what_nobody_holds_are_refused_once_hide_nobody_and_are_removed_in_the_end(
    tmp_path: Path,
) -> None:
    rings = make_root(tmp_path)
    (rings / "a.ring").write_bytes(b"x" * 10_000)
    (rings / "a.ring").chmod(0o600)
    (rings / "b.ring").symlink_to("/etc/passwd")
    os.mkfifo(rings / "c.ring", 0o600)
    (rings / "d.ring").touch(0o600)  # its writer has only begun
    abandoned = forge(rings / "e.ring")
    with following(tmp_path) as follower, held(rings / "1-1.ring") as pid:
        show_process(tmp_path, pid, os.geteuid(), "LOCKSTEP_JOB=train\0")
        for _ in range(3):
            follower.has("comms")
        assert [process.owner.pid for process in follower.source._processes] == [pid]
        problems = sorted(refusal.rpartition("ring: ")[2] for refusal in follower.refusals())
        unopened = "cannot be opened: Too many levels of symbolic links"
        assert problems[:3] == [unopened, "is no regular file", "is no ring file"]
        assert len(problems) == 4
        assert problems[3].startswith("nobody holds it")
        assert abandoned.exists()
        follower.skip(601)
        follower.read()
    assert not abandoned.exists()


UUIDS = [f"GPU-{number}aaaaaaa-1111-2222-3333-444444444444" for number in range(4)]


SHOWN: dict[tuple[str | None, int | None], int | None] = {
    (None, 2): 2,
    (None, None): None,
    (None, 4): None,  # there are only four
    ("2,3", 1): 3,
    ("2,3", 2): None,
    ("2,3", None): None,
    ("3", 1): 3,  # each rank sees its own only
    (" 1 , 0 ", 0): 1,
    (UUIDS[2], 0): 2,
    ("GPU-3aaa,GPU-1aaa", 1): 1,
    **{(unknown, 0): None for unknown in ("GPU-9", "MIG-5aaa", "void", "-1", ",")},
}


def test_gpu_by_what_cuda_shows_of_those_of_the_host_and_a_container_numbers_them_anew(tmp_path: Path) -> None:
    for (visible, local_rank), expected in SHOWN.items():
        environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        assert find_gpu(environment, local_rank, UUIDS, is_contained=False) == expected, visible
    contained = {"all": 1, "3,2": 3, f"{UUIDS[0]},{UUIDS[2]}": 2, "void": None, "2": None}
    for shown, expected in contained.items():
        assert find_gpu({"NVIDIA_VISIBLE_DEVICES": shown}, 1, UUIDS, is_contained=True) == expected, shown
        assert find_gpu({"NVIDIA_VISIBLE_DEVICES": shown}, 1, UUIDS, is_contained=False) == 1
    assert find_gpu({}, None, UUIDS[:1], is_contained=False) == 0, "an only one is everybody's"
    for address, uuid in (("0000:41:00.0", UUIDS[1]), ("0000:01:00.0", UUIDS[0]), ("0000:81:00.0", None)):
        folder = tmp_path / "proc/driver/nvidia/gpus" / address
        folder.mkdir(parents=True)
        folder.joinpath("information").write_text(f"Model: \t NVIDIA H200\nGPU UUID: \t {uuid}\n" if uuid else "")
    assert host_gpus(tmp_path) == [UUIDS[0], UUIDS[1], ""], "in the order of their addresses"
    assert host_gpus(tmp_path / "none") == []
